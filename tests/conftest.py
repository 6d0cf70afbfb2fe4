"""What all tests share: a disk cache of their own, and no event loop from elsewhere.

It also keeps what is not tested cheap: compiled Python files and garbage collection.
"""

from __future__ import annotations

import asyncio
import gc
import math
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from zlib import crc32

import pytest

# Several processes run the tests, and faults that tests plant in the compiler are in this one only.
os.environ.setdefault("CLEW_COMPILE_JOBS", "1")

# Before anything of clew is imported; processes that tests start inherit it.
CACHE = Path(__file__).parents[1] / ".cache" / "tests"
os.environ["CLEW_CACHE_DIR"] = str(CACHE)
os.environ["CLEW_TUNING"] = str(CACHE / "absent" / "tuning.db")  # no test makes the default file

# Tests start hundreds of processes that import clew, which takes twice the time from source. Where
# the environment forbids to keep compiled files (containers do), it is for these to be kept.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

from clew.machine.needs import check_machine, needs_of  # noqa: E402
from clew.machine.target import Target, target_of  # noqa: E402
from clew.runtime.cache import Cache  # noqa: E402
from clew.support.errors import ClewError  # noqa: E402
from clew.version import VERSION  # noqa: E402

# Collecting makes few cycles and some 400,000 objects that stay, which the collector would look
# through again and again, here and while tests run.
gc.disable()


# Slow tests do not run at each commit (`tools/sweeps.py`): of a parametrized test of many similar
# cases (shapes, dtypes, targets, seeds), the first case runs each time, and of the others one in so
# many; a test with fewer than `_MANY` cases runs at one commit in so many. Which ones rotates with
# the commit. The rest is marked exhaustive. Cases that are marked exhaustive where they are defined
# are left alone.
_MANY = 5
SWEEPS: dict[str, int] = tomllib.loads(
    Path(__file__).with_name("sweeps.toml").read_text(encoding="utf-8")
)["one_in"]

TURNS = 24
assert TURNS % math.lcm(*SWEEPS.values()) == 0


def turn_of(given: str | None, folder: Path) -> int:
    """Returns which cases of sweeps run, as a number below `TURNS`: the given one, or else one that
    changes with the commit of a folder's repository; without a repository, with clew's version.
    """
    if given is not None:
        if not given.isdecimal() or int(given) >= TURNS:
            raise pytest.UsageError(f"CLEW_SWEEP is {given!r}, expected a number below {TURNS}")
        return int(given)
    head = ["git", "-C", str(folder), "rev-parse", "--verify", "--quiet", "HEAD"]
    try:
        commit = subprocess.run(head, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:  # there is no git
        commit = ""
    return crc32((commit or VERSION).encode()) % TURNS


# Workers and processes that tests start inherit it, so a run keeps its turn when HEAD moves.
TURN = turn_of(os.environ.get("CLEW_SWEEP"), Path(__file__).parent)
os.environ["CLEW_SWEEP"] = str(TURN)
_REPLAY = f"sweeps: turn {TURN} of {TURNS}, which CLEW_SWEEP={TURN} replays"


def pytest_report_header() -> str:
    return _REPLAY


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if any(terminalreporter.getreports(outcome) for outcome in ("failed", "error")):
        terminalreporter.write_line(_REPLAY)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    tests = Path(__file__).parent
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if tests in item.path.parents:
            name = item.nodeid.partition("[")[0].partition("::")[2]
            file = item.path.relative_to(tests).as_posix()
            cases.setdefault(f"{file}::{name}", []).append(item)
    for test, similar in cases.items():
        many = len(similar) >= _MANY
        one_in = SWEEPS.get(test, SWEEPS.get(test.partition("::")[0], 1) if many else 1)
        if many and any(i.get_closest_marker("exhaustive") for i in similar):
            continue
        for item in similar[1:] if many else similar:
            if (crc32((item.name if many else test).encode()) - TURN) % one_in:
                item.add_marker(pytest.mark.exhaustive)


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000)  # most tests make graphs, of objects that live as long as the test
    gc.enable()


@pytest.fixture
def runs_here() -> Callable[[str | Target], None]:
    """Returns a function that skips the test if this machine cannot run code for a target."""

    def check(target: str | Target) -> None:
        found = target_of(target) if isinstance(target, str) else target
        try:
            check_machine(needs_of(found.triple, found.cpu, found.features))
        except ClewError as error:
            pytest.skip(error.message)

    return check


@pytest.fixture(autouse=True)
def _no_loop_from_elsewhere(request: pytest.FixtureRequest) -> Iterator[None]:
    """Playwright leaves its loop running in this thread between browser tests; to `asyncio.run` of
    another test that shares the process, the thread would look taken.
    """
    running = asyncio._get_running_loop()
    if running is None or "browser" in request.path.parts:
        yield
        return
    asyncio._set_running_loop(None)
    yield
    asyncio._set_running_loop(running)


class _KernelCache(Cache):
    """The tests' cache of kernels, but not of builds: for these, it is a cache without a folder."""

    def __init__(self) -> None:
        super().__init__(None)
        self._kernels = Cache(CACHE)

    def get(self, key: str) -> bytes | None:
        return self._kernels.get(key)

    def put(self, key: str, data: bytes) -> None:
        self._kernels.put(key, data)


@pytest.fixture
def shared_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models that are compiled with `cache=False` share their kernels with other tests. For tests
    that compile the same operators in many ways: passes, plans and calls are their own.
    """
    monkeypatch.setattr("clew.compiling.compile.Cache", lambda _: _KernelCache())
