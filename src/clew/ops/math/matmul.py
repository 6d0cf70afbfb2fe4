"""Matrix products."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from clew import te
from clew.ir.dims import Dim, product
from clew.ir.types import from_numpy, to_numpy
from clew.ops.common import (
    bf16,
    broadcast_place,
    broadcast_shapes,
    differ,
    f16,
    f32,
    f64,
    i8,
    rounds_up,
    u8,
)
from clew.ops.convolution.stages import factor_of_sums, product_dtypes
from clew.ops.convolution.windows import blocks
from clew.ops.math.parts import (
    check_parts,
    cut_parts,
    flat_row,
    holds_parts,
    part_at,
    part_products,
    part_terms,
    whole_parts,
)
from clew.ops.movement.layouts import Layout, logical_sizes, parse_layout, transform
from clew.ops.registry import Sample, register_op
from clew.ops.traits import Traits
from clew.support.errors import GraphTypeError
from clew.te import Scalar, Tensor, as_scalar, roles

Array = np.ndarray[Any, Any]

_BATCH: Final = "ABCDEFGH"
MOST_BATCH_AXES: Final = len(_BATCH)
"""The most axes of a batch of packed matrices (`matrices_layout`)."""


def _narrow(result: Tensor, dtype: str, name: str) -> Tensor:
    if result.dtype == dtype:
        return result
    return te.compute(result.shape, lambda *i: te.cast(dtype, result[i]), name)


@register_op(
    "nn.dense",
    traits=Traits(product="weights"),
    samples=(
        Sample(f32(5, 7), f32(3, 7)),
        Sample(f32(2, 3, 8), f32(4, 8)),
        Sample(f32(7), f32(3, 7)),
        Sample(f32(5, 7), f32(7, 3), weight_layout="KN"),
        Sample(f32(5, 7), f32(2, 7, 4), weight_layout="NK4n", units=6),
        Sample(f32(2, 5, 7), f32(2, 7, 4), weight_layout="NK4n"),
        Sample(f16(5, 33), f16(3, 33)),
        Sample(f16(5, 33), f16(3, 33), out_dtype="f32"),
        Sample(f16(5, 7), f16(2, 4, 4, 2), weight_layout="NK4n2k", units=6),
        Sample(u8(5, 7), i8(3, 7), low=0, high=9),
        Sample(u8(5, 7), i8(1, 2, 4, 4), weight_layout="NK4n4k", low=0, high=9),
        Sample(u8(5, 7), i8(1, 2, 4, 4), weight_layout="NK4n4k", low=0, high=9, pairs_fit=True),
        Sample(f16(1, 1, 3, 16, 32), f16(3, 21), parts=3, rows=(5,), out_dtype="f32"),
        Sample(
            f16(2, 2, 2, 16, 32),
            f16(2, 32, 4, 2),
            weight_layout="NK4n2k",
            units=6,
            parts=2,
            rows=(3, 6),
            start=32,
        ),
        Sample(f16(1, 1, 3, 16, 32), f32(3, 7), parts=3, rows=(5,), out_dtype="f32"),
        Sample(
            f16(2, 2, 2, 16, 32),
            f32(2, 16, 4, 2),
            weight_layout="NK4n2k",
            units=6,
            parts=2,
            rows=(3, 6),
            start=32,
            out_dtype="f32",
        ),
        Sample(f16(2, 2, 3, 16, 32), f16(3, 21), parts=3, rows=(5,), error="T103"),
        Sample(f16(2, 1, 3, 16, 32), f16(3, 99), parts=3, rows=(32,), error="T103"),
        Sample(f16(5, 21), f16(3, 21), parts=3, rows=(5,), error="T103"),
        Sample(f32(5, 8), f32(3, 8), parts=4, error="T107"),
        Sample(f32(5, 7), f32(3, 8), error="T103"),
        Sample(f32(5, 7), f32(3, 7), out_dtype="f16", error="T107"),
        Sample(f32(5, 7), f16(3, 7)),
        Sample(f32(5, 7), bf16(2, 7, 4), weight_layout="NK4n", units=6),
        Sample(f16(5, 7), f32(3, 7), error="T101"),
        Sample(f32(5, 7), f32(3, 7), pairs_fit=True, error="T107"),
        Sample(f32(5, 7), f32(3, 7), units=4, error="T107"),
        Sample(f32(), f32(3, 7), error="T102"),
        Sample(f32(5, 7), f32(3, 7, 1), error="T109"),
    ),
)
def dense(
    data: Tensor,
    weight: Tensor,
    *,
    weight_layout: str = "NK",
    units: int = 0,
    out_dtype: str = "",
    parts: int = 1,
    rows: tuple[int, ...] = (),
    start: int = 0,
    pairs_fit: bool = False,
) -> Tensor:
    """`data[..., K]` times a matrix, `f32[..., N]`. The weight's layout is `NK`, `KN`, or packed:
    `NK32n` or, with groups of K innermost, `NK32n2k`.

    `units` is N if the packed weight rounds it up. Narrow floats are accumulated in `f32`, which is
    also the dtype of the result with `out_dtype="f32"`. A weight of narrow floats may be multiplied
    by data in `f32`.

    With `parts`, 2 or 3, the operands hold each number as a sum of that many parts. The data is the
    result of `split_parts` for an `f32[*rows, ...]`, read from number `start` on. The K axis of the
    weight holds all first parts, then all second ones, and so on; or the weight is finite `f32`,
    which the kernel splits. Products of parts i and j with i + j < parts are summed; the others are
    too small to matter.

    `pairs_fit` states, for operands of 8 bits, that 16 bits hold the sum of any two products of a
    result, as for `nn.conv2d`.

    Errors: T101, T102, T103, T107, T109. Source: ONNX Gemm-13, MatMul-13.
    """
    whole = parts > 1 and weight.dtype == "f32"
    factors = data.dtype if whole else weight.dtype
    wide, dtype = product_dtypes(data.dtype, factors, "nn.dense", out_dtype, narrow_weight=True)
    if data.rank == 0:
        raise GraphTypeError("T102", f"nn.dense: data is {data.type}, expected at least one axis")
    layout = parse_layout(weight_layout)
    sizes = dense_sizes(weight, weight_layout)
    check_parts("nn.dense", parts)
    if parts > 1 and data.dtype == "f32":
        raise GraphTypeError("T101", f"nn.dense: data is {data.type}, expected parts of numbers")
    depth = data.shape[-1] if parts == 1 else sizes["K"] // (1 if whole else parts)
    if parts > 1:
        fits = holds_parts(data.shape, product(rows), start + depth, parts)
    else:
        fits = rounds_up(depth, sizes["K"], layout.factor("K"))
    if not fits:
        raise GraphTypeError(
            "T103",
            f"nn.dense: input has {data.shape[-1]} features, weight expects {sizes['K']}",
            hint=f"data is {data.type}, weight is {weight.type} in layout {weight_layout}",
        )
    count = units or sizes["N"]
    check_units("nn.dense", count, sizes["N"], layout.factor("N"), weight)
    k = te.reduce_axis(depth, "k", roles.DEPTH)
    terms = part_terms(parts)
    over = [k] if terms is None else [terms.axis, k]
    pieces = whole_parts(weight, parts, factors) if whole else None

    def body(*i: Scalar) -> Scalar:
        n, right = i[-1], as_scalar(k)
        if terms is None:
            element = data[(*i[:-1], k)]
        else:
            right = k if whole else terms.right * te.size(depth) + k
            element = part_at(data, terms.left, flat_row(i[:-1], rows), start + k)
        place = place_of_weight(layout, right, n)
        if pieces is None or terms is None:
            factor = weight[tuple(place)]
        else:
            factor = pieces[(*place[:2], terms.right, *place[2:])]
        factor = factor_of_sums("nn.dense", wide, factor, data.dtype, pairs_fit=pairs_fit)
        return te.sum(te.cast(wide, element) * factor, over)

    outer = data.shape[:-1] if terms is None else rows
    shape = (*outer, count)
    names = (*(f"i{axis}" for axis in range(len(outer) - 1)), *("m",)[: len(outer)], "n")
    result = te.compute(shape, body, "dense" if wide == dtype else "dense_sum", axes=names)
    return _narrow(result, dtype, "dense")


def check_units(name: str, units: Dim, stored: Dim, block: int, weight: Tensor) -> None:
    """Checks a number of columns, which a weight in blocks of columns rounds up.

    Errors: T107.
    """
    if not rounds_up(units, stored, block):
        raise GraphTypeError(
            "T107", f"{name}: units={units}, but the weight {weight.type} has {stored}"
        )


def place_of_weight(layout: Layout, k: Scalar, n: Scalar) -> list[Scalar]:
    """Returns the position of the element in row k and column n of a dense weight in a layout."""
    block, group = layout.factor("N"), layout.factor("K")
    places = {"K": k // group, "k": k % group, "N": n // block, "n": n % block}
    return [places[axis] for axis in layout.axes]


def dense_sizes(weight: Tensor, weight_layout: str) -> dict[str, Any]:
    """Returns the sizes of the axes N and K of a dense weight.

    Errors: T109.
    """
    layout = parse_layout(weight_layout)
    if set(layout.plain) != {"N", "K"}:
        raise GraphTypeError(
            "T109", f"nn.dense: weight_layout {weight_layout!r} is not NK, KN, NK<b>n or NK<b>n<g>k"
        )
    return logical_sizes(layout, weight.shape)


@dense.reference
def _dense_reference(
    data: Array,
    weight: Array,
    *,
    weight_layout: str,
    units: int,
    out_dtype: str,
    parts: int,
    rows: tuple[int, ...],
    start: int,
    pairs_fit: bool,
) -> Array:
    whole = parts > 1 and weight.dtype == np.float32
    factors = data.dtype if whole else weight.dtype
    wide, dtype = product_dtypes(
        from_numpy(data.dtype), from_numpy(factors), "nn.dense", out_dtype, narrow_weight=True
    )
    exact = np.float64 if wide[0] == "f" else to_numpy(wide)
    matrix = transform(weight, weight_layout, "KN")[:, : units or None]
    matrix = np.concatenate(cut_parts(matrix, parts)) if whole else matrix
    lead = rows if parts > 1 else data.shape[:-1]
    result = np.empty((*lead, matrix.shape[1]), to_numpy(dtype))
    x = data.astype(exact)
    for some in blocks(matrix.shape[1], len(matrix)):
        factors = matrix[:, some].astype(exact)
        if parts > 1:
            flat = part_products(x, factors, parts, math.prod(rows), start)
            product = flat.reshape(*rows, -1)
        else:
            product = np.matmul(x, factors[: data.shape[-1]])
        result[..., some] = product.astype(result.dtype)
    return result


@register_op(
    "nn.matmul",
    traits=Traits(product="values"),
    samples=(
        Sample(f32(5, 7), f32(7, 3)),
        Sample(f32(2, 3, 5, 7), f32(2, 3, 7, 4)),
        Sample(f32(2, 1, 5, 7), f32(3, 7, 4)),
        Sample(f32(7), f32(7)),
        Sample(f32(7), f32(2, 7, 3)),
        Sample(f32(2, 3, 7), f32(7)),
        Sample(f64(1, 1), f64(1, 1)),
        Sample(f16(5, 33), f16(33, 3)),
        Sample(u8(5, 7), i8(7, 3), low=0, high=9),
        Sample(f32(5, 7), f32(8, 3), error="T103"),
        Sample(f32(2, 5, 7), f32(3, 7, 4), error="T100"),
        Sample(f32(), f32(3, 7), error="T102"),
        Sample(f16(5, 33), f16(33, 3), out_dtype="f32"),
        Sample(f16(3, 5, 7), f16(3, 2, 4, 4, 2), b_layout="NK4n2k", units=6, out_dtype="f32"),
        Sample(u8(2, 1, 5, 7), i8(3, 1, 2, 4, 4), b_layout="NK4n4k", low=0, high=9),
        Sample(f32(2, 5, 7), f32(2, 1, 7, 4), b_layout="NK4n", units=3),
        Sample(f32(2, 5, 7), f32(2, 2, 7, 4), b_layout="NK4n", units=3, error="T107"),
        Sample(f32(2, 5, 7), f32(2, 2, 8, 4), b_layout="NK4n", error="T103"),
        Sample(f32(2, 5, 7), f32(7, 4), b_layout="NK4n", error="T109"),
        Sample(f32(7), f32(2, 7, 4), b_layout="NK4n", error="T102"),
        Sample(f32(5, 7), f64(7, 3), error="T101"),
        Sample(f32(5, 7), f32(7, 3), out_dtype="f16", error="T107"),
    ),
)
def matmul(
    a: Tensor, b: Tensor, *, out_dtype: str = "", b_layout: str = "KN", units: int = 0
) -> Tensor:
    """Matrix product of the last two axes; the others broadcast. Vectors are handled as in NumPy's
    `matmul`. Narrow floats are accumulated in `f32`, which is also the dtype of the result with
    `out_dtype="f32"`.

    `b_layout` is the layout of the matrices of `b`. They may be packed like the weight of
    `nn.dense`; `units` is then their number of columns, if the last block rounds it up.

    Errors: T100, T101, T102, T103, T107, T109. Source: ONNX MatMul-13.
    """
    wide, dtype = product_dtypes(a.dtype, b.dtype, "nn.matmul", out_dtype)
    if not a.rank or not b.rank:
        raise GraphTypeError("T102", f"nn.matmul: {a.type} by {b.type}: scalars are not supported")
    layout = parse_layout(b_layout)
    packed = b_layout != "KN"
    left, right = a.shape[-1], b.shape[-2] if b.rank > 1 else b.shape[0]
    rows, columns = int(a.rank > 1), int(b.rank > 1)
    a_batch, b_batch, width = a.shape[:-2], b.shape[:-2], b.shape[-1:][:columns]
    if packed:
        a_batch, b_batch, right, count = _packed_sizes(a, b, b_layout, units)
        width = (count,)
    elif units:
        raise GraphTypeError("T107", f"nn.matmul: units={units} for a layout of KN")
    if not rounds_up(left, right, layout.factor("K")) if packed else differ(left, right):
        raise GraphTypeError("T103", f"nn.matmul: {a.type} by {b.type}: {left} is not {right}")
    batch = broadcast_shapes("nn.matmul", a_batch, b_batch)
    depth = left if packed or isinstance(left, int) else right
    k = te.reduce_axis(depth, "k", roles.DEPTH)

    def body(*i: Scalar) -> Scalar:
        place, tail = i[: len(batch)], i[len(batch) :]
        x = a[(*broadcast_place(a_batch, batch, place), *tail[:rows], k)]
        matrix = place_of_weight(layout, k, tail[-1]) if packed else (k, *tail[rows:])
        y = b[(*broadcast_place(b_batch, batch, place), *matrix)]
        return te.sum(te.cast(wide, x) * te.cast(wide, y), k)

    shape = (*batch, *a.shape[-2:-1][:rows], *width)
    names = (*(f"b{axis}" for axis in range(len(batch))), *("m",) * rows, *("n",) * columns)
    result = te.compute(shape, body, "matmul" if wide == dtype else "matmul_sum", axes=names)
    return _narrow(result, dtype, "matmul")


def _packed_sizes(
    a: Tensor, b: Tensor, b_layout: str, units: int
) -> tuple[tuple[Dim, ...], tuple[Dim, ...], Dim, Dim]:
    """Returns the batches of both operands, and the rows and columns of a packed matrix.

    Errors: T102, T107, T109.
    """
    layout = parse_layout(b_layout)
    lead = b.rank - len(layout.axes)
    if set(layout.plain) != {"N", "K"} or lead < 0:
        raise GraphTypeError("T109", f"nn.matmul: {b.type} has no matrices in layout {b_layout}")
    if a.rank < 2:
        raise GraphTypeError("T102", f"nn.matmul: {a.type} by {b.type} in layout {b_layout}")
    sizes = logical_sizes(layout, b.shape[lead:])
    count = units or sizes["N"]
    check_units("nn.matmul", count, sizes["N"], layout.factor("N"), b)
    return a.shape[:-2], b.shape[:lead], sizes["K"], count


def matrices_layout(layout: str, batch_axes: int) -> str:
    """Returns the layout of a tensor of matrices: axes of the batch, then those of the layout."""
    return _BATCH[:batch_axes] + layout


@matmul.reference
def _matmul_reference(a: Array, b: Array, *, out_dtype: str, b_layout: str, units: int) -> Array:
    if b_layout != "KN":
        lead = b.ndim - len(parse_layout(b_layout).axes)
        plain = transform(b, matrices_layout(b_layout, lead), matrices_layout("KN", lead))
        b = plain[..., : a.shape[-1], : units or None]
    wide, dtype = product_dtypes(from_numpy(a.dtype), from_numpy(b.dtype), "nn.matmul", out_dtype)
    exact = np.float64 if wide[0] == "f" else to_numpy(wide)
    return np.asarray(np.matmul(a.astype(exact), b.astype(exact))).astype(to_numpy(dtype))
