"""Taps: what they read is what the layer computes, and what they refuse is refused rightly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import clew
import zoo
from clew.api.compiled_model import CompiledModel
from clew.ir.interpret import interpret_values
from clew.ir.visit import post_order
from clew.patterns import is_op, wildcard
from clew.support.errors import ClewError, InputError
from clew.tap.where import State
from clew.trace.values import layer_values
from clew.trace.verify import difference

MODELS = [
    "resnet_tiny",
    "mobilenet_tiny",
    "bert_tiny",
    "gpt2_tiny",
    "light_squeezenet",
    "if_branches",
    "loop_recurrence",
]
Case = tuple[CompiledModel, dict[str, Any], dict[str, Any]]


def true_values(compiled: CompiledModel, feed: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what the interpreter says of every layer of the model as it was imported."""
    module = compiled.build.stages[0].module
    nodes = {n.id for n in post_order(module.main, into_functions=True)}
    given = [feed[name] for name in compiled.input_names]
    found = interpret_values(module.main, given, nodes, module)
    return {
        v.layer if not v.output else f"{v.layer}:{v.output}": found[v.first.node]
        for v in layer_values(compiled.trace)
        if v.first.node in found
    }


@pytest.fixture(scope="module", params=MODELS)
def case(request: pytest.FixtureRequest) -> Case:
    compiled = clew.compile(zoo.path(request.param), threads=1)
    feed = zoo.inputs(request.param)
    return compiled, feed, true_values(compiled, feed)


def check(taps: Mapping[str, Any], true: Mapping[str, Any], tolerance: float = 1e-4) -> int:
    compared = 0
    for name, value in taps.items():
        if name in true:
            assert np.shape(value) == np.shape(true[name]), name
            assert np.asarray(value).dtype == np.asarray(true[name]).dtype, name
            assert difference(true[name], value, 1e-6) < tolerance, name
            compared += 1
    return compared


def test_every_layer_is_right_or_refused(case: Case) -> None:
    compiled, feed, true = case
    before = compiled.run(feed)
    taps = compiled.tap("*", feed)
    assert check(taps, true) > 3
    states = clew.tap_states(compiled)
    assert set(states) == {*taps, *taps.refused}
    assert set(compiled.trace.layers) <= {name.partition(":")[0] for name in states}
    for name, refusal in taps.refused.items():
        if refusal.state is State.IDLE:
            assert name not in true
            continue
        state, reason = states[name]
        assert state is refusal.state is not State.MEMORY
        assert reason == refusal.reason
        inputs = {f"the input {n}" for n in compiled.input_names}
        near = {*refusal.before, *refusal.after} - inputs
        assert all(states[layer][0] is State.MEMORY for layer in near)
        if refusal.state is State.FUSED:
            kernel = next(k for k in compiled.kernels if k.name == refusal.kernel)
            assert refusal.layer in kernel.layers
            assert refusal.after
        else:
            passes = {stage.name for stage in compiled.trace.stages}
            assert refusal.pass_name in passes or "import" in reason
    after = compiled.run(feed)
    for name, value in before.items():
        np.testing.assert_array_equal(value, after[name])


def test_one_by_one_they_are_the_same(case: Case) -> None:
    compiled, feed, _ = case
    taps = compiled.tap("*", feed)
    for name in list(taps)[:: max(1, len(taps) // 6)]:
        np.testing.assert_array_equal(compiled.tap([name], feed)[name], taps[name])


def test_forced_taps_are_right(case: Case) -> None:
    compiled, feed, true = case
    refused = compiled.tap("*", feed).refused
    fused = [n for n, r in refused.items() if r.state is State.FUSED and n in true]
    taps = compiled.tap(fused, feed, force=True)
    assert set(taps) == set(fused)
    assert check(taps, true) == len(fused)
    assert taps.forced.changed == ()
    assert set(taps.forced.cut) == {refused[n].kernel for n in fused}
    assert taps.forced.unchanged == len(compiled.kernels) - len(taps.forced.cut)


def test_only_the_kernel_that_holds_it_is_cut(case: Case) -> None:
    compiled, feed, true = case
    refused = compiled.tap("*", feed).refused
    fused = [n for n, r in refused.items() if r.state is State.FUSED and n in true]
    for name in fused[:: max(1, len(fused) // 3)]:
        taps = compiled.tap([name], feed, force=True)
        assert check(taps, true) == 1
        assert taps.forced.cut == (refused[name].kernel,)
        assert taps.forced.changed == ()
        assert taps.forced.unchanged == len(compiled.kernels) - 1
        assert len(taps.forced.into) >= 2
    keys = Counter(k.key for k in compiled.kernels)
    assert keys == Counter(k.key for k in clew.compile(compiled.module, threads=1).kernels)


# --- single things ---


@pytest.fixture(scope="module")
def resnet() -> Case:
    compiled = clew.compile(zoo.path("resnet_tiny"), threads=1)
    feed = zoo.inputs("resnet_tiny")
    return compiled, feed, true_values(compiled, feed)


def test_how_layers_are_asked_for(resnet: Case) -> None:
    compiled, feed, _ = resnet
    (x,) = feed.values()
    value = compiled.tap("node_relu", x)
    assert value.shape == (1, 16, 32, 32)
    taps = compiled.tap(["node_relu", "node_max*"], feed)
    assert isinstance(taps, clew.Taps)
    assert list(taps) == ["node_relu", "node_max_pool2d"]
    np.testing.assert_array_equal(taps["node_relu"], value)
    assert taps.forced is None
    forced = compiled.tap(["node_relu"], feed, force=True).forced
    assert str(forced) == "no kernel had to be cut"


def test_a_refusal_says_why_and_what_is_near(resnet: Case) -> None:
    compiled, feed, _ = resnet
    with pytest.raises(InputError) as raised:
        compiled.tap("node_add", feed)
    text = str(raised.value)
    assert raised.value.code == "I150"
    assert "the kernel conv2d_add_add_relu, where nn.relu (node_relu_3) reads it" in text
    assert "before it node_max_pool2d, node_relu_2 and after it node_relu_3" in text
    assert "force" in text
    taps = compiled.tap(["node_add"], feed, force=True)
    assert str(taps.forced) == (
        "cut conv2d_add_add_relu into conv2d_add_add, relu; the other 17 kernels are the same"
    )


def test_what_a_pass_did_away_with(case: Case) -> None:
    compiled, feed, _ = case
    gone = [n for n, (s, _) in clew.tap_states(compiled).items() if s is State.GONE]
    for name in gone[:3]:
        for force in (False, True):
            with pytest.raises(InputError, match="I151"):
                compiled.tap(name, feed, force=force)


def test_narrow_values_come_as_the_layers_have_them() -> None:
    compiled = clew.compile(zoo.path("resnet_tiny"), threads=1, precision="bf16")
    feed = zoo.inputs("resnet_tiny")
    taps = compiled.tap("*", feed)
    states = {r.state for r in taps.refused.values()}
    assert states == {State.FUSED}
    assert check(taps, true_values(compiled, feed), 0.03) == len(taps) > 10
    assert {v.dtype for v in taps.values()} == {np.dtype("float32")}


def test_several_results_and_odd_sizes() -> None:
    module = clew.parse(
        """
        clew 1
        def @main(
          %x: f32[1, 18, 5, 7],  // input x
          %w: f32[18, 18, 3, 3]  // input w
        ) -> (f32[1, 6, 5, 7], f32[1, 12, 5, 7]) with outputs=["a", "b"] {
          %0 = nn.conv2d(%x, %w, padding=[1, 1, 1, 1])  // conv:Conv#0
          %1 = tanh(%0)  // act:Tanh#0
          %2 = split(%1, sizes=[6, 12], axis=1)  // halves:Split
          %3 = %2[0]  // halves:Split#0
          %4 = %2[1]  // halves:Split#1
          %5 = exp(%3)  // first:Exp#0
          %6 = nn.relu(%4)  // second:Relu#0
          %7 = (%5, %6)
          return %7
        }
        """
    )
    rng = np.random.default_rng(0)
    feed = {
        "x": rng.standard_normal((1, 18, 5, 7)).astype(np.float32),
        "w": rng.standard_normal((18, 18, 3, 3)).astype(np.float32) / 9,
    }
    compiled = clew.compile(module, threads=1)
    true = true_values(compiled, feed)
    assert set(true) == {"conv", "act", "halves", "halves:1", "first", "second"}
    taps = compiled.tap("*", feed, force=True)
    assert check(taps, true) == len(true)
    both = compiled.tap("halves", feed, force=True)
    assert [b.shape[1] for b in both] == [6, 12]
    np.testing.assert_array_equal(compiled.tap("halves", feed, output=1), both[1])
    np.testing.assert_array_equal(compiled.tap("halves:1", feed), both[1])
    with pytest.raises(InputError, match="I153"):
        compiled.tap("halves", feed, output=2)


def test_named_sizes() -> None:
    compiled = clew.compile(zoo.path("bert_tiny_dynamic"), threads=1)
    for sequence in (5, 9):
        feed = zoo.inputs("bert_tiny_dynamic", batch=1, sequence=sequence)
        taps = compiled.tap("node_layer_norm*", feed)
        true = true_values(compiled, feed)
        assert check(taps, true) == len(taps) > 2
        assert all(v.shape[1] == sequence for v in taps.values())
        forced = compiled.tap("node_add_*", feed, force=True)
        assert check(forced, true) == len(forced) > 1


def test_sizes_that_only_a_run_tells() -> None:
    module = clew.parse(
        """
        clew 1
        def @main(
          %x: f32[6, 4]  // input x
        ) -> (f32[2, ?0],) with outputs=["y"] {
          %0 = nonzero(%x)  // rows:NonZero#0
          %1 = cast(%0, dtype="f32")  // wide:Cast#0
          %2 = exp(%1)  // power:Exp#0
          %3 = tanh(%2)  // act:Tanh#0
          %4 = (%3,)
          return %4
        }
        """
    )
    compiled = clew.compile(module, threads=1)
    feed = {"x": np.eye(6, 4, dtype=np.float32)}
    true = true_values(compiled, feed)
    refused = compiled.tap("*", feed).refused
    assert set(refused) == {"wide", "power"}
    assert "cast_exp_tanh, where tanh (act) reads it" in refused["power"].reason
    taps = compiled.tap("*", feed, force=True)
    assert check(taps, true) == 4
    cut = "cut cast_exp_tanh into cast, exp, tanh; the other 2 kernels are the same"
    assert str(taps.forced) == cut


def test_without_fusion_only_what_passes_took_is_missing() -> None:
    feed = zoo.inputs("resnet_tiny")
    compiled = clew.compile(zoo.path("resnet_tiny"), threads=1, passes=clew.Passes(fuse=False))
    taps = compiled.tap("*", feed)
    assert not taps.refused
    assert check(taps, true_values(compiled, feed)) == len(compiled.trace.layers)


def test_a_users_fusion_is_not_broken() -> None:
    reduced = is_op("add")(is_op("nn.conv2d")(wildcard(), wildcard()), wildcard())

    @clew.fusion(is_op("nn.relu")(reduced), mode="stack")
    def block(found: Any) -> bool:
        return True

    compiled = clew.compile(zoo.path("resnet_tiny"), threads=1, extend=[block])
    feed = zoo.inputs("resnet_tiny")
    inside = next(n for n, (s, _) in clew.tap_states(compiled).items() if s is State.FUSED)
    with pytest.raises(InputError, match="I154"):
        compiled.tap(inside, feed, force=True)


def test_other_errors(resnet: Case) -> None:
    compiled, feed, _ = resnet
    with pytest.raises(InputError, match=r"(?s)I070.*node_relu"):
        compiled.tap("node_rel", feed)
    with pytest.raises(InputError, match="I152"):
        compiled.tap("nothing*", feed)
    with pytest.raises(InputError, match="I041"):
        compiled.tap("node_relu", {"image": feed["pixels"]})
    with pytest.raises(InputError, match="I040"):
        compiled.tap("node_relu")
    branches = clew.compile(zoo.path("if_branches"), threads=1)
    given = zoo.inputs("if_branches")
    idle = [n for n, r in branches.tap("*", given).refused.items() if r.state is State.IDLE]
    with pytest.raises(InputError, match="I155"):
        branches.tap(idle[0], given)
    plain = clew.compile(
        zoo.path("if_branches"), threads=1, diagnostics=clew.Diagnostics(trace=False)
    )
    with pytest.raises(ClewError, match="I045"):
        plain.tap("softmax", given)
