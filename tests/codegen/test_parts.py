"""Products of numbers in parts: native code behind guard pages against float64."""

from __future__ import annotations

import numpy as np
import pytest

import clew
from clew.ir.dims import Dim, SymDim
from clew.ir.expr import Constant, Function, Var
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.machine.target import host
from clew.ops.math.parts import parts_of
from clew.ops.registry import get_op
from clew.runtime.guard import GuardSide

SIZES = [
    ((16,), 64, 32), ((5,), 32, 16), ((33,), 96, 58), ((1, 37), 64, 33), ((70,), 128, 100),
    ((2, 32), 64, 32), ((3, 17), 64, 40), ((1, 7, 7), 64, 48), ((2, 3, 5), 32, 33),
    ((1, 1, 21), 96, 65), ((2000,), 64, 33), ((100,), 256, 64), ((40,), 352, 32), ((192,), 384, 70),
]  # fmt: skip


def network(
    outer: tuple[Dim, ...], depth: int, units: int, *, whole: bool = False
) -> tuple[Module, np.ndarray]:
    """A dense layer of parts with a tail, whatever the target would choose; with a `whole` weight
    or its parts.
    """
    draw = np.random.default_rng(depth + units)
    weight = draw.standard_normal((units, depth)).astype(np.float32)
    x = Var("x", TensorType((*outer, depth), "f32"))
    residual = Var("r", TensorType((*outer, units), "f32"))
    stacked = weight if whole else np.concatenate(parts_of(weight, 3), axis=1)
    packed = get_op("layout_transform")(Constant(stacked), src_layout="NK", dst_layout="NK32n2k")
    product = get_op("nn.dense")(
        get_op("split_parts")(x), packed, weight_layout="NK32n2k", units=units, parts=3,
        rows=outer, out_dtype="f32",
    )  # fmt: skip
    result = get_op("nn.relu")(get_op("add")(product, residual))
    return Module({"main": Function([x, residual], result, {"outputs": ("y",)})}), weight


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("side", GuardSide)
@pytest.mark.parametrize("whole", [False, True])
def test_native(size: tuple[tuple[int, ...], int, int], side: GuardSide, *, whole: bool) -> None:
    outer, depth, units = size
    module, weight = network(*size, whole=whole)
    draw = np.random.default_rng(7)
    x = draw.standard_normal((*outer, depth)).astype(np.float32)
    residual = draw.standard_normal((*outer, units)).astype(np.float32)
    exact = np.maximum(x.astype(np.float64) @ weight.T.astype(np.float64) + residual, 0)
    found = [
        clew.compile(module, threads=threads, diagnostics=clew.Diagnostics(guard=side))(x, residual)
        for threads in (1, 2)
    ]
    np.testing.assert_array_equal(*found)
    assert np.abs(np.asarray(found[0]) - exact).max() <= 1e-6 * np.abs(exact).max()


@pytest.mark.parametrize("whole", [False, True])
def test_parts_in_memory_at_free_rows(*, whole: bool) -> None:
    """No pass makes such products, but graphs may contain them."""
    module, weight = network((SymDim.symbol("n"),), 64, 40, whole=whole)
    model = clew.compile(
        module,
        threads=1,
        diagnostics=clew.Diagnostics(guard=GuardSide.END),
        sizes=clew.Sizes(specialize=False),
    )
    draw = np.random.default_rng(3)
    for rows in (1, 16, 37):
        x = draw.standard_normal((rows, 64)).astype(np.float32)
        residual = draw.standard_normal((rows, 40)).astype(np.float32)
        exact = np.maximum(x.astype(np.float64) @ weight.T.astype(np.float64) + residual, 0)
        assert np.abs(np.asarray(model(x, residual)) - exact).max() <= 1e-6 * np.abs(exact).max()


FREE = [(1, 1), (2, 1), (1, 15), (1, 16), (3, 11), (1, 63), (1, 64), (2, 32), (5, 13), (1, 97),
        (7, 29), (2, 500)]  # fmt: skip


@pytest.mark.parametrize("side", GuardSide)
@pytest.mark.parametrize("named", [1, 2])
def test_free_rows(side: GuardSide, named: int) -> None:
    """One build computes few rows from numbers and many from their parts, in several bands; threads
    share bands, or the panels of a band.
    """
    depth, units = 64, 70
    draw = np.random.default_rng(5)
    weight = draw.standard_normal((units, depth)).astype(np.float32)
    outer = tuple(SymDim.symbol(name) for name in ("batch", "seq")[:named])
    x = Var("x", TensorType((*outer, depth), "f32"))
    residual = Var("r", TensorType((*outer, units), "f32"))
    plain, stacked = (
        get_op("layout_transform")(Constant(w), src_layout="NK", dst_layout=layout)
        for w, layout in ((weight, "NK32n"), (np.concatenate(parts_of(weight, 3), 1), "NK32n2k"))
    )
    product = get_op("nn.dense_by_rows")(
        x, plain, stacked, units=units, least_rows=64,
        weight_layout="NK32n", parts_layout="NK32n2k",
    )  # fmt: skip
    result = get_op("nn.relu")(get_op("add")(product, residual))
    module = Module({"main": Function([x, residual], result, {"outputs": ("y",)})})
    models = [
        clew.compile(
            module,
            threads=n,
            diagnostics=clew.Diagnostics(guard=side),
            sizes=clew.Sizes(specialize=False),
        )
        for n in (1, 2)
    ]
    for batch, seq in FREE:
        shape = (batch * seq,) if named == 1 else (batch, seq)
        data = draw.standard_normal((*shape, depth)).astype(np.float32)
        more = draw.standard_normal((*shape, units)).astype(np.float32)
        exact = np.maximum(data.astype(np.float64) @ weight.T.astype(np.float64) + more, 0)
        found = [np.asarray(model(data, more)) for model in models]
        np.testing.assert_array_equal(*found)
        assert np.abs(found[0] - exact).max() <= 1e-6 * np.abs(exact).max()
    assert [model.builds_made for model in models] == [1, 1]


@pytest.mark.parametrize(("whole", "rule"), [(False, "parts"), (True, "split_weights")])
def test_the_rule_is_used_where_there_is_a_matrix_unit(*, whole: bool, rule: str) -> None:
    if host().tile_shape("bf16", "bf16") is None:
        pytest.skip("this machine has no matrix tiles")
    for outer in [(40,), (1, 40), (2, 32)]:
        compiled = clew.compile(network(outer, 64, 64, whole=whole)[0])
        assert (rule,) in [use.source.rules for use in compiled.template.uses]
