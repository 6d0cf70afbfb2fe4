"""Joining and cutting."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from clew.backends.torch.registry import Building, Step, builds
from clew.backends.torch.rules.convolution import torch_pads
from clew.ir.types import is_float
from clew.ops.movement.slicing import slice_bounds


@builds("concatenate")
def concatenate(b: Building) -> Step:
    """`cat`."""
    axis = b.attrs.axis
    return lambda *xs: torch.cat(xs, axis)


@builds("split")
def split(b: Building) -> Step:
    """`split`."""
    sizes, axis = list(b.attrs.sizes), b.attrs.axis
    return lambda x: torch.split(x, sizes, axis)


@builds("slice")
def slice_(b: Building) -> Step:
    """A view with positive steps; axes with negative ones are reversed after it."""
    attrs, rank = b.attrs, b.types[0].rank
    place: list[Any] = [slice(None)] * rank
    back: list[int] = []
    steps = attrs.strides or (1,) * len(attrs.axes)
    for axis, low, high, step in zip(attrs.axes, attrs.begin, attrs.end, steps, strict=True):
        first, count = slice_bounds(low, high, step, b.shape()[axis])
        assert isinstance(first, int)
        assert isinstance(count, int)
        last = first + (count - 1) * step
        if step < 0:
            back.append(axis % rank)
        place[axis] = slice(min(first, last), max(first, last) + 1, abs(step))
    where = tuple(place)
    if back:
        return lambda x: torch.flip(x[where], back)
    return lambda x: x[where]


@builds("pad")
def pad(b: Building) -> Step:
    """`pad` by a constant, which also crops; for other modes, the elements by index."""
    attrs, rank = b.attrs, b.types[0].rank
    low, high = attrs.pads[:rank], attrs.pads[rank:]
    if attrs.mode != "constant":
        return _repeated(b, low, high)
    around = torch_pads(low, high)
    value = attrs.value if is_float(b.type.dtype) else int(attrs.value)
    if not rank:
        return lambda x: x
    return lambda x: functional.pad(x, around, value=value)


def _repeated(b: Building, low: tuple[int, ...], high: tuple[int, ...]) -> Step:
    """Returns the step of padding with elements of the input: torch pads only the last axes so, and
    at most once around.
    """
    found: list[tuple[int, torch.Tensor]] = []
    for axis, (size, before, after) in enumerate(zip(b.shape(), low, high, strict=True)):
        if not before and not after:
            continue
        places = torch.arange(-before, size + after)
        if b.attrs.mode == "edge":
            places = places.clamp(0, size - 1)
        elif b.attrs.mode == "wrap":
            places = places % size
        else:
            period = max(2 * size - 2, 1)
            phase = places % period
            places = torch.minimum(phase, period - phase) % size
        found.append((axis, places))

    def step(x: torch.Tensor) -> torch.Tensor:
        for axis, places in found:
            x = x.index_select(axis, places)
        return x

    return step


@builds("center_crop_pad")
def center_crop_pad(b: Building) -> Step:
    """`pad`, which also crops."""
    low, high = [], []
    for old, new in zip(b.shape(), b.type.concrete, strict=True):
        less, more = max(old - new, 0), max(new - old, 0)
        low.append(more // 2 - less // 2)
        high.append(more - more // 2 - (less - less // 2))
    around = torch_pads(low, high)
    return lambda x: functional.pad(x, around)
