import re
from dataclasses import replace

import pytest

from clew.machine.probes import peak
from clew.machine.target import host


def test_kernel_runs_and_reports_a_plausible_rate() -> None:
    kernel = peak.FmaPeak()
    assert kernel.lanes in {4, 8, 16}
    for threads in (1, 2):
        assert 0.5 < kernel.gflops(threads) < 10_000


def test_every_chain_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []
    monkeypatch.setattr(peak, "NativeFunction", lambda text, *_: texts.append(text))
    probes = [peak.FmaPeak(), *(peak.DotPeak(unit) for unit in host().dot_units)]
    chains = probes[0].chains
    for text in texts:
        assert len(re.findall(r"^  %b\d+ = ", text, re.MULTILINE)) == chains
        assert len(re.findall(r"^  store ", text, re.MULTILINE)) == chains
    assert probes[0]._flops == 2 * peak._STEPS * chains * probes[0].lanes
    for probe, unit in zip(probes[1:], host().dot_units, strict=True):
        assert probe._flops == 2 * peak._STEPS * chains * unit.lanes * unit.group


@pytest.mark.parametrize("registers", [16, 32])
def test_chains_stay_in_registers(registers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    target = replace(host(), vector_registers=registers)
    monkeypatch.setattr(peak, "host", lambda: target)
    assert peak.FmaPeak().chains <= registers - 3


@pytest.mark.skipif(not peak.TilePeak.available(), reason="no matrix unit for bf16")
def test_tiles_give_a_plausible_rate() -> None:
    assert 1 < peak.TilePeak().gflops(1) < 100_000
