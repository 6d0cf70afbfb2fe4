"""Compares outputs with those of the reference engine of a model's format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from clew.support.errors import InputError

if TYPE_CHECKING:
    from clew.frontends.format import Peer


def peer_of(model: Path) -> Peer:
    """Returns a model in the reference engine of its format. It is read here, so a model that
    cannot be compared is an error before clew compiles anything.

    Errors: I062 if its format has no such engine, or it is not installed or rejects the model.
    """
    from clew.frontends.formats import format_of  # noqa: PLC0415 - keeps other commands fast

    found = format_of(model)
    peer = None if found is None else found.peer(model)
    if peer is None:
        raise InputError(
            "I062",
            f"{str(model)!r} is of a format that has no engine to compare with",
            hint="give the original ONNX or TFLite file",
        )
    return peer


def engine_of(model: Path) -> tuple[str, str]:
    """Returns the name of that engine, and that for messages."""
    from clew.frontends.formats import format_of  # noqa: PLC0415 - keeps other commands fast

    found = format_of(model)
    assert found is not None, model
    return found.engine, found.engine_title
