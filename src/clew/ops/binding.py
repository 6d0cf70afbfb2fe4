"""To which operator of ONNX an operator of a user's is bound."""

from __future__ import annotations

from dataclasses import dataclass

from clew.support.errors import GraphTypeError


@dataclass(frozen=True)
class OnnxBinding:
    """The ONNX operator that an operator of clew's is, from version `since` of its domain on."""

    domain: str
    name: str
    since: int = 1


def binding_of(onnx: str, since: int) -> OnnxBinding | None:
    """Returns the binding that `domain::Name` says, None for none.

    Errors: T018 for what names no operator.
    """
    if not onnx:
        return None
    domain, separator, name = onnx.rpartition("::")
    if not name or (separator and not domain):
        raise GraphTypeError(
            "T018", f"{onnx!r} names no operator of ONNX", hint="it is written domain::Name"
        )
    return OnnxBinding("" if domain == "ai.onnx" else domain, name, since)
