"""Values of narrow floats in f32, and operators on them: nothing is rounded between operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from clew.ir.types import NARROW_FLOATS, TensorType, TupleType, Type, to_numpy

_WIDE: Final = "f32"
_NARROW: Final = frozenset(map(to_numpy, NARROW_FLOATS))


def widened(value: Any) -> Any:
    """Returns a value with narrow floats as f32: an array, or a collection of values."""
    if isinstance(value, (tuple, list)):
        return type(value)(map(widened, value))
    if isinstance(value, dict):
        return {key: widened(item) for key, item in value.items()}
    if getattr(value, "dtype", None) not in _NARROW:
        return value
    array = np.asarray(value)
    if array.size > 1 and not any(array.strides):  # a splat stays one stored element
        return np.broadcast_to(array.reshape(-1)[:1].astype(np.float32)[0], array.shape)
    return array.astype(np.float32)


def narrowed(value: Any, type_: Type) -> Any:
    """Returns a value with the floats of a type."""
    if isinstance(type_, TupleType):
        return tuple(map(narrowed, value, type_.fields))
    if isinstance(type_, TensorType) and type_.dtype in NARROW_FLOATS:
        return np.asarray(value).astype(to_numpy(type_.dtype))
    return value


def widened_type(type_: Type) -> Type:
    """Returns a type with f32 in the place of narrow floats."""
    if isinstance(type_, TupleType):
        return TupleType(tuple(map(widened_type, type_.fields)))
    if isinstance(type_, TensorType) and type_.dtype in NARROW_FLOATS:
        return type_.with_(dtype=_WIDE)
    return type_


def widened_attrs(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns attributes of an operator with f32 in the place of narrow dtypes."""
    names = [n for n in attrs if n.endswith("dtype") and attrs[n] in NARROW_FLOATS]
    return {**attrs, **dict.fromkeys(names, _WIDE)}


def has_narrow(type_: Any) -> bool:
    """Whether a type has narrow floats."""
    return bool(widened_type(type_) != type_)
