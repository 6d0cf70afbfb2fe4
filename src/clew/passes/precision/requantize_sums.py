"""RequantizeSums: turns sums of integer products into quantized tensors in one step."""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np

from clew.ir.expr import Call, Constant, Expr, Function
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter
from clew.ir.types import TensorType, integer_limits
from clew.ir.visit import post_order, users
from clew.ops.math.quantization import SUM
from clew.ops.registry import Op, get_op
from clew.passes.base import Pass, PassContext
from clew.passes.precision.integer_operands import Array, known_values, same_numbers
from clew.patterns.exactness import Exactness
from clew.support.dataclass import dataclass
from clew.te.analysis import Kind

# The largest relative difference of a bias from a multiple of the scale.
_ROUNDING: Final = 1e-5
# A smaller bias leaves room for a sum in 32 bits.
_MOST_BIAS: Final = 1 << 30


@dataclass(frozen=True)
class RequantizeSums(Pass):
    """Replaces a `dequantize` and a `quantize` of an integer sum by one multiplication with the
    quotient of the scales, and a `quantize` of another float by one with the reciprocal of its
    scale. Biases are added as integers, and clamping activations limit the integers' range.

    Before:
        %1 = dequantize(%sum, s); %2 = nn.relu(add(%1, bias)); %3 = quantize(%2, t)
    After:
        %1 = add(%sum, bias / s); %3 = requantize(%1, s / t)

    If `%3` is only dequantized again, for an elementwise operator, both steps become one
    `fake_quantize`.

    The factor is rounded once more than in two steps: a number on the border between two integers
    may become either, as in ONNX Runtime's QLinearConv. A float that is not the rounded result of
    arithmetic, such as an input of the model, is therefore still divided.

    Preconditions: runs after NarrowIntegers and before constants are folded, so that the origin of
    a bias is still visible. Non-goals: a bias that is not a multiple of the scale.
    """

    opt_level: ClassVar[int] = 2
    exactness: ClassVar[Exactness] = Exactness(
        "none", "the order in which scales are applied, by one unit of the result"
    )

    def run(self, module: Module, ctx: PassContext) -> Module:
        return _Requantizer(ctx).rewrite_module(module)


class _Requantizer(Rewriter):
    def __init__(self, ctx: PassContext) -> None:
        super().__init__()
        self._ctx = ctx
        self._users: dict[int, list[Expr]] = {}
        self._order: dict[int, int] = {}

    def enter(self, function: Function) -> None:
        self._users.update(users(function))
        self._order.update((node.id, n) for n, node in enumerate(post_order(function.body)))

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        with self.covers(old, *old.args):
            found: Expr = new
            if new.op_name == "add":
                found = _biased(new) or new
            elif new.op_name == "quantize":
                found = _requantized(new) or new
                if found is not new:
                    dtype = new.tensor.dtype
                    self._ctx.remark(old, f"{_source(found)} becomes {dtype} in one step")
        return self._with_grid(old, found) if isinstance(found, Call) else found

    def _with_grid(self, old: Call, new: Call) -> Call:
        """Returns an elementwise call without the integer step of one operand: the first of those
        that are quantized and dequantized only for this call. Fusion will put the call into that
        operand's kernel; the kernels of the other operands store integers.
        """
        if self._ctx.kind(new) not in (Kind.ELEMENTWISE, Kind.BROADCAST):
            return new
        found: list[tuple[int, int, Expr]] = []
        for n, (before, value) in enumerate(zip(old.args, new.args, strict=False)):
            if len(self._users.get(before.id, ())) == 1 and self._is_only_dequantized(before):
                with self.covers(before, *before.children[:1]):
                    number = _on_grid(value)
                if number is not None:
                    found.append((self._order[before.id], n, number))
        if not found or len(old.args) != len(new.args):
            return new
        _, n, number = min(found, key=lambda f: f[0])
        return new.with_args([*new.args[:n], number, *new.args[n + 1 :]])

    def _is_only_dequantized(self, value: Expr) -> bool:
        """Whether a value is dequantized from integers that nothing else reads."""
        if not isinstance(value, Call) or value.op_name != "dequantize":
            return False
        return len(self._users.get(value.args[0].id, ())) == 1


def _source(requantized: Expr) -> str:
    """Returns the operand of a `requantize`, perhaps with a `clip`."""
    assert isinstance(requantized, Call)
    step = requantized if requantized.op_name == "requantize" else requantized.args[0]
    assert isinstance(step, Call)
    return "a sum of products" if step.args[0].tensor.dtype == SUM else "a float"


def _of_sums(value: Expr) -> bool:
    """Whether a value is a sum of integer products in f32."""
    if not isinstance(value, Call) or value.op_name != "dequantize" or len(value.args) != 2:
        return False
    sums, scale = value.args
    types = sums.tensor.dtype, scale.tensor.dtype, value.tensor.dtype
    return types == (SUM, "f32", "f32") and not value.attrs.block


def _biased(new: Call) -> Expr | None:
    """Returns a dequantized sum plus a bias as one dequantized sum, if the bias is an integer in
    units of the scale.
    """
    for value, bias in (new.args, new.args[::-1]):
        if not _of_sums(value):
            continue
        assert isinstance(value, Call)
        sums, scale = value.args
        whole = _in_units(bias, scale)
        if whole is None or new.tensor.shape != sums.tensor.shape:
            continue
        return get_op("dequantize")(_plus(sums, Constant(whole)), scale)
    return None


def _plus(sums: Expr, bias: Expr) -> Expr:
    """Returns a sum plus an integer bias, merged with a constant that the sum subtracts."""
    if isinstance(sums, Call) and sums.op_name == "subtract":
        value, correction = sums.args
        if all(isinstance(n, (Constant, Call)) for n in post_order(correction)):
            return get_op("add")(value, get_op("subtract")(bias, correction))
    return get_op("add")(sums, bias)


def _in_units(bias: Expr, scale: Expr) -> Array | None:
    """Returns the integers that give a bias, times the scale; None if there are none."""
    values, unit = known_values(bias), known_values(scale)
    if values is None or unit is None or values.dtype != np.float32 or not np.all(unit > 0):
        return None
    wide = values.astype(np.float64)
    whole = np.rint(wide / unit)
    if np.any(np.abs(whole) >= _MOST_BIAS):
        return None
    error = np.abs(whole * unit - wide)
    return whole.astype(np.int32) if np.all(error <= _ROUNDING * np.abs(wide)) else None


def _requantized(new: Call) -> Expr | None:
    """Returns a quantized tensor as a `requantize` of a sum or float; None if it has neither."""
    value, scale, *zero = new.args
    if new.attrs.block or scale.tensor.dtype != "f32" or new.attrs.precision not in ("", "f32"):
        return None
    limits = _limits(value) if isinstance(value, Call) else None
    if limits is None:
        limits = (-np.inf, np.inf)
    else:
        value = value.args[0]  # type: ignore[attr-defined]
    unit: Expr = Constant(np.float32(1))
    if _of_sums(value):
        assert isinstance(value, Call)
        value, unit = value.args
    elif not _is_rounded(value) or known_values(scale) is None:
        return None
    within = _clamped(new, limits)
    if within is None:
        return None
    low, high = within
    factor = get_op("divide")(unit, scale)
    result: Expr = get_op("requantize")(value, factor, *zero, dtype=new.tensor.dtype)
    least, most = integer_limits(new.tensor.dtype)
    if low > least or high < most:
        result = get_op("clip")(result, min=float(low), max=float(high))
    return result


def _on_grid(new: Expr) -> Expr | None:
    """Returns a `fake_quantize` for a requantized and dequantized number; None for others."""
    if not isinstance(new, Call) or new.op_name != "dequantize":
        return None
    value, step, *zero = new.args
    if not isinstance(value, Call) or value.op_name != "requantize" or new.attrs.block:
        return None
    sums, factor, *point = value.args
    f32 = step.tensor.dtype == new.tensor.dtype == "f32"
    if not f32 or not same_numbers(zero, point):
        return None
    return get_op("fake_quantize")(sums, factor, step, *zero, dtype=value.tensor.dtype)


def _is_rounded(value: Expr) -> bool:
    """Whether a float results from arithmetic and is therefore rounded."""
    if not isinstance(value, Call) or not isinstance(value.op, Op) or value.tensor.dtype != "f32":
        return False
    if not all(isinstance(a.type, TensorType) for a in value.args):
        return False
    return not value.op.moved_operands([a.tensor for a in value.args], value.attrs)


def _limits(call: Call) -> tuple[float, float] | None:
    """Returns the bounds of a clamping activation; None for other calls."""
    if call.op_name == "nn.relu":
        return 0.0, np.inf
    if call.op_name != "clip":
        return None
    low, high = call.attrs.min, call.attrs.max
    return -np.inf if low is None else low, np.inf if high is None else high


def _clamped(new: Call, limits: tuple[float, float]) -> tuple[int, int] | None:
    """Returns the integers between which quantized numbers of a range lie; None if unknown."""
    dtype = new.tensor.dtype
    if dtype not in ("i8", "u8"):
        return None
    bounds = integer_limits(dtype)
    if limits == (-np.inf, np.inf):
        return bounds
    scale = known_values(new.args[1])
    zero = np.zeros(()) if len(new.args) < 3 else known_values(new.args[2])
    if scale is None or zero is None or zero.ndim or not np.all(scale > 0):
        return None
    ends = [np.rint(np.float32(limit) / scale) + float(zero) for limit in limits]
    low, high = (np.unique(np.clip(end, *bounds)) for end in ends)
    # A limit other than 0 is another integer in each channel with a scale of its own.
    return (int(low[0]), int(high[0])) if len(low) == len(high) == 1 else None
