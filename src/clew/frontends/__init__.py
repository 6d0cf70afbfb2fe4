"""Readers of model files: one folder per format; each returns a graph `Module` with sources."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from clew.frontends.format import FileRun, Format
from clew.frontends.formats import (
    all_formats,
    by_suffix,
    for_bytes,
    format_of,
    recognized,
    recognized_in_memory,
)
from clew.frontends.objects import no_model
from clew.ir.deferred import DeferredModule
from clew.ir.module import Module
from clew.support.errors import InputError
from clew.support.exhausted import coded_exhaustion
from clew.support.files import open_plain, reason_of
from clew.support.kinds import KINDS, UNKNOWN, Kind
from clew.support.links import following
from clew.support.recognize import kind_of_name
from clew.support.trust import trusting

ModelSource: TypeAlias = "str | os.PathLike[str] | bytes | Any"
"""A file's name, its bytes, or an object that a format reads: an `onnx.ModelProto`, an exported
program of torch.
"""


@coded_exhaustion
def load(
    model: ModelSource, *, links: str | None = None, trust: bool | None = None, **options: Any
) -> Module:
    """Returns the model in a file, identified by its bytes, or else by its suffix; or that of an
    ONNX message (`onnx.ModelProto`), its bytes, or an exported program of torch.

    `options` are the frontend's: `inputs` (shapes by name); for ONNX `annotate`, for TFLite
    `signature`. A `.txt` file
    holds the text form; its constants are in the `.npz` file next to it. A `.pt2` file is a program
    that `torch.export.save` wrote. Reading a file never runs code in it, except with `trust=True`:
    torch then reads a `.pt2` that it needs pickle for. External data must be plain
    files below the model's folder; `links="snapshot"` also follows the links of a model hub's
    snapshot folder into the `blobs` of the same repository.

    Errors: I002 for files and objects of other kinds, whose message names the kind and a remedy;
    I340 and M045 (`links`), I007 (`signature`), and the frontend's own.
    """
    reader, source = _found(model)
    _check_signature(reader, options)
    with following(links), trusting(trust):
        return reader.load(source, **options)


def load_or_defer(
    model: ModelSource, *, links: str | None = None, trust: bool | None = None, **options: Any
) -> Module | DeferredModule:
    """Returns the model in a file as `load` does. If the graph depends on values or shapes of
    inputs that are unknown before a run, returns an object that imports the model when they are
    known.

    Errors: as `load`.
    """
    reader, source = _found(model)
    _check_signature(reader, options)
    with following(links), trusting(trust):
        return reader.load_or_defer(source, **options)


@coded_exhaustion
def run_file(
    path: Path,
    inputs: Mapping[str, Any],
    /,
    *,
    links: str | None = None,
    trust: bool | None = None,
    **options: Any,
) -> FileRun:
    """Returns a run of a file in the reference engine of its format. The options are those of
    `load`.

    Errors: I173, and those of the format.
    """
    found = format_of(path)
    assert found is not None, path
    with following(links), trusting(trust):
        return found.run(path, inputs, **options)


def check_source(model: ModelSource) -> None:
    """Checks that a format reads a file or an object. Errors: I002."""
    _found(model)


def _check_signature(reader: Format, options: Mapping[str, Any]) -> None:
    """Errors: I007 for a signature of a file whose format has none."""
    if options.get("signature") is not None and not reader.has_signatures:
        raise InputError("I007", f"{reader.file} has no signatures", hint="leave out the signature")


def _found(model: Any) -> tuple[Format, Any]:
    """Returns the format of a model, by the bytes of a file, or else by its suffix, and the source
    that it reads.

    Errors: I002.
    """
    if isinstance(model, (bytes, bytearray, memoryview)):
        return _of_bytes(bytes(model)), model
    if not isinstance(model, (str, os.PathLike)):
        for each in all_formats():
            source = each.source_of(model)
            if source is not None:
                return each, source
        raise no_model(model)
    shown = repr(os.fspath(model))
    kind = recognized(model)
    if isinstance(kind, Format):
        return kind, model
    named = by_suffix(model)
    if named is not None and (kind is None or kind in map(KINDS.get, named.may_seem)):
        return named, model
    try:
        if kind is None:
            open_plain(os.fspath(model)).close()
    except OSError as error:
        suffixes = ", ".join(f.suffix for f in all_formats() if f.suffix)
        folders = " or ".join(f.what for f in all_formats() if not f.suffix)
        hint = f"give a file ({suffixes}), or a folder with {folders}"
        raise InputError("I002", f"{shown} cannot be read: {reason_of(error)}", hint=hint) from None
    raise _not_read(f"{shown} is", kind or kind_of_name(model))


def _of_bytes(data: bytes) -> Format:
    """Returns the format of bytes: the one that reads them, unless they are of another kind.

    Errors: I002.
    """
    found = recognized_in_memory(data)
    if isinstance(found, Kind):
        raise _not_read("the given bytes are", found)
    reads = found or for_bytes()
    if not reads.reads_bytes:
        raise InputError("I002", f"the given bytes are {reads.what}", hint="give the file's name")
    return reads


def _not_read(what: str, kind: Kind | None) -> InputError:
    """Returns the error for a file of a kind that clew does not read. Code: I002."""
    if kind is None:
        return InputError("I002", f"{what} {UNKNOWN.what}", hint=UNKNOWN.advice)
    return InputError("I002", f"{what} {kind.what}, which clew does not read", hint=kind.advice)


__all__ = ["ModelSource", "load", "load_or_defer", "run_file"]
