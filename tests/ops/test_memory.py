"""References and the interpreter hold little more than operands and results."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import clew
from clew import te
from clew.ir.expr import Constant, Expr, Function, Var
from clew.ir.interpret import interpret
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.ops.registry import get_op
from clew.te.interpret import evaluate

MIB = 1 << 20


def peak_bytes(work: Callable[[], Any]) -> int:
    """Returns the most memory that was allocated at once; numpy's counts."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


@pytest.mark.parametrize(
    ("name", "data", "weight", "attrs"),
    [
        ("nn.conv2d", (1, 512, 64, 64), (512, 1, 7, 7), {"groups": 512, "padding": (3, 3, 3, 3)}),
        ("nn.conv2d", (2, 32, 96, 96), (8, 32, 7, 7), {"padding": (3, 3, 3, 3)}),
        ("nn.conv2d", (1, 64, 128, 128), (64, 4, 3, 3), {"groups": 16, "padding": (1, 1, 1, 1)}),
        ("nn.conv1d", (1, 8, 1 << 16), (8, 8, 65), {"padding": (32, 32)}),
        ("nn.conv2d_transpose", (4, 64, 32, 32), (64, 1, 5, 5), {"groups": 64, "strides": (2, 2)}),
    ],
)
def test_convolutions_hold_blocks(
    name: str, data: tuple[int, ...], weight: tuple[int, ...], attrs: dict[str, Any]
) -> None:
    op, args = get_op(name), [zeros(*data), zeros(*weight)]
    bound = op.bind(attrs)
    result = op.run_reference(args, bound)
    used = sum(a.nbytes for a in args) + result.nbytes
    assert peak_bytes(lambda: op.run_reference(args, bound)) < 1.5 * used + 32 * MIB


def test_a_window_far_larger_than_its_image_is_cheap() -> None:
    """As exported poolings of networks have: 1280 by 1280 pixels over 7 by 7."""
    op, x = get_op("nn.avg_pool2d"), np.random.default_rng(0).random((1, 1280, 7, 7))
    bound = op.bind({"kernel": (1280, 1280), "strides": (1280, 1280), "ceil_mode": True})
    found = []
    assert peak_bytes(lambda: found.append(op.run_reference([x], bound))) < 8 * MIB
    np.testing.assert_allclose(found[0], x.mean((2, 3), keepdims=True))


def test_a_stage_far_larger_than_its_input_is_not_held() -> None:
    x = te.placeholder((4, 4), "f32", "x")
    wide = te.compute((2000, 2000), lambda i, j: x[i % 4, j % 4] + 1.0, "wide")
    k = te.reduce_axis(2000, "k")
    total = te.compute((2000,), lambda i: te.sum(wide[i, k], k), "total")
    given, found = np.arange(16, dtype=np.float32).reshape(4, 4), []
    assert peak_bytes(lambda: found.extend(evaluate([total], {x: given}))) < 10 * MIB
    np.testing.assert_array_equal(found[0], np.tile((given + 1).sum(1) * 500, 500))


def test_reductions_over_blocks_are_whole() -> None:
    x = te.placeholder((3, 700_000), "i32", "x")
    k = te.reduce_axis(700_000, "k")
    sums = te.compute((3,), lambda i: te.sum(x[i, k], k), "sums")
    tops = te.compute((3,), lambda i: te.max(x[i, k], k), "tops")
    given = np.random.default_rng(0).integers(-99, 99, (3, 700_000), np.int32)
    found = evaluate([sums, tops], {x: given})
    np.testing.assert_array_equal(found[0], given.sum(1))
    np.testing.assert_array_equal(found[1], given.max(1))


def chain(layers: int) -> Module:
    x: Expr = Var("x", TensorType((1, 32, 64, 64), "f32"))
    weight = Constant(np.full((32, 1, 3, 3), 0.1, np.float32))
    body, attrs = x, {"groups": 32, "padding": (1, 1, 1, 1)}
    for _ in range(layers):
        body = get_op("nn.relu")(get_op("nn.conv2d")(body, weight, **attrs))
    return Module({"main": Function([x], body)})


def test_the_interpreter_frees_what_nothing_needs() -> None:
    module, x = chain(16), zeros(1, 32, 64, 64)
    peak = peak_bytes(lambda: interpret(module, {"x": x}))
    assert peak < 4 * x.nbytes + 8 * MIB


def test_verification_holds_the_values_of_two_stages() -> None:
    layers, x = 6, np.random.default_rng(0).random((1, 32, 64, 64), np.float32)
    compiled = clew.compile(chain(layers), threads=1)
    reports = []
    peak = peak_bytes(lambda: reports.append(compiled.trace.verify(x)))
    assert reports[0].ok
    assert len([s for s in compiled.trace.stages if s.changed]) > 4
    assert peak < 2 * (2 * layers + 1) * x.nbytes + 16 * MIB
