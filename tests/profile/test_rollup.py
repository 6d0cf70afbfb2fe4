"""What is divided adds up to what it was, exactly; and what the parts rest on is said."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.profile.by_module import module_profiles
from clew.profile.rollup import (
    Timed,
    divided,
    exact,
    host_profile,
    kernel_profile,
    layer_profiles,
    undivided_profile,
)
from clew.profile.rows import LayerProfile, Roof
from clew.profile.split import OperatorShare, Split
from clew.profile.timing import Time, time_of
from clew.runtime.program import RunHost
from clew.trace.places import CodePlace

SPLIT = Split(
    "conv_relu",
    1000,
    (
        OperatorShare(0, "nn.conv2d", ("conv", "norm"), 700.0, 0.7, 0.99, 0.5),
        OperatorShare(1, "nn.relu", ("relu",), 300.0, 0.3, 0.01, 0.5),
    ),
    (),
    0.01,
)
ROOF = Roof(100, 100, 1.0, 0.1, 1.0, 0.9, "L2", 0.9)


def time(ns: float) -> Time:
    return Time(ns, ns, ns, ns, ns)


def timed(ns: float) -> Timed:
    return Timed("conv_relu", ("nn.conv2d", "nn.relu"), ("conv", "norm", "relu"), 1.0, time(ns))


def weigh(layers: object) -> list[float]:
    return [{"conv": 1000.0, "norm": 2.0}.get(layer, 1.0) for layer in layers]  # type: ignore[attr-defined]


@given(
    st.floats(0, 1e12, allow_nan=False),
    st.lists(st.floats(0, 1e9, allow_nan=False), min_size=1, max_size=9),
)
def test_parts_add_up_to_the_whole(ns: float, weights: list[float]) -> None:
    whole = exact(ns)
    parts = divided(whole, weights)
    assert sum(parts) == whole
    assert sum(reversed(parts)) == whole
    assert all(part >= 0 for part in parts)
    total = sum(weights)
    if total > 0:
        for part, weight in zip(parts, weights, strict=True):
            assert part == pytest.approx(whole * weight / total, rel=1e-9, abs=0.01)


def test_measured_shares_come_before_estimates() -> None:
    kernel = kernel_profile(timed(1000.3), 2000.0, SPLIT, weigh, None)
    conv, relu = kernel.operators
    assert (conv.basis, relu.basis) == ("measured", "measured")
    assert conv.share == 0.7
    assert conv.ns + relu.ns == kernel.ns == exact(1000.3)
    assert kernel.share == kernel.ns / 2000.0
    # Nearly all of the operator's work is the convolution's: it has its time as it was measured.
    assert [p.basis for p in conv.parts] == ["measured", "measured"]
    assert conv.parts[0].ns > 0.99 * conv.ns


def test_estimates_say_what_they_rest_on() -> None:
    few = tuple(replace(o, measured=None, samples=1.0) for o in SPLIT.operators)
    split = replace(SPLIT, operators=few, samples=2)
    by_flops = kernel_profile(timed(1000.0), 2000.0, split, weigh, None)
    assert {o.basis for o in by_flops.operators} == {"flops"}
    assert by_flops.operators[0].share == 0.99
    by_bytes = kernel_profile(timed(1000.0), 2000.0, split, weigh, ROOF)
    assert {o.basis for o in by_bytes.operators} == {"bytes"}
    assert by_bytes.operators[0].share == 0.5
    assert by_bytes.operators[0].by_flops == 0.99  # beside it, still


def test_layers_of_one_operator_are_weighed_by_their_work() -> None:
    equal = kernel_profile(timed(1000.0), 2000.0, SPLIT, lambda layers: [1.0] * len(layers), None)
    parts = equal.operators[0].parts
    assert parts[0].ns == parts[1].ns == 350.0
    assert {p.basis for p in parts} == {"flops"}  # an estimate, though the operator's time is none


def test_layers_add_up_to_kernels() -> None:
    kernel = kernel_profile(timed(1000.7), 3000.0, SPLIT, weigh, None)
    host = RunHost(max, (), (), "nms", ("relu", "boxes"))
    step = host_profile("host:nms", host, 2.0, time(55.5), 3000.0, weigh)
    saved = undivided_profile(timed(10.1), 3000.0)
    bare = undivided_profile(replace(timed(1.0), layers=(), name="made"), 3000.0)
    rows = [kernel, step, saved, bare]
    layers = layer_profiles(rows, 3000.0, {"conv": 0, "norm": 1, "relu": 2}, {"conv": "Conv"})
    assert [la.layer for la in layers] == ["conv", "norm", "relu", "boxes", "conv, norm, relu", ""]
    assert sum(la.ns for la in layers) == sum(k.ns for k in rows)
    for la in layers:
        assert la.ns == la.alone_ns + la.measured_ns + la.estimated_ns + la.undivided_ns
    conv, _, relu, boxes, together, none = layers
    assert conv.op == "Conv"
    assert relu.kernels == ("conv_relu", "host:nms")
    assert boxes.estimated_ns == boxes.ns
    assert together.undivided_ns == together.ns == exact(10.1)
    assert none.alone_ns == 1.0


def test_times_are_medians_and_never_negative() -> None:
    found = time_of([9.0, 1.0, 5.0, 4.0, 6.0, 100.0, 5.5, 2.0])
    assert (found.ns, found.median_ns, found.best_ns) == (5.25, 5.25, 1.0)
    assert found.to_json()["spread"] == found.spread == (found.q3_ns - found.q1_ns) / 5.25
    assert time_of([-1.0]).ns == 0.0  # less than a stamp takes
    assert time_of([-3.0, -2.0, 8.0]).ns == 0.0


def test_no_part_of_a_time_is_negative() -> None:
    for weights in ([1.0, 0.0, 0.0], [0.1, 0.2, 0.0, 0.7], [1e-17, 1.0, 1 / 3], [0.0, 0.0]):
        for units in (0, 1, 2, 7, 1023, 10**9 + 7):
            parts = divided(units / 1024, weights)
            assert sum(parts) == units / 1024
            assert min(parts) >= 0


def test_modules_have_the_times_of_all_calls_and_of_modules_inside() -> None:
    def layer(name: str, ns: float, *kernels: str) -> LayerProfile:
        return LayerProfile(name, "", ns, ns / 100, ns, 0.0, 0.0, 0.0, kernels)

    def place(name: str, path: str, kind: str) -> CodePlace:
        return CodePlace(name, path, f"nets.{kind}")

    layers = [
        layer("add", 1.0, "b"),
        layer("stack.0.up", 2.0, "a"),
        layer("head", 4.0, "b"),
        layer("stack.0.up@1", 8.0, "a"),
        layer("stack.0@1/relu", 16.0, "c"),
    ]
    places = [
        place("unused", "other", "Other"),
        place("stack.0.up", "stack.0.up", "Linear"),
        place("head", "head", "Linear"),
        place("stack.0.up@1", "stack.0.up@1", "Linear"),
        place("stack.0@1/relu", "stack.0@1", "Block"),
        place("add", "", "Net"),
    ]
    assert [
        (m.module, m.kind, m.ns, m.kernels) for m in module_profiles(layers, places, 100.0)
    ] == [
        ("", "Net", 31.0, ("a", "b", "c")),
        ("stack", "", 26.0, ("a", "c")),
        ("stack.0", "Block", 26.0, ("a", "c")),
        ("stack.0.up", "Linear", 10.0, ("a",)),
        ("head", "Linear", 4.0, ("b",)),
    ]
    assert module_profiles(layers, [], 100.0) == ()
