"""Bindings of user operators to operators of ONNX and of PyTorch."""

from __future__ import annotations

from clew.support.dataclass import dataclass
from clew.support.errors import GraphTypeError


@dataclass(frozen=True)
class OnnxBinding:
    """An ONNX operator that a clew operator implements, from version `since` of its domain on."""

    domain: str
    name: str
    since: int = 1


def binding_of(onnx: str, since: int) -> OnnxBinding | None:
    """Returns the binding that `domain::Name` names, or None for an empty string.

    Errors: T018 for a malformed name.
    """
    if not onnx:
        return None
    domain, separator, name = onnx.rpartition("::")
    if not name or (separator and not domain):
        raise GraphTypeError(
            "T018", f"{onnx!r} does not name an ONNX operator", hint="write domain::Name"
        )
    return OnnxBinding("" if domain == "ai.onnx" else domain, name, since)


def torch_binding(name: str) -> str:
    """Returns the name of an operator of PyTorch, `library::name`, as torch prints it:
    `library.name`. Empty for an empty name.

    Errors: T018 for a malformed name.
    """
    library, separator, own = name.partition("::")
    if name and not (library and separator and own.isidentifier()):
        raise GraphTypeError(
            "T018", f"{name!r} does not name an operator of PyTorch", hint="write library::name"
        )
    return f"{library}.{own}" if name else ""
