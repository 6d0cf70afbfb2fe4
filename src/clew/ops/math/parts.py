"""Numbers as sums of narrower ones, so that units for narrow products can compute wide ones.

An `f32` has 24 bits of precision and a `bf16` has 8, so three `bf16` hold one `f32`. Of the nine
products of parts, six matter, because the others lie below the last bit; they are summed in f32, as
in a fused multiply-add.

Source: Henry, Tang, Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype for
Higher-Precision Computations", ARITH 2019.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from clew import te
from clew.ir.dims import Dim, product
from clew.ir.types import to_numpy
from clew.machine.units import TILE_ROWS, tile_depth
from clew.ops.common import differ, f32
from clew.ops.registry import Sample, register_op
from clew.support.dataclass import dataclass
from clew.support.errors import GraphTypeError
from clew.te import Scalar, Tensor, roles
from clew.te.expr import Bitcast, Index, unary

Array = np.ndarray[Any, Any]
MOST_PARTS = 3
DATA_PARTS: Final = "data_parts"
"""The role of a stage that splits the data of a product in the product's own kernel."""
TILE_DEPTH = tile_depth("bf16")
# The bits of an f32 that a bf16 has as well.
_HIGH_BITS = 0xFFFF0000
# The largest finite bf16; numbers that would round beyond it are clamped to it.
_LARGEST_BF16 = float.fromhex("0x1.fep127")
_LARGEST_F32 = float.fromhex("0x1.fffffep127")


@dataclass(frozen=True)
class Terms:
    """The products of parts that are summed: an axis over them, and the part of each operand that
    each product takes.

    Consecutive products share one operand, so that it may stay loaded: for three parts 0*2, 0*1,
    1*1, 1*0, 0*0, 2*0.
    """

    axis: Index
    left: Scalar
    right: Scalar


def part_terms(parts: int) -> Terms | None:
    """Returns the products of parts to sum, or None for unsplit numbers."""
    if parts == 1:
        return None
    axis = te.reduce_axis(parts * (parts + 1) // 2, "term", roles.TERM)
    if parts == 2:
        return Terms(axis, axis // 2, te.maximum(1 - axis, 0))
    left = axis // 2 % 2 + axis // 5 * 2
    return Terms(axis, left, te.maximum(2 - (axis + 1) // 2, 0))


def check_parts(name: str, parts: int) -> None:
    """Checks a number of parts.

    Errors: T107 unless it is 1, 2 or 3.
    """
    if not 1 <= parts <= MOST_PARTS:
        raise GraphTypeError("T107", f"{name}: parts={parts}, expected 1 to {MOST_PARTS}")


def parts_shape(rows: Dim, depth: Dim, parts: int) -> tuple[Dim, ...]:
    """Returns the shape of the result of `split_parts` for `rows` rows of `depth` numbers."""
    return (-(-rows // TILE_ROWS), -(-depth // TILE_DEPTH), parts, TILE_ROWS, TILE_DEPTH)


def holds_parts(shape: Sequence[Dim], rows: Dim, depth: Dim, parts: int) -> bool:
    """Whether data of a shape may hold `rows` rows of `depth` numbers or more."""
    blocks, *rest = parts_shape(rows, depth, parts)
    if len(shape) != len(rest) + 1:
        return False
    least, most = rest[0], shape[1]
    enough = not isinstance(least, int) or not isinstance(most, int) or least <= most
    others = zip((shape[0], *shape[2:]), (blocks, *rest[1:]), strict=True)
    return enough and not any(differ(have, want) for have, want in others)


def part_at(data: Tensor, part: Scalar, row: Scalar, k: Scalar) -> Scalar:
    """Returns a part of a number in the tiled layout of `split_parts`."""
    return data[row // TILE_ROWS, k // TILE_DEPTH, part, row % TILE_ROWS, k % TILE_DEPTH]


def flat_row(place: Sequence[Scalar], shape: Sequence[Dim]) -> Scalar:
    """Returns the number of a row from its position on the outer axes."""
    row: Scalar = te.as_scalar(0)
    for index, size in zip(place, shape, strict=True):
        row = row * te.size(size) + index
    return row


def part_products(data: Array, matrix: Array, parts: int, rows: int, start: int) -> Array:
    """Returns the sum of the products of parts that matter. `data` is a result of `split_parts`,
    read from number `start` on, times `matrix[parts * K, N]`.
    """
    depth = matrix.shape[0] // parts
    flat = data.transpose(2, 0, 3, 1, 4).reshape(parts, -1, data.shape[1] * TILE_DEPTH)
    lefts = flat[:, :rows, start : start + depth]
    rights = matrix.reshape(parts, depth, matrix.shape[-1])
    pairs = [(i, j) for i in range(parts) for j in range(parts - i)]
    return np.asarray(sum(lefts[i] @ rights[j] for i, j in reversed(pairs)))


@register_op(
    "split_parts",
    samples=(
        Sample(f32(5, 7)),
        Sample(f32(2, 3, 33), parts=2),
        Sample(f32(35, 64)),
        Sample(f32(3, 7), parts=4, error="T107"),
        Sample(f32(3), error="T102"),
    ),
)
def split_parts(x: Tensor, *, parts: int = 3) -> Tensor:
    """`x[..., K]` as sums of `bf16`: the nearest one, the nearest to the remainder, and so on.
    Three parts represent `x` exactly or nearly so. The first part of an infinity or NaN is the
    value itself; its other parts are 0.

    The result is `bf16[R/16, K/32, parts, 16, 32]`, where R is the product of the outer axes: tiles
    of 16 rows as a matrix unit reads them. K is padded with zeros. Missing rows of the last tile
    repeat the last row of `x`, because selecting zeros for them would take longer.

    Errors: T101, T102, T107.
    """
    if x.dtype != "f32":
        raise GraphTypeError("T101", f"split_parts: input is {x.type}, expected f32")
    if x.rank < 2:
        raise GraphTypeError("T102", f"split_parts: input is {x.type}, expected rows")
    check_parts("split_parts", parts)
    return parts_of_rows(x, parts)


def parts_of_rows(
    x: Tensor, parts: int, start: int = 0, depth: Dim | None = None, role: str = ""
) -> Tensor:
    """Returns the result of `split_parts` for `depth` positions of K (None: all) from `start` on.
    `role` is that of the stage.
    """
    outer = x.shape[:-1]
    rows, deep = product(tuple(outer)), x.shape[-1] if depth is None else depth

    def body(row_block: Scalar, block: Scalar, part: Scalar, row: Scalar, k: Scalar) -> Scalar:
        there = block * TILE_DEPTH + k
        place: list[Scalar] = []
        rest: Scalar = row_block * TILE_ROWS + row
        if rows % TILE_ROWS != 0:
            rest = te.minimum(rest, te.size(rows - 1))
        for size in reversed(outer[1:]):
            place.append(rest % te.size(size))
            rest = rest // te.size(size)
        value: Scalar = x[(rest, *reversed(place), start + there)]
        if deep % TILE_DEPTH != 0:
            value = te.select(there < te.size(deep), value, 0.0)
        return part_of(value, part, parts)

    return te.compute(parts_shape(rows, deep, parts), body, "split_parts", role=role)


def part_of(value: Scalar, part: Scalar, parts: int) -> Scalar:
    """Returns a part of a number, as defined by `split_parts`."""
    finite = unary("abs", value) <= _LARGEST_F32
    cut = te.minimum(te.maximum(value, -_LARGEST_BF16), _LARGEST_BF16)
    piece = te.cast("bf16", te.select(finite, cut, value))
    result = piece
    for n in range(1, parts):
        value = value - te.cast("f32", piece)
        piece = te.cast("bf16", te.select(finite, value, 0.0))
        result = te.select(part >= n, piece, result)
    return result


def whole_parts(weight: Tensor, parts: int, dtype: str) -> Tensor:
    """Returns the parts of a finite `f32` weight along a new third axis: its leading bits, the next
    bits, and so on. Truncated parts take one instruction less than rounded ones, and three of them
    still represent the number exactly.
    """

    def body(*i: Scalar) -> Scalar:
        return cut_part_of(weight[(*i[:2], *i[3:])], i[2], parts, dtype)

    shape = (*weight.shape[:2], parts, *weight.shape[2:])
    return te.compute(shape, body, "weight_parts", role="weight_parts")


def cut_part_of(value: Scalar, part: Scalar, parts: int, dtype: str) -> Scalar:
    """Returns a part of a finite number, as defined by `whole_parts`; NaN for other numbers."""
    result = te.cast(dtype, _leading(value))
    for n in range(1, parts):
        value = value - _leading(value)
        result = te.select(part >= n, te.cast(dtype, _leading(value)), result)
    return result


def _leading(value: Scalar) -> Scalar:
    return Bitcast("f32", Bitcast("u32", value) & te.as_scalar(_HIGH_BITS, "u32"))


def cut_parts(x: Array, parts: int) -> list[Array]:
    """Returns finite `f32[...]` as `parts` arrays `f32[...]`, as defined by `whole_parts`."""
    pieces: list[Array] = []
    for _ in range(parts):
        pieces.append((x.view(np.uint32) & np.uint32(_HIGH_BITS)).view(np.float32))
        x = x - pieces[-1]
    return pieces


@split_parts.reference
def _split_parts_reference(x: Array, *, parts: int) -> Array:
    flat = x.reshape(-1, x.shape[-1])
    rows, depth = flat.shape
    flat = np.pad(flat, [(0, -rows % TILE_ROWS), (0, 0)], mode="edge")
    flat = np.pad(flat, [(0, 0), (0, -depth % TILE_DEPTH)])
    tiles = np.stack(parts_of(flat, parts)).reshape(
        parts, flat.shape[0] // TILE_ROWS, TILE_ROWS, -1, TILE_DEPTH
    )
    return np.ascontiguousarray(tiles.transpose(1, 3, 0, 2, 4))


def parts_of(x: Array, parts: int) -> list[Array]:
    """Returns `f32[...]` as `parts` arrays `bf16[...]`, as defined by `split_parts`."""
    finite = np.isfinite(x)
    rest = np.where(finite, np.clip(x, -_LARGEST_BF16, _LARGEST_BF16), x)
    pieces = [rest.astype(to_numpy("bf16"))]
    rest = np.where(finite, x, 0)
    for _ in range(1, parts):
        rest = rest - np.where(finite, pieces[-1].astype(np.float32), 0)
        pieces.append(rest.astype(to_numpy("bf16")))
    return pieces
