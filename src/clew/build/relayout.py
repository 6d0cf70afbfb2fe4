"""Values of one type in the layout of another: in blocks, as images, with their channels first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from clew.ir.types import TensorType, TupleType, Type
from clew.ops.movement.layouts import logical_sizes, parse_layout, transform
from clew.passes.convolution.channels_first import to_first, to_last
from clew.support.errors import GraphTypeError

# Orders of axes that tensors without a layout have, where a layout names the same axes in another.
_PLAIN: Final = ("NCHW", "OIHW", "NCW", "OIW", "NCDHW", "OIDHW", "NC", "NK", "OI")
# FlattenClips makes images of clips: their frames are one axis with the batch. LiftSignals makes
# images of one line.
_IMAGES: Final = "NCHW"
_CLIP_RANK: Final = 5
_SIGNAL_RANK: Final = 3
_TURNED: Final = (len(_IMAGES), _CLIP_RANK)
_Turn: TypeAlias = "Callable[[Any, TensorType, TensorType, Any], Any]"


def relayout(value: Any, source: Type, target: Type, like: Any) -> Any:
    """Returns a value of type `source` in the layout of type `target`; `like` has that type."""
    if isinstance(source, TupleType) and isinstance(target, TupleType):
        parts = zip(value, source.fields, target.fields, like, strict=True)
        return tuple(relayout(v, a, b, x) for v, a, b, x in parts)
    if not isinstance(source, TensorType) or not isinstance(target, TensorType):
        return value
    if (turn := _turn(source, target, np.shape(value), np.shape(like))) is not None:
        return turn(value, source, target, like)
    if _is_images(source) and not target.layout:
        shape = target.concrete if target.is_static else np.shape(like)
        if target.rank == _CLIP_RANK:
            clips, channels, frames, *image = shape
            images = _images(value, source, (clips * frames, channels, *image), target.dtype)
            return images.reshape(clips, frames, channels, *image).swapaxes(1, 2)
        if target.rank == _SIGNAL_RANK:
            n, channels, length = shape
            return _images(value, source, (n, channels, 1, length), target.dtype).squeeze(2)
    if source.layout == target.layout:
        return value
    there = target.layout or _plain_order(source.layout)
    here = source.layout or _plain_order(target.layout)
    array = np.asarray(value)
    if target.layout:
        return transform(array, here, there)
    # Blocks round up; the plain shape says where the tensor ends.
    return transform(array, here, there, np.shape(like))


def _is_images(type_: TensorType) -> bool:
    """Whether a tensor may hold images."""
    if not type_.layout:
        return type_.rank == len(_IMAGES)
    return sorted(parse_layout(type_.layout).plain) == sorted(_IMAGES)


def _images(value: Any, source: TensorType, shape: tuple[int, ...], dtype: str) -> Any:
    """Returns images without a layout."""
    like = np.broadcast_to(np.int8(0), shape)
    return relayout(value, source, TensorType(shape, dtype), like)


def _plain_order(layout: str) -> str:
    """Returns the order of the same axes in a tensor that has no layout."""
    axes = parse_layout(layout).plain
    return next((p for p in _PLAIN if sorted(p) == sorted(axes)), axes)


# --- channels ---


def _turn(
    source: TensorType, target: TensorType, given: Sequence[int], like: Sequence[int]
) -> _Turn | None:
    """Returns how a value is converted between images with their channels last and first; None for
    other conversions. Sizes tell the two apart where a *same* link leads from one to the other.
    """
    shape = target.concrete if target.is_static else tuple(like)
    if not target.layout and _is_other(source, given, shape):
        return _back
    return _forth if not source.layout and _is_other(target, like, tuple(given)) else None


def _is_other(first: TensorType, stored: Sequence[int], last: tuple[int, ...]) -> bool:
    """Whether a value of a type, with this shape in memory, is one of a shape whose channels are
    last.
    """
    if len(last) not in _TURNED or _fits(first, stored, last):
        return False
    return _fits(first, stored, tuple(last[axis] for axis in to_first(len(last))))


def _fits(type_: TensorType, stored: Sequence[int], shape: tuple[int, ...]) -> bool:
    """Whether a value of a type, with the shape `stored` in memory, may have these sizes."""
    axes = parse_layout(type_.layout) if type_.layout else None
    are_images = len(stored) == len(_IMAGES) if axes is None else len(axes.plain) == len(_IMAGES)
    if len(shape) == _CLIP_RANK and are_images:
        clips, channels, frames, *image = shape
        shape = (clips * frames, channels, *image)
    if axes is None:
        return tuple(stored) == shape
    if len(axes.plain) != len(shape):
        return False
    try:
        sizes = logical_sizes(axes, stored)
    except GraphTypeError:
        return False
    most = (int(sizes[axis]) for axis in _plain_order(type_.layout))  # type: ignore[arg-type]
    blocks = (axes.factor(axis) for axis in _plain_order(type_.layout))
    return all(m - b < size <= m for m, b, size in zip(most, blocks, shape, strict=True))


def _back(value: Any, source: TensorType, target: TensorType, like: Any) -> Any:
    """Returns images with their channels first as ones with their channels last."""
    rank = target.rank
    order = to_first(rank)
    shape = target.concrete if target.is_static else np.shape(like)
    turned = TensorType(tuple(shape[axis] for axis in order), target.dtype)
    first = relayout(value, source, turned, np.broadcast_to(np.int8(0), turned.concrete))
    return np.asarray(first).transpose(to_last(rank))


def _forth(value: Any, source: TensorType, target: TensorType, like: Any) -> Any:
    """Returns images with their channels last as ones with their channels first."""
    first = np.asarray(value).transpose(to_first(source.rank))
    return relayout(first, TensorType(first.shape, source.dtype), target, like)
