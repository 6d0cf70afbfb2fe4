"""Access to the machine: compilations run side by side, measurements run alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from clew.explorer.builds.jobs import Job


class Lanes:
    """Allows at most `width` compilations at a time, and none during a measurement."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._compiling = 0
        self._measuring = False
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def compiling(self, job: Job) -> AsyncIterator[None]:
        """Waits for permission to compile; the job reports the wait."""
        async with self._changed:
            if self._measuring or self._compiling >= self._width:
                job.say("waiting for other jobs", None)
            await self._changed.wait_for(
                lambda: not self._measuring and self._compiling < self._width
            )
            self._compiling += 1
        try:
            yield
        finally:
            self._compiling -= 1
            await self._tell()

    @asynccontextmanager
    async def measuring(self, job: Job) -> AsyncIterator[None]:
        """Waits for permission to measure, when nothing else computes."""
        async with self._changed:
            if self._measuring or self._compiling:
                job.say("waiting until the machine is free", None)
            await self._changed.wait_for(lambda: not self._measuring and not self._compiling)
            self._measuring = True
        try:
            yield
        finally:
            self._measuring = False
            await self._tell()

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()
