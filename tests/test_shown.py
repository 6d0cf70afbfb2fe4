"""What prompts and notebooks show: a short line for everything that a user gets back."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import pytest

import clew
from clew.predict import Forecast, Predictor

# What a view of a model may be made of, and no user is handed to look at.
_PARTS = {
    "clew.ir.expr.Operator",  # protocols
    "clew.trace.kernels.KernelTrace",
    "clew.trace.queries.Node",
    "clew.trace.queries.PrintedStage",
}
_LONGEST = 600
EVIL = "<script>alert(1)</script>"
TEXT = f"""
clew 1
def @main(%x: f32[2, 8]) -> (f32[2, 8],) with outputs=["y"] {{
  %0 = exp(%x)  // "{EVIL}":Exp#0
  %1 = tanh(%0)  // act:Tanh#0
  %2 = (%1,)
  return %2
}}
"""
X = np.ones((2, 8), np.float32)


def _classes(hint: Any) -> Iterator[type]:
    for part in typing.get_args(hint):
        yield from _classes(part)
    if inspect.isclass(hint) and hint.__module__.startswith("clew"):
        yield hint


def _returned(found: Any) -> Iterator[type]:
    try:
        hints = typing.get_type_hints(found)
    except Exception:  # names that only type checkers import
        return
    yield from _classes(hints.get("return"))


def _members(cls: type) -> Iterator[type]:
    for name, member in inspect.getmembers(cls):
        if name.startswith("_"):
            continue
        if isinstance(member, (property, cached_property)):
            yield from _returned(getattr(member, "fget", None) or member.func)  # type: ignore[union-attr]
        elif inspect.isfunction(member):
            yield from _returned(member)
    try:
        fields = typing.get_type_hints(cls)
    except Exception:
        return
    for name, hint in fields.items():
        if not name.startswith("_"):
            yield from _classes(hint)


def _public() -> dict[str, type]:
    """Returns every class that public functions, methods and attributes give."""
    waiting: list[type] = [Forecast, Predictor]
    for name in clew.__all__:
        found = getattr(clew, name)
        waiting += [found] if inspect.isclass(found) else _returned(found)
    classes: dict[str, type] = {}
    while waiting:
        cls = waiting.pop()
        name = f"{cls.__module__}.{cls.__qualname__}"
        if name not in classes:
            classes[name] = cls
            waiting += _members(cls)
    return classes


def test_nothing_public_has_the_default_repr() -> None:
    classes = _public()
    assert len(classes) > 80
    plain = {n for n, c in classes.items() if c.__repr__ is object.__repr__}
    assert plain <= _PARTS


@pytest.fixture(scope="module")
def shown() -> list[Any]:
    module = clew.parse(TEXT)
    compiled = clew.compile(module, threads=1)
    profile = compiled.profile(X, repeats=1, sample=False, roofline=False)
    kernel = compiled.kernels[0]
    part = clew.extract(module, layers=["act"], inputs=X)
    partition = clew.partition(module, at=[EVIL], inputs=X)
    return [
        module, compiled, clew.edit(module), kernel, kernel.schedule, compiled.trace,
        compiled.trace.stages[0], compiled.trace.layer("act"), compiled.graph(), compiled.build,
        compiled.build.uses[0], compiled.build.program, compiled.build.segments[0], profile,
        profile.kernels[0], profile.layers[0], compiled.tap(["act"], X), compiled.options.target,
        compiled.inputs[0], clew.Inputs(module), kernel.traced, kernel.code, kernel.schedule.nest,
        clew.diff(compiled, compiled, X, time=False, reference=False), compiled.trace.verify(X),
        clew.bisect(module, X, runs=1, reduce=False, threads=1), part, part.check(), partition,
        partition.compile(threads=1), clew.check_op("nn.relu"),
    ]  # fmt: skip


def test_what_a_user_gets_back_is_shown_in_short(shown: list[Any]) -> None:
    for found in shown:
        text = repr(found)
        assert len(text) <= _LONGEST, text[:80]
        assert " object at 0x" not in text, text
        assert "\n" not in text, text


def test_html_escapes_what_a_model_calls_things(shown: list[Any]) -> None:
    count = 0
    for found in shown:
        make = getattr(found, "_repr_html_", None)
        if make is None:
            continue
        count += 1
        html = make()
        assert html.startswith("<div")
        assert "<script" not in html, type(found)
    assert count > 20


def test_a_compiled_model_says_what_it_takes_and_whether_it_is_built() -> None:
    text = "clew 1\ndef @main(%x: f32[n]) -> (f32[n],) with outputs=['y'] {\n  %0 = exp(%x)\n"
    text = text.replace("'", '"') + "  %1 = (%0,)\n  return %1\n}\n"
    model = clew.compile(clew.parse(text), threads=1, cache=False)
    assert repr(model) == (
        "<CompiledModel x float32[n] -> y, for cpu on 1 thread, not built for any sizes yet>"
    )
    model(np.ones(3, np.float32))
    assert "1 kernel>" in repr(model)
