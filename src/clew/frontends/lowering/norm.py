"""Normalization over the last axes, and its statistics."""

from __future__ import annotations

from collections.abc import Sequence

from clew.frontends.building import call, cast, scalar
from clew.ir.dims import Dim
from clew.ir.expr import Expr


def normalized(x: Expr, scale: Expr, bias: Expr | None, axis: int, epsilon: float) -> Expr:
    """Returns `x` normalized over the axes from `axis` on; scale and bias broadcast to these."""
    parameters = [scale] if bias is None else [scale, bias]
    shaped = [_broadcast(p, x.tensor.shape[axis:]) for p in parameters]
    return call("nn.layer_norm", x, *shaped, axis=axis, epsilon=epsilon)


def statistics(x: Expr, axis: int, epsilon: float, *, center: bool = True) -> list[Expr]:
    """Returns the mean and the inverse deviation over the axes from `axis` on, in f32 or f64.
    Without `center` the mean counts as 0 and is not returned.
    """
    axes = tuple(range(axis, x.tensor.rank))
    wide = "f64" if x.tensor.dtype == "f64" else "f32"
    data, found = cast(x, wide), []
    if center:
        found.append(call("mean", data, axes=axes, keepdims=True))
        data = call("subtract", data, found[0])
    variance = call("mean", call("multiply", data, data), axes=axes, keepdims=True)
    return [*found, call("rsqrt", call("add", variance, scalar(epsilon, wide)))]


def _broadcast(x: Expr, shape: Sequence[Dim]) -> Expr:
    """Returns a scale in the shape of the axes it applies to."""
    if x.tensor.shape == tuple(shape):
        return x
    return call("broadcast_to", x, shape=tuple(shape))


def root_mean_square(x: Expr, scale: Expr, axis: int, epsilon: float) -> Expr:
    """Returns `x` over the root of its mean square over the axes from `axis` on, scaled."""
    scale = _broadcast(scale, x.tensor.shape[axis:])
    return call("nn.rms_norm", x, scale, axis=axis, epsilon=epsilon)
