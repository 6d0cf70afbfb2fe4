"""Imports on first use: forks wait for them, and import statements do not."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

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
