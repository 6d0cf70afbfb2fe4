"""Resampling of images."""

from __future__ import annotations

import math
from collections.abc import Sequence

from clew.frontends.onnx.layer import Layer
from clew.frontends.onnx.registry import Result, call, converter
from clew.ir.dims import Dim
from clew.ir.expr import Expr

_MODES = ("nearest", "linear", "cubic")
_COORDINATES = (
    "half_pixel",
    "pytorch_half_pixel",
    "half_pixel_symmetric",
    "asymmetric",
    "align_corners",
)


@converter("Upsample", since=7)
def upsample_by_attribute(layer: Layer) -> Result:
    """Version 7: scales as an attribute."""
    return _upsample(layer, layer.reals("scales"))


@converter("Upsample", since=9)
def upsample(layer: Layer) -> Result:
    """Scales as an input."""
    return _upsample(layer, _scales(layer, 1))


@converter("Resize", since=10)
def resize_by_scales(layer: Layer) -> Result:
    """Version 10: as Upsample."""
    return _upsample(layer, _scales(layer, 1))


def _upsample(layer: Layer, scales: Sequence[float]) -> Expr:
    shape = _scaled(layer, scales, range(layer.rank()))
    return _resize(layer, shape, scales, layer.text("mode"), "asymmetric", "floor")


@converter("Resize", since=11)
def resize(layer: Layer) -> Result:
    """By scales or to sizes, of all axes or of some."""
    rank = layer.rank()
    axes = tuple(range(rank))
    if "axes" in layer.schema.attributes and layer.has("axes"):
        axes = tuple(layer.positive(a, rank) for a in layer.integers("axes"))
    if "antialias" in layer.schema.attributes and layer.flag("antialias"):
        raise layer.unsupported("antialias")
    factors: Sequence[float] = _scales(layer, 2) if layer.optional(2) is not None else ()
    if factors:
        shape = _scaled(layer, factors, axes)
        scales = [1.0] * rank
        for axis, factor in zip(axes, factors, strict=True):
            scales[axis] = factor
    else:
        shape, scales = _to_sizes(layer, axes)
    return _resize(
        layer,
        shape,
        scales,
        layer.text("mode"),
        layer.text("coordinate_transformation_mode"),
        layer.text("nearest_mode"),
    )


def _scales(layer: Layer, index: int) -> tuple[float, ...]:
    found = layer.value(index, "the scales").reshape(-1).tolist()
    if any(not isinstance(s, (int, float)) or s <= 0 for s in found):
        raise layer.wrong(f"has scales {list(map(str, found))}")
    return tuple(float(s) for s in found)


def _scaled(layer: Layer, scales: Sequence[float], axes: Sequence[int]) -> list[Dim]:
    """Returns the shape after scaling: each size times its factor, rounded down."""
    if len(scales) != len(axes):
        raise layer.wrong(f"has {len(scales)} scales for {len(axes)} axes")
    shape = list(layer.type(0).shape)
    for axis, scale in zip(axes, scales, strict=True):
        size = shape[axis]
        if isinstance(size, int):
            shape[axis] = math.floor(size * scale)
        elif scale.is_integer():
            shape[axis] = size * int(scale)
        elif (1 / scale).is_integer():
            shape[axis] = size // int(1 / scale)
        else:
            raise layer.unsupported(f"a scale of {scale} for an axis of size {size}")
    return shape


def _to_sizes(layer: Layer, axes: Sequence[int]) -> tuple[list[Dim], list[float]]:
    """Returns the shape for given sizes; the factors where they keep the aspect ratio, else
    none.
    """
    wanted = layer.dims(3, "the sizes")
    if len(wanted) != len(axes):
        raise layer.wrong(f"has {len(wanted)} sizes for {len(axes)} axes")
    shape = list(layer.type(0).shape)
    policy = "stretch"
    if "keep_aspect_ratio_policy" in layer.schema.attributes:
        policy = layer.text("keep_aspect_ratio_policy")
    if policy == "stretch":
        for axis, size in zip(axes, wanted, strict=True):
            shape[axis] = size
        return shape, []
    pairs = [(shape[axis], size) for axis, size in zip(axes, wanted, strict=True)]
    if not all(isinstance(a, int) and isinstance(b, int) for a, b in pairs):
        raise layer.unsupported(f"{policy} with symbolic sizes")
    ratios = [b / a for a, b in pairs]  # type: ignore[operator]
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    scales = [1.0] * len(shape)
    for axis, (size, _) in zip(axes, pairs, strict=True):
        scales[axis] = scale
        shape[axis] = math.floor(size * scale + 0.5)  # type: ignore[operator]
    return shape, scales


def _resize(
    layer: Layer,
    shape: Sequence[Dim],
    scales: Sequence[float],
    mode: str,
    coordinates: str,
    rounding: str,
) -> Expr:
    if mode not in _MODES:
        raise layer.unsupported(f"mode {mode!r}")
    if coordinates not in _COORDINATES:
        raise layer.unsupported(f"coordinate_transformation_mode {coordinates!r}")
    cubic = "cubic_coeff_a" in layer.schema.attributes
    return call(
        "resize",
        layer.input(0),
        shape=tuple(shape),
        scales=tuple(scales),
        mode=mode,
        coordinates=coordinates,
        rounding=rounding,
        cubic_a=layer.real("cubic_coeff_a") if cubic else -0.75,
        exclude_outside=cubic and layer.flag("exclude_outside"),
    )
