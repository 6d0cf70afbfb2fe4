"""Upper bounds of integers in graphs."""

from __future__ import annotations

import numpy as np

from clew.ir.dims import SymDim
from clew.ir.expr import Call, Constant, Expr, Function, TupleGetItem, Var
from clew.ir.types import TensorType
from clew.ops.largest import largest
from clew.ops.registry import get_op

N = SymDim.symbol("n")


def _op(name: str, *args: Expr, **attrs: object) -> Call:
    return get_op(name)(*args, **attrs)


def test_counts_are_at_most_the_elements() -> None:
    x = Var("x", TensorType((N, 5), "f32"))
    count = _op("count_nonzero", _op("nn.relu", x))
    assert largest(count) == 5 * N
    assert largest(_op("minimum", count, Constant(np.array(7)))) is not None
    assert largest(_op("add", count, Constant(np.array(1)))) == 5 * N + 1
    assert largest(_op("reshape", count, shape=(1,))) == 5 * N


def test_bounds_pass_through_kernels() -> None:
    inner = Var("p", TensorType((N, 5), "f32"))
    kernel = Function([inner], _op("count_nonzero", inner), {})
    x = Var("x", TensorType((N, 5), "f32"))
    assert largest(Call(kernel, [x])) == 5 * N


def test_boxes_that_are_kept() -> None:
    boxes, scores = Var("b", TensorType((1, 9, 4), "f32")), Var("s", TensorType((1, 2, 9), "f32"))
    limits = [Constant(np.array(4)), Constant(np.array(0.5))]
    best = _op("best_boxes", boxes, scores, *limits, room=4)
    total = _op("sum", TupleGetItem(best, 1), axes=(0, 1), keepdims=False)
    assert largest(total) == 8


def test_nothing_is_known_of_inputs() -> None:
    k = Var("k", TensorType((), "i64"))
    assert largest(k) is None
    assert largest(_op("add", k, Constant(np.array(1)))) is None
