"""What a user asked for and did not get is said: names that mean nothing, fusions, schedules and
passes without a place.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clew
from clew.patterns import RuleRewriter, is_constant, is_op, rule, wildcard
from clew.predict import predictor
from clew.support.errors import ClewError, ClewWarning

TEXT = """
clew 1
def @main(
  %x: f32[1, 16, 8, 8],  // input x
  %w: f32[16, 16, 3, 3]  // input w
) -> (f32[1, 16, 8, 8],) with outputs=["y"] {
  %0 = nn.conv2d(%x, %w, padding=[1, 1, 1, 1])  // conv1:Conv#0
  %1 = nn.relu(%0)  // act1:Relu#0
  %2 = nn.conv2d(%1, %w, padding=[1, 1, 1, 1])  // conv2:Conv#0
  %3 = nn.relu(%2)  // act2:Relu#0
  %4 = (%3,)
  return %4
}
"""
FOLDED = """
clew 1
def @main(%x: f32[4]) -> (f32[4],) with outputs=["y"] {
  %c: f32[4] = const [0.5, 1.5, 2.5, 3.5]
  %0 = exp(%c)  // power:Exp#0
  %1 = add(%x, %0)  // sum:Add#0
  %2 = (%1,)
  return %2
}
"""
NEGATED = """
clew 1
def @main(%x: f32[4]) -> (f32[4],) with outputs=["y"] {
  %0 = negative(%x)  // once:Neg#0
  %1 = negative(%0)  // twice:Neg#0
  %2 = exp(%1)  // power:Exp#0
  %3 = (%2,)
  return %3
}
"""
x = wildcard()
NOWHERE = is_op("tanh")(is_op("exp")(x))


def compiled(text: str = TEXT, **options: Any) -> clew.CompiledModel:
    usual = clew.CompileOptions(threads=1, passes=clew.Passes(disabled=["MultiplyPatches"]))
    model = clew.compile(clew.parse(text), **usual.changed(**clew.CompileOptions.named(options)))
    assert model.kernels
    return model


def a_fusion(pattern: Any, **options: Any) -> Any:
    @clew.fusion(pattern, **options)
    def mine(found: Any) -> None: ...

    return mine


def warned(make: Callable[[], Any]) -> list[ClewWarning]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make()
    return [w.message for w in caught if isinstance(w.message, ClewWarning)]


def refused(make: Callable[[], Any]) -> ClewError:
    with pytest.raises(ClewError) as caught:
        make()
    return caught.value


# --- layers ---


@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_a_layer_to_keep_that_the_model_lacks_is_an_error(precision: str) -> None:
    error = refused(
        lambda: compiled(precision=clew.Precision(precision, keep_f32=["conv1", "conf2"]))
    )
    assert error.code == "I307"
    assert "'conf2' in keep_f32 fits no layer" in error.message
    assert "did you mean conv2" in error.hint


def test_a_glob_may_be_meant_for_other_models() -> None:
    (warning,) = warned(
        lambda: compiled(precision=clew.Precision("bf16", keep_f32=["head.*", "conv*"]))
    )
    assert warning.code == "I307"
    assert "'head.*'" in warning.message


def test_names_are_checked_when_all_comes_from_the_cache() -> None:
    for _ in range(2):
        assert (
            refused(lambda: compiled(precision=clew.Precision(keep_f32=["conf2"]))).code == "I307"
        )


def test_what_passes_replace_is_said() -> None:
    passes = clew.compile(clew.parse(TEXT)).options.passes
    (warning,) = warned(
        lambda: compiled(passes=passes, precision=clew.Precision(keep_f32=["conv1"]))
    )
    assert warning.code == "I312"
    assert "keep_f32 has no effect: passes= replaces the list" in warning.message


# --- passes ---


@pytest.mark.parametrize("option", ["required", "disabled"])
def test_a_pass_that_there_is_not_is_named_before_anything_is_built(option: str) -> None:
    text = TEXT.replace("[1, 16, 8, 8]", "[n, 16, 8, 8]")
    error = refused(
        lambda: clew.compile(clew.parse(text), passes=clew.Passes(**{option: ["FuseOp"]}))
    )
    assert error.code == "I020"
    assert "did you mean FuseOps" in error.hint


def test_a_pass_is_not_required_and_disabled() -> None:
    error = refused(
        lambda: compiled(passes=clew.Passes(required=["FuseOps"], disabled=["FuseOps"]))
    )
    assert error.code == "I311"
    assert "FuseOps is both required and disabled" in error.message


def test_inputs_of_a_module_are_given_when_it_is_loaded() -> None:
    error = refused(lambda: compiled(inputs={"x": [1, 16, 8, 8]}))
    assert error.code == "I310"
    assert "clew.load(file, inputs=" in error.hint


def a_pass(pattern: Any, **options: Any) -> Any:
    @rule(pattern)
    def drop(found: Any) -> Any:
        return found[x]

    @clew.graph_pass(**options)
    def mine(module: Any, ctx: Any) -> Any:
        return RuleRewriter([drop]).rewrite_module(module)

    return mine


def test_a_pass_whose_rules_fit_nothing_says_so() -> None:
    (warning,) = warned(lambda: compiled(extend=[a_pass(NOWHERE)]))
    assert warning.code == "I308"
    assert "the pass mine changes nothing: its rule drop matches nothing" in warning.message
    assert "wanted:" in warning.hint
    assert not warned(lambda: compiled(extend=[a_pass(NOWHERE, required=False)]))


def test_a_pass_that_comes_too_late_says_which_pass_was_first() -> None:
    twice = is_op("negative")(is_op("negative")(x))
    (warning,) = warned(lambda: compiled(NEGATED, extend=[a_pass(twice, before="FuseOps")]))
    assert warning.code == "I308"
    assert "matched 1 place (twice) until SimplifyExpr removed the operators" in warning.message
    assert "before='SimplifyExpr'" in warning.hint
    assert not warned(lambda: compiled(NEGATED, extend=[a_pass(twice, before="SimplifyExpr")]))


# --- fusions ---


def test_a_required_fusion_that_fits_nothing_is_an_error() -> None:
    error = refused(lambda: compiled(extend=[a_fusion(NOWHERE)]))
    assert error.code == "U030"
    assert "the fusion mine is required and matches nothing" in error.message
    assert "nearest match" in error.hint
    optional = a_fusion(NOWHERE, required=False)
    assert not warned(lambda: compiled(extend=[optional]))
    remarks = [r.text for s in compiled(extend=[optional]).build.stages for r in s.remarks]
    assert "the fusion mine matches nothing" in remarks


def test_a_model_of_free_sizes_says_so_when_it_is_compiled() -> None:
    module = clew.parse(TEXT.replace("[1, 16, 8, 8]", "[n, 16, 8, 8]"))
    error = refused(lambda: clew.compile(module, threads=1, extend=[a_fusion(NOWHERE)]))
    assert error.code == "U030"


def test_a_fusion_whose_operators_another_pass_took_says_which() -> None:
    error = refused(lambda: compiled(FOLDED, extend=[a_fusion(is_op("exp")(is_constant()))]))
    assert error.code == "U031"
    assert "nothing is left of mine/0 to fuse: FoldConstant took its operators" in error.message
    assert "disabled=['FoldConstant']" in error.hint
    assert error.layer == "power"


def test_a_fusion_whose_operators_another_fusion_took_says_which() -> None:
    @clew.fusion(is_op("nn.relu")(is_op("nn.conv2d")(x, wildcard())))
    def first(found: Any) -> None: ...

    (warning,) = warned(lambda: compiled(extend=[first, a_fusion(is_op("nn.relu")(x))]))
    assert warning.code == "I305"
    assert "the fusion mine matches 2 places, all taken earlier by first" in warning.message


def test_a_fusion_that_prevents_others_says_what_it_costs() -> None:
    alone = a_fusion(is_op("nn.relu")(x))
    (warning,) = warned(lambda: compiled(extend=[alone]))
    assert warning.code == "I306"
    assert "mine: 2 kernels become 4" in warning.message
    assert "can no longer share a kernel: conv1 + act1; conv2 + act2" in warning.message
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ClewWarning)
        model = compiled(extend=[alone])
    assert len(model.kernels) == 4
    remarks = [r.text for s in model.build.stages for r in s.remarks if s.name == "FuseRegions"]
    assert any("2 kernels become 4" in text for text in remarks)


# --- schedules ---


@pytest.mark.parametrize(
    ("wanted", "hint"),
    [
        ({"kernel": "conv2d_rely"}, "did you mean conv2d_relu"),
        ({"op": "nn.conv2"}, "no kernel holds nn.conv2: did you mean nn.conv2d"),
        ({"kernel": "conv2d_relu", "op": ("nn.conv2d",), "pattern": NOWHERE}, "at once"),
    ],
)
def test_a_schedule_for_no_kernel_says_so(wanted: dict[str, Any], hint: str) -> None:
    def nothing(schedule: Any, target: Any) -> bool:
        return False

    made = clew.schedule_for(name="mine", **wanted)(nothing)
    (warning,) = warned(lambda: compiled(extend=[made]))
    assert warning.code == "I309"
    assert "the schedule mine (" in warning.message
    assert hint in warning.hint
    optional = clew.schedule_for(name="mine", required=False, **wanted)(nothing)
    assert not warned(lambda: compiled(extend=[optional]))


def test_errors_and_loops_of_equal_kernels_say_which_use() -> None:
    one, two = compiled().kernels
    assert one.key == two.key
    assert one.loops.startswith("kernel conv2d_relu(")
    assert two.loops.startswith("kernel conv2d_relu_1(")
    assert two.loops.splitlines()[0].endswith("// the same code as conv2d_relu")
    assert one.loops.splitlines()[1:] == two.loops.splitlines()[1:]
    assert list(two.traced.loops) == two.loops.splitlines()
    wrong = clew.schedule_for("conv2d_relu_1", steps="split(loop='none', factor=3)")
    error = refused(lambda: compiled(extend=[wrong]))
    assert error.stage.endswith("of kernel conv2d_relu_1")
    assert "conv2" in error.layer


# --- elsewhere ---


def test_a_reference_named_after_nothing_says_so() -> None:
    module = clew.parse(NEGATED)
    inputs = {"x": np.ones(4, np.float32)}
    outputs = clew.compile(module, threads=1).run(inputs)
    reference = {**outputs, "pwoer": outputs["y"]}
    options: dict[str, Any] = {"runs": 1, "reduce": False, "threads": 1}
    (warning,) = warned(lambda: clew.bisect(module, inputs, reference=reference, **options))
    assert warning.code == "I314"
    assert "'pwoer' is neither an output nor a layer" in warning.message
    assert "did you mean power" in warning.hint


def test_a_network_to_leave_out_that_a_table_lacks_is_an_error(tmp_path: Path) -> None:
    target = clew.compile(clew.parse(NEGATED)).options.target
    columns = {
        "target": np.array([target.key]),
        "threads": np.array([1]),
        "mode": np.array(["program"]),
        "steady": np.array([True]),
        "network": np.array(["small"]),
    }
    error = refused(lambda: predictor._chosen(columns, tmp_path, target, 1, ["smal"]))
    assert error.code == "I313"
    assert "no network 'smal'" in error.message
    assert "did you mean small" in error.hint


def test_a_warning_points_at_the_users_line() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compiled(precision=clew.Precision("bf16", keep_f32=["head.*"]))
    assert [Path(w.filename).name for w in caught] == [Path(__file__).name]
