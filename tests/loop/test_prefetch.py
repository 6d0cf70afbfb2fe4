"""Prefetching panels: which lines are requested, and when, at which sizes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from computations import plain, same

from clew import te
from clew.ir.dims import SymDim
from clew.loop.affine import Simplifier
from clew.loop.interpret import interpret
from clew.loop.ir import Block, For, If, Nest, Prefetch, Stmt, walk
from clew.loop.lower import lower
from clew.loop.schedule import Schedule
from clew.loop.sizes import at_sizes
from clew.te.expr import INDEX, Imm, Scalar
from clew.te.walk import substitute


def test_prefetch_asks_for_a_share_of_the_next_panel_each_step() -> None:
    nest, arrays, expected = plain("matmul", 6, 40)
    schedule = Schedule(nest)
    schedule.reorder("product.k", "product.i", "product.j")
    schedule.split("product.i", 4)  # the rest counts on from the main part
    schedule.prefetch("b", "product.k", "product.i.i")
    asked = [line.strip() for line in str(schedule).splitlines() if "prefetch" in line]
    # 40 numbers are 2.5 lines of 64 bytes: three steps of six ask for one each, the rest again.
    assert len(asked) == 2
    assert all("min((product.k + 1), 4)" in line for line in asked)
    assert "4) + product.i.i)" in asked[1]
    assert same(interpret(schedule.finished(), arrays), expected)


def test_prefetch_of_panels_of_one_element() -> None:
    """A loop over the last axis of a row."""
    nest, arrays, expected = plain("moved", 1, 20)
    schedule = Schedule(nest)
    schedule.prefetch("x", "turned.i", "turned.j")
    (asked,) = (s for s in walk(schedule.nest.body) if isinstance(s, Prefetch))
    assert len(asked.indices) == 2
    assert same(interpret(schedule.finished(), arrays), expected)


def panels_of_any_rows() -> Schedule:
    """Returns a product with four panels of 64 lines."""
    n = SymDim.symbol("n")
    a, b = te.placeholder((n, 64), "f32", "a"), te.placeholder((4, 64, 16), "f32", "b")
    k = te.reduce_axis(64, "k")
    out = te.compute((4, n, 16), lambda p, i, j: te.sum(a[i, k] * b[p, k, j], k), "out")
    schedule = Schedule(lower("panels", [a, b], [out]))
    schedule.reorder("out.p", "out.i", "out.k", "out.j")
    return schedule


def requested(nest: Nest, sizes: Mapping[str, int], panel: int) -> list[int]:
    """Returns the lines that a panel's iteration prefetches, in order."""
    found: list[int] = []

    def visit(stmt: Stmt, values: dict[int, Scalar]) -> None:
        match stmt:
            case For():
                number = [panel] if stmt.name == "out.p" else range(stmt.extent)
                for n in number:
                    visit(stmt.body, {**values, id(stmt.index): Imm(n, INDEX)})
            case Block():
                for child in stmt.stmts:
                    visit(child, values)
            case If():
                holds = Simplifier().simplify(substitute(stmt.cond, values))
                assert isinstance(holds, Imm)
                if holds.value:
                    visit(stmt.body, values)
            case Prefetch():
                at = [Simplifier().simplify(substitute(i, values)) for i in stmt.indices]
                _, row, column = [int(i.value) for i in at if isinstance(i, Imm)]
                found.append((row * 16 + column) // 16)

    visit(at_sizes(nest, sizes).body, {})
    return found


def test_tiles_prefetch_the_whole_panel_at_all_sizes() -> None:
    """The only tile prefetches all of it, two tiles a half each, and the first four of many a
    quarter each. Others repeat lines.
    """
    schedule = panels_of_any_rows()
    schedule.split("out.i", 6, tail="shrink")
    schedule.split("out.k", 4)
    schedule.reorder("out.i.o", "out.k.o", "out.k.i", "out.i.i", "out.j")
    for name in ("out.k.i", "out.i.i"):
        schedule.unroll(name)
    schedule.vectorize("out.j")
    schedule.prefetch("b", "out.p", "out.k.o", "out.i.o")
    panel = list(range(64))
    for rows in (1, 2, 3, 6, 24, 60, 90):
        lines = requested(schedule.nest, {"n": rows}, panel=0)
        assert lines[:64] == panel, rows
    for rows in (4, 5, 7, 11, 12, 13, 18):
        lines = requested(schedule.nest, {"n": rows}, panel=0)
        first, second = lines[:64], lines[64:128]
        assert sorted(set(first)) == panel[:32], rows
        assert sorted(set(second)) == panel[32:], rows
        assert set(lines[128:]) <= set(panel[32:]), rows
    for rows in range(1, 41):
        assert set(requested(schedule.nest, {"n": rows}, panel=0)) == set(panel), rows
    for rows in (24, 60, 90):
        lines = requested(schedule.nest, {"n": rows}, panel=0)
        assert set(lines[64:]) <= set(panel[32:]), rows
    arrays = [np.ones((7, 64), np.float32), np.ones((4, 64, 16), np.float32)]
    (result,) = interpret(at_sizes(schedule.finished(), {"n": 7}), arrays)
    assert (result == 64).all()


def test_the_share_of_a_prefetch_follows_from_the_sizes_of_a_run() -> None:
    """Without tiles, steps of any number prefetch the panel once, a few lines at a time."""
    schedule = panels_of_any_rows()
    schedule.prefetch("b", "out.p", "out.i")
    asked = []
    for rows in (1, 2, 3, 64, 100):
        nest = at_sizes(schedule.nest, {"n": rows})
        (line,) = (s for s in walk(nest.body) if isinstance(s, For) and s.name == "out.line")
        asked.append(line.extent)
    assert asked == [32, 32, 22, 1, 1]  # of 64; at most 32 at once


def test_tiles_of_any_number_share_a_prefetch() -> None:
    """Tiles request the panel about once; those after its end request nothing."""
    schedule = panels_of_any_rows()
    schedule.split("out.i", 6, tail="shrink")
    schedule.split("out.k", 16)
    schedule.reorder("out.i.o", "out.k.o", "out.k.i", "out.i.i", "out.j")
    schedule.prefetch("b", "out.p", "out.k.o")
    for rows in (1, 5, 6, 7, 12, 18, 24, 60, 90, 200):
        lines = requested(schedule.nest, {"n": rows}, panel=0)
        assert sorted(set(lines)) == list(range(64)), rows
        assert len(lines) <= 80, rows  # the last tile may repeat a part of a share
    arrays = [np.ones((7, 64), np.float32), np.ones((4, 64, 16), np.float32)]
    (result,) = interpret(at_sizes(schedule.finished(), {"n": 7}), arrays)
    assert (result == 64).all()


def test_only_the_lines_that_a_panel_reads_at_given_sizes_are_prefetched() -> None:
    """Tiles read some rows of each panel. The first tile prefetches them, the others nothing."""
    n, first, count = map(SymDim.symbol, ("n", "first", "count"))
    a, b = te.placeholder((n, 64), "f32", "a"), te.placeholder((4, 64, 16), "f32", "b")
    k, part = te.reduce_axis(count, "k"), te.reduce_axis(4, "part")
    row = k * 4 + part + te.size(first)
    out = te.compute((4, n, 16), lambda p, i, j: te.sum(a[i, row] * b[p, row, j], (k, part)), "out")
    schedule = Schedule(lower("panels", [a, b], [out]))
    schedule.reorder("out.p", "out.i", "out.k", "out.part", "out.j")
    schedule.split("out.i", 6, tail="shrink")
    schedule.reorder("out.i.o", "out.k", "out.part", "out.i.i", "out.j")
    schedule.vectorize("out.j")
    schedule.prefetch("b", "out.p", "out.k")
    for rows in (1, 5, 6, 7, 20):
        for start, blocks in ((0, 16), (24, 2), (60, 1)):
            lines = requested(schedule.nest, {"n": rows, "first": start, "count": blocks}, panel=0)
            assert lines == list(range(start, start + 4 * blocks)), rows
    arrays = [np.ones((7, 64), np.float32), np.ones((4, 64, 16), np.float32)]
    nest = at_sizes(schedule.finished(), {"n": 7, "first": 24, "count": 2})
    (result,) = interpret(nest, arrays)
    assert (result == 8).all()


def test_panels_of_a_free_number_of_rows_are_requested_some_steps_ahead() -> None:
    """The last tile is moved back so that it ends at the last row; requests do not follow it."""
    n = SymDim.symbol("n")
    x = te.placeholder((2, n, 32), "f32", "x")
    out = te.compute((2, n, 32), lambda b, i, j: x[b, i, j] + 1.0, "out")
    schedule = Schedule(lower("rows", [x], [out]))
    tile, row = schedule.split("out.i", 4, tail="clamp")
    schedule.prefetch("x", tile, row, distance=3)
    nest = at_sizes(schedule.finished(), {"n": 30})
    asked = [s for s in walk(nest.body) if isinstance(s, Prefetch)]
    assert asked
    text = str(schedule)
    assert "min(((out.i.o * 4) + 12), " in text
    values = np.random.default_rng(0).standard_normal((2, 30, 32)).astype(np.float32)
    (found,) = interpret(nest, [values])
    np.testing.assert_array_equal(found, values + 1)
