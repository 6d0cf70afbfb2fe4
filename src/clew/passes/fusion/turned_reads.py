"""Moves of elements that are slow in one kernel: one puts neighbors far apart, the other reads them
unevenly.

A kernel turns tiles of evenly spaced elements in registers. Elements at positions that values
determine, or that a resize clamps and repeats, would be collected one by one.
"""

from __future__ import annotations

from clew.ir.expr import Call
from clew.ir.types import TensorType
from clew.ops.movement.layouts import parse_layout
from clew.ops.registry import Op
from clew.te.facts import reads_unevenly, view_steps


def turns(call: Call) -> bool:
    """Whether neighbors in the result of a move are not neighbors in its operand. Between blocks of
    two lengths, the shorter one's channels remain neighbors.
    """
    assert isinstance(call.op, Op)
    if call.op.name == "layout_transform":
        layouts = (call.attrs.src_layout, call.attrs.dst_layout)
        blocks = [parse_layout(layout).factor("C") for layout in layouts]
        return min(blocks) == 1 < max(blocks)
    steps = call.op.derived(view_steps, _types(call), call.attrs) if len(call.args) == 1 else None
    last = steps[-1] if steps else None
    return last is not None and last[0] != call.args[0].tensor.rank - 1


def is_uneven(call: Call) -> bool:
    """Whether a move reads neighbors in its result at uneven distances."""
    assert isinstance(call.op, Op)
    return bool(call.op.derived(reads_unevenly, _types(call), call.attrs))


def _types(call: Call) -> list[TensorType]:
    return [a.tensor for a in call.args]
