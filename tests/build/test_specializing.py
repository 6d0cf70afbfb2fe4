"""Builds for sizes met often: when they are made and used, and what calls notice of them."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import clew
from clew.build import specializing
from clew.build.specializing import MOST, Manners, SpecializedSizes, Specializer, Stopped
from clew.compiled import CompiledModel
from clew.runtime.model import KEPT_SIZES
from clew.support.errors import InputError

Array = np.ndarray[Any, Any]
Feeds = dict[str, Array]
F32 = TensorProto.FLOAT
LIMIT_S = 120.0
CALLS, TRIALS = 3, 3


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Few calls suffice, and every build is good enough. No job outlives its test."""
    settings = {
        "_LEAST_S": 0.0, "_FEWEST_CALLS": CALLS, "_TRIALS": TRIALS, "_NOT_COUNTED": 1,
        "_WORTH": 1e9, "_FIRST_RUNS": 2, "_PATIENCE_S": 0.0,
    }  # fmt: skip
    for name, value in settings.items():
        monkeypatch.setattr(specializing, name, value)
    monkeypatch.setattr(CompiledModel, "_compile_seconds", 0.0)
    yield
    idle()


def until(holds: Callable[[], bool], do: Callable[[], object] = lambda: None) -> None:
    """Does something again and again until a condition holds."""
    end = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < end, "it did not happen in time"
        do()
        time.sleep(0.001)


def idle() -> None:
    """Waits for the end of all jobs."""
    until(lambda: specializing._worker._thread is None)


# ------------------------------------------------------------------------------- of fake programs


class Clock:
    """A clock that stands still, but for fake programs; it replaces the module `time`."""

    def __init__(self) -> None:
        self.now = 0.0
        self.monotonic, self.sleep = time.monotonic, time.sleep

    def perf_counter(self) -> float:
        return self.now


@dataclass(eq=False)
class Fake:
    """A program that takes some seconds, and returns its name. `seen` are its inputs."""

    name: str
    clock: Clock
    seconds: list[float]  # of each call; the last holds for all later ones
    seen: list[Sequence[Any]] = field(default_factory=list)
    error: Exception | None = None

    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        number = len(self.seen)
        self.seen.append(arrays)
        self.clock.now += self.seconds[min(number, len(self.seconds) - 1)]
        if self.error is not None:
            raise self.error
        return [self.name]


class Faked:
    """A specializer whose programs are fakes."""

    def __init__(self, clock: Clock, *, common: float = 2, worth_s: float = 0) -> None:
        self.clock = clock
        self.common = Fake("common", clock, [common])
        self.own_seconds: list[float] = [1]
        self.built: list[int] = []
        self.last: Fake | None = None
        self.error: Exception | None = None  # of a build
        self.own_error: Exception | None = None  # of a run
        self.gate = threading.Event()
        self.gate.set()
        self.specializer = Specializer(self.build, worth_s)

    def build(self, sizes: Mapping[str, int], manners: Manners) -> Any:
        self.built.append(sizes["seq"])
        assert self.gate.wait(LIMIT_S)
        if self.error is not None:
            raise self.error
        self.last = Fake("own", self.clock, self.own_seconds, error=self.own_error)
        return self.last

    def call(self, seq: int = 7, arrays: Sequence[Any] = ()) -> str:
        """Returns the name of the program that ran."""
        key = (((seq,),), ())
        (name,) = self.specializer.run(key, lambda: {"seq": seq}, self.common, arrays)  # type: ignore[arg-type]
        return str(name)

    def calls(self, count: int, seq: int = 7) -> list[str]:
        return [self.call(seq) for _ in range(count)]

    def decide(self, seq: int = 7) -> None:
        """Makes a build for a size, and times it."""
        self.calls(CALLS, seq)
        idle()
        self.calls(2 * TRIALS, seq)

    @property
    def told(self) -> dict[int, SpecializedSizes]:
        return {each.sizes["seq"]: each for each in self.specializer.told()}

    @property
    def states(self) -> dict[int, str]:
        return {seq: each.state for seq, each in self.told.items()}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(specializing, "time", made)
    return made


@pytest.fixture
def fake(clock: Clock) -> Iterator[Faked]:
    made = Faked(clock)
    yield made
    made.gate.set()


@pytest.mark.parametrize(
    ("worth", "least", "seconds", "calls"),
    [(5, 0, 1, 5), (0, 4, 1, 4), (5, 0, 9, CALLS), (5, 7, 2, 4), (0, 0, 0, CALLS)],
)
def test_a_build_is_made_once_calls_took_as_long_as_the_common_one(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, worth: float, least: float, seconds: float,
    calls: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(specializing, "_LEAST_S", least)
    model = Faked(clock, common=seconds, worth_s=worth)
    model.calls(calls - 1)
    idle()
    assert model.built == []
    assert model.specializer.told() == []
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
    monkeypatch.setattr(specializing, "_WORTH", 0.95)
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
    monkeypatch.setattr(specializing, "_WORTH", 0.95)
    first_runs = [50.0] * specializing._FIRST_RUNS
    fake.own_seconds = [*first_runs, 50, 1, 2]
    fake.decide()
    assert fake.told[7].own_s == 1.5
    assert fake.states == {7: "in use"}
    fake.own_seconds = [*first_runs, 1, 50]
    fake.decide(8)
    assert fake.told[8].own_s == 50
    assert fake.states[8] == "not faster"


def test_one_disturbed_call_decides_nothing(fake: Faked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(specializing, "_WORTH", 0.95)
    monkeypatch.setattr(specializing, "_TRIALS", 5)
    first_runs = [1.0] * specializing._FIRST_RUNS
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
    assert fake.specializer._running == 0


def test_few_builds_are_in_use_at_once(fake: Faked) -> None:
    for seq in range(MOST):
        fake.decide(seq)
    assert fake.states == dict.fromkeys(range(MOST), "in use")
    assert fake.call(0) == "own"  # so that 1 is the size not met for longest
    oldest = weakref.ref(fake.specializer._met[((1,),), ()].own)
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


def test_sizes_not_met_for_long_are_forgotten(fake: Faked) -> None:
    fake.decide(0)
    for seq in range(1, KEPT_SIZES):
        fake.call(seq)
    assert fake.call(0) == "own"
    for seq in range(KEPT_SIZES, 2 * KEPT_SIZES):
        fake.call(seq)
    assert fake.states == {}
    assert len(fake.specializer._met) == KEPT_SIZES
    assert fake.call(0) == "common"


def test_remarks(fake: Faked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(specializing, "_WORTH", 0.95)
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
    specializer = Specializer(lambda sizes, manners: common, 0)  # type: ignore[arg-type, return-value]
    for _ in range(CALLS):
        key = (((2, 40),), ())
        specializer.run(key, lambda: {"batch": 2, "seq": 40}, common, ())  # type: ignore[arg-type]
    idle()
    (found,) = specializer.told()
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
    assert len(fake.last.seen) == specializing._FIRST_RUNS
    for seen in fake.last.seen:
        np.testing.assert_array_equal(seen[0], [0, 1, 2])
        assert len(seen[1]) == 1
        assert seen[2:] == (None, 4)
    assert fake.specializer._met[((7,),), ()].arrays == ()


def test_a_dropped_model_is_not_built_for(fake: Faked, clock: Clock) -> None:
    fake.gate.clear()
    fake.calls(CALLS)  # keeps the worker busy
    other = Faked(clock)
    other.calls(CALLS)
    assert other.states == {7: "building"}
    built, specializer, whole = other.built, weakref.ref(other.specializer), weakref.ref(other)
    del other
    assert specializer() is None
    assert whole() is None
    fake.gate.set()
    idle()
    assert built == []
    assert fake.states == {7: "trying"}


def test_a_model_without_its_specializer_is_gone(fake: Faked) -> None:
    """A specializer does not keep the object of its method alive."""
    specializer = fake.specializer
    assert isinstance(specializer, Specializer)
    orphan = Faked(fake.clock)
    left = orphan.specializer
    common, built = orphan.common, orphan.built
    del orphan
    for _ in range(CALLS):
        left.run((((1,),), ()), lambda: {"seq": 1}, common, ())  # type: ignore[arg-type]
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
    assert fake.specializer._running == 0


# ---------------------------------------------------------------------------------------- manners


def test_a_build_waits_for_calls_but_not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(specializing, "_PATIENCE_S", LIMIT_S)
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
    monkeypatch.setattr(specializing, "_PATIENCE_S", 0.02)
    begun = time.monotonic()
    Manners(lambda: True).wait()
    assert 0.02 <= time.monotonic() - begun < LIMIT_S / 4


def test_the_program_of_a_build_waits_for_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may compile kernels during a call, which would wait for itself."""
    monkeypatch.setattr(specializing, "_PATIENCE_S", LIMIT_S)
    found: list[Manners] = []
    asked: list[bool] = []

    def build(sizes: Mapping[str, int], manners: Manners) -> Any:
        found.append(manners)
        return run

    def run(arrays: Sequence[Any]) -> list[Any]:
        if threading.current_thread() is not threading.main_thread():
            return []
        for manners in found:
            begun = time.monotonic()
            manners.on_progress("kernel 1 of 1")
            manners.before_pass("FuseOps", None)  # type: ignore[arg-type]
            asked.append(time.monotonic() - begun < LIMIT_S / 4)
        return []

    specializer = Specializer(build, 0)

    def call() -> None:
        specializer.run(((), ()), lambda: {"seq": 1}, run, ())  # type: ignore[arg-type]

    for _ in range(CALLS):
        call()
    idle()
    call()
    assert asked == [True]


def test_a_build_ends_early_if_the_process_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(specializing, "_PATIENCE_S", LIMIT_S)
    monkeypatch.setattr(specializing._worker, "is_stopping", True)
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


# ----------------------------------------------------------------------------------- whole models


def made(nodes: list[Any], inputs: dict[str, Any], outputs: list[str], **held: Array) -> bytes:
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(n, F32, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, F32, None) for n in outputs],
        [numpy_helper.from_array(a, n) for n, a in held.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 18)]
    data: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    return data


def drawn(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng((seed, *shape)).standard_normal(shape).astype(np.float32)


def images(*, size: Sequence[Any] = ("n", 3, "h", "w")) -> bytes:
    """Two convolutions of images of any size."""
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["c0"], strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c0"], ["r0"]),
        helper.make_node("Conv", ["r0", "w1"], ["y"], pads=[1, 1, 1, 1]),
    ]
    weights = {"w0": drawn(32, 3, 3, 3) / 5, "w1": drawn(16, 32, 3, 3) / 17}
    return made(nodes, {"x": list(size)}, ["y"], **weights)


def decoder() -> bytes:
    """A step of attention whose keys and values grow."""
    nodes = [
        helper.make_node("MatMul", ["x", "wq"], ["q"]),
        helper.make_node("MatMul", ["x", "wk"], ["k1"]),
        helper.make_node("MatMul", ["x", "wv"], ["v1"]),
        helper.make_node("Concat", ["past_k", "k1"], ["k"], axis=1),
        helper.make_node("Concat", ["past_v", "v1"], ["v"], axis=1),
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "kt"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "v"], ["y"]),
    ]
    inputs = {"x": ["b", "s", 48], "past_k": ["b", "past", 48], "past_v": ["b", "past", 48]}
    weights = {n: drawn(48, 48, seed=k) / 7 for k, n in enumerate(("wq", "wk", "wv"))}
    return made(nodes, inputs, ["y", "k", "v"], **weights)


def feeds_of_images(n: int, h: int, w: int, seed: int = 0) -> Feeds:
    return {"x": drawn(n, 3, h, w, seed=seed)}


def feeds_of_decoder(b: int, s: int, past: int, seed: int = 0) -> Feeds:
    held = {n: drawn(b, past, 48, seed=seed + k) for k, n in enumerate(("past_k", "past_v"), 1)}
    return {"x": drawn(b, s, 48, seed=seed), **held}


MODELS: dict[str, tuple[Callable[[], bytes], Callable[..., Feeds], tuple[int, ...]]] = {
    "images": (images, feeds_of_images, (1, 17, 30)),
    "decoder": (decoder, feeds_of_decoder, (2, 1, 13)),
}


@dataclass
class Own:
    """A build for some sizes alone, and how often it ran."""

    sizes: dict[str, int]
    program: Any
    calls: int = 0

    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        self.calls += 1
        found: list[Any] = self.program(arrays)
        return found


@pytest.fixture
def owns(monkeypatch: pytest.MonkeyPatch) -> list[Own]:
    """The builds made for some sizes alone, in their order."""
    found: list[Own] = []
    alone = CompiledModel._program_alone

    def noted(self: CompiledModel, sizes: Mapping[str, int], manners: Manners) -> Any:
        found.append(Own(dict(sizes), alone(self, sizes, manners)))
        return found[-1]

    monkeypatch.setattr(CompiledModel, "_program_alone", noted)
    return found


def compiled(data: bytes, **options: Any) -> CompiledModel:
    return clew.compile(data, **{"threads": 1, **options})


def close(found: Feeds, expected: Feeds) -> None:
    assert found.keys() == expected.keys()
    for name, wanted in expected.items():
        scale = float(np.abs(wanted).max(initial=1))
        assert found[name].shape == wanted.shape
        assert found[name].dtype == wanted.dtype
        np.testing.assert_allclose(found[name], wanted, rtol=1e-4, atol=2e-5 * scale)


def same(found: Feeds, expected: Feeds) -> None:
    assert found.keys() == expected.keys()
    for name, wanted in expected.items():
        np.testing.assert_array_equal(found[name], wanted)


def states(model: CompiledModel) -> list[str]:
    return [each.state for each in model.specialized]


def decided(model: CompiledModel, *feeds: Feeds, state: str = "in use") -> None:
    """Calls a model until builds of its own for some inputs are timed."""

    def call() -> None:
        for each in feeds:
            model.run(each)

    until(lambda: states(model) == [state] * len(feeds), call)


@pytest.mark.parametrize("how", ["made", "stored"])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_runs_its_own_build_at_sizes_met_often(
    name: str, how: str, owns: list[Own], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEW_CACHE_DIR", str(tmp_path))
    make, feeds, at = MODELS[name]
    plain = compiled(make(), specialize=False)
    plain.run(feeds(*at))
    model = compiled(make(), cache=how == "stored")
    assert model.from_cache == (how == "stored")
    seeds = iter(range(1 << 30))

    def call() -> None:  # with new values each time
        given = feeds(*at, seed=next(seeds))
        close(model.run(given), plain.run(given))

    until(lambda: states(model) == ["in use"], call)
    (own,) = owns
    before = own.calls
    for _ in range(5):
        call()
    assert own.calls == before + 5
    assert own.sizes == dict(model.specialized[0].sizes)
    assert set(own.sizes.values()) == set(at)
    assert model.builds_made == (how == "made")
    given = feeds(3, *at[1:])  # other sizes run the common build
    same(model.run(given), plain.run(given))
    assert own.calls == before + 5


def test_results_of_an_unspecialized_model_never_change(owns: list[Own]) -> None:
    make, feeds, at = MODELS["images"]
    model = compiled(make(), specialize=False)
    first = model.run(feeds(*at))
    for _ in range(20 * CALLS):
        same(model.run(feeds(*at)), first)
    assert model.specialized == ()
    assert owns == []


def test_a_dropped_build_leaves_the_results_of_the_common_one(
    owns: list[Own], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(specializing, "_WORTH", 0.0)
    make, feeds, at = MODELS["images"]
    model, given = compiled(make()), feeds(*at)
    first = model.run(given)
    decided(model, given, state="not faster")
    (own,) = owns
    before = own.calls
    for _ in range(20):
        same(model.run(given), first)
    assert own.calls == before
    assert model.specialized[0].remark.endswith(": not used")


def test_a_build_that_exceeds_a_budget_fails_alone(
    owns: list[Own], monkeypatch: pytest.MonkeyPatch
) -> None:
    make, feeds, at = MODELS["images"]

    def refuse(self: CompiledModel, sizes: Mapping[str, int], manners: Manners) -> Any:
        raise InputError("C140", f"too large: {dict(sizes)}")

    monkeypatch.setattr(CompiledModel, "_program_alone", refuse)
    model, given = compiled(make()), feeds(*at)
    first = model.run(given)
    decided(model, given, state="failed")
    for _ in range(10):
        same(model.run(given), first)
    remark = "n=1, h=17, w=30: its own build failed: error[C140] too large: "
    assert model.specialized[0].remark.startswith(remark)


def test_sizes_with_a_build_anyway_are_not_counted(owns: list[Own]) -> None:
    model = compiled(decoder(), cache=False)
    for _ in range(5 * CALLS):
        model.run(feeds_of_decoder(1, 1, 0))
    idle()
    assert model.specialized == ()
    assert owns == []
    some = feeds_of_decoder(1, 1, 3)
    decided(model, some)
    assert [own.sizes["past"] for own in owns] == [3]
    assert model.builds_made == 2


def test_calls_at_several_sizes_from_threads_while_builds_are_made(owns: list[Own]) -> None:
    plain = compiled(decoder(), specialize=False)
    model = compiled(decoder(), threads=2)
    sizes = [(1, 1, 7), (2, 1, 31), (1, 5, 16)]
    failures: list[BaseException] = []
    end = time.monotonic() + LIMIT_S

    def call(number: int) -> None:
        draw = random.Random(number)
        try:
            while states(model) != ["in use"] * len(sizes):
                assert time.monotonic() < end, model.specialized
                given = feeds_of_decoder(*draw.choice(sizes), seed=draw.randrange(1 << 30))
                close(model.run(given), plain.run(given))
                time.sleep(0.001)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=call, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(owns) == len(sizes)
    for at in sizes:
        given = feeds_of_decoder(*at, seed=5)
        close(model.run(given), plain.run(given))


def test_sessions(owns: list[Own]) -> None:
    state = {"past_k": "k", "past_v": "v"}
    model = compiled(decoder())
    ours, plain = (m.session(state) for m in (model, compiled(decoder(), specialize=False)))
    seeds = iter(range(1 << 30))

    def generate() -> None:
        ours.reset()
        plain.reset()
        for _ in range(3):  # after 0, 1 and 2 tokens
            x = drawn(1, 1, 48, seed=next(seeds))
            close(ours.run(x), plain.run(x))
            close(dict(ours.state), dict(plain.state))

    until(lambda: states(model) == ["in use"] * 2, generate)
    assert sorted(own.sizes["past"] for own in owns) == [1, 2]
    before = [own.calls for own in owns]
    generate()
    assert [own.calls for own in owns] == [n + 1 for n in before]


@pytest.mark.parametrize("how", ["made", "stored"])
def test_a_model_that_is_dropped_frees_its_memory_at_once(
    how: str, owns: list[Own], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEW_CACHE_DIR", str(tmp_path))
    make, feeds, at = MODELS["images"]
    given = feeds(*at)
    if how == "stored":
        compiled(make()).run(given)
    model = compiled(make())
    assert model.from_cache == (how == "stored")
    decided(model, given)
    held = weakref.ref(model)
    idle()
    gc.disable()
    try:
        del model
        assert held() is None
        weights = weakref.ref(owns[0].program)
        owns.clear()
        assert weights() is None
    finally:
        gc.enable()


def test_a_model_dropped_while_its_job_waited(fake: Faked, owns: list[Own]) -> None:
    fake.gate.clear()
    fake.calls(CALLS)  # keeps the worker busy
    make, feeds, at = MODELS["images"]
    model = compiled(make())
    for _ in range(CALLS):
        model.run(feeds(*at))
    assert states(model) == ["building"]
    held = weakref.ref(model)
    del model
    gc.collect()
    assert held() is None
    fake.gate.set()
    idle()
    assert owns == []


@pytest.mark.parametrize("which", ["static", "fixed", "loaded"])
def test_models_with_nothing_to_specialize(
    which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[Any] = []
    monkeypatch.setattr(specializing._worker, "do", jobs.append)
    _, feeds, at = MODELS["images"]
    model: Any
    if which == "static":
        model = compiled(images(size=(at[0], 3, *at[1:])))
    elif which == "fixed":
        model = compiled(images(), sizes=dict(zip("nhw", at, strict=True)))
    else:
        compiled(images()).save(tmp_path / "model.clew")
        model = clew.load_compiled(tmp_path / "model.clew", threads=1)
    first = model.run(feeds(*at))
    for _ in range(10 * CALLS):
        same(model.run(feeds(*at)), first)
    assert jobs == []
    assert getattr(model, "specialized", ()) == ()


def test_what_describes_a_model_describes_the_common_build(owns: list[Own], tmp_path: Path) -> None:
    make, feeds, at = MODELS["images"]
    told: list[str] = []
    seen: list[str] = []
    model = compiled(
        make(), cache=False, on_progress=told.append, instruments=[Seen(seen)], trace=True
    )
    given = feeds(*at)
    plain = compiled(make(), specialize=False).run(given)
    model.run(given)
    names, build, heard = [k.name for k in model.kernels], model.build, (len(told), len(seen))
    decided(model, given)
    assert (len(told), len(seen)) == heard != (0, 0)
    assert [k.name for k in model.kernels] == names
    assert model.build is build
    assert model.profile(given, repeats=1, roofline=False).kernels
    model.save(tmp_path / "model.clew")
    same(clew.load_compiled(tmp_path / "model.clew", threads=1).run(given), plain)


@dataclass
class Seen:
    """An instrument that notes passes."""

    names: list[str]

    def before_pass(self, name: str, module: Any) -> None:
        self.names.append(name)


def test_an_own_build_reads_the_weights_of_the_common_one(owns: list[Own]) -> None:
    make, feeds, at = MODELS["decoder"]
    model = compiled(make(), cache=False)
    decided(model, feeds(*at))
    assert model._sized is not None
    shared = [c for s in model._sized.build.segments for c in s.constants]
    own = [c for i in owns[0].program.instructions for c in i.segment.constants]
    large = [c for c in own if c.nbytes >= 4096]
    assert len(large) == 3
    for constant in large:
        assert any(np.shares_memory(constant, each) for each in shared)


SCRIPT = """
import atexit, sys, threading
import numpy as np

def report():  # registered first, called last
    print(model.specialized[0].state, specializing._worker._thread)

atexit.register(report)
import clew
from clew.build import specializing
from clew.compiled import CompiledModel

begun, pause = threading.Event(), threading.Event()
told = specializing.Manners.on_progress

def on_progress(self, text):
    begun.set()
    if sys.argv[2] == "at once":
        while not specializing._worker.is_stopping:
            pause.wait(0.01)
    told(self, text)

specializing.Manners.on_progress = on_progress
specializing._LEAST_S = CompiledModel._compile_seconds = 0.0
model = clew.compile(sys.argv[1], threads=1, cache=False)
for _ in range(specializing._FEWEST_CALLS):
    model(np.ones((1, 3, 9, 9), np.float32))
assert begun.wait(60)
print(model.specialized[0].state)
if sys.argv[2] != "at once":
    pause.wait(float(sys.argv[2]))
"""


@pytest.mark.parametrize("after", ["at once", "0.15"])
def test_a_process_ends_during_a_build(after: str, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(images())
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "model.onnx"), after]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    first, *last = done.stdout.split()
    assert first == "building"
    if after == "at once":
        assert last == ["building", "None"]
