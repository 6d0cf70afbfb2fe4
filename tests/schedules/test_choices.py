"""Choices of schedule rules: every option is legal and right, and users set them by name."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from golden_cases import Graph, kernels, kernels_of, targets

import clew
from clew.ir.dims import Dim, SymDim
from clew.ir.expr import Expr
from clew.machine.target import target_of
from clew.patterns import is_op, wildcard
from clew.schedules import Request, schedule_kernel
from clew.support.errors import ClewError, ScheduleError, TextError

# Each rule once, and few kernels: all cases on all targets take a minute.
LEGAL = {
    "dense-1-row": "cpu-avx2",
    "dense-512-rows": "cpu-avx512",
    "dense-64-rows": "cpu-amx",
    "dense-8-rows": "cpu-amx",
    "dense-u8-i8": "cpu-amx",
    "dense-64-rows-bf16": "cpu-avx512",
    "conv-1x1": "cpu-neon",
    "conv-1x1-crowded": "cpu-avx2",
    "conv-3x3": "cpu-avx2",
    "conv-3x3-strides": "cpu-amx",
    "conv-groups": "cpu-avx512",
    "conv-waveform": "cpu-avx2",
    "conv-waveform-groups": "cpu-avx512",
    "dense-of-inputs-1-row": "cpu-avx512",
    "dense-of-inputs-16-rows": "cpu-avx512",
    "norm-of-channels": "cpu-avx2",
    "separable": "cpu-avx2",
    "attention": "cpu-avx512",
    "attention-1-query": "cpu-avx2",
    "layer-norm": "cpu-avx2",
    "max-pool": "cpu-avx2",
    "gelu": "cpu-avx512",
    "transpose": "cpu-avx2",
}


@pytest.mark.parametrize("case", LEGAL)
def test_every_option_of_every_choice_is_legal(case: str) -> None:
    (target,) = (t for t in targets() if t.name == LEGAL[case])
    checked = 0
    for source in kernels(case, target):
        for decision in source.plan.decisions:
            assert decision.settings == decision.space.default
            for settings in decision.space.neighbors():
                request = Request.parse(f"{decision.rule}: {settings}")
                plan = schedule_kernel(source.nest, target, request=request)
                assert plan.schedule.finished() is not None
                assert settings in [d.settings for d in plan.decisions]
                checked += 1
    assert checked > 0


@pytest.mark.parametrize("case", LEGAL)
def test_a_plan_has_a_request_that_makes_it_again(case: str) -> None:
    (target,) = (t for t in targets() if t.name == LEGAL[case])
    for source in kernels(case, target):
        request = Request.parse(str(source.plan.request))
        again = source._planned(request, ())
        assert again.schedule.text == source.plan.schedule.text
        assert again.decisions == source.plan.decisions


def test_a_rule_may_be_set_at_one_of_its_roots() -> None:
    model = """
clew 1
def @main(%x: f32[64, 512]) -> (f32[64, 512], f32[512, 64]) with outputs=["y", "z"] {
  %0 = exp(%x)
  %1 = transpose(%0, axes=[1, 0])
  %2 = (%0, %1)
  return %2
}
"""
    compiled = clew.compile(clew.parse(model), passes=clew.Passes(fuse=False))
    (kernel,) = [k for k in compiled.kernels if k.ops == ("exp",)]
    ((decision,), name) = kernel.choices, kernel.name
    choice = next(c for c in decision.space if len(c.options) > 1)
    option = next(o for o in choice.options if o != choice.default)

    def asked(root: str) -> int:
        text = f"{decision.rule}@{root}: {choice.name}={option}"
        made = clew.compile(
            clew.parse(model),
            passes=clew.Passes(fuse=False),
            extend=[clew.schedule_for(name, choose=text)],
        )
        (one,) = [k for k in made.kernels if k.ops == ("exp",)]
        return one.choices[0].settings[choice.name]

    assert asked(decision.root) == option
    with pytest.raises(ScheduleError, match="S065") as caught:
        asked("nowhere")
    assert "the stage nowhere" in str(caught.value)


MODEL = """
clew 1
def @main(
  %x: f32[1, 16, 11, 9],
  %w: f32[32, 16, 3, 3],
  %d: f32[32, 1, 3, 3],
  %m: f32[37, 64],
  %n: f32[64, 96]
) -> (f32[1, 32, 11, 9], f32[1, 32, 5, 4], f32[37, 96], f32[37, 1], f32[37, 96]) with
    outputs=["a", "b", "c", "d", "e"] {
  %0 = nn.conv2d(%x, %w, padding=[1, 1, 1, 1])  // conv:Conv#0
  %1 = nn.conv2d(%0, %d, padding=[1, 1, 1, 1], groups=32)  // depthwise:Conv#1
  %2 = nn.max_pool2d(%1, kernel=[2, 2], strides=[2, 2])  // pool:MaxPool#2
  %3 = nn.matmul(%m, %n)  // product:MatMul#3
  %4 = nn.gelu(%3)  // gelu:Gelu#4
  %5 = sum(%4, axes=[1])  // sums:ReduceSum#5
  %6 = nn.softmax(%3, axis=1)  // softmax:Softmax#6
  %7 = (%1, %2, %4, %5, %6)
  return %7
}
"""


def test_every_option_gives_the_right_result() -> None:
    module = clew.parse(MODEL)
    draw = np.random.default_rng(0)
    shapes = [p.tensor.concrete for p in module.main.params]
    arrays = [draw.standard_normal(s).astype("f4") for s in shapes]
    plain = clew.compile(module)
    expected = plain(*arrays)
    tried = set()
    for kernel in plain.kernels:
        for decision in kernel.choices:
            for settings in decision.space.neighbors():
                (changed,) = (k for k in settings if settings[k] != decision.settings[k])
                choose = f"{decision.rule}: {changed}={settings[changed]}"
                asked = clew.schedule_for(kernel.name, choose=choose)
                outputs = clew.compile(module, extend=[asked])(*arrays)
                for value, wanted in zip(outputs, expected, strict=True):
                    np.testing.assert_allclose(value, wanted, rtol=2e-4, atol=2e-5, err_msg=choose)
                tried.add(decision.rule)
    assert {"matmul", "rows", "windows"} <= tried


PRODUCT = """
clew 1
def @main(%x: f32[24, 32], %w: f32[32, 64]) -> (f32[24, 64],) with outputs=["y"] {
  %0 = nn.matmul(%x, %w)  // project:MatMul#0
  %1 = nn.relu(%0)  // act:Relu#1
  %2 = (%1,)
  return %2
}
"""


@pytest.mark.parametrize(
    ("rows", "vectors", "height"),
    [((30, 1), 2, 10), ((1,), 4, 1), ((SymDim.symbol("n"),), 4, 6)],
    ids=["short sequences", "1 row", "free rows"],
)
def test_tiles_of_dot_products(rows: tuple[Dim, ...], vectors: int, height: int) -> None:
    """Short sequences share tiles, and one row has as many sums as hide the latency."""

    def product(g: Graph) -> Expr:
        found: Expr = g("nn.dense", g.x(*rows, 64, dtype="u8"), g.w(64, 64, dtype="i1"))
        return found

    wide = target_of("cpu-avx512")
    target = replace(wide, features=f"{wide.features},+avx512vnni")
    (source,) = kernels_of(product, target)
    (decision,) = source.plan.decisions
    settings = decision.settings
    assert (decision.rule, settings["vectors"], settings["rows"]) == ("dot", vectors, height)


def test_users_set_choices_by_name() -> None:
    module = clew.parse(PRODUCT)
    (before,) = clew.compile(module).kernels
    (decision,) = before.choices
    assert decision.rule == "matmul"
    assert "rows=" in str(decision)
    rows = {c.name: c for c in decision.space}["rows"]
    assert rows.default in rows.options
    asked = clew.schedule_for(op="nn.matmul", choose="matmul: rows=4 vectors=1")
    compiled = clew.compile(module, extend=[asked])
    (kernel,) = compiled.kernels
    assert kernel.rules == ("matmul",)
    assert dict(kernel.choices[0].settings) == {**decision.settings, "rows": 4, "vectors": 1}
    assert kernel.schedule.text != before.schedule.text
    assert kernel.key != before.key  # the cache tells them apart
    (again,) = clew.compile(module, extend=[asked]).kernels
    assert again.key == kernel.key
    draw = np.random.default_rng(0)
    x, w = draw.standard_normal((24, 32)).astype("f4"), draw.standard_normal((32, 64)).astype("f4")
    np.testing.assert_allclose(compiled(x, w), np.maximum(x @ w, 0), rtol=1e-4, atol=1e-4)


def test_naming_a_rule_selects_it() -> None:
    asked = clew.schedule_for(op="nn.matmul", choose="rows")
    (kernel,) = clew.compile(clew.parse(PRODUCT), extend=[asked]).kernels
    assert kernel.rules == ("rows",)


@pytest.mark.parametrize(
    ("choose", "code", "said"),
    [
        ("matmull: rows=4", "S061", "no schedule rule 'matmull'"),
        ("matmul: row=4", "S062", "no choice 'row'"),
        ("matmul: rows=400", "S063", "rows=400 is not an option"),
        ("matmul: rows=a", "S063", "rows=a is not an option"),
        ("conv: lines=2", "S065", "the rule conv matches no stage of matmul_relu"),
    ],
)
def test_a_choice_that_does_not_fit_is_refused(choose: str, code: str, said: str) -> None:
    asked = clew.schedule_for(op="nn.matmul", choose=choose)
    with pytest.raises(ScheduleError) as caught:
        _ = clew.compile(clew.parse(PRODUCT), extend=[asked]).kernels
    assert caught.value.code == code
    assert said in str(caught.value)
    assert "matmul_relu" in str(caught.value)  # the kernel
    assert caught.value.hint


@pytest.mark.parametrize("choose", ["matmul rows=4", "matmul: rows", "  ;", "matmul: rows="])
def test_a_choice_that_does_not_parse_is_refused(choose: str) -> None:
    with pytest.raises(TextError, match="P021"):
        clew.schedule_for(op="nn.matmul", choose=choose)


def test_steps_and_choices_exclude_each_other() -> None:
    with pytest.raises(ClewError, match="I081"):
        clew.schedule_for(op="nn.matmul", choose="matmul: rows=4", steps="unroll(loop='a')")


def test_several_rules_of_one_text() -> None:
    request = Request.parse("matmul: rows=4, vectors=1; elementwise\nrows: partial=2")
    assert [wish.rule for wish in request.wishes] == ["matmul", "elementwise", "rows"]
    assert Request.parse(str(request)) == request


def test_choices_of_melted_and_stacked_kernels() -> None:
    module = clew.parse(PRODUCT)

    def mine(found: object) -> None: ...

    pattern = is_op("nn.relu")(is_op("nn.matmul")(wildcard(), wildcard()))
    for mode, choose in (("melt", "melt: rows=3"), ("stack", "matmul: rows=3")):
        fused = clew.fusion(pattern, mode=mode)(mine)  # type: ignore[arg-type]
        asked = clew.schedule_for(op="nn.matmul", choose=choose)
        (kernel,) = clew.compile(module, extend=[fused, asked]).kernels
        assert choose.partition(":")[0] in kernel.rules
        assert any(d.settings.get("rows") == 3 for d in kernel.choices)
