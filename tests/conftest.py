"""What all tests share: a disk cache of their own, and no event loop from elsewhere."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

# Before anything of clew is imported; processes that tests start inherit it.
os.environ["CLEW_CACHE_DIR"] = str(Path(__file__).parents[1] / ".cache" / "tests")


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
