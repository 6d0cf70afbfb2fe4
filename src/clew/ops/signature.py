"""Signatures of operators: their declared inputs and attributes, and conversion of values."""

from __future__ import annotations

import inspect
import types as pytypes
import typing
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from clew.ir.dims import SymDim
from clew.ir.expr import ArgRef
from clew.ir.types import TensorType, TupleType, Type, from_numpy, is_float, to_numpy
from clew.support.dataclass import dataclass
from clew.support.errors import GraphTypeError
from clew.support.text_arrays import as_tensor

_REQUIRED: Final = inspect.Parameter.empty
_MISMATCH: Final = object()
_INTS: Final = tuple[int, ...]


@dataclass(frozen=True)
class Attribute:
    """One attribute: its annotation and default (`required` if it has none)."""

    name: str
    annotation: Any
    default: Any

    @property
    def required(self) -> bool:
        """Whether a call must give the attribute."""
        return self.default is _REQUIRED


@dataclass(frozen=True)
class Signature:
    """Names of the inputs and attributes. `variadic` names the parameter that takes any number."""

    inputs: tuple[str, ...]
    optional: int
    variadic: str
    attributes: Mapping[str, Attribute]


def signature_of(function: Callable[..., Any]) -> Signature:
    """Returns the signature of a declaration: inputs by position, attributes by keyword."""
    inputs, variadic, attributes, optional = [], "", {}, 0
    try:
        hints = typing.get_type_hints(function)
    except Exception:  # a notebook's annotations may refer to deleted names
        hints = {}
    for p in inspect.signature(function).parameters.values():
        if p.kind is p.KEYWORD_ONLY:
            attributes[p.name] = Attribute(p.name, hints.get(p.name, Any), p.default)
        elif p.kind is p.VAR_POSITIONAL:
            variadic = p.name
        else:
            inputs.append(p.name)
            optional += p.default is not _REQUIRED
    return Signature(tuple(inputs), optional, variadic, attributes)


def convert(op: str, attribute: Attribute, value: Any) -> Any:
    """Returns an attribute's value converted to its declared type.

    Errors: T013 for a value of another type.
    """
    wanted = attribute.annotation
    given = type(value)
    if given is wanted or given is ArgRef:
        return value
    if given is tuple and wanted == _INTS and all(type(v) is int for v in value):
        return value
    converted = _coerce(wanted, value)
    if converted is _MISMATCH:
        text = getattr(wanted, "__name__", None) or str(wanted)
        raise GraphTypeError("T013", f"{op}: attribute {attribute.name}={value!r} is not {text}")
    return converted


def _coerce(wanted: Any, value: Any) -> Any:
    """Returns `value` as the annotated type, or `_MISMATCH`. Ints may be symbolic sizes."""
    origin = typing.get_origin(wanted)
    if wanted is Any:
        return value
    if origin in (typing.Union, pytypes.UnionType):
        options = [_coerce(option, value) for option in typing.get_args(wanted)]
        return next((o for o in options if o is not _MISMATCH), _MISMATCH)
    if wanted is type(None):
        return None if value is None else _MISMATCH
    if origin is tuple:
        if not isinstance(value, (tuple, list, np.ndarray)):
            return _MISMATCH
        items = [_coerce(typing.get_args(wanted)[0], v) for v in value]
        return _MISMATCH if any(i is _MISMATCH for i in items) else tuple(items)
    if wanted is bool:
        return bool(value) if isinstance(value, (bool, int, np.bool_)) else _MISMATCH
    if wanted is int:
        if isinstance(value, SymDim):
            return value
        return int(value) if isinstance(value, (int, np.integer)) else _MISMATCH
    if wanted is float:
        return float(value) if isinstance(value, (int, float, np.number)) else _MISMATCH
    return value if isinstance(value, wanted) else _MISMATCH


def fits(array: np.ndarray[Any, Any], type_: Type) -> bool:
    """Whether an array is of a type, except for the width of its numbers."""
    if not isinstance(type_, TensorType) or array.ndim != type_.rank:
        return False
    kind, wanted = array.dtype.kind, to_numpy(type_.dtype)
    narrow = kind not in "fiub"  # ml_dtypes' floats have no kind
    alike = array.dtype == wanted or (not narrow and (kind == "f") == is_float(type_.dtype))
    sizes = zip(array.shape, type_.shape, strict=True)
    return alike and all(size == d for size, d in sizes if isinstance(d, int))


def typed_as(type_: Type, result: Any) -> Any:
    """Returns a reference's results in the dtypes of a type, since NumPy sometimes widens them;
    None if the number, shapes or kinds differ.
    """
    fields = type_.fields if isinstance(type_, TupleType) else (type_,)
    given = tuple(result) if isinstance(type_, TupleType) else (result,)
    arrays = [np.asarray(as_tensor(a)) for a in given]
    if len(arrays) != len(fields) or not all(map(fits, arrays, fields)):
        return None
    typed = [
        a if from_numpy(a.dtype) == t.dtype else a.astype(to_numpy(t.dtype))  # type: ignore[union-attr]
        for a, t in zip(arrays, fields, strict=True)
    ]
    return tuple(typed) if isinstance(type_, TupleType) else typed[0]


def is_declaration(function: Callable[..., Any]) -> bool:
    """Whether a function's body is only a docstring or `...`."""
    code = getattr(function, "__code__", None)
    bodies = (_empty.__code__.co_code, _documented.__code__.co_code)
    return code is not None and code.co_code in bodies and not code.co_names


def _empty() -> None: ...


def _documented() -> None:
    """A docstring moves the position of `None` among the constants, and so changes the code."""
