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

import numpy as np
import onnx.parser
import pytest
from loop_models import ENDLESS, ENDLESS_ROWS, HEAD, MODELS, Array, feeds, model, outputs

import clew
from clew.build.observe import node_values, observe
from clew.ir.interpret import interpret
from clew.runtime.guard import GuardSide
from clew.runtime.memory import check_plan
from clew.runtime.plan import BufferKind, Flow, FlowKind, SegmentPlan
from clew.support.budgets import Budgets, in_force
from clew.support.errors import ClewError


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
    compiled = clew.compile(
        clew.load(model(name)), threads=2, diagnostics=clew.Diagnostics(guard=side)
    )
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


def test_endless_loops_end_with_an_error() -> None:
    compiled = clew.compile(clew.load(onnx.parser.parse_model(HEAD + ENDLESS)), threads=1)
    with in_force(Budgets(loop_steps=1000)), pytest.raises(ClewError) as caught:
        compiled(np.zeros(4, np.float32))
    assert caught.value.code == "I266"


@pytest.mark.parametrize("text", [ENDLESS, ENDLESS_ROWS])
def test_endless_loops_heed_interrupts(text: str, tmp_path: Path) -> None:
    path = tmp_path / "endless.onnx"
    onnx.save(onnx.parser.parse_model(HEAD + text), path)
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


@pytest.mark.parametrize("name", ["nested", "until", "rows"])
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
