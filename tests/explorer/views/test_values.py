"""Values in the explorer: what a run computed; in loops one iteration, never all at once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from view_models import conv_block, session_of

from clew.build import observe
from clew.explorer import schema
from clew.explorer.actions.profile import profile
from clew.explorer.builds.builds import Build
from clew.explorer.builds.processes import Answer
from clew.explorer.contents import gather
from clew.explorer.failures import error_info
from clew.explorer.inputs import drawn
from clew.explorer.own import Own
from clew.explorer.routes import answer
from clew.explorer.session import Session
from clew.explorer.views import values as view
from clew.ir.expr import While
from clew.ir.loops import loops_around
from clew.support.errors import InputError
from clew.tap.read import IterationValues
from zoo import loops


@pytest.fixture
def opened(tmp_path: Path) -> Callable[[Callable[..., Path]], Session]:
    return lambda made, **more: session_of(made(tmp_path / "model.onnx", **more), tmp_path)


def values(session: Session, iteration: object, layer: str, output: int = 0) -> schema.Values:
    found: schema.Values = answer(session, f"values/{iteration}/{output}/{layer}")
    return found


def truth(session: Session, layer: str) -> Any:
    return session.compiled.tap(layer, *drawn(session), iterations=True)


def measured(session: Session) -> None:
    profile(session, {"seconds": 0.01, "sample": 0.0}, lambda text, done: None)


def agrees(shown: schema.Values, array: Any) -> None:
    assert shown.elements == array.size
    assert shown.least == pytest.approx(float(array.min()))
    assert shown.most == pytest.approx(float(array.max()))
    assert shown.mean == pytest.approx(float(array.mean()), rel=1e-5)
    assert sum(shown.histogram) == array.size
    assert [float(x) for x in shown.sample] == pytest.approx(list(array.ravel()[:64]), rel=1e-4)


def test_each_iteration_has_its_own_value(opened: Callable[..., Session]) -> None:
    session = opened(loops.scan, iterations=40)
    true = truth(session, "keep")
    assert len(true) == 40
    for iteration in (0, 3, 39):
        shown = values(session, iteration, "keep")
        assert (shown.iteration, shown.iterations) == (iteration, 40)
        agrees(shown, true[iteration])
    last = values(session, "last", "keep")
    assert last == values(session, 39, "keep") == values(session, 1000, "keep")
    walk = session.layers["walk"]
    assert values(session, 3, "keep").path == [schema.LoopIteration(walk, 3, 40)]


def test_a_value_outside_loops_has_no_iterations(opened: Callable[..., Session]) -> None:
    session = opened(loops.scan)
    shown = values(session, "last", "walk", 1)
    assert (shown.iteration, shown.iterations, shown.path, shown.outputs) == (-1, 0, [], [0, 1])
    agrees(shown, session.compiled.tap("walk", *drawn(session), output=1))
    assert values(session, 7, "walk", 1) == shown


def test_iterations_of_nested_loops_have_a_path(opened: Callable[..., Session]) -> None:
    session = opened(loops.nested, outer=3, inner=40)
    true = truth(session, "deep")
    assert len(true) == 120
    shown = values(session, 47, "deep")
    outer, inner = session.layers["outer"], session.layers["inner"]
    assert shown.path == [schema.LoopIteration(outer, 1, 3), schema.LoopIteration(inner, 7, 40)]
    assert (shown.iteration, shown.iterations) == (47, 120)
    agrees(shown, true[47])


def test_a_loop_that_a_value_ends_tells_its_iterations(opened: Callable[..., Session]) -> None:
    session = opened(loops.ended)
    total = len(truth(session, "double"))
    shown = values(session, "last", "double")
    assert (shown.iteration, shown.iterations) == (total - 1, total)
    assert shown.path == [schema.LoopIteration(session.layers["grow"], total - 1, total)]


def test_a_long_loop_is_never_held_as_a_whole(
    opened: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 0
    note = observe.Iterations.note

    def counted(self: observe.Iterations, value: Any, wanted: Any) -> None:
        nonlocal most
        note(self, value, wanted)
        most = max(most, len(self))

    monkeypatch.setattr(observe.Iterations, "note", counted)
    session = opened(loops.scan, iterations=400)
    shown = values(session, 200, "keep")
    assert (shown.iteration, shown.iterations) == (200, 400)
    assert 1 <= most <= 33


def test_neighboring_iterations_need_one_run(
    opened: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = opened(loops.scan)
    runs = []
    run = view.tap_iterations
    monkeypatch.setattr(view, "tap_iterations", lambda *given: runs.append(given) or run(*given))
    for iteration in range(8):
        values(session, iteration, "keep")
    assert len(runs) == 1


def test_a_layer_without_a_value_says_why(tmp_path: Path) -> None:
    session = session_of(conv_block(), tmp_path)
    with pytest.raises(InputError, match="no longer computed") as caught:
        values(session, "last", "stem/conv")
    assert caught.value.code == "I151"
    assert "make a build without" in error_info(caught.value).hint


def test_a_value_inside_a_kernel_says_how_to_read_it(opened: Callable[..., Session]) -> None:
    with pytest.raises(InputError, match="not in memory") as caught:
        values(opened(loops.scan), 0, "squash")
    assert caught.value.code == "I150"
    assert "clew tap --force" in error_info(caught.value).hint


@pytest.mark.parametrize("which", ["", "keep", "0/keep", "x/0/keep", "0/-1/keep", "1e3/0/keep"])
def test_what_names_no_value_is_refused(opened: Callable[..., Session], which: str) -> None:
    with pytest.raises(InputError) as caught:
        view.values(opened(loops.scan), which)
    assert caught.value.code == "I243"


def test_nothing_runs_while_the_model_is_measured(opened: Callable[..., Session]) -> None:
    session = opened(loops.scan)
    assert session.measuring.begin("a measurement")
    with pytest.raises(InputError) as caught:
        values(session, 0, "keep")
    assert caught.value.code == "I245"
    del session.measuring.held[0]
    assert values(session, 0, "keep").iteration == 0


def test_values_that_are_no_numbers_are_counted() -> None:
    array = np.array([0.0, np.nan, np.inf, 2.0], np.float32)
    found = view._statistics(array)
    assert (found["nans"], found["infinities"], found["zeros"]) == (1, 1, 1)
    assert (found["least"], found["most"], found["mean"]) == (0.0, 2.0, 1.0)
    assert view._statistics(np.array(["a"], object))["least"] is None
    assert view._statistics(np.full(3, np.nan))["mean"] is None


def test_large_values_are_counted_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    whole = view._statistics(array)
    monkeypatch.setattr(view, "_PIECE", 64)
    parted = view._statistics(array)
    assert parted["deviation"] == pytest.approx(float(array.std()), rel=1e-5)
    assert parted.pop("histogram") == whole.pop("histogram")
    assert parted == pytest.approx(whole)


@pytest.mark.parametrize(("trips", "in_branch"), [(None, False), (40, True)])
def test_iterations_that_cannot_be_told_apart_have_no_path(
    opened: Callable[..., Session], trips: int | None, in_branch: bool
) -> None:
    session = opened(loops.nested)
    main = session.trace.stages[0].module.main
    outer, inner = max(loops_around(main).values(), key=len)
    loop = While(inner.cond, inner.body, inner.init, trips=trips, span=inner.span)
    found = IterationValues((), (), 120, (outer, loop), in_branch)
    assert view._Paths(session, found).at(7) == []
    assert view._Paths(session, replace(found, loops=(outer, inner), in_branch=False)).at(7)


def test_a_report_holds_some_iterations_and_the_last(opened: Callable[..., Session]) -> None:
    session = opened(loops.scan, iterations=40)
    measured(session)
    answers = gather({"a": session}, None, lambda text: None)["answers"]
    held = {path for path in answers if path.startswith("a/values/") and path.endswith("/keep")}
    iterations = {path.split("/")[2] for path in held}
    assert {"0", "1", "2", "39", "last"} <= iterations
    assert len(iterations) <= 10
    assert not any(path.startswith("a/values/") and path.endswith("/total") for path in answers)


def test_a_report_for_which_nothing_ran_has_no_values(opened: Callable[..., Session]) -> None:
    answers = gather({"a": opened(loops.scan)}, None, lambda text: None)["answers"]
    assert not any(path.startswith("a/values/") for path in answers)


def test_a_report_says_why_it_has_no_values(
    opened: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = opened(loops.scan)
    measured(session)

    def refused(session: Session) -> list[Any]:
        raise InputError("I061", "nothing can be drawn", hint="give inputs")

    monkeypatch.setattr(view, "drawn", refused)
    report = gather({"a": session}, None, lambda text: None)
    (path,) = [p for p in report["answers"] if p.startswith("a/values/") and p.endswith("/keep")]
    assert path == "a/values/last/0/keep"
    assert "nothing can be drawn" in str(report["answers"][path]) + str(report["shared"])


def test_a_server_keeps_no_values() -> None:
    model: Any = SimpleNamespace(name="model.onnx", path=Path("model.onnx"))
    build = Build("a", model, schema.Options(), Own())
    for route in ("overview", "values/0/0/keep"):
        build.keep(route, Answer(b"{}"))
    assert build.kept("overview") is not None
    assert build.kept("values/0/0/keep") is None


def test_a_branch_in_a_loop_counts_iterations_that_took_it(opened: Callable[..., Session]) -> None:
    session = opened(loops.branched)
    counts = {}
    for layer in ("rare", "often"):
        with contextlib.suppress(InputError):
            shown = values(session, "last", layer)
            assert shown.in_branch
            assert shown.path == []
            counts[layer] = shown.iterations
    assert sum(counts.values()) == values(session, "last", "always").iterations == 40
