"""Layout strings, and the NumPy transform between layouts.

A layout lists axes as capital letters in memory order. `<factor><lower-case letter>` after them are
blocks: `NCHW16c` is `[N, C/16, H, W, 16]`, `OIHW16i64o` is `[O/64, I/16, H, W, 16, 64]`. The number
of blocks is rounded up, and the rest of the last block is zero.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from clew.ir.dims import Dim
from clew.support.arrays import aligned_copy
from clew.support.caches import bounded_cache
from clew.support.dataclass import dataclass
from clew.support.errors import GraphTypeError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Layout:
    """A parsed layout: `axes` in memory order; a block axis is its letter in lower case.

    `factors` are the extents of the block axes, by lower-case letter.
    """

    text: str
    axes: tuple[str, ...]
    factors: tuple[tuple[str, int], ...]

    @property
    def plain(self) -> str:
        """The logical axes in order."""
        return "".join(a for a in self.axes if a.isupper())

    def factor(self, axis: str) -> int:
        """The block factor of a logical axis; 1 if it is not blocked."""
        return dict(self.factors).get(axis.lower(), 1)


@bounded_cache(1 << 20)
def parse_layout(text: str) -> Layout:
    """Parses a layout.

    Errors: T109 for an invalid layout.
    """
    match = re.fullmatch(r"([A-Z]+)((?:\d+[a-z])*)", text)
    axes = list(match[1]) if match else []
    blocks = re.findall(r"(\d+)([a-z])", match[2]) if match else []
    letters = axes + [letter for _, letter in blocks]
    known = all(letter.upper() in axes and int(n) > 0 for n, letter in blocks)
    if not match or len(set(letters)) != len(letters) or not known:
        raise GraphTypeError(
            "T109", f"{text!r} is not a layout", hint="a layout reads like NCHW or NCHW16c"
        )
    return Layout(text, tuple(letters), tuple((letter, int(n)) for n, letter in blocks))


def stored_shape(layout: Layout, sizes: dict[str, Dim]) -> tuple[Dim, ...]:
    """Returns the shape in memory of a tensor with these logical sizes."""
    factors = dict(layout.factors)
    shape: list[Dim] = []
    for axis in layout.axes:
        if axis.islower():
            shape.append(factors[axis])
        else:
            block = layout.factor(axis)
            shape.append(-(-sizes[axis] // block))
    return tuple(shape)


def logical_sizes(layout: Layout, shape: Sequence[Dim]) -> dict[str, Dim]:
    """Returns the logical sizes of a tensor with a shape in memory; those of blocked axes include
    padding.

    Errors: T109 if the shape does not fit the layout.
    """
    fits = len(shape) == len(layout.axes) and all(
        axis.isupper() or size == layout.factor(axis)
        for axis, size in zip(layout.axes, shape, strict=True)
    )
    if not fits:
        listed = ", ".join(map(str, shape))
        raise GraphTypeError("T109", f"shape [{listed}] does not fit layout {layout.text}")
    return {
        axis: size * layout.factor(axis)
        for axis, size in zip(layout.axes, shape, strict=True)
        if axis.isupper()
    }


def result_sizes(
    source: Layout, target: Layout, shape: Sequence[Dim], logical: Sequence[Dim]
) -> dict[str, Dim]:
    """Returns the logical sizes of a transform's result.

    `logical` lists them in the order of the target's axes; if empty, they are the source's.

    Errors: T109 if the layouts have different axes or the sizes do not fit.
    """
    if set(source.plain) != set(target.plain):
        raise GraphTypeError("T109", f"layouts {source.text} and {target.text} differ in axes")
    stored = logical_sizes(source, shape)
    if not logical:
        return stored
    if len(logical) != len(target.plain):
        raise GraphTypeError(
            "T109", f"layout_transform: {len(logical)} sizes for the axes {target.plain}"
        )
    sizes = dict(zip(target.plain, logical, strict=True))
    for axis, size in sizes.items():
        most, block = stored[axis], source.factor(axis)
        if isinstance(size, int) and isinstance(most, int) and not most - block < size <= most:
            raise GraphTypeError(
                "T109",
                f"layout_transform: axis {axis} has {most} elements in {source.text}, "
                f"so it cannot be {size}",
            )
    return sizes


def transform(array: Array, source: str, target: str, logical: Sequence[int] = ()) -> Array:
    """Returns the array in another layout, with at most one copy besides the padding of odd sizes.

    `logical` lists the logical sizes in the order of the target's axes; it crops the padding of
    blocks.

    Errors: T109 as in `result_sizes`.
    """
    src, dst = parse_layout(source), parse_layout(target)
    sizes = result_sizes(src, dst, array.shape, logical)
    plain = _unblocked(array, src, sizes)
    order = [src.plain.index(axis) for axis in dst.plain]
    plain = plain.transpose(order)
    return aligned_copy(_blocked(plain, dst))


def _unblocked(array: Array, layout: Layout, sizes: dict[str, Dim]) -> Array:
    """Returns the array with each logical axis whole, cropped to `sizes`."""
    if layout.factors:
        order, shape = [], []
        for axis in layout.plain:
            order.append(layout.axes.index(axis))
            if axis.lower() in layout.axes:
                order.append(layout.axes.index(axis.lower()))
            shape.append(array.shape[layout.axes.index(axis)] * layout.factor(axis))
        array = array.transpose(order).reshape(shape)
    wanted = [cast(int, sizes[axis]) for axis in layout.plain]
    if list(array.shape) != wanted:
        array = array[tuple(slice(n) for n in wanted)]
    return array


def _blocked(array: Array, layout: Layout) -> Array:
    """Returns a plain array (axes in the layout's order) with its blocked axes split."""
    if not layout.factors:
        return array
    missing = [-n % layout.factor(axis) for axis, n in zip(layout.plain, array.shape, strict=True)]
    if any(missing):
        array = np.pad(array, [(0, n) for n in missing])
    shape: list[int] = []
    place: dict[str, int] = {}
    for axis, size in zip(layout.plain, array.shape, strict=True):
        block = layout.factor(axis)
        place[axis] = len(shape)
        if axis.lower() in layout.axes:
            shape.append(size // block)
            place[axis.lower()] = len(shape)
            shape.append(block)
        else:
            shape.append(size)
    return array.reshape(shape).transpose([place[axis] for axis in layout.axes])
