"""Quantized tensors: integer codes, and the real numbers that they represent."""

from __future__ import annotations

from clew.frontends.building import call, constant, reshaped
from clew.frontends.tflite.file.model import Quantization, TensorInfo
from clew.ir.expr import Expr
from clew.ir.types import to_numpy


def is_code(tensor: TensorInfo | None) -> bool:
    """Whether a tensor holds codes."""
    return tensor is not None and tensor.quantization is not None and tensor.dtype[:1] in "iu"


def numbers(value: Expr | None, tensor: TensorInfo | None) -> Expr | None:
    """Returns the real numbers that codes represent; other values unchanged."""
    if value is None or tensor is None or not is_code(tensor):
        return value
    if tensor.quantization is not None and tensor.quantization.block:
        return _by_blocks(value, tensor, tensor.quantization)
    return call("dequantize", value, *_parameters(tensor, tensor.dtype), dtype="f32")


def _by_blocks(value: Expr, tensor: TensorInfo, given: Quantization) -> Expr:
    """Returns the real numbers of codes with a scale for each block along the last axis."""
    shape = value.tensor.shape
    parameters: list[Expr] = [constant(given.scale[..., None])]
    if given.zero.any():
        parameters.append(constant(given.zero[..., None].astype(to_numpy(tensor.dtype))))
    parts = reshaped(value, (*given.scale.shape, given.block))
    return reshaped(call("dequantize", parts, *parameters, dtype="f32"), shape)


def codes(value: Expr, tensor: TensorInfo) -> Expr:
    """Quantizes real numbers if the file's tensor holds codes; returns other values unchanged."""
    if not is_code(tensor) or value.tensor.dtype not in ("f32", "f16"):
        return value
    return call("quantize", value, *_parameters(tensor, tensor.dtype), dtype=tensor.dtype)


def _parameters(tensor: TensorInfo, dtype: str) -> list[Expr]:
    """Returns the scale of a quantized tensor, and its zero point if that is not 0."""
    given = tensor.quantization
    assert given is not None
    shape = [1] * (len(tensor.shape) - given.axis) if given.by_channel else []
    if given.by_channel:
        shape[0] = given.scale.size
    found: list[Expr] = [constant(given.scale.reshape(shape))]
    if given.zero.any():
        found.append(constant(given.zero.astype(to_numpy(dtype)).reshape(shape)))
    return found
