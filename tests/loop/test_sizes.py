"""Nests with sizes that a call brings, at given sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clew import te
from clew.ir.dims import SymDim
from clew.loop.in_place import in_place_pairs
from clew.loop.interpret import interpret
from clew.loop.ir import Block, Buffer, For, Nest, Store, loops
from clew.loop.lower import lower
from clew.loop.schedule import Schedule
from clew.loop.sizes import at_sizes
from clew.te.expr import INDEX, Imm, Index, binary

N = SymDim.symbol("n")
SIZES = (1, 3, 4, 7, 8, 13)


def _rows(extent: Any) -> Nest:
    """The sums of rows, less the last element of the row."""
    x = te.placeholder((extent, 5), "f32", "x")
    k = te.reduce_axis(5, "k")
    total = te.compute((extent,), lambda i: te.sum(x[i, k], k), "total")
    less = te.compute((extent,), lambda i: total[i] - x[i, 4], "less")
    return lower("rows", [x], [less])


def _plus(extent: Any) -> Nest:
    x = te.placeholder((extent,), "f32", "x")
    return lower("plus", [x], [te.compute((extent,), lambda i: x[i] + 1.0, "out")])


def _x(n: int, *more: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(n).standard_normal((n, *more)).astype(np.float32)


@pytest.mark.parametrize("tail", ["peel", "guard", "balance", "once", "shrink", "clamp"])
def test_every_tail_at_every_size(tail: str) -> None:
    schedule = Schedule(_rows(N))
    outer, inner = schedule.split("less.i", 4, tail=tail)
    schedule.compute_at("total", outer, "scratch")
    if tail in ("shrink", "clamp"):
        schedule.vectorize(inner)
    else:
        schedule.parallel(outer)
    nest = schedule.finished()
    assert nest.sizes == ("n",)
    for n in SIZES:
        made = at_sizes(nest, {"n": n})
        assert made.sizes == ()
        assert [b.shape for b in (*made.inputs, *made.outputs)] == [(n, 5), (n,)]
        x = _x(n, 5)
        (found,) = interpret(made, [x])
        np.testing.assert_allclose(found, x.sum(1) - x[:, 4], rtol=1e-5, atol=1e-6)


def test_a_nest_of_numbers_is_itself() -> None:
    nest = _plus(6)
    assert at_sizes(nest, {"n": 3}) is nest


def test_the_nest_keeps_its_names() -> None:
    nest = _plus(N)
    before = str(Schedule(nest))
    assert [loop.extent for loop in loops(at_sizes(nest, {"n": 9}).body)] == [9]
    assert "in n:" in before
    assert str(Schedule(nest)) == before


@pytest.mark.parametrize(("extent", "tail"), [(N, "balance"), (10, "clamp")])
def test_overlapping_tiles_write_equal_values_again(extent: Any, tail: str) -> None:
    schedule = Schedule(_plus(extent))
    outer, _ = schedule.split("out.i", 4, tail=tail)
    schedule.parallel(outer)
    nest = schedule.finished()
    x = _x(10)
    (found,) = interpret(at_sizes(nest, {"n": 10}), [x])
    np.testing.assert_array_equal(found, x + 1)
    assert in_place_pairs(nest) == ()


def test_tiles_that_skip_what_they_share_may_write_over_their_input() -> None:
    schedule = Schedule(_plus(N))
    outer, inner = schedule.split("out.i", 4, tail="once")
    schedule.split(inner, 2, tail="shrink")
    schedule.parallel(outer)
    nest = schedule.finished()
    assert in_place_pairs(nest) == ((0, 0),)
    for n in SIZES:
        x = _x(n)
        (found,) = interpret(at_sizes(nest, {"n": n}), [x])
        np.testing.assert_array_equal(found, x + 1)


@pytest.mark.parametrize(("overlap", "message"), [(True, "with another value"), (False, "again")])
def test_overlapping_tiles_must_write_equal_values(overlap: bool, message: str) -> None:
    """Each tile writes its number; other tiles may not even write equal values again."""
    tile, lane = Index("o", 3, repeats=overlap), Index("i", 4)
    out = Buffer("out", (10,), "i64", "output")
    value = tile if overlap else Imm(1, INDEX)
    store = Store(out, (binary("min", tile * 4, 6) + lane,), value, "out")
    body = For(tile, "parallel", For(lane, "serial", store))
    with pytest.raises(AssertionError, match=rf"writes out\[6\] {message}|again, {message}"):
        interpret(Nest("tiles", (), (out,), Block((body,))), [])
