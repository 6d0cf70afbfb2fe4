from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser

import clew
from clew.ir.expr import Call, Expr, Function, GlobalVar, If, Let, Tuple, TupleGetItem, While
from clew.ir.module import Module
from clew.ir.visit import post_order
from clew.passes.simplify.dead_code import DeadCode


def find(module: Module, kind: type[Expr]) -> Any:
    (found,) = [n for n in post_order(module.main) if isinstance(n, kind)]
    return found


def test_functions_that_main_does_not_reach_go(kit: Any) -> None:
    x, a, b = kit.var("x", 4), kit.var("a", 4), kit.var("b", 4)
    used, dead = kit.function([a], kit.layer("exp", a)), kit.function([b], kit.layer("log", b))
    callee = GlobalVar("used", used.type, span=x.span)
    main = kit.module([x], Call(callee, [x], span=x.span)).main
    after = kit.apply(Module({"main": main, "used": used, "dead": dead}), DeadCode())
    assert set(after.functions) == {"main", "used"}


def test_a_let_nobody_reads_goes(kit: Any) -> None:
    x, v, w = kit.var("x", 4), kit.var("v", 4), kit.var("w", 4)
    inner = Let(w, kit.layer("log", x), kit.layer("exp", w), span=x.span)
    given = kit.module([x], Let(v, kit.layer("sin", x), inner, span=x.span))
    after = kit.apply(given, DeadCode())
    assert kit.op_names(after) == ["log", "exp"]


def test_results_and_arguments_of_an_if_that_nobody_reads_go(kit: Any) -> None:
    c, x, y = kit.var("c", dtype="bool"), kit.var("x", 4), kit.var("y", 4)
    branches = []
    for op in ("exp", "log"):
        a, b = kit.var("a", 4), kit.var("b", 4)
        body = Tuple([kit.layer(op, a), kit.layer("sin", b)], span=a.span)
        branches.append(kit.function([a, b], body))
    choice = If(c, *branches, [x, y], span=x.span)
    given = kit.module([c, x, y], TupleGetItem(choice, 0, span=x.span))
    after = kit.apply(given, DeadCode())
    left = find(after, If)
    assert left.args == (x,)
    assert len(left.type.fields) == 1
    assert "sin" not in kit.op_names(after)
    for condition in (True, False):
        inputs = {"c": np.bool_(condition), "x": np.full(4, 2, "f4"), "y": np.zeros(4, "f4")}
        np.testing.assert_array_equal(
            kit.interpret(given, inputs)[0], kit.interpret(after, inputs)[0]
        )


def loop(kit: Any) -> tuple[Any, While]:
    """Three rounds of: a += a, b += c, c += 1, d += 1; a and c are stacked."""
    params = []
    for _ in range(2):
        i = kit.var("i", dtype="i64")
        params.append([i, *(kit.var(n, 2) for n in "abcd")])
    more = kit.layer("less", params[0][0], kit.const(np.int64(3)))
    _, a, b, c, d = params[1]
    one = kit.const(np.float32(1))
    body = Tuple(
        [
            kit.layer("add", a, a),
            kit.layer("add", b, c),
            kit.layer("add", c, one),
            kit.layer("add", d, one),
            a,
            c,
        ],
        span=a.span,
    )
    x = kit.var("x", 2)
    made = While(
        kit.function(params[0], more), kit.function(params[1], body), [x] * 4, scans=2, trips=3,
        span=x.span,
    )  # fmt: skip
    return x, made


def test_states_and_stacks_of_a_loop_that_nobody_reads_go(kit: Any) -> None:
    x, made = loop(kit)
    outputs = [TupleGetItem(made, n, span=x.span) for n in (1, 5)]
    given = kit.module([x], *outputs)
    after = kit.apply(given, DeadCode())
    left = find(after, While)
    assert len(left.init) == 2  # b, and c that decides it
    assert left.scans == 1
    kit.same(given, after)


def test_a_loop_read_whole_stays(kit: Any) -> None:
    x, made = loop(kit)
    given = Module({"main": Function([x], made, {"outputs": ("y",)}, span=x.span)})
    assert kit.apply(given, DeadCode()) is given


# A state of a size that a run tells, and one that nobody reads after the loop.
GROWING = """<ir_version: 9, opset_import: ["" : 18]>
agraph (float[n,2] x, float[1,1] bound) => (float[m,1,2] y) {
    counts = Shape (x)
    zero = Constant <value = int64 {0}> ()
    iterations = Gather (counts, zero)
    yes = Constant <value = bool {1}> ()
    first = Constant <value = int64[1] {0}> ()
    none = Slice (x, first, first)
    kept, unread = Loop (iterations, yes, none, x) <body = inner
        (int64 i, bool c, float[k,2] some, float[n,2] other)
        => (bool c2, float[j,2] more, float[n,2] next) {
        c2 = Identity (c)
        flat = Constant <value = int64[1] {-1}> ()
        at = Reshape (i, flat)
        row = Gather (x, at)
        most = ReduceMax (row)
        above = Greater (most, bound)
        chosen = Reshape (above, flat)
        few = Compress <axis = 0> (row, chosen)
        more = Concat <axis = 0> (some, few)
        next = Add (other, other)
    }>
    axes = Constant <value = int64[1] {1}> ()
    y = Unsqueeze (kept, axes)
}"""


def test_sizes_of_what_is_left_keep_their_names() -> None:
    compiled = clew.compile(onnx.parser.parse_model(GROWING), threads=1)
    x = np.arange(10, dtype=np.float32).reshape(5, 2)
    found = compiled(x, np.full((1, 1), 4, np.float32))
    np.testing.assert_array_equal(found, x[2:, None])
