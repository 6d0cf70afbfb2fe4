"""Instructions are counted from the text of kernels: as many as the loops make of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import clew.ops  # registers the operators
from clew.build.result import KernelUse
from clew.ir.dims import SymDim
from clew.ir.expr import Constant, Function, Tuple, Var
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.machine.target import host
from clew.ops.registry import get_op
from clew.predict.describe import describe_uses
from clew.predict.instructions import work_of_text
from clew.predict.plan import plan
from clew.predict.program import DISTANCES
from clew.support.errors import ClewError


def _dense(m: int, n: int, k: int, opt_level: int = 0) -> list[dict[str, Any]]:
    x = Var("x", TensorType((m, k), "f32"))
    weight = np.random.default_rng(0).standard_normal((n, k)).astype(np.float32)
    y = get_op("nn.dense")(x, Constant(weight))
    made = plan(_module([x], y), threads=1, opt_level=opt_level)
    return describe_uses(made.uses, made.segments, 1)


def _module(params: list[Var], y: Any) -> Module:
    return Module({"main": Function(params, Tuple([y]), {"outputs": ("y",)})})


@pytest.mark.parametrize(("m", "n", "k"), [(16, 32, 64), (31, 48, 17), (64, 96, 128)])
def test_a_product_has_its_multiply_adds(m: int, n: int, k: int) -> None:
    rows = _dense(m, n, k)
    lanes = host().vector_lanes("f32")
    wanted = m * n * k / lanes
    found = sum(r["count_fma"] for r in rows)
    assert sum(r["product_flops"] for r in rows) == 2 * m * n * k
    # Edges of tiles are computed in part, narrower registers count as whole ones.
    assert wanted <= found <= 3 * wanted


def test_twice_the_work_is_twice_the_instructions() -> None:
    once, twice = _dense(64, 64, 64), _dense(128, 64, 64)
    for name in ("count_fma", "cycles"):
        ratio = sum(r[name] for r in twice) / sum(r[name] for r in once)
        assert ratio == pytest.approx(2, rel=0.15)


def test_an_elementwise_kernel_loads_and_stores_each_register() -> None:
    x = Var("x", TensorType((64, 256), "f32"))
    made = plan(_module([x], get_op("nn.relu")(x)), threads=1)
    (row,) = describe_uses(made.uses, made.segments, 1)
    vectors = 64 * 256 * 32 / host().vector_bits
    assert row["count_load"] == vectors
    assert row["count_store"] == vectors
    assert row["traffic_l2_bytes"] == 2 * 64 * 256 * 4
    assert row["grid"] >= 1


def test_text_without_an_entry_counts_nothing() -> None:
    work = work_of_text(
        "define void @other(ptr %args) {\nentry:\n  ret void\n}\n", [], [], (1, 2), host()
    )
    assert not any(work.counts.values())
    assert not work.footprint.lines.any()


def test_a_value_just_written_is_near_and_weights_are_a_run_away() -> None:
    x = Var("x", TensorType((8, 64), "f32"))
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal((64, 64)).astype(np.float32) for _ in range(3)]
    y: Any = x
    for weight in weights:
        y = get_op("nn.dense")(y, Constant(weight))
    made = plan(_module([x], y), threads=1, opt_level=0)
    rows = describe_uses(made.uses, made.segments, 1)
    second = rows[1]
    near = range(3)  # up to 32 KiB: the weights and values of one layer
    assert sum(second[f"value_bytes_{n}"] for n in near) == 8 * 64 * 4
    assert second["constant_read_bytes"] == 64 * 64 * 4
    assert second["program_constant_bytes"] == 3 * 64 * 64 * 4
    assert DISTANCES[2] < rows[0]["program_bytes"] < DISTANCES[3]
    assert second["constant_bytes_3"] == second["constant_read_bytes"]


def test_a_plan_has_the_kernels_that_are_compiled() -> None:
    x = Var("x", TensorType((1, 8, 9, 9), "f32"))
    weight = np.random.default_rng(0).standard_normal((8, 8, 3, 3)).astype(np.float32)
    y = get_op("nn.relu")(get_op("nn.conv2d")(x, Constant(weight), padding=(1, 1, 1, 1)))
    module = _module([x], get_op("nn.softmax")(y, axis=1))
    made = plan(module, threads=1)
    compiled = clew.compile(module, threads=1)
    assert [(u.name, u.source.key) for u in made.uses] == [
        (k.name, k.key) for k in compiled.kernels
    ]
    ready: list[KernelUse] = compiled.build.uses
    plans = [s.plan for s in compiled.build.segments]
    assert describe_uses(ready, plans, 1) == describe_uses(made.uses, made.segments, 1)


def test_open_sizes_are_refused() -> None:
    x = Var("x", TensorType(("n", 8), "f32"))
    with pytest.raises(ClewError) as caught:
        plan(_module([x], get_op("nn.relu")(x)), threads=1)
    assert caught.value.code == "I188"
    assert "'x'" in caught.value.message


def test_fixed_sizes_are_planned() -> None:
    x = Var("x", TensorType((SymDim.symbol("n"), 8), "f32"))
    made = plan(_module([x], get_op("nn.relu")(x)), threads=1, sizes={"n": 4})
    assert [use.call.tensor.shape for use in made.uses] == [(4, 8)]
    with pytest.raises(ClewError) as caught:
        plan(_module([x], get_op("nn.relu")(x)), threads=1, sizes={"n": (1, 4)})
    assert caught.value.code == "I188"
