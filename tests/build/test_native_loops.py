"""Branches and loops inside segments: results, guard pages, hostile trip counts, saved files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
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
    # Stacks of rows as many as an input says: rows of which few fit, small ones, a state's.
    "rows": """agraph (float[300] x, int64 n) => (float[300] y, float[k,300] s, bool[k] odd,
        int64[k] count) {
        yes = Constant <value = bool {1}> ()
        zero = Constant <value = int64 {0}> ()
        w = Tanh (x)
        y, m, s, odd, count = Loop (n, yes, w, zero) <body = inner
            (int64 i, bool c, float[300] u, int64 m)
            => (bool c2, float[300] u2, int64 m2, float[300] r, bool o, int64 q) {
            c2 = Identity (c)
            u2 = Cos (u)
            r = Mul (u2, w)
            two = Constant <value = int64 {2}> ()
            half = Mod (i, two)
            o = Cast <to = 9> (half)
            m2 = Add (m, i)
            q = Identity (m2)
        }>
    }""",
    # The state ends the loop. A loop after it stacks, too; another, in it, a number of times.
    "rows_until": """agraph (float[2,600] x) => (float[2,600] y, float[k,2,600] s, float[j,600] t) {
        yes = Constant <value = bool {1}> ()
        y, s = Loop (, yes, x) <body = inner
            (int64 i, bool c, float[2,600] u) => (bool c2, float[2,600] u2, float[2,600] r) {
            half = Constant <value = float {0.5}> ()
            times = Constant <value = int64 {2}> ()
            u1, rows = Loop (times, yes, u) <body = innermost
                (int64 j, bool d, float[2,600] p) => (bool d2, float[2,600] p2, float[2,600] q) {
                d2 = Identity (d)
                p2 = Sin (p)
                q = Mul (p2, half)
            }>
            u2 = Mul (u1, half)
            most = ReduceMax <keepdims = 0> (u2)
            small = Constant <value = float {0.01}> ()
            c2 = Greater (most, small)
            axis = Constant <value = int64[1] {0}> ()
            r = ReduceSum <keepdims = 0> (rows, axis)
        }>
        first = Constant <value = int64[1] {0}> ()
        z = ReduceMax <keepdims = 0> (x, first)
        v, t = Loop (, yes, z) <body = second
            (int64 i, bool c, float[600] u) => (bool c2, float[600] u2, float[600] r) {
            less = Constant <value = float {0.7}> ()
            u2 = Mul (u, less)
            most = ReduceMax <keepdims = 0> (u2)
            small = Constant <value = float {0.001}> ()
            c2 = Greater (most, small)
            r = Exp (u)
        }>
    }""",
    # Rows without elements, and a loop whose branch reads the number of the iteration.
    "rows_of_nothing": """agraph (float[4] x, int64 n) => (float[4] y, float[k,0] s) {
        yes = Constant <value = bool {1}> ()
        y, s = Loop (n, yes, x) <body = inner
            (int64 i, bool c, float[4] u) => (bool c2, float[4] u2, float[0] r) {
            one = Constant <value = int64 {1}> ()
            odd = Equal (i, one)
            u2 = If (odd) <
                then_branch = t () => (float[4] v1) { v1 = Neg (u) },
                else_branch = e () => (float[4] v2) { v2 = Cos (u) }>
            zero = Constant <value = int64[1] {0}> ()
            c2 = Identity (c)
            r = Slice (u2, zero, zero)
        }>
    }""",
}
# The stacks' number of rows is known after the run.
GROWING = ("rows", "rows_until", "rows_of_nothing")


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
        if name in ("until", "rows_until"):
            feed["x"] = np.abs(feed["x"]) * 10.0**number
        if name == "asked":
            feed["n"] = np.array([0, 1, 7][number])
        if name in GROWING and "n" in feed:
            feed["n"] = np.array([23, 0, 2][number])
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


ROWS_IN_ROWS = """agraph (float[4] x, int64 n) => (float[4] y, float[k,4] s) {
    yes = Constant <value = bool {1}> ()
    axis = Constant <value = int64[1] {0}> ()
    y, s = Loop (n, yes, x) <body = outer
        (int64 i, bool c, float[4] u) => (bool c2, float[4] u2, float[4] row) {
        c2 = Identity (c)
        u2, rows = Loop (i, yes, u) <body = inner
            (int64 j, bool d, float[4] p) => (bool d2, float[4] p2, float[4] q) {
            d2 = Identity (d)
            p2 = Sin (p)
            q = Exp (p2)
        }>
        row = ReduceSum <keepdims = 0> (rows, axis)
    }>
}"""


def test_a_stack_that_grows_inside_of_a_loop_is_native() -> None:
    made = onnx.parser.parse_model(HEAD + ROWS_IN_ROWS)
    compiled = clew.compile(clew.load(made), threads=1)
    session = pytest.importorskip("onnxruntime").InferenceSession(made.SerializeToString())
    rng = np.random.default_rng(0)
    for n in (5, 0, 1, 9):
        feed = {"x": rng.standard_normal(4).astype(np.float32), "n": np.array(n)}
        for found, other in zip(outputs(compiled, feed), session.run(None, feed), strict=True):
            np.testing.assert_allclose(found, other, rtol=1e-5, atol=1e-6)
    assert any(segment.plan.stacks for segment in compiled.build.segments)


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


def rows_feed(n: int, seed: int = 0) -> dict[str, Array]:
    """Returns inputs of the model `rows` for a number of iterations."""
    x = np.random.default_rng(seed).standard_normal(300).astype(np.float32)
    return {"x": x, "n": np.array(n)}


@pytest.mark.parametrize("guard", [False, True])
def test_any_number_of_rows_has_room(guard: bool) -> None:
    module = clew.load(model("rows"))
    compiled = clew.compile(module, threads=1, guard=guard)
    kept = []
    for seed, n in enumerate((1, 3, 4, 5, 8, 100, 2, 0, 101, 9)):
        feed = rows_feed(n, seed)
        wanted = list(interpret(module, feed).values())
        kept.append((outputs(compiled, feed), wanted))
    for found, wanted in kept:  # later calls change no result
        for one, other in zip(found, wanted, strict=True):
            assert one.shape == other.shape
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_few_rows_hold_little_memory() -> None:
    compiled = clew.compile(clew.load(model("rows")), threads=1)
    compiled.run(rows_feed(5000))
    rows = compiled.run(rows_feed(2))["s"]
    owner = rows
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    assert owner.nbytes < 20_000


def test_threads_have_their_own_rows() -> None:
    module = clew.load(model("rows"))
    compiled = clew.compile(module, threads=1)

    def same(number: int) -> bool:
        feed = rows_feed(number * 7 % 40, number)
        found = compiled.run(feed)
        return all(
            np.allclose(found[name], value, rtol=1e-5, atol=1e-6)
            for name, value in interpret(module, feed).items()
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(same, range(40)))


def test_rows_are_seen_in_a_run_of_single_steps() -> None:
    compiled = clew.compile(clew.load(model("rows")), threads=1)
    feed = rows_feed(23)
    found = compiled.run(feed)
    values = node_values(compiled.build, list(feed.values()))
    (loop,) = (v for v in values.values() if isinstance(v, tuple) and len(v) > 5)
    for value in loop[-3:]:
        assert any(np.array_equal(value, other) for other in found.values())
    every = compiled.tap("Loop_3/body/Mul_2", feed, iterations=True)
    np.testing.assert_array_equal(every, found["s"])


def test_rows_are_timed() -> None:
    compiled = clew.compile(clew.load(model("rows")), threads=1)
    profile = compiled.profile(rows_feed(23), repeats=3)
    assert {row.runs for row in profile.kernels} >= {23.0, 24.0, 1.0}
    (segment,) = compiled.build.segments
    given = list(rows_feed(23).values())
    assert segment.time_step(2, given, 3).shape == (3,)
    with segment.prepared(given) as context:
        assert all(context.arguments(step) for step in range(len(segment.plan.steps)))


@pytest.mark.parametrize("n", [1, 23])
def test_given_outputs_are_written_beside_stacks(n: int) -> None:
    compiled = clew.compile(clew.load(model("rows")), threads=1)
    (segment,) = compiled.build.segments
    given = list(rows_feed(n).values())
    wanted = segment(given)
    specs = segment.plan.outputs
    rooms = [None if s.is_stack else np.empty(s.shape, s.dtype) for s in specs]
    found = segment(given, rooms)
    for room, one, other in zip(rooms, found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)
        assert room is None or one is room


FREE_ROWS = """agraph (float[m,40] x, int64 n) => (float[m,40] y, float[k,m,40] s) {
    yes = Constant <value = bool {1}> ()
    y, s = Loop (n, yes, x) <body = inner
        (int64 i, bool c, float[m,40] u) => (bool c2, float[m,40] u2, float[m,40] r) {
        c2 = Identity (c)
        u2 = Cos (u)
        r = Mul (u2, x)
    }>
}"""


def test_rows_of_free_sizes_have_room(tmp_path: Path) -> None:
    made = onnx.parser.parse_model(HEAD + FREE_ROWS)
    module = clew.load(made)
    compiled = clew.compile(module, threads=1)
    compiled.save(tmp_path / "m.clew")
    loaded = clew.load_compiled(tmp_path / "m.clew")
    guarded = clew.compile(module, threads=1, guard=True)
    session = pytest.importorskip("onnxruntime").InferenceSession(made.SerializeToString())
    rng = np.random.default_rng(0)
    for rows, n in ((3, 5), (1, 0), (70, 9), (70, 1), (3, 30), (200, 4)):
        x = rng.standard_normal((rows, 40)).astype(np.float32)
        feed = {"x": x, "n": np.array(n)}
        wanted = list(interpret(module, feed).values())
        if n:  # ONNX Runtime takes free sizes for 0 if there is no iteration
            wanted = session.run(None, feed)
        for runner in (compiled, loaded, guarded):
            for found, other in zip(outputs(runner, feed), wanted, strict=True):
                np.testing.assert_allclose(found, other, rtol=1e-5, atol=1e-6)
    assert compiled.builds_made + compiled.from_cache == 1


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


ENDLESS_ROWS = (
    ENDLESS.replace("(float[4] y)", "(float[4] y, bool[k] s)")
    .replace("y = Loop", "y, s = Loop")
    .replace("float[4] u2) {", "float[4] u2, bool r) {")
    .replace("c2 = Less (all, ten)", "c2 = Less (all, ten)\n        r = Less (all, ten)")
)


def test_rows_of_endless_loops_end_with_an_error() -> None:
    compiled = clew.compile(clew.load(onnx.parser.parse_model(HEAD + ENDLESS_ROWS)), threads=1)
    x = np.zeros(4, np.float32)
    for budgets, code in (
        (Budgets(loop_steps=1000), "I266"),
        (Budgets(loop_steps=1 << 60, run_bytes=100_000), "I265"),
    ):
        for run in (compiled, lambda x: observe(compiled.build, [x], lambda ran: None)):
            with in_force(budgets), pytest.raises(ClewError) as caught:
                run(x)
            assert caught.value.code == code
    with in_force(Budgets(run_bytes=23 * 1200 + 24 * 8)):
        rows = clew.compile(clew.load(model("rows")), threads=1)
        assert len(rows.run(rows_feed(20))["s"]) == 20
        with pytest.raises(ClewError, match="values that a loop stacks"):
            rows.run(rows_feed(24))
        assert len(rows.run(rows_feed(20))["s"]) == 20


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


def test_damaged_stacks_are_refused() -> None:
    compiled = clew.compile(clew.load(model("rows")), threads=1)
    (segment,) = compiled.build.segments
    plan = segment.plan
    ((number, stacks),) = plan.stacks.items()
    loop, place = plan.loops[number], 0
    while not (isinstance(plan.order[place], Flow) and plan.order[place].kind is FlowKind.BEGIN):  # type: ignore[union-attr]
        place += 1
    begin = plan.order[place]
    assert isinstance(begin, Flow)

    def with_output(output: int, **changed: Any) -> SegmentPlan:
        outputs = list(plan.outputs)
        outputs[output] = replace(outputs[output], **changed)
        return replace(plan, outputs=tuple(outputs))

    def with_loop(**changed: Any) -> SegmentPlan:
        loops = list(plan.loops)
        loops[number] = replace(loop, **changed)
        return replace(plan, loops=tuple(loops))

    def with_stack(**changed: Any) -> SegmentPlan:
        last = replace(begin.args[-1], **changed)
        order = list(plan.order)
        order[place] = replace(begin, args=(*begin.args[:-1], last))
        return replace(plan, order=tuple(order))

    other = next(n for n, spec in enumerate(plan.outputs) if not spec.is_stack)
    step = replace(plan.steps[0], args=(replace(begin.args[-1]), *plan.steps[0].args[1:]))
    for changed in (
        with_output(stacks[0], is_stack=False),
        with_output(stacks[0], shape=(301,)),
        with_output(stacks[0], shape=(299,)),
        with_output(other, is_stack=True),
        with_loop(trips=1),
        with_loop(rows_bytes=loop.rows_bytes[:-1]),
        with_loop(rows_bytes=(*loop.rows_bytes[:-1], loop.rows_bytes[-1] + 1)),
        with_stack(offset_bytes=1),
        with_stack(index=other),
        with_stack(index=stacks[0]),
        with_stack(kind=BufferKind.ARENA, index=0),
        replace(plan, steps=(step, *plan.steps[1:])),
    ):
        with pytest.raises(AssertionError):
            check_plan(changed)


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
