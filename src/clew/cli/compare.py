"""Compares outputs with those of ONNX Runtime, if it is installed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from clew.support.errors import InputError

if TYPE_CHECKING:
    from clew.frontends.format import Peer

_ENGINE: Final = "onnxruntime"


def peer_of(model: Path) -> Peer:
    """Returns a model in ONNX Runtime. It is read here, so a model that cannot be compared is an
    error before clew compiles anything.

    Errors: I062 if the model is no ONNX file, or ONNX Runtime is not installed or rejects it.
    """
    from clew.frontends.formats import format_of  # noqa: PLC0415 - keeps other commands fast

    found = format_of(model)
    peer = found.peer(model) if found is not None and found.engine == _ENGINE else None
    if peer is None:
        raise InputError(
            "I062",
            f"{str(model)!r} is not an ONNX file, so ONNX Runtime cannot run it",
            hint="give the original ONNX file",
        )
    return peer
