"""Known values: what shape computations give before the run, with symbolic sizes."""

from __future__ import annotations

import numpy as np
import pytest

from clew.ir.dims import SymDim
from clew.ir.expr import ArgRef, Call, Constant, Tuple, TupleGetItem, Var
from clew.ir.types import TensorType
from clew.ir.values import MAX_ELEMENTS, KnownValues, known_value
from clew.ops.registry import get_op

BATCH, SEQ = SymDim.symbol("batch"), SymDim.symbol("seq")


def call(op, *args, **attrs):
    return get_op(op)(*args, **attrs)


def const(value, dtype=np.int64):
    return Constant(np.array(value, dtype))


@pytest.fixture
def sizes():
    """The sizes of f32[batch, seq, 64]."""
    return call("shape_of", Var("x", TensorType((BATCH, SEQ, 64), "f32")))


def known(expr):
    value = known_value(expr)
    return None if value is None else value.tolist()


def pick(sizes, n):
    return call("gather", sizes, const(n), axis=0)


def test_sizes(sizes):
    assert known(sizes) == [BATCH, SEQ, 64]
    assert known_value(pick(sizes, 2)).dtype == object or known(pick(sizes, 2)) == 64


def test_static_sizes_have_the_type_of_the_expression():
    value = known_value(call("shape_of", Var("x", TensorType((2, 3), "f32"))))
    assert value.dtype == np.int64
    assert value.tolist() == [2, 3]


def test_arithmetic(sizes):
    batch, seq = pick(sizes, 0), pick(sizes, 1)
    assert known(call("multiply", batch, seq)) == BATCH * SEQ
    assert known(call("add", batch, const(1))) == BATCH + 1
    assert known(call("subtract", seq, batch)) == SEQ - BATCH
    assert known(call("divide", call("multiply", batch, const(4)), const(2))) == BATCH * 2
    assert known(call("divide", seq, const(2))) == SEQ // 2
    assert known(call("floor_mod", call("multiply", seq, const(4)), const(2))) == 0
    assert known(call("maximum", seq, const(0))) == SEQ
    assert known(call("prod", sizes, axes=(0,), keepdims=False)) == BATCH * SEQ * 64
    assert known(call("sum", sizes, axes=(0,), keepdims=False)) == BATCH + SEQ + 64


def test_movement(sizes):
    reversed_sizes = call("flip", sizes, axes=(0,))
    joined = call("concatenate", reversed_sizes, const([7]), axis=0)
    assert known(joined) == [64, SEQ, BATCH, 7]
    tail = call("slice", sizes, begin=(1,), end=(3,), strides=(1,), axes=(0,))
    assert known(tail) == [SEQ, 64]
    assert known(call("reshape", pick(sizes, 0), shape=(1,))) == [BATCH]
    halves = call("split", sizes, sizes=(1, 2), axis=0)
    assert known(TupleGetItem(halves, 1)) == [SEQ, 64]
    assert known(TupleGetItem(Tuple([sizes, const(3)]), 1)) == 3


def test_casts_and_floats(sizes):
    seq = call("cast", pick(sizes, 1), dtype="f32")
    doubled = call("multiply", seq, const(2.0, np.float32))
    assert known(call("cast", doubled, dtype="i64")) == SEQ * 2
    # Half a size need not be a size.
    assert known(call("multiply", seq, const(0.5, np.float32))) is None
    assert known(call("divide", doubled, const(2.0, np.float32))) == SEQ


def test_comparisons_only_where_every_size_agrees(sizes):
    batch = pick(sizes, 0)
    assert known(call("equal", batch, const(-1))) is False
    assert known(call("greater_equal", batch, const(0))) is True
    assert known(call("less", call("add", batch, const(1)), const(1))) is False
    assert known(call("less", batch, call("add", batch, const(1)))) is True
    assert known(call("equal", batch, const(1))) is None
    assert known(call("less", batch, const(5))) is None


def test_where(sizes):
    wanted = call("concatenate", const([-1]), const([64]), axis=0)
    is_free = call("equal", wanted, const([-1, -1]))
    ones = call("slice", sizes, begin=(0,), end=(2,), strides=(1,), axes=(0,))
    assert known(call("where", is_free, ones, wanted)) == [BATCH, 64]


def test_unknown():
    n = Var("n", TensorType((), "i64"))
    assert known(n) is None
    assert known(call("add", n, const(1))) is None
    assert known(call("add", const(1), n)) is None
    big = Constant(np.zeros(MAX_ELEMENTS + 1, np.int64))
    assert known(big) is None
    shape = Var("s", TensorType((2,), "i64"))
    x = Var("x", TensorType((6,), "i64"))
    assert known(Call(get_op("reshape"), [x, shape], {"shape": ArgRef(1)})) is None


def test_alias_follows_the_outer_value(sizes):
    values = KnownValues()
    inner = Var("captured", TensorType((3,), "i64"))
    values.alias(inner, sizes)
    assert values.get(pick(inner, 1)).tolist() == SEQ


def test_a_deep_chain_does_not_recurse():
    expr = const([0])
    for _ in range(3000):
        expr = call("add", expr, const([1]))
    assert known(expr) == [3000]
