"""Normalization."""

from __future__ import annotations

from clew.frontends.building import call, cast, cast_wide, filled, per_channel, reshaped, scalar
from clew.frontends.lowering.norm import normalized, root_mean_square
from clew.frontends.torch.converters.reduce import moments
from clew.frontends.torch.layer import EVAL, Layer
from clew.frontends.torch.registry import Result, converter
from clew.ir.dims import Dim, product
from clew.ir.expr import Expr


def _gains(layer: Layer, x: Expr, shape: tuple[Dim, ...]) -> tuple[Expr, Expr]:
    """Returns scale and shift: ones and zeros, where they are not given."""
    dtype = x.tensor.dtype
    gamma, beta = layer.optional("weight"), layer.optional("bias")
    return (
        filled(1, dtype, shape) if gamma is None else cast(gamma, dtype),
        filled(0, dtype, shape) if beta is None else cast(beta, dtype),
    )


@converter("layer_norm", "native_layer_norm")
def layer_norm(layer: Layer) -> Result:
    """Standardized over the last axes; with the means and reciprocal deviations."""
    x = cast_wide(layer.tensor("input"))
    shape = layer.dims("normalized_shape")
    axis = x.tensor.rank - len(shape)
    epsilon = layer.number("eps", 1e-5)
    gamma, beta = _gains(layer, x, shape)
    y = normalized(x, gamma, beta, axis, float(epsilon))
    if layer.op.startswith("layer_norm"):
        return layer.to_result(y)
    return [layer.to_result(y), *_statistics(layer, x, tuple(range(axis, x.tensor.rank)), epsilon)]


def _statistics(layer: Layer, x: Expr, axes: tuple[int, ...], epsilon: float) -> list[Expr]:
    """Returns the means and the reciprocal deviations, as results 1 and 2."""
    middle, variance = moments(layer, x, axes, 0)
    spread = call("rsqrt", call("add", variance, scalar(epsilon, x.tensor.dtype)))
    return [layer.shaped(middle, 1), layer.shaped(spread, 2)]


@converter("rms_norm", "_fused_rms_norm")
def rms_norm(layer: Layer) -> Result:
    """Divided by the root mean square over the last axes."""
    x = cast_wide(layer.tensor("input"))
    shape = layer.dims("normalized_shape")
    axis = x.tensor.rank - len(shape)
    smallest = {"f64": 2.220446049250313e-16}.get(x.tensor.dtype, 1.1920928955078125e-07)
    narrow = layer.tensor("input").tensor.dtype
    smallest = {"f16": 0.0009765625, "bf16": 0.0078125}.get(narrow, smallest)
    epsilon = layer.number("eps", smallest)
    gamma, _ = _gains(layer, x, shape)
    y = layer.to_result(root_mean_square(x, gamma, axis, float(epsilon)))
    if layer.op.startswith("rms_norm"):
        return y
    axes = tuple(range(axis, x.tensor.rank))
    squares = call("mean", call("multiply", x, x), axes=axes, keepdims=True)
    spread = call("rsqrt", call("add", squares, scalar(epsilon, x.tensor.dtype)))
    return [y, layer.shaped(spread, 1)]


@converter("group_norm", "native_group_norm")
def group_norm(layer: Layer) -> Result:
    """Standardized over groups of channels."""
    x = cast_wide(layer.tensor("input"))
    groups = layer.integer("num_groups" if "num_groups" in layer.arguments else "group")
    channels = x.tensor.shape[1]
    gamma, beta = _gains(layer, x, (channels,))
    epsilon = float(layer.number("eps", 1e-5))
    batch, *rest = x.tensor.shape
    flat = reshaped(x, (batch, channels, product(tuple(rest[1:])) if len(rest) > 1 else 1, 1))
    made = call("nn.group_norm", flat, gamma, beta, groups=groups, epsilon=epsilon)
    y = layer.to_result(reshaped(made, x.tensor.shape))
    if layer.op.startswith("group_norm"):
        return y
    by_group = reshaped(x, (batch, groups, product(tuple(rest)) // groups))
    return [y, *_statistics(layer, by_group, (2,), epsilon)]


@converter("instance_norm")
def instance_norm(layer: Layer) -> Result:
    """Each channel of each image standardized."""
    x = cast_wide(layer.tensor("input"))
    if not layer.flag("use_input_stats", True):
        return layer.to_result(_by_running(layer, x))
    batch, channels, *rest = x.tensor.shape
    gamma, beta = _gains(layer, x, (channels,))
    flat = reshaped(x, (batch, channels, product(tuple(rest)), 1))
    epsilon = float(layer.number("eps", 1e-5))
    y = call("nn.instance_norm", flat, gamma, beta, epsilon=epsilon)
    return layer.to_result(reshaped(y, x.tensor.shape))


def _by_running(layer: Layer, x: Expr) -> Expr:
    channels = x.tensor.shape[1]
    gamma, beta = _gains(layer, x, (channels,))
    dtype = x.tensor.dtype
    mean, var = (cast(layer.tensor(n), dtype) for n in ("running_mean", "running_var"))
    return call(
        "nn.batch_norm", x, gamma, beta, mean, var, epsilon=float(layer.number("eps", 1e-5))
    )


@converter(
    "_native_batch_norm_legit_no_training",
    "batch_norm",
    "native_batch_norm",
    "_native_batch_norm_legit",
)
def batch_norm(layer: Layer) -> Result:
    """By running statistics, or by those of the batch."""
    x = cast_wide(layer.tensor("input"))
    training = layer.flag("training", False) if "training" in layer.arguments else False
    if not training and layer.has("running_mean"):
        y = layer.to_result(_by_running(layer, x))
        if layer.op == "batch_norm.default":
            return y
        nothing = [layer.filled(0, n) for n in range(1, len(layer.fakes))]
        return [y, *nothing]
    if len(layer.fakes) > 3:
        raise layer.unsupported("training", hint=EVAL)
    axes = tuple(n for n in range(x.tensor.rank) if n != 1)
    middle, variance = moments(layer, x, axes, 0)
    epsilon = float(layer.number("eps", 1e-5))
    spread = call("rsqrt", call("add", variance, scalar(epsilon, x.tensor.dtype)))
    y = call("multiply", call("subtract", x, middle), spread)
    gamma, beta = _gains(layer, x, (x.tensor.shape[1],))
    rank = x.tensor.rank
    y = call("add", call("multiply", y, per_channel(gamma, rank)), per_channel(beta, rank))
    if layer.op == "batch_norm.default":
        return layer.to_result(y)
    return [layer.to_result(y), layer.shaped(middle, 1), layer.shaped(spread, 2)]
