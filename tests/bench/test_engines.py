from __future__ import annotations

import zoo
from clew.bench.engines import Engine, engines
from clew.support.difference import relative_error


def test_an_engine_is_installed_when_all_its_modules_are() -> None:
    assert Engine("a", lambda *_: list, ("numpy",)).installed
    assert not Engine("a", lambda *_: list, ("numpy", "no_such_module")).installed


def test_engines_agree_on_a_small_network() -> None:
    path, feed = zoo.path("keyword_spotting"), zoo.inputs("keyword_spotting")
    known = [e for e in engines().values() if e.installed and "onnx" in e.reads]
    first, *others = [e.prepare(path, 1, "f32").run(feed) for e in known]
    assert others
    for values in others:
        assert max(map(relative_error, values, first)) < 1e-5
