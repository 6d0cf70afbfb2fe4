"""What is derived from computes: fusion kinds, stages."""

from __future__ import annotations

from typing import Any

import pytest

import clew.ops
from clew.cost.work import flops_of
from clew.ir.dims import SymDim
from clew.ir.types import TensorType
from clew.ops.common import boolean, f16, f32, i8, i64, u8
from clew.ops.registry import get_op
from clew.te.analysis import Kind
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
