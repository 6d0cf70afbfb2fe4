"""The ONNX exporter: writes functions of the graph IR as ONNX models.

`to_onnx` returns a model. `write` also returns the calls that each node computes. `can_write` says
why a call has no ONNX form of the same meaning.
"""

from __future__ import annotations

from clew.exporters.onnx.builder import OPSET
from clew.exporters.onnx.registry import written_operators
from clew.exporters.onnx.rules import (  # noqa: F401  registers rules
    activation,
    attention,
    codes,
    convolution,
    create,
    dynamic,
    elementwise,
    images,
    indexing,
    joined,
    logic,
    matmul,
    norm,
    pool,
    quantization,
    reduce,
    same,
    scan,
    signal,
    slicing,
    transform,
    unary,
)
from clew.exporters.onnx.writer import WrittenModel, can_write, to_onnx, write

__all__ = ["OPSET", "WrittenModel", "can_write", "to_onnx", "write", "written_operators"]
