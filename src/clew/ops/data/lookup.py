"""Values by key: dictionaries as two arrays."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from itertools import repeat
from typing import Any, TypeAlias

import numpy as np

from clew import te
from clew.ir.types import TensorType, Type
from clew.ops.common import differ, f32, i64, same_dtype, tensor_type
from clew.ops.data.text import need_text
from clew.ops.registry import Sample, register_op
from clew.support.budgets import check_run_bytes
from clew.support.errors import GraphTypeError
from clew.support.text_arrays import TEXT
from clew.te import Scalar, Tensor

Array = np.ndarray[Any, Any]

_KEYS = np.array([-3, 0, 4, 9, 100])


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


_Table: TypeAlias = "dict[Any, int]"
_tables: dict[int, tuple[weakref.ref[Array], _Table]] = {}


def _table_of(keys: Array) -> _Table:
    """Returns the position of each key. That of a constant is made once."""
    known = _tables.get(id(keys))
    if known is not None and known[0]() is keys:
        return known[1]
    table = {key: n for n, key in enumerate(keys.tolist())}
    if not keys.flags.writeable:
        number = id(keys)
        gone = weakref.ref(keys, lambda _: _tables.pop(number, None))
        _tables[number] = gone, table
    return table


@register_op(
    "text.places",
    host=True,
    samples=(
        Sample(np.array([["b", "a"], ["", "d"]], TEXT), np.array(["a", "b", "c"], TEXT)),
        Sample(np.array(["x"], TEXT), np.zeros(0, TEXT)),
        Sample(i64(2), np.array(["a"], TEXT), error="T105"),
        Sample(np.array(["a"], TEXT), np.array([["a"]], TEXT), error="T102"),
    ),
)
def text_places(x: Array, keys: Array) -> Array:
    """The position of each text of `x` in `keys[n]`, i64; `n` for an unknown one. Of equal keys,
    the last one counts.

    Errors: T102, T105. Source: ONNX ml LabelEncoder-4.
    """
    texts = x.reshape(-1).tolist()
    found = map(_table_of(keys).get, texts, repeat(len(keys)))
    return np.fromiter(found, np.int64, len(texts)).reshape(x.shape)


@text_places.types
def _text_places_types(x: Type, keys: Type) -> Type:
    source, known = need_text("text.places", x, keys)
    if known.rank != 1:
        raise GraphTypeError("T102", f"text.places: keys are {known}, expected one axis")
    return TensorType(source.shape, "i64")


@register_op(
    "one_hot_of_known",
    host=True,
    samples=(
        Sample(np.array([[0, 9], [-3, 100]]), _KEYS),
        Sample(np.array(["b", "a"], TEXT), np.array(["a", "b", "c"], TEXT)),
        Sample(f32(3), _KEYS, error="T101"),
        Sample(i64(3), i64(3, 2), error="T102"),
    ),
)
def one_hot_of_known(x: Array, keys: Array) -> Array:
    """1 if an element equals a key, else 0, along a new last axis: `f32[..., n]`.

    Errors: T101, T102; I265 and T163 (at run time) for an element that is not a key. Source: ONNX
    ml OneHotEncoder-1 with `zeros` 0.
    """
    check_run_bytes("the result of one_hot_of_known", 4 * x.size * len(keys))
    elements, count = x.reshape(-1).tolist(), len(keys)
    places = np.fromiter(map(_table_of(keys).get, elements, repeat(count)), np.int64, x.size)
    if (places == count).any():
        stranger = elements[int(np.argmax(places))]
        raise GraphTypeError(
            "T163",
            f"one_hot_of_known: {stranger!r} is not one of the {len(keys)} categories",
            hint="zeros=1 gives zeros for unknown categories",
        )
    found = np.zeros((x.size, count), np.float32)
    found[np.arange(x.size), places] = 1
    return found.reshape(*x.shape, count)


@one_hot_of_known.types
def _one_hot_of_known_types(x: Type, keys: Type) -> Type:
    source, known = (tensor_type("one_hot_of_known", t) for t in (x, keys))
    if source.dtype != known.dtype:
        raise GraphTypeError("T101", f"one_hot_of_known: {source} has keys of {known}")
    if known.rank != 1:
        raise GraphTypeError("T102", f"one_hot_of_known: keys are {known}, expected one axis")
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
