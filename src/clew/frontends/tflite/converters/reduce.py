"""Reductions, softmax and arg-max."""

from __future__ import annotations

from typing import Any, Final

from clew.frontends.building import call, cast, scalar
from clew.frontends.tflite.layer import TfliteLayer
from clew.frontends.tflite.registry import CONVERTERS, Result, converter

_REDUCERS: Final = {
    "MEAN": "mean", "SUM": "sum", "REDUCE_MAX": "max", "REDUCE_MIN": "min", "REDUCE_PROD": "prod",
    "REDUCE_ANY": "any", "REDUCE_ALL": "all",
}  # fmt: skip


def _reduced(op: str) -> Any:
    def convert(layer: TfliteLayer) -> Result:
        rank = layer.rank()
        axes = sorted({layer.positive(axis, rank) for axis in layer.numbers(1, "the axes")})
        if not axes:
            return layer.input(0)
        keep = layer.flag("keep_dims", False)
        return call(op, layer.input(0), axes=tuple(axes), keepdims=keep)

    return convert


for _name, _op in _REDUCERS.items():
    CONVERTERS.register(_name)(_reduced(_op))


@converter("SOFTMAX")
def softmax(layer: TfliteLayer) -> Result:
    """Softmax of `beta * x` along the last axis."""
    x, beta = layer.input(0), layer.real("beta", 0.0)
    scaled = x if beta == 1 else call("multiply", x, scalar(beta, x.tensor.dtype))
    return call("nn.softmax", scaled, axis=-1)


@converter("LOG_SOFTMAX")
def log_softmax(layer: TfliteLayer) -> Result:
    """Logarithm of the softmax along the last axis."""
    return call("nn.log_softmax", layer.input(0), axis=-1)


@converter("ARG_MAX", "ARG_MIN", codes=True)
def position(layer: TfliteLayer) -> Result:
    """The index of the first largest or smallest element along an axis."""
    axis = layer.positive(layer.one_int(1, "the axis"), layer.rank())
    op = "argmax" if layer.op == "ARG_MAX" else "argmin"
    x = layer.input(0)
    x = cast(x, "u8") if x.tensor.dtype == "bool" else x
    found = call(op, x, axis=axis, keepdims=False)
    return cast(found, layer.result_dtype())


@converter("CUMSUM")
def cumsum(layer: TfliteLayer) -> Result:
    """Running sums along an axis."""
    axis = layer.positive(layer.one_int(1, "the axis"), layer.rank())
    exclusive, reverse = layer.flag("exclusive", False), layer.flag("reverse", False)
    return call("cumsum", layer.input(0), axis=axis, exclusive=exclusive, reverse=reverse)


@converter("L2_NORMALIZATION")
def l2_normalization(layer: TfliteLayer) -> Result:
    """Divides vectors along the last axis by their length, which is at least 1e-6."""
    x = layer.input(0)
    total = call("sum", call("multiply", x, x), axes=(x.tensor.rank - 1,), keepdims=True)
    length = call("maximum", call("sqrt", total), scalar(1e-6, x.tensor.dtype))
    return layer.activated(call("divide", x, length))
