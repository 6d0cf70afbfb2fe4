"""What the explorer measures: figures add up, edited schedules are tried, hostile ones refused."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import onnx
import pytest
from tests.generation.folders import write_model

import clew
import zoo
from clew.explorer import wire
from clew.explorer.actions.errors import errors
from clew.explorer.actions.profile import profile
from clew.explorer.actions.schedule import schedule
from clew.explorer.actions.tokens import tokens
from clew.explorer.builds import budget
from clew.explorer.builds.compiling import open_session
from clew.explorer.routes import answer
from clew.explorer.schema import Heat, Options, Roofline, ScheduleTrial, Timeline, TokenCosts
from clew.explorer.session import Session
from clew.explorer.steps import replayed
from clew.ir.expr import Function
from clew.loop.ir import loops
from clew.loop.schedule import Schedule
from clew.machine.target import host
from clew.support.errors import ClewError, ScheduleError, TextError

QUIET = {"seconds": 0.01, "sample": 0.2}


def said(text: str, done: float | None) -> None:
    """Takes progress."""


@pytest.fixture(scope="module")
def session() -> Session:
    return Session(clew.compile(clew.load(zoo.path("resnet_tiny")), threads=1), model="resnet_tiny")


@pytest.fixture(scope="module")
def measured(session: Session) -> Session:
    other = Session(session.compiled, model="resnet_tiny")
    profile(other, QUIET, said)
    return other


def heat(session: Session, metric: str) -> Heat:
    found: Heat = answer(session, f"heat/{metric}")
    json.loads(wire.to_json(found))
    return found


# --- heat ---


@pytest.mark.parametrize("route", ["heat/time", "heat/peak", "roofline", "timeline"])
def test_nothing_is_shown_before_it_is_measured(session: Session, route: str) -> None:
    with pytest.raises(ClewError) as caught:
        answer(Session(session.compiled, model="resnet_tiny"), route)
    assert caught.value.code == "I230"
    assert "use Measure on the page first" in caught.value.hint


def test_errors_are_compared_before_they_are_shown(session: Session) -> None:
    with pytest.raises(ClewError) as caught:
        answer(Session(session.compiled, model="resnet_tiny"), "heat/error")
    assert caught.value.code == "I231"


@pytest.mark.parametrize("metric", ["nonsense", "time/x", "<img onerror=1>", "x" * 500])
def test_unknown_metrics_are_refused(session: Session, metric: str) -> None:
    with pytest.raises(ClewError) as caught:
        answer(session, f"heat/{metric}")
    assert caught.value.code == "I232"


def test_time_adds_up_at_every_level(measured: Session) -> None:
    found = heat(measured, "time")
    prof = measured.measured["profile"]
    assert found.total == prof.kernels_ns
    by_name = {row.name: row.ns for row in prof.kernels}
    assert found.kernels == [by_name[k.name] for k in measured.kernels]
    nameless = sum(la.ns for la in prof.layers if not la.layer)
    assert sum(x or 0.0 for x in found.layers) + nameless == found.total
    for place, kernel in enumerate(measured.kernels):
        lines, instructions = found.lines[place], found.instructions[place]
        assert len(lines) in (0, len(kernel.loops))
        assert len(instructions) in (0, len(kernel.asm))
        for level in (lines, instructions):
            if level:
                assert sum(x or 0.0 for x in level) == pytest.approx(found.kernels[place])
    assert any(found.lines)
    assert any(found.instructions)


def test_instructions_have_the_time_of_their_lines(measured: Session) -> None:
    found = heat(measured, "time")
    for place, kernel in enumerate(measured.kernels):
        by_line: dict[int, float] = {}
        for at, ns in zip(kernel.asm, found.instructions[place], strict=False):
            by_line[at.loop_line] = by_line.get(at.loop_line, 0.0) + (ns or 0.0)
        for number, ns in enumerate(found.lines[place], 1):
            assert by_line.get(number, 0.0) == pytest.approx(ns or 0.0, abs=1e-6)


@pytest.mark.parametrize("metric", ["flops", "bytes"])
def test_work_adds_up_without_measuring(session: Session, metric: str) -> None:
    found = heat(session, metric)
    known = [float(getattr(k, metric)) for k in answer(session, "overview").kernels]
    assert found.kernels == known
    assert found.total == sum(known)
    assert sum(x or 0.0 for x in found.layers) == pytest.approx(found.total)


@pytest.mark.parametrize("metric", ["time", "flops", "bytes"])
def test_operators_of_every_stage_add_up(measured: Session, metric: str) -> None:
    found = heat(measured, metric)
    overview = answer(measured, "overview")
    for stage, columns in zip(overview.stages, found.nodes, strict=True):
        if not stage.changed and stage.index:
            assert not columns.number
            continue
        nodes = measured.trace.nodes(stage.index)
        operators = [
            figure
            for number, figure in zip(columns.number, columns.figure, strict=True)
            if not isinstance(nodes[measured.ids[number]].op, Function)
        ]
        assert sum(operators) == pytest.approx(found.total)


def test_operators_have_what_the_profile_divides_among_them(measured: Session) -> None:
    found = heat(measured, "time")
    last = max(n for n, columns in enumerate(found.nodes) if columns.number)
    own = dict(zip(found.nodes[last].number, found.nodes[last].figure, strict=True))
    rows = {row.name: row for row in measured.measured["profile"].kernels}
    shared = 0
    for kernel in measured.kernels:
        for operator in rows[kernel.name].operators:
            number = measured.numbers[kernel.ops[operator.position]]
            assert own[number] == pytest.approx(operator.ns)
            shared += len(kernel.ops) > 1
    assert shared


def test_a_step_on_the_host_has_its_time(tmp_path: Path) -> None:
    graph = onnx.parser.parse_graph(
        "g (float[4,4] x) => (float[4,4] y, float[4,4] z)"
        " { a = Relu(x) y = com.microsoft.Inverse(a) z = Sin(a) }"
    )
    opset = [onnx.helper.make_opsetid("", 20), onnx.helper.make_opsetid("com.microsoft", 1)]
    path = tmp_path / "host.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=10), path)
    session = Session(clew.compile(path, threads=1), model="host")
    profile(session, QUIET, said)
    found = heat(session, "time")
    last = max(n for n, columns in enumerate(found.nodes) if columns.number)
    nodes = session.trace.nodes(last)
    ops = {nodes[session.ids[n]].op_name for n in found.nodes[last].number}
    assert "inverse" in ops


def test_errors_are_those_of_results(session: Session) -> None:
    narrow = Session(
        clew.compile(session.compiled.module, threads=1, precision="bf16"), model="resnet_tiny"
    )
    found = errors(narrow, {}, said)
    for stage, columns in enumerate(found.nodes):
        nodes = narrow.trace.nodes(stage)
        for number, figure in zip(columns.number, columns.figure, strict=True):
            results = [s.layer for s in nodes[narrow.ids[number]].span.sources if s.output == 0]
            assert figure in [found.layers[narrow.layers[layer]] for layer in results]


def test_peak_of_a_layer_lies_between_its_kernels(measured: Session) -> None:
    found = heat(measured, "peak")
    for place, layer in enumerate(answer(measured, "overview").layers):
        share = found.layers[place]
        own = [found.kernels[k] or 0.0 for k in layer.kernels]
        if share is not None:
            assert min(own) <= share * (1 + 1e-9)
            assert share <= max(own) * (1 + 1e-9)


def test_errors_of_a_narrow_build(session: Session) -> None:
    narrow = Session(
        clew.compile(session.compiled.module, threads=1, precision="bf16"), model="resnet_tiny"
    )
    found = errors(narrow, {}, said)
    assert found == heat(narrow, "error")
    known = [x for x in found.layers if x is not None]
    assert len(known) > len(found.layers) // 4
    assert 1e-4 < max(known) < 0.1
    assert max(known) == max(x for x in found.kernels if x is not None)
    assert found.layers[0] is None or found.layers[0] < 0.05


def test_the_reference_has_no_error(session: Session) -> None:
    plain = Session(clew.compile(session.compiled.module, threads=1, opt_level=0), model="x")
    found = errors(plain, {}, said)
    assert {x for x in found.layers if x is not None} == {0.0}
    assert "reference itself" in found.notes[0]


# --- plots ---


def test_the_roofline_has_every_kernel(measured: Session) -> None:
    found: Roofline = answer(measured, "roofline")
    time = heat(measured, "time")
    assert [p.kernel for p in found.points] == list(range(len(measured.kernels)))
    assert [p.ns for p in found.points] == time.kernels
    assert found.peak_gflops > 0
    kernels = answer(measured, "overview").kernels
    for point in found.points:
        kernel = kernels[point.kernel]
        assert point.intensity == pytest.approx(kernel.flops / kernel.bytes)
        assert point.limit == "compute" or point.limit in found.bandwidths


def test_slices_of_a_track_follow_each_other(measured: Session) -> None:
    found: Timeline = answer(measured, "timeline")
    tracks = {s.track for s in found.slices}
    assert tracks == {"layers", "kernels", "operators"}
    for track in tracks:
        now = 0.0
        for piece in (s for s in found.slices if s.track == track):
            assert piece.start_ns == pytest.approx(now)
            now = piece.start_ns + piece.ns
    refs = [s.ref for s in found.slices if s.track == "kernels" and s.ref]
    assert refs == [f"kernel:{n}" for n in range(len(measured.kernels))]
    layers = [s.ref for s in found.slices if s.track == "layers" and s.ref]
    assert {r.removeprefix("layer:") for r in layers} <= set(measured.layers)


# --- parameters ---


@pytest.mark.parametrize("value", [-1.0, 1e9, float("nan"), True, "1", None])
def test_seconds_are_a_sensible_number(session: Session, value: Any) -> None:
    with pytest.raises(ClewError) as caught:
        profile(session, {"seconds": value}, said)
    assert caught.value.code == "I235"


# --- edited schedules ---


def steps_of(session: Session, kernel: int) -> list[str]:
    return list(map(str, session.compiled.build.uses[kernel].source.schedule.steps))


def trial(session: Session, kernel: int, steps: Any) -> ScheduleTrial:
    return schedule(session, {"kernel": kernel, "steps": steps, "seconds": 0.0}, said)


def refused(session: Session, steps: Any, kernel: int = 1) -> ClewError:
    with pytest.raises(ClewError) as caught:
        trial(session, kernel, steps)
    return caught.value


def test_recorded_schedules_give_the_same_nest(session: Session) -> None:
    for place, use in enumerate(session.compiled.build.uses):
        again = replayed(use.source.nest, steps_of(session, place))
        assert str(again) == str(use.source.schedule)


def test_the_recorded_schedule_gives_the_same_bits(session: Session) -> None:
    found = trial(session, 1, steps_of(session, 1))
    assert found.same_bits
    assert found.error == 0.0
    assert found.code.loops == list(session.kernels[1].loops)
    shown = answer(session, "schedule/1")
    assert found.steps == shown.steps


def test_another_schedule_runs_and_is_shown(session: Session) -> None:
    found = trial(session, 1, [])
    assert found.code.loops != list(session.kernels[1].loops)
    assert found.error < 1e-5
    assert found.before_ns > 0
    assert found.after_ns > 0
    last = trial(session, 1, steps_of(session, 1)[:-1])
    assert last.error < 1e-5


def test_only_the_kernel_that_was_chosen_changes(session: Session) -> None:
    before = [list(k.loops) for k in session.kernels]
    trial(session, 3, [])
    assert [list(k.loops) for k in session.kernels] == before


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("import os", TextError),
        ("__import__('os').system('true')", TextError),
        ("split(loop=open('/etc/passwd'), factor=2)", TextError),
        ("split(loop='x', factor=2**40)", TextError),
        ("split(" + "(" * 500, TextError),
        ("\0", TextError),
        ("nonsense(a=1)", ScheduleError),
        ("unroll(loop='no such')", ScheduleError),
        ("split(loop='no such', factor=3)", ScheduleError),
        ("inline(stage='<img onerror=1>')", ScheduleError),
    ],
)
def test_nonsense_is_refused_with_its_step(session: Session, text: str, kind: type) -> None:
    error = refused(session, ["", "# a comment", text])
    assert isinstance(error, kind)
    assert error.stage == "step 3"


@pytest.mark.parametrize(
    "text",
    [
        "split(loop='i', factor=1000000000)",
        "split(loop='i', factor=-3)",
        "split(loop='i', factor=True)",
        "split(loop='i', factor={1: 2})",
        "split(loop=5, factor=2)",
        "split(loop='i', loop='j', factor=2)",
        "reorder(order='abc')",
        "compute_at(stage='conv2d', loop='i', scope='output')",
    ],
)
def test_arguments_are_names_and_small_numbers(session: Session, text: str) -> None:
    error = refused(session, [text])
    assert (error.code, error.stage) == ("I234", "step 1")


@pytest.mark.parametrize("steps", [None, "unroll(loop='i')", [1], ["x" * 5000], ["a"] * 5000])
def test_steps_are_a_list_of_texts(session: Session, steps: Any) -> None:
    assert refused(session, steps).code == "I235"


@pytest.mark.parametrize("kernel", [-1, 10**9, "0", 1.0, None, True])
def test_the_kernel_exists(session: Session, kernel: Any) -> None:
    with pytest.raises(ClewError) as caught:
        schedule(session, {"kernel": kernel, "steps": []}, said)
    assert caught.value.code in ("I235", "I200")


def test_what_unrolls_without_end_is_refused(session: Session) -> None:
    nest = session.compiled.build.uses[1].source.nest
    names = dict.fromkeys(loop.name for loop in loops(nest.body))
    assert budget.estimate(replayed(nest, []).nest).instructions < 1000
    error = refused(session, [f"unroll(loop={name!r})" for name in names], kernel=1)
    assert error.code == "I237"
    assert "instructions" in error.message


@pytest.mark.skipif(host().vector_bits < 512, reason="tails of narrow vectors grow too slowly")
def test_nests_that_double_with_each_step_are_refused(session: Session) -> None:
    nest = session.compiled.build.uses[1].source.nest
    names = list(dict.fromkeys(loop.name for loop in loops(nest.body)))
    endings = ("", ".i", ".o", ".i.i", ".i.o", ".o.i", ".o.o", ".i.i.i", ".o.o.o")
    grown = Schedule(nest)
    for name in (n + e for e in endings for n in names):
        with contextlib.suppress(ScheduleError):  # there is no such loop
            grown.apply("split", loop=name, factor=3)
    with pytest.raises(ClewError) as caught:
        replayed(nest, list(map(str, grown.steps)))
    assert caught.value.code == "I237"
    assert caught.value.stage.startswith("step ")


def test_registers_that_cannot_be_are_refused(session: Session) -> None:
    steps = steps_of(session, 1)
    unrolled = [step for step in steps if not step.startswith("unroll")]
    assert len(unrolled) < len(steps)
    error = refused(session, unrolled)
    assert error.code.startswith("S")


# --- language models ---


def test_a_language_model_opens_at_a_decode_step(tmp_path: Path) -> None:
    path = write_model(tmp_path / "model")
    session = open_session(path, "model", Options(), said)
    with pytest.raises(ClewError) as caught:
        answer(session, "tokens")
    assert caught.value.code == "I230"
    measured = tokens(session, {"length": 20, "prompt": 8}, said)
    found: TokenCosts = answer(session, "tokens")
    assert found == measured
    assert found.decode.cache_bytes == 20 * found.token_bytes > 0
    (layer,) = [part for part in found.decode.parts if part.layer == "model.layers.0"]
    names = {answer(session, "overview").layers[n].name for n in layer.layers}
    assert "model.layers.0.self_attn.q_proj" in names
    assert "tokens" in answer(session, "overview").measured


def test_other_models_have_no_cost_of_a_token(session: Session) -> None:
    with pytest.raises(ClewError) as caught:
        tokens(session, {}, said)
    assert caught.value.code == "I484"
