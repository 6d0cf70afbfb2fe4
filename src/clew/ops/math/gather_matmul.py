"""Products with matrices that an index selects."""

from __future__ import annotations

from typing import Any

import numpy as np

from clew import te
from clew.ops.common import (
    broadcast_place,
    broadcast_shapes,
    differ,
    f32,
    f64,
    i64,
    need_float,
    need_integer,
)
from clew.ops.math.matmul import check_units, dense_sizes, matrices_layout, place_of_weight
from clew.ops.movement.indexing import index_at, indices_in
from clew.ops.movement.layouts import parse_layout, transform
from clew.ops.registry import Sample, register_op
from clew.support.errors import GraphTypeError
from clew.te import Scalar, Tensor, as_scalar, roles

Array = np.ndarray[Any, Any]


@register_op(
    "nn.gather_matmul",
    samples=(
        Sample(f32(4, 5, 7), f32(3, 6, 7), np.array([2, 0, 0, 1])),
        Sample(f32(2, 1, 1, 16), f32(3, 6, 16), np.array([[2, 0], [1, 1]])),
        Sample(f32(2, 3, 7), f32(3, 2, 7, 4), np.array([2, 1]), b_layout="NK4n", units=6),
        Sample(f64(2, 3, 7), f64(1, 6, 7), np.array([0, 0], "i4")),
        Sample(f32(2, 3, 7), f32(4, 6, 7), np.array([0, 4]), error="I320"),
        Sample(f32(2, 3, 7), f32(4, 6, 7), np.array([0, -1]), error="I320"),
        Sample(f32(2, 3, 7), f32(4, 6, 8), i64(2), error="T103"),
        Sample(f32(2, 3, 7), f64(4, 6, 7), i64(2), error="T101"),
        Sample(f32(3), f32(4, 6, 3), i64(2), error="T102"),
        Sample(f32(2, 3, 7), f32(4, 6, 7, 2), i64(2), error="T109"),
        Sample(f32(2, 3, 7), f32(4, 6, 7), i64(2), units=5, error="T107"),
        Sample(f32(2, 3, 7), f32(4, 6, 7), f32(2), error="T105"),
        Sample(f32(2, 3, 7), f32(4, 6, 7), i64(3), error="T100"),
    ),
)
def gather_matmul(
    a: Tensor, b: Tensor, indices: Tensor, *, b_layout: str = "NK", units: int = 0
) -> Tensor:
    """Multiplies `a[..., M, K]` by the transpose of the matrix of `b[E, N, K]` that `indices[...]`
    selects: `f32[..., M, N]`. The leading axes of `a` broadcast to those of `indices`. Indices are
    0 to E - 1; any other raises I320 in the run.

    `b_layout` is the layout of each matrix of `b`, which may be packed like the weight of
    `nn.dense`. `units` is then N if the last block is padded, otherwise 0.

    A mixture of experts thus reads only the matrices of the experts that its tokens use.

    Errors: T100, T101, T102, T103, T105, T107, T109, I320.
    """
    need_float("nn.gather_matmul", a)
    need_integer("nn.gather_matmul", indices)
    if a.dtype != b.dtype:
        raise GraphTypeError("T101", f"nn.gather_matmul: {a.type} by {b.type}")
    if a.rank < 2:
        raise GraphTypeError("T102", f"nn.gather_matmul: {a.type}, expected at least two axes")
    layout = parse_layout(b_layout)
    if b.rank != 1 + len(layout.axes):
        raise GraphTypeError(
            "T109", f"nn.gather_matmul: {b.type} has no matrices in layout {b_layout}"
        )
    count = b.shape[0]
    sizes = dense_sizes(te.placeholder(b.shape[1:], b.dtype, "matrix"), b_layout)
    width, depth = units or sizes["N"], sizes["K"]
    check_units("nn.gather_matmul", width, sizes["N"], layout.factor("N"), b)
    if differ(a.shape[-1], depth):
        raise GraphTypeError(
            "T103",
            f"nn.gather_matmul: input has {a.shape[-1]} features, matrices expect {depth}",
        )
    lead = broadcast_shapes("nn.gather_matmul", a.shape[:-2], indices.shape)
    if len(lead) != indices.rank or any(map(differ, lead, indices.shape)):
        raise GraphTypeError("T100", f"nn.gather_matmul: {a.type} for indices {indices.type}")
    k = te.reduce_axis(depth, "k", roles.DEPTH)

    def body(*i: Scalar) -> Scalar:
        place = i[: len(lead)]
        which = index_at("nn.gather_matmul", indices, place, 0, count, from_end=False)
        left = a[(*broadcast_place(a.shape[:-2], lead, place), i[-2], k)]
        right = b[(which, *place_of_weight(layout, as_scalar(k), i[-1]))]
        return te.sum(left * right, k)

    shape = (*lead, a.shape[-2], width)
    names = (*(f"b{axis}" for axis in range(len(lead))), "m", "n")
    return te.compute(shape, body, "gather_matmul", axes=names)


@gather_matmul.reference
def _gather_matmul_reference(
    a: Array, b: Array, indices: Array, *, b_layout: str, units: int
) -> Array:
    plain = transform(b, matrices_layout(b_layout, 1), matrices_layout("KN", 1))
    plain = plain[..., : units or None]
    chosen = plain[indices_in("nn.gather_matmul", indices, 0, len(plain), False)]
    product = np.matmul(a.astype(np.float64), chosen.astype(np.float64))
    return np.asarray(product.astype(a.dtype))
