"""Weights for signal processing: mel filters and windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from clew.ir.dims import unknown_dim
from clew.ir.expr import ArgRef, Attrs, Constant, Expr
from clew.ir.types import DTYPES, TensorType, Type, memory_bytes, to_numpy
from clew.ops.math.signal import bins_of
from clew.ops.registry import Sample, register_op
from clew.support.budgets import check_run_bytes
from clew.support.errors import GraphTypeError
from clew.te import Tensor

Array = np.ndarray[Any, Any]

# Larger matrices would take gigabytes.
_MOST_WEIGHTS: Final = 1 << 31
# Windows are computed in parts of this many elements.
_PART: Final = 1 << 20


@register_op(
    "mel_weight_matrix",
    samples=(
        Sample(bins=8, length=16, rate=8192, lower=0.0, upper=4096.0, dtype="f32"),
        Sample(bins=3, length=33, rate=16000, lower=20.0, upper=8000.0, dtype="f64"),
        Sample(bins=2**40, length=16, rate=8192, lower=0.0, upper=9.0, dtype="f32", error="T107"),
        Sample(bins=0, length=16, rate=8192, lower=0.0, upper=4096.0, dtype="f32", error="T107"),
        Sample(bins=3, length=16, rate=0, lower=0.0, upper=4096.0, dtype="f32", error="T107"),
        Sample(bins=3, length=16, rate=100, lower=0.0, upper=4096.0, dtype="f32", error="T107"),
        Sample(bins=3, length=16, rate=9000, lower=0.0, upper=99.0, dtype="bits", error="T106"),
    ),
)
def mel_weight_matrix(  # type: ignore[empty-body]
    *, bins: int, length: int, rate: int, lower: float, upper: float, dtype: str = "f32"
) -> Tensor:
    """Weights `[length // 2 + 1, bins]` that combine the one-sided spectrum of `length` samples at
    `rate` hertz into bands of the mel scale from `lower` to `upper` hertz, one triangle per band.

    Errors: T106, T107 for values that define no bands. Source: ONNX MelWeightMatrix-17.
    """


@mel_weight_matrix.types
def _mel_types(*, bins: Any, length: Any, rate: Any, lower: Any, upper: Any, dtype: str) -> Type:
    if dtype not in DTYPES or dtype == "bool":
        raise GraphTypeError("T106", f"mel_weight_matrix: unsupported dtype {dtype!r}")
    numbers = (bins, length, rate, lower, upper)
    if all(isinstance(n, (int, float)) for n in numbers):
        fits = bins > 0 and length > 0 and rate > 0 and 0 <= lower <= upper and upper < np.inf
        fits = fits and bins * length <= _MOST_WEIGHTS
        if not fits or _edges(*numbers)[-1] > length // 2:
            raise GraphTypeError(
                "T107",
                f"mel_weight_matrix: {bins} bands from {lower} to {upper} hertz of {length} "
                f"samples at {rate} hertz",
                hint="the upper edge must be at most half the rate",
            )
    return TensorType((bins_of(length), bins), dtype)


@mel_weight_matrix.dynamic
def _mel_dynamic(types: Sequence[Type], attrs: Attrs) -> Type:
    known = {n: unknown_dim() if isinstance(v, ArgRef) else v for n, v in attrs.items()}
    return _mel_types(**known)


def _edges(bins: int, length: int, rate: int, lower: float, upper: float) -> list[int]:
    """Returns the elements of the spectrum at which bands begin, peak and end."""
    low, high = (2595 * math.log10(1 + f / 700) for f in (lower, upper))
    mel = np.arange(bins + 2) * ((high - low) / (bins + 2)) + low
    hertz = 700 * (10 ** (mel / 2595) - 1)
    return [int(v) for v in (length + 1) * hertz // rate]


@mel_weight_matrix.reference
def _mel_reference(
    *, bins: int, length: int, rate: int, lower: float, upper: float, dtype: str
) -> Array:
    _mel_types(bins=bins, length=length, rate=rate, lower=lower, upper=upper, dtype=dtype)
    edges = _edges(bins, length, rate, lower, upper)
    place = np.arange(length // 2 + 1)
    weights = np.zeros((len(place), bins))
    for n, (first, top, last) in enumerate(zip(edges, edges[1:], edges[2:], strict=False)):
        rising = (place >= first) & (place <= top)
        weights[rising, n] = (place[rising] - first) / (top - first) if top > first else 1
        falling = (place >= top) & (place < last)
        weights[falling, n] = (last - place[falling]) / max(last - top, 1)
    return weights.astype(to_numpy(dtype))


@mel_weight_matrix.decompose
def _mel_decomposed(**attrs: Any) -> Expr | None:
    known = all(isinstance(v, (int, float, str)) for v in attrs.values())
    return Constant(_mel_reference(**attrs)) if known else None


@register_op(
    "window",
    samples=(
        Sample(size=7, weights=(0.5, 0.5, 0.0), periodic=True, dtype="f32"),
        Sample(size=8, weights=(0.42, 0.5, 0.08), periodic=False, dtype="f64"),
        Sample(size=0, weights=(0.5, 0.5, 0.0), periodic=True, dtype="f32"),
        Sample(size=2**40, weights=(0.5, 0.5, 0.0), periodic=True, dtype="f32", error="T107"),
        Sample(size=-1, weights=(0.5, 0.5, 0.0), periodic=True, dtype="f32", error="T107"),
        Sample(size=3, weights=(0.5, 0.5, 0.0), periodic=True, dtype="bits", error="T106"),
    ),
)
def window(*, size: int, weights: tuple[float, ...], periodic: bool, dtype: str = "f32") -> Tensor:  # type: ignore[empty-body]
    """`w0 - w1 * cos(2πi / n) + w2 * cos(4πi / n) - ...` for `i` from 0 to below `size`. `n` is the
    size, or one less without `periodic`.

    Errors: T106, T107. Source: ONNX HannWindow-17, HammingWindow-17, BlackmanWindow-17.
    """


@window.types
def _window_types(*, size: Any, weights: Any, periodic: bool, dtype: str) -> Type:
    if dtype not in DTYPES or dtype == "bool":
        raise GraphTypeError("T106", f"window: unsupported dtype {dtype!r}")
    if isinstance(size, int) and not 0 <= size <= _MOST_WEIGHTS:
        raise GraphTypeError("T107", f"window: the size is {size}")
    return TensorType((size,), dtype)


@window.dynamic
def _window_dynamic(types: Sequence[Type], attrs: Attrs) -> Type:
    return TensorType((unknown_dim(),), attrs.dtype)


@window.reference
def _window_reference(
    *, size: int, weights: tuple[float, ...], periodic: bool, dtype: str
) -> Array:
    _window_types(size=size, weights=weights, periodic=periodic, dtype=dtype)
    check_run_bytes("a window", size * memory_bytes(dtype))
    # One element that is not periodic gives NaN.
    with np.errstate(invalid="ignore", divide="ignore"):
        found = np.empty(size, to_numpy(dtype))
        for start in range(0, size, _PART):
            part = np.arange(start, min(start + _PART, size))
            turn = 2 * np.pi * part / (size if periodic else size - 1)
            terms = [(-1) ** n * w * np.cos(n * turn) for n, w in enumerate(weights)]
            found[start : start + _PART] = sum(terms[1:]) + terms[0]
        return found


@window.decompose
def _window_decomposed(**attrs: Any) -> Expr | None:
    return Constant(_window_reference(**attrs)) if isinstance(attrs["size"], int) else None
