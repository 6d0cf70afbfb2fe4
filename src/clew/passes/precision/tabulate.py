"""Tabulate: replaces functions of quantized tensors by tables."""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np

from clew.cost.policy.precision import OPERATIONS_OF_TABLE
from clew.cost.work import flops_of
from clew.ir.dims import typical
from clew.ir.expr import Call, Constant, Expr, Function
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter
from clew.ir.types import TensorType, to_numpy
from clew.ir.visit import post_order
from clew.ops.registry import Op, argument_references, get_op, runs_on_host
from clew.passes.base import Pass, PassContext
from clew.passes.precision.integer_operands import Array
from clew.patterns.exactness import EVALUATED, Exactness
from clew.support.dataclass import dataclass
from clew.te.analysis import Kind

_BYTES: Final = ("i8", "u8")
_ENTRIES: Final = 256


@dataclass(frozen=True)
class Tabulate(Pass):
    """Replaces elementwise functions of one 8-bit tensor by tables of their 256 values, computed at
    compile time.

    Before:
        %1 = dequantize(%x, s, z); %2 = multiply(%1, sigmoid(%1)); %3 = quantize(%2, t, y)
    After:
        %3 = apply_table(%x, table)

    A function has an 8-bit result, and one 8-bit tensor as its only operand besides constants of
    one element. The largest such function is replaced if it takes at least `least_operations`
    arithmetic operations per element. If the target has no permutation of bytes, the elements of a
    table have 32 bits, since those can be gathered.

    Preconditions: constants are folded. Non-goals: parameters per channel; 16-bit tensors.
    """

    opt_level: ClassVar[int] = 2
    exactness: ClassVar[Exactness] = EVALUATED

    least_operations: int = OPERATIONS_OF_TABLE

    def run(self, module: Module, ctx: PassContext) -> Module:
        return _Tabulator(self.least_operations, ctx).rewrite_module(module)


class _Tabulator(Rewriter):
    def __init__(self, least: int, ctx: PassContext) -> None:
        super().__init__()
        self._least = least
        self._ctx = ctx
        self._from: dict[int, Expr] = {}
        self._permutes = ctx.target is None or ctx.target.permutes_bytes

    def enter(self, function: Function) -> None:
        """Finds, for each node, the 8-bit tensor of which it is a function."""
        for node in post_order(function.body):
            source = self._source(node)
            if source is not None:
                self._from[node.id] = source

    def _source(self, node: Expr) -> Expr | None:
        if not isinstance(node, Call) or not isinstance(node.op, Op) or not _is_elementwise(node):
            return None
        found: dict[int, Expr] = {}
        for arg in node.args:
            if isinstance(arg, Constant) and arg.is_splat and arg.tensor.size == 1:
                continue
            before = self._from.get(arg.id)
            if before is None:
                if arg.tensor.dtype not in _BYTES:
                    return None
                before = arg
            found[before.id] = before
        if len(found) != 1:
            return None
        (source,) = found.values()
        return source if source.tensor.shape == node.tensor.shape else None

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        source = self._from.get(old.id)
        if source is None or old.tensor.dtype not in _BYTES or source.tensor.dtype not in _BYTES:
            return new
        inside = _between(source, old)
        if sum(map(_operations, inside)) < self._least:
            return new
        with self.covers(old, *inside):
            table = _tabulated(source, old, inside)
            if self._permutes:
                return get_op("apply_table")(self.memo[source.id], Constant(table))
            wide = Constant(table.astype(np.int32))
            found = get_op("apply_table")(self.memo[source.id], wide)
            return get_op("cast")(found, dtype=old.tensor.dtype)


def _is_elementwise(call: Call) -> bool:
    if not isinstance(call.type, TensorType) or argument_references(call.attrs):
        return False
    if runs_on_host(call) or not all(isinstance(a.type, TensorType) for a in call.args):
        return False
    assert isinstance(call.op, Op)
    kind = call.op.kind([a.tensor for a in call.args], call.attrs)
    return kind in (Kind.ELEMENTWISE, Kind.BROADCAST) and call.op.is_computed(call.attrs)


def _between(source: Expr, result: Call) -> list[Call]:
    """Returns the calls that compute a result from its source, in order."""
    found: dict[int, Call] = {}
    stack: list[Expr] = [result]
    while stack:
        node = stack.pop()
        if node is source or not isinstance(node, Call) or node.id in found:
            continue
        found[node.id] = node
        stack += node.args
    return sorted(found.values(), key=lambda c: c.id)


def _operations(call: Call) -> float:
    """Returns the number of arithmetic operations per element of a call."""
    assert isinstance(call.op, Op)
    total = call.op.derived(flops_of, [a.tensor for a in call.args], call.attrs) or 0
    return typical(total) / max(1, typical(call.tensor.size))


def _tabulated(source: Expr, result: Call, inside: list[Call]) -> Array:
    """Returns the result for each value of the source, indexed by the value's bits."""
    values: dict[int, Array] = {
        source.id: np.arange(_ENTRIES, dtype=np.uint8).view(to_numpy(source.tensor.dtype))
    }
    for call in inside:
        assert isinstance(call.op, Op)
        given = [
            values[a.id] if a.id in values else a.data.reshape(())  # type: ignore[attr-defined]
            for a in call.args
        ]
        values[call.id] = np.asarray(call.op.run_reference(given, call.attrs))
    return values[result.id]
