"""Builds for sizes met often, of whole models."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from free_models import decoder, drawn, feeds_of_decoder, made
from often_builds import CALLS, LIMIT_S, Faked, Feeds, idle, until
from onnx import helper

import clew
from clew.api.compiled_model import CompiledModel
from clew.runtime.ownership import NOTHING_HELD, Held
from clew.serving import often
from clew.serving.all_sizes import AllSizes
from clew.serving.often import Manners
from clew.support.errors import InputError

pytestmark = pytest.mark.usefixtures("soon", "shared_kernels")


def images(
    *, size: Sequence[Any] = ("n", 3, "h", "w"), channels: tuple[int, int] = (16, 8)
) -> bytes:
    """Two convolutions of images of any size; with enough channels, one is computed in tiles."""
    inner, outer = channels
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["c0"], strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c0"], ["r0"]),
        helper.make_node("Conv", ["r0", "w1"], ["y"], pads=[1, 1, 1, 1]),
    ]
    weights = {"w0": drawn(inner, 3, 3, 3) / 5, "w1": drawn(outer, inner, 3, 3) / 17}
    return made(nodes, {"x": list(size)}, ["y"], **weights)


def feeds_of_images(n: int, h: int, w: int, seed: int = 0) -> Feeds:
    return {"x": drawn(n, 3, h, w, seed=seed)}


MODELS: dict[str, tuple[Callable[[], bytes], Callable[..., Feeds], tuple[int, ...]]] = {
    "images": (images, feeds_of_images, (1, 17, 30)),
    "tiles": (lambda: images(channels=(32, 16)), feeds_of_images, (1, 17, 30)),
    "decoder": (decoder, feeds_of_decoder, (2, 1, 13)),
}


@dataclass
class Own:
    """A build for some sizes alone, and how often it ran."""

    sizes: dict[str, int]
    program: Any
    calls: int = 0
    # It has no form that would run without a count.
    instructions: tuple[Any, ...] = ()
    whole: None = None

    def __call__(self, arrays: Sequence[Any], held: Held = NOTHING_HELD) -> list[Any]:
        self.calls += 1
        found: list[Any] = self.program(arrays, held)
        return found


@pytest.fixture
def owns(monkeypatch: pytest.MonkeyPatch) -> list[Own]:
    """The builds made for some sizes alone, in their order."""
    found: list[Own] = []
    alone = AllSizes.program_alone

    def noted(self: AllSizes, sizes: Mapping[str, int], manners: Manners) -> Any:
        found.append(Own(dict(sizes), alone(self, sizes, manners)))
        return found[-1]

    monkeypatch.setattr(AllSizes, "program_alone", noted)
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


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("tiles", "made"), ("images", "stored"), ("decoder", "made"), ("decoder", "stored"),
        # The same for other kernels.
        pytest.param("tiles", "stored", marks=pytest.mark.exhaustive),
        pytest.param("images", "made", marks=pytest.mark.exhaustive),
    ],
)  # fmt: skip
def test_a_model_runs_its_own_build_at_sizes_met_often(
    name: str, how: str, owns: list[Own], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEW_CACHE_DIR", str(tmp_path))
    make, feeds, at = MODELS[name]
    plain = compiled(make(), sizes=clew.Sizes(specialize=False))
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
    model = compiled(make(), sizes=clew.Sizes(specialize=False))
    first = model.run(feeds(*at))
    for _ in range(20 * CALLS):
        same(model.run(feeds(*at)), first)
    assert model.specialized == ()
    assert owns == []


def test_a_dropped_build_leaves_the_results_of_the_common_one(
    owns: list[Own], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(often, "_WORTH", 0.0)
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

    def refuse(self: AllSizes, sizes: Mapping[str, int], manners: Manners) -> Any:
        raise InputError("C140", f"too large: {dict(sizes)}")

    monkeypatch.setattr(AllSizes, "program_alone", refuse)
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
    plain = compiled(decoder(), sizes=clew.Sizes(specialize=False))
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


def test_sessions_whose_states_grow_have_no_builds_of_their_own(owns: list[Own]) -> None:
    """One program serves all lengths: states lie in buffers of another size."""
    state = {"past_k": "k", "past_v": "v"}
    model = compiled(decoder())
    ours, plain = (
        m.session(state) for m in (model, compiled(decoder(), sizes=clew.Sizes(specialize=False)))
    )
    seeds = iter(range(1 << 30))

    def generate() -> None:
        ours.reset()
        plain.reset()
        for _ in range(3):  # after 0, 1 and 2 tokens
            x = drawn(1, 1, 48, seed=next(seeds))
            close(ours.run(x), plain.run(x))
            close(dict(ours.state), dict(plain.state))

    for _ in range(2 * CALLS):
        generate()
    assert states(model) == []
    assert owns == []


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
    monkeypatch.setattr(often._worker, "do", jobs.append)
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
        make(),
        cache=False,
        on_progress=told.append,
        passes=clew.Passes(instruments=[Seen(seen)]),
        diagnostics=clew.Diagnostics(trace=True),
    )
    given = feeds(*at)
    plain = compiled(make(), sizes=clew.Sizes(specialize=False)).run(given)
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
    assert model._chain.all_sizes is not None
    shared = [c for s in model._chain.all_sizes.sized.build.segments for c in s.constants]
    own = [c for i in owns[0].program.instructions for c in i.segment.constants]
    large = [c for c in own if c.nbytes >= 4096]
    assert len(large) == 3
    for constant in large:
        assert any(np.shares_memory(constant, each) for each in shared)


SCRIPT = """
import atexit, sys, threading
import numpy as np

def report():  # registered first, called last
    print(model.specialized[0].state, often._worker.thread)

atexit.register(report)
import clew
from clew.serving import often
from clew.serving.all_sizes import AllSizes

begun, pause = threading.Event(), threading.Event()
told = often.Manners.on_progress

def on_progress(self, text):
    begun.set()
    if sys.argv[2] == "at once":
        while not often._worker.is_stopping:
            pause.wait(0.01)
    told(self, text)

often.Manners.on_progress = on_progress
often._LEAST_S = AllSizes._compile_seconds = 0.0
model = clew.compile(sys.argv[1], threads=1, cache=False)
for _ in range(often._FEWEST_CALLS):
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
