"""Reports: all answers are in them, each once; the file asks nobody anything."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import clew
import zoo
from clew.cli.app import app
from clew.explorer import bundle
from clew.explorer.builds.compiling import open_session
from clew.explorer.contents import _Shared, gather, paths
from clew.explorer.report import report_html, write_report
from clew.explorer.routes import ROUTES, answer
from clew.explorer.schema import Options
from clew.explorer.session import Session
from clew.explorer.wire import to_plain
from clew.support.errors import ClewError, InputError

pytestmark = pytest.mark.skipif(not bundle.Bundle().is_built, reason="the page is not built")


def _say(*_: object) -> None:
    pass


@pytest.fixture(scope="module")
def session() -> Session:
    return open_session(Path(zoo.path("resnet_tiny")), "resnet <tiny>", Options(threads=1), _say)


@pytest.fixture(scope="module")
def text(session: Session) -> str:
    return report_html({"a": session}, None, _say)


def whole(value: Any, pieces: list[Any]) -> Any:
    """Returns a value with its pieces put in, as frontend/src/report.ts does it."""
    if isinstance(value, list):
        return [whole(v, pieces) for v in value]
    if not isinstance(value, dict):
        return value
    if list(value) != ["$"]:
        return {key: whole(v, pieces) for key, v in value.items()}
    if isinstance(value["$"], int):
        return whole(pieces[value["$"]], pieces)
    return {"$": whole(value["$"]["$"], pieces)}


def test_every_route_answers_in_the_report_what_it_answers_elsewhere(session: Session) -> None:
    held = gather({"a": session}, None, _say)
    asked = list(paths(session))
    # Values are of layers in loops, and details of regions of other backends, of which this model
    # has none: see views/test_values.py and views/test_region_details.py.
    names = {route.name for route in ROUTES} - {"values", "details"}
    assert {path.split("/")[0] for path in asked} == names
    assert list(held["answers"]) == ["start", *(f"a/{path}" for path in asked)]
    for path in asked:
        found = whole(held["answers"][f"a/{path}"], held["shared"])
        if "refused" in found:
            with pytest.raises(ClewError) as raised:
                answer(session, path)
            assert found["refused"]["code"] == raised.value.code
        else:
            assert found == json.loads(json.dumps(to_plain(answer(session, path)))), path


def test_equal_pieces_are_held_once() -> None:
    shared = _Shared()
    long = [f"line {n}" for n in range(40)]
    first, second = shared.kept({"lines": long, "at": 1}), shared.kept({"lines": list(long)})
    assert len(json.dumps(shared.pieces)) < 2 * len(json.dumps(long))
    assert whole(first, shared.pieces) == {"lines": long, "at": 1}
    assert whole(second, shared.pieces) == {"lines": long}


@pytest.mark.parametrize(
    "value", [{"$": 3}, {"$": {"$": [1]}}, {"$": 1, "b": 2}, [{"$": "x" * 90}]]
)
def test_values_that_look_like_pieces_stay_what_they_are(value: Any) -> None:
    shared = _Shared()
    kept = shared.kept(value)
    assert whole(json.loads(json.dumps(kept)), shared.pieces) == value


def test_the_file_runs_its_own_script_and_asks_nobody(text: str) -> None:
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    assert "default-src 'none'" in policy[1]
    assert "unsafe" not in policy[1]
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    styles = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    assert len(scripts) == len(styles) == 1
    for part in (*scripts, *styles):
        digest = base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy[1]
    head = text.replace(scripts[0], "").replace(styles[0], "")
    assert not re.findall(r"""(?:src|href)=["'](?!data:)""", head)
    assert "<title>resnet &lt;tiny&gt; – clew report</title>" in text


def test_equal_reports_are_equal_files(session: Session, text: str) -> None:
    assert report_html({"a": session}, None, _say) == text


def test_a_file_that_cannot_be_written(session: Session, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot write") as raised:
        write_report({"a": session}, tmp_path / "no" / "such" / "folder.html")
    assert raised.value.code == "I251"


def test_a_page_that_was_not_built(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle.Bundle, "get", lambda self, name: None)
    with pytest.raises(InputError) as raised:
        report_html({"a": session}, None, _say)
    assert raised.value.code == "I250"
    assert "build_explorer" in raised.value.hint


def test_the_command(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    model = str(zoo.path("resnet_tiny"))
    done = CliRunner().invoke(app, ["report", model, "-o", str(path), "--no-profile"])
    assert done.exit_code == 0, done.output
    packed = re.search(r'id="clew-report">([^<]*)<', path.read_text())
    assert packed is not None
    held = json.loads(gzip.decompress(base64.b64decode(packed[1])))
    start = whole(held["answers"]["start"], held["shared"])
    assert start["live"] is False
    assert [b["model"] for b in start["builds"]] == [Path(model).name]


def test_a_model_of_free_sizes_is_reported_at_shapes_inputs_or_its_last_run(
    tmp_path: Path,
) -> None:
    text = """
clew 1
def @main(%x: f32[n, 4]) -> (f32[n, 4],) with outputs=["y"] {
  %0 = exp(%x)  // power:Exp#0
  %1 = (%0,)
  return %1
}
"""

    def built(**options: Any) -> Any:
        model = clew.compile(clew.parse(text), threads=1)
        if options.pop("run_first", False):
            model(np.ones((5, 4), np.float32))
        model.report(tmp_path / "out.html", profile=False, **options)
        build = model.build
        return build.type_at(build.stages[-1].module.main.params[0].type)

    assert str(built(shapes={"x": (3, 4)})) == "f32[3, 4]"
    assert str(built(inputs={"x": np.ones((2, 4), np.float32)})) == "f32[2, 4]"
    assert str(built(inputs=np.ones((6, 4), np.float32))) == "f32[6, 4]"
    assert str(built(run_first=True)) == "f32[5, 4]"
    with pytest.raises(ClewError) as caught:
        built()
    assert caught.value.code == "I061"
