"""FoldScaleAxis: moves multiplications by a constant per channel into weights."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar, Final

import ml_dtypes
import numpy as np

from clew.ir.expr import Call, Constant, Expr
from clew.ir.module import Module
from clew.ir.types import NARROW_FLOATS, TensorType, is_float
from clew.ops.registry import Op, all_ops, get_op
from clew.passes.base import Pass, PassContext
from clew.patterns import Match, Rule, RuleRewriter, is_constant, is_op, rule, wildcard
from clew.patterns.exactness import ROUNDED
from clew.support.dataclass import dataclass

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class FoldScaleAxis(Pass):
    """Moves multiplications by constants, per channel or of one element, into the weights of the
    convolution or dense layer before or after them, also across a bias add, and merges bias adds.
    Consecutive scales and shifts by constants without a layer become one of each.

    A folded batch norm becomes a convolution with scaled weights and one bias.

    Before: `%2 = nn.conv2d(%1, w)`, `%3 = multiply(%2, scale)`, `%4 = add(%3, shift)`
    After:  `%5 = nn.conv2d(%1, w')`, `%6 = add(%5, shift)` with `w' = w * scale`

    Preconditions: weights, scales and biases are constants (FoldConstant), layouts are plain. The
    layer's value has no other use, and scales and their products with weights and biases are
    finite. Non-goals: weights of f16 and bf16, which would be rounded again (WidenHalves makes
    the scale a part of the sum in f32); moving scales across activations or several layers; exact
    rounding (products are rounded in another order).
    """

    opt_level: ClassVar[int] = 2

    @property
    def rules(self) -> tuple[Rule, ...]:
        return _rules(_layers())

    def run(self, module: Module, ctx: PassContext) -> Module:
        return RuleRewriter(self.rules).rewrite_module(module)


@dataclass(frozen=True)
class _Axes:
    """The channel axes of a layer's result, data and weight."""

    result: int
    data: int
    weight_out: int
    weight_in: int
    groups: int


def _axes(layer: Call) -> _Axes | None:
    """Returns the channel axes of a layer in plain layout."""
    attrs = layer.attrs
    if layer.args[1].tensor.dtype in NARROW_FLOATS:
        return None  # the scaled weights would be rounded once more
    if layer.op_name == "nn.dense":
        places = {"NK": (0, 1), "KN": (1, 0)}.get(attrs.weight_layout)
        if places is None:
            return None
        data = layer.args[0].tensor.rank - 1
        return _Axes(layer.tensor.rank - 1, data, *places, groups=1)
    if isinstance(layer.op, Op) and layer.op.traits.convolves_transposed:
        return _Axes(1, 1, 1, 0, attrs.groups) if attrs.groups == 1 else None
    if "weight_layout" in attrs and not attrs.weight_layout.isalpha():
        return None
    if attrs.get("data_layout", "NC")[:2] != "NC" or attrs.get("out_layout", ""):
        return None
    return _Axes(1, 1, 0, 1, attrs.groups)


def _channel_values(constant: Constant, result: TensorType, axis: int) -> Array | None:
    """Returns a constant that broadcasts to `result` along `axis` alone, as a vector or one
    element.
    """
    data = constant.data
    if data.ndim > result.rank or not is_float(result.dtype):
        return None
    if constant.is_splat and data.size:
        return data.reshape(-1)[:1]
    sizes = (1,) * (result.rank - data.ndim) + data.shape
    if any(size != 1 and n != axis for n, size in enumerate(sizes)):
        return None
    return data.reshape(-1)


def _scaled_weight(weight: Constant, axis: int, scale: Array) -> Constant:
    shape = [1] * weight.tensor.rank
    shape[axis] = scale.size
    factors = scale.reshape(shape)
    return Constant.lazy(weight.tensor, lambda: weight.data * factors, name=weight.name)


def _scaled_inputs(weight: Constant, axes: _Axes, scale: Array) -> Constant:
    """Returns the weight with its input channels scaled; group g uses the g-th part of `scale`."""
    if scale.size == 1 or axes.groups == 1:
        return _scaled_weight(weight, axes.weight_in, scale)
    shape = weight.tensor.concrete
    parts = scale.reshape(axes.groups, 1, shape[1], *(1,) * (len(shape) - 2))

    def scaled() -> Array:
        return (weight.data.reshape(axes.groups, -1, *shape[1:]) * parts).reshape(shape)

    return Constant.lazy(weight.tensor, scaled, name=weight.name)


def _finite(values: Array | None) -> bool:
    return values is not None and bool(np.isfinite(values).all())


def _overflows(weight: Constant, scale: Array) -> bool:
    """Whether the product of a weight and a scale may have an infinity that neither has. A weight
    that was scaled before is not looked at, since that would compute it.
    """
    if weight.is_lazy or weight.data.size == 0:
        return False
    limit = float(ml_dtypes.finfo(weight.data.dtype).max)  # type: ignore[no-untyped-call]
    ends = float(weight.data.max()), -float(weight.data.min())
    most = max(size if np.isfinite(size) else limit for size in ends)
    return not most * float(np.abs(scale).max()) <= limit


def _sum_of(biases: Sequence[Constant], result: Array) -> Constant | None:
    """Returns a bias made of biases; None if it has an infinity that they do not have."""
    made = all(_finite(b.data) for b in biases) and not _finite(result)
    return None if made else Constant(result, name=biases[0].name)


_data, _scale, _more = wildcard(), is_constant(), is_constant()


def _layers() -> tuple[str, ...]:
    """Returns the names of the operators that have a weight with channel axes."""
    found = [o.name for o in all_ops() if o.traits.convolves or o.traits.convolves_transposed]
    return (*found, "nn.dense")


@cache
def _rules(layers: tuple[str, ...]) -> tuple[Rule, ...]:
    """Returns the rules of the pass, for layers of these operators."""
    of_weight, of_bias = is_constant(), is_constant()
    of_layer = is_op(*layers)(_data, of_weight)
    once = of_layer.used_once()
    biased = is_op("add")(once, of_bias).used_once()
    of_product = is_op("multiply")(_data, _scale)
    of_scaled = is_op(*layers)(of_product.used_once(), of_weight)

    def with_scale(found: Match) -> tuple[Call, Array] | None:
        """Returns the matched layer with its result scaled, and the scale."""
        layer = found.call(of_layer)
        axes = _axes(layer)
        if axes is None or found.root.type != layer.type:
            return None
        scale = _channel_values(found.constant(_scale), layer.tensor, axes.result)
        if scale is None or not _finite(scale) or _overflows(found.constant(of_weight), scale):
            return None
        weight = _scaled_weight(found.constant(of_weight), axes.weight_out, scale)
        return layer.with_args([layer.args[0], weight]), scale

    @rule(is_op("multiply")(once, _scale), ROUNDED)
    def scale_after(found: Match) -> Expr | None:
        """`layer(x, w) * s` is `layer(x, w * s)`."""
        scaled = with_scale(found)
        return scaled[0] if scaled else None

    @rule(is_op("multiply")(biased, _scale), ROUNDED)
    def scale_after_bias(found: Match) -> Expr | None:
        """`(layer(x, w) + b) * s` is `layer(x, w * s) + b * s`."""
        bias, layer = found.constant(of_bias), found.call(of_layer)
        axes = _axes(layer)
        if axes is None or _channel_values(bias, layer.tensor, axes.result) is None:
            return None
        scaled = with_scale(found)
        if scaled is None:
            return None
        with np.errstate(over="ignore"):
            product = _sum_of([bias], bias.data * found.constant(_scale).data)
        return None if product is None else get_op("add")(scaled[0], product)

    @rule(is_op("add")(biased, _more), ROUNDED)
    def merge_biases(found: Match) -> Expr | None:
        """`(layer(x, w) + b) + c` is `layer(x, w) + (b + c)`."""
        layer = found.call(of_layer)
        axes = _axes(layer)
        if axes is None or found.root.type != layer.type:
            return None
        biases = [found.constant(of_bias), found.constant(_more)]
        if any(_channel_values(b, layer.tensor, axes.result) is None for b in biases):
            return None
        with np.errstate(over="ignore"):
            total = _sum_of(biases, biases[0].data + biases[1].data)
        return None if total is None else get_op("add")(layer, total)

    @rule(of_scaled, ROUNDED)
    def scale_before(found: Match) -> Expr | None:
        """`layer(x * s, w)` is `layer(x, w * s)`; zero padding stays zero."""
        layer = found.call(of_scaled)
        axes, data = _axes(layer), found[_data]
        product = found.call(of_product)
        if axes is None or data.type != product.type:
            return None
        scale = _channel_values(found.constant(_scale), product.tensor, axes.data)
        if scale is None or not _finite(scale) or _overflows(found.constant(of_weight), scale):
            return None
        weight = _scaled_inputs(found.constant(of_weight), axes, scale)
        return layer.with_args([data, weight])

    return (scale_after, scale_after_bias, merge_biases, scale_before, *_WITHOUT_LAYERS)


_shift, _factor = is_constant(), is_constant()
_product = is_op("multiply")(_data, _scale)
_shifted = is_op("add")(_product.used_once(), _shift)


def _joined(found: Match, values: Array, *parts: Constant) -> Constant | None:
    """Returns the combination of two constants if it is no larger than the larger of them, holds
    floats, and is finite everywhere.
    """
    root = found.root.type
    assert isinstance(root, TensorType)
    if found[_data].type != root or not is_float(root.dtype) or not _finite(values):
        return None
    if values.size != max(part.data.size for part in parts):
        return None
    return Constant(values, name=parts[0].name)


def _factors(found: Match) -> Constant | None:
    """Returns the product of two scales, unless an element is too small for a normal number."""
    scale, factor = found.constant(_scale), found.constant(_factor)
    with np.errstate(over="ignore", under="ignore"):
        values = scale.data * factor.data
    least = np.finfo(values.dtype).tiny if values.dtype == np.float32 else 0
    lost = (np.abs(values) < least) & (scale.data != 0) & (factor.data != 0)
    return None if lost.any() else _joined(found, values, scale, factor)


@rule(is_op("multiply")(_product.used_once(), _factor), ROUNDED)
def scale_of_scale(found: Match) -> Expr | None:
    """`(x * s) * t` is `x * (s * t)`."""
    factors = _factors(found)
    return None if factors is None else get_op("multiply")(found[_data], factors)


@rule(is_op("multiply")(_shifted.used_once(), _factor), ROUNDED)
def scale_of_shifted(found: Match) -> Expr | None:
    """`(x * s + b) * t` is `x * (s * t) + b * t`."""
    factors, shift, factor = _factors(found), found.constant(_shift), found.constant(_factor)
    with np.errstate(over="ignore", invalid="ignore"):
        shifts = _joined(found, shift.data * factor.data, shift, factor)
    if factors is None or shifts is None:
        return None
    return get_op("add")(get_op("multiply")(found[_data], factors), shifts)


@rule(is_op("add")(_shifted.used_once(), _more), ROUNDED)
def merge_shifts(found: Match) -> Expr | None:
    """`(x * s + b) + c` is `x * s + (b + c)`."""
    shift, more = found.constant(_shift), found.constant(_more)
    with np.errstate(over="ignore", invalid="ignore"):
        total = _joined(found, shift.data + more.data, shift, more)
    return None if total is None else get_op("add")(found[_product], total)


_WITHOUT_LAYERS: Final = (scale_of_scale, scale_of_shifted, merge_shifts)
