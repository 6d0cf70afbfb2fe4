"""Convolutions, pooling and resampling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from clew.frontends.building import call, cast, cast_wide, reshaped, scalar
from clew.frontends.lowering.convolution import convolution as convolution_of
from clew.frontends.lowering.convolution import transposed, with_bias
from clew.frontends.lowering.pooling import pool_places, pooled
from clew.frontends.lowering.window import Window
from clew.frontends.torch.converters.grouped import grouped
from clew.frontends.torch.converters.movement import sliced
from clew.frontends.torch.converters.windows import (
    adaptive_windows,
    divisors,
    drawn_places,
    largest_in_planes,
    largest_in_windows,
)
from clew.frontends.torch.layer import Layer
from clew.frontends.torch.registry import Result, converter
from clew.ir.dims import Dim, ceil_div, dim_max, dim_min, product
from clew.ir.expr import Expr
from clew.ir.types import is_float
from clew.te.interpret import identity_of


@converter("convolution", "_convolution")
def convolution(layer: Layer) -> Result:
    """One to three spatial axes; transposed or not; then the bias."""
    x, weight = layer.tensor("input"), layer.tensor("weight")
    rank = weight.tensor.rank - 2
    lone = x.tensor.rank == rank + 1
    if lone:
        x = reshaped(x, (1, *x.tensor.shape))
    groups = layer.dim("groups", 1)
    features = weight.tensor.shape[0]
    known = all(isinstance(p, int) for p in layer.dims("padding"))
    if not isinstance(groups, int) or not known or features % groups != 0:
        found = grouped(layer, x, weight, groups)
    else:
        found = _of_known_groups(layer, x, weight, groups)
    found = with_bias(found, layer.optional("bias"))
    return layer.shaped(found) if lone else layer.to_result(found)


def _of_known_groups(layer: Layer, x: Expr, weight: Expr, groups: int) -> Expr:
    rank = weight.tensor.rank - 2
    padding = layer.spread("padding", rank)
    window = Window(
        weight.tensor.shape[2:],
        layer.spread("stride", rank),
        layer.spread("dilation", rank),
        (*padding, *padding),
    )
    if layer.flag("transposed"):
        return transposed(x, weight, window, groups, layer.spread("output_padding", rank))
    return convolution_of(x, weight, window, groups)


# --- pooling --------------------------------------------------------------------------------------


def _window(layer: Layer, rank: int) -> Window:
    kernel = layer.spread("kernel_size", rank)
    strides = layer.spread("stride", rank) if layer.get("stride") else kernel
    padding = layer.spread("padding", rank, (0,))
    return Window(
        kernel, strides or kernel, layer.spread("dilation", rank, (1,)), (*padding, *padding)
    )


def _as_image(x: Expr, rank: int) -> Expr:
    """Returns a tensor that may lack the batch or the channels as an image `[N, C, ...]`."""
    return reshaped(x, ((1,) * (rank + 2 - x.tensor.rank)) + x.tensor.shape)


def _pool_rank(layer: Layer) -> int:
    return int(next(c for c in layer.op if c.isdigit()))


@converter(
    "max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices"
)
def max_pool(layer: Layer) -> Result:
    """The largest element of each window, and its place in the image."""
    rank, ceil_mode = _pool_rank(layer), layer.flag("ceil_mode")
    image, window = _as_image(layer.tensor(), rank), _window(layer, rank)
    found = layer.shaped(pooled("nn.max_pool2d", image, window, ceil_mode=ceil_mode))
    if "with_indices" not in layer.op:
        return found
    if not layer.is_used(1):
        return [found, layer.filled(0, 1)]
    places = pool_places(image, window, ceil_mode=ceil_mode)
    elements = layer.importer.scalar_of(product(image.tensor.shape[2:]), "i64")
    return [found, layer.shaped(call("floor_mod", places, elements), 1)]


@converter("avg_pool1d", "avg_pool2d", "avg_pool3d")
def avg_pool(layer: Layer) -> Result:
    """The mean of each window; padding counts, unless the call says otherwise."""
    rank, x = _pool_rank(layer), layer.tensor()
    window, divisor = _window(layer, rank), layer.get("divisor_override")
    if not is_float(x.tensor.dtype) or layer.flag("ceil_mode"):
        return _uneven_avg_pool(layer, x, window)
    counts = divisor is not None or layer.flag("count_include_pad", True)
    image = _as_image(x, rank)
    found = layer.shaped(pooled("nn.avg_pool2d", image, window, count_include_pad=counts))
    if divisor is not None:
        count = product(window.kernel)
        found = call("multiply", found, layer.scalar(count / divisor, found))
    return found


def _uneven_avg_pool(layer: Layer, x: Expr, window: Window) -> Expr:
    """Returns means of windows that differ in size, or of integers: sums of a padded image, divided
    by window.
    """
    strides, rank = window.strides, window.rank
    kernel, before = layer.spread("kernel_size", rank), layer.spread("padding", rank, (0,))
    first = x.tensor.rank - rank
    sizes, counts = x.tensor.shape[first:], layer.result().shape[first:]
    dtype = x.tensor.dtype
    wide = cast_wide(x)
    wide = wide if is_float(dtype) else cast(x, "f64")
    # Windows may reach beyond the padding, or leave the end of the image unread.
    after: list[Dim] = []
    for axis, (size, count) in enumerate(zip(sizes, counts, strict=True)):
        reach = (count - 1) * strides[axis] + kernel[axis] - before[axis]
        wide = sliced(wide, first + axis, 0, dim_min(size, reach))
        after.append(dim_max(reach - size, 0))
    none = (0,) * first
    wide = call("pad", wide, pads=(*none, *before, *none, *after), mode="constant", value=0.0)
    plain = replace(window, padding=(0,) * (2 * rank))
    means = pooled("nn.avg_pool2d", _as_image(wide, rank), plain)
    means = reshaped(means, layer.result().shape)
    by = divisors(layer, sizes, counts, kernel, strides, before)
    elements = layer.scalar(math.prod(kernel), means)
    if not is_float(dtype):
        sums = cast(call("round", call("multiply", means, elements)), "i64")
        return layer.to_result(call("divide", sums, by))
    scale = call("divide", elements, cast(by, means.tensor.dtype))
    return layer.to_result(call("multiply", means, scale))


@converter(
    "_adaptive_avg_pool2d",
    "_adaptive_avg_pool3d",
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
)
def adaptive_avg_pool(layer: Layer) -> Result:
    """The mean of windows that divide the image: one axis after another."""
    x, rank = layer.tensor(), _pool_rank(layer)
    # Half precision would be rounded after each axis.
    x = cast_wide(x)
    wanted = layer.result().shape[-rank:]
    first = x.tensor.rank - rank
    if 0 in wanted:
        return layer.filled(0)
    if all(w == 1 for w in wanted):
        return layer.shaped(call("mean", x, axes=tuple(range(first, x.tensor.rank)), keepdims=True))
    for axis, out in enumerate(wanted, first):
        x = _adaptive(layer, x, axis, out)
    return layer.shaped(x)


def _adaptive(layer: Layer, x: Expr, axis: int, out: Dim) -> Expr:
    size = x.tensor.shape[axis]
    shape = x.tensor.shape
    if size == out:
        return x
    if out == 1 or size % out == 0:
        parts = (*shape[:axis], out, size // out, *shape[axis + 1 :])
        return call("mean", reshaped(x, parts), axes=(axis + 1,), keepdims=False)
    return _of_windows(layer, "mean", x, axis, out)


def _of_windows(layer: Layer, reduction: str, x: Expr, axis: int, out: Dim) -> Expr:
    """Returns a reduction of each of the windows that divide an axis."""
    size = x.tensor.shape[axis]
    if not isinstance(out, int):
        return _of_free_windows(layer, reduction, x, axis, out)
    pieces = []
    for n in range(out):
        begin, end = n * size // out, ceil_div((n + 1) * size, out)
        part = call("slice", x, begin=(begin,), end=(end,), strides=(1,), axes=(axis,))
        pieces.append(call(reduction, part, axes=(axis,), keepdims=True))
    return pieces[0] if len(pieces) == 1 else call("concatenate", *pieces, axis=axis)


def _of_free_windows(layer: Layer, reduction: str, x: Expr, axis: int, out: Dim) -> Expr:
    """Returns a reduction of windows of free number: of their elements in rows of one length."""
    rows = adaptive_windows(x.tensor.shape[axis], out)
    found: Expr = call("gather", x, call("maximum", rows.places, scalar(0, "i64")), axis=axis)
    rest = (1,) * (found.tensor.rank - axis - 2)
    outside = reshaped(rows.outside, (*rows.places.tensor.shape, *rest))
    dtype = x.tensor.dtype
    neutral = identity_of("max", dtype) if reduction == "max" else 0
    found = call("where", outside, scalar(neutral, dtype), found)
    if reduction == "max":
        return call("max", found, axes=(axis + 1,), keepdims=False)
    held = cast(call("logical_not", outside), dtype)
    return call(
        "divide",
        call("sum", found, axes=(axis + 1,), keepdims=False),
        call("sum", held, axes=(1,), keepdims=False),
    )


@converter("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_max_pool(layer: Layer) -> Result:
    """The largest element of windows that divide the image, and its place."""
    x, rank = layer.tensor(), _pool_rank(layer)
    if layer.is_used(1):
        if 0 in layer.result().shape:
            return [layer.filled(0), layer.filled(0, 1)]
        pairs = zip(x.tensor.shape[-rank:], layer.result().shape[-rank:], strict=True)
        windows = [adaptive_windows(*pair) for pair in pairs]
        values, places = largest_in_windows(x, windows)
        return [layer.shaped(values), layer.shaped(places, 1)]
    wanted = layer.result().shape[-rank:]
    first = x.tensor.rank - rank
    for axis, out in enumerate(wanted, first):
        x = _of_windows(layer, "max", x, axis, out)
    return [layer.shaped(x), layer.filled(0, 1)]


@converter("fractional_max_pool2d", "fractional_max_pool3d")
def fractional_max_pool(layer: Layer) -> Result:
    """The largest element of windows at distances that samples decide, and its place."""
    rank = _pool_rank(layer)
    x, samples, kernel = (
        layer.tensor(),
        layer.tensor("random_samples"),
        layer.integers("kernel_size"),
    )
    *lead, last = samples.tensor.shape
    wanted = layer.result().shape[-rank:]
    planes = product(x.tensor.shape[:-rank])
    samples = reshaped(samples, (product(tuple(lead)), last))
    places = []
    for axis, (size, count, k) in enumerate(
        zip(x.tensor.shape[-rank:], wanted, kernel, strict=True)
    ):
        # In two dimensions, the first sample is that of the width.
        own = sliced(samples, 1, n := axis if rank == 3 else 1 - axis, n + 1)
        own = reshaped(own, (planes,))
        places.append(drawn_places(own, size, count, k))
    image = reshaped(x, (planes, *x.tensor.shape[-rank:]))
    values, found = largest_in_planes(image, places)
    return [layer.shaped(values), layer.shaped(found, 1)]


# --- resampling -----------------------------------------------------------------------------------


# Scales of the overloads that take sizes, one for each axis.
_SCALES: Final = ("scales", "scales_d", "scales_h", "scales_w")
_MOST_POSITIONS: Final = 1 << 13  # of a free axis
_CLOSE: Final = 1e-9  # far above the error of a position in f64, far below that in f32


def _scales(layer: Layer, sizes: Sequence[Dim], counts: Sequence[Dim]) -> list[float]:
    """Returns the scales that a call gives; none if it gives none. Errors: U063."""
    given = layer.get("scale_factors")
    if given is None:
        given = [layer.arguments[n] for n in _SCALES if n in layer.arguments]
    if len(given) != len(sizes) or all(v is None for v in given):
        return []
    found = []
    for scale, size, count in zip(given, sizes, counts, strict=True):
        if scale is None and isinstance(size, int) and isinstance(count, int):
            scale = count / max(size, 1)
        if not isinstance(scale, (int, float)):
            raise layer.unsupported("scales of some axes of free sizes, or known during the run")
        found.append(float(scale))
    return found


def _may_double(scale: float, size: Dim, count: Dim) -> bool:
    """Whether a free size may stay or double with a scale that says otherwise."""
    if isinstance(size, int) and isinstance(count, int):
        return False
    if scale >= 1:
        return not (scale.is_integer() and count == size * int(scale))
    return not ((1 / scale).is_integer() and count == size // int(1 / scale))


def _scale_in_use(scale: float, size: Dim, count: Dim) -> float:
    """Returns the scale of an axis over which torch repeats elements: where the size stays or
    doubles, it ignores the given one.
    """
    if not isinstance(size, int) or not isinstance(count, int) or not size:
        return scale
    return count / size if count in (size, 2 * size) else scale


def _shifted_or_nearest(
    layer: Layer, x: Expr, counts: Sequence[Dim], scales: Sequence[float]
) -> Expr:
    """Returns an image of free size whose elements are repeated: over two axes, torch ignores the
    scale where a size stays or doubles.
    """
    for axis, (count, scale) in enumerate(zip(counts, scales, strict=True), 2):
        size = x.tensor.shape[axis]
        if size == count:
            continue
        here = call("arange", start=0, stop=count, step=1, dtype="i64")
        number, out = (layer.importer.scalar_of(d, "i64") for d in (size, count))
        down = call("floor", call("multiply", cast(here, "f32"), scalar(1 / scale, "f32")))
        last = call("subtract", number, scalar(1, "i64"))
        source = call("minimum", cast(down, "i64"), last)
        half = call("right_shift", here, scalar(1, "i64"))
        double = call("equal", out, call("multiply", number, scalar(2, "i64")))
        source = call("where", double, half, source)
        source = call("where", call("equal", out, number), here, source)
        x = call("gather", x, source, axis=axis)
    return x


def _rounds_down(size: Dim, count: Dim, scale: float | None, half: float) -> bool:
    """Whether a position that torch computes in f32 may be rounded to below an integer."""
    if not isinstance(size, int) or not isinstance(count, int):
        if scale is None or math.frexp(scale)[0] == 0.5:  # powers of two are exact
            return scale is None
        size = count = _MOST_POSITIONS
    here = np.arange(count) + half
    step = np.float32(1 / scale if scale is not None else size / count if count else 1)
    exact = here * (1 / scale) if scale is not None else here * size / max(count, 1)
    single = np.floor(here.astype(np.float32) * step)
    return bool((np.floor(exact + _CLOSE) != single).any())


def _may_stay(scale: float, size: Dim, count: Dim) -> bool:
    """Whether a free size of more than one element may stay although a scale says otherwise."""
    is_free = not isinstance(size, int) or not isinstance(count, int)
    return is_free and size != count and 1 < scale < 1.5


def _copied_or_linear(
    layer: Layer, x: Expr, counts: Sequence[Dim], scales: Sequence[float]
) -> Expr:
    """Returns an image of free size, interpolated along axes that grow and copied along others."""
    dtype = x.tensor.dtype
    wide = "f64" if dtype == "f64" else "f32"
    image: Expr = cast(x, wide)
    half, one = scalar(0.5, wide), scalar(1, "i64")
    for axis, (count, scale) in enumerate(zip(counts, scales, strict=True), 2):
        size = image.tensor.shape[axis]
        if size == count:
            continue
        here = call("arange", start=0, stop=count, step=1, dtype="i64")
        number, out = (layer.importer.scalar_of(d, "i64") for d in (size, count))
        place = call("multiply", call("add", cast(here, wide), half), scalar(1 / scale, wide))
        place = call("maximum", call("subtract", place, half), scalar(0, wide))
        place = call("where", call("equal", out, number), cast(here, wide), place)
        last = call("subtract", number, one)
        below = call("minimum", cast(call("floor", place), "i64"), last)
        above = call("minimum", call("add", below, one), last)
        share = call("subtract", place, cast(below, wide))
        own = reshaped(share, (count, *(1,) * (image.tensor.rank - axis - 1)))
        low, high = (call("gather", image, at, axis=axis) for at in (below, above))
        low = call("multiply", low, call("subtract", scalar(1, wide), own))
        image = call("add", low, call("multiply", high, own))
    return cast(image if is_float(dtype) else call("round", image), dtype)


def _resized(layer: Layer, mode: str, coordinates: str, rounding: str = "floor") -> Expr:
    x, wanted = layer.tensor("input" if "input" in layer.arguments else "self"), layer.result()
    given = _scales(layer, x.tensor.shape[2:], wanted.shape[2:])
    if given and mode == "nearest" and rounding == "floor" and wanted.rank == 4:
        triples = list(zip(given, x.tensor.shape[2:], wanted.shape[2:], strict=True))
        if any(_may_double(*triple) for triple in triples):
            return _shifted_or_nearest(layer, x, wanted.shape[2:], given)
        given = [_scale_in_use(*triple) for triple in triples]
    triples = list(zip(given, x.tensor.shape[2:], wanted.shape[2:], strict=True)) if given else []
    in_fixed_point = mode != "nearest" and x.tensor.dtype == "u8"
    # torch copies along axes that keep their size, except in `bicubic` of floats.
    if mode == "linear" or "_aa" in layer.op or in_fixed_point:
        given = [1.0 if size == count else scale for scale, size, count in triples]
        if coordinates == "half_pixel" and any(_may_stay(*triple) for triple in triples):
            if mode == "cubic":
                raise layer.unsupported("scales that may keep some free sizes, but not others")
            return _copied_or_linear(layer, x, wanted.shape[2:], given)
    if in_fixed_point:
        return _in_fixed_point(layer, x, wanted.shape, given, mode, coordinates)
    scales = (1.0, 1.0, *given) if given else ()
    attrs: dict[str, Any] = {"scales": scales} if scales else {}
    if mode == "nearest":
        half = 0.0 if coordinates == "asymmetric" else 0.5
        steps: Sequence[float | None] = given or [None] * (wanted.rank - 2)
        axes = zip(x.tensor.shape[2:], wanted.shape[2:], steps, strict=True)
        attrs["single"] = any(_rounds_down(*axis, half) for axis in axes)
    if _smooths(layer):
        attrs["antialias"] = True
        attrs["exclude_outside"] = True  # unlike ONNX, torch leaves the edge element single
        attrs["cubic_a"] = -0.5
    return call(
        "resize",
        x,
        shape=(*x.tensor.shape[:2], *wanted.shape[2:]),
        mode=mode,
        coordinates=coordinates,
        rounding=rounding,
        **attrs,
    )


def _smooths(layer: Layer) -> bool:
    if "_aa" in layer.op and layer.flag("align_corners"):
        raise layer.unsupported("align_corners together with antialias")
    return "_aa" in layer.op


def _in_fixed_point(
    layer: Layer,
    x: Expr,
    shape: Sequence[Dim],
    scales: Sequence[float],
    mode: str,
    coordinates: str,
) -> Expr:
    """Returns an image of `u8`, resampled along its last axis first; axes that keep their size are
    copied, whatever the scale.
    """
    smooths = _smooths(layer)
    for axis in reversed(range(2, len(shape))):
        if x.tensor.shape[axis] != shape[axis]:
            x = call(
                "resize_u8",
                x,
                axis=axis,
                size=shape[axis],
                scale=scales[axis - 2] if scales else 0.0,
                mode=mode,
                align_corners=coordinates == "align_corners",
                antialias=smooths,
            )
    return x


@converter("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d")
def nearest(layer: Layer) -> Result:
    """The element before, by position times scale."""
    return _resized(layer, "nearest", "asymmetric")


@converter("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d")
def nearest_exact(layer: Layer) -> Result:
    """The element whose center is nearest."""
    return _resized(layer, "nearest", "half_pixel", "round_prefer_ceil")


@converter(
    "upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "_upsample_bilinear2d_aa"
)
def linear_resize(layer: Layer) -> Result:
    """Interpolated between neighbors."""
    corners = "align_corners" if layer.flag("align_corners") else "half_pixel"
    return _resized(layer, "linear", corners)


@converter("upsample_bicubic2d", "_upsample_bicubic2d_aa")
def cubic_resize(layer: Layer) -> Result:
    """Interpolated by cubics."""
    corners = "align_corners" if layer.flag("align_corners") else "half_pixel"
    return _resized(layer, "cubic", corners)


@converter("grid_sampler_2d", "grid_sampler_3d")
def grid_sampler(layer: Layer) -> Result:
    """Elements at positions of a grid."""
    modes = ("linear", "nearest", "cubic")
    paddings = ("zeros", "border", "reflection")
    mode = modes[layer.integer("interpolation_mode")]
    padding = paddings[layer.integer("padding_mode")]
    return call(
        "grid_sample",
        layer.tensor("input"),
        layer.tensor("grid"),
        mode=mode,
        padding=padding,
        align_corners=layer.flag("align_corners"),
        reflect_first=(mode, padding) == ("nearest", "reflection"),
    )


@converter("col2im")
def col2im(layer: Layer) -> Result:
    """Blocks added up to an image."""
    x = layer.tensor()
    lone = x.tensor.rank == 2
    x = reshaped(x, (1, *x.tensor.shape)) if lone else x
    padding = layer.spread("padding", 2)
    found = call(
        "nn.col2im",
        x,
        image=layer.dims("output_size"),
        block=layer.spread("kernel_size", 2),
        strides=layer.spread("stride", 2),
        padding=(*padding, *padding),
        dilation=layer.spread("dilation", 2),
    )
    return layer.shaped(found)
