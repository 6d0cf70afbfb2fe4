"""The text of a nest with free dimensions: names of its sizes, and the stages of their lines."""

from __future__ import annotations

from typing import Any

from clew import te
from clew.ir.dims import SymDim
from clew.loop.ir import Nest, loops
from clew.loop.lower import lower
from clew.loop.printer import print_nest
from clew.loop.schedule import Schedule
from clew.te.expr import Index, size

BATCH, SEQUENCE = SymDim.symbol("batch"), SymDim.symbol("sequence")


def _doubled(extent: Any) -> Nest:
    x = te.placeholder((extent,), "f32", "x")
    return lower("doubled", [x], [te.compute((extent,), lambda i: x[i] * 2.0, "out")])


def test_long_and_repeated_sizes_have_names() -> None:
    schedule = Schedule(_doubled(BATCH * SEQUENCE))
    schedule.split("out.i", 16, tail="peel")
    assert print_nest(schedule.finished()).text == (
        "kernel doubled(x: f32[batch*sequence], out: f32[batch*sequence]):\n"
        "  size %s0 = batch*sequence\n"
        "  size %s1 = ((%s0 + 15) // 16) - (%s0 // 16)\n"
        "  size %s2 = 16*(%s0 // 16)\n"
        "  for out.i.o in %s0 // 16:\n"
        "    for out.i.i in 16:\n"
        "      out[((out.i.o * 16) + out.i.i)] = (x[((out.i.o * 16) + out.i.i)] * 2.0)  # out\n"
        "  for out.i.o in %s1:\n"
        "    for out.i.i in 16:\n"
        "      if ((((out.i.o * 16) + out.i.i) + %s2) < %s0):\n"
        "        out[(((out.i.o * 16) + out.i.i) + %s2)] = "
        "(x[(((out.i.o * 16) + out.i.i) + %s2)] * 2.0)  # out\n"
    )


def test_short_sizes_are_written_out() -> None:
    nest = _doubled(4 * SEQUENCE)
    assert print_nest(nest).text == (
        "kernel doubled(x: f32[4*sequence], out: f32[4*sequence]):\n"
        "  for out.i in 4*sequence:\n"
        "    out[out.i] = (x[out.i] * 2.0)  # out\n"
    )


def test_lines_of_names_belong_to_all_stages_and_shift_later_lines() -> None:
    schedule = Schedule(_doubled(BATCH * SEQUENCE))
    schedule.split("out.i", 16, tail="guard")
    nest = schedule.finished()
    printed = print_nest(nest)
    named = [n for n, line in enumerate(printed.lines, 1) if line.startswith("  size ")]
    assert named
    assert all(printed.stages[n - 1] == ("out",) for n in named)
    assert not set(named) & set(printed.line_of.values())
    for loop in loops(nest.body):
        assert f" {loop.name} in " in printed.lines[printed.line_of[id(loop)] - 1]


def test_a_size_in_an_expression_is_one_operand() -> None:
    i = Index("i", 4)
    texts = [str(i * size(dim)) for dim in (SEQUENCE, 2 * SEQUENCE, SEQUENCE + 1, SEQUENCE // 2)]
    assert texts == ["(i * sequence)", "(i * (2*sequence))", "(i * (sequence + 1))",
                     "(i * (sequence // 2))"]  # fmt: skip
