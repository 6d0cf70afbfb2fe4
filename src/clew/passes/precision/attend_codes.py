"""AttendCodes: lets attention read narrow caches directly."""

from __future__ import annotations

from typing import ClassVar

from clew.ir.expr import Call, Constant, Expr
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter
from clew.ir.types import NARROW_FLOATS, TensorType
from clew.ops.common import accumulator
from clew.ops.registry import get_op
from clew.passes.base import Pass, PassContext
from clew.passes.precision.stored_rounded import is_stored
from clew.patterns.exactness import ROUNDED, Exactness


class AttendCodes(Pass):
    """Lets attention read caches in the dtype in which they are stored.

    So keys and values, which are widened f16 or bf16, or codes with a scale for each position, are
    not stored in f32 first. The scale of a key multiplies a score, and the scale of a value
    multiplies a weight, instead of each element.

    Before:
        %2: f32[b, 4, t, 64] = dequantize(%codes, %scales); %3 = dequantize(%codes_v, %scales_v)
        %4 = nn.attention(%q, %2, %3, %mask)
    After:
        %5 = nn.attention(%q, %codes, %codes_v, %mask, %scales, %scales_v)

    Preconditions: attention is one operator (MeltAttention). Non-goals: keys and values that are
    not in caches, keys and values in different dtypes, and codes under a causal mask.
    """

    opt_level: ClassVar[int] = 1
    exactness: ClassVar[Exactness] = ROUNDED

    def run(self, module: Module, ctx: PassContext) -> Module:
        return _Reader().rewrite_module(module)


class _Reader(Rewriter):
    def rewrite_call(self, old: Call, new: Call) -> Expr:
        if new.op_name != "nn.attention" or len(new.args) > 4:
            return new
        stored = [_stored(x, new.args[0].tensor.dtype) for x in new.args[1:3]]
        if any(x is None for x in stored):
            return new
        (k, k_scale), (v, v_scale) = (x for x in stored if x is not None)
        if k.tensor.dtype != v.tensor.dtype:
            return new
        args = [new.args[0], k, v, *new.args[3:]]
        if k_scale is None or v_scale is None:
            return get_op("nn.attention")(*args, **new.attrs)
        places = (new.attrs.k_layout.index("D"), new.attrs.v_layout.index("D"))
        scales = (k_scale, v_scale)
        if any(x.tensor.shape[n] != 1 for n, x in zip(places, scales, strict=True)):
            return new
        if new.attrs.causal:
            return new
        if len(args) == 3:
            args.append(Constant.splat(True, TensorType((1, 1), "bool")))
        return get_op("nn.attention")(*args, *scales, **new.attrs)


def _stored(value: Expr, dtype: str) -> tuple[Expr, Expr | None] | None:
    """Returns the stored elements of keys or values, and their scales (None for floats); None if
    they are not in a cache with a narrower dtype.
    """
    if not isinstance(value, Call) or not value.args:
        return None
    held = value.args[0]
    if not isinstance(held.type, TensorType) or not is_stored(held):
        return None
    if value.op_name == "cast":
        narrow = held.tensor.dtype in NARROW_FLOATS and accumulator(held.tensor.dtype) == dtype
        return (held, None) if narrow else None
    if value.op_name != "dequantize" or len(value.args) != 2 or value.attrs.block:
        return None
    scale = value.args[1]
    same = scale.tensor.shape[:-1] == held.tensor.shape[:-1] and scale.tensor.dtype == dtype
    return (held, scale) if held.tensor.dtype == "i8" and dtype == "f32" and same else None
