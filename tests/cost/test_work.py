"""The work of computations: operations, products and bytes."""

from __future__ import annotations

from typing import Any

import pytest

import clew.ops
from clew import te
from clew.cost.work import (
    ProductWork,
    Work,
    bytes_of,
    flops_of,
    most_operations,
    product_flops_of,
    product_work_of,
    work_of,
)
from clew.ir.dims import Sizes, SymDim
from clew.ir.types import TensorType
from clew.ops.common import boolean, f32, f64, i64
from clew.ops.registry import get_op
from clew.te.tensor import Tensor, stages

assert clew.ops

_N = SymDim.symbol("n")


def _stages(name: str, types: list[TensorType], **attrs: Any) -> list[Tensor]:
    op = get_op(name)
    return stages(op.computed(types, op.bind(attrs)))


def _outputs(name: str, types: list[TensorType], attrs: dict[str, Any]) -> tuple[Tensor, ...]:
    op = get_op(name)
    return op.computed(types, op.bind(attrs))


def test_flops() -> None:
    conv = _stages("nn.conv2d", [f32(2, 16, 10, 10), f32(8, 4, 3, 3)], groups=4)
    # Each multiply-add counts twice.
    assert flops_of(conv[-1:]) == 2 * (2 * 8 * 8 * 8) * (4 * 3 * 3)
    dense = _stages("nn.dense", [f32(5, 7), f32(3, 7)])
    assert flops_of(dense) == 2 * 5 * 7 * 3
    assert flops_of(_stages("nn.dense", [f32(_N, 7), f32(3, 7)])) == _N * 42
    assert flops_of(_stages("add", [f32(2, 3), f32(3)])) == 6
    # Padding computes nothing; a window of a maximum with it is one operation for each element.
    assert flops_of(_stages("pad", [f32(2, 3)], pads=(1, 1, 1, 1))) == 0
    pool = _stages("nn.max_pool2d", [f32(1, 2, 6, 6)], kernel=(3, 3), padding=(1, 1, 1, 1))
    assert flops_of(pool) == (2 * 6 * 6) * 9
    assert flops_of(_stages("where", [boolean(5), f32(5), f32(5)])) == 5


@pytest.mark.parametrize(
    ("name", "types", "attrs", "elements"),
    [
        ("add", [f32(2, 3), f32(3)], {}, 6 + 3 + 6),
        ("nn.matmul", [f32(2, 4, 7), f32(2, 7, 3)], {}, 56 + 42 + 24),
        ("nn.softmax", [f32(2, 3)], {}, 6 + 6),
        ("slice", [f32(9)], {"begin": (1,), "end": (5,), "axes": (0,)}, 4 + 4),
        ("split", [f32(4)], {"sizes": (1, 3), "axis": 0}, 4 + 4),
    ],
)
def test_bytes_count_operands_once_and_what_is_read_of_them(
    name: str, types: list[TensorType], attrs: dict[str, Any], elements: int
) -> None:
    assert bytes_of(_outputs(name, types, attrs)) == 4 * elements


def test_bytes_of_a_table_are_those_of_the_rows_that_are_read() -> None:
    outputs = _outputs("gather", [f32(1000, 8), i64(3)], {"axis": 0})
    # Rows, indices and result; an index is read anew for each element, but is one of three.
    assert bytes_of(outputs) == 4 * 24 + 8 * 3 + 4 * 24


def test_the_most_operations_count_every_comparison() -> None:
    boxes = [f32(1, 1000, 4), f32(1, 80, 1000), i64(), f64()]
    few, many = (_stages("best_boxes", boxes, room=room) for room in (1, 100))
    assert most_operations(many) - flops_of(many) > 80 * 900 * 100 * 10
    assert most_operations(few) - flops_of(few) < 80 * 1000 * 1 * 25
    pool = _stages("nn.max_pool2d", [f32(1, 2, 8, 8)], kernel=(3, 3))
    assert most_operations(pool) == flops_of(pool)


def test_product_flops_are_those_of_sums_of_products_alone() -> None:
    types = [f32(1, 4, 5, 5), f32(6, 2, 3, 3)]
    attrs = {"groups": 2, "padding": (1, 1, 1, 1)}
    assert product_flops_of(_outputs("nn.conv2d", types, attrs)) == 2 * (6 * 25) * (2 * 9)
    assert product_flops_of(_outputs("nn.dense", [f32(_N, 7), f32(3, 7)], {})) == 42 * _N
    for name in "nn.softmax", "nn.gelu":
        assert product_flops_of(_outputs(name, [f32(2, 3)], {})) == 0


def test_shifts_by_position_unpack_and_do_not_compute() -> None:
    """A factor that is unpacked from words counts as one of the words' dtype."""
    data, steps = te.placeholder((5, 1, 64), "i16", "x"), te.placeholder((5, 2), "f32", "s")
    words, scales = te.placeholder((2, 8, 8, 2), "i16", "w"), te.placeholder((2, 2, 8), "f16", "f")
    compute = get_op("nn.dense_codes").compute
    assert compute is not None
    result = compute(data, steps, words, scales, bits=4, block=32)
    first, second = product_work_of([result])
    assert (first.data, first.weight, first.flops) == ("i16", "i16", 2 * 5 * 16 * 64)
    assert second.flops == 2 * 5 * 16 * 2
    assert flops_of([result]) == first.flops + 5 * 16 * 2 * 3  # two products and a sum


def test_work_is_counted_at_the_sizes_of_a_run() -> None:
    outputs = _outputs("nn.dense", [f32(_N, 7), f32(3, 7)], {})
    work = work_of(outputs, Sizes({"n": 5}).value)
    moved = 4 * (5 * 7 + 3 * 7 + 5 * 3)
    assert work == Work(2 * 5 * 7 * 3, moved, (ProductWork("f32", "f32", 2 * 5 * 7 * 3),))
    assert work.product_flops == work.flops
