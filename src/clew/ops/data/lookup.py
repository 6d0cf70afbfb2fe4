"""Values by key: dictionaries as two arrays."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any, Final

import numpy as np

from clew import te
from clew.ir.types import TensorType, Type
from clew.ops.common import differ, f32, i64, same_dtype, tensor_type
from clew.ops.data.made_once import made_once
from clew.ops.registry import Sample, Traits, register_op
from clew.support.budgets import check_run_bytes
from clew.support.errors import GraphTypeError
from clew.support.text_arrays import TEXT, text_array
from clew.te import Scalar, Tensor

Array = np.ndarray[Any, Any]

_KEYS = np.array([-3, 0, 4, 9, 100])
_FEW_KEYS: Final = 128
_TEXTS, _NONE = np.array(["a", "b", "c"], TEXT), np.array("none", TEXT)


@register_op(
    "lookup",
    samples=(
        Sample(np.array([[0, 9, 5], [-3, -4, 101]]), _KEYS, f32(5), f32()),
        Sample(np.array([4.0, np.nan, 3.9, np.inf], "f4"), _KEYS.astype("f4"), i64(5), i64()),
        Sample(np.array([7, 8], "i2"), np.array([7], "i2"), f32(1), f32()),
        Sample(i64(3, 2), np.arange(0, 64), i64(64), i64(), low=-5, high=70),
        Sample(f32(2), _KEYS, f32(5), f32(), error="T101"),
        Sample(i64(2), _KEYS, f32(5), i64(), error="T101"),
        Sample(i64(2), _KEYS, f32(4), f32(), error="T108"),
        Sample(i64(2), i64(0), f32(0), f32(), error="T108"),
    ),
)
def lookup(x: Tensor, keys: Tensor, values: Tensor, default: Tensor) -> Tensor:
    """The value for each element of `x` as key, or `default` for an unknown key. `keys[n]` are
    ascending without NaN, `values[n]` are their values; `default` has no axes.

    Errors: T101, T108. Source: ONNX ml LabelEncoder-4. It compares with every sqrt(n)-th key, then
    with the keys of one block.
    """
    same_dtype("lookup", x, keys)
    same_dtype("lookup", values, default)
    _need_pairs(keys, values, default)
    count = keys.shape[0]
    assert isinstance(count, int)
    side = math.isqrt(count - 1) + 1
    one, zero = te.as_scalar(1), te.as_scalar(0)

    def upto(wanted: Scalar, place: Scalar) -> Scalar:
        inside = te.minimum(place, count - 1)
        return te.select(te.all_of(place < count, keys[inside] <= wanted), one, zero)

    # Count the blocks whose first key is at most the wanted one, then such keys in the last of
    # them.
    block = te.reduce_axis(-(-count // side), "block")
    blocks = te.compute(x.shape, lambda *i: te.sum(upto(x[i], block * side), block), "lookup_block")
    k = te.reduce_axis(side, "k")
    within = te.compute(
        x.shape,
        lambda *i: te.sum(upto(x[i], te.maximum(blocks[i] - 1, 0) * side + k), k),
        "lookup_key",
    )

    def body(*i: Scalar) -> Scalar:
        place = te.maximum(blocks[i] - 1, 0) * side + te.maximum(within[i] - 1, 0)
        place = te.minimum(te.maximum(place, 0), count - 1)
        return te.select(keys[place].equal(x[i]), values[place], default[()])

    return te.compute(x.shape, body, "lookup", layout=x.layout)


def _need_pairs(keys: Tensor, values: Tensor, default: Tensor) -> None:
    fits = keys.rank == values.rank == 1 and default.rank == 0
    if not fits or not isinstance(keys.shape[0], int) or not keys.shape[0]:
        raise GraphTypeError(
            "T108", f"lookup: keys are {keys.type}, values {values.type}, default {default.type}"
        )
    if differ(keys.shape[0], values.shape[0]):
        raise GraphTypeError("T108", f"lookup: {keys.type} does not match {values.type}")


@lookup.reference
def _lookup_reference(x: Array, keys: Array, values: Array, default: Array) -> Array:
    place = np.searchsorted(keys, x, side="left").clip(max=len(keys) - 1)
    return np.where(keys[place] == x, values[place], default)


@register_op(
    "text.lookup",
    host=True,
    traits=Traits(collects=True),
    samples=(
        Sample(np.array([["b", "a"], ["", "d"]], TEXT), _TEXTS, f32(3), f32()),
        Sample(np.array(["b", "d"], TEXT), _TEXTS, np.array(["x", "y", "z"], TEXT), _NONE),
        Sample(np.array([4, 5, 4]), i64(2), np.array(["x", "y"], TEXT), _NONE),
        Sample(np.array(4.5, "f4"), np.array([4.5], "f4"), np.array(["x"], TEXT), _NONE),
        Sample(np.array(["x"], TEXT), np.zeros(0, TEXT), i64(0), i64()),
        Sample(i64(2), _TEXTS, i64(3), i64(), error="T101"),
        Sample(np.array(["a"], TEXT), _TEXTS, i64(3), f32(), error="T101"),
        Sample(np.array(["a"], TEXT), _TEXTS.reshape(1, 3), i64(3), i64(), error="T108"),
        Sample(np.array(["a"], TEXT), _TEXTS, i64(2), i64(), error="T108"),
    ),
)
def text_lookup(x: Array, keys: Array, values: Array, default: Array) -> Array:
    """The value for each element of `x` as key, or `default` for an unknown key, where keys or
    values are text: `values[n]` are those of `keys[n]`, `default` has no axes. Of equal keys, the
    last one counts. No key equals NaN.

    Errors: T101, T108. Source: ONNX ml LabelEncoder-4.
    """
    given = (x if x.ndim == 1 else x.reshape(-1)).tolist()
    table, other = made_once(_table, keys, values), default.item()
    found: Iterator[Any] = map(table.get, given, repeat(other))
    if values.dtype == TEXT:
        return text_array(list(found), x.shape)
    made = np.fromiter(found, values.dtype, len(given))
    return made if x.ndim == 1 else made.reshape(x.shape)


def _table(keys: Array, values: Array) -> dict[Any, Any]:
    return dict(zip(keys.tolist(), values.tolist(), strict=True))


@text_lookup.types
def _text_lookup_types(x: Type, keys: Type, values: Type, default: Type) -> Type:
    source, known, theirs, other = (
        tensor_type("text.lookup", t) for t in (x, keys, values, default)
    )
    if source.dtype != known.dtype or theirs.dtype != other.dtype:
        raise GraphTypeError(
            "T101", f"text.lookup: {source} has keys of {known}, and {other} follows {theirs}"
        )
    if (known.rank, theirs.rank, other.rank) != (1, 1, 0) or differ(
        known.shape[0], theirs.shape[0]
    ):
        raise GraphTypeError(
            "T108", f"text.lookup: keys are {known}, values {theirs}, default {other}"
        )
    return TensorType(source.shape, theirs.dtype)


@register_op(
    "one_hot_of_keys",
    host=True,
    traits=Traits(collects=True),
    samples=(
        Sample(np.array([[0, 9], [-3, 100]]), _KEYS),
        Sample(np.array(["b", "a"], TEXT), _TEXTS),
        Sample(np.array([["b", "d"], ["", "a"]], TEXT), _TEXTS, unknown=True),
        Sample(np.array([[7, 300]]), np.arange(2 * _FEW_KEYS), unknown=True),
        Sample(f32(3), _KEYS, error="T101"),
        Sample(i64(3), i64(3, 2), error="T102"),
    ),
)
def one_hot_of_keys(x: Array, keys: Array, *, unknown: bool = False) -> Array:
    """1 if an element equals a key, else 0, along a new last axis: `f32[..., n]`. With `unknown`,
    elements that equal no key are allowed.

    Errors: T101, T102; I265 and T163 (at run time) for an element that is not a key. Source: ONNX
    ml OneHotEncoder-1, where `unknown` is `zeros`.
    """
    check_run_bytes("the result of one_hot_of_keys", 4 * x.size * len(keys))
    elements, count = x.reshape(-1).tolist(), len(keys)
    table, rows = made_once(_places, keys)
    places = np.fromiter(map(table.get, elements, repeat(count)), np.int64, len(elements))
    if not unknown and (places == count).any():
        stranger = elements[int(np.argmax(places))]
        raise GraphTypeError(
            "T163",
            f"one_hot_of_keys: {stranger!r} is not one of the {count} categories",
            hint="zeros=1 gives zeros for unknown categories",
        )
    if rows is not None:
        made: Array = rows.take(places, 0)
    else:
        made = np.zeros((len(elements), count), np.float32)
        (known,) = (places < count).nonzero()
        made[known, places[known]] = 1
    return made if x.ndim == 1 else made.reshape(*x.shape, count)


def _places(keys: Array) -> tuple[dict[Any, int], Array | None]:
    """Returns the place of each key. Of few keys, also the row for each place, the last for unknown
    elements: copying a row then takes less time than finding its 1.
    """
    table = {key: place for place, key in enumerate(keys.tolist())}
    count = len(keys)
    return table, np.eye(count + 1, count, dtype=np.float32) if count <= _FEW_KEYS else None


@one_hot_of_keys.types
def _one_hot_of_keys_types(x: Type, keys: Type, *, unknown: bool) -> Type:
    source, known = (tensor_type("one_hot_of_keys", t) for t in (x, keys))
    if source.dtype != known.dtype:
        raise GraphTypeError("T101", f"one_hot_of_keys: {source} has keys of {known}")
    if known.rank != 1:
        raise GraphTypeError("T102", f"one_hot_of_keys: keys are {known}, expected one axis")
    return TensorType((*source.shape, known.shape[0]), "f32")


def ascending(keys: Array, values: Sequence[Any] | Array) -> tuple[Array, Array, Any]:
    """Returns pairs as `lookup` requires, and the value of the key NaN (None if there is none). Of
    equal keys, the last one counts.
    """
    given = np.asarray(values)
    missing = None
    if keys.dtype.kind == "f":
        absent = np.isnan(keys)
        if absent.any():
            missing = given[absent][-1]
            keys, given = keys[~absent], given[~absent]
    order = np.argsort(keys, kind="stable")
    keys, given = keys[order], given[order]
    last = np.ones(len(keys), bool)
    last[:-1] = keys[1:] != keys[:-1]
    return keys[last], given[last], missing
