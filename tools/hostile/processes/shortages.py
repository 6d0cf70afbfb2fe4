"""Too little memory, files or processes; a working folder that no longer exists."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path
from unittest import mock

import numpy as np

import clew
from hostile.catalog import model, node, value
from hostile.processes.setting import case, compiled, right, symbolic


@case("ok", "I267", "C001", "C002")
def little_memory(folder: Path) -> None:
    built = compiled(symbolic(), threads=1)
    built(np.ones((3, 16), np.float32))
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), hard))
    built(np.ones((1_000_000, 16), np.float32))


@case("ok", "M011", "C050", "C002", "C003")
def few_files(folder: Path) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (12, 12))
    right(cache=False)


@case()
def no_processes(folder: Path) -> None:
    with mock.patch("subprocess.Popen", side_effect=BlockingIOError(errno.EAGAIN, "no process")):
        right(cache=False)


@case()
def a_folder_that_is_gone(folder: Path) -> None:
    """The working folder is removed under the process."""
    gone = folder / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    right()


@case("ok", "I265", "C140")
def a_size_that_a_value_tells(folder: Path) -> None:
    made = model([node("ConstantOfShape", ["n"], ["y"])], inputs=[value("n", [1], 7)])
    clew.compile(made, threads=1)(np.array([1 << 50]))
