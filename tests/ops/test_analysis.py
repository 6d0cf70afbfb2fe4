"""What is derived from computes: fusion kinds, FLOPs, stages."""

from __future__ import annotations

from typing import Any

import pytest

import clew.ops
from clew import te
from clew.ir.dims import SymDim
from clew.ir.types import TensorType
from clew.ops.common import boolean, f16, f32, f64, i8, i64, u8
from clew.ops.registry import get_op
from clew.te.analysis import (
    Kind,
    bytes_of,
    flops_of,
    most_operations,
    product_flops_of,
    product_work_of,
)
from clew.te.expr import Binary, Cast, Load, Reduce
from clew.te.tensor import Tensor, stages

assert clew.ops

_N = SymDim.symbol("n")
_KINDS: list[tuple[Kind, str, list[TensorType], dict[str, Any]]] = [
    (Kind.ELEMENTWISE, "add", [f32(2, 3), f32(2, 3)], {}),
    (Kind.ELEMENTWISE, "add", [f32(_N, 3), f32(_N, 3)], {}),
    (Kind.ELEMENTWISE, "nn.gelu", [f32(2, 3)], {}),
    (Kind.ELEMENTWISE, "cast", [f32(2, 3)], {"dtype": "f16"}),
    (Kind.ELEMENTWISE, "identity", [f32(2, 3)], {}),
    (Kind.BROADCAST, "add", [f32(2, 3), f32(3)], {}),
    (Kind.BROADCAST, "where", [boolean(2, 1), f32(2, 3), f32()], {}),
    (Kind.BROADCAST, "nn.batch_norm", [f32(2, 3, 4), *[f32(3)] * 4], {}),
    (Kind.INJECTIVE, "transpose", [f32(2, 3)], {"axes": (1, 0)}),
    (Kind.INJECTIVE, "reshape", [f32(2, 6)], {"shape": (3, 4)}),
    (Kind.INJECTIVE, "concatenate", [f32(2), f32(3)], {"axis": 0}),
    (Kind.INJECTIVE, "slice", [f32(9)], {"begin": (1,), "end": (5,), "axes": (0,)}),
    (Kind.INJECTIVE, "gather", [f32(9, 2), i64(3)], {"axis": 0}),
    (Kind.INJECTIVE, "pad", [f32(3)], {"pads": (1, 1)}),
    (Kind.INJECTIVE, "split", [f32(4)], {"sizes": (1, 3), "axis": 0}),
    (Kind.INJECTIVE, "resize", [f32(1, 1, 4, 4)], {"shape": (1, 1, 8, 8)}),
    (Kind.REDUCTION, "sum", [f32(2, 3)], {"axes": (1,)}),
    (Kind.REDUCTION, "sum_square", [f32(2, 3)], {"axes": (1,)}),
    (Kind.REDUCTION, "nn.softmax", [f32(2, 3)], {}),
    (Kind.REDUCTION, "nn.layer_norm", [f32(2, 3), f32(3), f32(3)], {}),
    (Kind.REDUCTION, "nn.max_pool2d", [f32(1, 2, 4, 4)], {"kernel": (2, 2)}),
    (Kind.REDUCTION, "argmax", [f32(2, 3)], {"axis": 1}),
    (Kind.ANCHOR, "nn.conv2d", [f32(1, 3, 5, 5), f32(4, 3, 3, 3)], {"padding": (1, 1, 1, 1)}),
    (Kind.ANCHOR, "nn.conv2d", [u8(1, 3, 5, 5), i8(4, 3, 3, 3)], {}),
    (Kind.ANCHOR, "nn.conv2d_transpose", [f32(1, 3, 5, 5), f32(3, 4, 3, 3)], {}),
    (Kind.ANCHOR, "nn.dense", [f32(_N, 7), f32(3, 7)], {}),
    (Kind.ANCHOR, "nn.matmul", [f16(2, 4, 7), f16(2, 7, 3)], {}),
    (Kind.OPAQUE, "nonzero", [f32(3)], {}),
    (Kind.OPAQUE, "top_k", [f32(3)], {"k": 2}),
]


@pytest.mark.parametrize(("kind", "name", "types", "attrs"), _KINDS)
def test_kind(kind: Kind, name: str, types: list[TensorType], attrs: dict[str, Any]) -> None:
    op = get_op(name)
    assert op.kind(types, op.bind(attrs)) == kind


def _stages(name: str, types: list[TensorType], **attrs: Any) -> list[Tensor]:
    op = get_op(name)
    return stages(op.computed(types, op.bind(attrs)))


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "cummax", "cummin"])
def test_work_of_scans_is_linear(name: str) -> None:
    few, more = (flops_of(_stages(name, [f32(5, n)], axis=1)) for n in (16, 64))
    assert more == 4 * few


def test_a_bound_precedes_the_order_of_free_axes() -> None:
    assert "lows" in {stage.name for stage in _stages("top_k", [f32(5, _N)], k=3)}


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
    ("name", "types", "attrs", "expected"),
    [
        (
            "nn.softmax",
            [f32(2, 3)],
            {},
            "softmax_max softmax_exp softmax_sum softmax_inverse softmax",
        ),
        (
            "nn.layer_norm",
            [f32(2, 3), f32(3)],
            {},
            "layer_norm_mean_sum layer_norm_mean layer_norm_squares layer_norm_rsqrt layer_norm",
        ),
        ("mean", [f32(2, 3)], {"axes": (1,)}, "mean_sum mean"),
        ("nn.conv2d", [f32(1, 3, 5, 5), f32(4, 3, 3, 3)], {}, "conv2d"),
        (
            "nn.conv2d",
            [f32(1, 3, 5, 5), f32(4, 3, 3, 3)],
            {"padding": (1, 1, 1, 1)},
            "conv2d_pad conv2d",
        ),
        ("nn.dense", [f16(2, 3), f16(4, 3)], {}, "dense_sum dense"),
    ],
)
def test_stages(name: str, types: list[TensorType], attrs: dict[str, Any], expected: str) -> None:
    found = sorted(s.name for s in _stages(name, types, **attrs))
    assert found == sorted(expected.split())


@pytest.mark.parametrize(
    ("types", "attrs", "axes"),
    [
        ([f32(1, 3, 5, 5), f32(4, 3, 3, 3)], {}, "ic kh kw"),
        (
            [f32(1, 2, 5, 5, 4), f32(1, 2, 3, 3, 4, 8)],
            {"data_layout": "NCHW4c", "weight_layout": "OIHW4i8o"},
            "ico kh kw ici",
        ),
        ([f32(1, 4, 5, 5), f32(4, 1, 3, 3)], {"groups": 4}, "kh kw"),
    ],
)
def test_convolution_is_a_plain_sum_of_products(
    types: list[TensorType], attrs: dict[str, Any], axes: str
) -> None:
    (stage,) = _stages("nn.conv2d", types, **attrs)
    assert isinstance(stage.body, Reduce)
    assert stage.body.combiner == "sum"
    assert [a.name for a in stage.body.axes] == axes.split()
    product = stage.body.value
    assert isinstance(product, Binary)
    assert product.op == "mul"
    assert isinstance(product.a, Load)
    assert isinstance(product.b, Load)


def test_integer_operands_are_widened_first() -> None:
    (stage,) = _stages("nn.dense", [u8(2, 3), i8(4, 3)])
    assert stage.dtype == "i32"
    assert isinstance(stage.body, Reduce)
    assert isinstance(stage.body.value, Binary)
    assert isinstance(stage.body.value.a, Cast)


def test_blocked_weight_is_read_at_its_blocks() -> None:
    types = [f32(1, 2, 5, 5, 4), f32(1, 2, 1, 1, 4, 8)]
    (stage,) = _stages("nn.conv2d", types, data_layout="NCHW4c", weight_layout="OIHW4i8o")
    assert isinstance(stage.body, Reduce)
    weight = stage.body.value.b  # type: ignore[attr-defined]
    channel = "((oco * 4) + oci)"
    assert str(weight) == f"weight[({channel} // 8), ico, kh, kw, ici, ({channel} % 8)]"


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


def _outputs(name: str, types: list[TensorType], attrs: dict[str, Any]) -> tuple[Tensor, ...]:
    op = get_op(name)
    return op.computed(types, op.bind(attrs))


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
