from __future__ import annotations

from typing import Any

import pytest

import clew
import zoo
from clew.bench.engines import Engine, compile_options, engines
from clew.support.difference import relative_error
from clew.support.errors import InputError


def test_an_engine_is_installed_when_all_its_modules_are() -> None:
    assert Engine("a", lambda *_: list, ("numpy",)).installed
    assert not Engine("a", lambda *_: list, ("numpy", "no_such_module")).installed


def test_precision_is_passed_on_where_compile_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_at(model: Any, *, precision: str = "f32") -> None: ...

    def compile_plainly(model: Any) -> None: ...

    monkeypatch.setattr(clew, "compile", compile_at)
    assert compile_options("bf16") == {"precision": "bf16"}
    monkeypatch.setattr(clew, "compile", compile_plainly)
    assert compile_options("f32") == {}
    with pytest.raises(InputError, match=r"I066.*no precision 'bf16'"):
        compile_options("bf16")


def test_engines_agree_on_a_small_network() -> None:
    path, feed = zoo.path("keyword_spotting"), zoo.inputs("keyword_spotting")
    known = [e for e in engines().values() if e.installed]
    first, *others = [e.prepare(path, feed, 1, "f32")() for e in known]
    assert others
    for values in others:
        assert max(map(relative_error, values, first)) < 1e-5
