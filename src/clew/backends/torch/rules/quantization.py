"""Quantization: integers that stand for numbers. All steps are those of the reference, so results
are equal to the bit.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from clew.backends.torch.registry import Building, Step, builds
from clew.backends.torch.tensors import DTYPES
from clew.ir.types import bits, integer_limits, is_integer

_Change = Callable[[torch.Tensor], torch.Tensor]


def _spread(b: Building, n: int, dtype: torch.dtype) -> _Change:
    """Returns a function that converts a parameter, and repeats its elements if each stands for a
    block.
    """
    block = b.attrs.get("block", 0)
    if not block or not b.types[n].rank:
        return b.converted(n, dtype)
    axis, size = b.attrs.axis % b.types[0].rank, b.shape()[b.attrs.axis]

    def spread(p: torch.Tensor) -> torch.Tensor:
        return p.to(dtype).repeat_interleave(block, axis).narrow(axis, 0, size)

    return b.argument(n, spread)


def _point(b: Building, n: int, dtype: torch.dtype) -> Callable[..., torch.Tensor | None]:
    """Returns a function for the zero point, which is argument `n` if there is one."""
    return _spread(b, n, dtype) if len(b.types) > n else lambda *_: None


@builds("dequantize")
def dequantize(b: Building) -> Step:
    """The difference of short integers in i32, of others in floats, times the scale."""
    source, dtype = b.types[0].dtype, b.dtype
    wide = torch.float64 if b.types[1].dtype == "f64" else torch.float32
    exact = is_integer(source) and bits(source) <= 16
    apart = torch.int32 if exact else wide
    scale, point = _spread(b, 1, wide), _point(b, 2, apart)

    def step(x: torch.Tensor, s: torch.Tensor, *zero: torch.Tensor) -> torch.Tensor:
        value, less = x.to(apart), point(*zero)
        if less is not None:
            value = value - less
        return (value.to(wide) * scale(s)).to(dtype)

    return step


def _saturated(b: Building, point: Callable[..., torch.Tensor | None], dtype: str) -> Step:
    """Returns a function from floats and zero points to integers: rounded, plus the zero point,
    clamped. NaN becomes the lowest integer.
    """
    lowest, highest = integer_limits(dtype)
    target = DTYPES[dtype]

    def step(value: torch.Tensor, *zero: torch.Tensor) -> torch.Tensor:
        more = point(*zero)
        if more is None:
            whole = torch.round(value.clamp(max=highest)).to(torch.int32)
            return whole.clamp(min=lowest).to(target)
        high = (highest - more).to(value.dtype)
        whole = torch.round(torch.minimum(value, high)).to(torch.int32)
        return (torch.maximum(whole, lowest - more) + more).to(target)

    return step


def _need_integers(b: Building, dtype: str) -> None:
    if not is_integer(dtype):
        b.refuse(f"torch does not compute in {dtype}")


@builds("quantize")
def quantize(b: Building) -> Step:
    """The quotient in the dtype `precision`, saturated."""
    _need_integers(b, b.attrs.dtype)
    precision = DTYPES[b.attrs.precision or b.types[1].dtype]
    wide = torch.float64 if precision == torch.float64 else torch.float32
    if b.types[0].dtype == "f64" and precision in (torch.float16, torch.bfloat16):
        b.refuse("torch rounds f64 to f32 on the way to narrower floats")
    scale, point = _spread(b, 1, precision), _point(b, 2, torch.int32)
    saturated = _saturated(b, point, b.attrs.dtype)
    return lambda x, s, *zero: saturated((x.to(precision) / scale(s)).to(wide), *zero)


@builds("requantize")
def requantize(b: Building) -> Step:
    """The product with the scale, saturated."""
    saturated = _saturated(b, _point(b, 2, torch.int32), b.attrs.dtype)
    return lambda x, s, *zero: saturated(x.to(torch.float32) * s, *zero)


@builds("fake_quantize")
def fake_quantize(b: Building) -> Step:
    """`requantize`, then the difference from the zero point times the step."""
    point = _point(b, 3, torch.int32)
    saturated = _saturated(b, point, b.attrs.dtype)

    def step(
        x: torch.Tensor, s: torch.Tensor, width: torch.Tensor, *zero: torch.Tensor
    ) -> torch.Tensor:
        whole = saturated(x.to(torch.float32) * s, *zero).to(torch.int32)
        less = point(*zero)
        return (whole if less is None else whole - less).to(torch.float32) * width

    return step
