import re

import pytest

from clew.bench import peak


def test_kernel_runs_and_reports_a_plausible_rate() -> None:
    kernel = peak.FmaPeak()
    assert kernel.lanes in {4, 8, 16}
    for threads in (1, 2):
        assert 0.5 < kernel.gflops(threads) < 10_000


def test_every_chain_is_counted() -> None:
    source = peak._source(8)
    assert len(re.findall(r"= call .*@llvm\.fma\.v8f32", source)) == peak._CHAINS
    assert len(re.findall(r"^  store ", source, re.MULTILINE)) == peak._CHAINS


@pytest.mark.skipif(not peak.TilePeak.available(), reason="no matrix unit for bf16")
def test_tiles_give_a_plausible_rate() -> None:
    assert 1 < peak.TilePeak().gflops(1) < 100_000
