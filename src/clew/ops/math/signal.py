"""Signal processing. Complex numbers have a last axis of two: real and imaginary part.

A discrete Fourier transform whose length has small factors is one kernel (`fourier`), and another
short one a product with a matrix of cosines and sines. A long one becomes two shorter ones (Cooley
and Tukey, 1965) or, if its length has a large prime factor, a convolution of a length that is a
power of two (Bluestein, 1970).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from clew import te
from clew.ir.dims import Dim, product, unknown_dim
from clew.ir.expr import ArgRef, Attrs, Constant, Expr
from clew.ir.types import TensorType, Type, is_float, to_numpy
from clew.ops.common import (
    accumulator,
    at,
    axis_of,
    broadcast_shapes,
    differ,
    f16,
    f32,
    f64,
    i32,
    same_dtype,
    tensor_type,
)
from clew.ops.convolution.windows import blocks
from clew.ops.math.fourier import sides, tables
from clew.ops.registry import Sample, get_op, register_op
from clew.ops.traits import Traits
from clew.support.budgets import check_run_bytes
from clew.support.errors import GraphTypeError
from clew.te import Scalar, Tensor

Array = np.ndarray[Any, Any]

# Fast transforms of fewer complex numbers fill too few lanes of vectors.
_LEAST_FAST: Final = 32
# Longer transforms that are not fast are composed of shorter ones.
_DIRECT: Final = 256
# Longer transforms would take gigabytes of constants.
_LONGEST: Final = 1 << 26
# Bytes per element of a convolution's constants while they are computed.
_CHIRP_BYTES: Final = 64


def _call(name: str, *args: Expr, **attrs: Any) -> Expr:
    return get_op(name)(*args, **attrs)


def _signal_type(name: str, x: Type, rank: int | None = None) -> TensorType:
    """Returns the type of a real or complex signal.

    Errors: T102, T105, T108.
    """
    source = tensor_type(name, x)
    if not is_float(source.dtype):
        raise GraphTypeError("T105", f"{name}: input is {source}, expected a float dtype")
    if source.rank < 2 or (rank is not None and source.rank != rank):
        raise GraphTypeError("T102", f"{name}: {source} has no axes for a signal and its parts")
    if source.shape[-1] not in (1, 2):
        raise GraphTypeError("T108", f"{name}: the last axis of {source} does not have size 1 or 2")
    return source


@register_op(
    "complex_multiply",
    samples=(
        Sample(f32(3, 5, 2), f32(5, 2)),
        Sample(f64(4, 2), f64(4, 2)),
        Sample(f32(3, 2), f32(3, 1), error="T108"),
        Sample(f32(3, 2), f64(3, 2), error="T101"),
    ),
)
def complex_multiply(a: Tensor, b: Tensor) -> Tensor:
    """Products of complex numbers, broadcast.

    Errors: T100, T101, T102, T105, T108.
    """
    same_dtype("complex_multiply", a, b)
    for x in (a, b):
        if _signal_type("complex_multiply", x.type, max(x.rank, 1)).shape[-1] != 2:
            raise GraphTypeError("T108", f"complex_multiply: {x.type} has no imaginary part")
    shape = broadcast_shapes("complex_multiply", a.shape, b.shape)

    def body(*i: Scalar) -> Scalar:
        real, imaginary = (*i[:-1], te.as_scalar(0)), (*i[:-1], te.as_scalar(1))
        x, y = at(a, shape, real), at(a, shape, imaginary)
        u, v = at(b, shape, real), at(b, shape, imaginary)
        return te.select(i[-1].equal(0), x * u - y * v, x * v + y * u)

    return te.compute(shape, body, "complex_multiply")


@register_op(
    "complex_parts",
    host=True,
    samples=(
        Sample(np.array([1 + 2j, -3j], "c8")),
        Sample(np.array(0.5 - 1j, "c16")),
        Sample(f32(3), error="T105"),
    ),
    traits=Traits(reinterprets=True),
)
def complex_parts(x: Array) -> Array:
    """Complex numbers as pairs of real ones in a last axis. All other operators take pairs.

    Errors: T105.
    """
    return np.ascontiguousarray(x).view(x.real.dtype).reshape(*x.shape, 2)


_REALS: Final = {"c64": "f32", "c128": "f64"}
_COMPLEX: Final = {np.dtype(np.float32): np.complex64, np.dtype(np.float64): np.complex128}


@complex_parts.types
def _complex_parts_types(x: Type) -> Type:
    source = tensor_type("complex_parts", x)
    if source.dtype not in _REALS:
        raise GraphTypeError("T105", f"complex_parts: {source} is not complex")
    return TensorType((*source.shape, 2), _REALS[source.dtype])


@register_op(
    "complex_of",
    host=True,
    samples=(
        Sample(f32(3, 2)),
        Sample(f64(2)),
        Sample(f32(3), error="T108"),
        Sample(i32(2), error="T105"),
    ),
    traits=Traits(reinterprets=True),
)
def complex_of(x: Array) -> Array:
    """The complex numbers of pairs of real ones in the last axis.

    Errors: T105, T108.
    """
    return np.ascontiguousarray(x).view(_COMPLEX[x.dtype])[..., 0]


@complex_of.types
def _complex_of_types(x: Type) -> Type:
    source = tensor_type("complex_of", x)
    if source.dtype not in _REALS.values():
        raise GraphTypeError("T105", f"complex_of: input is {source}, expected f32 or f64")
    if source.shape[-1:] != (2,):
        raise GraphTypeError("T108", f"complex_of: the last axis of {source} does not have size 2")
    complex_dtype = {real: wide for wide, real in _REALS.items()}[source.dtype]
    return TensorType(source.shape[:-1], complex_dtype)


# --- the discrete Fourier transform ---------------------------------------------------------------

_DFT_SAMPLES = (
    Sample(f32(2, 7, 1)),
    Sample(f32(2, 8, 3, 2), axis=1),
    Sample(f32(2, 9, 1), onesided=True),
    Sample(f32(2, 6, 2), inverse=True, length=5),
    Sample(f32(2, 5, 2), inverse=True, onesided=True),
    Sample(f64(2, 5, 2), inverse=True, onesided=True, length=9),
    Sample(f16(2, 12, 1), length=16),
    Sample(f64(2, 1, 1)),
    Sample(f32(0, 4, 1)),
    Sample(f32(2, 0, 1)),
    Sample(f64(1, 300, 1), onesided=True),
    Sample(f32(2, 320, 2), inverse=True),
    Sample(f64(263, 2), axis=0),
    Sample(f64(2, 200, 2), inverse=True, onesided=True, length=390),
    Sample(f32(2, 7, 3), error="T108"),
    Sample(f32(2, 7, 1), axis=2, error="T104"),
    Sample(f32(2, 7, 1), length=0, error="T107"),
    Sample(f32(2), error="T102"),
    Sample(i32(2, 7, 1), error="T105"),
)


@register_op("dft", samples=_DFT_SAMPLES)
def dft(  # type: ignore[empty-body]
    x: Tensor,
    *,
    axis: int = -2,
    length: int | None = None,
    inverse: bool = False,
    onesided: bool = False,
) -> Tensor:
    """Discrete Fourier transform along `axis` of real `f32[..., 1]` or complex `f32[..., 2]`,
    cropped or zero-padded to `length`; the result is complex. `onesided` returns only the first
    `length // 2 + 1` elements; with `inverse`, it takes those and returns real ones. The inverse is
    divided by `length`.

    Errors: T102, T104, T105, T107, T108, I265. Source: ONNX DFT-20.
    """


def _length(shape: Sequence[Dim], axis: int, length: Any, hermitian: bool) -> Dim:
    if length is not None:
        found: Dim = length
        return found
    return 2 * (shape[axis] - 1) if hermitian else shape[axis]


def bins_of(length: Dim) -> Dim:
    """Returns the number of bins of a one-sided spectrum."""
    return length // 2 + 1


@dft.types
def _dft_types(x: Type, *, axis: int, length: Any, inverse: bool, onesided: bool) -> Type:
    source = _signal_type("dft", x)
    n = axis_of("dft", axis, source.rank)
    if n == source.rank - 1:
        raise GraphTypeError("T104", f"dft: axis {axis} of {source} holds complex parts")
    size = _length(source.shape, n, length, inverse and onesided)
    # An empty signal has an empty spectrum, but it has no bins, and nothing can be padded to length
    # 0.
    least = 0 if length is None and not onesided else 1
    if isinstance(size, int) and not least <= size <= _LONGEST:
        raise GraphTypeError("T107", f"dft: the length is {size}, expected {least} to {_LONGEST}")
    last = 1 if inverse and onesided else 2
    out = bins_of(size) if onesided and not inverse else size
    shape = (*source.shape[:n], out, *source.shape[n + 1 : -1], last)
    return TensorType(shape, source.dtype)


@dft.dynamic
def _dft_dynamic(types: Sequence[Type], attrs: Attrs) -> Type:
    source = _signal_type("dft", types[0])
    known = {name: value for name, value in attrs.items() if not isinstance(value, ArgRef)}
    if "axis" in known:
        return _dft_types(source, **{**known, "length": unknown_dim()})
    sizes = tuple(unknown_dim() for _ in source.shape[:-1])
    return TensorType((*sizes, 1 if attrs.inverse and attrs.onesided else 2), source.dtype)


@dft.reference
def _dft_reference(x: Array, *, axis: int, length: Any, inverse: bool, onesided: bool) -> Array:
    _dft_types(
        TensorType(x.shape, "f64"), axis=axis, length=length, inverse=inverse, onesided=onesided
    )
    n = axis % x.ndim
    size = _length(x.shape, n, length, inverse and onesided)
    assert isinstance(size, int)
    wide = x.astype(np.float64)
    signal = wide[..., 0] if x.shape[-1] == 1 else wide[..., 0] + 1j * wide[..., 1]
    if inverse and onesided:
        return np.asarray(np.fft.irfft(signal, size, n)[..., None]).astype(x.dtype)
    found = (np.fft.ifft if inverse else np.fft.fft)(signal, size, n)
    if onesided and not inverse:
        found = np.take(found, np.arange(size // 2 + 1), n)
    return np.stack([found.real, found.imag], -1).astype(x.dtype)


@dft.decompose
def _dft_decomposed(
    x: Expr, *, axis: int, length: Any, inverse: bool, onesided: bool
) -> Expr | None:
    type_ = x.tensor
    n = axis_of("dft", axis, type_.rank)
    size = _length(type_.shape, n, length, inverse and onesided)
    if not isinstance(size, int) or not size:
        return None
    order = (*(k for k in range(type_.rank - 1) if k != n), n, type_.rank - 1)
    hermitian = inverse and onesided
    wide = accumulator(type_.dtype)
    signal = _call("cast", x, dtype=wide) if wide != type_.dtype else x
    signal = _resized(_moved(signal, order), bins_of(size) if hermitian else size)
    *outer, taken, parts = signal.tensor.shape
    rows = _call("reshape", signal, shape=(product(tuple(outer)), taken, parts))
    if hermitian:
        found = _hermitian(rows, size)
    else:
        wanted = size // 2 + 1 if onesided and not inverse else size
        found = _transform(rows, inverse, wanted, 1 / size if inverse else 1.0)
    found = _call("reshape", found, shape=(*outer, *found.tensor.shape[1:]))
    back = tuple(int(k) for k in np.argsort(order))
    found = _moved(found, back)
    return _call("cast", found, dtype=type_.dtype) if wide != type_.dtype else found


def _moved(x: Expr, order: tuple[int, ...]) -> Expr:
    return x if order == tuple(range(len(order))) else _call("transpose", x, axes=order)


def _resized(x: Expr, size: Dim) -> Expr:
    """Returns `x` with the axis before the last cropped or zero-padded."""
    have, axis = x.tensor.shape[-2], x.tensor.rank - 2
    if have == size:
        return x
    if isinstance(have, int) and isinstance(size, int) and have > size:
        return _call("slice", x, begin=(0,), end=(size,), strides=(1,), axes=(axis,))
    pads: list[Dim] = [0] * (2 * x.tensor.rank)
    pads[x.tensor.rank + axis] = size - have
    return _call("pad", x, pads=tuple(pads), mode="constant", value=0.0)


def _scaled(x: Expr, factor: float) -> Expr:
    return _call("multiply", x, Constant(np.asarray(factor, to_numpy(x.tensor.dtype))))


def _pairs(numbers: Array, dtype: str) -> Constant:
    """Returns complex numbers with an axis of two."""
    return Constant(np.stack([numbers.real, numbers.imag], -1).astype(to_numpy(dtype)))


def _roots(count: int, exponents: Array, inverse: bool) -> Array:
    """Returns powers of the `count`-th root of unity, each exact to the last bit."""
    sign = 1 if inverse else -1
    return np.asarray(np.exp(sign * 2j * np.pi * (exponents % count) / count))


def _transform(x: Expr, inverse: bool, wanted: int, scale: float = 1.0) -> Expr:
    """Returns the first `wanted` elements of the transform of each row of `f32[rows, n, 1 or 2]`,
    times a factor.
    """
    rows, n, parts = x.tensor.shape
    assert isinstance(n, int)
    halves = parts == 1 and not inverse and n % 2 == 0 and wanted <= n // 2 + 1
    if halves and is_fast(n // 2):
        pairs = _call("reshape", x, shape=(rows, n // 2, 2))
        return _resized(_fast(pairs, n // 2, "real", inverse, scale), wanted)
    if is_fast(n):
        return _resized(_fast(_complex(x), n, "complex", inverse, scale), wanted)
    if n <= _DIRECT:
        return _direct(x, inverse, wanted, scale)
    x = _complex(x)
    split = next((a for a in range(math.isqrt(n), 1, -1) if n % a == 0), 1)
    if split > 1 and n // split <= max(_DIRECT, 16 * split):
        found = _in_two(x, split, n // split, inverse)
    else:
        found = _as_convolution(x, inverse)
    found = _resized(found, wanted)
    return found if scale == 1 else _scaled(found, scale)


def _complex(x: Expr) -> Expr:
    """Returns numbers with imaginary parts, which are 0 if `x` has none."""
    if x.tensor.shape[2] == 2:
        return x
    return _call("pad", x, pads=(0, 0, 0, 0, 0, 1), mode="constant", value=0.0)


def is_fast(length: int) -> bool:
    """Whether there is a fast transform of complex numbers, and it is faster than a product."""
    return length >= _LEAST_FAST and sides(length) is not None


def _fast(x: Expr, length: int, mode: str, inverse: bool, scale: float) -> Expr:
    known = tables(length, mode, inverse, scale).astype(to_numpy(x.tensor.dtype))
    return _call("fourier", x, Constant(known), mode=mode, inverse=inverse)


def _direct(x: Expr, inverse: bool, wanted: int, scale: float) -> Expr:
    _, n, parts = x.tensor.shape
    assert isinstance(n, int)
    assert isinstance(parts, int)
    roots = _roots(n, np.outer(np.arange(n), np.arange(wanted)), inverse) * scale
    # The contributions of the real and of the imaginary part to both parts of the result.
    turned = np.stack([roots, 1j * roots][:parts], 1)
    weight = np.stack([turned.real, turned.imag], -1).reshape(n * parts, 2 * wanted)
    return _product(x, weight, (wanted, 2))


def _product(x: Expr, weight: Array, shape: tuple[int, ...]) -> Expr:
    rows = x.tensor.shape[0]
    flat = _call("reshape", x, shape=(rows, len(weight)))
    held = Constant(weight.astype(to_numpy(x.tensor.dtype)))
    return _call("reshape", _call("nn.matmul", flat, held), shape=(rows, *shape))


def _in_two(x: Expr, a: int, b: int, inverse: bool) -> Expr:
    """Element `j * b + k` of the signal, element `p + a * q` of the result."""
    rows, dtype = x.tensor.shape[0], x.tensor.dtype
    first = _call("transpose", _call("reshape", x, shape=(rows, a, b, 2)), axes=(0, 2, 1, 3))
    inner = _transform(_call("reshape", first, shape=(rows * b, a, 2)), inverse, a)
    twiddles = _pairs(_roots(a * b, np.outer(np.arange(b), np.arange(a)), inverse), dtype)
    turned = _call("complex_multiply", _call("reshape", inner, shape=(rows, b, a, 2)), twiddles)
    second = _call("transpose", turned, axes=(0, 2, 1, 3))
    outer = _transform(_call("reshape", second, shape=(rows * a, b, 2)), inverse, b)
    found = _call("transpose", _call("reshape", outer, shape=(rows, a, b, 2)), axes=(0, 2, 1, 3))
    return _call("reshape", found, shape=(rows, a * b, 2))


def _as_convolution(x: Expr, inverse: bool) -> Expr:
    """`2 * j * k = j² + k² - (k - j)²`, so the transform is a convolution with a chirp."""
    n, dtype = x.tensor.shape[1], x.tensor.dtype
    assert isinstance(n, int)
    size = 1 << (2 * n - 2).bit_length()
    check_run_bytes(f"constants of dft of length {n}", size * _CHIRP_BYTES)
    chirp = _roots(2 * n, np.arange(n, dtype=np.int64) ** 2, inverse)
    kernel = np.zeros(size, np.complex128)
    kernel[:n] = chirp.conj()
    kernel[size - n + 1 :] = chirp[:0:-1].conj()
    turned = _resized(_call("complex_multiply", x, _pairs(chirp, dtype)), size)
    spectrum = _pairs(np.fft.fft(kernel) / size, dtype)
    product_ = _call("complex_multiply", _transform(turned, False, size), spectrum)
    found = _resized(_transform(product_, True, size), n)
    return _call("complex_multiply", found, _pairs(chirp, dtype))


def _hermitian(x: Expr, n: int) -> Expr:
    """Returns the real signal of `n` elements whose transform begins with each row."""
    bins, parts = x.tensor.shape[1:]
    assert isinstance(bins, int)
    assert isinstance(parts, int)
    if n % 2 == 0 and is_fast(n // 2):
        found = _fast(_complex(x), n // 2, "hermitian", True, 1 / n)
        return _call("reshape", found, shape=(x.tensor.shape[0], n, 1))
    if n <= _DIRECT:
        k, t = np.arange(bins), np.arange(n)
        twice = np.where((k == 0) | (2 * k == n), 1, 2)[:, None] / n
        roots = _roots(n, np.outer(k, t), inverse=True) * twice
        weight = np.stack([roots.real, -roots.imag][:parts], 1).reshape(bins * parts, n)
        return _product(x, weight, (n, 1))
    x = _complex(x)
    # The elements after the middle are the conjugates of those before it, in reverse order.
    middle = _call("slice", x, begin=(1,), end=(n - bins + 1,), strides=(1,), axes=(1,))
    sign = Constant(np.array([1, -1], to_numpy(x.tensor.dtype)))
    mirrored = _call("multiply", _call("flip", middle, axes=(1,)), sign)
    ends = _real_ends(x, n)
    whole = _call("concatenate", ends, mirrored, axis=1)
    found = _transform(whole, True, n, 1 / n)
    return _call("slice", found, begin=(0,), end=(1,), strides=(1,), axes=(2,))


def _real_ends(x: Expr, n: int) -> Expr:
    """Returns the elements without imaginary parts that are 0 in a real signal's transform."""
    bins = x.tensor.shape[1]
    assert isinstance(bins, int)
    kept = np.ones((bins, 2), to_numpy(x.tensor.dtype))
    kept[0, 1] = 0
    if n % 2 == 0:
        kept[-1, 1] = 0
    return _call("multiply", x, Constant(kept))


# --- short-time transforms ------------------------------------------------------------------------


@register_op(
    "frames",
    samples=(
        Sample(f32(2, 9, 1), step=2, length=4),
        Sample(f64(1, 5, 2), step=7, length=5),
        Sample(f32(2, 3, 1), step=1, length=4, error="T108"),
        Sample(f32(2, 3, 1), step=0, length=2, error="T107"),
    ),
)
def frames(x: Tensor, *, step: int, length: int) -> Tensor:
    """Frames of `f32[batch, n, parts]` at distance `step`: `f32[batch, frames, length, parts]`.

    Errors: T102, T105, T107, T108.
    """
    shape = _framed("frames", x.type, step, length)

    def body(b: Scalar, frame: Scalar, place: Scalar, part: Scalar) -> Scalar:
        return x[b, frame * step + place, part]

    return te.compute((shape[0], shape[1], length, shape[2]), body, "frames")


def _framed(name: str, x: Type, step: Any, length: Any) -> tuple[Dim, Dim, Dim]:
    """Returns the batch, the number of frames, and 1 or 2 parts."""
    source = _signal_type(name, x, rank=3)
    batch, n, parts = source.shape
    for what, value in (("step", step), ("length", length)):
        if isinstance(value, int) and value < 1:
            raise GraphTypeError("T107", f"{name}: the {what} of frames is {value}, expected >= 1")
    if isinstance(n, int) and isinstance(length, int) and length > n:
        raise GraphTypeError("T108", f"{name}: frames of {length} elements do not fit {source}")
    return batch, (n - length) // step + 1, parts


@register_op(
    "stft",
    samples=(
        Sample(f32(2, 20, 1), step=3, length=8),
        Sample(f32(2, 20, 1), f32(8), step=3, length=8, onesided=False),
        Sample(f64(1, 16, 2), f64(16), step=4, length=16, onesided=False),
        Sample(f32(2, 20, 1), f32(7), step=3, length=8, error="T108"),
        Sample(f32(2, 20, 1), f64(8), step=3, length=8, error="T101"),
        Sample(f32(2, 20), step=3, length=8, error="T102"),
    ),
)
def stft(  # type: ignore[empty-body]
    x: Tensor, window: Tensor | None = None, *, step: int, length: int, onesided: bool = True
) -> Tensor:
    """Transforms of frames of `length` elements of `f32[batch, n, 1 or 2]`, each times the window:
    `f32[batch, frames, bins, 2]`.

    Errors: T101, T102, T105, T107, T108. Source: ONNX STFT-17.
    """


@stft.types
def _stft_types(
    x: Type, window: Type | None = None, *, step: Any, length: Any, onesided: bool
) -> Type:
    batch, count, _ = _framed("stft", x, step, length)
    source = tensor_type("stft", x)
    if window is not None:
        weights = tensor_type("stft", window)
        if weights.dtype != source.dtype:
            raise GraphTypeError("T101", f"stft: window is {weights}, signal is {source}")
        if weights.rank != 1 or differ(weights.shape[0], length):
            raise GraphTypeError("T108", f"stft: window is {weights}, length is {length}")
    return TensorType((batch, count, bins_of(length) if onesided else length, 2), source.dtype)


@stft.dynamic
def _stft_dynamic(types: Sequence[Type], attrs: Attrs) -> Type:
    source = _signal_type("stft", types[0], rank=3)
    return TensorType((source.shape[0], unknown_dim(), unknown_dim(), 2), source.dtype)


@stft.reference
def _stft_reference(
    x: Array, window: Array | None = None, *, step: int, length: int, onesided: bool
) -> Array:
    whole = np.lib.stride_tricks.sliding_window_view(x, length, 1)[:, ::step]
    frames = np.moveaxis(whole, -1, 2)
    parts = []
    for some in blocks(frames.shape[1], frames[:, :1].size):
        pieces = frames[:, some].astype(np.float64)
        if window is not None:
            pieces *= window.astype(np.float64)[:, None]
        found = _dft_reference(pieces, axis=2, length=None, inverse=False, onesided=onesided)
        parts.append(found.astype(x.dtype))
    return np.concatenate(parts, axis=1)


@stft.decompose
def _stft_decomposed(
    x: Expr, window: Expr | None = None, *, step: int, length: int, onesided: bool
) -> Expr | None:
    if not all(isinstance(d, int) for d in (*x.tensor.shape, step, length)):
        return None
    dtype = x.tensor.dtype
    wide = accumulator(dtype)
    pieces = _call("frames", x, step=step, length=length)
    if wide != dtype:
        pieces = _call("cast", pieces, dtype=wide)
    if window is not None:
        weights = _call("reshape", window, shape=(length, 1))
        if wide != dtype:
            weights = _call("cast", weights, dtype=wide)
        pieces = _call("multiply", pieces, weights)
    found = _call("dft", pieces, axis=2, length=length, onesided=onesided)
    return _call("cast", found, dtype=dtype) if wide != dtype else found
