"""Locality-sensitive hashing: bits that similar tensors share."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from clew.ir.types import TensorType, Type
from clew.ops.common import differ, f32, f64, i32, tensor_type
from clew.ops.registry import Sample, register_op
from clew.support.errors import GraphTypeError
from clew.support.fingerprints import fingerprints

Array = np.ndarray[Any, Any]


@register_op(
    "hash_signs",
    host=True,
    samples=(
        Sample(f32(2, 3), i32(4, 2)),
        Sample(f32(3, 1), f32(5), f32(5)),
        Sample(f32(1, 2), np.zeros((3, 70), np.int8), f32(3)),
        Sample(f64(2, 3), i32(4), error="T105"),
        Sample(f32(3), i32(4), error="T108"),
        Sample(f32(3, 1), i32(4), f32(5), error="T108"),
        Sample(f32(3, 1), np.array(["a"], object), error="T105"),
    ),
)
def hash_signs(seeds: Array, items: Array, weights: Array | None = None) -> Array:
    """For each of `seeds`, `f32[k, n]`, whether the weighted sum of the hashes of all items is
    positive, `bool[k, n]`. The first axis of `items` counts the items. `weights`, `f32[items]`, are
    ones if omitted.

    The hash of an item is the fingerprint of the seed's bytes, followed by those of the item, as an
    `i64`. Sums are in f64, from the first item to the last.

    Errors: T105, T108. Source: LiteRT LSH_PROJECTION.
    """
    size = math.prod(items.shape[1:])
    rows = np.ascontiguousarray(items).reshape(len(items), size).view(np.uint8)
    first = np.ascontiguousarray(seeds, "<f4").view(np.uint8).reshape(seeds.size, 1, 4)
    shape = (seeds.size, len(rows))
    keys = np.concatenate(
        [np.broadcast_to(first, (*shape, 4)), np.broadcast_to(rows, (*shape, rows.shape[1]))], -1
    )
    hashes = fingerprints(keys).view(np.int64).astype(np.float64)
    if weights is not None:
        hashes = hashes * weights.astype(np.float64)
    score = np.zeros(seeds.size)
    for column in hashes.T:
        score = score + column
    return np.asarray(score > 0).reshape(seeds.shape)


@hash_signs.types
def _hash_signs_types(seeds: Type, items: Type, weights: Type | None = None) -> Type:
    name = "hash_signs"
    given, hashed = tensor_type(name, seeds), tensor_type(name, items)
    weight = None if weights is None else tensor_type(name, weights)
    if given.dtype != "f32" or hashed.dtype == "str":
        raise GraphTypeError("T105", f"{name}: seeds are {given}, items are {hashed}")
    fits = weight is None or (
        weight.dtype == "f32" and weight.rank == 1 and not differ(weight.shape[0], hashed.shape[0])
    )
    if given.rank != 2 or hashed.rank < 1 or not fits:
        raise GraphTypeError("T108", f"{name}: {given}, {hashed} and {weight} do not fit")
    return TensorType(given.shape, "bool")
