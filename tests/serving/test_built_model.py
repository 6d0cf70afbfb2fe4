"""Compiled models: what dropping one frees, and what a file holds after failed calls."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from free_models import made
from onnx import helper

import clew
from clew.support.errors import ClewError

pytestmark = pytest.mark.usefixtures("shared_kernels")

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def rows(batch: int | str) -> bytes:
    """The softmax of a product, by rows."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Exp", ["p"], ["y"])]
    return made(nodes, {"x": [batch, 3]}, ["y"], w=np.ones((3, 4), np.float32))


LOOKS: dict[str, Callable[[clew.CompiledModel], Any]] = {
    "trace": lambda model: model.trace.verify(X),
    "tap": lambda model: model.tap("*", X),
    "forced tap": lambda model: model.tap(list(model.trace.layers), X, force=True),
    "graph": lambda model: model.graph(),
    "conversions": lambda model: model.conversions(),
    "page": lambda model: model._repr_html_(),
    "profile": lambda model: model.profile(X, repeats=1, warmup=0, sample=False, roofline=False),
    "times": lambda model: model.time_kernels(X, repeats=1),
}


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("batch", [2, "n"])
def test_a_dropped_model_is_freed_at_once_whatever_has_read_it(look: str, batch: int | str) -> None:
    model = clew.compile(rows(batch), threads=1)
    program = model.served(X).program
    LOOKS[look](model)
    gc.collect()
    gc.disable()
    try:
        held = weakref.ref(model), weakref.ref(program)
        del model, program
        assert [one() for one in held] == [None, None]
    finally:
        gc.enable()


def test_a_trace_verifies_after_its_model_is_dropped() -> None:
    trace = clew.compile(rows("n"), threads=1).trace
    assert trace.verify(X).ok
    assert trace.verify(X[:1]).ok
    with pytest.raises(ClewError, match="I042"):
        trace.verify(X[:, :2])


def test_builds_that_failed_calls_made_are_saved(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Shape", ["z"], ["s"]),
        helper.make_node("Reshape", ["x", "s"], ["y"]),
    ]
    model = clew.compile(made(nodes, {"x": None, "z": ["n", "m"]}, ["y"]), threads=1)
    with pytest.raises(ClewError, match="I044"):
        model.save(tmp_path / "model.clew")
    with pytest.raises(ClewError):
        model(np.ones(5, np.float32), X)
    assert model.builds_made == 1
    model.save(tmp_path / "model.clew")
    loaded = clew.load_compiled(tmp_path / "model.clew", threads=1)
    np.testing.assert_array_equal(loaded(X.reshape(6), X), X)
