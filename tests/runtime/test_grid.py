from collections.abc import Sequence

from handmade import ARENA, CONSTANT, ref

from clew.codegen.artifact import Access, EntryPoint
from clew.runtime.grid import Chunk, Use, choose_cuts, phases, split
from clew.runtime.plan import BufferRef

LINES = ((10, 2.0), (1, 4.0))


def cells(chunks: Sequence[Chunk]) -> list[tuple[str, int, int]]:
    return [
        (c.symbol, piece, line)
        for c in chunks
        for piece in range(c.begin, c.end)
        for line in range(c.first, c.last)
    ]


def test_chunks_cover_pieces_and_lines_once() -> None:
    for grid in (0, 1, 2, 7, 100, 1234):
        for lines in ((), ((1, 1.0),), LINES, ((64, 1.0),)):
            entry = EntryPoint("f", grid, 0.0, lines)
            whole = sorted(("f", p, n) for p in range(grid) for n in range(entry.n_lines))
            for cost in (0.0, 5_000.0, 1e5, 1e9):
                for threads in (1, 2, 5, 64):
                    for along in (False, True):
                        one = EntryPoint("f", grid, cost, lines)
                        assert sorted(cells(split([one], threads, along))) == whole


def test_a_phase_without_pieces_is_not_run_at_all() -> None:
    """A function does at least one line, and ignores its pieces if its code has just one."""
    entry = EntryPoint("f", 0, 0.0, ((0, 1.0),))
    for threads in (1, 2):
        assert split([entry], threads) == []


def test_what_may_run_at_once_is_one_phase() -> None:
    first, rest = EntryPoint("f", 7, 1e5), EntryPoint("f.1", 3, 5e4, joins=True)
    alone = EntryPoint("g", 5, 1e5)
    assert phases([first, rest, alone]) == [[first, rest], [alone]]
    found = sorted(cells(split([first, rest], 2)))
    assert found == [("f", n, 0) for n in range(7)] + [("f.1", n, 0) for n in range(3)]


def test_threads_repeat_little() -> None:
    """Chunks of the same piece repeat the work before its lines."""
    for grid, parts in ((1, 2), (2, 1), (3, 2), (4, 1), (5, 2), (7, 1)):
        entry = EntryPoint("f", grid, 1e9, ((24, 1e6),), repeated=1e6)
        chunks = split([entry], 2)
        assert len(chunks) == grid * parts
        assert sorted(cells(chunks)) == [("f", p, n) for p in range(grid) for n in range(24)]
        assert len(split([entry], 2, along=True)) <= 2 * grid
    few = EntryPoint("f", 1, 1e9, ((24, 1e6),), repeated=1e6)
    assert len(split([few], 16)) >= 16


def test_small_work_stays_on_one_thread() -> None:
    whole = [Chunk("f", 0, 100, 0, 1)]
    assert split([EntryPoint("f", 100, 7_999.0)], 2) == whole
    assert split([EntryPoint("f", 100, 1e6)], 1) == whole
    assert split([EntryPoint("f", 1, 1e9)], 2) == [Chunk("f", 0, 1, 0, 1)]
    assert len(split([EntryPoint("f", 100, 8_000.0)], 2)) == 2
    assert len(split([EntryPoint("f", 12, 1e6)], 2)) == 12


def test_threads_have_halves_of_the_lines_that_cost_alike() -> None:
    chunks = split([EntryPoint("f", 3, 1e6, LINES)], 2, along=True)
    caller = [c for c in chunks if c.last <= 6]
    assert chunks[: len(caller)] == caller
    assert cells(caller) == [("f", piece, line) for piece in range(3) for line in range(6)]
    # The worker takes them from the back.
    workers = chunks[: len(caller) - 1 : -1]
    assert cells(workers) == [("f", piece, line) for piece in range(3) for line in range(6, 11)]


def convolution(image: int, weights: int, number: int) -> Use:
    """Reads arena buffer `number` and constants, writes arena buffer `number + 1`."""
    entry = EntryPoint(
        "f",
        8,
        1e5,
        ((8, 1.0),),
        (Access(0, image, 0, image // 8), Access(1, weights, weights, 0)),
        (Access(2, image, image, image // 8),),
    )
    return Use((entry,), [ref(ARENA, number), ref(CONSTANT), ref(ARENA, number + 1)])


def test_small_weights_are_read_by_all_and_large_ones_shared_out() -> None:
    small = [convolution(400_000, 100_000, n) for n in range(4)]
    assert choose_cuts(small, 2)[1:] == [True] * 3
    large = [convolution(100_000, 2_000_000, n) for n in range(4)]
    assert choose_cuts(large, 2) == [False] * 4


def test_what_could_go_both_ways_goes_as_its_neighbors() -> None:
    image, weights = 400_000, 1_000
    both = EntryPoint(
        "g",
        8,
        1e5,
        ((8, 1.0),),
        (Access(0, image, image, image // 8), Access(1, weights, weights, 0)),
        (Access(2, image, image, image // 8),),
    )
    args: list[BufferRef] = [ref(ARENA, 1), ref(CONSTANT), ref(ARENA, 2)]
    along = [convolution(image, weights, 0), Use((both,), args), convolution(image, weights, 2)]
    assert choose_cuts(along, 2)[1:] == [True, True]
    apart = [convolution(image, 10**8, 0), Use((both,), args), convolution(image, 10**8, 2)]
    assert choose_cuts(apart, 2) == [False] * 3


def test_one_thread_cuts_nothing() -> None:
    assert choose_cuts([convolution(400_000, 1_000, n) for n in range(3)], 1) == [False] * 3
