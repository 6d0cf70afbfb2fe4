"""Random small networks through the whole pipeline keep their values."""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import clew.ops  # noqa: F401
from clew.ir.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem, Var
from clew.ir.interpret import interpret
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.ir.visit import post_order
from clew.machine.target import target_of
from clew.ops.registry import get_op
from clew.passes.fusion.views import is_view, part_offsets
from clew.passes.manager import PassManager
from clew.pipelines import pipeline

CHANNELS = (1, 3, 4, 5, 8, 12, 16, 20, 24, 32, 48)


WIDE = target_of("cpu-avx512")
TILES = replace(WIDE, features=f"{WIDE.features},+amx-tile,+amx-bf16")


def data(draw: st.DrawFn, *shape: int) -> Constant:
    seed = draw(st.integers(0, 9))
    if seed == 0:
        return Constant(np.broadcast_to(np.float32(0.5), shape))
    values = np.random.default_rng(seed).standard_normal(shape) / max(
        1, np.sqrt(np.prod(shape[1:]))
    )
    return Constant(values.astype("f4"))


def convolution(draw: st.DrawFn, x: Expr) -> Expr:
    channels = x.tensor.concrete[1]
    kind = draw(st.sampled_from(["full", "full", "depthwise", "grouped"]))
    out = draw(st.sampled_from(CHANNELS))
    groups = 1
    if kind == "depthwise":
        out = groups = channels
    elif kind == "grouped" and channels % 4 == 0:
        groups, out = 2, out * 2
    kernel = draw(st.sampled_from([1, 3]))
    pads = draw(st.tuples(*[st.integers(0, 1)] * 4)) if kernel == 3 else (0, 0, 0, 0)
    size = x.tensor.concrete[2:]
    if any(s + p + q < kernel for s, p, q in zip(size, pads[:2], pads[2:], strict=True)):
        kernel = 1
    strides = draw(st.sampled_from([(1, 1), (1, 1), (2, 2)]))
    weight = data(draw, out, channels // groups, kernel, kernel)
    return get_op("nn.conv2d")(x, weight, padding=pads, strides=strides, groups=groups)


def step(draw: st.DrawFn, values: list[Expr]) -> Expr:
    """Returns one more value made of those there are: images, most recent ones preferred."""
    x = values[-1 - min(draw(st.integers(0, 3)), len(values) - 1)]
    shape = x.tensor.concrete
    what = draw(st.sampled_from(
        ["conv", "conv", "bias", "scale", "unary", "join", "pool", "concat", "gate", "move", "norm"]
    ))  # fmt: skip
    if what == "conv":
        return convolution(draw, x)
    if what in ("bias", "scale"):
        op = get_op("add" if what == "bias" else "multiply")
        constant = data(draw, *draw(st.sampled_from(
            [(), (1,), (shape[1], 1, 1), (1, shape[1], 1, 1), shape[2:], shape]
        )))  # fmt: skip
        return op(x, constant) if draw(st.booleans()) else op(constant, x)
    if what == "unary":
        name = draw(st.sampled_from(["nn.relu", "sigmoid", "nn.silu", "negative", "identity"]))
        return get_op(name)(x)
    if what == "join":
        same = [v for v in values if v.type == x.type]
        return get_op(draw(st.sampled_from(["add", "multiply", "subtract"])))(x, same[0])
    if what == "pool" and min(shape[2:]) >= 2:
        name = draw(st.sampled_from(["nn.max_pool2d", "nn.avg_pool2d"]))
        return get_op(name)(x, kernel=(2, 2), strides=(1, 2), padding=(0, 1, 1, 0))
    if what == "concat":
        fits = [v for v in values if v.tensor.shape[2:] == x.tensor.shape[2:]]
        return get_op("concatenate")(x, *fits[-2:], axis=draw(st.sampled_from([1, -3])))
    if what == "gate":
        gate = get_op("mean")(x, axes=(2, 3), keepdims=True)
        weight = data(draw, shape[1], shape[1], 1, 1)
        return get_op("multiply")(x, get_op("sigmoid")(get_op("nn.conv2d")(gate, weight)))
    if what == "move":
        turned = get_op("transpose")(x, axes=(0, 1, 3, 2))
        halves = get_op("split")(turned, sizes=(1, shape[1] - 1), axis=1) if shape[1] > 1 else None
        return turned if halves is None else TupleGetItem(halves, draw(st.integers(0, 1)))
    statistics = [Constant(np.abs(data(draw, shape[1]).data) + np.float32(0.5)) for _ in range(4)]
    return get_op("nn.batch_norm")(x, *statistics)


@st.composite
def networks(draw: st.DrawFn) -> Module:
    x = Var(
        "x", TensorType((draw(st.integers(1, 2)), draw(st.sampled_from(CHANNELS)), 6, 5), "f32")
    )
    values: list[Expr] = [x]
    for _ in range(draw(st.integers(2, 12))):
        values.append(step(draw, values))
    last = values[-1]
    rows = get_op("reshape")(
        last, shape=(last.tensor.shape[0], int(np.prod(last.tensor.concrete[1:])))
    )
    dense = get_op("nn.matmul")(rows, data(draw, rows.tensor.concrete[1], draw(st.integers(1, 40))))
    outputs = [dense, last, values[len(values) // 2]][: draw(st.integers(1, 3))]
    names = tuple(f"y{n}" for n in range(len(outputs)))
    return Module({"main": Function([x], Tuple(outputs), {"outputs": names})})


@pytest.mark.parametrize("level", [1, 3])
@given(module=networks())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_pipeline_keeps_the_values(level: int, module: Module) -> None:
    manager = PassManager(pipeline(level), level, target=TILES)
    after = manager.run(module)
    shape = module.main.params[0].tensor.concrete
    inputs = {"x": np.random.default_rng(1).standard_normal(shape).astype("f4")}
    before_values, after_values = interpret(module, inputs), interpret(after, inputs)
    for name, expected in before_values.items():
        found = after_values[name]
        assert found.shape == expected.shape
        scale = max(1.0, float(np.abs(expected).max(initial=0)))
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4 * scale)
    outer = [n for n in post_order(after.main) if isinstance(n, Call)]
    assert all(isinstance(n.op, Function) or is_view(n) or part_offsets(n) for n in outer)
