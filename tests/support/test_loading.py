"""Imports on first use: forks wait for them, and import statements do not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import clew
from clew.support.interrupts import held_interrupts
from clew.support.loading import LOADING


def test_a_fork_waits_for_imports() -> None:
    inside = threading.Event()
    done: list[bool] = []

    def load() -> None:
        with LOADING:
            inside.set()
            time.sleep(0.05)
            done.append(True)

    thread = threading.Thread(target=load)
    thread.start()
    inside.wait()
    child = os.fork()
    if child == 0:
        os._exit(0 if done else 1)
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with LOADING:
        pass


def test_an_import_statement_waits_for_no_other_import() -> None:
    """Its own module is locked meanwhile, and the other thread may be importing that one."""
    program = """
import threading
import clew
from clew.support.loading import LOADING

with LOADING:
    thread = threading.Thread(target=lambda: exec("from clew import ir"), daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
assert clew.ir.__name__ == "clew.ir"
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_an_interrupt_waits_until_modules_are_there() -> None:
    """Half a module would be imported again, and define again what it has defined."""
    done: list[str] = []

    def load() -> None:
        with LOADING, held_interrupts():
            signal.raise_signal(signal.SIGINT)
            done.append("imported")

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            load()
    finally:
        assert signal.signal(signal.SIGINT, before) is signal.default_int_handler
    assert done == ["imported"]


def test_all_imports_on_first_use_hold_interrupts() -> None:
    for file in Path(clew.__file__).parent.rglob("*.py"):
        assert "with LOADING:" not in file.read_text(encoding="utf-8"), file


def test_too_little_memory_for_an_import_is_a_coded_error() -> None:
    script = """
import resource, numpy, clew
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (2 << 20), -1))
try:
    clew.compile
except clew.ClewError as error:
    print(error.code, isinstance(error, MemoryError))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.split() == ["C160", "True"], done.stderr
