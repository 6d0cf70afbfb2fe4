"""Operators on stored representations: bits, and powers of two as scales."""

from __future__ import annotations

import numpy as np

from clew import te
from clew.ir.types import DTYPES, bits
from clew.ops.common import boolean, f16, f32, f64, i8, i32, i64, u8
from clew.ops.registry import Sample, register_op
from clew.ops.traits import Traits
from clew.support.errors import GraphTypeError
from clew.te import Tensor
from clew.te.exponents import ROUND_MODES


@register_op(
    "bitcast",
    traits=Traits(reads_bits=True),
    samples=(
        Sample(f32(3, 5), dtype="i32"),
        Sample(i32(17), dtype="f32", low=-9, high=9),
        Sample(f64(0, 2), dtype="u64"),
        Sample(f16(), dtype="bf16"),
        Sample(boolean(19), dtype="u8"),
        Sample(i8(33), dtype="bool", low=-1, high=1),
        Sample(u8(7), dtype="f8e5m2", low=0, high=99),
        Sample(f32(3), dtype="i64", error="T140"),
        Sample(f32(3), dtype="float", error="T106"),
    ),
)
def bitcast(x: Tensor, *, dtype: str) -> Tensor:
    """The same bits as another dtype of the same width. A `bool` is 0 or 1; any nonzero bits are
    true. Source: ONNX BitCast-26.
    """
    if dtype not in DTYPES:
        raise GraphTypeError(
            "T106", f"bitcast: unknown dtype {dtype!r}", hint=f"dtypes are {', '.join(DTYPES)}"
        )
    if bits(dtype) != bits(x.dtype) or "str" in (dtype, x.dtype):
        raise GraphTypeError(
            "T140",
            f"bitcast: {x.dtype} has {bits(x.dtype)} bits per element, {dtype} has {bits(dtype)}",
            hint="cast converts values; bits can only be kept between dtypes of equal width",
        )
    if dtype == x.dtype:
        return te.compute(x.shape, lambda *i: x[i], "bitcast", layout=x.layout)
    return te.compute(x.shape, lambda *i: te.Bitcast(dtype, x[i]), "bitcast", layout=x.layout)


@register_op(
    "to_exponent",
    samples=(
        Sample(f32(3, 5), saturate=True, round_mode="up", low=0, high=9),
        Sample(f32(17), low=-1, high=1),
        Sample(f16(7), round_mode="down"),
        Sample(f64(5), saturate=True),
        Sample(i64(9), low=-9, high=1 << 60),
        Sample(np.array([0, 2.0**-127, 1.4e-38, 3e38, np.inf, np.nan], "f4"), round_mode="up"),
        Sample(f32(3), round_mode="even", error="T141"),
    ),
)
def to_exponent(x: Tensor, *, saturate: bool = False, round_mode: str = "nearest") -> Tensor:
    """`|x|` as a power of two, an `f8e8m0fnu`: rounded `up`, `down` or to the `nearest` (ties round
    up). Values outside 2^-127 to 2^127 become NaN, or with `saturate` the nearest power. Source:
    ONNX Cast-24, whose reference takes `|x|` of negative numbers, which the standard leaves
    undefined.
    """
    if round_mode not in ROUND_MODES:
        raise GraphTypeError(
            "T141",
            f"to_exponent: unknown round_mode {round_mode!r}",
            hint=f"there are {', '.join(ROUND_MODES)}",
        )
    return te.compute(
        x.shape,
        lambda *i: te.to_exponent(x[i], saturate=saturate, round_mode=round_mode),
        "to_exponent",
        layout=x.layout,
    )
