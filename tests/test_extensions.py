"""What users add to a compilation: fusions, schedules and passes, and what they are told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import clew
import clew.ops  # registers the operators
from clew.ir.expr import Constant, Expr, Function, Var
from clew.ir.interpret import interpret
from clew.ir.module import Module
from clew.ir.parser import parse_module
from clew.ir.types import TensorType
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.ops.registry import get_op
from clew.patterns import RuleRewriter, is_constant, is_op, rule, wildcard
from clew.support.errors import ClewError

Array = np.ndarray[Any, Any]

ROWS = """
clew 1
def @main(
  %a: f32[3, 20, 24],  // input a
  %b: f32[3, 24, 40]  // input b
) -> (f32[3, 20],) with outputs=["y"] {
  %0 = exp(%a)  // power:Exp#0
  %1 = mean(%0, axes=[2], keepdims=true)  // mean:ReduceMean#0
  %2 = subtract(%0, %1)  // center:Sub#0
  %3 = nn.matmul(%2, %b)  // scores:MatMul#0
  %4 = tanh(%3)  // act:Tanh#0
  %5 = max(%4, axes=[2], keepdims=false)  // top:ReduceMax#0
  %6 = (%5,)
  return %6
}
"""
BLOCK = """
clew 1
def @main(
  %x: f32[1, 16, 9, 9],  // input x
  %w1: f32[32, 16, 1, 1],  // input w1
  %w3: f32[16, 32, 3, 3]  // input w3
) -> (f32[1, 48, 9, 9], f32[1, 16, 9, 9]) with outputs=["y", "z"] {
  %0 = nn.conv2d(%x, %w1)  // reduce:Conv#0
  %1 = nn.relu(%0)  // act1:Relu#0
  %2 = nn.conv2d(%1, %w3, padding=[1, 1, 1, 1])  // conv:Conv#0
  %3 = nn.relu(%2)  // act3:Relu#0
  %4 = concatenate(%1, %3, axis=1)  // join:Concat#0
  %5 = tanh(%3)  // after:Tanh#0
  %6 = (%4, %5)
  return %6
}
"""
x, w = wildcard(), wildcard()
POWER = is_op("exp")(x)
CENTERED = is_op("subtract")(POWER, is_op("mean")(POWER))
SCORED = is_op("max")(is_op("tanh")(is_op("nn.matmul")(CENTERED, wildcard())))
REDUCED = is_op("nn.relu")(is_op("nn.conv2d")(x, wildcard()))
JOINED = is_op("concatenate")(REDUCED, is_op("nn.relu")(is_op("nn.conv2d")(REDUCED, wildcard())))


def inputs(module: Module) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {
        p.name: rng.standard_normal(p.tensor.concrete).astype(np.float32) * 0.5
        for p in module.main.params
    }


def agrees(module: Module, compiled: clew.CompiledModel) -> None:
    given = inputs(module)
    reference = interpret(module, given)
    for name, found in compiled.run(given).items():
        np.testing.assert_allclose(found, reference[name], rtol=2e-4, atol=1e-5)
    assert compiled.trace.check() == []
    assert compiled.trace.verify(given).ok


def a_fusion(pattern: Any, mode: Any, **options: Any) -> Any:
    @clew.fusion(pattern, mode, **options)
    def mine(found: Any) -> None: ...

    return mine


# --- fusions ---


@pytest.mark.parametrize("opt_level", [0, 1, 2, 3])
@pytest.mark.parametrize("mode", ["stack", "melt"])
def test_reductions_and_a_product_are_one_kernel(mode: str, opt_level: int) -> None:
    module = parse_module(ROWS)
    compiled = clew.compile(
        module,
        extend=[a_fusion(SCORED, mode)],
        opt_level=opt_level,
        threads=1,
        diagnostics=clew.Diagnostics(guard=True),
    )
    (kernel,) = compiled.kernels
    assert kernel.name == "mine"
    assert mode in kernel.rules
    assert kernel.layers == ("power", "mean", "center", "scores", "act", "top")
    agrees(module, compiled)


def test_threads_do_not_change_what_a_melted_kernel_gives() -> None:
    module = parse_module(ROWS)
    one, two = (clew.compile(module, extend=[a_fusion(SCORED, "melt")], threads=n) for n in (1, 2))
    given = inputs(module)
    np.testing.assert_array_equal(one.run(given)["y"], two.run(given)["y"])


@pytest.mark.parametrize("opt_level", [0, 3])
def test_a_block_with_several_results_is_stacked(opt_level: int) -> None:
    module = parse_module(BLOCK)
    options: dict[str, Any] = {"opt_level": opt_level, "threads": 1}
    options["diagnostics"] = clew.Diagnostics(guard=True)
    compiled = clew.compile(module, extend=[a_fusion(JOINED, "stack")], **options)
    default = clew.compile(module, **options)
    names = [k.name for k in compiled.kernels]
    assert names.count("mine") == 1
    assert len(names) < len(default.kernels)
    agrees(module, compiled)


def test_a_check_may_turn_a_match_down() -> None:
    @clew.fusion(is_op("exp")(x), "melt")
    def never(found: Any) -> bool:
        return False

    module = parse_module(ROWS)
    compiled = clew.compile(module, extend=[never])
    assert "never" not in [k.name for k in compiled.kernels]
    remarks = [r.text for s in compiled.build.stages for r in s.remarks]
    assert any("its check rejected it" in r for r in remarks)


def test_of_overlapping_matches_the_first_is_fused() -> None:
    module = parse_module(ROWS)
    whole = a_fusion(SCORED, "melt")

    @clew.fusion(is_op("tanh")(x), "melt")
    def later(found: Any) -> None: ...

    compiled = clew.compile(module, extend=[whole, later])
    assert [k.name for k in compiled.kernels] == ["mine"]


LEAVES_AND_RETURNS = """
clew 1
def @main(%x: f32[4, 4]) -> (f32[4, 4],) with outputs=["y"] {
  %0 = exp(%x)  // first:Exp#0
  %1 = tanh(%0)  // between:Tanh#0
  %2 = multiply(%0, %1)  // last:Mul#0
  %3 = (%2,)
  return %3
}
"""
ON_HOST = """
clew 1
def @main(%x: f32[4, 4]) -> (f32[4, 4],) with outputs=["y"] {
  %0 = exp(%x)  // first:Exp#0
  %1 = inverse(%0)  // turned:Inverse#0
  %2 = tanh(%1)  // last:Tanh#0
  %3 = (%2,)
  return %3
}
"""


@pytest.mark.parametrize(
    ("text", "pattern", "mode", "why"),
    [
        (
            LEAVES_AND_RETURNS,
            is_op("multiply")(is_op("exp")(wildcard()), wildcard()),
            "stack",
            "values leave it and come back: exp (first) -> tanh (between) -> multiply (last)",
        ),
        (BLOCK, JOINED, "melt", "values leave it"),
        (
            ON_HOST,
            is_op("tanh")(is_op("inverse")(is_op("exp")(x))),
            "stack",
            "inverse (turned) has no tensor form",
        ),
    ],
    ids=["returns", "results", "host"],
)
def test_what_is_not_legal_explains_itself(text: str, pattern: Any, mode: str, why: str) -> None:
    module = parse_module(text)
    with pytest.raises(ClewError) as caught:
        clew.compile(module, extend=[a_fusion(pattern, mode)]).kernels  # noqa: B018
    assert caught.value.code == "U020"
    assert why in caught.value.message
    assert caught.value.layer
    compiled = clew.compile(module, extend=[a_fusion(pattern, mode, required=False)])
    agrees_loosely(module, compiled)
    remarks = [r.text for s in compiled.build.stages for r in s.remarks]
    assert any(why in r for r in remarks)


SORTED = """
clew 1
def @main(%x: f32[4, 1800]) -> (f32[4, 3], f32[4, 3]) with outputs=["y", "z"] {
  %0 = exp(%x)  // first:Exp#0
  %1 = top_k(%0, k=3)  // best:TopK
  %2 = %1[0]  // best:TopK#0
  %3 = tanh(%2)  // last:Tanh#0
  %4 = (%3, %2)
  return %4
}
"""


def test_a_fusion_around_a_sort() -> None:
    module = parse_module(SORTED)
    best = clew.patterns.is_tuple_get_item(is_op("top_k")(is_op("exp")(x)), 0)
    pattern = is_op("tanh")(best)
    compiled = clew.compile(
        module,
        extend=[a_fusion(pattern, "stack")],
        threads=2,
        diagnostics=clew.Diagnostics(guard=True),
    )
    (kernel,) = compiled.kernels
    assert {"exp", "top_k", "tanh"} <= set(kernel.ops)
    agrees_loosely(module, compiled)


def agrees_loosely(module: Module, compiled: clew.CompiledModel) -> None:
    given = inputs(module)
    reference = interpret(module, given)
    for name, found in compiled.run(given).items():
        np.testing.assert_allclose(found, reference[name], rtol=2e-4, atol=1e-5)


# --- schedules ---


def test_a_fusion_brings_its_schedule() -> None:
    seen: list[str] = []

    def by_hand(schedule: Schedule, target: Target) -> None:
        seen.append(schedule.nest.name)
        schedule.inline("tanh")
        out = schedule.cache_write("max")
        schedule.compute_at("max", f"{out}.i1", "register")

    module = parse_module(ROWS)
    compiled = clew.compile(module, extend=[a_fusion(SCORED, "melt", schedule=by_hand)])
    (kernel,) = compiled.kernels
    assert seen[0] == "mine"
    assert [s.primitive for s in kernel.schedule.steps] == ["inline", "cache_write", "compute_at"]
    agrees(module, compiled)


TANH = """
clew 1
def @main(
  %x: f32[?, 64]  // input x
) -> (f32[?, 64],) with outputs=["y"] {
  %0 = tanh(%x)  // act:Tanh#0
  %1 = (%0,)
  return %1
}
"""


def test_a_schedule_is_saved_edited_and_replayed_on_another_shape() -> None:
    small, large = (parse_module(TANH.replace("?", str(n))) for n in (8, 24))
    (kernel,) = clew.compile(small).kernels
    steps = kernel.schedule.text
    assert str(Schedule.replay(kernel.schedule.history[0], steps)) == str(kernel.schedule)
    edited = "# mine\nsplit(loop='tanh.i1', factor=16)\nvectorize(loop='tanh.i1.i')\n"
    for module in (small, large):
        again = clew.compile(module, extend=[clew.schedule_for("tanh", steps=edited)])
        (kernel,) = again.kernels
        assert kernel.rules == ("tanh",)
        assert "vector tanh.i1.i in 16" in kernel.loops
        agrees(module, again)


@pytest.mark.parametrize(
    "where",
    [
        {"kernel": "conv2d_relu"},
        {"kernel": "conv2d*"},
        {"op": "nn.conv2d"},
        {"op": ("nn.conv2d", "nn.relu")},
        {"pattern": is_op("nn.relu")(is_op("nn.conv2d")(x, wildcard()))},
    ],
    ids=str,
)
def test_which_kernels_a_schedule_is_for(where: dict[str, Any]) -> None:
    met: list[str] = []

    @clew.schedule_for(**where)
    def seen(schedule: Schedule, target: Target) -> bool:
        met.append(schedule.nest.name)
        return False

    module = parse_module(BLOCK)
    compiled = clew.compile(module, extend=[seen], opt_level=1, cache=False)
    meant = {k.name for k in compiled.kernels if "nn.conv2d" in k.ops}
    if where.get("kernel") == "conv2d_relu":
        meant = {"conv2d_relu"}
    assert len(met) == len(meant) > 0
    agrees(module, compiled)


def test_an_edited_schedule_is_another_kernel() -> None:
    module = parse_module(ROWS)
    found = []
    for factor in (8, 16):

        @clew.schedule_for(op="tanh", name="mine")
        def mine(schedule: Schedule, factor: int = factor) -> None:
            schedule.split("tanh.i2", factor)

        compiled = clew.compile(module, extend=[mine], passes=clew.Passes(fuse=False))
        (kernel,) = [k for k in compiled.kernels if k.ops == ("tanh",)]
        found.append(kernel.asm)
        agrees(module, compiled)
    assert found[0] != found[1]


def test_illegal_steps_say_why_and_where() -> None:
    module = parse_module(ROWS)
    bad = clew.schedule_for(op="tanh", steps="vectorize(loop='tanh.i9')")
    with pytest.raises(ClewError) as caught:
        clew.compile(module, extend=[bad], passes=clew.Passes(fuse=False)).kernels  # noqa: B018
    assert caught.value.code == "S001"
    assert "tanh.i2" in caught.value.hint
    assert "kernel tanh" in caught.value.stage

    @clew.schedule_for(op="tanh")
    def broken(schedule: Schedule) -> None:
        raise KeyError("oops")

    with pytest.raises(ClewError) as caught:
        clew.compile(module, extend=[broken], passes=clew.Passes(fuse=False)).kernels  # noqa: B018
    assert caught.value.code == "C081"
    assert "oops" in caught.value.message


# --- passes ---

TWICE = """
clew 1
def @main(
  %x: f32[4]  // input x
) -> (f32[4],) with outputs=["y"] {
  %0 = nn.relu(%x)  // one:Relu#0
  %1 = abs(%0)  // two:Abs#0
  %2 = (%1,)
  return %2
}
"""


@rule(is_op("abs")(is_op("nn.relu")(x)))
def no_need(found: Any) -> Any:
    """What is positive is its own absolute value."""
    return clew.get_op("nn.relu")(found[x])


@pytest.mark.parametrize("place", [{}, {"before": "FuseOps"}, {"after": "SimplifyExpr"}], ids=str)
def test_a_pass_of_the_users_takes_part(place: dict[str, str]) -> None:
    @clew.graph_pass(**place)
    def drop_abs(module: Module, ctx: Any) -> Module:
        ctx.remark(module.main.body, "looked")
        return RuleRewriter([no_need]).rewrite_module(module)

    module = parse_module(TWICE)
    compiled = clew.compile(module, extend=[drop_abs])
    assert [k.ops for k in compiled.kernels] == [("nn.relu",)]
    stages = [s.name for s in compiled.build.stages]
    if "before" in place:
        assert stages.index("drop_abs") == stages.index("FuseOps") - 1
    elif "after" in place:
        assert stages.index("drop_abs") == stages.index("SimplifyExpr") + 1
    else:
        assert stages[1] == "drop_abs"
    assert "drop_abs" in str(compiled.trace.layer("two"))
    agrees(module, compiled)


def test_a_pass_may_edit_and_its_code_is_never_taken_from_the_cache() -> None:
    module = parse_module(TWICE)
    given = {"x": np.array([-2, -1, 1, 2], np.float32)}
    found = []
    for op in ("tanh", "exp"):

        @clew.graph_pass
        def behind(module: Module, ctx: Any, op: str = op) -> clew.Editor:
            return clew.edit(module).insert_after("two", clew.get_op(op))

        found.append(clew.compile(module, extend=[behind]).run(given)["y"])
    plain = np.maximum(given["x"], 0)
    np.testing.assert_allclose(found, [np.tanh(plain), np.exp(plain)], rtol=1e-5)


def _returns_nothing(module: Module, ctx: Any) -> None: ...


def _fails(module: Module, ctx: Any) -> None:
    raise RuntimeError("oops")


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: clew.graph_pass(before="FuseOps", after="FuseOps"), "I083"),
        (lambda: compiled_with(clew.graph_pass(_returns_nothing, after="NoPass")), "I020"),
        (lambda: compiled_with(clew.graph_pass(_returns_nothing)), "I082"),
        (lambda: compiled_with(clew.graph_pass(_fails)), "C080"),
        (lambda: compiled_with(_fails), "I084"),
        (lambda: compiled_with(a_fusion(x, "stack"), a_fusion(x, "melt")), "I085"),
        (lambda: clew.fusion(x, "glue"), "I080"),
        (lambda: clew.schedule_for(), "I081"),
        (lambda: clew.schedule_for("k", steps="split tanh"), "P020"),
    ],
)  # fmt: skip
def test_mistakes_are_said(make: Callable[[], Any], code: str) -> None:
    with pytest.raises(ClewError) as caught:
        make()
    assert caught.value.code == code
    assert caught.value.hint


def compiled_with(*added: Any) -> Any:
    return clew.compile(parse_module(TWICE), extend=added).kernels


def test_a_constant_pattern_takes_part_in_a_fusion() -> None:
    module = parse_module("""
clew 1
def @main(%x: f32[4, 8]) -> (f32[4],) with outputs=["y"] {
  %0: f32[] = const splat 2.0
  %1 = multiply(%x, %0)  // twice:Mul#0
  %2 = sum(%1, axes=[1], keepdims=false)  // total:Sum#0
  %3 = (%2,)
  return %3
}
""")
    pattern = is_op("sum")(is_op("multiply")(x, is_constant()))
    compiled = clew.compile(
        module,
        extend=[a_fusion(pattern, "melt")],
        threads=1,
        diagnostics=clew.Diagnostics(guard=True),
    )
    assert [k.name for k in compiled.kernels] == ["mine"]
    agrees_loosely(module, compiled)


def test_errors_name_the_kernel_that_was_meant() -> None:
    """Equal kernels share a nest, and its name."""
    x = Var("x", TensorType((4, 64), "f32"))
    weights = [Constant(np.eye(64, dtype=np.float32) * n) for n in (1, 2)]
    made: Expr = x
    for weight in weights:
        made = get_op("nn.relu")(get_op("nn.dense")(made, weight))
    module = Module({"main": Function([x], made)})
    names = [kernel.name for kernel in clew.compile(module, threads=1).kernels]
    mine = clew.schedule_for(names[1], steps="unroll(loop='none')")
    with pytest.raises(ClewError) as caught:
        clew.compile(module, threads=1, extend=[mine])
    assert caught.value.code == "S001"
    assert caught.value.message == f"{names[1]} has no loop 'none'"
