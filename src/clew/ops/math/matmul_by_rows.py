"""Products with the rows of a matrix of the run, which the kernel packs for many rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from clew.ir.dims import Dim, dim_min, product
from clew.ir.expr import Attrs
from clew.ops.common import differ, f32
from clew.ops.math.matmul import matmul, matrices_layout
from clew.ops.movement.blocks import layout_transform
from clew.ops.registry import Sample, register_op
from clew.support.errors import GraphTypeError
from clew.te import Tensor

Array = np.ndarray[Any, Any]

_IN_PLACE = "NK"


@register_op(
    "nn.matmul_by_rows",
    samples=(
        Sample(f32(5, 7), f32(3, 7), least_rows=2),
        Sample(f32(2, 3, 7), f32(6, 7), packed_layout="NK4n", least_rows=4),
        Sample(f32(2, 3, 5, 8), f32(2, 3, 9, 8), least_rows=9),
        Sample(f32(2, 1, 5, 7), f32(3, 6, 7), packed_layout="NK4n", least_rows=2),
        Sample(f32(5, 7), f32(3, 8), least_rows=2, error="T103"),
        Sample(f32(7), f32(3, 7), least_rows=2, error="T102"),
        Sample(f32(5, 7), f32(3, 7), least_rows=0, error="T107"),
    ),
)
def matmul_by_rows(a: Tensor, b: Tensor, *, least_rows: int, packed_layout: str = "KN") -> Tensor:
    """`a[..., M, K]` times the transposes of `b[..., N, K]`; the other axes broadcast.

    A kernel reads `b` in place for fewer than `least_rows` rows per matrix. From `least_rows` rows
    up, it first copies `b` to `packed_layout`, a layout of `nn.matmul`. Reading rows of `b` along
    the depth is faster for a few rows; the copy takes as long for any number of rows.

    Errors: T102, T103, T107, and those of `nn.matmul`.
    """
    if a.rank < 2 or b.rank < 2:
        raise GraphTypeError("T102", f"nn.matmul_by_rows: {a.type} by {b.type}: no matrices")
    if differ(a.shape[-1], b.shape[-1]):
        raise GraphTypeError(
            "T103",
            f"nn.matmul_by_rows: {a.type} by {b.type}: {a.shape[-1]} is not {b.shape[-1]}",
        )
    if least_rows < 1:
        raise GraphTypeError("T107", f"nn.matmul_by_rows: least_rows={least_rows}, expected 1 up")
    return _packed(a, b, packed_layout)


def _multiply(a: Tensor, b: Tensor, layout: str, units: Dim = 0) -> Tensor:
    assert matmul.compute is not None
    result = matmul.compute(a, b, b_layout=layout, units=units)
    assert isinstance(result, Tensor)
    return result


def _packed(a: Tensor, b: Tensor, layout: str) -> Tensor:
    """Returns the product with a packed copy of `b`."""
    assert layout_transform.compute is not None
    lead = b.rank - 2
    copy = layout_transform.compute(
        b, src_layout=matrices_layout(_IN_PLACE, lead), dst_layout=matrices_layout(layout, lead)
    )
    assert isinstance(copy, Tensor)
    return _multiply(a, copy, layout, 0 if layout == "KN" else b.shape[-2])


@matmul_by_rows.ways
def _ways(operands: Sequence[Tensor], attrs: Attrs) -> list[tuple[Tensor, Dim]]:
    """Returns the product with a packed copy, then that with the matrix in place."""
    a, b = operands
    rows = product(tuple(a.shape[:-1])) if b.rank == 2 else a.shape[-2]
    many = dim_min(rows // attrs.least_rows, 1)
    return [(_packed(a, b, attrs.packed_layout), many), (_multiply(a, b, _IN_PLACE), 1 - many)]


@matmul_by_rows.reference
def _matmul_by_rows_reference(a: Array, b: Array, *, least_rows: int, packed_layout: str) -> Array:
    product_ = np.matmul(a.astype(np.float64), np.swapaxes(b, -1, -2).astype(np.float64))
    return np.asarray(product_).astype(a.dtype)
