"""pytest runs all tests: by default, it leaves out folders that are named `build` or `dist`, and
`make test` leaves out other cases of sweeps at each commit.
"""

from __future__ import annotations

import os
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from zlib import crc32

import pytest

import clew

TESTS = Path(__file__).parents[1]
SWEPT = TESTS / "ir" / "test_dim_code.py"
"""A file of which some cases run at each commit."""


def test_no_folder_of_tests_is_left_out(pytestconfig: pytest.Config) -> None:
    left_out = pytestconfig.getini("norecursedirs")
    folders = {part for p in TESTS.rglob("test_*.py") for part in p.relative_to(TESTS).parts[:-1]}
    assert "build" in folders
    assert [f for f in folders if any(fnmatch(f, pattern) for pattern in left_out)] == []


def collected(*options: str, sweep: str | None = None) -> tuple[set[str], str]:
    """Returns the tests of one file of sweeps that pytest would run, and its whole output."""
    environment = {k: v for k, v in os.environ.items() if k != "CLEW_SWEEP"}
    if sweep is not None:
        environment["CLEW_SWEEP"] = sweep
    command = [sys.executable, "-m", "pytest", "--collect-only", *options, str(SWEPT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    lines = done.stdout.splitlines()
    return {line for line in lines if "::" in line}, done.stdout + done.stderr


def test_every_case_of_a_sweep_runs_in_some_turn() -> None:
    every, _ = collected("-q")
    turns = [collected("-q", "-m", "not exhaustive", sweep=str(n))[0] for n in range(4)]
    assert set.union(*turns) == every
    assert all(1 < len(turn) < len(every) for turn in turns)
    assert len({frozenset(turn) for turn in turns}) > 1


def test_a_run_says_what_replays_it() -> None:
    def header(output: str) -> str:
        return next(line for line in output.splitlines() if line.startswith("sweeps: "))

    _, given = collected(sweep="3")
    assert header(given) == "sweeps: turn 3 of 24, which CLEW_SWEEP=3 replays"
    _, of_the_commit = collected()
    assert header(of_the_commit) == header(collected()[1])
    _, wrong = collected(sweep="24")
    assert "CLEW_SWEEP is '24', expected a number below 24" in wrong


def test_turns_rotate_with_the_commit(
    tmp_path: Path, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    conftest = next(p for p in pytestconfig.pluginmanager.get_plugins() if hasattr(p, "turn_of"))
    for variable in [name for name in os.environ if name.startswith("GIT_")]:  # of a git hook
        monkeypatch.delenv(variable)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))

    def git(*options: str) -> None:
        settings = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        subprocess.run(["git", "-C", str(tmp_path), *settings, *options], check=True)

    def turn() -> int:
        return int(conftest.turn_of(None, tmp_path))

    assert turn() == turn() == crc32(clew.__version__.encode()) % conftest.TURNS
    git("init", "--quiet")
    found = set()
    for n in range(8):
        git("commit", "--quiet", "--allow-empty", "--message", str(n))
        found.add(turn())
    assert len(found) > 1
    assert conftest.turn_of("7", tmp_path) == 7
