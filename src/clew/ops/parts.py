"""Numbers as sums of narrower ones, so that units for narrow products give wide ones.

An `f32` has 24 bits of precision, a `bf16` has 8: three of these hold one of those. Of the nine products of parts
six matter, as the others lie below the last bit; they are summed in f32, as a fused multiply-add
sums.

Source: Henry, Tang, Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype for
Higher-Precision Computations", ARITH 2019.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from clew import te
from clew.ir.dims import Dim
from clew.ir.types import to_numpy
from clew.ops.common import f32
from clew.ops.registry import Sample, register_op
from clew.support.errors import GraphTypeError
from clew.te import Scalar, Tensor
from clew.te.expr import Index

Array = np.ndarray[Any, Any]
MOST_PARTS = 3
# The largest finite bf16: what would round beyond it is cut to it.
_LARGEST_BF16 = float.fromhex("0x1.fep127")
_LARGEST_F32 = float.fromhex("0x1.fffffep127")


@dataclass(frozen=True)
class Terms:
    """The products of parts that are summed: an axis over them, and which part of either operand
    each takes.

    One operand stays the same from each to the next, so that it may stay loaded: for three parts
    0*2, 0*1, 0*0, 1*0, 1*1, 2*0.
    """

    axis: Index
    left: Scalar
    right: Scalar


def part_terms(parts: int) -> Terms | None:
    """Returns the products of parts to sum; None where numbers are whole."""
    if parts == 1:
        return None
    axis = te.reduce_axis(parts * (parts + 1) // 2, "term")
    first = parts - 1 - axis
    if parts == 2:
        return Terms(axis, axis // 2, te.maximum(first, 0))
    return Terms(axis, axis // 3 + axis // 5, te.maximum(first, axis // 4 - axis // 5))


def part_size(name: str, size: Dim, parts: int) -> Dim:
    """Returns the length of one part of an axis.

    Errors: T107 where the axis does not have so many equal parts, or `parts` is not 1, 2 or 3.
    """
    if not 1 <= parts <= MOST_PARTS or (isinstance(size, int) and size % parts):
        raise GraphTypeError("T107", f"{name}: {size} features are not {parts} equal parts")
    return size // parts


def part_products(
    product: Callable[[Array, Array], Array], left: Array, right: Array, parts: int, start: int
) -> Array:
    """Returns the sum of the products of parts that count; `left[..., K]`, `right[K, N]`, parts of
    the left read from `start` on.
    """
    depth = right.shape[0] // parts
    lefts = [x[..., start : start + depth] for x in np.split(left, parts, axis=-1)]
    rights = np.split(right, parts, axis=0)
    pairs = [(i, j) for i in range(parts) for j in range(parts - i)]
    return np.asarray(sum(product(lefts[i], rights[j]) for i, j in reversed(pairs)))


@register_op(
    "split_parts",
    samples=(
        Sample(f32(5, 7)),
        Sample(f32(2, 3, 33), parts=2),
        Sample(f32(2, 33), width=64),
        Sample(f32(2, 33), width=32, error="T107"),
        Sample(f32(4, 64), low=-1e38, high=1e38),
        Sample(f32(3), parts=4, error="T107"),
        Sample(f32(), error="T102"),
    ),
)
def split_parts(x: Tensor, *, parts: int = 3, width: int = 0) -> Tensor:
    """`x[..., K]` as sums of `bf16`, `bf16[..., parts, width]`: the nearest one, the nearest to what
    is left, and so on. Three give `x` to the last bit or nearly so. Infinities and NaN are their
    own first part, and the others are 0. A `width` beyond K is filled up with 0.

    Errors: T101, T102, T107.
    """
    if x.dtype != "f32":
        raise GraphTypeError("T101", f"split_parts: input is {x.type}, expected f32")
    if x.rank == 0:
        raise GraphTypeError("T102", f"split_parts: input is {x.type}, expected an axis")
    if not 1 <= parts <= MOST_PARTS:
        raise GraphTypeError("T107", f"split_parts: parts={parts}, expected 1 to {MOST_PARTS}")

    depth = x.shape[-1]
    if isinstance(depth, int) and 0 < width < depth:
        raise GraphTypeError("T107", f"split_parts: width={width} for {depth} features")

    def body(*i: Scalar) -> Scalar:
        *outer, part, k = i
        rest: Scalar = x[(*outer, k)]
        if width:
            rest = te.select(k < te.size(depth), rest, 0.0)
        size = te.maximum(rest, -rest)
        finite = size <= _LARGEST_F32
        cut = te.minimum(te.maximum(rest, -_LARGEST_BF16), _LARGEST_BF16)
        piece = te.cast("bf16", te.select(finite, cut, rest))
        result = piece
        for n in range(1, parts):
            rest = rest - te.cast("f32", piece)
            piece = te.cast("bf16", te.select(finite, rest, 0.0))
            result = te.select(part >= n, piece, result)
        return result

    return te.compute((*x.shape[:-1], parts, width or depth), body, "split_parts")


@split_parts.reference
def _split_parts_reference(x: Array, *, parts: int, width: int) -> Array:
    stacked = np.stack(parts_of(x, parts), axis=-2)
    more = max(width - x.shape[-1], 0)
    return np.pad(stacked, [(0, 0)] * x.ndim + [(0, more)])


def parts_of(x: Array, parts: int) -> list[Array]:
    """Returns `f32[...]` as that many `bf16[...]`, as `split_parts` says."""
    finite = np.isfinite(x)
    rest = np.where(finite, np.clip(x, -_LARGEST_BF16, _LARGEST_BF16), x)
    pieces = [rest.astype(to_numpy("bf16"))]
    rest = np.where(finite, x, 0)
    for _ in range(1, parts):
        rest = rest - np.where(finite, pieces[-1].astype(np.float32), 0)
        pieces.append(rest.astype(to_numpy("bf16")))
    return pieces
