"""Writes modules as ONNX files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from clew.exporters.onnx.writer import to_onnx
from clew.ir.module import Module
from clew.support.writing import write_bytes


def save(module: Module, path: Path, notes: Mapping[str, str]) -> None:
    """Writes the main function as an ONNX file, with notes in its metadata.

    Errors: U070, U071. Raises `OSError`.
    """
    model = to_onnx(module.main)
    for key, note in notes.items():
        model.metadata_props.add(key=key, value=note)
    write_bytes(path, model.SerializeToString())
