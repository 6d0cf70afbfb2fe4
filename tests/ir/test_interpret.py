"""The interpreter: every kind of node, symbolic sizes, and which values it keeps."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from clew.ir.dims import SymDim
from clew.ir.expr import (
    Call,
    Constant,
    Function,
    GlobalVar,
    If,
    Let,
    Tuple,
    TupleGetItem,
    Var,
    While,
)
from clew.ir.interpret import interpret, interpret_values
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.ops.registry import get_op, register_op
from clew.support.errors import InputError
from clew.te import compute

F = TensorType((2, 3), "f32")
X = np.arange(6, dtype=np.float32).reshape(2, 3)


def call(op, *args, **attrs):
    return get_op(op)(*args, **attrs)


def scalar(value, dtype=np.float32):
    return Constant(np.asarray(value, dtype))


def module(params, body, **functions):
    body = body if isinstance(body, Tuple) else Tuple([body])
    names = tuple(f"y{n}" for n in range(len(body.fields)))
    return Module({"main": Function(params, body, {"outputs": names}), **functions})


def run(params, body, *values, **functions):
    made = module(params, body, **functions)
    results = interpret(made, {p.name: v for p, v in zip(params, values, strict=True)})
    return next(iter(results.values()))


def test_calls_and_tuples():
    x = Var("x", F)
    pieces = call("split", x, sizes=(1, 2), axis=1)
    joined = call("concatenate", TupleGetItem(pieces, 1), TupleGetItem(pieces, 0), axis=1)
    np.testing.assert_array_equal(run([x], joined, X), X[:, [1, 2, 0]])


def test_primitive_and_global_functions():
    x, a = Var("x", F), Var("a", F)
    inner = Function([a], call("nn.relu", call("negative", a)), {"primitive": True})
    np.testing.assert_array_equal(run([x], Call(inner, [x]), -X), X)
    name = GlobalVar("helper", inner.type)
    np.testing.assert_array_equal(run([x], Call(name, [x]), -X, helper=inner), X)


def test_let():
    x, v = Var("x", F), Var("v", F)
    body = Let(v, call("exp", x), call("add", v, v))
    np.testing.assert_allclose(run([x], body, X), 2 * np.exp(X), rtol=1e-6)


def test_if_runs_only_the_branch_taken():
    x, c = Var("x", F), Var("c", TensorType((), "bool"))
    a, b = Var("a", F), Var("b", F)
    choice = If(c, Function([a], call("negative", a)), Function([b], call("abs", b)), [x])
    np.testing.assert_array_equal(run([x, c], choice, X, np.True_), -X)
    np.testing.assert_array_equal(run([x, c], choice, X, np.False_), X)


def fibonacci(count):
    def state(prefix):
        index = Var(f"{prefix}i", TensorType((), "i64"))
        return [index, *(Var(f"{prefix}{n}", TensorType((), "i64")) for n in "ab")]

    i, a, b = state("body_")
    body = Function([i, a, b], Tuple([b, call("add", a, b), a]))
    j, c, d = state("cond_")
    cond = Function([j, c, d], call("less", j, scalar(count, np.int64)))
    return While(cond, body, [scalar(0, np.int64), scalar(1, np.int64)], scans=1)


@pytest.mark.parametrize("count", [0, 1, 7])
def test_while_carries_state_and_stacks(count):
    loop = fibonacci(count)
    made = module([], Tuple([TupleGetItem(loop, 0), TupleGetItem(loop, 2)]))
    results = interpret(made, {})
    expected = [0, 1, 1, 2, 3, 5, 8, 13]
    assert results["y0"] == expected[count]
    assert results["y1"].tolist() == expected[:count]
    assert results["y1"].dtype == np.int64


def test_symbolic_attributes_take_the_sizes_of_the_run():
    batch, seq = SymDim.symbol("batch"), SymDim.symbol("seq")
    x = Var("x", TensorType((batch, seq, 4), "f32"))
    body = call("reshape", x, shape=(batch * seq, 4))
    for shape in ((1, 5, 4), (3, 2, 4)):
        value = np.ones(shape, np.float32)
        assert run([x], body, value).shape == (shape[0] * shape[1], 4)


def test_decomposed_operators_run():
    @register_op("test.twice", overwrite=True)
    def twice(x):
        """`2 * x`, by decomposition only."""

    @twice.types
    def _types(x):
        return x

    @twice.decompose
    def _decompose(x):
        return call("add", x, x)

    x = Var("x", F)
    np.testing.assert_array_equal(run([x], twice(x), X), 2 * X)


def test_computed_operators_run():
    @register_op("test.thrice", overwrite=True)
    def thrice(x):
        """`3 * x`, by te only."""
        return compute(x.shape, lambda i, j: x[i, j] * 3.0)

    x = Var("x", F)
    np.testing.assert_array_equal(run([x], thrice(x), X), 3 * X)


def test_a_chain_of_20000_nodes():
    x = Var("x", F)
    body = x
    for _ in range(20_000):
        body = call("negative", body)
    np.testing.assert_array_equal(run([x], body, X), X)


def test_wrong_inputs():
    x = Var("x", F)
    made = module([x], call("nn.relu", x))
    for feeds, code in (
        ({}, "I022"),
        ({"x": X, "z": X}, "I022"),
        ({"x": X[:1]}, "I023"),
        ({"x": X[0]}, "I023"),
        ({"x": X.astype(np.float64)}, "I023"),
    ):
        with pytest.raises(InputError) as caught:
            interpret(made, feeds)
        assert caught.value.code == code


def test_wanted_values():
    x = Var("x", F)
    first = call("exp", x)
    second = call("log", first)
    third = call("negative", second)
    function = Function([x], third)
    found = interpret_values(function, [X], {x.id, second.id})
    assert set(found) == {x.id, second.id}
    np.testing.assert_allclose(found[second.id], X, atol=1e-6)


def test_values_are_freed_when_nothing_needs_them():
    alive = []

    @register_op("test.spy", overwrite=True)
    def spy(x):
        """Passes on a copy, and counts the copies alive."""
        return compute(x.shape, lambda i, j: x[i, j])

    @spy.reference
    def _reference(x):
        copy = x.copy()
        alive.append(weakref.ref(copy))
        if sum(ref() is not None for ref in alive) > 2:
            gc.collect()  # takes a second in a long run, so only if cycles may keep some
        assert sum(ref() is not None for ref in alive) <= 2
        return copy

    x = Var("x", F)
    body = x
    for _ in range(10):
        body = spy(body)
    np.testing.assert_array_equal(run([x], body, X), X)
    assert len(alive) == 10
