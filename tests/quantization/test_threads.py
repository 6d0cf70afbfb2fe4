"""Parts of a quantization on several threads: the same results, and errors, as on one."""

from __future__ import annotations

import threading

import pytest

from clew.quantization.threads import Threads


@pytest.mark.parametrize("count", [1, 3])
def test_results_are_in_order_of_the_parts(count: int) -> None:
    sizes = [3, 9, 1, 7]
    assert Threads(count).map(lambda n: n * n, sizes) == [0, 1, 4, 9]
    assert Threads(count).map(str, []) == []


@pytest.mark.parametrize("count", [1, 2])
def test_the_first_part_that_fails_decides_the_error(count: int) -> None:
    def work(n: int) -> None:
        if n in (1, 2):
            raise ValueError(f"part {n}")

    with pytest.raises(ValueError, match="part 1"):
        Threads(count).map(work, [1, 1, 5, 1])


def test_parts_run_at_once() -> None:
    both = threading.Barrier(2, timeout=60)
    assert len(Threads(2).map(lambda n: both.wait(), [1, 1])) == 2
