"""Reads an untrusted model file into a message, without the ONNX checker, shape inference or
URLs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import ModelProto

from clew.frontends.file_parts import FilePart
from clew.frontends.limits import over
from clew.frontends.names import display, display_path
from clew.frontends.onnx.budgets import check_outline
from clew.frontends.onnx.file.external import ExternalData
from clew.frontends.onnx.file.slim import Slim, read_slim
from clew.frontends.onnx.file.strings import check_strings
from clew.support.budgets import Budgets
from clew.support.dataclass import dataclass
from clew.support.errors import InputError, ModelError
from clew.support.files import open_plain, reason_of

OLDEST_OPSET: Final = 1
OLDEST_IR: Final = 3
_TOO_DEEP: Final = ("maxdepth", "too deep", "nesting", "recursion")


@dataclass(frozen=True)
class Loaded:
    """A model's message, and the folder of its external data.

    `raw` holds the bytes of initializers (by position) that are not in the message.
    """

    model: ModelProto
    external: ExternalData
    raw: Mapping[int, FilePart]


def read(source: str | os.PathLike[str] | bytes | ModelProto, budgets: Budgets) -> Loaded:
    """Returns the message of a file, of bytes, or as given.

    Errors: M001 for bytes that are not a protobuf message, M002 for a message that is not a model,
    M007 for one nested too deeply, M008 for versions out of range, M009 and M030 for one that
    exceeds a budget, M011 for a file that cannot be read, M045 (see `ExternalData`); I002 for other
    types.
    """
    path: Path | None = None
    raw: Mapping[int, FilePart] = {}
    if isinstance(source, ModelProto):
        model = source
    elif isinstance(source, (bytes, bytearray, memoryview)):
        if len(source) > budgets.file_bytes:
            what = "bytes of the model"
            raise over("M011", what, len(source), "file_bytes", budgets.file_bytes)
        model = _parse(bytes(source), "the given bytes")
    elif not isinstance(source, (str, os.PathLike)):
        raise InputError(
            "I002",
            f"a {type(source).__name__} is not a model",
            hint="pass a file's name, bytes, or an onnx.ModelProto",
        )
    else:
        path = Path(source)
        slim = _read_file(path, budgets)
        model, raw = _parse(slim.data, repr(display_path(path))), slim.raw
    _check(model)
    check_outline(model, budgets)
    check_strings(model, budgets)
    return Loaded(model, ExternalData(path), raw)


def _read_file(path: Path, budgets: Budgets) -> Slim:
    shown = display_path(path)
    try:
        with open_plain(path) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            if size_bytes > budgets.file_bytes:
                what = f"bytes of {shown!r}"
                raise over("M011", what, size_bytes, "file_bytes", budgets.file_bytes)
            return read_slim(file.fileno(), size_bytes, shown)
    except (OSError, ValueError) as error:
        raise ModelError("M011", f"{shown!r} cannot be read: {reason_of(error)}") from None


def _parse(data: bytes, what: str) -> ModelProto:
    try:
        model: ModelProto = ModelProto.FromString(data)
        return model
    except DecodeError as error:
        if any(sign in str(error).lower() for sign in _TOO_DEEP):
            raise ModelError(
                "M007",
                f"{what}: subgraphs are nested too deep",
                hint="the limit is 32 levels of If, Loop and functions",
            ) from None
        raise ModelError(
            "M001",
            f"{what} is not a readable ONNX model ({len(data)} bytes)",
            hint="the file is truncated, damaged, or in another format",
        ) from None
    except RecursionError:
        raise ModelError("M007", f"{what}: subgraphs are nested too deep") from None


def _check(model: ModelProto) -> None:
    if not model.HasField("graph") or not (model.graph.output or model.graph.node):
        raise ModelError(
            "M002", "the message holds no graph", hint="is the file really an ONNX model?"
        )
    if not OLDEST_IR <= model.ir_version <= onnx.IR_VERSION:
        raise ModelError(
            "M008",
            f"the model has IR version {model.ir_version}, "
            f"{OLDEST_IR} to {onnx.IR_VERSION} are read",
            hint="upgrade the onnx package"
            if model.ir_version > onnx.IR_VERSION
            else "export the model with a current tool",
        )


def opsets(imports: object, what: str) -> dict[str, int]:
    """Returns the opset versions of a model or function by domain; `""` is ONNX's own.

    Errors: M008 for ONNX opsets out of range, for invalid versions, or for none at all.
    """
    versions: dict[str, int] = {}
    for entry in imports:  # type: ignore[attr-defined]
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        if not 0 <= entry.version < 1 << 31:
            raise ModelError(
                "M008", f"{what} uses version {entry.version} of {display(domain) or 'ai.onnx'!r}"
            )
        versions[domain] = max(entry.version, versions.get(domain, 0))
    newest = onnx.defs.onnx_opset_version()
    version = versions.get("")
    if version is None and not versions:
        raise ModelError("M008", f"{what} declares no opset")
    if version is not None and not OLDEST_OPSET <= version <= newest:
        raise ModelError(
            "M008",
            f"{what} uses opset {version}; clew reads opsets {OLDEST_OPSET} to {newest}",
            hint="upgrade the onnx package"
            if version > newest
            else "convert it with onnx.version_converter, or export it again",
        )
    return versions
