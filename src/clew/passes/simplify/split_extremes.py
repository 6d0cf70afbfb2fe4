"""SplitExtremes: the minimum and maximum of large tensors are found row by row, in one pass."""

from __future__ import annotations

import math
from typing import ClassVar

from clew.cost.policy.sums import EXTREMES_ROW, LEAST_IN_ROWS
from clew.ir.expr import Call, Expr, Function
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter
from clew.ir.types import TensorType
from clew.ir.visit import users
from clew.ops.registry import get_op
from clew.passes.base import Pass, PassContext
from clew.patterns.exactness import EXACT, Exactness

_REDUCTIONS = ("min", "max")


class SplitExtremes(Pass):
    """Reduces large tensors to their minimum or maximum in two steps: each row, then the rows.

    Rows are the work of several threads, which a single number is not. Where both are wanted, as in
    a tensor that is quantized in its own range, a row is read once from memory for both.

    Before:
        %2: f32[] = min(%1: f32[128, 3072], axes=[0, 1]); %3: f32[] = max(%1, axes=[0, 1])
    After:
        %4: f32[48, 2] = extremes(reshape(%1, shape=[48, 8192]), axis=1)
        %2: f32[] = min(%4, axes=[0, 1]); %3: f32[] = max(%4, axes=[0, 1])

    Preconditions: layouts are plain. Non-goals: free sizes, reductions of some axes, and sums,
    which rounding makes depend on the order.
    """

    opt_level: ClassVar[int] = 3
    exactness: ClassVar[Exactness] = EXACT

    def run(self, module: Module, ctx: PassContext) -> Module:
        return _Splitter().rewrite_module(module)


class _Splitter(Rewriter):
    def __init__(self) -> None:
        super().__init__()
        self._both: set[int] = set()  # values whose minimum and maximum are wanted
        self._rows: dict[tuple[int, str], Call] = {}

    def enter(self, function: Function) -> None:
        for value, readers in users(function).items():
            found = {r.op_name for r in readers if isinstance(r, Call) and _is_whole(r)}
            if found.issuperset(_REDUCTIONS):
                self._both.add(value)

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        length = _row_length(new.args[0].tensor.concrete) if _is_whole(new) else 0
        if not length:
            return new
        name = "extremes" if old.args[0].id in self._both else new.op_name
        with self.covers(old):
            rows = self._in_rows(new.args[0], length, name)
            axes = tuple(range(rows.tensor.rank))
            return get_op(new.op_name)(rows, axes=axes, keepdims=False)

    def _in_rows(self, source: Expr, length: int, name: str) -> Call:
        key = source.id, name
        if key not in self._rows:
            rows = get_op("reshape")(source, shape=(source.tensor.size // length, length))
            attrs = {"axis": 1} if name == "extremes" else {"axes": (1,), "keepdims": False}
            self._rows[key] = get_op(name)(rows, **attrs)
        return self._rows[key]


def _is_whole(call: Call) -> bool:
    """Whether a call reduces all axes of a tensor of known sizes to its minimum or maximum."""
    if call.op_name not in _REDUCTIONS or call.attrs.keepdims:
        return False
    source = call.args[0].type
    return isinstance(source, TensorType) and source.is_static and not call.tensor.rank


def _row_length(shape: tuple[int, ...]) -> int:
    """Returns the length of rows that stay in a cache; 0 if the tensor is small, or has no such
    rows.
    """
    count = math.prod(shape)
    if count < LEAST_IN_ROWS:
        return 0
    found = next(n for n in range(EXTREMES_ROW[1], 0, -1) if count % n == 0)
    return found if found >= EXTREMES_ROW[0] else 0
