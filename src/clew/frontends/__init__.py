"""Readers of model files: one folder per format; each returns a graph `Module` with sources."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from clew.frontends import onnx, text
from clew.ir.deferred import DeferredModule
from clew.ir.module import Module
from clew.support.errors import InputError
from clew.support.exhausted import coded_exhaustion
from clew.support.links import following

ModelSource: TypeAlias = "str | os.PathLike[str] | bytes | onnx.ModelProto"


def _exported_program(path: str | os.PathLike[str], **options: Any) -> Module:
    from clew.frontends.torch import load  # noqa: PLC0415 - torch is optional, and slow to import

    return load(path, **options)


def exported_values(path: str | os.PathLike[str], inputs: Mapping[str, Any]) -> Any:
    """Returns the values that torch computes in a run of a program that `torch.export.save` wrote
    (`clew.frontends.torch.reference.ProgramValues`).

    Errors: I415 (torch is not installed), M050, M052, I173.
    """
    from clew.frontends.torch.reference import program_values  # noqa: PLC0415 - torch, as above

    return program_values(path, inputs)


_READERS: dict[str, Callable[..., Module]] = {
    ".onnx": onnx.load,
    ".pt2": _exported_program,
    ".txt": text.load,
}


@coded_exhaustion
def load(model: ModelSource, *, links: str | None = None, **options: Any) -> Module:
    """Returns the model in a file, read by the frontend for its suffix; or that of an ONNX message
    (`onnx.ModelProto`) or its bytes.

    `options` are the frontend's: for ONNX `inputs` (shapes by name), `annotate`. A `.txt` file
    holds the text form; its constants are in the `.npz` file beside it. A `.pt2` file is a program
    that `torch.export.save` wrote, which torch reads. External data must be plain
    files below the model's folder; `links="snapshot"` also follows the links of a model hub's
    snapshot folder into the `blobs` of the same repository.

    Errors: I002 for a suffix without a frontend, I340 and M045 (`links`), and the frontend's own.
    """
    with following(links):
        return _reader(model)(model, **options)


def load_or_defer(
    model: ModelSource, *, links: str | None = None, **options: Any
) -> Module | DeferredModule:
    """Returns the model in a file as `load` does. If the graph depends on values or shapes of
    inputs that are unknown before a run, returns an object that imports the model when they are
    known.

    Errors: as `load`.
    """
    reader = _reader(model)
    with following(links):
        if reader is onnx.load:
            return onnx.load_or_defer(model, **options)
        return reader(model, **options)


def _reader(model: ModelSource) -> Callable[..., Module]:
    if not isinstance(model, (str, os.PathLike)):
        return onnx.load
    suffix = Path(model).suffix.lower()
    reader = _READERS.get(suffix)
    if reader is None:
        raise InputError(
            "I002",
            f"{str(model)!r} has an unsupported suffix",
            hint=f"one of {', '.join(_READERS)}",
        )
    return reader


__all__ = ["ModelSource", "exported_values", "load", "load_or_defer"]
