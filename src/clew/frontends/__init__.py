"""Readers of model files: one folder per format; each returns a graph `Module` with sources."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

from clew.frontends import onnx, text
from clew.frontends.objects import as_source, is_program, no_model
from clew.ir.deferred import DeferredModule
from clew.ir.module import Module
from clew.support.errors import InputError
from clew.support.exhausted import coded_exhaustion
from clew.support.files import open_plain, reason_of
from clew.support.interrupts import held_interrupts
from clew.support.kinds import KINDS, UNKNOWN, Kind
from clew.support.links import following
from clew.support.loading import LOADING
from clew.support.recognize import kind_by_bytes, kind_in_memory, kind_of
from clew.support.trust import trusting

ModelSource: TypeAlias = "str | os.PathLike[str] | bytes | onnx.ModelProto"


def _exported_program(program: Any, **options: Any) -> Module:
    """Reads a file, or an object of torch."""
    with LOADING, held_interrupts():
        from clew.frontends.torch import load  # noqa: PLC0415 - torch is optional, and slow to import

    return load(program, **options)


def exported_values(
    path: str | os.PathLike[str], inputs: Mapping[str, Any], trust: bool | None = None
) -> Any:
    """Returns the values that torch computes in a run of a program that `torch.export.save` wrote
    (`clew.frontends.torch.reference.ProgramValues`).

    Errors: I415 (torch is not installed), M050, M052, M053, I173.
    """
    with LOADING, held_interrupts():
        from clew.frontends.torch.reference import program_values  # noqa: PLC0415 - torch, as above

    with trusting(trust):
        return program_values(path, inputs)


_READERS: dict[str, Callable[..., Module]] = {
    ".onnx": onnx.load,
    ".pt2": _exported_program,
    ".txt": text.load,
}


@coded_exhaustion
def load(
    model: ModelSource, *, links: str | None = None, trust: bool | None = None, **options: Any
) -> Module:
    """Returns the model in a file, identified by its bytes, or else by its suffix; or that of an
    ONNX message (`onnx.ModelProto`), its bytes, or an exported program of torch.

    `options` are the frontend's: for ONNX `inputs` (shapes by name), `annotate`. A `.txt` file
    holds the text form; its constants are in the `.npz` file next to it. A `.pt2` file is a program
    that `torch.export.save` wrote. Reading a file never runs code in it, except with `trust=True`:
    torch then reads a `.pt2` that it needs pickle for. External data must be plain
    files below the model's folder; `links="snapshot"` also follows the links of a model hub's
    snapshot folder into the `blobs` of the same repository.

    Errors: I002 for files and objects of other kinds, whose message names the kind and a remedy;
    I340 and M045 (`links`), and the frontend's own.
    """
    source = as_source(model)
    with following(links), trusting(trust):
        return _reader(source)(source, **options)


def load_or_defer(
    model: ModelSource, *, links: str | None = None, trust: bool | None = None, **options: Any
) -> Module | DeferredModule:
    """Returns the model in a file as `load` does. If the graph depends on values or shapes of
    inputs that are unknown before a run, returns an object that imports the model when they are
    known.

    Errors: as `load`.
    """
    source = as_source(model)
    reader = _reader(source)
    with following(links), trusting(trust):
        if reader is onnx.load:
            return onnx.load_or_defer(source, **options)
        return reader(source, **options)


# By suffix, the kinds that a file may seem to be by its bytes; the suffix decides.
_OPEN: Final = {
    ".onnx": ("folder",),
    ".pt2": ("folder", "zip"),
    ".txt": ("folder", "json", "python", "mlir"),
}


def _reader(model: Any) -> Callable[..., Module]:
    """Returns the reader of a model: by the bytes of a file, or else by its suffix.

    Errors: I002.
    """
    if isinstance(model, (bytes, bytearray, memoryview)):
        kind = kind_in_memory(bytes(model))
        if kind is not None and kind.suffix != ".onnx":
            raise _not_read("the given bytes are", kind)
        return onnx.load
    if not isinstance(model, (str, os.PathLike)):
        if isinstance(model, onnx.ModelProto):
            return onnx.load
        if is_program(model):
            return _exported_program
        raise no_model(model)
    shown, suffix = repr(os.fspath(model)), Path(model).suffix.lower()
    kind = kind_by_bytes(model)
    if kind is not None and kind.suffix:
        return _READERS[kind.suffix]
    if suffix in _READERS and (kind is None or kind in map(KINDS.get, _OPEN[suffix])):
        return _READERS[suffix]
    try:
        if kind is None:
            open_plain(os.fspath(model)).close()
    except OSError as error:
        hint = f"the suffix of a model is one of {', '.join(_READERS)}"
        raise InputError("I002", f"{shown} cannot be read: {reason_of(error)}", hint=hint) from None
    raise _not_read(f"{shown} is", kind or kind_of(model))


def _not_read(what: str, kind: Kind | None) -> InputError:
    """Returns the error for a file of another kind. Code: I002."""
    if kind is None:
        return InputError("I002", f"{what} {UNKNOWN.what}", hint=UNKNOWN.advice)
    if kind.suffix:  # in memory
        return InputError("I002", f"{what} {kind.what}", hint="give the file's name")
    return InputError("I002", f"{what} {kind.what}, which clew does not read", hint=kind.advice)


__all__ = ["ModelSource", "exported_values", "load", "load_or_defer"]
