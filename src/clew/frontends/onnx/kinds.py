"""Inputs that an operator's schema allows to be other than numeric tensors: strings, complex
numbers, sequences, optionals, maps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from clew.frontends.onnx.layer import Layer
from clew.ir.expr import Expr
from clew.ir.types import MapType, OptionalType, SequenceType, TensorType, Type

_TENSORS: Final = {
    "str": "tensor(string)",
    "c64": "tensor(complex64)",
    "c128": "tensor(complex128)",
}
_OTHERS: Final = {SequenceType: "seq(", OptionalType: "optional(", MapType: "map("}


def check_kinds(layer: Layer) -> None:
    """Checks a layer's inputs against its operator's schema. Numeric tensors are checked by clew's
    operators, which accept more types than old schemas declare.

    Errors: M012 for an input of a kind that the operator never accepts.
    """
    known: Sequence[object] = getattr(layer.schema, "inputs", ())
    for position, given in enumerate(layer.inputs):
        start = _start_of(given)
        if not start or not known:
            continue
        allowed = known[min(position, len(known) - 1)].types  # type: ignore[attr-defined]
        if not any(text.startswith(start) for text in allowed):
            assert given is not None
            raise layer.wrong(f"does not accept {given.type} as input {position}")


def _start_of(given: Expr | None) -> str:
    """Returns the prefix of ONNX's name of an input's type; empty for numeric tensors."""
    type_: Type | None = None if given is None else given.type
    if isinstance(type_, TensorType):
        return _TENSORS.get(type_.dtype, "")
    return next((text for kind, text in _OTHERS.items() if isinstance(type_, kind)), "")
