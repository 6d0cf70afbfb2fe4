"""The ONNX exporter: writes functions of the graph IR as ONNX models, and modules as files.

`to_onnx` returns a model. `write` also returns the calls that each node computes. `can_write` says
why a call has no ONNX form of the same meaning.
"""

from __future__ import annotations

from clew.exporters.onnx.builder import OPSET
from clew.exporters.onnx.file import save
from clew.exporters.onnx.registry import written_operators
from clew.exporters.onnx.rules import (  # noqa: F401  registers rules
    attention,
    codes,
    convolution,
    dynamic,
    elementwise,
    fixed_point,
    images,
    indexing,
    joined,
    matmul,
    norm,
    pool,
    quantization,
    reduce,
    same,
    signal,
    slicing,
    transform,
)
from clew.exporters.onnx.writer import WrittenModel, can_write, to_onnx, write

__all__ = ["OPSET", "WrittenModel", "can_write", "save", "to_onnx", "write", "written_operators"]
