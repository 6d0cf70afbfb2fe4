"""Branches and loops inside segments: results, guard pages, hostile trip counts, saved files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

import clew
from clew.build.observe import node_values, observe
from clew.ir.interpret import interpret
from clew.runtime.guard import GuardSide
from clew.runtime.memory import check_plan
from clew.runtime.plan import BufferKind, Flow, FlowKind, SegmentPlan
from clew.support.budgets import Budgets, in_force
from clew.support.errors import ClewError

Array = np.ndarray[Any, Any]
HEAD = '<ir_version: 9, opset_import: ["" : 18]>\n'

MODELS = {
    # A state that changes, one that stays, one that swaps, a stack of each iteration.
    "states": """agraph (float[3,4] x, float[4] w) => (float[3,4] a, float[3,4] b, float[5,3,4] s) {
        n = Constant <value = int64 {5}> ()
        yes = Constant <value = bool {1}> ()
        a, b, kept, s = Loop (n, yes, x, x, w) <body = inner
            (int64 i, bool c, float[3,4] u, float[3,4] v, float[4] k)
            => (bool c2, float[3,4] v2, float[3,4] u2, float[4] k2, float[3,4] row) {
            c2 = Identity (c)
            t = Mul (u, k)
            f = Cast <to = 1> (i)
            u2 = Add (t, f)
            v2 = Tanh (v)
            k2 = Identity (k)
            row = Add (u2, v2)
        }>
    }""",
    # The condition follows from the state; nothing is stacked.
    "until": """agraph (float[2,3] x) => (float[2,3] y) {
        yes = Constant <value = bool {1}> ()
        y = Loop (, yes, x) <body = inner
            (int64 i, bool c, float[2,3] u) => (bool c2, float[2,3] u2) {
            half = Constant <value = float {0.5}> ()
            u2 = Mul (u, half)
            most = ReduceMax <keepdims = 0> (u2)
            c2 = Greater (most, half)
        }>
    }""",
    # A value that is a state and a stack, and a stack of what was before.
    "stacked": """agraph (float[4] x) => (float[4] y, float[6,4] s, float[6,4] before) {
        n = Constant <value = int64 {6}> ()
        yes = Constant <value = bool {1}> ()
        y, s, before = Loop (n, yes, x) <body = inner
            (int64 i, bool c, float[4] u) => (bool c2, float[4] u2, float[4] r, float[4] q) {
            c2 = Identity (c)
            u2 = Sin (u)
            r = Identity (u2)
            q = Identity (u)
        }>
    }""",
    # No iteration: the state is what it was, the stack has no rows.
    "never": """agraph (float[4] x) => (float[4] y, float[0,4] s) {
        n = Constant <value = int64 {0}> ()
        yes = Constant <value = bool {1}> ()
        z = Tanh (x)
        y, s = Loop (n, yes, z) <body = inner
            (int64 i, bool c, float[4] u) => (bool c2, float[4] u2, float[4] r) {
            c2 = Identity (c)
            u2 = Sin (u)
            r = Identity (u2)
        }>
    }""",
    # A loop in a loop, a branch in it, by the number of the iteration.
    "nested": """agraph (float[2,4] x) => (float[2,4] y, float[3,2,4] s) {
        n = Constant <value = int64 {3}> ()
        m = Constant <value = int64 {2}> ()
        yes = Constant <value = bool {1}> ()
        y, s = Loop (n, yes, x) <body = outer
            (int64 i, bool c, float[2,4] u) => (bool c2, float[2,4] u2, float[2,4] row) {
            c2 = Identity (c)
            one = Constant <value = int64 {1}> ()
            odd = Equal (i, one)
            v = If (odd) <
                then_branch = t () => (float[2,4] v1) { v1 = Neg (u) },
                else_branch = e () => (float[2,4] v2) { v2 = Identity (u) }>
            u2, rows = Loop (m, yes, v) <body = inner
                (int64 j, bool d, float[2,4] p) => (bool d2, float[2,4] p2, float[2,4] q) {
                d2 = Identity (d)
                f = Cast <to = 1> (j)
                a = Add (p, f)
                p2 = Sigmoid (a)
                q = Mul (p2, u)
            }>
            row = ReduceSum <keepdims = 0> (rows, axis)
            axis = Constant <value = int64[1] {0}> ()
        }>
    }""",
    # Branches with several results, one passed on, one a constant.
    "branches": """agraph (float[3] x, float[3] z) => (float[3] a, float[3] b, float[3] c) {
        zero = Constant <value = float {0.0}> ()
        sum = ReduceSum <keepdims = 0> (x)
        up = Greater (sum, zero)
        a, b, c = If (up) <
            then_branch = t () => (float[3] a1, float[3] b1, float[3] c1) {
                a1 = Identity (z)
                b1 = Exp (x)
                c1 = Constant <value = float[3] {1.0, 2.0, 3.0}> () },
            else_branch = e () => (float[3] a2, float[3] b2, float[3] c2) {
                a2 = Mul (x, z)
                b2 = Identity (a2)
                c2 = Abs (z) }>
    }""",
    # How often is an input.
    "asked": """agraph (float[4] x, int64 n) => (float[4] y) {
        yes = Constant <value = bool {1}> ()
        y = Loop (n, yes, x) <body = inner
            (int64 i, bool c, float[4] u) => (bool c2, float[4] u2) {
            c2 = Identity (c)
            u2 = Cos (u)
        }>
    }""",
}


def fixed_order(text: str) -> str:
    """Constants go before what reads them."""
    return text.replace(
        "row = ReduceSum <keepdims = 0> (rows, axis)\n"
        "            axis = Constant <value = int64[1] {0}> ()",
        "axis = Constant <value = int64[1] {0}> ()\n"
        "            row = ReduceSum <keepdims = 0> (rows, axis)",
    )


def model(name: str) -> onnx.ModelProto:
    """Returns one of the models."""
    return onnx.parser.parse_model(HEAD + fixed_order(MODELS[name]))


def feeds(name: str) -> list[dict[str, Array]]:
    """Returns inputs that take several ways."""
    rng = np.random.default_rng(0)
    made = []
    for number in range(3):
        feed: dict[str, Array] = {}
        for value in model(name).graph.input:
            shape = tuple(d.dim_value for d in value.type.tensor_type.shape.dim)
            feed[value.name] = rng.standard_normal(shape).astype(np.float32)
        if name == "until":
            feed["x"] = np.abs(feed["x"]) * 10.0**number
        if name == "asked":
            feed["n"] = np.array([0, 1, 7][number])
        if name == "branches":
            feed["x"] = np.abs(feed["x"]) * (-1) ** number
        made.append(feed)
    return made


def outputs(compiled: Any, feed: dict[str, Array]) -> list[Array]:
    return list(compiled.run(feed).values())


@pytest.mark.parametrize("level", [0, 3])
@pytest.mark.parametrize("name", MODELS)
def test_they_are_native_and_agree(name: str, level: int) -> None:
    module = clew.load(model(name))
    compiled = clew.compile(module, threads=2, opt_level=level)
    session = pytest.importorskip("onnxruntime").InferenceSession(model(name).SerializeToString())
    for feed in feeds(name):
        wanted = session.run(None, feed)
        by_reference = list(interpret(module, feed).values())
        for found, other, also in zip(outputs(compiled, feed), wanted, by_reference, strict=True):
            np.testing.assert_allclose(found, other, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(also, other, rtol=1e-5, atol=1e-6)
    (segment,) = compiled.build.segments
    assert segment.plan.order


@pytest.mark.parametrize("side", list(GuardSide))
@pytest.mark.parametrize("name", MODELS)
def test_nothing_is_touched_beside_buffers(name: str, side: GuardSide) -> None:
    compiled = clew.compile(clew.load(model(name)), threads=2, guard=side)
    plain = clew.compile(clew.load(model(name)), threads=1)
    for feed in feeds(name):
        for found, other in zip(outputs(compiled, feed), outputs(plain, feed), strict=True):
            np.testing.assert_array_equal(found, other)


@pytest.mark.parametrize("name", MODELS)
def test_saved_they_give_the_same(name: str, tmp_path: Path) -> None:
    compiled = clew.compile(clew.load(model(name)), threads=1)
    compiled.save(tmp_path / "m.clew")
    loaded = clew.load_compiled(tmp_path / "m.clew")
    for feed in feeds(name):
        for found, other in zip(outputs(loaded, feed), outputs(compiled, feed), strict=True):
            np.testing.assert_array_equal(found, other)


def test_each_iteration_is_seen() -> None:
    compiled = clew.compile(clew.load(model("stacked")), threads=1)
    (feed,) = feeds("stacked")[:1]
    seen: list[Array] = []
    found = observe(compiled.build, list(feed.values()), lambda ran: seen.extend(ran.results))
    rows = [row for row in seen if row.shape == (4,)]
    np.testing.assert_array_equal(np.stack(rows), found[1])
    values = node_values(compiled.build, list(feed.values()))
    assert any(isinstance(v, tuple) and len(v) == 3 for v in values.values())


def test_values_are_tapped_by_iteration() -> None:
    compiled = clew.compile(clew.load(model("stacked")), threads=1)
    (feed,) = feeds("stacked")[:1]
    layer = "Loop_2/body/Sin_1"
    every = compiled.tap(layer, feed, iterations=True)
    np.testing.assert_array_equal(every, compiled.run(feed)["s"])
    np.testing.assert_array_equal(compiled.tap(layer, feed), every[-1])


@pytest.mark.parametrize("name", [name for name in MODELS if name != "branches"])
def test_links_inside_are_verified(name: str) -> None:
    compiled = clew.compile(clew.load(model(name)), threads=1)
    report = compiled.trace.verify(feeds(name)[2])
    assert report.ok
    assert report.checked
    assert not report.skipped or name in ("nested", "never")  # what no iteration comes to


def test_iterations_are_timed_and_counted() -> None:
    compiled = clew.compile(clew.load(model("nested")), threads=1)
    (feed,) = feeds("nested")[:1]
    (segment,) = compiled.build.segments
    labels = [step.label for step in segment.plan.steps]
    iterations = dict(zip(labels, segment.iterations(list(feed.values())), strict=True))
    assert sorted(iterations.values())[-1] == 6
    assert iterations["negative"] == 1
    profile = compiled.profile(feed, repeats=5)
    assert {row.runs for row in profile.kernels} >= {6.0, 1.0}


ENDLESS = """agraph (float[4] x) => (float[4] y) {
    yes = Constant <value = bool {1}> ()
    y = Loop (, yes, x) <body = inner
        (int64 i, bool c, float[4] u) => (bool c2, float[4] u2) {
        u2 = Cos (u)
        all = ReduceMax <keepdims = 0> (u2)
        ten = Constant <value = float {10.0}> ()
        c2 = Less (all, ten)
    }>
}"""


def test_endless_loops_end_with_an_error() -> None:
    compiled = clew.compile(clew.load(onnx.parser.parse_model(HEAD + ENDLESS)), threads=1)
    with in_force(Budgets(loop_steps=1000)), pytest.raises(ClewError) as caught:
        compiled(np.zeros(4, np.float32))
    assert caught.value.code == "I266"


def test_endless_loops_heed_interrupts(tmp_path: Path) -> None:
    path = tmp_path / "endless.onnx"
    onnx.save(onnx.parser.parse_model(HEAD + ENDLESS), path)
    program = (
        "import signal, clew, numpy as np\n"
        # A shell has jobs in the background ignore it.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from clew.support.budgets import Budgets, in_force\n"
        f"compiled = clew.compile(clew.load({str(path)!r}), threads=1)\n"
        "print('ready', flush=True)\n"
        "with in_force(Budgets(loop_steps=1 << 60)):\n"
        "    try:\n"
        "        compiled(np.zeros(4, np.float32))\n"
        "    except KeyboardInterrupt:\n"
        "        print('stopped', flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=os.environ
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60)[0] == "stopped\n"


def damaged(plan: SegmentPlan) -> Iterator[tuple[int, Flow]]:
    """Yields places of a plan with control flow there that must not run."""
    for place, flow in enumerate(plan.order):
        if isinstance(flow, int):
            continue
        yield from ((place, replace(flow, target=t)) for t in (-1, len(plan.order) + 1))
        if flow.args:
            strange = replace(flow.args[0], index=1000)
            yield place, replace(flow, args=(strange, *flow.args[1:]))
        match flow.kind:
            case FlowKind.TEST | FlowKind.JUMP | FlowKind.UNLESS:
                yield place, replace(flow, target=place)
                yield place, replace(flow, target=len(plan.order))
            case FlowKind.NEXT:
                yield place, replace(flow, target=0)
                yield place, replace(flow, loop=flow.loop + 1)
            case FlowKind.COPY:
                yield from ((place, replace(flow, size_bytes=n)) for n in (-8, 1 << 40))
        if flow.kind is not FlowKind.END:
            yield place, replace(flow, args=flow.args[:-1])
        if flow.kind in (FlowKind.BEGIN, FlowKind.TEST, FlowKind.NEXT):
            counter = replace(flow.args[0], kind=BufferKind.OUTPUT, index=0)
            yield place, replace(flow, args=(counter, *flow.args[1:]))


@pytest.mark.parametrize("name", ["nested", "until"])
def test_damaged_control_flow_is_refused(name: str) -> None:
    compiled = clew.compile(clew.load(model(name)), threads=1)
    (segment,) = compiled.build.segments
    plan = segment.plan
    check_plan(plan)
    tried = list(damaged(plan))
    assert len(tried) > 10
    for place, flow in tried:
        if flow == plan.order[place]:
            continue
        order = (*plan.order[:place], flow, *plan.order[place + 1 :])
        with pytest.raises((AssertionError, IndexError)):
            check_plan(replace(plan, order=order))
    for loop in plan.loops:
        longer = replace(loop, trips=(loop.trips or 0) + 1)
        loops = tuple(longer if other is loop else other for other in plan.loops)
        if loop.rows_bytes or loop.trips is None:  # no room for the row, a condition too many
            with pytest.raises(AssertionError):
                check_plan(replace(plan, loops=loops))


def test_weights_inside_are_packed_when_compiled() -> None:
    node = onnx.helper.make_node("GRU", ["x", "w", "r"], ["y"], hidden_size=64)
    rng = np.random.default_rng(0)
    weights = [
        onnx.numpy_helper.from_array(rng.standard_normal((1, 192, 64)).astype("f4"), name)
        for name in "wr"
    ]
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [node], "g", [value("x", 1, [5, 1, 64])], [value("y", 1, None)], weights
    )
    opset = [onnx.helper.make_opsetid("", 18)]
    made = onnx.helper.make_model(graph, opset_imports=opset, ir_version=9)
    compiled = clew.compile(clew.load(made), threads=1)
    (segment,) = compiled.build.segments
    inside = [s for s in segment.plan.steps if s.label.startswith("dense")][1:]
    for step in inside:
        kinds = [ref.kind for ref in step.args]
        assert kinds.count(BufferKind.CONSTANT) == 1
    assert not any(s.label.startswith("layout") for s in segment.plan.steps)
