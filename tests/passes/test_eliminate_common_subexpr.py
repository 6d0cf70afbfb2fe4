from __future__ import annotations

from typing import Any

import numpy as np

import clew.ops  # noqa: F401
from clew.ir.expr import Constant, Function, Tuple, Var
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.ir.visit import post_order
from clew.ops.registry import get_op
from clew.passes.base import PassContext
from clew.passes.simplify.eliminate_common_subexpr import EliminateCommonSubexpr
from clew.support.text_arrays import TEXT


def test_equal_calls_become_one(kit: Any) -> None:
    x = kit.var("x", 4, 6)
    a, b = (kit.layer("add", x, kit.const(np.float32(3))) for _ in range(2))
    y = kit.layer("multiply", kit.layer("exp", a), kit.layer("exp", b))
    before = kit.module([x], y)
    after = kit.apply(before, EliminateCommonSubexpr())
    assert kit.op_names(after) == ["add", "exp", "multiply"]
    kit.same(before, after)
    (product,) = after.main.body.fields
    assert product.args[0] is product.args[1]


def test_commutative_operands_compare_in_any_order(kit: Any) -> None:
    x, y = kit.var("x", 4), kit.var("y", 4)
    sums = kit.layer("multiply", kit.layer("add", x, y), kit.layer("add", y, x))
    differences = kit.layer("multiply", kit.layer("subtract", x, y), kit.layer("subtract", y, x))
    after = kit.apply(kit.module([x, y], sums, differences), EliminateCommonSubexpr())
    assert kit.op_names(after).count("add") == 1
    assert kit.op_names(after).count("subtract") == 2


def test_attributes_and_dtypes_count(kit: Any) -> None:
    x = kit.var("x", 4, 4)
    a = kit.layer("sum", x, axes=(0,), keepdims=True)
    b = kit.layer("sum", x, axes=(1,), keepdims=True)
    given = kit.module([x], a, b, kit.const(np.zeros(2, "f4")), kit.const(np.zeros(1, "f8")))
    assert kit.apply(given, EliminateCommonSubexpr()) is given


def test_large_constants_of_text_are_compared_by_their_own_memory() -> None:
    texts = [Constant(np.array([f"{n} {k}" for k in range(5000)], TEXT)) for n in range(4)]
    body = Tuple([get_op("text.concat")(t, texts[0]) for t in texts[1:]])
    module = Module({"main": Function([], body, {"outputs": ["a", "b", "c"]})})
    assert EliminateCommonSubexpr().run(module, PassContext()) is module


def test_lazy_constants_are_never_taken_for_each_other():
    """Their data lives only while it is used, so its address says nothing."""
    type_ = TensorType((64, 64), "f32")
    x = Var("x", type_)
    weights = [Constant.lazy(type_, lambda n=n: np.full((64, 64), n, np.float32)) for n in range(8)]
    total = x
    for weight in weights:
        total = get_op("add")(total, weight)
    module = Module({"main": Function([x], Tuple([total]), {"outputs": ["y"]})})
    new = EliminateCommonSubexpr(max_constant_elems=16).run(module, PassContext())
    found = {n.id for n in post_order(new.main) if isinstance(n, Constant)}
    assert found == {w.id for w in weights}
