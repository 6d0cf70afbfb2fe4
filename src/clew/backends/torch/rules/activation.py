"""Elementwise activation functions."""

from __future__ import annotations

from typing import Final

import torch
from torch.nn import functional

from clew.backends.torch.registry import Building, Step, builds
from clew.ir.types import bits, is_integer

_SIXTH: Final = 0.1666666716337204
"""1/6 as f32, as in `nn.hard_swish`."""


@builds("nn.prelu")
def prelu(b: Building) -> Step:
    """A selection: `prelu` of torch has a slope for each channel."""
    return lambda x, slope: torch.where(x < 0, x * slope, x)


@builds("nn.selu")
def selu(b: Building) -> Step:
    """`elu` with a scale: `selu` of torch has fixed constants."""
    alpha, gamma = b.attrs.alpha, b.attrs.gamma
    return lambda x: torch.ops.aten.elu(x, alpha, gamma, 1.0)


@builds("nn.celu")
def celu(b: Building) -> Step:
    """`elu` with a scale of the input."""
    alpha = b.attrs.alpha
    if not alpha:
        b.refuse("alpha is 0")
    return lambda x: torch.ops.aten.elu(x, alpha, 1.0, 1 / alpha)


@builds("nn.swish")
def swish(b: Building) -> Step:
    """`x * sigmoid(alpha * x)`."""
    alpha = b.attrs.alpha
    return lambda x: x * torch.sigmoid(x * alpha)


@builds("nn.softplus")
def softplus(b: Building) -> Step:
    """`softplus`, which is `x` from 20 on; for f64, the formula."""
    if b.type.dtype != "f64":
        return functional.softplus
    return lambda x: torch.clamp(x, 0) + torch.log1p(torch.exp(-torch.abs(x)))


@builds("nn.hard_sigmoid")
def hard_sigmoid(b: Building) -> Step:
    """The formula: `hardsigmoid` of torch has fixed constants."""
    alpha, beta = b.attrs.alpha, b.attrs.beta
    return lambda x: torch.clamp(x * alpha + beta, 0, 1)


@builds("nn.hard_swish")
def hard_swish(b: Building) -> Step:
    """`hardswish`; for f64, the formula with clew's constant."""
    if b.type.dtype != "f64":
        return functional.hardswish
    return lambda x: x * torch.clamp(x * _SIXTH + 0.5, 0, 1)


@builds("nn.thresholded_relu")
def thresholded_relu(b: Building) -> Step:
    """A selection: `threshold` of torch keeps NaN."""
    alpha = b.attrs.alpha
    return lambda x: torch.where(x > alpha, x, torch.zeros_like(x))


@builds("nn.shrink")
def shrink(b: Building) -> Step:
    """Selections, of integers as real numbers."""
    dtype, lambd, bias = b.type.dtype, b.attrs.lambd, b.attrs.bias
    wide = b.dtype
    if is_integer(dtype):
        wide = torch.float64 if bits(dtype) > 16 else torch.float32
        if dtype == "i64":
            b.refuse("f64 does not hold all i64")

    def step(x: torch.Tensor) -> torch.Tensor:
        x = x.to(wide)
        rest = torch.where(x > lambd, x - bias, torch.zeros_like(x))
        return torch.where(x < -lambd, x + bias, rest)

    if not is_integer(dtype):
        return step
    narrow = b.dtype
    return lambda x: step(x).to(torch.int32).to(narrow)
