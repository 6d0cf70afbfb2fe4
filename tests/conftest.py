"""What all tests share: a disk cache of their own, and no event loop from elsewhere.

It also keeps what is not tested cheap: compiled Python files and garbage collection.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from zlib import crc32

import pytest

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

# Collecting makes few cycles and some 400,000 objects that stay, which the collector would look
# through again and again, here and while tests run.
gc.disable()


# Parametrized tests of many similar cases: half of the cases, always the same ones, are exhaustive;
# of `LONG_SWEEPS`, which take longer, three of four are. Each test keeps its first case, and tests
# some of whose cases are marked beside them are left alone.
SWEEPS = (
    "build/test_all_sizes.py",
    "build/test_in_place.py",
    "build/test_variants.py",
    "codegen/test_arith.py",
    "codegen/test_storage.py",
    "correlate/test_document.py",
    "frontends/onnx/test_nothing_found.py",
    "frontends/onnx/test_tree_ensembles.py",
    "loop/test_sequential.py",
    "loop/test_tails.py",
    "ops/test_native.py",
    "ops/test_suppression.py",
    "passes/test_every_pass.py",
    "tap/test_tap.py",
    "test_precision.py",
)
LONG_SWEEPS = (
    "codegen/test_conv_parts.py",
    "codegen/test_dot_convs.py",
    "codegen/test_moving.py",
    "codegen/test_parts.py",
    "codegen/test_separable.py",
    "loop/test_products.py",
    "ops/test_sorting.py",
    "test_no_elements.py",
    "test_random_operators.py",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    tests = Path(__file__).parent
    one_in = {tests / name: 2 for name in SWEEPS} | {tests / name: 4 for name in LONG_SWEEPS}
    cases: dict[tuple[Path, str], list[pytest.Item]] = {}
    for item in items:
        if item.path in one_in and hasattr(item, "callspec"):
            cases.setdefault((item.path, getattr(item, "originalname", "")), []).append(item)
    for (path, _), similar in cases.items():
        if not any(item.get_closest_marker("exhaustive") for item in similar):
            for item in similar[1:]:
                if crc32(item.name.encode()) % one_in[path]:
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
    monkeypatch.setattr("clew.compiler.Cache", lambda _: _KernelCache())
