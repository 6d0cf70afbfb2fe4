"""Sparse constants: blocks of elements in a tree of axes, each dense or indexed.

`traversal_order` lists the tensor's axes, then those inside a block, outermost first. `block_map`
gives the axis that each of the latter divides. A dense level has `dense_size` children. A sparse
level has, for each node above it, a range of `array_segments`, in which `array_indices` lists the
children.

Source: the public schema of TFLite (SparsityParameters), after TACO's formats.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clew.frontends.tflite.file.flatbuffer import Damaged

_DENSE: Final = 0


def places(sparsity: Mapping[str, Any], shape: tuple[int, ...], count: int) -> NDArray[np.int64]:
    """Returns the index in the flat tensor of each of the `count` stored elements.

    Raises:
        Damaged: if the description does not fit the shape.
    """
    order = sparsity["traversal_order"].tolist()
    blocks = sparsity["block_map"].tolist()
    levels = sparsity["dim_metadata"]
    rank = len(shape)
    if sorted(order) != list(range(rank + len(blocks))) or len(levels) != len(order):
        raise Damaged("a sparse tensor has levels that are not its axes")
    if any(not 0 <= axis < rank for axis in blocks) or len(set(blocks)) < len(blocks):
        raise Damaged("a sparse tensor has blocks of axes that it has not")
    sizes = list(shape) + [0] * len(blocks)
    for level, axis in zip(levels, order, strict=True):
        if axis >= rank:
            sizes[axis] = level["dense_size"]
    for n, axis in enumerate(blocks):
        size = sizes[rank + n]
        if size < 1 or shape[axis] % size:
            raise Damaged(f"a sparse tensor has blocks of {size} along an axis of {shape[axis]}")
        sizes[axis] = shape[axis] // size
    found = np.zeros((1, len(order)), np.int64)
    # A node leads to elements or to segments, which are in the file.
    most = max(count, *(_segments(level) for level in levels), 1)
    for level, axis in zip(levels, order, strict=True):
        found = _below(found, level, axis, sizes[axis], min(most, math.prod(shape)))
    if len(found) != count:
        raise Damaged(f"a sparse tensor has {count} elements for {len(found)} places")
    for n, axis in enumerate(blocks):
        found[:, axis] = found[:, axis] * sizes[rank + n] + found[:, rank + n]
    flat = np.zeros(count, np.int64)
    for axis, size in enumerate(shape):
        flat = flat * size + found[:, axis]
    return flat


def _segments(level: Mapping[str, Any]) -> int:
    given = level["array_segments"]
    return len(given["values"]) if given and "values" in given else 0


def _below(
    nodes: NDArray[np.int64], level: Mapping[str, Any], axis: int, size: int, most: int
) -> NDArray[np.int64]:
    """Returns the children of nodes along an axis."""
    if level["format"] == _DENSE:
        if level["dense_size"] != size or len(nodes) * size > most:
            raise Damaged(f"a sparse tensor has a level of {level['dense_size']} for {size}")
        found = np.repeat(nodes, size, axis=0)
        found[:, axis] = np.tile(np.arange(size), len(nodes))
        return found
    segments, indices = (_numbers(level[key]) for key in ("array_segments", "array_indices"))
    counts = np.diff(segments)
    if len(segments) != len(nodes) + 1 or (counts < 0).any():
        raise Damaged("a sparse tensor has segments that do not fit its levels")
    if segments[0] != 0 or segments[-1] != len(indices) or len(indices) > most:
        raise Damaged("a sparse tensor has segments that are not its indices")
    if ((indices < 0) | (indices >= size)).any():
        raise Damaged(f"a sparse tensor has an index that is none of {size}")
    found = np.repeat(nodes, counts, axis=0)
    found[:, axis] = indices
    return found


def _numbers(vector: Mapping[str, Any] | None) -> NDArray[np.int64]:
    if not vector or "values" not in vector:
        raise Damaged("a sparse tensor has no segments or indices")
    found: NDArray[np.int64] = vector["values"].astype(np.int64)
    return found
