"""Resampling of images."""

from __future__ import annotations

import math
from collections.abc import Sequence

from clew.frontends.building import call, cast, scalar
from clew.frontends.onnx.held import held
from clew.frontends.onnx.layer import Layer
from clew.frontends.onnx.registry import Result, converter
from clew.ir.dims import Dim
from clew.ir.expr import Expr
from clew.ops.images.image import scaled_size

_MODES = ("nearest", "linear", "cubic")
_COORDINATES = (
    "half_pixel",
    "pytorch_half_pixel",
    "half_pixel_symmetric",
    "asymmetric",
    "align_corners",
    "tf_crop_and_resize",
)


@converter("Upsample", since=7)
def upsample_by_attribute(layer: Layer) -> Result:
    """Version 7: scales as an attribute."""
    return upsampled(layer, layer.reals("scales"))


@converter("Upsample", since=9)
def upsample(layer: Layer) -> Result:
    """Scales as an input."""
    return upsampled(layer, _scales(layer, 1))


@converter("Resize", since=10)
def resize_by_scales(layer: Layer) -> Result:
    """Version 10: as Upsample, but the nearest element of a shrinking axis is the one above, as in
    the standard's tests.
    """
    scales = _scales(layer, 1)
    shape = _scaled(layer, scales, range(layer.rank()))
    source = layer.type(0).shape
    if layer.text("mode") != "nearest" or all(s >= 1 for s in scales):
        return _resize(layer, shape, scales, "floor")
    larger = [new if s >= 1 else old for old, new, s in zip(source, shape, scales, strict=True)]
    wide = _resize(layer, larger, [max(s, 1.0) for s in scales], "floor")
    return _resize(layer, shape, [min(s, 1.0) for s in scales], "ceil", wide)


def upsampled(layer: Layer, scales: Sequence[float]) -> Expr:
    """Returns the resized input; of several nearest elements the first is taken."""
    return _resize(layer, _scaled(layer, scales, range(layer.rank())), scales, "floor")


@converter("Resize", since=11)
def resize(layer: Layer) -> Result:
    """By scales or to sizes, of all axes or of some; from the region of the image in `roi`.

    With scales, the result has the input's sizes times the scales. The standard's text multiplies
    the region's sizes instead; its own shape inference, its reference and ONNX Runtime do not.
    """
    rank = layer.rank()
    axes = tuple(range(rank))
    if "axes" in layer.schema.attributes and layer.has("axes"):
        axes = tuple(layer.positive(a, rank) for a in layer.integers("axes"))
        if len(set(axes)) != len(axes):
            raise layer.wrong(f"has axes {list(layer.integers('axes'))}, one of them twice")
    crops = layer.text("coordinate_transformation_mode") == "tf_crop_and_resize"
    roi = _roi(layer, axes) if crops else None
    late = _told_by_run(layer, axes, crops)
    if late is not None:
        return _resize(layer, late.get("shape", ()), late.get("scales", ()), roi=roi, axes=axes)
    factors: Sequence[float] = _scales(layer, 2) if layer.optional(2) is not None else ()
    if factors:
        shape = _scaled(layer, factors, axes)
        scales = [1.0] * rank
        for axis, factor in zip(axes, factors, strict=True):
            scales[axis] = factor
    else:
        shape, scales = _to_sizes(layer, axes)
    return _resize(layer, shape, () if crops else scales, roi=roi)


def _told_by_run(layer: Layer, axes: Sequence[int], crops: bool) -> dict[str, Expr] | None:
    """Returns the scales or sizes as an expression if they are data-dependent."""
    index = 2 if layer.optional(2) is not None and layer.type(2).shape != (0,) else 3
    given = layer.optional(index)
    if given is None or layer.known(index) is not None:
        return None
    policy = "keep_aspect_ratio_policy" in layer.schema.attributes
    if policy and index == 3 and layer.text("keep_aspect_ratio_policy") != "stretch":
        return None
    if given.tensor.shape != (len(axes),) or (crops and index == 2):
        return None
    return {"scales" if index == 2 else "shape": given}


def _roi(layer: Layer, axes: Sequence[int]) -> Expr:
    """Returns the `roi` with starts and ends of all axes: 0 and 1 for omitted axes."""
    roi, rank = layer.input(1), layer.rank()
    if roi.tensor.shape != (2 * len(axes),):
        raise layer.wrong(f"has a roi of type {roi.type} for {len(axes)} axes")
    if axes == tuple(range(rank)):
        return roi
    whole = scalar([0.0, 1.0], roi.tensor.dtype)
    given = {axis: n for n, axis in enumerate(axes)}
    count = len(axes)
    order = [given.get(axis, 2 * count) for axis in range(rank)]
    order += [given[axis] + count if axis in given else 2 * count + 1 for axis in range(rank)]
    return call("gather", call("concatenate", roi, whole, axis=0), scalar(order, "i64"), axis=0)


def _scales(layer: Layer, index: int) -> tuple[float, ...]:
    found = layer.value(index, "the scales").reshape(-1).tolist()
    if any(not isinstance(s, (int, float)) or not 0 < s < math.inf for s in found):
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
            shape[axis] = scaled_size(size, scale)
        elif scale.is_integer():
            shape[axis] = size * int(scale)
        elif (1 / scale).is_integer():
            shape[axis] = size // int(1 / scale)
        else:
            raise layer.open_size(f"{scale} times the size {size}", size)
    return shape


def _to_sizes(layer: Layer, axes: Sequence[int]) -> tuple[list[Dim], list[float]]:
    """Returns the shape for given sizes, and the factors if they keep the aspect ratio."""
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
        raise layer.open_size(f"the size that is {policy}", *(d for pair in pairs for d in pair))
    if policy not in ("not_larger", "not_smaller"):
        raise layer.wrong(f"has an unknown keep_aspect_ratio_policy {policy!r}")
    if any(a == 0 for a, _ in pairs):
        raise layer.wrong(f"keeps the aspect ratio of {layer.type(0)}")
    ratios = [b / a for a, b in pairs]  # type: ignore[operator]
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    scales = [1.0] * len(shape)
    for axis, (size, _) in zip(axes, pairs, strict=True):
        scales[axis] = scale
        shape[axis] = math.floor(size * scale + 0.5)  # type: ignore[operator]
    return shape, scales


def _resize(
    layer: Layer,
    shape: Sequence[Dim] | Expr,
    scales: Sequence[float] | Expr,
    rounding: str = "",
    x: Expr | None = None,
    roi: Expr | None = None,
    axes: Sequence[int] = (),
) -> Expr:
    declared = layer.schema.attributes
    mode = layer.text("mode")
    mode = "linear" if mode == "bilinear" else mode
    coordinates = "asymmetric"
    if "coordinate_transformation_mode" in declared:
        coordinates = layer.text("coordinate_transformation_mode")
    if mode not in _MODES:
        raise layer.unsupported(f"mode {mode!r}")
    if coordinates not in _COORDINATES:
        raise layer.unsupported(f"coordinate_transformation_mode {coordinates!r}")
    x = layer.input(0) if x is None else x
    dtype = x.tensor.dtype
    # Booleans are resampled as numbers.
    data = cast(x, "u8") if dtype == "bool" else x
    late = {n: v for n, v in (("shape", shape), ("scales", scales)) if isinstance(v, Expr)}
    known = {
        n: tuple(v) for n, v in (("shape", shape), ("scales", scales)) if not isinstance(v, Expr)
    }
    result = held(
        layer,
        "resize",
        [data] if roi is None else [data, roi],
        late,
        **known,
        mode=mode,
        coordinates=coordinates,
        axes=tuple(axes),
        rounding=rounding or layer.text("nearest_mode"),
        cubic_a=layer.real("cubic_coeff_a") if "cubic_coeff_a" in declared else -0.75,
        exclude_outside="exclude_outside" in declared and layer.flag("exclude_outside"),
        antialias="antialias" in declared and layer.flag("antialias"),
        outside=layer.real("extrapolation_value") if "extrapolation_value" in declared else 0.0,
    )
    return cast(result, dtype)


@converter("ImageDecoder")
def image_decoder(layer: Layer) -> Result:
    """The pixels of an image file's bytes."""
    pixels = layer.text("pixel_format")
    return call("image.decode", layer.input(0), pixel_format=pixels)


# Names of the modes of GridSample in version 16.
_GRID_MODES = {"bilinear": "linear", "bicubic": "cubic"}


@converter("GridSample")
def grid_sample(layer: Layer) -> Result:
    """An image interpolated at the positions of a grid."""
    mode = layer.text("mode")
    return call(
        "grid_sample",
        layer.input(0),
        layer.input(1),
        mode=_GRID_MODES.get(mode, mode),
        padding=layer.text("padding_mode"),
        align_corners=layer.flag("align_corners"),
    )
