"""Recognizes additions and max pools of bytes, and convolutions with a max pool of their results.

    round((a * s + b * t) * scale), clipped, and the maximum of windows

Scales are powers of two, and the sums have at most 24 bits, so they are exact in f32. Ties need no
exception: the program rounds them to even, as the graph does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from clew.backends.vta.elementwise import MOST_SHIFT, Addition
from clew.backends.vta.recognize import (
    Layer,
    Number,
    Refused,
    bytes_of,
    convolution_of,
    is_call,
    need_no_zero_point,
    parameter,
    quantized_convolution,
    scale_exponent,
    scaled_to_bytes,
)
from clew.ir.expr import Expr
from clew.patterns import Pattern, is_constant, is_op, wildcard

_MOST_APART = 14
_DIMENSIONS = 4


@dataclass(frozen=True)
class AddLayer:
    """An addition of the function's parameters `a` and `b`."""

    addition: Addition
    a: int
    b: int


@dataclass(frozen=True)
class Windows:
    """The windows of a max pool, with the same sizes in both directions."""

    kernel: int
    stride: int
    padding: int


@dataclass(frozen=True)
class PoolLayer:
    """A max pool of the function's parameter `data`."""

    windows: Windows
    data: int


@dataclass(frozen=True, eq=False)
class PooledLayer:
    """A convolution with its epilogue, and a max pool of its result."""

    layer: Layer
    windows: Windows


def quantized_addition() -> Pattern:
    """Returns the pattern of an addition of bytes: dequantized, added, requantized, clipped or
    not.
    """

    def value() -> Pattern:
        plain = is_op("dequantize")(wildcard(), is_constant())
        return is_op("dequantize")(wildcard(), is_constant(), is_constant()) | plain

    total = is_op("add")(value(), value())
    return bytes_of(total)


def max_pool() -> Pattern:
    """Returns the pattern of a max pool."""
    return is_op("nn.max_pool2d")(wildcard())


def pooled_convolution() -> Pattern:
    """Returns the pattern of a max pool of a convolution of bytes to bytes."""
    return is_op("nn.max_pool2d")(quantized_convolution())


def addition_of(body: Expr, number: Number, block_in: int) -> AddLayer:
    """Returns the addition that ends in `body`.

    Raises `Refused` with the reason if VTA does not compute it exactly.
    """
    scaled = scaled_to_bytes(body)
    total = scaled.total
    if not is_call(total, "add") or not all(is_call(a, "dequantize") for a in total.args):
        raise Refused("it is not an addition of two dequantized values")
    a, b = (_operand(each, number, block_in) for each in total.args)
    if total.args[0].tensor.concrete != total.args[1].tensor.concrete:
        raise Refused("its operands have different shapes")
    least = min(a[1], b[1])
    shift = -(least + scaled.exponent)
    if max(a[1], b[1]) - least > _MOST_APART:
        raise Refused(f"the scales of its operands differ by more than 2**{_MOST_APART}")
    if not 0 <= shift <= MOST_SHIFT:
        raise Refused(f"its sums are multiplied by 2**{-shift}")
    return AddLayer(
        Addition(a[1] - least, b[1] - least, shift, scaled.low, scaled.high), a[0], b[0]
    )


def _operand(node: Any, number: Number, block_in: int) -> tuple[int, int]:
    """Returns the number of a dequantized operand, and the exponent of its scale."""
    need_no_zero_point(node.args[2:])
    found = parameter(node.args[0], number)
    _need_images(node, block_in)
    return found, scale_exponent(node.args[1], "the scale of an operand")


def pool_of(body: Expr, number: Number, block_in: int) -> PoolLayer:
    """Returns the max pool `body`.

    Raises `Refused` with the reason if VTA does not compute it.
    """
    windows, value = _windows(body)
    data = parameter(value, number)
    _need_images(body, block_in)
    return PoolLayer(windows, data)


def pooled_convolution_of(body: Expr, number: Number, block_in: int) -> PooledLayer:
    """Returns the convolution and the max pool `body` of its result.

    Raises `Refused` with the reason if VTA does not compute them exactly.
    """
    windows, value = _windows(body)
    return PooledLayer(convolution_of(value, number, block_in), windows)


def _windows(node: Any) -> tuple[Windows, Expr]:
    """Returns the windows of a max pool, and the value that it reads."""
    if not is_call(node, "nn.max_pool2d"):
        raise Refused("it is not a max pool")
    attrs = node.attrs
    kernel, strides = set(attrs.kernel), set(attrs.get("strides", (1, 1)))
    padding = set(attrs.get("padding", (0, 0, 0, 0)))
    if max(map(len, (kernel, strides, padding))) > 1:
        raise Refused("its windows differ in height and width")
    if set(attrs.get("dilation", (1, 1))) != {1} or attrs.get("ceil_mode", False):
        raise Refused("its windows have gaps, or extend beyond the image")
    if max(padding) >= max(kernel):
        raise Refused("it pads by as much as the kernel's size")
    return Windows(max(kernel), max(strides), max(padding)), node.args[0]


def _need_images(node: Expr, block_in: int) -> None:
    shape = node.tensor.concrete
    if len(shape) != _DIMENSIONS or shape[1] < block_in:
        raise Refused(f"it has no images of {block_in} channels or more")
