"""Tells which times were taken while nothing else used the core.

Other programs share a machine, and often the core itself (its other hardware thread), for some tens
of milliseconds at a time: equal code then takes up to one and a half times as long. A sentinel
tells whether a measurement began and ended in an undisturbed period, and the operating system
whether the thread was interrupted meanwhile.
"""

from __future__ import annotations

import resource
import time
from typing import Final

from clew.machine.probes.sentinel import Sentinel

_MOST_WAIT_S: Final = 0.2
# Waits in vain, one after another, before all times count for a while.
_PATIENCE: Final = 15
_DISTURBED_S: Final = 10.0


class Quiet:
    """Tells which times were taken on an undisturbed core. Where the core is always disturbed,
    waiting is in vain: all times count then, and it looks again after a while.
    """

    def __init__(self, sentinel: Sentinel) -> None:
        self._sentinel = sentinel
        self._in_vain = 0
        self._trusts_all_until = 0.0
        self._interruptions = _interruptions()

    @property
    def trusts_all(self) -> bool:
        """Whether all times count now."""
        return time.perf_counter() < self._trusts_all_until

    def begin(self) -> bool:
        """Waits for an undisturbed moment, but not for long; returns whether it came."""
        if self.trusts_all:
            return True
        found = self._sentinel.wait(_MOST_WAIT_S)
        self._interruptions = _interruptions()
        if found:
            self._in_vain = 0
            return True
        self._in_vain += 1
        if self._in_vain >= _PATIENCE:
            self._in_vain = 0
            self._trusts_all_until = time.perf_counter() + _DISTURBED_S
        return False

    def is_so(self) -> bool:
        """Whether the core is undisturbed now, and the thread was not interrupted since the last
        look.
        """
        if self.trusts_all:
            return True
        before, self._interruptions = self._interruptions, _interruptions()
        return before == self._interruptions and self._sentinel.undisturbed()


def _interruptions() -> int:
    """Returns how often the calling thread has lost its core to another."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


_shared: list[Quiet] = []


def quiet() -> Quiet:
    """Returns what watches the core of this process, made on first use; takes a second then."""
    if not _shared:
        _shared.append(Quiet(Sentinel()))
    return _shared[0]
