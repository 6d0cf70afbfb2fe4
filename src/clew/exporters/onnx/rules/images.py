"""Resampling of images, and regions in them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clew.exporters.onnx.registry import Writing, writes


@writes("resize")
def resize(w: Writing) -> str:
    """`Resize` by the sizes, or by scales that give them."""
    attrs, shape, wanted = w.attrs, w.shape(), w.type.concrete
    if attrs.single:
        w.refuse("its positions are rounded to f32 as PyTorch does")
    crops = attrs.coordinates == "tf_crop_and_resize"
    scales = sizes = None
    if attrs.scales:
        factors = np.array(attrs.scales, np.float32)
        if not (_scaled(shape, factors) == _scaled(shape, factors.astype("f8")) == list(wanted)):
            w.refuse(f"scales of {attrs.scales} may not give {wanted}")
        scales = w.constant(factors)
    else:
        sizes = w.integers(*wanted)
    roi = w.inputs[1] if crops else None
    return w.emit(
        "Resize",
        w.inputs[0],
        roi,
        scales,
        sizes,
        mode=attrs.mode,
        coordinate_transformation_mode=attrs.coordinates,
        nearest_mode=attrs.rounding,
        cubic_coeff_a=attrs.cubic_a,
        exclude_outside=attrs.exclude_outside,
        antialias=attrs.antialias,
        extrapolation_value=attrs.outside,
    )


def _scaled(shape: Sequence[int], factors: NDArray[Any]) -> list[int]:
    """Returns a shape times factors, in their dtype, rounded down."""
    return [math.floor(n) for n in np.array(shape, factors.dtype) * factors]


@writes("grid_sample")
def grid_sample(w: Writing) -> str:
    """`GridSample`, which rounds positions before it reflects them."""
    if w.attrs.layout != "NCHW":
        w.refuse(f"images are laid out as {w.attrs.layout}")
    if w.attrs.reflect_first:
        w.refuse("ONNX chooses the nearest element before it reflects positions")
    return w.emit(
        "GridSample",
        *w.inputs,
        mode=w.attrs.mode,
        padding_mode=w.attrs.padding,
        align_corners=w.attrs.align_corners,
    )


@writes("affine_grid")
def affine_grid(w: Writing) -> str:
    """`AffineGrid`; for a single element with `align_corners` the standard divides by 0."""
    if w.attrs.align_corners and 1 in w.attrs.size[2:]:
        w.refuse("ONNX defines no position for a single element with align_corners")
    size = w.integers(*w.attrs.size)
    return w.emit("AffineGrid", *w.inputs, size, align_corners=w.attrs.align_corners)


@writes("nn.roi_align")
def roi_align(w: Writing) -> str:
    """`RoiAlign`."""
    attrs = w.attrs
    if attrs.layout != "NCHW":
        w.refuse(f"images are laid out as {attrs.layout}")
    return w.emit(
        "RoiAlign",
        w.inputs[0],
        w.inputs[1],
        w.cast(w.inputs[2], "i64"),
        output_height=attrs.out[0],
        output_width=attrs.out[1],
        mode=attrs.mode,
        sampling_ratio=attrs.samples,
        spatial_scale=w.real("scale"),
        coordinate_transformation_mode=attrs.coordinates,
    )


@writes("nn.col2im")
def col2im(w: Writing) -> str:
    """`Col2Im`."""
    attrs = w.attrs
    return w.emit(
        "Col2Im",
        *w.inputs,
        w.integers(*attrs.image),
        w.integers(*attrs.block),
        strides=list(attrs.strides) or None,
        pads=list(attrs.padding) or None,
        dilations=list(attrs.dilation) or None,
    )
