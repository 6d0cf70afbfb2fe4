"""Every hostile file, and everything that may happen to a process: one coded error or a right
result, in seconds and megabytes.

`python -m hostile.nursery` (with `tools` on the path) runs all cases, those too that take seconds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hostile import processes
from hostile.cases import ALL
from hostile.catalog import Case
from hostile.nursery import MOST_MB, Ending

ROOT = Path(__file__).parents[2]
FILES = [case for case in ALL if not case.slow]


def endings_of(cache: Path, *options: str) -> dict[str, Any]:
    """How each case ended, run in processes forked from one that has nothing but clew."""
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tools")])
    environment = {**os.environ, "PYTHONPATH": paths, "CLEW_CACHE_DIR": str(cache)}
    environment["CLEW_COMPILE_JOBS"] = "1"
    done = subprocess.run(
        [sys.executable, "-m", "hostile.nursery", "--quick", *options],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines, done.stderr[-2000:]
    return {line["name"]: line for line in lines}


def check(ending: dict[str, Any]) -> None:
    assert not ending["wrong"], ending["message"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return endings_of(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def happenings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return endings_of(tmp_path_factory.mktemp("cache"), "--processes")


def names(cases: list[Case]) -> list[str]:
    return [case.name for case in cases if not case.slow]


def test_what_is_wrong_with_an_end() -> None:
    def said(kind: str, code: str = "", peak_mb: int = 1, expected: tuple[str, ...] = ()) -> bool:
        return bool(Ending("case", kind, code, "", 0.1, peak_mb).complaint(expected))

    assert not said("ok")
    assert not said("coded", "M005")
    assert not said("coded", "M005", expected=("ok", "M005"))
    assert not said("coded", "C002", expected=("C002",))
    assert said("coded", "C080")
    assert said("coded", "M005", expected=("ok",))
    assert said("ok", expected=("M005",))
    assert said("ok", peak_mb=MOST_MB)
    assert said("crash", expected=("ok",))


@pytest.mark.parametrize("name", names(ALL))
def test_hostile_file(files: dict[str, Any], name: str) -> None:
    check(files[name])


@pytest.mark.parametrize("name", names(processes.ALL))
def test_process(happenings: dict[str, Any], name: str) -> None:
    check(happenings[name])
