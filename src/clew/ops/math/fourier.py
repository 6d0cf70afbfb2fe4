"""The fast Fourier transform of rows whose length has small factors, as the stages of one kernel.

A row of `a * b` elements is a matrix of `a` rows. Its columns are transformed, multiplied by powers
of a root of unity, turned, and transformed again (Bailey, 1990). Each transform of columns takes a
step per factor (Stockham, 1966), in vectors along the columns. In between, real and imaginary parts
are in separate planes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from clew import te
from clew.ir.types import is_float
from clew.ops.common import differ, f32, f64, same_dtype, tensor_type
from clew.ops.registry import Sample, register_op
from clew.support.dataclass import dataclass
from clew.support.errors import GraphTypeError
from clew.te import Scalar, Tensor
from clew.te.analysis import Kind

Array = np.ndarray[Any, Any]

_RADICES: Final = (4, 2, 3, 5, 7)
# Steps are unrolled along a column.
_LONGEST: Final = 64
_LANES: Final = 16
MODES: Final = ("complex", "real", "hermitian")


def factors(length: int) -> tuple[int, ...]:
    """Returns the factors of a column's length, one per step; none if one is too large."""
    found, rest = [], length
    for radix in _RADICES:
        while rest % radix == 0:
            found.append(radix)
            rest //= radix
    return tuple(found) if rest == 1 else ()


def _equal_vectors(columns: int) -> int:
    return next(n for n in range(1, columns + 1) if columns % n == 0 and columns <= n * _LANES)


def sides(length: int) -> tuple[int, int] | None:
    """Returns the sides of a row's matrix that take the fewest vectors; None if there are none."""
    every = ((a, length // a) for a in range(2, _LONGEST + 1) if length % a == 0)
    fit = [(a, b) for a, b in every if 1 < b <= _LONGEST and factors(a) and factors(b)]

    def vectors(pair: tuple[int, int]) -> tuple[int, int]:
        a, b = pair
        return a * _equal_vectors(b) + b * _equal_vectors(a), abs(a - b)

    return min(fit, key=vectors, default=None)


@dataclass(frozen=True)
class _Number:
    """A complex number."""

    real: Scalar
    imaginary: Scalar

    def __add__(self, other: _Number) -> _Number:
        return _Number(self.real + other.real, self.imaginary + other.imaginary)

    def __sub__(self, other: _Number) -> _Number:
        return _Number(self.real - other.real, self.imaginary - other.imaginary)

    def turned(self, other: _Number, sign: int) -> _Number:
        """Returns the sum of this and `sign * i` times another number."""
        if sign > 0:
            return _Number(self.real - other.imaginary, self.imaginary + other.real)
        return _Number(self.real + other.imaginary, self.imaginary - other.real)


def _element(x: Sequence[_Number], sign: int, digit: Scalar) -> _Number:
    """Returns an element of the transform of as many numbers as a factor."""
    if len(x) % 2:
        return _element_of_odd(x, sign, digit)
    if len(x) == 2:
        found = [x[0] + x[1], x[0] - x[1]]
    else:
        even, odd, far, other = x[0] + x[2], x[1] + x[3], x[0] - x[2], x[1] - x[3]
        found = [even + odd, far.turned(other, sign), even - odd, far.turned(other, -sign)]
    return _Number(
        _chosen(digit, [y.real for y in found]), _chosen(digit, [y.imaginary for y in found])
    )


def _element_of_odd(x: Sequence[_Number], sign: int, digit: Scalar) -> _Number:
    """Returns an element from the sums and differences of numbers at equal distance from the first.
    Cosines and sines are chosen, not sums: the expression stays short.
    """
    radix = len(x)
    dtype = x[0].real.dtype
    total, turned = x[0], None
    for j in range(1, radix // 2 + 1):
        angles = [2 * math.pi * (j * q % radix) / radix for q in range(radix)]
        cosine, sine = (
            _chosen(digit, [te.as_scalar(f(angle), dtype) for angle in angles])
            for f in (math.cos, math.sin)
        )
        near, far = x[j], x[radix - j]
        total = total + _scaled(near + far, cosine)
        part = _scaled(near - far, sine)
        turned = part if turned is None else turned + part
    assert turned is not None
    return total.turned(turned, sign)


def _scaled(x: _Number, factor: Scalar) -> _Number:
    return _Number(x.real * factor, x.imaginary * factor)


def _chosen(index: Scalar, values: Sequence[Scalar]) -> Scalar:
    found = values[-1]
    for n in range(len(values) - 2, -1, -1):
        found = te.select(index.equal(n), values[n], found)
    return found


# --- tables ---------------------------------------------------------------------------------------


def _roots(count: int, exponents: Array, sign: int) -> Array:
    return np.asarray(np.exp(sign * 2j * np.pi * (exponents % count) / count))


def _rows(roots: Array) -> Array:
    """Returns factors as the rows of matrices, in a second and third axis: the real and the
    imaginary part of a product are sums over the parts of a number.
    """
    real = np.stack([roots.real, -roots.imag], 1)
    return np.stack([real, np.stack([roots.imag, roots.real], 1)], 1)


def _steps(length: int) -> list[tuple[int, int]]:
    """Returns the radix of each step on columns, and the product of those before it."""
    radices = factors(length)
    return [(radix, math.prod(radices[:n])) for n, radix in enumerate(radices)]


def _step_tables(length: int, sign: int) -> list[Array]:
    """Returns the factors of the results of each step but the last, which has none."""
    i = np.arange(length)
    return [
        _rows(_roots(length // done, (i // (done * radix)) * (i // done % radix), sign))
        for radix, done in _steps(length)[:-1]
    ]


def tables(length: int, mode: str, inverse: bool, scale: float = 1.0) -> Array:
    """Returns the factors of a transform of `length` complex numbers, in the order of their use.
    The result is multiplied by `scale`.
    """
    found = sides(length)
    assert found is not None, length
    (a, b), sign = found, 1 if inverse else -1
    between = _roots(length, np.outer(np.arange(a), np.arange(b)), sign)
    middle = _rows(between * (scale / 2 if mode == "real" else scale))
    parts = [*_step_tables(a, sign), middle, *_step_tables(b, sign)]
    if mode != "complex":
        half = _roots(2 * length, np.arange(length + 1), sign)
        half.imag[-1] = 0.0
        parts.append(np.stack([half.real, half.imag]))
    return np.concatenate([part.ravel() for part in parts])


class _Tables:
    """Reads the parts of `tables` in their order."""

    def __init__(self, source: Tensor) -> None:
        self._source = source
        self._taken = 0

    def part(self, *shape: int) -> Callable[..., Scalar]:
        """Returns the next part, of a shape."""
        first = self._taken
        self._taken += math.prod(shape)

        def element(*index: Scalar) -> Scalar:
            place = te.as_scalar(0)
            for size, i in zip(shape, index, strict=True):
                place = place * size + i
            return self._source[place + first]

        return element


# --- stages ---------------------------------------------------------------------------------------

_SAMPLES: Final = tuple(
    Sample(f32(2, length + (mode == "hermitian"), 2), tables(length, mode, inverse).astype("f4"),
           mode=mode, inverse=inverse)
    for length, mode, inverse in (
        (64, "complex", False), (60, "complex", True), (105, "complex", False),
        (64, "real", False), (200, "real", False), (64, "hermitian", True),
        (300, "hermitian", True),
    )
)  # fmt: skip


@register_op(
    "fourier",
    kind=Kind.OPAQUE,
    samples=(
        *_SAMPLES,
        Sample(f32(2, 11, 2), f32(9), error="T107"),
        Sample(f32(2, 64, 1), f32(9), error="T108"),
        Sample(f32(2, 64, 2), f32(9), error="T108"),
        Sample(f32(2, 64, 2), f64(9), error="T101"),
    ),
)
def fourier(x: Tensor, factors: Tensor, *, mode: str = "complex", inverse: bool = False) -> Tensor:
    """Transforms of the rows of `f32[rows, n, 2]`, with `factors` from `tables`: of complex
    numbers; of `2 * n` real ones, to `n + 1` (`real`); or to `2 * (n - 1)` real ones (`hermitian`).

    Errors: T101, T102, T105, T107, T108.
    """
    length = _length("fourier", x, factors, mode)
    (rows, _, _), (a, b) = x.shape, sides(length) or (0, 0)
    sign, table = 1 if inverse else -1, _Tables(factors)
    down = [table.part(a, 2, 2) for _ in _steps(a)[:-1]]
    middle = table.part(a, 2, 2, b)
    across = [table.part(b, 2, 2) for _ in _steps(b)[:-1]]
    half = table.part(2, length + 1) if mode != "complex" else None
    if mode == "hermitian":
        assert half is not None
        planes = _packed(x, half, (rows, 2, a, b))
    else:
        planes = te.compute(
            (rows, 2, a, b), lambda row, part, i, c: x[row, i * b + c, part], "fourier_split",
            role="fourier.split",
        )  # fmt: skip
    planes = _columns(planes, sign, [*down, middle], "fourier_down")
    turned = te.compute(
        (rows, 2, b, a), lambda row, part, c, i: planes[row, part, i, c], "fourier_turn",
        role="fourier.turn",
    )  # fmt: skip
    found = _columns(turned, sign, across, "fourier_across", joined=True)
    if mode == "real":
        assert half is not None
        found = _spectrum(found, half)
    return te.compute(
        (rows, found.shape[2], 2), lambda row, k, part: found[row, part, k], "fourier",
        role="fourier.join",
    )  # fmt: skip


def _length(name: str, x: Tensor, factors: Tensor, mode: str) -> int:
    """Returns the number of complex numbers that are transformed.

    Errors: T101, T102, T105, T107, T108.
    """
    same_dtype(name, x, factors)
    source = tensor_type(name, x.type)
    if not is_float(source.dtype):
        raise GraphTypeError("T105", f"{name}: input is {source}, expected a float dtype")
    if source.rank != 3 or factors.rank != 1:
        raise GraphTypeError("T102", f"{name}: {source}, {factors.type}, expected 3 axes and 1")
    if mode not in MODES:
        raise GraphTypeError("T107", f"{name}: mode {mode!r}, expected one of {', '.join(MODES)}")
    if source.shape[2] != 2:
        raise GraphTypeError("T108", f"{name}: the last axis of {source} does not have size 2")
    size = source.shape[1]
    length = size - (mode == "hermitian") if isinstance(size, int) else 0
    assert isinstance(length, int)
    if sides(length) is None:
        raise GraphTypeError("T107", f"{name}: rows of {source} have no factors of up to 7")
    if differ(factors.shape[0], len(tables(length, mode, False))):
        raise GraphTypeError("T108", f"{name}: {factors.type} are not the factors of {source}")
    return length


def _columns(
    x: Tensor,
    sign: int,
    tables: Sequence[Callable[..., Scalar]],
    name: str,
    *,
    joined: bool = False,
) -> Tensor:
    """Returns the transforms of the columns of planes `f32[rows, 2, length, columns]`, with
    `joined` as planes `f32[rows, 2, length * columns]`. The results of each step are multiplied by
    its table, if it has one; that of the last step may have a value per column.
    """
    rows, _, length, columns = x.shape
    assert isinstance(length, int)
    *steps, last = [
        (radix, done, tables[n] if n < len(tables) else None)
        for n, (radix, done) in enumerate(_steps(length))
    ]
    for n, step in enumerate(steps):
        x = te.compute(x.shape, _step(x, sign, *step), f"{name}{n}", role="fourier.step")
    element = _step(x, sign, *last)
    if not joined:
        return te.compute(x.shape, element, f"{name}_last", role="fourier.step")

    def in_row(row: Scalar, part: Scalar, k: Scalar) -> Scalar:
        return element(row, part, k // columns, k % columns)

    return te.compute((rows, 2, length * columns), in_row, f"{name}_last", role="fourier.last")


def _step(
    x: Tensor, sign: int, radix: int, done: int, table: Callable[..., Scalar] | None
) -> Callable[[Scalar, Scalar, Scalar, Scalar], Scalar]:
    """Returns the function of an element's place that is a step on columns."""
    length = x.shape[2]
    assert isinstance(length, int)
    stride = length // radix
    is_last = done == stride

    def body(row: Scalar, part: Scalar, i: Scalar, c: Scalar) -> Scalar:
        first = i // (done * radix) * done + i % done

        def number(n: int) -> _Number:
            return _Number(*(x[row, plane, first + n * stride, c] for plane in (0, 1)))

        found = _element([number(n) for n in range(radix)], sign, i // done % radix)
        if table is None:
            return te.select(part.equal(0), found.real, found.imaginary)
        column = (c,) if is_last else ()
        factors = [table(i, part, te.as_scalar(n), *column) for n in (0, 1)]
        return te.call("fma", found.real, factors[0], found.imaginary * factors[1])

    return body


def _packed(x: Tensor, half: Callable[..., Scalar], shape: tuple[Any, ...]) -> Tensor:
    """Returns planes of the complex numbers whose inverse transform has the even elements of a real
    signal as real parts and the odd ones as imaginary parts. `x` is the signal's spectrum.
    """
    rows, _, _, b = shape
    length = shape[2] * b

    def bin_of(row: Scalar, part: Scalar, k: Scalar) -> Scalar:
        # The imaginary parts of the first and last bins count as 0.
        kept = (k > 0) & (k < length) | part.equal(0)
        return te.select(kept, x[row, k, part], te.as_scalar(0.0, x.dtype))

    bins = te.compute((rows, 2, length + 1), bin_of, "fourier_bins", role="fourier.bins")

    def body(row: Scalar, part: Scalar, i: Scalar, c: Scalar) -> Scalar:
        k = i * b + c
        near, far = (
            _Number(bins[row, 0, p], bins[row, 1, p]) for p in (k, te.as_scalar(length) - k)
        )
        real, imaginary = near.real - far.real, near.imaginary + far.imaginary
        cosine, sine = half(te.as_scalar(0), k), half(te.as_scalar(1), k)
        return te.select(
            part.equal(0),
            near.real + far.real - (real * sine + imaginary * cosine),
            near.imaginary - far.imaginary + (real * cosine - imaginary * sine),
        )

    return te.compute(shape, body, "fourier_pack", role="fourier.split")


def _spectrum(x: Tensor, half: Callable[..., Scalar]) -> Tensor:
    """Returns the first half of a real signal's spectrum, in planes. `x` is the transform of the
    complex numbers whose parts are its even and odd elements, divided by 2.
    """
    rows, _, length = x.shape

    def wrapped(row: Scalar, part: Scalar, k: Scalar) -> Scalar:
        inside = x[row, part, te.minimum(k, length - 1)]
        return te.select(k.equal(length), x[row, part, 0], inside)

    circle = te.compute((rows, 2, length + 1), wrapped, "fourier_wrap", role="fourier.bins")

    def body(row: Scalar, part: Scalar, k: Scalar) -> Scalar:
        near, far = (_Number(circle[row, 0, p], circle[row, 1, p]) for p in (k, length - k))
        real, imaginary = near.imaginary + far.imaginary, far.real - near.real
        cosine, sine = half(te.as_scalar(0), k), half(te.as_scalar(1), k)
        return te.select(
            part.equal(0),
            near.real + far.real + (real * cosine - imaginary * sine),
            near.imaginary - far.imaginary + (real * sine + imaginary * cosine),
        )

    return te.compute((rows, 2, length + 1), body, "fourier_spectrum", role="fourier.bins")
