"""Tensors that depend on no input: constants of the model."""

from __future__ import annotations

from clew.exporters.onnx.registry import Writing, writes
from clew.ops.registry import get_op


@writes("full", "arange", "mel_weight_matrix", "window")
def constant(w: Writing) -> str:
    """The value of the reference."""
    return w.constant(get_op(w.call.op_name).run_reference([], w.attrs))


@writes("shape_of")
def shape_of(w: Writing) -> str:
    """The sizes, which are known."""
    return w.integers(*w.shape())
