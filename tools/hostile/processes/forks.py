"""Forks while others run and build, and processes that share a cache."""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path

import numpy as np

from clew.runtime.cache import default_cache
from hostile.corpus import network
from hostile.processes.children import ended, forked, in_child
from hostile.processes.setting import IMAGE, ROUNDS, case, compiled, right, symbolic


@case()
def parent_and_child_run(folder: Path) -> None:
    built = compiled(network())
    wanted = built(IMAGE)

    def work() -> None:
        assert np.array_equal(built(IMAGE), wanted)
        other = compiled(symbolic(), cache=False)
        assert other(np.ones((3, 16), np.float32)).shape == (3, 24)

    for _ in range(3 * ROUNDS):
        in_child(work)
        assert np.array_equal(built(IMAGE), wanted)


@case()
def forks_while_threads_run(folder: Path) -> None:
    built = compiled(network())
    wanted = built(IMAGE)
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            assert np.array_equal(built(IMAGE), wanted)

    threads = [threading.Thread(target=busy) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(8 * ROUNDS):
            in_child(lambda: np.testing.assert_array_equal(built(IMAGE), wanted))
    finally:
        stop.set()
        for thread in threads:
            thread.join()


@case()
def forks_while_threads_build(folder: Path) -> None:
    """The child requests a size that another thread of the parent may be building."""
    built = compiled(symbolic())
    stop = threading.Event()
    sizes = iter(range(10, 100_000))

    def busy() -> None:
        while not stop.is_set():
            built(np.ones((next(sizes), 16), np.float32))

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        for n in range(1, 4 * ROUNDS + 1):
            time.sleep(0.02)
            in_child(partial(built, np.ones((n % 9 + 1, 16), np.float32)))
    finally:
        stop.set()
        thread.join()


@case()
def a_child_of_a_child(folder: Path) -> None:
    built = compiled(network())
    wanted = built(IMAGE)

    def inner() -> None:
        assert np.array_equal(built(IMAGE), wanted)

    in_child(lambda: in_child(inner))
    inner()


@case()
def processes_with_one_cache(folder: Path) -> None:
    for _ in range(2 * ROUNDS):
        default_cache().clear()
        children = [forked(right) for _ in range(3)]
        assert [ended(child, 60) for child in children] == [0, 0, 0]
        assert compiled(network(), threads=1).from_cache
