"""Elementwise functions of one input."""

from __future__ import annotations

import math

import torch

from clew.backends.torch.registry import Building, Step, builds
from clew.backends.torch.tensors import DTYPES
from clew.ir.types import NARROW_FLOATS, bits, integer_limits, is_float, is_integer


@builds("isinf")
def isinf(b: Building) -> Step:
    """`isinf`, `isposinf` or `isneginf`."""
    signs = (b.attrs.positive, b.attrs.negative)
    if not any(signs):
        return lambda x: torch.zeros_like(x, dtype=torch.bool)
    found: Step = torch.isinf if all(signs) else torch.isposinf if signs[0] else torch.isneginf
    return found


@builds("sign")
def sign(b: Building) -> Step:
    """`sign`, except for NaN, which stays NaN."""
    if not is_float(b.type.dtype):
        return lambda x: torch.sign(x)
    return lambda x: torch.where(torch.isnan(x), x, torch.sign(x))


@builds("cast")
def cast(b: Building) -> Step:
    """`to`. Floats become short integers by way of `i32`, as on x86."""
    source, target = b.types[0].dtype, b.type.dtype
    dtype = DTYPES[target]
    if source == "f64" and target in NARROW_FLOATS:
        b.refuse(f"torch rounds f64 to f32 on the way to {target}")
    if is_float(source) and is_integer(target) and bits(target) < bits("i32"):
        return lambda x: x.to(torch.int32).to(dtype)
    return lambda x: x.to(dtype)


@builds("bitcast")
def bitcast(b: Building) -> Step:
    """`view`."""
    if "bool" in (b.types[0].dtype, b.type.dtype) and b.types[0].dtype != b.type.dtype:
        b.refuse("any nonzero bits are true")
    dtype = b.dtype
    return lambda x: x.view(dtype)


@builds("clip")
def clip(b: Building) -> Step:
    """`clamp`; limits of integers are truncated."""
    dtype, limits = b.type.dtype, []
    for value in (b.attrs.min, b.attrs.max):
        if value is not None and not is_float(dtype):
            low, high = integer_limits(dtype)
            if not math.isfinite(value) or not low <= int(value) <= high:
                b.refuse(f"a limit of {value} is out of the range of {dtype}")
            value = int(value)
        limits.append(value)
    low, high = limits
    if low is None and high is None:
        return lambda x: x
    return lambda x: torch.clamp(x, low, high)
