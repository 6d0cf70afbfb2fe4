"""Resampling of images, and regions in them."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from torch.nn import functional

from clew.backends.torch.registry import Building, Step, builds
from clew.ir.types import is_float
from clew.ops.registry import get_op

_MODES: Final = {
    ("linear", 1): "linear",
    ("linear", 2): "bilinear",
    ("linear", 3): "trilinear",
    ("cubic", 2): "bicubic",
}
_TORCH_CUBIC: Final = -0.75
_MOST_WEIGHTS: Final = 1 << 20
"""The largest matrix of weights of an axis."""


@builds("resize")
def resize(b: Building) -> Step:
    """The nearest elements by index; `interpolate` where it computes the same; else, products with
    the weights of each axis. An infinite element may make others NaN: torch multiplies it by
    weights of 0, which the reference leaves out.
    """
    attrs, shape, wanted = b.attrs, b.shape(), b.type.concrete
    if attrs.coordinates == "tf_crop_and_resize":
        b.refuse("torch has no regions in resampling")
    scales = attrs.scales or (1.0,) * len(shape)
    changed = [n for n in range(len(shape)) if shape[n] != wanted[n] or scales[n] != 1]
    if attrs.mode == "nearest":
        return _nearest(b, changed)
    if not is_float(b.type.dtype):
        b.refuse("torch does not round weighted sums of integers as clew does")
    axes = len(shape) - 2
    mode = _MODES.get((attrs.mode, axes))
    plain = attrs.coordinates in ("half_pixel", "align_corners") and not attrs.scales
    usual = attrs.mode == "linear" or (attrs.cubic_a == _TORCH_CUBIC and not attrs.exclude_outside)
    inner = all(n >= 2 for n in changed)
    if mode and plain and usual and inner and not attrs.antialias:
        size, aligned = wanted[2:], attrs.coordinates == "align_corners"
        return b.widened(
            lambda x: functional.interpolate(x, size, mode=mode, align_corners=aligned)
        )
    return _weighted(b, changed)


def _along(b: Building, values: np.ndarray, axis: int) -> torch.Tensor:
    """Returns `values[n, size]` resampled along their last axis as an axis of the input is."""
    attrs, count = b.attrs, b.type.concrete[axis]
    scales = (1.0, attrs.scales[axis]) if attrs.scales else ()
    told = attrs.with_(shape=(len(values), count), scales=scales)
    return b.constant(get_op("resize").run_reference([values], told))


def _nearest(b: Building, changed: list[int]) -> Step:
    places = []
    for axis in changed:
        numbers = np.arange(b.shape()[axis], dtype=np.int32)[None]
        places.append((axis, _along(b, numbers, axis)[0]))

    def step(x: torch.Tensor) -> torch.Tensor:
        for axis, index in places:
            x = x.index_select(axis, index)
        return x

    return step


def _weighted(b: Building, changed: list[int]) -> Step:
    shape, wanted = b.shape(), b.type.concrete
    if any(shape[n] * wanted[n] > _MOST_WEIGHTS for n in changed):
        b.refuse("torch does not resample so, and the weights of an axis are many")
    dtype = np.float64 if b.type.dtype == "f64" else np.float32
    weights = []
    if not b.probing:
        weights = [(n, _along(b, np.eye(shape[n], dtype=dtype), n)) for n in changed]

    def step(x: torch.Tensor) -> torch.Tensor:
        for axis, matrix in weights:
            x = torch.matmul(x.movedim(axis, -1), matrix).movedim(-1, axis)
        return x

    return b.widened(step)


_GRID_MODES: Final = {"linear": "bilinear", "nearest": "nearest", "cubic": "bicubic"}


@builds("grid_sample")
def grid_sample(b: Building) -> Step:
    """`grid_sample`. Positions far outside, and NaN, are moved to three elements beside the grid,
    as in the reference: torch defines no element for them.
    """
    attrs, axes = b.attrs, b.types[0].rank - 2
    if attrs.layout != "NCHW":
        b.refuse(f"images are laid out as {attrs.layout}")
    if axes not in (2, 3) or (attrs.mode == "cubic" and axes == 3):
        b.refuse(f"torch does not sample {axes} axes in mode {attrs.mode}")
    if attrs.padding == "reflection":
        b.refuse("torch reflects infinite positions in another way")
    if b.types[0].dtype != b.types[1].dtype or b.types[0].dtype not in ("f32", "f64"):
        b.refuse("torch computes positions in the dtype of the image")
    sizes = np.array(b.shape()[:1:-1], float)  # innermost axis first
    low, high = (_normalized(p, sizes, attrs.align_corners) for p in (-3.0, sizes + 2))
    lowest, highest = (b.constant(v, b.types[0].dtype) for v in (low, high))
    mode, padding, aligned = _GRID_MODES[attrs.mode], attrs.padding, attrs.align_corners

    def step(x: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        held = torch.where(torch.isnan(grid), lowest, grid.clamp(lowest, highest))
        return functional.grid_sample(x, held, mode, padding, aligned)

    if aligned and sizes.min() == 1:
        b.refuse("an axis has a single element, whose corners are aligned")
    return step


def _normalized(place: float | np.ndarray, sizes: np.ndarray, aligned: bool) -> np.ndarray:
    """Returns coordinates in [-1, 1] for positions."""
    if aligned:
        return np.asarray(2 * place / np.maximum(sizes - 1, 1) - 1)
    return np.asarray((2 * place + 1) / sizes - 1)


@builds("affine_grid")
def affine_grid(b: Building) -> Step:
    """`affine_grid`."""
    size, aligned = list(b.attrs.size), b.attrs.align_corners
    if aligned and 1 in size[2:]:
        b.refuse("torch defines another position for a single element with align_corners")
    if b.types[0].dtype not in ("f32", "f64"):
        b.refuse("torch computes positions in the dtype of the matrix")
    return lambda theta: functional.affine_grid(theta, size, aligned)
