"""Reductions, and running sums."""

from __future__ import annotations

from collections.abc import Sequence

from clew.frontends.building import call, cast, cast_wide, reshaped, scalar
from clew.frontends.lowering.reduction import reduced
from clew.frontends.torch.layer import Layer
from clew.frontends.torch.registry import Result, converter
from clew.ir.dims import Dim, product
from clew.ir.expr import Expr
from clew.ir.types import NARROW_FLOATS


def _wide(layer: Layer, x: Expr) -> Expr:
    """Returns the operand of a sum in the result's dtype; half precision is summed in f32."""
    dtype = layer.result().dtype
    return cast(x, "f32" if dtype in NARROW_FLOATS else dtype)


@converter("sum", "prod")
def total(layer: Layer) -> Result:
    """Sums and products; of integers in i64."""
    op = "sum" if layer.op.startswith("sum") else "prod"
    x = _wide(layer, layer.tensor())
    found = reduced(op, x, layer.axes(), layer.flag("keepdim"))
    return layer.shaped(found)


@converter("mean")
def mean(layer: Layer) -> Result:
    """The arithmetic mean."""
    found = reduced("mean", _wide(layer, layer.tensor()), layer.axes(), layer.flag("keepdim"))
    return layer.shaped(found)


@converter("amax", "amin")
def extreme(layer: Layer) -> Result:
    """The largest or smallest elements."""
    op = "max" if layer.op.startswith("amax") else "min"
    return layer.shaped(reduced(op, layer.tensor(), layer.axes(), layer.flag("keepdim")))


@converter("max.default", "min.default")
def extreme_of_all(layer: Layer) -> Result:
    """The largest or smallest element."""
    x = layer.tensor()
    return layer.shaped(reduced(layer.op.partition(".")[0], x, range(x.tensor.rank), False))


@converter("max.dim", "min.dim")
def extreme_of_axis(layer: Layer) -> Result:
    """The largest or smallest elements of an axis, and their places."""
    x, op = layer.tensor(), layer.op.partition(".")[0]
    if x.tensor.rank == 0:
        return [x, layer.filled(0, 1)]
    axis, keep = layer.axis(), layer.flag("keepdim")
    number = cast(x, "u8") if x.tensor.dtype == "bool" else x
    values = reduced(op, x, (axis,), keep)
    places = call(f"arg{op}", number, axis=axis, keepdims=keep)
    return [layer.shaped(values), layer.shaped(places, 1)]


@converter("argmax", "argmin")
def place(layer: Layer) -> Result:
    """The place of the largest or smallest element, of all if no axis is given."""
    x = layer.tensor()
    x = cast(x, "u8") if x.tensor.dtype == "bool" else x
    op = layer.op.partition(".")[0]
    if layer.has("dim") and x.tensor.rank:
        return layer.shaped(call(op, x, axis=layer.axis(), keepdims=layer.flag("keepdim")))
    flat = reshaped(x, (product(x.tensor.shape),))
    return layer.shaped(call(op, flat, axis=0, keepdims=False))


@converter("any", "all", "_is_any_true", "_is_all_true")
def truth(layer: Layer) -> Result:
    """Whether any or all elements are not zero."""
    x = layer.truth()
    op = "any" if "any" in layer.op.partition(".")[0] else "all"
    return layer.shaped(reduced(op, x, layer.axes(), layer.flag("keepdim")))


def moments(layer: Layer, x: Expr, axes: Sequence[int], correction: float) -> tuple[Expr, Expr]:
    """Returns the mean and the variance over axes, which keep size 1."""
    count: Dim = product(tuple(x.tensor.shape[a] for a in axes)) if x.tensor.rank else 1
    middle = reduced("mean", x, axes, True)
    rest = call("subtract", x, middle)
    squares = reduced("sum", call("multiply", rest, rest), axes, True)
    number = layer.importer.scalar_of(count, x.tensor.dtype)
    free = call("subtract", number, scalar(correction, x.tensor.dtype))
    free = call("maximum", free, scalar(0, x.tensor.dtype))
    return middle, call("divide", squares, free)


@converter("var", "std", "var_mean", "std_mean")
def variance(layer: Layer) -> Result:
    """The variance, or its root, less degrees of freedom; and the mean."""
    x = layer.tensor()
    x = cast_wide(x)
    if "correction" in layer.arguments:
        correction = float(layer.number("correction", 1))
    else:
        correction = float(layer.flag("unbiased", True))
    middle, found = moments(layer, x, layer.axes(), correction)
    if layer.op.startswith("std"):
        found = call("sqrt", found)
    if "_mean" in layer.op:
        return [layer.shaped(found), layer.shaped(middle, 1)]
    return layer.shaped(found)


@converter("cumsum", "cumprod")
def cumulative(layer: Layer) -> Result:
    """Running sums and products."""
    x = cast(layer.tensor(), layer.result().dtype)
    if x.tensor.rank == 0:
        return x
    return call(layer.op.partition(".")[0], x, axis=layer.axis())


@converter("logsumexp")
def log_sum_exp(layer: Layer) -> Result:
    """`log(sum(exp(x)))`."""
    x = cast(layer.tensor(), layer.result().dtype)
    return layer.shaped(reduced("logsumexp", x, layer.axes(), layer.flag("keepdim")))


@converter("_softmax", "softmax", "_safe_softmax")
def softmax(layer: Layer) -> Result:
    """Exponentials that add up to 1; rows of minus infinity are zeros if safe."""
    x = layer.to_result(layer.tensor())
    if x.tensor.rank == 0:
        return call("exp", call("subtract", x, x))
    axis = layer.axis()
    found: Expr = call("nn.softmax", x, axis=axis)
    if layer.op.startswith("_safe"):
        low = call("max", x, axes=(axis,), keepdims=True)
        empty = call("isinf", low, positive=False)
        found = call("where", empty, scalar(0, x.tensor.dtype), found)
    return found


@converter("_log_softmax", "log_softmax")
def log_softmax(layer: Layer) -> Result:
    """The logarithm of softmax."""
    x = layer.to_result(layer.tensor())
    if x.tensor.rank == 0:
        return call("subtract", x, x)
    return call("nn.log_softmax", x, axis=layer.axis())


@converter("aminmax")
def both_extremes(layer: Layer) -> Result:
    """The smallest and the largest elements."""
    x = layer.tensor()
    axes = layer.axes() if layer.has("dim") else tuple(range(x.tensor.rank))
    keep = layer.flag("keepdim")
    return [layer.shaped(reduced(op, x, axes, keep), n) for n, op in enumerate(("min", "max"))]


@converter("count_nonzero")
def count_nonzero(layer: Layer) -> Result:
    """The number of elements that are not zero."""
    x = layer.truth()
    return layer.shaped(reduced("sum", cast(x, "i64"), layer.axes(), False))
