"""Memory that the segments of one template share at all sizes."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import pytest

from clew.runtime.context import SharedMemory
from clew.support.addresses import address_of

MIB = 1 << 20


def used(shared: SharedMemory, size_bytes: int) -> int:
    """Takes memory, writes to it and gives it back; returns its address."""
    memory = shared.take(size_bytes)
    assert memory.array.nbytes >= size_bytes
    assert memory.address == address_of(memory.array)
    memory.array[:size_bytes] = 1
    shared.give(memory, size_bytes)
    return memory.address


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * mmap.PAGESIZE


def test_larger_memory_serves_smaller_sizes() -> None:
    shared = SharedMemory([])
    first, *others = (used(shared, n * MIB) for n in (1, 8, 5, 6, 8))
    assert first not in others
    assert len(set(others)) == 1


def test_large_memory_grows_in_place() -> None:
    shared = SharedMemory([])
    assert len({used(shared, n * MIB) for n in (4, 9, 17, 32)}) == 1
    before = resident_bytes()
    used(shared, 40 * MIB)  # more addresses than that are not reserved
    assert resident_bytes() - before < 16 * MIB


def test_small_memory_does_not_reserve_addresses() -> None:
    assert SharedMemory([]).take(MIB).size_bytes == MIB


def test_memory_of_a_large_size_is_freed_once_it_is_long_ago() -> None:
    shared = SharedMemory([])
    used(shared, 256 * MIB)
    before = resident_bytes()
    for _ in range(100):
        used(shared, MIB)
    assert before - resident_bytes() > 240 * MIB
    used(shared, 256 * MIB)
    assert before - resident_bytes() < 16 * MIB


def test_alternating_sizes_keep_their_memory() -> None:
    shared = SharedMemory([])
    kept = shared.take(64 * MIB)
    shared.give(kept, 64 * MIB)
    for _ in range(20):
        used(shared, MIB)
        assert shared.take(64 * MIB) is kept
        shared.give(kept, 64 * MIB)


def test_calls_at_once_have_memory_of_their_own() -> None:
    shared = SharedMemory([])
    held = [shared.take(4 * MIB) for _ in range(6)]
    assert len({id(memory) for memory in held}) == 6
    for memory in held:
        shared.give(memory, 4 * MIB)
    assert {id(shared.take(MIB)) for _ in range(4)} <= {id(memory) for memory in held}


@pytest.mark.parametrize(("steps", "kept"), [(1, 1024), (100, 81), (1000, 16), (0, 16)])
def test_segments_of_few_steps_keep_many_contexts(steps: int, kept: int) -> None:
    shared = SharedMemory([], steps)
    used: list[list[Any]] = [[(0, "a context")] for _ in range(kept + 1)]
    assert [shared.share(idle) for idle in used] == [None] * kept + ["a context"]
    assert not used[0]


@pytest.mark.parametrize("last", ["small", "large"])
def test_small_idle_memory_does_not_cost_large_memory(last: str) -> None:
    shared = SharedMemory([])
    small, large = shared.take(1 << 10), shared.take(8 * MIB)
    for memory in (large, small) if last == "small" else (small, large):
        shared.give(memory, 1 << 10)
    assert shared.take(8 * MIB) is large
    assert shared.take(1 << 10) is small
