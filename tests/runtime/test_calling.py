"""One way in for the inputs of a run: arrays in order, a mapping, keywords."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clew
from clew.support.errors import ClewError, InputError

TEXT = """
clew 1
def @main(
  %x: f32[n, 4],  // input x
  %y: f32[n, 4]  // input y
) -> (f32[n, 4],) with outputs=["z"] {
  %0 = subtract(%x, %y)  // difference:Sub#0
  %1 = nn.relu(%0)  // act:Relu#0
  %2 = (%1,)
  return %2
}
"""
X = np.arange(12, dtype=np.float32).reshape(3, 4)
Y = np.full((3, 4), 5, np.float32)
WANTED = np.maximum(X - Y, 0)
QUICK: dict[str, Any] = {"repeats": 1, "sample": False, "roofline": False}


@pytest.fixture(scope="module")
def compiled() -> clew.CompiledModel:
    return clew.compile(clew.parse(TEXT), threads=1)


@pytest.fixture(scope="module")
def loaded(compiled: clew.CompiledModel, tmp_path_factory: Any) -> clew.LoadedModel:
    path: Path = tmp_path_factory.mktemp("saved") / "model.clew"
    compiled(X, Y)
    compiled.save(path)
    return clew.load_compiled(path, 1)


WAYS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "in order": ((X, Y), {}),
    "by name": (({"y": Y, "x": X},), {}),
    "as keywords": ((), {"y": Y, "x": X}),
    "both": ((X,), {"y": Y}),
    "a mapping and keywords": (({"x": X},), {"y": Y}),
    "lists": ((X.tolist(), Y.astype(np.float32)), {}),
}


@pytest.mark.parametrize("way", [w for w in WAYS if w != "lists"])
@pytest.mark.parametrize("which", ["compiled", "loaded"])
def test_every_call_takes_inputs_in_every_way(way: str, which: str, request: Any) -> None:
    model = request.getfixturevalue(which)
    args, named = WAYS[way]
    np.testing.assert_array_equal(model(*args, **named), WANTED)
    np.testing.assert_array_equal(model.run(*args, **named)["z"], WANTED)
    assert model.time_kernels(*args, repeats=1, **named)
    assert model.profile(*args, **QUICK, **named).kernels
    if which == "compiled":
        np.testing.assert_array_equal(model.tap("act", *args, **named), WANTED)
        assert model.trace.verify(*args, **named).ok


@pytest.mark.parametrize("inputs", [(X, Y), [X, Y], {"x": X, "y": Y}], ids=type)
def test_one_argument_holds_inputs_by_name_or_in_order(inputs: Any, tmp_path: Path) -> None:
    module = clew.parse(TEXT)
    model = clew.compile(module, threads=1)
    assert model.build_for(inputs).uses
    assert clew.bisect(module, inputs, runs=1, reduce=False, threads=1).kind == "none"
    report = clew.diff(model, model, inputs, time=False, reference=False)
    assert report.summary.error is not None
    assert report.summary.error.worst == 0
    part = clew.extract(module, start="difference", inputs=inputs)
    np.testing.assert_array_equal(part.inputs["x"], X)
    run = clew.partition(module, at=["difference"], inputs=inputs).compile(threads=1)
    np.testing.assert_array_equal(run(X, Y), WANTED)
    np.testing.assert_array_equal(run.run(y=Y, x=X)["z"], WANTED)


Call = Callable[[clew.CompiledModel], Any]
WRONG: dict[str, tuple[Call, str, str, str]] = {
    "few": (lambda m: m(X), "I040", "1 inputs given, but the model has 2", "inputs are x, y"),
    "many": (
        lambda m: m(X, Y, X),
        "I040",
        "3 inputs given, but the model has 2",
        "inputs are x, y",
    ),
    "none": (lambda m: m(), "I040", "0 inputs given, but the model has 2", "inputs are x, y"),
    "missing": (lambda m: m({"x": X}), "I041", "missing y", "inputs are x, y"),
    "unknown": (lambda m: m(X, Y=Y), "I041", "missing y; unknown Y", "did you mean y?"),
    "option": (lambda m: m.profile(X, Y, repeat=3), "I041", "unknown repeat", "mean repeats?"),
    "twice": (lambda m: m(X, Y, x=X), "I300", "input x is given twice", "inputs are x, y"),
    "mixed": (lambda m: m({"x": X}, Y), "I301", "a mapping of inputs and other", "one mapping"),
    "repeats": (lambda m: m.time_kernels(X, Y, repeats=0), "I302", "repeats is 0", "at least 1"),
    "run": (lambda m: m.run(X), "I040", "1 inputs given", "inputs are x, y"),
    "verify": (lambda m: m.trace.verify(z=X), "I041", "unknown z", "inputs are x, y"),
    "sequence": (lambda m: clew.diff(m, m, [X]), "I040", "1 inputs given", "inputs are x, y"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_with_inputs_is_said(case: str, compiled: clew.CompiledModel) -> None:
    call, code, message, hint = WRONG[case]
    compiled(X, Y)
    with pytest.raises(InputError) as caught:
        call(compiled)
    assert caught.value.code == code
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_the_value_of_an_input_may_be_a_mapping() -> None:
    text = """
clew 1
def @main(%scores: map<i64, f32[]>) -> (f32[2],) with outputs=["y"] {
  %0 = map.cast(%scores, dtype="f32", length=2)  // cast:CastMap#0
  %1 = (%0,)
  return %1
}
"""
    model = clew.compile(clew.parse(text), threads=1)
    value = {0: np.float32(1), 1: np.float32(2)}
    for given in (value, {"scores": value}):
        np.testing.assert_array_equal(model(given), [1, 2])


# --- drawn inputs ---


def test_unknown_sizes_are_asked_for_at_once() -> None:
    text = """
clew 1
def @main(
  %x: f32[batch, n],  // input x
  %y: f32[n, batch],  // input y
  %z: f32[batch, later, 3]  // input z
) -> (f32[batch, n], f32[n, batch], f32[batch, later, 3]) with outputs=["a", "b", "c"] {
  %0 = (%x, %y, %z)
  return %0
}
"""
    with pytest.raises(InputError, match="I061") as caught:
        clew.compile(clew.parse(text), threads=1).drawn()
    assert "inputs={'x': [1, 1], 'z': [1, 1, 3]} of clew.load" in str(caught.value)


def test_drawn_inputs_have_the_sizes_of_the_last_run() -> None:
    model = clew.compile(clew.parse(TEXT), threads=1)
    with pytest.raises(InputError, match="I061"):
        model.time_kernels()
    model(X, Y)
    assert [a.shape for a in model.drawn()] == [(3, 4), (3, 4)]
    assert model.time_kernels(repeats=1)
    assert model.profile(**QUICK).kernels
    model(X[:2], Y[:2])
    assert [a.shape for a in model.drawn()] == [(2, 4), (2, 4)]
    assert [a.shape for a in model.drawn(shapes={"y": (7, 4)})] == [(7, 4), (7, 4)]
    assert model.drawn({"x": X})[0] is X
    with pytest.raises(InputError, match="shapes gives input 'x' the shape") as caught:
        model.drawn(shapes={"x": (7, 5)})
    assert caught.value.code == "I303"
    assert "[n, 4]" in caught.value.message


def test_a_saved_model_draws_at_its_last_sizes(loaded: clew.LoadedModel) -> None:
    loaded(X, Y)
    assert [a.shape for a in loaded.drawn()] == [(3, 4), (3, 4)]


def test_hints_are_in_the_words_of_each_surface() -> None:
    model = clew.compile(clew.parse(TEXT), threads=1)
    with pytest.raises(InputError) as caught:
        model.drawn()
    assert "inputs={'x': [1, 4]}" in caught.value.text()
    assert "--shape x=1,4" in caught.value.text("cli")
    assert "--shape" not in caught.value.text()
    assert "input shapes x=1x4" in caught.value.text("page")


def test_an_error_of_a_build_names_the_inputs_it_was_made_for() -> None:
    text = """
clew 1
def @main(%x: f32[n]) -> (f32[2, 3],) with outputs=["y"] {
  %0 = reshape(%x, shape=[2, 3])  // shaped:Reshape#0
  %1 = (%0,)
  return %1
}
"""
    with pytest.raises(ClewError) as caught:
        clew.compile(clew.parse(text), threads=1)(np.ones(5, np.float32))
    assert "given: x [5] (declared [n])" in str(caught.value)
    assert caught.value.layer == "shaped"
