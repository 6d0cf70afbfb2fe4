"""Quantized tensors: codes, and the numbers that they stand for."""

from __future__ import annotations

from clew.frontends.building import call, constant
from clew.frontends.tflite.file.model import TensorInfo
from clew.ir.expr import Expr
from clew.ir.types import to_numpy


def is_code(tensor: TensorInfo | None) -> bool:
    """Whether a tensor holds codes."""
    return tensor is not None and tensor.quantization is not None and tensor.dtype[:1] in "iu"


def numbers(value: Expr | None, tensor: TensorInfo | None) -> Expr | None:
    """Returns what codes stand for; other values as they are."""
    if value is None or tensor is None or not is_code(tensor):
        return value
    return call("dequantize", value, *_parameters(tensor, tensor.dtype), dtype="f32")


def codes(value: Expr, tensor: TensorInfo) -> Expr:
    """Returns the codes of numbers, if the file's tensor has codes."""
    if not is_code(tensor) or value.tensor.dtype not in ("f32", "f16"):
        return value
    return call("quantize", value, *_parameters(tensor, tensor.dtype), dtype=tensor.dtype)


def _parameters(tensor: TensorInfo, dtype: str) -> list[Expr]:
    """Returns the scale of codes, and their zero point if it is not 0."""
    given = tensor.quantization
    assert given is not None
    shape = [1] * (len(tensor.shape) - given.axis) if given.by_channel else []
    if given.by_channel:
        shape[0] = given.scale.size
    found: list[Expr] = [constant(given.scale.reshape(shape))]
    if given.zero.any():
        found.append(constant(given.zero.astype(to_numpy(dtype)).reshape(shape)))
    return found
