"""A dense layer that multiplies parts of its operands (bf16x3) if it has many rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from clew import te
from clew.ir.dims import Dim, dim_min, product
from clew.ir.expr import Attrs
from clew.ops.common import bf16, exceeds, f32
from clew.ops.math.matmul import check_units, dense, dense_sizes, place_of_weight
from clew.ops.math.parts import DATA_PARTS, parts_of_rows
from clew.ops.movement.layouts import parse_layout, transform
from clew.ops.registry import Sample, register_op
from clew.ops.traits import Traits
from clew.support.errors import GraphTypeError
from clew.te import Scalar, Tensor, as_scalar, roles

Array = np.ndarray[Any, Any]


@register_op(
    "nn.dense_by_rows",
    traits=Traits(reads_bits=True),  # the dtype says how numbers were split
    samples=(  # of few rows, since random pieces are not the parts of the weight
        Sample(f32(5, 7), f32(3, 7), bf16(3, 21), least_rows=4096),
        Sample(f32(2, 3, 64), f32(3, 32, 2), bf16(3, 32, 2, 2), weight_layout="NK2n",
               parts_layout="NK2n2k", units=6, parts=2, start=32, least_rows=4096),
        Sample(f32(5, 7), f32(3, 8), bf16(3, 24), least_rows=4, error="T103"),
        Sample(f32(5, 7), f32(3, 7), bf16(3, 21), least_rows=0, error="T107"),
    ),
)  # fmt: skip
def dense_by_rows(
    data: Tensor,
    weight: Tensor,
    pieces: Tensor,
    *,
    least_rows: int,
    weight_layout: str = "NK",
    parts_layout: str = "NK",
    units: int = 0,
    parts: int = 3,
    start: int = 0,
) -> Tensor:
    """`nn.dense` by one of two algorithms, which the number of rows selects.

    For fewer than `least_rows` rows, `data[..., K]` is multiplied by `weight`, a matrix in
    `weight_layout`. From `least_rows` rows up, the parts of both are multiplied, as by `nn.dense`
    with `parts`: the kernel splits the data, and `pieces` holds the parts of the weight in
    `parts_layout`. The data are read from position `start` of K on. `units` is the number of
    columns if a packed weight rounds it up.

    A matrix unit multiplies parts faster, but its tiles are mostly empty if there are few rows. A
    kernel contains both algorithms, and the sizes of a run select one.

    Errors: T103, T107, T109, and those of `nn.dense`.
    """
    if least_rows < 1:
        raise GraphTypeError("T107", f"nn.dense_by_rows: least_rows={least_rows}, expected 1 up")
    layout = parse_layout(weight_layout)
    sizes = dense_sizes(weight, weight_layout)
    depth, width = sizes["K"], data.shape[-1]
    if exceeds(start + depth, width):
        raise GraphTypeError(
            "T103",
            f"nn.dense_by_rows: input has {width} features, weight expects {depth} from {start} on",
        )
    count = units or sizes["N"]
    check_units("nn.dense_by_rows", count, sizes["N"], layout.factor("N"), weight)
    _from_parts(data, depth, pieces, parts_layout, units, parts, start)  # its checks hold, too
    k = te.reduce_axis(depth, "k", roles.DEPTH)

    def body(*i: Scalar) -> Scalar:
        factor = weight[tuple(place_of_weight(layout, as_scalar(k), i[-1]))]
        return te.sum(data[(*i[:-1], start + k)] * factor, [k])

    outer = data.shape[:-1]
    names = (*(f"i{axis}" for axis in range(len(outer) - 1)), *("m",)[: len(outer)], "n")
    return te.compute((*outer, count), body, "dense", axes=names)


def _from_parts(
    data: Tensor, depth: Dim, pieces: Tensor, layout: str, units: int, parts: int, start: int
) -> Tensor:
    """Returns the product of parts of `depth` positions of K."""
    assert dense.compute is not None
    split = parts_of_rows(data, parts, start, depth, role=DATA_PARTS)
    result = dense.compute(
        split, pieces, weight_layout=layout, units=units, out_dtype="f32", parts=parts,
        rows=data.shape[:-1],
    )  # fmt: skip
    assert isinstance(result, Tensor)
    return result


@dense_by_rows.ways
def _ways(operands: Sequence[Tensor], attrs: Attrs) -> list[tuple[Tensor, Dim]]:
    """Returns the product of f32, then that of parts."""
    data, weight, pieces = operands
    assert dense_by_rows.compute is not None
    plain = dense_by_rows.compute(data, weight, pieces, **attrs)
    assert isinstance(plain, Tensor)
    depth = dense_sizes(weight, attrs.weight_layout)["K"]
    given = attrs.parts_layout, attrs.units, attrs.parts, attrs.start
    many = dim_min(product(tuple(data.shape[:-1])) // attrs.least_rows, 1)
    return [(plain, 1 - many), (_from_parts(data, depth, pieces, *given), many)]


@dense_by_rows.reference
def _dense_by_rows_reference(
    data: Array,
    weight: Array,
    pieces: Array,
    *,
    least_rows: int,
    weight_layout: str,
    parts_layout: str,
    units: int,
    parts: int,
    start: int,
) -> Array:
    matrix = transform(weight, weight_layout, "KN")[:, : units or None].astype(np.float64)
    piece = data[..., start : start + len(matrix)].astype(np.float64)
    return np.asarray(np.matmul(piece, matrix).astype(np.float32))
