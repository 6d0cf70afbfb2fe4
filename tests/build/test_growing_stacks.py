"""Stacks of loops that the data end: rows as many as there are, in memory that grows."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest
from loop_models import ENDLESS_ROWS, HEAD, Array, model, outputs, rows_feed

import clew
from clew.build.observe import node_values, observe
from clew.ir.interpret import interpret
from clew.runtime import counted
from clew.runtime.guard import GuardSide
from clew.runtime.memory import check_plan
from clew.runtime.plan import BufferKind, Flow, FlowKind, SegmentPlan
from clew.support.budgets import Budgets, in_force
from clew.support.errors import ClewError


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes loops as too large for a call with counted sizes, whose stacks have a limit."""
    monkeypatch.setattr(counted, "COUNTED_BYTES", 0)


@pytest.mark.parametrize("guard", [False, True])
def test_any_number_of_rows_has_room(guard: bool) -> None:
    module = clew.load(model("rows"))
    compiled = clew.compile(module, threads=1, diagnostics=clew.Diagnostics(guard=guard))
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


def test_loops_that_only_count_allocate_as_many_rows_as_there_are() -> None:
    compiled = clew.compile(clew.load(model("rows")), threads=1)
    (segment,) = compiled.build.segments
    assert all(loop.reads_trips for loop in segment.plan.loops)
    rows = compiled.run(rows_feed(777))["s"]
    assert rows.base is not None
    assert 777 * 1200 <= rows.base.nbytes <= 777 * 1200 + 64  # the memory may begin later
    by_condition = clew.compile(clew.load(model("rows_until")), threads=1)
    assert not any(loop.reads_trips for loop in by_condition.build.segments[0].plan.loops)


@pytest.mark.parametrize("level", [0, 3])
@pytest.mark.parametrize("n", [-1, -(1 << 63), 0])
def test_no_rows_for_no_iterations(n: int, level: int) -> None:
    compiled = clew.compile(clew.load(model("rows")), threads=1, opt_level=level)
    feed = rows_feed(n)
    found = compiled.run(feed)
    assert found["s"].shape == (0, 300)
    np.testing.assert_allclose(found["y"], np.tanh(feed["x"]), rtol=1e-5)
    with in_force(Budgets(loop_steps=1000)), pytest.raises(ClewError) as caught:
        compiled.run(rows_feed(1 << 62))
    assert caught.value.code == "I266"


COUNTED_INSIDE = """agraph (float[4] x, int64 n) => (float[4] y, float[6,4] s) {
    yes = Constant <value = bool {1}> ()
    six = Constant <value = int64 {6}> ()
    y, s = Loop (six, yes, x) <body = outer
        (int64 i, bool c, float[4] u) => (bool c2, float[4] u2, float[4] row) {
        c2 = Identity (c)
        m = Mul (i, n)
        u1 = Loop (m, yes, u) <body = inner
            (int64 j, bool d, float[4] p) => (bool d2, float[4] p2) {
            d2 = Identity (d)
            p2 = Sin (p)
        }>
        u2 = Add (u1, x)
        row = Identity (u1)
    }>
}"""


@pytest.mark.parametrize("guard", [False, True])
def test_inner_loops_count_to_what_the_outer_one_says(guard: bool) -> None:
    made = onnx.parser.parse_model(HEAD + COUNTED_INSIDE)
    compiled = clew.compile(clew.load(made), threads=1, diagnostics=clew.Diagnostics(guard=guard))
    session = pytest.importorskip("onnxruntime").InferenceSession(made.SerializeToString())
    rng = np.random.default_rng(0)
    for n in (2, 0, 1, -1, 3):
        feed = {"x": rng.standard_normal(4).astype(np.float32), "n": np.array(n)}
        for found, other in zip(outputs(compiled, feed), session.run(None, feed), strict=True):
            np.testing.assert_allclose(found, other, rtol=1e-5, atol=1e-6)
    (segment,) = compiled.build.segments
    assert sorted(loop.reads_trips for loop in segment.plan.loops) == [False, True]


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
    assert {row.runs for row in profile.kernels} == {23.0, 1.0}
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
    guarded = clew.compile(module, threads=1, diagnostics=clew.Diagnostics(guard=True))
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

    def with_test(**changed: Any) -> SegmentPlan:
        (at,) = (
            n
            for n, entry in enumerate(plan.order)
            if isinstance(entry, Flow) and entry.kind is FlowKind.TEST
        )
        test = plan.order[at]
        assert isinstance(test, Flow)
        order = list(plan.order)
        order[at] = replace(test, args=(test.args[0], replace(test.args[1], **changed)))
        return replace(plan, order=tuple(order))

    other = next(n for n, spec in enumerate(plan.outputs) if not spec.is_stack)
    step = replace(plan.steps[0], args=(replace(begin.args[-1]), *plan.steps[0].args[1:]))
    for changed in (
        with_output(stacks[0], is_stack=False),
        with_output(stacks[0], shape=(301,)),
        with_output(stacks[0], shape=(299,)),
        with_output(other, is_stack=True),
        with_loop(trips=1),
        with_test(kind=BufferKind.OUTPUT, index=stacks[0]),
        with_test(offset_bytes=1),
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


def drawn(seed: int) -> tuple[str, dict[str, Array]]:
    """Returns a model with a loop of two states and one that stays, which stacks values of several
    dtypes until a number, a condition or both end it; and its inputs.
    """
    rng = np.random.default_rng(seed)
    shape = [int(n) for n in rng.choice([1, 3, 5, 16, 33], rng.integers(0, 4))]
    of = f"float{shape}" if shape else "float"
    ends = rng.choice(["number", "condition", "both"])
    casts = {"bool": 9, "int8": 3, "int64": 7, "float16": 10, "double": 11}
    names = [str(n) for n in rng.choice(list(casts), rng.integers(1, 4))]
    rows = [f"{n}{shape} r{k}" if shape else f"{n} r{k}" for k, n in enumerate(names)]
    results = "".join(f", {n}{['k', *shape]} s{k}".replace("'", "") for k, n in enumerate(names))
    text = f"""agraph ({of} x, {of} w, int64 n) => ({of} y, int64 last{results}) {{
        yes = Constant <value = bool {{1}}> ()
        zero = Constant <value = int64 {{0}}> ()
        y, kept, last{"".join(f", s{k}" for k in range(len(names)))} = Loop
            ({"n" if ends != "condition" else ""}, yes, x, w, zero) <body = inner
            (int64 i, bool c, {of} u, {of} v, int64 t) =>
            (bool c2, {of} u2, {of} v2, int64 t2, {", ".join(rows)}) {{
            v2 = Identity (v)
            a = Mul (u, v)
            u2 = Cos (a)
            t2 = Add (t, i)
            four = Constant <value = float {{4.0}}> ()
            big = Mul (u, four)
            {"".join(f"r{k} = Cast <to = {casts[n]}> (big) " for k, n in enumerate(names))}
            most = Constant <value = int64 {{{int(rng.integers(0, 60))}}}> ()
            small = Less (i, most)
            c2 = {"Identity (c)" if ends == "number" else "Identity (small)"}
        }}>
    }}"""
    x, w = (np.asarray(rng.uniform(-1, 1, shape), np.float32) for _ in range(2))
    return text, {"x": x, "w": w, "n": np.array(rng.integers(0, 90))}


@pytest.mark.parametrize("seed", range(24))
def test_drawn_loops_agree(seed: int) -> None:
    text, feed = drawn(seed)
    made = onnx.parser.parse_model(HEAD + text)
    module = clew.load(made)
    session = pytest.importorskip("onnxruntime").InferenceSession(made.SerializeToString())
    sides: list[GuardSide | bool] = [False, *GuardSide]
    for side in sides:
        compiled = clew.compile(module, threads=2, diagnostics=clew.Diagnostics(guard=side))
        assert compiled.build.segments[0].plan.stacks
        for n in (int(feed["n"]), 0, 2, 31):
            given = feed | {"n": np.array(n), "x": np.asarray(feed["x"] * np.float32(1 + n / 90))}
            for found, other in zip(
                outputs(compiled, given), session.run(None, given), strict=True
            ):
                assert found.dtype == other.dtype
                atol = 1e-3 if other.dtype.kind == "f" else 1.01  # a cast rounds to a neighbor
                np.testing.assert_allclose(
                    found.astype(float), other.astype(float), rtol=1e-3, atol=atol
                )
