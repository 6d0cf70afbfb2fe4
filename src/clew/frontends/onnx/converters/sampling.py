"""Sampling at given positions, and cumulative products."""

from __future__ import annotations

from clew.frontends.building import call
from clew.frontends.onnx.held import held
from clew.frontends.onnx.layer import Layer
from clew.frontends.onnx.registry import Result, converter

# Mode names of version 16.
_MODES = {"bilinear": "linear", "bicubic": "cubic"}


@converter("GridSample")
def grid_sample(layer: Layer) -> Result:
    """An image interpolated at the positions of a grid."""
    mode = layer.text("mode")
    return call(
        "grid_sample",
        layer.input(0),
        layer.input(1),
        mode=_MODES.get(mode, mode),
        padding=layer.text("padding_mode"),
        align_corners=layer.flag("align_corners"),
    )


@converter("CumProd")
def cumulative_product(layer: Layer) -> Result:
    """Products up to each element along an axis."""
    x = layer.input(0)
    attrs = {"exclusive": layer.flag("exclusive"), "reverse": layer.flag("reverse")}
    if layer.known(1) is None:
        return held(layer, "cumprod", [x], {"axis": 1}, **attrs)
    axis = layer.one_int(1, "the axis")
    return call("cumprod", x, axis=layer.positive(axis, layer.rank()), **attrs)
