"""Facts of operators: what their declarations, types and tensor expressions say."""

from __future__ import annotations

import json
from typing import Any

import pytest

import clew
import zoo
from clew.correlate import describe_kernel, describe_operator
from clew.correlate.graph_json import summary, typed
from clew.ir.dims import SymDim
from clew.ir.expr import Constant, Var
from clew.ir.types import TensorType
from clew.ops.common import f16, f32, i8, i64, u8
from clew.ops.registry import get_op

_N = SymDim.symbol("n")


def facts(name: str, *types: TensorType, **attrs: Any) -> dict[str, Any]:
    args = [Var(f"x{n}", t) for n, t in enumerate(types)]
    found = describe_operator(get_op(name)(*args, **attrs))
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    return found


def part(found: dict[str, Any], keys: str) -> dict[str, Any]:
    return {k: found[k] for k in keys.split()}


def test_a_blocked_convolution() -> None:
    found = facts(
        "nn.conv2d",
        f32(1, 2, 9, 9, 4),
        f32(2, 2, 3, 3, 4, 8),
        padding=(1, 1, 1, 1),
        strides=(2, 2),
        data_layout="NCHW4c",
        weight_layout="OIHW4i8o",
        out_layout="NCHW8c",
        channels=14,
    )
    assert part(found, "op kind dtype layout kernel strides padding dilation groups") == {
        "op": "nn.conv2d",
        "kind": "anchor",
        "dtype": "f32",
        "layout": "NCHW8c",
        "kernel": [3, 3],
        "strides": [2, 2],
        "padding": [1, 1, 1, 1],
        "dilation": [1, 1],
        "groups": 1,
    }
    assert part(found, "channels_in channels_out") == {"channels_in": 8, "channels_out": 14}
    assert part(found, "batch m k") == {"batch": 1, "m": 25, "k": 72}
    assert [i["name"] for i in found["inputs"]] == ["data", "weight"]
    assert [i["layout"] for i in found["inputs"]] == ["NCHW4c", "OIHW4i8o"]
    assert found["attrs"]["padding"] == [1, 1, 1, 1]
    assert summary(found) == "conv2d 3x3 /2 pad 1 8→14 NCHW4c→NCHW8c f32"
    assert typed(found["outputs"][0]) == "f32[1, 2, 5, 5, 8]:NCHW8c"


@pytest.mark.parametrize(
    ("groups", "filters", "batch", "columns", "depth"),
    [(1, (6, 8, 3, 3), 1, 6, 72), (2, (6, 4, 3, 3), 2, 3, 36), (8, (16, 1, 3, 3), 8, 2, 9)],
)
def test_groups_are_a_batch_of_products(
    groups: int, filters: tuple[int, ...], batch: int, columns: int, depth: int
) -> None:
    found = facts("nn.conv2d", f32(2, 8, 5, 5), f32(*filters), groups=groups)
    assert part(found, "batch m n k") == {"batch": batch, "m": 18, "n": columns, "k": depth}
    assert found["product_flops"] == 2 * batch * 18 * columns * depth


@pytest.mark.parametrize(
    ("name", "types", "attrs", "sizes"),
    [
        ("nn.dense", [f32(2, 5, 7), f32(3, 7)], {}, (1, 10, 3, 7)),
        (
            "nn.dense",
            [f32(5, 7), f32(2, 7, 4)],
            {"weight_layout": "NK4n", "units": 6},
            (1, 5, 6, 7),
        ),
        ("nn.matmul", [f32(2, 1, 5, 7), f32(3, 7, 4)], {}, (1, 10, 12, 7)),
        ("nn.matmul", [f32(2, 5, 7), f32(2, 7, 4)], {}, (2, 5, 4, 7)),
        ("nn.matmul", [f16(5, 7), f16(7, 4)], {}, (1, 5, 4, 7)),
        ("nn.conv1d", [f32(1, 3, 9), f32(4, 3, 3)], {}, (1, 7, 4, 9)),
        ("nn.dense", [f32(_N, 7), f32(3, 7)], {}, (1, "n", 3, 7)),
    ],
)
def test_products(
    name: str, types: list[TensorType], attrs: dict[str, Any], sizes: tuple[Any, ...]
) -> None:
    found = facts(name, *types, **attrs)
    assert tuple(found[k] for k in ("batch", "m", "n", "k")) == sizes


def test_what_does_not_apply_is_absent() -> None:
    found = facts("add", f32(2, 3), f32(3))
    assert set(found) == {"op", "layers", "attrs", "dtype", "kind", "flops", "inputs", "outputs"}
    pool = facts("nn.max_pool2d", f32(1, 6, 8, 8), kernel=(3, 2), strides=(2, 1))
    assert part(pool, "kernel strides channels_in channels_out kind") == {
        "kernel": [3, 2],
        "strides": [2, 1],
        "channels_in": 6,
        "channels_out": 6,
        "kind": "reduction",
    }
    assert "groups" not in pool
    assert facts("inverse", f32(3, 3))["kind"] == "host"
    assert summary(pool) == "max_pool2d 3x2 /2,1 NCHW f32"


def test_other_operands() -> None:
    conv = facts("nn.conv2d", u8(1, 3, 5, 5), i8(4, 3, 3, 3))
    assert [i["dtype"] for i in conv["inputs"]] == ["u8", "i8"]
    assert conv["dtype"] == "i32"
    assert summary(conv).endswith("NCHW u8,i8→i32")
    across = facts("nn.conv2d_transpose", f32(1, 3, 5, 5), f32(3, 4, 2, 2), strides=(2, 2))
    assert part(across, "kernel channels_in channels_out") == {
        "kernel": [2, 2],
        "channels_in": 3,
        "channels_out": 4,
    }
    gathered = facts("gather", f32(9, 2), i64(3), axis=0)
    assert [i["name"] for i in gathered["inputs"]] == ["x", "indices"]
    joined = facts("concatenate", f32(2), f32(3), axis=0)
    assert len({i["name"] for i in joined["inputs"]}) == 2


def test_a_single_number_is_told() -> None:
    call = get_op("multiply")(Var("x", f32(2, 3)), Constant.splat(0.5, f32()))
    assert [i.get("value") for i in describe_operator(call)["inputs"]] == [None, 0.5]
    call = get_op("multiply")(Var("x", f32(2, 3)), Constant.splat(float("inf"), f32()))
    assert describe_operator(call)["inputs"][1]["value"] == "inf"


def test_kernels() -> None:
    compiled = clew.compile(zoo.path("mobilenet_tiny"), threads=2)
    for kernel in compiled.kernels:
        found = describe_kernel(kernel)
        assert json.loads(json.dumps(found, allow_nan=False)) == found
        assert found["layers"] == list(kernel.layers)
        assert [o["op"] for o in found["ops"]] == list(kernel.ops)
        assert found["rules"] == list(kernel.rules)
        assert found["threads"] == 2
        assert 0 < found["bytes"] <= found["argument_bytes"] + found["result_bytes"]
        assert all(p["grid"] >= 1 and p["lines"] >= 1 for p in found["phases"])
        products = [o for o in found["ops"] if "m" in o]
        assert bool(products) == (found["kind"] == "anchor")
        assert found.get("product_flops", 0) == sum(o["product_flops"] for o in products)
    depthwise = [
        o
        for k in map(describe_kernel, compiled.kernels)
        for o in k["ops"]
        if o["op"] == "nn.conv2d" and o["groups"] > 1
    ]
    assert depthwise
    assert all(o["groups"] == o["channels_in"] == o["batch"] for o in depthwise)
