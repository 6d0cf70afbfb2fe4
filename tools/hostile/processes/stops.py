"""Kills and interrupts at any time."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

from clew.runtime.cache import Cache, default_cache
from clew.runtime.container import read_container
from clew.support.errors import ClewError
from hostile.corpus import network
from hostile.processes.setting import IMAGE, ROUNDS, case, compiled, right, symbolic


@case()
def kills_while_compiling(folder: Path) -> None:
    draw = random.Random(7)
    kills = 0
    for _ in range(12 * ROUNDS):
        child = os.fork()
        if child == 0:
            os.setpgid(0, 0)
            with contextlib.suppress(BaseException):
                right()
                compiled(symbolic(), threads=1)(np.ones((3, 16), np.float32))
            os._exit(0)
        time.sleep(draw.random() * 0.6)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
            kills += 1
        os.waitpid(child, 0)
        right()
    cache = default_cache()
    assert cache.stats().damaged == 0
    assert _damaged(cache) == 0
    assert kills > 4


def _damaged(cache: Cache) -> int:
    """Returns how many of a cache's entries are not whole, by reading each as its reader does."""
    assert cache.root is not None
    count = 0
    for path in cache.root.glob("??/*"):
        data = path.read_bytes()
        if path.name.startswith(("writing-", ".clew-")):
            continue
        if data.startswith(b"clew-cache-1\n"):
            key = path.parent.name + path.name
            count += Cache(cache.root).get(key) is None
        else:
            try:
                read_container(path)
            except ClewError:
                count += 1
    return count


@case()
def interrupts_while_compiling(folder: Path) -> None:
    """Ctrl-C at any time leaves everything as usable as before."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupt)
    draw = random.Random(5)
    met = 0
    for _ in range(12 * ROUNDS):
        signal.setitimer(signal.ITIMER_REAL, 0.002 + draw.random() * 0.2)
        try:
            compiled(network(), threads=1, cache=False)(IMAGE)
        except KeyboardInterrupt:
            met += 1
        except ClewError as error:  # a pass that was interrupted says which
            assert isinstance(error.__cause__, KeyboardInterrupt), error
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        right(cache=False)
    assert met
