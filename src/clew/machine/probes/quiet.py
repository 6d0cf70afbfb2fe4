"""Tells which times were taken while nothing else used the core.

Other programs share a machine, and often the core itself (its other hardware thread), for some tens
of milliseconds at a time: equal code then takes up to 1.5 times as long. A sentinel tells whether a
measurement began and ended in an undisturbed period, and the operating system whether the thread
was interrupted meanwhile.
"""

from __future__ import annotations

import functools
import resource
import time
from typing import Final

from clew.machine.probes.sentinel import Sentinel

_MOST_WAIT_S: Final = 0.2
# Waits in vain, one after another, before it gives up for a while.
_PATIENCE: Final = 15
_GIVES_UP_S: Final = 10.0


class Quiet:
    """Tells which times were taken on an undisturbed core. Where the core is always disturbed, it
    gives up waiting for a while; if it is `lenient`, all times count then.
    """

    def __init__(self, sentinel: Sentinel, *, lenient: bool = True) -> None:
        self._sentinel = sentinel
        self._lenient = lenient
        self._in_vain = 0
        self._waits_again_at = 0.0
        self._interruptions = _interruptions()

    @property
    def _gave_up(self) -> bool:
        return time.perf_counter() < self._waits_again_at

    def begin(self) -> bool:
        """Waits for an undisturbed moment, but not for long; returns whether it came."""
        gave_up = self._gave_up
        if gave_up and self._lenient:
            return True
        found = self._sentinel.wait(0.0 if gave_up else _MOST_WAIT_S)
        self._interruptions = _interruptions()
        if found:
            self._in_vain = 0
            return True
        self._in_vain += not gave_up
        if self._in_vain >= _PATIENCE:
            self._in_vain = 0
            self._waits_again_at = time.perf_counter() + _GIVES_UP_S
        return False

    def is_so(self) -> bool:
        """Whether the core is undisturbed now, and the thread was not interrupted since the last
        look.
        """
        if self._lenient and self._gave_up:
            return True
        before, self._interruptions = self._interruptions, _interruptions()
        return before == self._interruptions and self._sentinel.undisturbed()


def _interruptions() -> int:
    """Returns how often the calling thread has lost its core to another."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


@functools.cache
def _sentinel() -> Sentinel:
    return Sentinel()


@functools.cache
def quiet(*, lenient: bool = True) -> Quiet:
    """Returns what watches the core of this process, made on first use; takes a second then."""
    return Quiet(_sentinel(), lenient=lenient)
