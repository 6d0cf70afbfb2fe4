from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import clew.ops  # noqa: F401
from clew.ir.dims import SymDim
from clew.ir.expr import Call, Constant, Function, If
from clew.ir.types import to_numpy
from clew.ir.visit import free_vars
from clew.passes.simplify.simplify_expr import SimplifyExpr

ONE, ZERO = np.float32(1), np.float32(0)


def _swap(k: Any, x: Any, shape: tuple[int, ...]) -> Any:
    heads = k.layer("exp", k.layer("reshape", x, shape=(1, 2, 2, 6)))
    y = k.layer("transpose", k.layer("reshape", heads, shape=(2, 2, 6)), axes=(0, 2, 1))
    return k.layer("reshape", y, shape=shape)


def _slice(k: Any, x: Any, axis: int, *bounds: int) -> Any:
    begin, end, stride = (*bounds, 1)[:3]
    return k.layer("slice", x, begin=(begin,), end=(end,), strides=(stride,), axes=(axis,))


def _row(k: Any, x: Any, row: int) -> Any:
    return k.layer("reshape", _slice(k, x, 0, row, row + 1), shape=(6,))


def _halves(k: Any, x: Any, again: bool) -> Any:
    """The difference of both halves of rows of `exp(x)`, of which other rows are read `again`."""
    grown = k.layer("exp", x)
    rows = _slice(k, grown, 0, 1, 3)
    sides = k.layer("subtract", _slice(k, rows, 1, 0, 3), _slice(k, rows, 1, 3, 6))
    if not again:
        return sides
    more = k.layer("slice", grown, begin=(0, 1), end=(2, 4), axes=(0, 1))
    return k.layer("add", sides, more)


CASES: list[tuple[str, Any, list[str]]] = [
    ("slices", lambda k, x: _slice(k, _slice(k, x, 0, 1, 3), -1, 2, 5), ["slice"]),
    ("slices of one axis", lambda k, x: _slice(k, _slice(k, x, 1, 1, 6, 2), 1, -2, 9), ["slice"]),
    ("flipped slices", lambda k, x: _slice(k, _slice(k, x, 1, -1, -7, -1), 1, 1, 3),
     ["slice", "slice"]),
    ("slice of a row", lambda k, x: _slice(k, _row(k, x, 2), 0, 1, 4), ["slice", "reshape"]),
    ("slice of another shape", lambda k, x: _slice(k, k.layer(
        "reshape", _slice(k, x, 0, 1, 3), shape=(12,)), 0, 1, 4), ["slice", "reshape", "slice"]),
    ("slices of some computed rows", lambda k, x: _halves(k, x, False),
     ["exp", "slice", "slice", "slice", "subtract"]),
    ("slices of rows of which more are read", lambda k, x: _halves(k, x, True),
     ["exp", "slice", "slice", "subtract", "slice", "add"]),
    ("times one", lambda k, x: k.layer("multiply", k.const(ONE), x), []),
    ("plus zero", lambda k, x: k.layer("add", x, k.const(np.broadcast_to(ZERO, (4, 6)))), ["add"]),
    ("plus -0", lambda k, x: k.layer("add", x, k.const(np.broadcast_to(-ZERO, (4, 6)))), []),
    ("minus -0", lambda k, x: k.layer("subtract", x, k.const(-ZERO)), ["subtract"]),
    ("mask of zeros", lambda k, x: k.layer("nn.softmax", k.layer("add", x, k.const(ZERO)), axis=1),
     ["nn.softmax"]),
    ("minus zero", lambda k, x: k.layer("subtract", x, k.const(ZERO)), []),
    ("zero minus x", lambda k, x: k.layer("subtract", k.const(ZERO), x), ["subtract"]),
    ("over one", lambda k, x: k.layer("divide", x, k.const(ONE)), []),
    ("same cast", lambda k, x: k.layer("cast", x, dtype="f32"), []),
    ("same reshape", lambda k, x: k.layer("reshape", x, shape=(4, 6)), []),
    ("same pad", lambda k, x: k.layer("pad", x, pads=(0, 0, 0, 0)), []),
    ("same tile", lambda k, x: k.layer("tile", x, repeats=(1, 1)), []),
    ("whole slice", lambda k, x: k.layer("slice", x, begin=(0,), end=(4,), axes=(0,)), []),
    ("flipped slice", lambda k, x: k.layer(
        "slice", x, begin=(-1,), end=(-5,), axes=(0,), strides=(-1,)), ["slice"]),
    ("shifting pad", lambda k, x: k.layer("pad", x, pads=(1, 0, -1, 0)), ["pad"]),
    ("concatenation of one", lambda k, x: k.layer("concatenate", x, axis=0), []),
    ("reshapes", lambda k, x: k.layer("reshape", k.layer("reshape", x, shape=(24,)),
                                      shape=(2, 12)), ["reshape"]),
    ("reshape back", lambda k, x: k.layer("reshape", k.layer("reshape", x, shape=(24,)),
                                          shape=(4, 6)), []),
    ("transposes", lambda k, x: k.layer("transpose", k.layer("transpose", x, axes=(1, 0)),
                                        axes=(1, 0)), []),
    ("swap between reshapes", lambda k, x: _swap(k, x, (1, 2, 6, 2)),
     ["reshape", "exp", "transpose"]),
    ("swap before another shape", lambda k, x: _swap(k, x, (1, 2, 2, 6)),
     ["reshape", "exp", "reshape", "transpose", "reshape"]),
    ("transpose of a column", lambda k, x: k.layer(
        "transpose", k.layer("reshape", x, shape=(24, 1)), axes=(1, 0)), ["reshape"]),
    ("clips", lambda k, x: k.layer("clip", k.layer("clip", x, min=-1.0), min=-0.5, max=0.5),
     ["clip"]),
    ("disjoint clips", lambda k, x: k.layer("clip", k.layer("clip", x, min=2.0, max=3.0), min=0.0,
                                            max=1.0), ["clip", "clip"]),
    ("relus", lambda k, x: k.layer("nn.relu", k.layer("nn.relu", x)), ["nn.relu"]),
    ("negatives", lambda k, x: k.layer("negative", k.layer("negative", x)), []),
    ("cast up and back", lambda k, x: k.layer("cast", k.layer("cast", x, dtype="f64"),
                                              dtype="f32"), []),
    ("cast down and back", lambda k, x: k.layer("cast", k.layer("cast", x, dtype="f16"),
                                                dtype="f32"), ["cast", "cast"]),
    ("over eight", lambda k, x: k.layer("divide", x, k.const(np.float32(8))), ["multiply"]),
    ("over three", lambda k, x: k.layer("divide", x, k.const(np.float32(3))), ["divide"]),
    ("square", lambda k, x: k.layer("power", x, k.const(np.float32(2))), ["multiply"]),
    ("root", lambda k, x: k.layer("power", k.layer("abs", x), k.const(np.float32(0.5))),
     ["abs", "sqrt"]),
    ("cube", lambda k, x: k.layer("power", x, k.const(np.float32(3))), ["power"]),
    ("one over root", lambda k, x: k.layer(
        "divide", k.const(ONE), k.layer("sqrt", k.layer("abs", x))), ["abs", "rsqrt"]),
    ("where true", lambda k, x: k.layer("where", k.const(np.bool_(True)), x, k.const(ONE)), []),
    ("where false", lambda k, x: k.layer("where", k.const(np.bool_(False)), x, k.const(ONE)),
     ["broadcast_to"]),
    ("broadcasting zero", lambda k, x: k.layer("add", k.layer("reshape", x, shape=(4, 6, 1)),
                                               k.const(np.broadcast_to(ZERO, (1, 1, 3)))),
     ["reshape", "add"]),
]  # fmt: skip


@pytest.mark.parametrize(("build", "left"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_identities(kit: Any, build: Any, left: list[str]) -> None:
    x = kit.var("x", 4, 6)
    before = kit.module([x], build(kit, x))
    after = kit.apply(before, SimplifyExpr())
    assert kit.op_names(after) == left
    assert (after is before) == (kit.op_names(before) == left)
    kit.same(before, after)


def test_a_decided_if_is_its_branch(kit: Any) -> None:
    x = kit.var("x", 4)
    a, b = kit.var("a", 4), kit.var("b", 4)
    then = kit.function([a], kit.layer("exp", a))
    orelse = kit.function([b], kit.layer("negative", b))
    for condition, left in ((True, ["exp"]), (False, ["negative"])):
        before = kit.module([x], If(Constant(np.bool_(condition)), then, orelse, [x], span=x.span))
        after = kit.apply(before, SimplifyExpr())
        assert kit.op_names(after) == left
        (call,) = after.main.body.fields
        assert call.args == (x,)


N = SymDim.symbol("n")


def _count(k: Any, start: int = 0, step: int = 1, stop: Any = N, dtype: str = "i64") -> Any:
    return k.layer("arange", start=start, stop=start + step * stop, step=step, dtype=dtype)


def _joined(k: Any, *least: int) -> Any:
    """Positions, then numbers of fewer bits."""
    parts = [k.layer("cast", k.const(np.array([n, 7], np.int32)), dtype="i64") for n in least]
    return k.layer("concatenate", _count(k), *parts, axis=0)


def _across(k: Any) -> Any:
    square = k.layer("reshape", _count(k, stop=2 * N), shape=(2, N))
    return k.layer("transpose", square, axes=(1, 0))


def _chosen(k: Any, other: Any) -> Any:
    return k.layer("where", k.var("c", N, dtype="bool"), _count(k), other)


# A comparison, its left side, its right side, and its value if it is known.
COMPARISONS: list[tuple[str, Any, float, bool | None]] = [
    ("greater_equal", _count, 0, True),
    ("less", _count, 0, False),
    ("greater", _count, -1, True),
    ("less_equal", _count, -1, False),
    ("greater", _count, 0, None),
    ("less_equal", _count, 0, None),
    ("greater_equal", _count, 1, None),
    ("less", _count, 1, None),
    ("greater_equal", lambda k: _count(k, start=5), 5, True),
    ("greater_equal", lambda k: _count(k, start=-5), 0, None),
    ("less_equal", lambda k: _count(k, step=-2), 0, True),
    ("greater", lambda k: _count(k, step=-2), 0, False),
    ("less", lambda k: _count(k, step=-2), 0, None),
    ("greater_equal", lambda k: _count(k, step=-2), 0, None),
    ("less_equal", lambda k: _count(k, start=5, step=-2), 5, True),
    ("less_equal", lambda k: _count(k, start=5, step=-2), 3, None),
    ("greater_equal", _across, 0, True),
    ("greater", _across, 0, None),
    ("greater_equal", lambda k: _joined(k, 1, 0), 0, True),
    ("greater_equal", lambda k: _joined(k, 1, -1), 0, None),
    ("greater_equal", lambda k: k.layer("concatenate", _count(k), k.var("i", N, dtype="i64"),
                                        axis=0), 0, None),
    ("greater_equal", lambda k: _chosen(k, _count(k, start=1)), 0, True),
    ("greater_equal", lambda k: _chosen(k, k.var("i", N, dtype="i64")), 0, None),
    ("greater_equal", lambda k: k.layer("pad", _count(k), pads=(1, 0), value=-1), 0, None),
    ("greater_equal", lambda k: k.layer("negative", _count(k)), 0, None),
    ("greater_equal", lambda k: k.layer("cast", _count(k), dtype="i32"), 0, None),
    ("greater_equal", lambda k: _count(k, dtype="i32"), 0, None),
    ("greater_equal", lambda k: _count(k, dtype="f32"), 0, None),
    ("greater_equal", lambda k: k.var("i", N, dtype="i64"), 0, None),
    ("greater_equal", lambda k: k.const(np.array([2, 0])), 0, True),
    ("greater_equal", lambda k: k.const(np.array([2, -1])), 0, None),
    ("greater_equal", lambda k: k.const(np.array([2, -0.5])), 0, None),
    ("greater_equal", lambda k: k.layer("concatenate", _count(k), k.const(np.array([-1])), axis=0),
     0, None),
]  # fmt: skip


@pytest.mark.parametrize(("op", "left", "right", "value"), COMPARISONS)
def test_comparisons_with_a_bound(
    kit: Any, op: str, left: Any, right: float, value: bool | None
) -> None:
    given, x = left(kit), kit.var("x", N)
    limit = kit.const(np.asarray(right, to_numpy(given.tensor.dtype)))
    before = kit.module([x, *free_vars([given])], kit.layer(op, given, limit))
    after = kit.apply(before, SimplifyExpr())
    if value is None:
        assert op in kit.op_names(after)
    else:
        assert kit.op_names(after) == ["broadcast_to"]
        assert after.main.body.fields[0].args[0].splat_value is value
    kit.same(before, after)


@pytest.mark.parametrize(("op", "limit"), [("greater_equal", -np.inf), ("less_equal", np.inf)])
def test_nan_is_within_no_bounds(kit: Any, op: str, limit: float) -> None:
    x = kit.var("x", 2)
    before = kit.module([x], kit.layer(op, x, kit.const(np.float32(limit))))
    after = kit.apply(before, SimplifyExpr())
    values = {"x": np.array([np.nan, limit], np.float32)}
    assert kit.interpret(before, values)[0].tolist() == [False, True]
    assert kit.interpret(after, values)[0].tolist() == [False, True]


def test_a_function_named_arange_has_no_bounds(kit: Any) -> None:
    x, a = kit.var("x", 2, dtype="i64"), kit.var("a", 2, dtype="i64")
    own = Function([a], kit.layer("negative", a), {"name": "arange"}, span=a.span)
    y = kit.layer("greater_equal", Call(own, [x], span=x.span), kit.const(np.int64(0)))
    before = kit.module([x], y)
    after = kit.apply(before, SimplifyExpr())
    assert kit.interpret(after, {"x": np.array([1, -1])})[0].tolist() == [False, True]


TRUE, FALSE = np.bool_(True), np.bool_(False)
CONDITIONS: list[tuple[str, Any, list[str]]] = [
    ("and true", lambda k, x: k.layer("logical_and", x, k.const(TRUE)), []),
    ("true and", lambda k, x: k.layer("logical_and", k.const(TRUE), x), []),
    ("or false", lambda k, x: k.layer("logical_or", x, k.const(FALSE)), []),
    ("and many", lambda k, x: k.layer("logical_and", x, k.const(np.broadcast_to(TRUE, (4, 3)))),
     ["broadcast_to"]),
    ("or many", lambda k, x: k.layer("logical_or", k.const(np.broadcast_to(FALSE, (2, 4, 1))), x),
     ["broadcast_to"]),
    ("and one broadcast", lambda k, x: k.layer(
        "logical_and", x, k.layer("broadcast_to", k.const(TRUE), shape=(4, 1))), []),
    ("or one broadcast", lambda k, x: k.layer(
        "logical_or", x, k.layer("broadcast_to", k.const(FALSE), shape=(4, 3))), ["broadcast_to"]),
    ("and false", lambda k, x: k.layer("logical_and", x, k.const(FALSE)), ["logical_and"]),
    ("or true", lambda k, x: k.layer("logical_or", x, k.const(TRUE)), ["logical_or"]),
    ("xor false", lambda k, x: k.layer("logical_xor", x, k.const(FALSE)), ["logical_xor"]),
    ("and some", lambda k, x: k.layer("logical_and", x, k.const(np.array([True, False]))),
     ["logical_and"]),
    ("or some", lambda k, x: k.layer("logical_or", x, k.const(np.array([True, False]))),
     ["logical_or"]),
    ("and a known comparison", lambda k, x: k.layer("logical_and", x, k.layer(
        "greater_equal", _count(k, stop=3), k.const(np.int64(0)))), ["broadcast_to"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("build", "left"), [c[1:] for c in CONDITIONS], ids=[c[0] for c in CONDITIONS]
)
def test_conditions(kit: Any, build: Any, left: list[str]) -> None:
    x = kit.var("x", 4, 1, dtype="bool")
    before = kit.module([x], build(kit, x))
    after = kit.apply(before, SimplifyExpr())
    assert kit.op_names(after) == left
    assert (after is before) == (kit.op_names(before) == left)
    values = {"x": np.array([[True], [False], [True], [False]])}
    (expected,), (found,) = kit.interpret(before, values), kit.interpret(after, values)
    assert found.shape == expected.shape
    assert (found == expected).all()


@pytest.mark.parametrize("index", [1, -2])
def test_one_of_the_sizes_is_a_range(kit: Any, index: int) -> None:
    """A kernel computes it from the sizes of a call; no step of the host reads a shape."""
    n = SymDim.symbol("n")
    x = kit.var("x", 2, n, 3)
    shape = kit.layer("shape_of", x)
    taken = [
        kit.layer("slice", shape, begin=(index,), end=(index + 1,), strides=(1,), axes=(0,)),
        kit.layer("gather", shape, kit.const(np.array(index, np.int64))),
        kit.layer("gather", shape, kit.const(np.array([index], np.int64))),
    ]
    for value in taken:
        after = kit.apply(kit.module([x], value), SimplifyExpr())
        assert set(kit.op_names(after)) <= {"arange", "reshape"}
        (made,) = after.main.body.fields
        assert made.tensor.shape == value.tensor.shape
        made = made if made.op_name == "arange" else made.args[0]
        assert (made.attrs.start, made.attrs.stop) == (n, n + 1)


def test_sizes_that_only_the_data_decide_are_read_in_the_run(kit: Any) -> None:
    x = kit.var("x", 2, SymDim.symbol("?3"), 3)
    shape = kit.layer("shape_of", x)
    value = kit.layer("slice", shape, begin=(1,), end=(2,), strides=(1,), axes=(0,))
    before = kit.module([x], value)
    assert kit.apply(before, SimplifyExpr()) is before
