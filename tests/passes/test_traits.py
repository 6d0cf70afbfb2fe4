"""Operators that a user declares are treated by their traits, as clew's own are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clew import te
from clew.ir.dims import SymDim
from clew.ir.expr import Constant
from clew.ir.types import TensorType, from_numpy, is_native
from clew.ir.values import known_value
from clew.ops import registry
from clew.ops.registry import Op, Sample, get_op, register_op
from clew.ops.traits import Traits
from clew.passes.combine_parallel_matmul import CombineParallelMatmul
from clew.passes.fold_constant import FoldConstant


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators of a test are registered for that test alone."""
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))


def rotation(**options: Any) -> Op:
    """An operator that moves data: elements of the last axis, each one place on."""

    @register_op("user.rotate", **options)
    def rotate(x: te.Tensor) -> te.Tensor:
        """Rotates the last axis."""
        last = x.shape[-1]
        return te.compute(x.shape, lambda *i: x[(*i[:-1], (i[-1] + 1) % last)], "rotate")

    return rotate


def types_of(sample: Sample) -> list[TensorType]:
    return [
        TensorType(a.shape, from_numpy(a.dtype)) if isinstance(a, np.ndarray) else a
        for a in sample.args
    ]


def parallel(kit: Any, after: str) -> Any:
    x = kit.var("x", 2, 8)
    heads = [
        kit.layer(after, kit.layer("nn.dense", x, kit.const(kit.random(6, 8, seed=n))))
        for n in range(2)
    ]
    return kit.module([x], *heads)


def test_layers_are_combined_where_a_user_s_operator_moves_data(kit: Any) -> None:
    rotation()
    before = parallel(kit, "user.rotate")
    after = kit.apply(before, CombineParallelMatmul(), FoldConstant())
    assert kit.op_names(after).count("nn.dense") == 1
    kit.same(before, after)


def test_a_declared_trait_goes_before_the_derived_one(kit: Any) -> None:
    rotation(traits=Traits(moves_data=False))
    before = parallel(kit, "user.rotate")
    assert kit.apply(before, CombineParallelMatmul()) is before


def test_a_splat_stays_one_through_a_user_s_data_movement(kit: Any) -> None:
    rotate = rotation()
    splat = Constant(np.broadcast_to(np.float32(3), (4, 8)))
    (folded,) = kit.apply(kit.module([], rotate(splat)), FoldConstant()).main.body.fields
    assert folded.is_splat
    assert folded.splat_value == 3


def test_sizes_are_known_through_a_user_s_data_movement(kit: Any) -> None:
    rotate = rotation()
    rows = SymDim.symbol("n")
    x = kit.var("x", rows, 5)
    value = known_value(rotate(get_op("shape_of")(x)))
    assert value is not None
    assert list(value) == [5, rows]


@pytest.mark.parametrize("name", ["reshape", "slice", "gather", "where", "concatenate", "split",
                                  "tile", "flip", "broadcast_to", "transpose", "gather_nd",
                                  "gather_elements", "identity", "depth_to_space"])  # fmt: skip
def test_clew_s_data_movement_is_derived(name: str) -> None:
    op = get_op(name)
    computed = 0
    for sample in op.samples:
        if sample.error:
            continue
        attrs = op.bind(sample.attrs)
        types = types_of(sample)
        if op.is_computed(attrs) and all(is_native(t) for t in types):
            moved = op.moved_operands(types, attrs)
            controls = {"where": {0}}.get(name, {1} if name.startswith("gather") else set())
            assert set(moved) == set(range(len(types))) - controls
            computed += 1
    assert computed


@pytest.mark.parametrize("name", ["nn.relu", "add", "nn.max_pool2d", "cumsum", "trilu", "one_hot"])
def test_what_computes_moves_no_data_alone(name: str) -> None:
    op = get_op(name)
    sample = next(s for s in op.samples if not s.error)
    types = types_of(sample)
    moved = op.moved_operands(types, op.bind(sample.attrs))
    assert set(moved) != set(range(len(types)))
    assert 0 not in moved
