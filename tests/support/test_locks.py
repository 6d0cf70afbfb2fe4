"""Locks: Ctrl-C leaves none locked, and a forked child finds them free."""

from __future__ import annotations

import ast
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import clew
from clew.support.locks import Lock, Turn

_WORK = Path(__file__).parents[1] / "interrupted_work.py"
_SOURCE = Path(clew.__file__).parent
# The only waiting of threads for each other that is not a lock's.
_OTHERS = {
    "machine/probes/native_function.py": {"Barrier"},
    "server/engine.py": {"Condition"},  # of a server, which forks nothing
}


def is_free(lock: Lock, wait_s: float = 5) -> bool:
    """Whether another thread can take a lock within `wait_s`."""
    found: list[bool] = []

    def attempt() -> None:
        found.append(lock.acquire(timeout=wait_s))
        if found[0]:
            lock.release()

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()
    return found[0]


def interrupted(work: Callable[[], None], times: int) -> int:
    """Interrupts work at random; returns how often an interrupt arrived in it."""
    rng, armed, arrived = random.Random(0), False, 0

    def raises(number: int, frame: Any) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, raises)
    try:
        for _ in range(times):
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-6, 1e-4))
                end = time.perf_counter() + 0.1  # virtual machines lose timers
                # An interrupt in a callback of the collector has no effect.
                while armed and time.perf_counter() < end:
                    work()
            except KeyboardInterrupt:
                arrived += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    return arrived


def test_an_interrupt_leaves_no_lock_locked() -> None:
    lock, other = Lock(), Lock()

    def work() -> None:
        with lock, other:
            pass

    assert interrupted(work, 2000) > 1500
    assert is_free(lock)
    assert is_free(other)


def test_an_interrupt_ends_a_turn() -> None:
    turn = Turn()

    def work() -> None:
        holder = object()
        try:
            assert turn.begin(holder)
        finally:
            if 0 in turn.held and turn.held[0] is holder:
                del turn.held[0]

    assert interrupted(work, 2000) > 1500
    assert turn.holder is None


def test_a_turn_has_one_holder() -> None:
    turn, first, second = Turn(), object(), object()
    assert turn.begin(first)
    assert not turn.begin(second)
    del turn.held[0]
    assert turn.begin(second)


def in_child(check: Callable[[], bool]) -> bool:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if check() else 2
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


def test_a_child_finds_locks_of_other_threads_free() -> None:
    lock, turn, held, done = Lock(), Turn(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            turn.begin(object())
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        assert not lock.acquire(blocking=False)
        assert in_child(lambda: is_free(lock) and turn.begin(object()))
    finally:
        done.set()
        thread.join()
    assert is_free(lock)


def test_a_child_forked_inside_leaves_the_lock_as_usual() -> None:
    lock = Lock()
    with lock:
        assert in_child(lambda: not _leaves(lock))
        assert lock._is_owned()  # type: ignore[attr-defined]
    assert is_free(lock)


def _leaves(lock: Lock) -> bool:
    """Whether another thread may enter while the forking thread is inside, or not afterwards."""
    early = lock._is_owned() and is_free(lock, 0)  # type: ignore[attr-defined]
    lock.release()
    return early or not is_free(lock)


def test_all_locks_are_of_this_kind() -> None:
    """`threading`'s locks stay locked in a child; `acquire` and `release` can be interrupted."""
    kinds = {"Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore", "Barrier"}
    found = []
    for path in sorted(_SOURCE.rglob("*.py")):
        name = path.relative_to(_SOURCE).as_posix()
        text = path.read_text()
        if name == "support/locks.py" or not ("thread" in text or "acquire" in text):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.module in ("threading", "_thread"):
                found += [f"{name}: {a.name}" for a in node.names if a.name in kinds]
            if not isinstance(node, ast.Attribute):
                continue
            of = node.value.id if isinstance(node.value, ast.Name) else ""
            if of in ("threading", "_thread") and node.attr in kinds - _OTHERS.get(name, set()):
                found.append(f"{name}:{node.lineno}: {of}.{node.attr}")
            if node.attr == "acquire":
                found.append(f"{name}:{node.lineno}: acquire outside of a with statement")
    assert not found


def interrupts(kind: str, count: int) -> int:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(_WORK), kind, str(count)],
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return int(done.stdout)


@pytest.mark.parametrize("kind", ["calls", "session"])
def test_interrupted_work_works_again(kind: str) -> None:
    assert interrupts(kind, 200) > 50


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("kind", "count"),
    [
        ("calls", 2500),
        ("static", 1500),
        ("session", 2500),
        ("new sizes", 800),
        ("records", 1500),
        ("saves", 500),
        ("explores", 300),
        ("compiles", 300),
        ("serves", 60),
        ("tunes", 40),
    ],
)
def test_ten_thousand_interrupts(kind: str, count: int) -> None:
    assert interrupts(kind, count) > count // 4
