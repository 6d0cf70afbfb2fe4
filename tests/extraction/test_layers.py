"""What lies between layers, and what is said of ranges that are none."""

from __future__ import annotations

import pytest

from clew.extraction.layers import LayerGraph
from clew.extraction.splitting import split
from clew.support.errors import InputError

# a -> b -> d -> e, a -> c -> d, and w, which is fixed, feeds c.
NAMES = ["a", "w", "b", "c", "d", "e"]
READS = [frozenset(r) for r in ((), (), (0,), (0, 1), (2, 3), (4,))]


@pytest.fixture
def layers() -> LayerGraph:
    return LayerGraph(
        NAMES,
        READS,
        frozenset({1}),
        inside={"b/inner": "b"},
        gone={"shape": "known at import"},
    )


def names(layers: LayerGraph, numbers: frozenset[int]) -> str:
    return "".join(layers.names[n] for n in sorted(numbers))


def fails(code: str, *said: str):  # type: ignore[no-untyped-def]
    return pytest.raises(InputError, match=rf"error\[{code}\]" + "".join(f"[^§]*{s}" for s in said))


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (["a"], ["d"], "abcd"),
        (["b"], ["e"], "bde"),
        (["b", "c"], ["d"], "bcd"),
        (["a"], ["b", "c"], "abc"),
        (["d"], ["d"], "d"),
        ([], ["b"], "ab"),
        (["d"], [], "de"),
        (["w"], ["d"], "wcd"),
    ],
)
def test_between(layers: LayerGraph, start: list[str], end: list[str], expected: str) -> None:
    assert names(layers, layers.between(start, end)) == expected


def test_what_is_no_range(layers: LayerGraph) -> None:
    with fails("I132", "from e to b is reversed", "exchange them"):
        layers.between(["e"], ["b"])
    with fails("I131", "no path leads from b to c"):
        layers.between(["b"], ["c"])
    with fails("I131", "from b to c"):  # one of several without a path
        layers.between(["a", "b"], ["c"])
    with fails("I130", "no layer is named 'dd'", "near it are d"):
        layers.between(["dd"], [])
    with fails("I130", "'b/inner' is inside 'b'", "name 'b'"):
        layers.between([], ["b/inner"])
    with fails("I130", "'shape' has no node in the graph: known at import"):
        layers.between([], ["shape"])


def test_layers_that_values_leave_and_come_back_to(layers: LayerGraph) -> None:
    layers.check_convex(frozenset({0, 2, 3, 4}))
    layers.check_convex(frozenset({0, 3}))  # what w gives is fixed
    with fails("I133", "through b, c"):
        layers.check_convex(frozenset({0, 4}))
    assert layers.between_them(frozenset({0, 4})) == [2, 3]


def test_split_at(layers: LayerGraph) -> None:
    pieces = split(layers, ["b", "d"], ())
    assert [(n, names(layers, p)) for n, p in pieces] == [
        ("up to b", "ab"),
        ("up to d", "cd"),
        ("the rest", "e"),
    ]
    together = split(layers, [["b", "c"]], ())
    assert [names(layers, p) for _, p in together] == ["abc", "de"]
    assert [names(layers, p) for _, p in split(layers, ["e"], ())] == ["abcde"]
    with fails("I148", "ends with b is empty"):
        split(layers, ["d", "b"], ())


def test_split_by_ranges(layers: LayerGraph) -> None:
    pieces = split(layers, (), [("d", "d"), ("b", "b")])
    assert [(n, names(layers, p)) for n, p in pieces] == [
        ("before b to b", "a"),
        ("b to b", "b"),
        ("before d to d", "c"),
        ("d to d", "d"),
        ("the rest", "e"),
    ]
    with fails("I148", "share layers: b"):
        split(layers, (), [("a", "b"), ("b", "d")])
    chains = LayerGraph(["x1", "x2", "y1", "y2"], [frozenset(r) for r in ((), (0,), (), (2,))])
    one, other = ["x1", "y2"], ["x2", "y1"]
    with fails("I148", "depend on each other"):
        split(chains, (), [(one, one), (other, other)])
