"""SplitGrids: splits `fake_quantize` into its two steps, so that layers pass integers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from clew.ir.expr import Call, Expr
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter
from clew.ops.registry import get_op
from clew.passes.base import Pass, PassContext


@dataclass(frozen=True)
class SplitGrids(Pass):
    """Replaces `fake_quantize` by the two steps that it joins.

    For the CPU, a value that is rounded to a grid and read by one addition never becomes integers.
    VTA passes integers from layer to layer.

    Before:
        %1 = fake_quantize(%0, s, t, 0)
    After:
        %1 = requantize(%0, s, 0); %2 = dequantize(%1, t, 0)

    Preconditions: runs just before regions are formed. Non-goals: dtypes other than `i8`.
    """

    opt_level: ClassVar[int] = 0

    def run(self, module: Module, ctx: PassContext) -> Module:
        return _Splitter().rewrite_module(module)


class _Splitter(Rewriter):
    def rewrite_call(self, old: Call, new: Call) -> Expr:
        if new.op_name != "fake_quantize" or new.attrs.get("dtype", "u8") != "i8":
            return new
        value, scale, step, *zero = new.args
        codes = get_op("requantize")(value, scale, *zero, dtype="i8")
        return get_op("dequantize")(codes, step, *zero)
