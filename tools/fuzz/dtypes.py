"""Element types of ONNX, and arrays of them."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from onnx import TensorProto, helper

Array = np.ndarray[Any, Any]

FLOATS: Final = (
    TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16,
)  # fmt: skip
SIGNED: Final = (TensorProto.INT64, TensorProto.INT32, TensorProto.INT8, TensorProto.INT16)
UNSIGNED: Final = (TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64)
INTEGERS: Final = (*SIGNED, *UNSIGNED)
BOOL: Final = TensorProto.BOOL
NUMBERS: Final = (*FLOATS, *INTEGERS)
EVERYDAY: Final = (*NUMBERS, BOOL)
SMALL: Final = (
    TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2, TensorProto.FLOAT8E4M3FNUZ,
    TensorProto.FLOAT8E5M2FNUZ, TensorProto.INT4, TensorProto.UINT4,
)  # fmt: skip
"""Types that are kept and converted, and hardly computed with."""

_STRINGS: Final = {
    f"tensor({TensorProto.DataType.Name(n).lower()})": n for n in TensorProto.DataType.values() if n
}

# How likely an element type is, where an operator takes it.
WEIGHTS: Final[dict[int, int]] = {
    TensorProto.FLOAT: 12,
    TensorProto.DOUBLE: 2,
    TensorProto.FLOAT16: 3,
    TensorProto.BFLOAT16: 2,
    TensorProto.INT64: 3,
    TensorProto.INT32: 3,
    BOOL: 2,
}


def elem_type(text: str) -> int | None:
    """Returns the element type that a schema's `tensor(float)` names, None for other types."""
    return _STRINGS.get(text)


def name_of(dtype: int) -> str:
    """Returns ONNX's name, such as FLOAT."""
    name: str = TensorProto.DataType.Name(dtype)
    return name


def numpy_of(dtype: int) -> np.dtype[Any]:
    """Returns numpy's dtype."""
    return np.dtype(helper.tensor_dtype_to_np_dtype(dtype))


def filled(dtype: int, shape: tuple[int, ...], style: str, seed: int) -> Array:
    """Returns an array of values drawn from a seed.

    `usual` are small numbers of both signs, `wild` has infinities, NaNs and other extremes among
    them, `positive` starts above zero, `unit` lies within -1 and 1, `plain` counts up. `a:b` are
    whole numbers from `a` below `b`.
    """
    rng = np.random.default_rng(seed)
    numpy = numpy_of(dtype)
    if dtype == TensorProto.STRING:
        words = np.array(["a", "bc", "", "Ünï", "d e", "10"], object)
        return np.asarray(words[rng.integers(0, len(words), shape)], object)
    if ":" in style:
        low, high = map(int, style.split(":"))
        return np.asarray(rng.integers(low, max(high, low + 1), shape)).astype(numpy)
    if dtype == BOOL:
        return np.asarray(rng.integers(0, 2, shape)).astype(bool)
    if style == "plain":
        size = int(np.prod(shape))
        return (np.arange(size).reshape(shape) % 7).astype(numpy)
    if dtype in FLOATS or name_of(dtype).startswith("FLOAT"):
        return _floats(rng, dtype, shape, style).astype(numpy)
    low = 1 if style == "positive" else 0 if name_of(dtype).startswith("UINT") else -6
    values = np.asarray(rng.integers(low, 7, shape)).astype(numpy)
    if style == "wild" and dtype in INTEGERS:
        ends = np.array([np.iinfo(numpy).min, np.iinfo(numpy).max, 0, 1], numpy)
        values = np.where(rng.random(shape) < 0.2, rng.choice(ends, shape), values)
    return values


def _floats(rng: np.random.Generator, dtype: int, shape: tuple[int, ...], style: str) -> Array:
    values = np.asarray(rng.standard_normal(shape))
    if style == "positive":
        return np.abs(values) + 0.1
    if style == "unit":
        return np.tanh(values)
    if style == "wild" and dtype in FLOATS:
        tiny = 1e-5 if dtype == TensorProto.FLOAT16 else 1e-30
        huge = 1e3 if dtype == TensorProto.FLOAT16 else 1e15
        odd = [np.nan, np.inf, -np.inf, -0.0, 0.0, tiny, huge, -huge, 0.5, 2.5, -1.5]
        return np.where(rng.random(shape) < 0.15, rng.choice(odd, shape), values)
    return values
