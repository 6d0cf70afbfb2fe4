"""Values by key: dictionaries as two arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from clew import te
from clew.ir.types import TensorType, Type
from clew.ops.common import differ, f32, i64, same_dtype, tensor_type
from clew.ops.data.made_once import made_once
from clew.ops.data.number_tables import NumberTable, found_slots, slots_of
from clew.ops.registry import Sample, Traits, register_op
from clew.support.budgets import check_run_bytes
from clew.support.errors import GraphTypeError
from clew.support.native_texts import TextTable
from clew.support.text_arrays import TEXT
from clew.te import Scalar, Tensor

Array = np.ndarray[Any, Any]

_KEYS = np.array([-3, 0, 4, 9, 100])
_FEW_KEYS: Final = 128
_DENSE: Final = 4  # numbers in the range of keys that a table has for each of them
_TEXTS, _NONE = np.array(["a", "b", "c"], TEXT), np.array("none", TEXT)


def hashed(keys: Array, values: Array, default: Any) -> tuple[Array, Array, int]:
    """Returns distinct keys without NaN, with the default and their values, as `lookup` takes
    them, and the factor of its hash functions.
    """
    table = NumberTable(keys)
    of_slots = np.append(default, values[table.positions]).astype(values.dtype)
    return table.keys, of_slots, table.factor


def _sample(x: Array, keys: Array, values: Array) -> Sample:
    known, theirs, factor = hashed(keys, values, values.dtype.type(-1))
    return Sample(x, known, theirs, factor=factor)


_VALUES = np.arange(5.0).astype("f4")


@register_op(
    "lookup",
    samples=(
        _sample(np.array([[0, 9, 5], [-3, -4, 101]]), _KEYS, _VALUES),
        _sample(np.array([4.0, np.nan, 3.9, np.inf], "f4"), _KEYS.astype("f4"), np.arange(5)),
        _sample(np.array([-0.0, 1e300, 4.0]), _KEYS.astype("f8"), np.arange(5)),
        _sample(np.array([7, 8], "i2"), np.array([7], "i2"), _VALUES[:1]),
        _sample(np.arange(-5, 70), np.arange(0, 640, 10), np.arange(64)),
        Sample(f32(2), i64(8), f32(9), factor=5, error="T101"),
        Sample(i64(2), i64(8), f32(8), factor=5, error="T108"),
        Sample(i64(2), i64(6), f32(7), factor=5, error="T108"),
        Sample(i64(2), i64(8), f32(9), factor=-5, error="T107"),
    ),
)
def lookup(x: Tensor, keys: Tensor, values: Tensor, *, factor: int) -> Tensor:
    """The value for each element of `x` as key. `keys[2s]` is a hash table with two possible slots
    for each key, one of them in either half, and s a power of two. `values[1 + 2s]` are that of
    unknown keys and those of the slots. The slots are bits of the product of the key's
    folded bits and a factor, modulo 2^64.

    Errors: T101, T107, T108. Source: ONNX ml LabelEncoder-4.
    """
    same_dtype("lookup", x, keys)
    count = keys.shape[0] if keys.rank == values.rank == 1 else 0
    if not isinstance(count, int) or count < 4 or count.bit_count() != 1:
        raise GraphTypeError("T108", f"lookup: keys are {keys.type}, values {values.type}")
    if differ(count + 1, values.shape[0]):
        raise GraphTypeError("T108", f"lookup: {keys.type} does not match {values.type}")
    if not 0 < factor < 1 << 63:
        raise GraphTypeError("T107", f"lookup: factor={factor}")

    def body(*i: Scalar) -> Scalar:
        # Masks instead of selections, which would guard the loads.
        places = [
            (slot + 1) & te.select(keys[slot].equal(x[i]), te.as_scalar(-1), te.as_scalar(0))
            for slot in slots_of(x[i], factor, count // 2)
        ]
        return values[te.minimum(te.maximum(*places), count)]

    return te.compute(x.shape, body, "lookup", layout=x.layout)


@lookup.reference
def _lookup_reference(x: Array, keys: Array, values: Array, *, factor: int) -> Array:
    return np.asarray(values.take(found_slots(x, keys, factor)))


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
        Sample(np.array([["b", "d"]], TEXT), _TEXTS, f32(3, 2), f32(2)),
        Sample(i64(2), _TEXTS, i64(3), i64(), error="T101"),
        Sample(np.array(["a"], TEXT), _TEXTS, i64(3), f32(), error="T101"),
        Sample(np.array(["a"], TEXT), _TEXTS.reshape(1, 3), i64(3), i64(), error="T108"),
        Sample(np.array(["a"], TEXT), _TEXTS, i64(3, 2), i64(), error="T108"),
        Sample(np.array(["a"], TEXT), _TEXTS, i64(2), i64(), error="T108"),
    ),
)
def text_lookup(x: Array, keys: Array, values: Array, default: Array) -> Array:
    """The value for each element of `x` as key, or `default` for an unknown key, where keys or
    values are text: `values[n, ...]` are those of `keys[n]`, `default` has their shape. Of equal
    keys, the last one counts. No key equals NaN.

    Errors: T101, T108; I265. Source: ONNX ml LabelEncoder-4.
    """
    if default.ndim:
        check_run_bytes("the result of text.lookup", x.size * default.nbytes)
    return made_once(_Pairs, keys, values, default)(x)


class _Pairs:
    """Keys and their values, with one more for all other keys."""

    def __init__(self, keys: Array, values: Array, default: Array) -> None:
        self._places = places_among(keys)
        self._values = np.concatenate([values, default.reshape(1, *default.shape)])

    def __call__(self, x: Array) -> Array:
        """Returns the values of the elements of an array."""
        values = self._values
        if x.ndim == 1:
            return values.take(self._places(x), 0)
        found = values.take(self._places(x.reshape(-1)), 0)
        return found.reshape((*x.shape, *values.shape[1:]))


def places_among(keys: Array) -> Callable[[Array], Array]:
    """Returns a function that gives the place of each element of an array among keys, `i64`: the
    last one's of equal keys, and the number of keys for an element that equals none.
    """
    if keys.dtype == TEXT:
        return TextTable(keys)
    if keys.size and keys.dtype.kind in "iu":
        whole = keys.astype(np.int64)
        low, high = int(keys.min()), int(keys.max())
        if high - low < _DENSE * (keys.size + _FEW_KEYS):
            return partial(_dense_places, *_dense(whole, whole[keys.argmin()], high - low + 1))
    known, last, _ = ascending(keys, np.arange(keys.size))
    if not known.size:
        return lambda x: np.full(x.shape, keys.size)
    table, last = NumberTable(known), np.append(last, keys.size)
    return lambda x: last.take(table.places(x))


def _dense(keys: Array, low: Any, span: int) -> tuple[Array, Any]:
    """Returns the place of each number from `low` on, with one more for all others."""
    table = np.full(span + 1, len(keys))
    table[keys - low] = np.arange(len(keys))
    return table, low


def _dense_places(table: Array, low: Any, x: Array) -> Array:
    # The difference of other numbers, too, is exact modulo 2^64.
    beyond = np.subtract(x, low, dtype=np.int64, casting="unsafe").view(np.uint64)
    places: Array = table.take(np.minimum(beyond, np.uint64(len(table) - 1)).view(np.int64))
    return places


@text_lookup.types
def _text_lookup_types(x: Type, keys: Type, values: Type, default: Type) -> Type:
    source, known, theirs, other = (
        tensor_type("text.lookup", t) for t in (x, keys, values, default)
    )
    if source.dtype != known.dtype or theirs.dtype != other.dtype:
        raise GraphTypeError(
            "T101", f"text.lookup: {source} has keys of {known}, and {other} follows {theirs}"
        )
    expected = (*known.shape, *other.shape)
    if known.rank != 1 or theirs.rank != len(expected) or any(map(differ, theirs.shape, expected)):
        raise GraphTypeError(
            "T108", f"text.lookup: keys are {known}, values {theirs}, default {other}"
        )
    return TensorType((*source.shape, *other.shape), theirs.dtype)


@register_op(
    "one_hot_of_keys",
    host=True,
    traits=Traits(collects=True),
    samples=(
        Sample(np.array([[0, 9], [-3, 100]]), _KEYS),
        Sample(np.array(["b", "a"], TEXT), _TEXTS),
        Sample(np.array([["b"], ["a"]], TEXT), _TEXTS),
        Sample(np.array([[7, 200]]), np.arange(2 * _FEW_KEYS)),
        Sample(np.array(["b", "?"], TEXT), _TEXTS, error="T163"),
        Sample(f32(3), _KEYS, error="T101"),
        Sample(i64(3), i64(3, 2), error="T102"),
    ),
)
def one_hot_of_keys(x: Array, keys: Array) -> Array:
    """1 if an element equals a key, else 0, along a new last axis: `f32[..., n]`.

    Errors: T101, T102; I265 and T163 (at run time) for an element that is not a key. Source: ONNX
    ml OneHotEncoder-1 without `zeros`.
    """
    check_run_bytes("the result of one_hot_of_keys", 4 * x.size * len(keys))
    encoder = made_once(_Encoder, keys)
    places = encoder.places(x)
    if (places == len(keys)).any():
        stranger = x.reshape(-1)[[int(np.argmax(places))]].tolist()[0]
        raise GraphTypeError(
            "T163",
            f"one_hot_of_keys: {stranger!r} is not one of the {len(keys)} categories",
            hint="zeros=1 gives zeros for unknown categories",
        )
    return encoder.rows(places)


class _Encoder:
    """Rows for places among keys."""

    def __init__(self, keys: Array) -> None:
        self.places = places_among(keys)
        self._count = len(keys)
        # Of few keys, copying a row takes less time than finding its 1.
        few = self._count <= _FEW_KEYS
        self._rows = np.eye(self._count, dtype=np.float32) if few else None

    def rows(self, places: Array) -> Array:
        """Returns a row for each place."""
        if self._rows is not None:
            return self._rows.take(places, 0)
        made = np.zeros((places.size, self._count), np.float32)
        made[np.arange(places.size), places.reshape(-1)] = 1
        return made.reshape(*places.shape, self._count)


@one_hot_of_keys.types
def _one_hot_of_keys_types(x: Type, keys: Type) -> Type:
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
