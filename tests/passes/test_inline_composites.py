"""Calls of functions are inlined at every level, with a trace that leads through them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

import clew
from clew.ir.expr import Call, Expr, Function, GlobalVar, If, Tuple, TupleGetItem, Var
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.ir.visit import post_order
from clew.passes.base import Pass, PassContext
from clew.passes.simplify.inline_composites import InlineComposites
from clew.patterns import Pattern, is_constant, is_op, partition, wildcard
from clew.pipelines import pipeline
from clew.support.errors import UnsupportedError

pytestmark = pytest.mark.usefixtures("shared_kernels")

# Two values of a block are used: the gate, and what it is of.
BLOCK = is_op("sigmoid")(is_op("nn.conv2d")(wildcard(), is_constant()) + is_constant())


@dataclass(frozen=True)
class Divide(Pass):
    """Puts blocks into composites."""

    opt_level: ClassVar[int] = 0

    pattern: Pattern = BLOCK

    def run(self, module: Module, ctx: PassContext) -> Module:
        return partition(module, self.pattern, "block", extra_outputs=True, on_refusal=ctx.remark)


def network(kit: Any) -> Module:
    x = kit.var("x", 1, 4, 6, 6)
    y: Expr = x
    for n in range(3):
        weight = kit.const(kit.random(4, 4, 3, 3, seed=n) * np.float32(0.2), f"w{n}")
        y = kit.layer("nn.conv2d", y, weight, padding=(1, 1, 1, 1))
        y = kit.layer("add", y, kit.const(kit.random(4, 1, 1, seed=n), f"b{n}"))
        y = kit.layer("multiply", y, kit.layer("sigmoid", y))
    return kit.module([x], y)


@pytest.mark.parametrize("level", range(4))
@pytest.mark.parametrize("late", [False, True])
def test_composites_compile_at_every_level(kit: Any, level: int, late: bool) -> None:
    given = network(kit)
    passes = pipeline(level)
    place = [p.name for p in passes].index("DecomposeOps") if late else 0
    passes.insert(place, Divide(is_op("sigmoid", "nn.silu")(wildcard()) if late else BLOCK))
    data = {"x": kit.random(1, 4, 6, 6)}
    want = clew.compile(given, opt_level=level, cache=False, threads=1).run(data)
    compiled = clew.compile(given, opt_level=level, passes=passes, cache=False, threads=1)
    np.testing.assert_array_equal(compiled.run(data)["y0"], want["y0"])
    trace = compiled.trace
    divided = next(s for s in trace.stages if s.name == "Divide").module
    calls = [n for n in post_order(divided.main) if isinstance(n, Call)]
    assert sum(isinstance(n.op, Function) for n in calls) == 3
    assert trace.check() == []
    assert trace.verify(data).ok
    assert set(trace.accounted()) == set(trace.layers)


def test_nested_and_repeated_calls(kit: Any) -> None:
    p, q = kit.var("p", 4), kit.var("q", 4)
    inner = kit.function([p], kit.layer("exp", p))
    outer = kit.function([q], kit.layer("add", Call(inner, [q]), kit.layer("abs", q)))
    x = kit.var("x", 4)
    given = kit.module([x], Call(outer, [Call(outer, [x])]), Call(inner, [x]))
    after = kit.apply(given, InlineComposites())
    assert kit.op_names(after) == ["exp", "abs", "add", "exp", "abs", "add", "exp"]
    kit.same(given, after)
    assert InlineComposites().run(after, PassContext()) is after


def test_calls_in_branches_and_of_the_modules_functions(kit: Any) -> None:
    p, x = kit.var("p", 4), kit.var("x", 4)
    helper = kit.function([p], kit.layer("exp", p))
    calls_it = kit.function([x], Call(GlobalVar("helper", helper.type), [x]))
    cond = kit.var("c", dtype="bool")
    value = If(cond, calls_it, kit.function([p], kit.layer("log", p)), [x])
    main = kit.module([cond, x], value, Call(GlobalVar("helper", helper.type), [x])).main
    after = kit.apply(Module({"main": main, "helper": helper}), InlineComposites())
    assert sorted(kit.op_names(after)) == ["exp", "exp", "log"]
    assert not any(isinstance(n, GlobalVar) for n in post_order(after.main, into_functions=True))


def test_several_results_and_an_argument_passed_on(kit: Any) -> None:
    p, q, x = kit.var("p", 4), kit.var("q", 4), kit.var("x", 4)
    both = kit.function([p, q], Tuple([kit.layer("exp", p), q]))
    call = Call(both, [x, kit.layer("abs", x)])
    after = kit.apply(
        kit.module([x], TupleGetItem(call, 1), TupleGetItem(call, 0)), InlineComposites()
    )
    assert kit.op_names(after) == ["abs", "exp"]


def test_a_function_that_calls_itself_is_refused(kit: Any) -> None:
    f = TensorType((4,), "f32")
    own = GlobalVar("again", Function([Var("p", f)], Var("p", f)).type)
    p = kit.var("p", 4)
    again = kit.function([p], kit.layer("exp", Call(own, [p])))
    x = kit.var("x", 4)
    main = kit.module([x], Call(own, [x])).main
    with pytest.raises(UnsupportedError) as caught:
        kit.apply(Module({"main": main, "again": again}), InlineComposites())
    assert caught.value.code == "U011"


def test_without_the_pass_a_call_that_is_left_is_named(kit: Any) -> None:
    passes = [Divide(), *[p for p in pipeline(0) if p.name != "InlineComposites"]]
    with pytest.raises(UnsupportedError) as caught:
        clew.compile(network(kit), passes=passes, cache=False)
    assert caught.value.code == "U012"
    assert "block" in str(caught.value)
    assert "sigmoid" in caught.value.layer
