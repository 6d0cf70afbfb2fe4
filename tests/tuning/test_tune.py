"""Tuning end to end: trials are kept, verified, applied, reported and resumed."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clew
from clew.frontends import onnx
from clew.ir.expr import Function
from clew.ir.module import Module
from clew.passes.apply_history import Advice, ApplyHistory
from clew.records import Store
from clew.records.trial import KERNEL, Outcome
from clew.support.errors import InputError, ScheduleError
from clew.tuning.verifying import Verifier
from clew.tuning.workbench import SLOWER_ALONE, Workbench

from .conftest import follow_law, small_network, trust

RUN = "import sys; from clew.cli.app import main; sys.exit(main())"


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The file and the report of a search whose times follow the law."""
    path = tmp_path_factory.mktemp("searched") / "t.db"
    with pytest.MonkeyPatch.context() as patch:
        trust(patch)
        follow_law(patch)
        module = onnx.load(small_network())
        report = clew.tune(module, minutes=2, trials=24, database=path, threads=1, name="first")
    return path, report


@pytest.fixture
def database(tmp_path: Path, searched: tuple[Path, Any]) -> Path:
    """A copy of the file of that search."""
    return Path(shutil.copy(searched[0], tmp_path / "t.db"))


def _told(compiled: Any) -> list[str]:
    stage = compiled.build.stages[-1]
    assert stage.name == "ApplyHistory"
    return [remark.text for remark in stage.remarks]


def _outputs(compiled: Any, seed: int) -> Any:
    inputs = compiled.drawn(seed=seed)
    return np.asarray(compiled(*inputs))


def test_a_search_by_real_measurements_ends_and_keeps_what_it_found(
    tmp_path: Path, module: Module
) -> None:
    path, said = tmp_path / "t.db", list[str]()
    report = clew.tune(
        module, minutes=2, trials=9, database=path, threads=1, on_progress=said.append
    )
    assert report.tally is not None
    assert report.tally.trials == 9
    assert any("another 10 minutes" in text for text in said)
    assert report.tally.left
    with Store(path) as store:
        trials = store.trials()
        assert len(trials) == 9
        assert len({(t.subject, t.choices) for t in trials}) == 9
        assert {t.state for t in trials} <= {"won", "lost", "undecided"}
        for trial in trials:
            assert (trial.pairs >= 5) == (trial.ns is not None)
            if trial.pairs:  # in the program
                assert bool(trial.schedule) == (trial.kind == "kernel")
            else:
                assert trial.state == "lost"
                assert trial.reason == SLOWER_ALONE or "the same code as" in trial.reason
            assert {u.model for u in store.uses() if u.subject == trial.subject} == {"model"}
        (session,) = store.sessions("model", trials[0].machine, 1)
        assert session.trials == 9


def test_what_won_is_applied_wherever_the_kernel_occurs(
    module: Module, database: Path, searched: tuple[Path, Any], lawful: None
) -> None:
    path, report = database, searched[1]
    assert report.kernels
    assert all(k.confirmed and k.gain > 0 for k in report.kernels)
    default = clew.compile(module, tuned=None, threads=1)
    tuned = clew.compile(module, tuned=path, threads=1)
    for seed in range(3):
        a, b = _outputs(default, seed), _outputs(tuned, seed)
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    changed = {k.name for k in tuned.kernels if k.function.attrs.get("tuned")}
    assert changed == {use for k in report.kernels for use in k.uses}
    for kernel in report.kernels:
        text = str(tuned.trace.layer(kernel.layers[0]))
        assert f"trial {kernel.trial}" in text  # the story names it
    # Another model with one of the kernels finds it; the rest differ in size.
    other = onnx.load(small_network(columns=12))
    again = clew.tune_report(other, database=path, name="second", threads=1)
    conv = [k for k in again.kernels if "conv2d" in k.kernel]
    assert len(conv) == 1
    assert conv[0].models == ("first",)
    assert conv[0].trial == next(k.trial for k in report.kernels if "conv2d" in k.kernel)
    # Other threads, no records.
    assert not clew.tune_report(module, database=path, threads=2).kernels


def test_a_schedule_of_the_user_takes_precedence_over_a_record(
    module: Module, database: Path, lawful: None
) -> None:
    path = database
    own = clew.schedule_for(op="nn.conv2d", choose="conv: columns=5", name="mine")
    compiled = clew.compile(module, tuned=path, threads=1, extend=[own])
    (conv,) = [k for k in compiled.kernels if "nn.conv2d" in k.ops]
    assert conv.choices[0].settings["columns"] == 5
    told = [text for text in _told(compiled) if "conv@" in text]
    assert told
    assert all(text.endswith("; not where the schedule mine applies") for text in told)
    assert not any("mine" in text for text in _told(compiled) if text not in told)


def test_records_stay_where_the_end_of_a_session_is_disturbed(
    tmp_path: Path, module: Module, lawful: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = Workbench.measured

    def disturbed(self: Workbench, *given: Any, **how: Any) -> list[Outcome]:
        found = measured(self, *given, **how)
        if how.get("until_decided", True):
            return found
        return [Outcome(o.subject, o.choices, "undecided", pairs=3) for o in found]

    monkeypatch.setattr(Workbench, "measured", disturbed)
    path = tmp_path / "t.db"
    report = clew.tune(module, minutes=2, trials=12, database=path, threads=1)
    assert report.kernels
    assert not any(kernel.confirmed for kernel in report.kernels)
    assert "?: not measured against the default choices yet" in str(report)


def test_the_default_file_is_found(
    tmp_path: Path, module: Module, lawful: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEW_TUNING", str(tmp_path / "deep" / "t.db"))
    assert clew.compile(module, threads=1).build.stages[-1].name != "ApplyHistory"
    clew.tune(module, minutes=2, trials=12, threads=1)
    assert clew.compile(module, threads=1).build.stages[-1].name == "ApplyHistory"
    assert clew.compile(module, threads=1, tuned=None).build.stages[-1].name != "ApplyHistory"


def test_a_search_goes_on_where_another_ended(tmp_path: Path, module: Module, lawful: None) -> None:
    path = tmp_path / "t.db"
    for count in (10, 20):
        clew.tune(module, minutes=2, trials=10, database=path, threads=1)
        with Store(path) as store:
            trials = store.trials()
        assert len({(t.subject, t.choices) for t in trials}) == len(trials) == count
    by_uid = {t.uid: t for t in trials}
    for trial in trials:
        if trial.against and trial.ratio is not None and not trial.confirmed:
            assert by_uid[trial.against].state in ("won", "lost")


def test_wrong_candidates_never_win(
    tmp_path: Path, module: Module, lawful: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    observed = Verifier._observed

    def shifted(self: Verifier, subject: str) -> Any:
        operands, expected = observed(self, subject)
        return operands, tuple(array * 1.01 + 0.01 for array in expected)

    monkeypatch.setattr(Verifier, "_observed", shifted)
    report = clew.tune(module, minutes=2, trials=12, database=tmp_path / "t.db", threads=1)
    assert not report.kernels
    with Store(tmp_path / "t.db") as store:
        wrong = [t for t in store.trials() if t.state == "wrong"]
        others = [t for t in store.trials() if t.state != "wrong"]
    assert wrong
    assert all("differs from the interpreter" in t.reason for t in wrong)
    assert all(t.reason.startswith("the same code as ") for t in others)


def test_builds_in_the_cache_depend_on_the_records(
    tmp_path: Path, module: Module, lawful: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEW_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "t.db"
    clew.tune(module, minutes=2, trials=16, database=path, threads=1)
    kernels = []
    for tuned in (None, path, None, path):
        compiled = clew.compile(module, tuned=tuned, threads=1)
        assert compiled.from_cache  # the search has compiled both
        kernels.append([k.key for k in compiled.kernels])
    assert kernels[0] == kernels[2] != kernels[1] == kernels[3]
    with Store(path) as store:  # a better record makes another build
        best = next(iter(store.best(clew.compile(module).options.target.identity, 1).values()))
        store.update(replace(best[0], state="lost"))
    compiled = clew.compile(module, tuned=path, threads=1)
    assert not compiled.from_cache
    assert [k.key for k in compiled.kernels] != kernels[1]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"schedule": "unroll(loop='x')"}, "another schedule now; step 1 was unroll(loop='x')"),
        ({"choices": "conv@relu: rows=0"}, "S06"),
        ({"choices": "nothing"}, "S061"),
        ({"choices": "=;="}, "P021"),
    ],
)
def test_records_that_do_not_replay_are_skipped(
    module: Module, database: Path, lawful: None, change: dict[str, str], reason: str
) -> None:
    path = database
    with Store(path) as store:
        target = clew.compile(module).options.target.identity
        store.drop([t.uid for t in store.trials() if t.kind != KERNEL])
        for trials in store.best(target, 1).values():
            store.update(*(replace(t, **change) for t in trials))
    compiled = clew.compile(module, tuned=path, threads=1)
    texts = _told(compiled)
    assert texts
    assert all(" is skipped: " in text and reason in text for text in texts)
    default = clew.compile(module, tuned=None, threads=1)
    assert [k.key for k in compiled.kernels] == [k.key for k in default.kernels]
    report = clew.tune_report(module, database=path, threads=1)
    assert not report.kernels
    assert set(report.skipped) == set(texts)


def test_records_of_another_version_apply_if_they_make_the_same_schedule(
    module: Module, database: Path, lawful: None
) -> None:
    path = database
    with Store(path) as store:
        store.update(*(replace(t, version="0.0.1+other") for t in store.trials()))
    report = clew.tune_report(module, database=path, threads=1)
    assert report.kernels
    assert not report.skipped


def test_choices_in_a_graph_that_do_not_fit_are_an_error(module: Module) -> None:
    fused = clew.compile(module, tuned=None, threads=1).build.stages[-1].module

    class Wished:
        def __init__(self, choices: str) -> None:
            self.choices = choices

        def advice(self, function: Function) -> Advice:
            return Advice(self.choices if "conv2d" in function.attrs["name"] else "")

    def compiled(choices: str) -> Any:
        return clew.compile(fused, passes=[ApplyHistory(Wished(choices))], threads=1)

    for choices, code in (
        ("nothing", "S061"),
        ("conv@relu: rows=x", "S062"),
        ("attention", "S065"),
    ):
        with pytest.raises(ScheduleError) as caught:
            compiled(choices)
        assert caught.value.code == code
    (conv,) = [k for k in compiled("conv@relu: columns=5").kernels if "conv2d" in k.name]
    assert conv.choices[0].settings["columns"] == 5


def test_a_file_of_something_else_is_an_error(tmp_path: Path, module: Module) -> None:
    path = tmp_path / "t.db"
    path.write_text("nothing of this kind " * 300)
    for work in (
        lambda: clew.compile(module, tuned=path),
        lambda: clew.tune(module, database=path, minutes=1),
        lambda: clew.tune_report(module, database=path),
    ):
        with pytest.raises(InputError) as caught:
            work()
        assert caught.value.code == "I381"


@pytest.mark.parametrize(
    ("given", "code"),
    [({"minutes": 0}, "I385"), ({"minutes": float("nan")}, "I385"), ({"trials": 0}, "I386")],
)
def test_limits_are_checked(tmp_path: Path, module: Module, given: Any, code: str) -> None:
    with pytest.raises(InputError) as caught:
        clew.tune(module, database=tmp_path / "t.db", **given)
    assert caught.value.code == code
    assert not (tmp_path / "t.db").exists()


def test_free_sizes_must_be_given(tmp_path: Path) -> None:
    module = clew.parse(
        "clew 1\n"
        'def @main(%x: f32[n, 8]) -> (f32[n, 8],) with outputs=["y"] {\n'
        "  %0 = exp(%x)\n  %1 = (%0,)\n  return %1\n}\n"
    )
    with pytest.raises(InputError) as caught:
        clew.tune(module, database=tmp_path / "t.db", minutes=1)
    assert caught.value.code == "I388"


# --- the command ---


def _command(file: Path, path: Path, *more: str) -> list[str]:
    return [
        sys.executable, "-c", RUN, "tune", str(file), "--database", str(path), "--threads", "1",
        *more,
    ]  # fmt: skip


def _wait_for_trials(path: Path, count: int, run: subprocess.Popen[Any]) -> None:
    ends = time.monotonic() + 240
    while time.monotonic() < ends and run.poll() is None:
        try:
            connection = sqlite3.connect(path)
            (found,) = connection.execute("SELECT count(*) FROM trials").fetchone()
            connection.close()
            if found >= count:
                return
        except sqlite3.Error:
            pass
        time.sleep(0.05)
    raise AssertionError("the search made no trials")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_it_may_be_stopped_at_any_time(tmp_path: Path, file: Path, how: signal.Signals) -> None:
    path = tmp_path / "t.db"
    run = subprocess.Popen(
        _command(file, path, "--minutes", "5"), stderr=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True, env={**os.environ, "CLEW_CACHE_DIR": str(tmp_path / "cache")},
        # Tests in the background of a shell ignore it, and so would the process.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    _wait_for_trials(path, 4, run)
    run.send_signal(how)
    _, said = run.communicate(timeout=120)
    if how == signal.SIGINT:
        assert run.returncode == 0, said
        assert "the same command goes on from here" in said
        with Store(path) as store:
            assert not [t for t in store.trials() if t.state in ("verifying", "measuring")]
    with Store(path) as store:
        before = {t.uid: t for t in store.trials() if t.state not in ("verifying", "measuring")}
    done = subprocess.run(
        _command(file, path, "--trials", "3"), capture_output=True, text=True, timeout=240,
        check=True,
    )  # fmt: skip
    assert "3 trials" in done.stderr
    with Store(path) as store:
        after = {t.uid: t for t in store.trials()}
    assert before.keys() <= after.keys()
    assert not [t for t in after.values() if t.state in ("verifying", "measuring")]
    assert len({(t.subject, t.choices) for t in after.values()}) == len(after)


def test_records_go_from_file_to_file(
    tmp_path: Path, module: Module, database: Path, searched: tuple[Path, Any], lawful: None
) -> None:
    a, b, lines = database, tmp_path / "b.db", tmp_path / "records.jsonl"
    report = searched[1]
    for path, option in ((a, "--export"), (b, "--import")):
        command = [sys.executable, "-c", RUN, "tune", "--database", str(path), option, str(lines)]
        subprocess.run(command, check=True, timeout=120)
    again = clew.tune_report(module, database=b, threads=1)
    assert [k.trial for k in again.kernels] == [k.trial for k in report.kernels]
