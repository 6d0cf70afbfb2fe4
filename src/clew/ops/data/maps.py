"""Conversions between maps and tensors: host operators."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import repeat
from typing import Any, Final

import numpy as np

from clew.ir.dims import unknown_dim
from clew.ir.types import MapType, SequenceType, TensorType, Type, to_numpy
from clew.ops.common import differ, f32, f64, i64, tensor_type
from clew.ops.registry import Sample, get_op, register_op
from clew.ops.traits import Traits
from clew.support.errors import GraphTypeError
from clew.support.text_arrays import TEXT, is_text, zeros

Array = np.ndarray[Any, Any]

MAX_LENGTH: Final = 1 << 28
"""The most elements of a vector made from a map."""
_KEYS: Final = ("i64", "str")


@register_op(
    "map.zip",
    host=True,
    traits=Traits(collects=True),
    samples=(
        Sample(f32(3, 2), np.array([5, 7])),
        Sample(f32(2), np.array(["a", "b"], TEXT)),
        Sample(f32(3, 2), i64(3), error="T108"),
        Sample(f32(3, 2), f32(2), error="T105"),
    ),
)
def map_zip(x: Array, keys: Array) -> list[dict[Any, Any]]:
    """Maps the keys `[C]` to the elements of each row of `x[N, C]` (or `x[C]`), NumPy's scalars.

    Errors: T105, T108. Source: ONNX ml ZipMap-1.
    """
    names, values = keys.tolist(), iter(x.reshape(-1))
    rows = zip(*[values] * len(names), strict=True)  # the next elements for each row
    return list(map(dict, map(zip, repeat(names), rows)))


@map_zip.types
def _map_zip_types(x: Type, keys: Type) -> Type:
    source, names = tensor_type("map.zip", x), tensor_type("map.zip", keys)
    if names.dtype not in _KEYS:
        raise GraphTypeError("T105", f"map.zip: keys are {names}, expected i64 or str")
    fits = names.rank == 1 and source.rank in (1, 2) and names.shape[0] != 0
    if not fits or differ(source.shape[-1], names.shape[0]):
        raise GraphTypeError("T108", f"map.zip: {source} has no column for each of {names}")
    return SequenceType(MapType(names.dtype, TensorType((), source.dtype)))


def _map_type(name: str, type_: Type) -> tuple[str, str]:
    """Returns the dtypes of a map's keys and values.

    Errors: T014 for a type that is not a map of scalars.
    """
    if not isinstance(type_, MapType) or not isinstance(type_.value, TensorType):
        raise GraphTypeError("T014", f"{name}: an input is {type_}, expected a map of scalars")
    return type_.key, type_.value.dtype


@register_op(
    "map.to_vector",
    host=True,
    traits=Traits(collects=True),
    samples=(
        Sample(MapType("str", f32()), np.array(["b", "c", "a"], TEXT)),
        Sample(MapType("i64", f64()), np.array([3, 2, 1, 0]), dtype="f64"),
        Sample(MapType("i64", f64()), np.array([1, 3, 0, 2, 1]), dtype="f64"),
        Sample(MapType("i64", f64()), np.array([3, 2, 1, 0]), error="T101"),
        Sample(MapType("i64", f32()), np.array(["a"], TEXT), error="T101"),
        Sample(f32(2), i64(2), error="T014"),
    ),
)
def map_to_vector(x: Mapping[Any, Any], vocabulary: Array, *, dtype: str = "f32") -> Array:
    """The elements of a map at the positions of their keys in a vocabulary `[n]`, else 0 (or ""),
    of the given `dtype`. The element of a repeated key is at each of its positions.

    Errors: T014, T101; T165 (at run time) for a key that is not in the vocabulary. Source: ONNX ml
    DictVectorizer-1.
    """
    names = vocabulary.tolist()
    known = set(names)
    unknown = [key for key in x if key not in known]
    if unknown:
        raise GraphTypeError("T165", f"map.to_vector: {unknown[0]!r} is not in the vocabulary")
    found = zeros((len(names),), to_numpy(dtype))
    for place, key in enumerate(names):
        if key in x:
            found[place] = np.asarray(x[key]).item()
    return found


@map_to_vector.types
def _map_to_vector_types(x: Type, vocabulary: Type, *, dtype: str) -> Type:
    key, value = _map_type("map.to_vector", x)
    names = tensor_type("map.to_vector", vocabulary)
    if (names.dtype, names.rank, value) != (key, 1, dtype):
        raise GraphTypeError("T101", f"map.to_vector: keys {names} as {dtype} do not match {x}")
    return TensorType(names.shape, value)


@register_op(
    "map.cast",
    host=True,
    samples=(
        Sample(MapType("i64", f32()), dtype="i64"),
        Sample(MapType("i64", f32()), dtype="f32", length=5),
        Sample(MapType("i64", f32()), dtype="str"),
        Sample(MapType("str", f32()), error="T105"),
        Sample(MapType("i64", f32()), length=-5, error="T107"),
        Sample(MapType("i64", f32()), dtype="u8", error="T106"),
        Sample(f32(2), error="T014"),
    ),
)
def map_cast(x: Mapping[int, Any], *, dtype: str = "f32", length: int = 0) -> Array:
    """The elements of a map in the order of its keys, as `dtype` (f32, i64 or str). With a
    `length`, each element is at the position given by its key, and others are 0 (or "").

    Errors: T014, T105, T106, T107; T160 for text that is not a number, T165 for keys outside the
    vector (both at run time). Source: ONNX ml CastMap-1.
    """
    keys = sorted(x)
    if length and keys and not 0 <= keys[0] <= keys[-1] < length:
        wrong = keys[0] if keys[0] < 0 else keys[-1]
        raise GraphTypeError("T165", f"map.cast: key {wrong} is out of range for {length} elements")
    values = [np.asarray(x[key]).reshape(()) for key in keys]
    given = np.array(values) if values else np.zeros(0, to_numpy(dtype))
    to_text = dtype == "str"
    if is_text(given) != to_text:
        attrs = {} if to_text else {"dtype": dtype}
        name = "text.from_number" if to_text else "text.to_number"
        given = get_op(name).run_reference([given], attrs)
    given = given.astype(to_numpy(dtype))
    if not length:
        return given
    result = zeros((length,), given.dtype)
    result[keys] = given
    return result


@map_cast.types
def _map_cast_types(x: Type, *, dtype: str, length: int) -> Type:
    key, _ = _map_type("map.cast", x)
    if key != "i64":
        raise GraphTypeError("T105", f"map.cast: input is {x}, expected keys of i64")
    if dtype not in ("f32", "i64", "str"):
        raise GraphTypeError("T106", f"map.cast: dtype={dtype!r}", hint="use f32, i64 or str")
    if not 0 <= length <= MAX_LENGTH:
        raise GraphTypeError("T107", f"map.cast: length={length}")
    return TensorType((length or unknown_dim(),), dtype)
