"""Rows whose elements a kernel would collect from afar, once for each pass over them."""

from __future__ import annotations

from collections.abc import Sequence

from clew.ir.expr import Call
from clew.ops.movement.layouts import parse_layout
from clew.ops.registry import Op
from clew.te.expr import Reduce
from clew.te.tensor import stages


def spreads_rows(moves: Sequence[Call]) -> bool:
    """Whether moves of elements put neighbors far apart in memory: channels in blocks are read in
    plain order, pixel by pixel.
    """
    if any(m.op_name == "transpose" for m in moves):
        return False  # to channels last, for example
    return any(
        m.op_name == "layout_transform"
        and parse_layout(m.attrs.src_layout).factor("C") > 1
        and parse_layout(m.attrs.dst_layout).factor("C") == 1
        for m in moves
    )


def reads_rows_again(user: Call) -> bool:
    """Whether an operator passes over the rows of its operand several times, as norms do."""
    assert isinstance(user.op, Op)
    outputs = user.op.computed([a.tensor for a in user.args], user.attrs)
    return sum(isinstance(stage.body, Reduce) for stage in stages(outputs)) > 1
