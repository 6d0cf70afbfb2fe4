"""The work of operator calls: what `cost.work` counts in their tensor expressions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from clew.cost.work import flops_of
from clew.ir.dims import Dim
from clew.ir.expr import Call
from clew.ir.types import TensorType, leaves
from clew.ops.registry import Op, runs_on_host
from clew.te.tensor import Tensor

T = TypeVar("T")

# Approximate FLOPs per element of an operator without tensor expression (a softmax, a norm).
_FLOPS_AN_ELEMENT: Final = 16


def counted(count: Callable[[Sequence[Tensor]], T], call: Call) -> T | None:
    """Returns a count in the tensor expression of a call; None if no kernel computes the call."""
    if not isinstance(call.op, Op) or runs_on_host(call):
        return None
    types = [a.type for a in call.args if isinstance(a.type, TensorType)]
    return call.op.derived(count, types, call.attrs) if len(types) == len(call.args) else None


def call_flops(call: Call) -> Dim:
    """Returns the FLOPs of an operator call, estimated by the elements of its results if no kernel
    computes it; 0 for calls of functions.
    """
    found = counted(flops_of, call)
    if found is not None or not isinstance(call.op, Op):
        return found or 0
    sizes = (t.size for t in leaves(call.type) if isinstance(t, TensorType))
    return sum(sizes, start=0) * _FLOPS_AN_ELEMENT
