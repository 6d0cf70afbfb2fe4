"""Builds for sizes met often, of fake programs: when they are made and used, and what calls notice
of them.
"""

from __future__ import annotations

import gc
import os
import random
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from often_builds import (
    CALLS,
    LIMIT_S,
    TRIALS,
    Clock,
    Fake,
    Faked,
    idle,
    until,
)

from clew.runtime.sizes_key import KEPT_SIZES
from clew.serving import often
from clew.serving.often import MOST, Manners, OwnBuilds, Stopped
from clew.support.errors import InputError

pytestmark = pytest.mark.usefixtures("soon")


@pytest.mark.parametrize(
    ("worth", "least", "seconds", "calls"),
    [(5, 0, 1, 5), (0, 4, 1, 4), (5, 0, 9, CALLS), (5, 7, 2, 4), (0, 0, 0, CALLS)],
)
def test_a_build_is_made_once_calls_took_as_long_as_the_common_one(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, worth: float, least: float, seconds: float,
    calls: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(often, "_LEAST_S", least)
    model = Faked(clock, common=seconds, worth_s=worth)
    model.calls(calls - 1)
    idle()
    assert model.built == []
    assert model.own_builds.told() == []
    model.calls(20, seq=9)  # other sizes count for themselves
    idle()
    assert model.built == [9]
    model.call()
    idle()
    assert model.built == [9, 7]


def test_builds_are_called_in_turns_until_one_is_chosen(fake: Faked) -> None:
    assert fake.calls(CALLS) == ["common"] * CALLS
    idle()
    assert fake.calls(2 * TRIALS) == ["common", "own"] * TRIALS
    assert fake.calls(5) == ["own"] * 5
    told = fake.told[7]
    assert (told.state, told.common_s, told.own_s) == ("in use", 2, 1)
    fake.gate.clear()
    assert fake.calls(5, seq=8) == ["common"] * 5
    assert fake.call() == "own"
    assert fake.built[:1] == [7]


def test_calls_go_on_while_a_build_is_made(fake: Faked) -> None:
    fake.gate.clear()
    assert fake.calls(5 * CALLS) == ["common"] * 5 * CALLS
    assert fake.states == {7: "building"}
    fake.gate.set()
    idle()
    assert fake.states == {7: "trying"}
    assert fake.built == [7]


def test_a_build_that_is_not_faster_is_dropped(
    fake: Faked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(often, "_WORTH", 0.95)
    fake.own_seconds = [1.95]
    fake.decide()
    assert fake.states == {7: "not faster"}
    assert fake.last is not None
    dropped = weakref.ref(fake.last)
    fake.last = None
    gc.collect()
    assert dropped() is None
    assert fake.calls(20) == ["common"] * 20
    assert fake.built == [7]
    fake.own_seconds = [1.85]
    fake.decide(8)
    assert fake.states == {7: "not faster", 8: "in use"}


def test_the_first_calls_of_a_build_are_not_counted(
    fake: Faked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(often, "_WORTH", 0.95)
    first_runs = [50.0] * often._FIRST_RUNS
    fake.own_seconds = [*first_runs, 50, 1, 2]
    fake.decide()
    assert fake.told[7].own_s == 1.5
    assert fake.states == {7: "in use"}
    fake.own_seconds = [*first_runs, 1, 50]
    fake.decide(8)
    assert fake.told[8].own_s == 50
    assert fake.states[8] == "not faster"


def test_one_disturbed_call_decides_nothing(fake: Faked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(often, "_WORTH", 0.95)
    monkeypatch.setattr(often, "_TRIALS", 5)
    first_runs = [1.0] * often._FIRST_RUNS
    fake.own_seconds = [*first_runs, 1, 1, 90, 1, 1]
    fake.calls(CALLS)
    idle()
    fake.calls(10)
    assert fake.states == {7: "in use"}


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (InputError("I042", "no such size", hint="more"), "error[I042] no such size"),
        (MemoryError(), "MemoryError()"),
        (KeyError("mine"), "KeyError('mine')"),
    ],
)
@pytest.mark.parametrize("where", ["build", "first run"])
def test_a_build_that_fails_is_reported_and_calls_go_on(
    fake: Faked, where: str, error: Exception, reason: str
) -> None:
    if where == "build":
        fake.error = error
    else:
        fake.own_error = error
    assert fake.calls(CALLS) == ["common"] * CALLS
    idle()
    assert fake.calls(20) == ["common"] * 20
    assert fake.built == [7]
    told = fake.told[7]
    assert (told.state, told.common_s, told.own_s) == ("failed", None, None)
    assert told.remark == f"seq=7: its own build failed: {reason}"


def test_builds_are_made_after_one_that_failed(fake: Faked) -> None:
    fake.error = KeyError("mine")
    fake.decide()
    fake.error = None
    fake.decide(8)
    assert fake.states == {7: "failed", 8: "in use"}


def test_a_failed_call_tells_nothing(fake: Faked) -> None:
    fake.calls(CALLS - 1)
    fake.common.error = InputError("I320", "index 9 is out of range")
    for _ in range(5):
        with pytest.raises(InputError):
            fake.call()
    idle()
    assert fake.built == []  # nor would its inputs do for a first run
    fake.common.error = None
    fake.call()
    idle()
    assert fake.states == {7: "trying"}
    assert not fake.own_builds._running


def test_few_builds_are_in_use_at_once(fake: Faked) -> None:
    for seq in range(MOST):
        fake.decide(seq)
    assert fake.states == dict.fromkeys(range(MOST), "in use")
    assert fake.call(0) == "own"  # so that 1 is the size not met for longest
    oldest = weakref.ref(fake.own_builds._begun[((1,),), ()].own)
    fake.decide(MOST)
    assert fake.states == dict.fromkeys([*range(2, MOST), 0, MOST], "in use")
    fake.last = None
    gc.collect()
    assert oldest() is None
    assert fake.call(1) == "common"
    fake.gate.clear()
    fake.calls(CALLS, 1)  # met often again
    assert fake.told[1].remark == "seq=1: its own build is being made"
    assert fake.told[1].own_s is None
    fake.own_seconds = [0.5]
    fake.gate.set()
    idle()
    fake.calls(2 * TRIALS, 1)
    assert fake.states[1] == "in use"
    assert fake.told[1].own_s == 0.5
    assert 2 not in fake.states
    assert list(fake.states.values()) == ["in use"] * MOST


def test_sizes_not_met_for_long_are_forgotten_unless_they_have_a_build(fake: Faked) -> None:
    fake.decide(0)
    for seq in range(1, KEPT_SIZES):
        fake.call(seq)
    assert fake.call(0) == "own"
    for seq in range(KEPT_SIZES, 2 * KEPT_SIZES):
        fake.call(seq)
    assert fake.states == {0: "in use"}
    assert len(fake.own_builds._begun) == 1
    assert fake.call(0) == "own"


def test_remarks(fake: Faked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(often, "_WORTH", 0.95)
    fake.common.seconds, fake.own_seconds = [2.128e-3], [1.32e-3]
    fake.calls(CALLS - 1)
    assert fake.told == {}
    fake.gate.clear()
    fake.call()
    assert str(fake.told[7]) == "seq=7: its own build is being made"
    fake.gate.set()
    idle()
    assert str(fake.told[7]) == "seq=7: its own build is being timed"
    fake.calls(2 * TRIALS)
    assert str(fake.told[7]) == "seq=7: its own build takes 1.32 ms, the common one 2.13 ms: in use"
    fake.own_seconds = [2.2e-3]
    fake.decide(8)
    found = fake.told[8]
    assert found.remark == "seq=8: its own build takes 2.2 ms, the common one 2.13 ms: not used"
    assert found.common_s == pytest.approx(2.128e-3)
    assert found.own_s == pytest.approx(2.2e-3)


def test_remarks_name_all_sizes(clock: Clock) -> None:
    common = Fake("common", clock, [1])
    builds = OwnBuilds(lambda sizes, manners: common, 0)  # type: ignore[arg-type, return-value]
    record = builds.often((((2, 40),), ()), {"batch": 2, "seq": 40})
    for _ in range(CALLS):
        record.run(common, ())  # type: ignore[arg-type]
    idle()
    (found,) = builds.told()
    assert found.sizes == {"batch": 2, "seq": 40}
    assert found.remark == "batch=2, seq=40: its own build is being timed"


def test_the_inputs_of_a_first_run_are_copies(fake: Faked) -> None:
    x, many, one = np.arange(3.0), [np.ones(2)], np.float32(4)
    given = [x, many, None, one]
    fake.gate.clear()
    for _ in range(CALLS):
        fake.call(arrays=given)
    x[:] = -1
    many.append(np.zeros(1))
    given.clear()
    fake.gate.set()
    idle()
    assert fake.last is not None
    assert len(fake.last.seen) == often._FIRST_RUNS
    for seen in fake.last.seen:
        np.testing.assert_array_equal(seen[0], [0, 1, 2])
        assert len(seen[1]) == 1
        assert seen[2:] == (None, 4)
    assert fake.own_builds._begun[((7,),), ()].arrays == ()


def test_a_dropped_model_is_not_built_for(fake: Faked, clock: Clock) -> None:
    fake.gate.clear()
    fake.calls(CALLS)  # keeps the worker busy
    other = Faked(clock)
    other.calls(CALLS)
    assert other.states == {7: "building"}
    built, left, whole = other.built, weakref.ref(other.own_builds), weakref.ref(other)
    del other
    assert left() is None
    assert whole() is None
    fake.gate.set()
    idle()
    assert built == []
    assert fake.states == {7: "trying"}


def test_own_builds_do_not_keep_a_model(fake: Faked) -> None:
    """They do not keep the object of their method alive."""
    orphan = Faked(fake.clock)
    left = orphan.own_builds
    common, built = orphan.common, orphan.built
    del orphan
    record = left.often((((1,),), ()), {"seq": 1})
    for _ in range(CALLS):
        record.run(common, ())  # type: ignore[arg-type]
    idle()
    assert built == []


def test_calls_from_threads_at_once(fake: Faked) -> None:
    sizes = range(MOST)
    names: list[str] = []

    def call(seed: int) -> None:
        draw = random.Random(seed)
        for _ in range(300):
            names.append(fake.call(draw.choice(sizes)))
            time.sleep(0)

    threads = [threading.Thread(target=call, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    idle()
    for seq in sizes:
        fake.calls(2 * TRIALS, seq)
    assert len(names) == 1200
    assert sorted(fake.built) == list(sizes)
    assert fake.states == dict.fromkeys(sizes, "in use")
    assert not fake.own_builds._running


def test_of_short_calls_only_some_are_timed(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(often, "_LEAST_S", 1e-3)
    short = often._SHORT_S / 5
    common = Fake("common", clock, [short])
    builds = OwnBuilds(lambda sizes, manners: common, 0)  # type: ignore[arg-type, return-value]
    record = builds.often((((1,),), ()), {"seq": 1})
    timed = calls = 0
    while builds.told() == []:
        calls += 1
        if record.ahead.value > 0:  # as a model does
            record.ahead.value -= 1
        else:
            record.run(common, ())  # type: ignore[arg-type]
            timed += 1
    idle()
    assert calls == pytest.approx(1e-3 / short, abs=2 * often._STRIDE)
    assert timed <= CALLS + 1 + calls / often._STRIDE
    assert builds.told()[0].state == "trying"
    long = Fake("common", clock, [2 * often._SHORT_S])
    record = builds.often((((2,),), ()), {"seq": 2})
    for _ in range(10):
        record.run(long, ())  # type: ignore[arg-type]
        assert record.ahead.value == 0
    idle()


# ---------------------------------------------------------------------------------------- manners


def test_a_build_waits_for_calls_but_not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(often, "_PATIENCE_S", LIMIT_S)
    asked: list[bool] = []

    def is_busy() -> bool:
        asked.append(len(asked) < 3)
        return asked[-1]

    manners = Manners(is_busy)
    module: Any = None
    manners.before_pass("FuseOps", module)
    assert asked == [True, True, True, False]
    asked.clear()
    manners.on_progress("kernel 1 of 9")
    assert asked == [True, True, True, False]
    asked.clear()
    manners.after_pass("FuseOps", module)
    assert asked == []
    monkeypatch.setattr(often, "_PATIENCE_S", 0.02)
    begun = time.monotonic()
    Manners(lambda: True).wait()
    assert 0.02 <= time.monotonic() - begun < LIMIT_S / 4


def test_the_program_of_a_build_waits_for_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may compile kernels during a call, which would wait for itself."""
    monkeypatch.setattr(often, "_PATIENCE_S", LIMIT_S)
    found: list[Manners] = []
    asked: list[bool] = []

    def build(sizes: Mapping[str, int], manners: Manners) -> Any:
        found.append(manners)
        return run

    def run(arrays: Sequence[Any], held: object = None) -> list[Any]:
        if threading.current_thread() is not threading.main_thread():
            return []
        for manners in found:
            begun = time.monotonic()
            manners.on_progress("kernel 1 of 1")
            manners.before_pass("FuseOps", None)  # type: ignore[arg-type]
            asked.append(time.monotonic() - begun < LIMIT_S / 4)
        return []

    record = OwnBuilds(build, 0).often(((), ()), {"seq": 1})

    def call() -> None:
        record.run(run, ())  # type: ignore[arg-type]

    for _ in range(CALLS):
        call()
    idle()
    call()
    assert asked == [True]


def test_a_build_ends_early_if_the_process_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(often, "_PATIENCE_S", LIMIT_S)
    monkeypatch.setattr(often._worker, "is_stopping", True)
    manners = Manners(lambda: True)
    begun = time.monotonic()
    manners.wait()
    assert time.monotonic() - begun < LIMIT_S / 4
    with pytest.raises(Stopped):
        manners.on_progress("kernel 1 of 9")
    manners.end()
    manners.on_progress("kernel 1 of 9")  # of a call


def test_a_forked_child_makes_its_own_builds(clock: Clock, fake: Faked) -> None:
    fake.gate.clear()
    fake.calls(CALLS)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            fake.gate.set()  # of the child alone
            fake.decide()
            code = 0 if fake.states == {7: "in use"} else 2
        finally:
            os._exit(code)
    ended: list[int] = []

    def wait() -> None:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            ended.append(os.waitstatus_to_exitcode(status))

    until(lambda: bool(ended), wait)
    assert ended == [0]
    fake.gate.set()
    idle()
    assert fake.states == {7: "trying"}


def test_builds_in_use_are_kept_when_many_others_fail(
    fake: Faked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(often, "KEPT_SIZES", 3)
    fake.decide(0)
    fake.error = KeyError("mine")
    for seq in range(1, 6):
        fake.decide(seq)
    assert fake.states == {0: "in use", 4: "failed", 5: "failed"}
    assert fake.call(0) == "own"
