"""Defects planted in graph passes: each is named, and what is left of the model fails alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import nets
import numpy as np
import pytest

import clew
from clew.bisection import Verdict
from clew.ir import outline
from clew.ir.expr import Call, Constant, Expr, Function, Tuple
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter, rebuild
from clew.ir.visit import post_order
from clew.passes.base import PassContext
from clew.passes.convolution import alter_layout, fold_scale_axis
from clew.passes.simplify import eliminate_common_subexpr, fold_constant
from clew.patterns import RuleRewriter, is_op, rule, wildcard

op = clew.get_op


def check(verdict: Verdict, kind: str, pass_name: str, *layers: str, most: int = 5) -> None:
    assert verdict.kind == kind, f"{verdict}\n{verdict.evidence}"
    assert verdict.pass_name == pass_name, str(verdict)
    if layers:
        assert set(layers) & set(verdict.layers), str(verdict)
    assert verdict.reduced is not None, str(verdict)
    assert verdict.reduced.operators <= most, str(verdict.reduced.module)
    assert verdict.reduced.fails()


def found(case: tuple[Module, dict[str, Any]], **options: Any) -> Verdict:
    return clew.bisect(*case, **{"threads": 1, "cache": False, **options})


@pytest.mark.parametrize("case", [nets.conv, nets.mlp], ids=["conv", "mlp"])
@pytest.mark.parametrize("precision", ["f32", "bf16", "f16"])
def test_a_sound_model_is_sound(
    case: Callable[[], tuple[Module, dict[str, Any]]], precision: str
) -> None:
    verdict = found(case(), precision=precision)
    assert verdict.kind == "none", f"{verdict}\n{verdict.evidence}"
    assert not verdict.found
    assert verdict.reduced is None


x = wildcard()


def test_a_users_pass_that_puts_another_operator_in_place() -> None:
    @rule(is_op("nn.relu")(x))
    def silu(match: Any) -> Expr:
        return op("nn.silu")(match[x])

    @clew.graph_pass(before="AlterLayout")
    def smoother(module: Module, ctx: PassContext) -> Module:
        return RuleRewriter([silu]).rewrite_module(module)

    verdict = found(nets.conv(), extend=[smoother])
    check(verdict, "pass", "smoother", "relu1", most=1)
    assert "nn.relu" in verdict.old_node
    assert "nn.silu" in verdict.node


def test_a_loop_is_entered_at_the_iteration_that_fails() -> None:
    @rule(is_op("nn.relu")(x))
    def clipped(match: Any) -> Expr:
        return op("clip")(match[x], min=0.0, max=20.0)

    @clew.graph_pass(before="AlterLayout")
    def limiter(module: Module, ctx: PassContext) -> Module:
        return RuleRewriter([clipped]).rewrite_module(module)

    verdict = found(nets.loop(), extend=[limiter])
    check(verdict, "pass", "limiter", "Loop_2/body/Relu_2", most=1)
    assert verdict.reduced is not None
    assert verdict.reduced.iterations == (4,)  # of 2, 4, 8, 16, 32
    assert "at iteration 4 of a loop" in str(verdict)


def test_padding_that_is_off_by_one() -> None:
    class Pad(Rewriter):
        def rewrite_call(self, old: Call, new: Call) -> Expr:
            if old.op_name != "nn.conv2d" or "conv2" not in old.span.layers:
                return new
            return Call(old.op, new.args, {**new.attrs, "padding": (2, 1, 0, 1)})

    @clew.graph_pass(before="FoldScaleAxis")
    def shifted(module: Module, ctx: PassContext) -> Module:
        return Pad().rewrite_module(module)

    check(found(nets.conv(), extend=[shifted]), "pass", "shifted", "conv2", most=1)


def test_transposed_weights() -> None:
    class Flip(Rewriter):
        def rewrite_call(self, old: Call, new: Call) -> Expr:
            weight = new.args[1] if len(new.args) == 2 else None
            if old.op_name != "nn.conv2d" or not isinstance(weight, Constant):
                return new
            if weight.tensor.concrete[0] != weight.tensor.concrete[1]:
                return new
            turned = Constant(weight.data.transpose(1, 0, 2, 3), name=weight.name)
            return new.with_args([new.args[0], turned])

    @clew.graph_pass(after="FoldScaleAxis")
    def turned(module: Module, ctx: PassContext) -> Module:
        return Flip().rewrite_module(module)

    check(found(nets.conv(), extend=[turned]), "pass", "turned", "conv2", most=1)


def test_code_that_is_not_dead() -> None:
    class Drop(Rewriter):
        def rewrite_call(self, old: Call, new: Call) -> Expr:
            return new.args[0] if "sum" in old.span.layers and old.op_name == "add" else new

    @clew.graph_pass(before="DeadCode")
    def careless(module: Module, ctx: PassContext) -> Module:
        return Drop().rewrite_module(module)

    check(found(nets.conv(), extend=[careless]), "pass", "careless", "sum", most=1)


def test_a_pass_that_says_nothing_of_what_became_what() -> None:
    @clew.graph_pass(before="FuseOps")
    def silent(module: Module, ctx: PassContext) -> Module:
        made: dict[int, Expr] = {p.id: p for p in module.main.params}
        for node in post_order(module.main.body):
            if node.id in made:
                continue
            new = rebuild(node, [made.get(c.id, c) for c in node.children])
            if isinstance(node, Call) and node.op_name == "nn.gelu":
                new = op("nn.silu")(made[node.args[0].id])
            made[node.id] = new
        main = Function(module.main.params, made[module.main.body.id], module.main.attrs)
        return Module({"main": main})

    verdict = found(nets.mlp(), extend=[silent])
    check(verdict, "pass", "silent", "gelu", most=1)


def test_a_wrong_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    right = fold_constant._constant

    def wrong(value: Any, type_: Any) -> Constant:
        array = np.asarray(value)
        return right(array[..., ::-1] if array.ndim == 2 else array, type_)

    module = nets.parsed(
        """
clew 1
def @main(%x: f32[4, 6]  // input x
) -> (f32[4, 5],) with outputs=["y"] {
  %0 = nn.relu(%x)  // first:Relu#0
  %1 = multiply(@w, @s)  // scaled:Mul#0
  %2 = nn.matmul(%0, %1)  // mm:MatMul#0
  %3 = tanh(%2)  // last:Tanh#0
  %4 = (%3,)
  return %4
}
""",
        {"w": nets.array(6, 5), "s": nets.array(1, 5)},
    )
    monkeypatch.setattr(fold_constant, "_constant", wrong)
    case = module, {"x": nets.array(4, 6)}
    check(found(case), "pass", "FoldConstant", "scaled", most=1)


def test_scales_folded_along_the_wrong_axis(monkeypatch: pytest.MonkeyPatch) -> None:
    right = fold_scale_axis._scaled_weight
    monkeypatch.setattr(
        fold_scale_axis, "_scaled_weight", lambda w, axis, scale: right(w, 1 - axis, scale)
    )
    module = nets.parsed(
        """
clew 1
def @main(%x: f32[1, 8, 6, 6]  // input x
) -> (f32[1, 8, 6, 6],) with outputs=["y"] {
  %0 = nn.relu(%x)  // first:Relu#0
  %1 = nn.conv2d(%0, @w, padding=[1, 1, 1, 1])  // conv:Conv#0
  %2 = multiply(%1, @s)  // norm:Mul#0
  %3 = sigmoid(%2)  // last:Sigmoid#0
  %4 = (%3,)
  return %4
}
""",
        {"w": nets.array(8, 8, 3, 3), "s": nets.array(8, 1, 1)},
    )
    case = module, {"x": nets.array(1, 8, 6, 6)}
    check(found(case), "pass", "FoldScaleAxis", "norm", most=2)


def test_unequal_nodes_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    def merged(self: Any, old: Call, new: Call) -> Expr:
        args = tuple(a.id for a in new.args)
        return self._known.setdefault((new.op_name, args), new)  # attributes forgotten

    monkeypatch.setattr(eliminate_common_subexpr._Merger, "rewrite_call", merged)
    module = nets.parsed(
        """
clew 1
def @main(%x: f32[4, 6]  // input x
) -> (f32[4, 6],) with outputs=["y"] {
  %0 = tanh(%x)  // first:Tanh#0
  %1 = nn.softmax(%0, axis=1)  // rows:Softmax#0
  %2 = nn.softmax(%0, axis=0)  // columns:Softmax#0
  %3 = add(%1, %2)  // both:Add#0
  %4 = nn.relu(%3)  // last:Relu#0
  %5 = (%4,)
  return %5
}
""",
        {},
    )
    case = module, {"x": nets.array(4, 6)}
    check(found(case), "pass", "EliminateCommonSubexpr", "columns", "rows", most=2)


def test_a_wrong_layout_transform(monkeypatch: pytest.MonkeyPatch) -> None:
    right = alter_layout.get_op

    def wrong(name: str) -> Any:
        if name != "layout_transform":
            return right(name)

        def transform(value: Expr, **attrs: Any) -> Expr:
            if attrs["src_layout"] == "OIHW":  # output and input channels swapped
                value = right("transpose")(value, axes=(1, 0, 2, 3))
            return right(name)(value, **attrs)

        return transform

    monkeypatch.setattr(alter_layout, "get_op", wrong)
    module = nets.parsed(
        """
clew 1
def @main(%x: f32[1, 32, 6, 6]  // input x
) -> (f32[1, 32, 6, 6],) with outputs=["y"] {
  %0 = nn.relu(%x)  // first:Relu#0
  %1 = nn.conv2d(%0, @w, padding=[1, 1, 1, 1])  // conv:Conv#0
  %2 = sigmoid(%1)  // last:Sigmoid#0
  %3 = (%2,)
  return %3
}
""",
        {"w": nets.array(32, 32, 3, 3)},
    )
    case = module, {"x": nets.array(1, 32, 6, 6)}
    check(
        found(case, passes=clew.Passes(disabled=["SelectConvAlgorithm"])),
        "pass",
        "AlterLayout",
        "conv",
        most=2,
    )


def test_a_sum_kept_in_bf16() -> None:
    class Narrow(Rewriter):
        def rewrite_call(self, old: Call, new: Call) -> Expr:
            if "skip" not in old.span.layers or old.op_name != "add":
                return new
            halves = [op("cast")(a, dtype="bf16") for a in new.args]
            return op("cast")(op("add")(*halves), dtype="f32")

    @clew.graph_pass(before="FuseOps")
    def narrow(module: Module, ctx: PassContext) -> Module:
        return Narrow().rewrite_module(module)

    verdict = found(nets.mlp(), extend=[narrow], tolerance=1e-3)
    check(verdict, "precision", "narrow", "skip", most=1)


def test_an_overflow_in_f16() -> None:
    module, inputs = nets.mlp()
    verdict = found((module, {"x": inputs["x"] * 1e5}), precision="f16")
    check(verdict, "precision", "ConvertPrecision", "up", "down", "out", most=2)
    assert verdict.local_error == float("inf")


def test_outputs_in_another_order() -> None:
    @clew.graph_pass(before="FuseOps")
    def swapped(module: Module, ctx: PassContext) -> Module:
        body = module.main.body
        assert isinstance(body, Tuple)
        return Module(
            {"main": Function(module.main.params, Tuple(body.fields[::-1]), module.main.attrs)}
        )

    module = nets.parsed(
        """
clew 1
def @main(%x: f32[4, 6]  // input x
) -> (f32[4, 6], f32[4, 6]) with outputs=["y", "z"] {
  %0 = tanh(%x)  // first:Tanh#0
  %1 = sigmoid(%x)  // second:Sigmoid#0
  %2 = (%0, %1)
  return %2
}
""",
        {},
    )
    verdict = found((module, {"x": nets.array(4, 6)}), extend=[swapped])
    check(verdict, "pass", "swapped")


def test_sizes_that_only_a_run_tells() -> None:
    @clew.graph_pass(before="AlterLayout", opt_level=1)
    def smoother(module: Module, ctx: PassContext) -> Module:
        @rule(is_op("nn.relu")(x))
        def silu(match: Any) -> Expr:
            return op("nn.silu")(match[x])

        return RuleRewriter([silu]).rewrite_module(module)

    module = nets.parsed(
        """
clew 1
def @main(%x: f32[batch, 6]  // input x
) -> (f32[batch, 5],) with outputs=["y"] {
  %0 = tanh(%x)  // first:Tanh#0
  %1 = nn.matmul(%0, @w)  // mm:MatMul#0
  %2 = nn.relu(%1)  // act:Relu#0
  %3 = (%2,)
  return %3
}
""",
        {"w": nets.array(6, 5)},
    )
    case = module, {"x": nets.array(3, 6)}
    for reference in ("interpreter", "opt0"):
        verdict = found(case, extend=[smoother], reference=reference)
        check(verdict, "pass", "smoother", "act", most=1)


def test_rounding_that_adds_up() -> None:
    module, inputs = nets.mlp()
    verdict = found((module, inputs), precision="bf16", tolerance=1e-3)
    check(verdict, "precision", "ConvertPrecision", "up", "down", "out", most=2)
    assert len(verdict.culprits) >= 3
    errors = [c.error for c in verdict.culprits]
    assert errors == sorted(errors, reverse=True)


def test_operators_fused_the_wrong_way_round(monkeypatch: pytest.MonkeyPatch) -> None:
    right = outline.Outliner.rebuilt

    def swapped(self: Any, node: Expr, children: Any) -> Expr:
        turned = isinstance(node, Call) and node.op_name == "subtract"
        return right(self, node, children[::-1] if turned else children)

    monkeypatch.setattr(outline.Outliner, "rebuilt", swapped)
    module = nets.parsed(
        """
clew 1
def @main(%x: f32[4, 6]  // input x
) -> (f32[4, 6],) with outputs=["y"] {
  %0 = exp(%x)  // first:Exp#0
  %1 = sigmoid(%x)  // second:Sigmoid#0
  %2 = subtract(%0, %1)  // minus:Sub#0
  %3 = tanh(%2)  // last:Tanh#0
  %4 = (%3,)
  return %4
}
""",
        {},
    )
    case = module, {"x": nets.array(4, 6)}
    check(found(case), "pass", "FuseOps", "minus", most=2)
