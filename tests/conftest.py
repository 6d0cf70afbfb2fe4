"""What all tests share: a disk cache of their own, and no event loop from elsewhere.

It also keeps what is not tested cheap: compiled Python files and garbage collection.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Before anything of clew is imported; processes that tests start inherit it.
os.environ["CLEW_CACHE_DIR"] = str(Path(__file__).parents[1] / ".cache" / "tests")

# Tests start hundreds of processes that import clew, which takes twice the time from source. Where
# the environment forbids to keep compiled files (containers do), it is for these to be kept.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Collecting makes few cycles and some 400,000 objects that stay, which the collector would look
# through again and again, here and while tests run.
gc.disable()


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


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
