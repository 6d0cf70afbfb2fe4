"""Products of numbers in parts: native code behind guard pages against float64."""

from __future__ import annotations

import numpy as np
import pytest

import clew
import clew.ops
from clew.ir.expr import Constant, Function, Var
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.machine.target import host
from clew.ops.registry import get_op

SIZES = [
    ((16,), 64, 32), ((5,), 32, 16), ((33,), 96, 58), ((1, 37), 64, 33), ((70,), 128, 100),
    ((2, 32), 64, 32), ((3, 17), 64, 40), ((1, 7, 7), 64, 48), ((2, 3, 5), 32, 33),
    ((1, 1, 21), 96, 65), ((2000,), 64, 33), ((100,), 256, 64), ((40,), 352, 32), ((192,), 384, 70),
]  # fmt: skip


def network(
    outer: tuple[int, ...], depth: int, units: int, *, whole: bool = False
) -> tuple[Module, np.ndarray]:
    """A dense layer of parts with a tail, whatever the target would choose; with a `whole` weight
    or its parts.
    """
    draw = np.random.default_rng(depth + units)
    weight = draw.standard_normal((units, depth)).astype(np.float32)
    x = Var("x", TensorType((*outer, depth), "f32"))
    residual = Var("r", TensorType((*outer, units), "f32"))
    stacked = weight if whole else np.concatenate(clew.ops.math.parts.parts_of(weight, 3), axis=1)
    packed = get_op("layout_transform")(Constant(stacked), src_layout="NK", dst_layout="NK32n2k")
    product = get_op("nn.dense")(
        get_op("split_parts")(x), packed, weight_layout="NK32n2k", units=units, parts=3,
        rows=outer, out_dtype="f32",
    )  # fmt: skip
    result = get_op("nn.relu")(get_op("add")(product, residual))
    return Module({"main": Function([x, residual], result, {"outputs": ("y",)})}), weight


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("side", ["start", "end"])
@pytest.mark.parametrize("whole", [False, True])
def test_native(size: tuple[tuple[int, ...], int, int], side: str, *, whole: bool) -> None:
    outer, depth, units = size
    module, weight = network(*size, whole=whole)
    draw = np.random.default_rng(7)
    x = draw.standard_normal((*outer, depth)).astype(np.float32)
    residual = draw.standard_normal((*outer, units)).astype(np.float32)
    exact = np.maximum(x.astype(np.float64) @ weight.T.astype(np.float64) + residual, 0)
    found = [
        clew.compile(module, threads=threads, guard=side)(x, residual)  # type: ignore[arg-type]
        for threads in (1, 2)
    ]
    np.testing.assert_array_equal(*found)
    assert np.abs(np.asarray(found[0]) - exact).max() <= 1e-6 * np.abs(exact).max()


@pytest.mark.parametrize(("whole", "rule"), [(False, "parts"), (True, "split_weights")])
def test_the_rule_is_used_where_there_is_a_matrix_unit(*, whole: bool, rule: str) -> None:
    if host().tile_shape("bf16", "bf16") is None:
        pytest.skip("this machine has no matrix tiles")
    for outer in ((40,), (1, 40), (2, 32)):
        compiled = clew.compile(network(outer, 64, 64, whole=whole)[0])
        assert (rule,) in [k.rules for k in compiled.kernels]
