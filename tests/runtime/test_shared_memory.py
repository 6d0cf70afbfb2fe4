"""Memory that the segments of one template share at all sizes."""

from __future__ import annotations

from clew.runtime.context import SharedMemory

MIB = 1 << 20


def used(shared: SharedMemory, size_bytes: int) -> int:
    """Takes memory and gives it back; returns its bytes."""
    memory = shared.take(size_bytes)
    assert memory.nbytes >= size_bytes
    shared.give(memory)
    return memory.nbytes


def test_larger_memory_serves_smaller_sizes() -> None:
    shared = SharedMemory([])
    assert [used(shared, n * MIB) // MIB for n in (1, 8, 5, 6, 8)] == [1, 8, 8, 8, 8]


def test_memory_of_a_large_size_is_freed_once_it_is_long_ago() -> None:
    shared = SharedMemory([])
    used(shared, 64 * MIB)
    found = [used(shared, MIB) // MIB for _ in range(100)]
    assert found[0] == 64
    assert found[-1] == 1
    assert used(shared, 64 * MIB) == 64 * MIB


def test_alternating_sizes_keep_their_memory() -> None:
    shared = SharedMemory([])
    kept = shared.take(64 * MIB)
    shared.give(kept)
    for _ in range(20):
        used(shared, MIB)
        assert shared.take(64 * MIB) is kept
        shared.give(kept)


def test_calls_at_once_have_memory_of_their_own() -> None:
    shared = SharedMemory([])
    held = [shared.take(4 * MIB) for _ in range(6)]
    assert len({id(memory) for memory in held}) == 6
    for memory in held:
        shared.give(memory)
    assert {id(shared.take(MIB)) for _ in range(4)} <= {id(memory) for memory in held}
