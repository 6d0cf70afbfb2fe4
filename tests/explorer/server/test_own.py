"""What the page may choose of a build, and what is the command line's alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import clew
import zoo
from clew.backends.compile_options import CompileOptions
from clew.explorer.own import Own, check_extensions, compile_options, split_options
from clew.explorer.schema import Options
from clew.support.budgets import Budgets
from clew.support.errors import InputError

EXTENSION = """import clew

@clew.graph_pass()
def seen(module, context):
    return module
"""


def test_options_are_split_and_put_together(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    files = tuple(str(tmp_path / name) for name in ("mine.py", "b/mine.py"))
    a = CompileOptions(inputs={"x": (1, 2)}, sizes={"n": (1, 9)}, extend=files)
    a = a.changed(keep_f32=("x",), links="snapshot", place={"numpy": ["a", "b"]})
    steps = "fuse(outer='i', inner='j')"
    schedule = clew.schedule_for("k", steps=steps)
    b = CompileOptions(opt_level=1, extend=[*files[1:], schedule], cache=False)
    options, own = split_options([a, b])
    assert [o.extend for o in options] == [["mine.py", "mine.py (2)"], ["mine.py (2)"]]
    assert options[0].shapes == {"x": [1, 2]}
    assert (options[0].sizes, options[1].sizes) == ({"n": "1:9"}, {})
    assert (own.links, own.cache) == ("snapshot", True)
    assert options[0].place == ["numpy=a,b"]
    assert compile_options(options[0], own) == a
    # Whoever compiles replays the steps, which it does not trust.
    assert options[1].schedules == {"k": steps}
    assert compile_options(options[1], own) == b.changed(
        extend=files[1:], cache=True, links="snapshot"
    )
    with pytest.raises(InputError) as caught:
        check_extensions(Options(extend=[files[0]]), own)
    assert caught.value.code == "I342"
    assert files[0] in caught.value.message
    assert "mine.py (2)" in caught.value.hint


def test_a_page_has_the_names_and_defaults_of_compile() -> None:
    assert compile_options(Options(), Own(budgets={})) == CompileOptions()
    options, own = split_options([CompileOptions()])
    assert (options, own) == ([Options()], Own())


def test_workers_keep_to_the_budgets_of_the_command_line(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    budgets = {**vars(Budgets()), "nodes": 1}
    client = start(Path(zoo.path("if_branches")), own=Own(budgets=budgets))
    answer = client.get("api/a/overview")
    assert answer.status == 422
    assert answer.json["code"] == "M009"


def test_files_to_extend_with_are_offered_by_name(
    start: Callable[..., Any], tiny: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(EXTENSION)
    own = Own(extend={"mine.py": str(tmp_path / "mine.py")})
    client = start((tiny, Options(threads=1, extend=["mine.py"])), own=own)
    assert client.get("api/start").json["choices"]["extensions"] == ["mine.py"]
    assert "seen" in client.get("api/a/overview").json["passes"]
    options = {"threads": 1, "extend": ["mine.py"], "opt_level": 1}
    made = client.post("api/builds", {"model": "tiny.txt", "options": options})
    assert made.status == 201
    assert "seen" in client.get(f"api/{made.json['id']}/overview").json["passes"]
    for wrong in (str(tmp_path / "mine.py"), "../mine.py", ""):
        options = {"threads": 1, "extend": [wrong]}
        answer = client.post("api/builds", {"model": "tiny.txt", "options": options})
        assert (answer.status, answer.json["code"]) == (400, "I342")


def test_sizes_of_a_page_are_read_like_those_of_the_command_line(shared: Any) -> None:
    for text, code in (("1:2:3", "I315"), ("4", "I316")):
        options = {"threads": 1, "sizes": {"rows": text}}
        made = shared.post("api/builds", {"model": "tiny.txt", "options": options})
        assert made.status == 201
        answer = shared.get(f"api/{made.json['id']}/overview")
        assert (answer.status, answer.json["code"]) == (422, code)
        shared.request("DELETE", f"api/builds/{made.json['id']}")


@pytest.mark.parametrize(
    ("steps", "code"),
    [
        ("nonsense", "P020"),
        ("split(loop='relu.i0', factor=99999999999)", "I234"),
        ("vectorize(loop=" + "(" * 5000 + ")" * 5000 + ")", ""),
        ("\n".join(["fuse(outer='a', inner='b')"] * 400), "I237"),
        ("vectorize(loop='nobody')", ""),
    ],
)
def test_schedules_of_a_page_are_not_trusted(shared: Any, steps: str, code: str) -> None:
    options = {"threads": 1, "schedules": {"relu*": steps, "tanh*": steps}}
    made = shared.post("api/builds", {"model": "tiny.txt", "options": options})
    assert made.status == 201
    answer = shared.get(f"api/{made.json['id']}/overview")
    assert answer.status == 422
    assert answer.json["code"] == code or (not code and answer.json["code"] != "I221")
    shared.request("DELETE", f"api/builds/{made.json['id']}")
