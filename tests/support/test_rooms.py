"""What modules call that stands above them: all of it is there, and nothing else."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import clew
from clew.support import rooms
from clew.support.rooms import LOADING


def _asked_for() -> set[str]:
    """Returns the names of functions that modules of clew ask for."""
    names = set()
    texts = (f.read_text(encoding="utf-8") for f in Path(clew.__file__).parent.rglob("*.py"))
    for text in (text for text in texts if "room" in text):
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.Call(func=ast.Name(id="room"), args=[ast.Constant(value=name)]):
                    names.add(name)
    return names


def test_what_is_given_is_what_is_asked_for() -> None:
    assert _asked_for() == set(rooms._LOADERS) != set()


@pytest.mark.parametrize("name", sorted(rooms._LOADERS))
def test_each_is_a_function_of_a_module_above(name: str) -> None:
    assert rooms.room(name).__module__.startswith("clew.")


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
from clew.support.rooms import LOADING

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

    def load() -> Any:
        signal.raise_signal(signal.SIGINT)
        return done.append("imported")

    rooms.give({"of_a_test": load})
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            rooms.room("of_a_test")
    finally:
        del rooms._LOADERS["of_a_test"]
        assert signal.signal(signal.SIGINT, before) is signal.default_int_handler
    assert done == ["imported"]
