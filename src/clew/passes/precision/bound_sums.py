"""BoundSums: scales small sums in fixed point with fewer instructions."""

from __future__ import annotations

from typing import ClassVar, Final

from clew.ir.expr import Call, Expr
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter
from clew.ops.registry import get_op
from clew.passes.base import Pass, PassContext
from clew.passes.integer_bounds import IntegerBounds
from clew.patterns.exactness import EXACT, Exactness

_MOST: Final = 1 << 30


class BoundSums(Pass):
    """Marks fixed-point products of numbers that are proven to be less than 2**30 in magnitude, as
    most sums of quantized layers are. Such numbers can be rounded by adding a half, which would
    overflow for larger ones.

    Before:
        %2 = nn.conv2d(cast(%x: i8[1, 64, 56, 56]), cast(w: i8[64, 64, 1, 1]))
        %3 = scale_fixed(%2, factor, shift)
    After:
        %3 = scale_fixed(%2, factor, shift, bounded=true)

    Preconditions: runs before weights are packed. Non-goals: `i64` sums, and products
    that are rounded once.
    """

    opt_level: ClassVar[int] = 2
    exactness: ClassVar[Exactness] = EXACT

    def run(self, module: Module, ctx: PassContext) -> Module:
        return _Marker().rewrite_module(module)


class _Marker(Rewriter):
    def __init__(self) -> None:
        super().__init__()
        self._bounds = IntegerBounds()

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        if new.op_name != "scale_fixed" or new.args[0].tensor.dtype != "i32":
            return new
        if new.attrs.bounded or new.attrs.once:
            return new
        bounds = self._bounds.of(old.args[0])
        if bounds is None or max(map(abs, bounds)) >= _MOST:
            return new
        with self.covers(old):
            return get_op("scale_fixed")(*new.args, bounded=True)
