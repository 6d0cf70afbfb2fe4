"""Predicts the time of a graph from the work of its operators, to rank changes before any is built.

Operators that are usually fused with their neighbors count with their arithmetic only, all others
with the longer of the times for arithmetic and for memory.
"""

from __future__ import annotations

from typing import Final

from clew.cost.regions import region_seconds
from clew.cost.work import bytes_of, flops_of
from clew.ir.expr import Call, Constant, Expr, Function
from clew.ir.module import Module
from clew.ir.types import TensorType, leaves
from clew.ir.visit import post_order
from clew.machine.target import Target
from clew.ops.registry import Op
from clew.ops.work import call_flops, counted
from clew.te.analysis import Kind

_FREE: Final = ("reshape", "identity")
_FUSED: Final = (Kind.ELEMENTWISE, Kind.BROADCAST)


class Estimate:
    """Predicted nanoseconds of graphs on one core of a target; equal operators are counted once."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._known: dict[tuple[object, ...], float] = {}

    def of(self, module: Module) -> float:
        """Returns the nanoseconds of a call of the main function. Nodes that only constants
        determine cost nothing, since they are computed at compile time. Each part of a loop or
        branch counts once.
        """
        total = 0.0
        fixed: set[int] = set()
        for node in post_order([f for _, f in module], into_functions=True):
            below = [c for c in node.children if not isinstance(c, Function)]
            if isinstance(node, Constant) or (below and all(c.id in fixed for c in below)):
                fixed.add(node.id)
                continue
            if isinstance(node, Call):
                total += self.call(node)
        return total

    def call(self, call: Call) -> float:
        """Returns the nanoseconds of one operator; 0 for sizes that are unknown."""
        if not isinstance(call.op, Op) or not all(map(_is_known, call.children)):
            return 0.0
        key = (call.op.name, tuple(a.type for a in call.args), call.attrs)
        if key not in self._known:
            self._known[key] = self._counted(call)
        return self._known[key]

    def _counted(self, call: Call) -> float:
        flops, moved = call_flops(call), counted(bytes_of, call)
        if moved is None:
            moved = sum(
                t.memory_bytes
                for one in (call, *call.args)
                for t in leaves(one.type)
                if isinstance(t, TensorType)
            )
        assert isinstance(call.op, Op)
        if call.op.name in _FREE:
            return 0.0
        if counted(flops_of, call) is not None and _is_fused(call):
            moved = 0
        return region_seconds(_number(flops), _number(moved), self._target) * 1e9


def _is_fused(call: Call) -> bool:
    assert isinstance(call.op, Op)
    return call.op.kind([a.tensor for a in call.args], call.attrs) in _FUSED


def _number(count: object) -> float:
    return float(count) if isinstance(count, (int, float)) else 0.0


def _is_known(node: Expr) -> bool:
    return all(not isinstance(t, TensorType) or t.is_static for t in leaves(node.type))
