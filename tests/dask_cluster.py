"""A scheduler of Dask and its workers, for tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Cluster:
    """A scheduler and workers, each a process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "scheduler.json"
        self.processes: list[subprocess.Popen[bytes]] = []
        self._start("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard",
                    "--scheduler-file", str(self.file))  # fmt: skip
        ends = time.monotonic() + 120
        while not self.file.exists() and time.monotonic() < ends:
            time.sleep(0.1)

    def worker(self, **environment: str) -> subprocess.Popen[bytes]:
        return self._start(
            "worker", "--scheduler-file", str(self.file), "--nthreads", "1", "--no-nanny",
            "--no-dashboard", "--local-directory", str(self.folder), **environment,
        )  # fmt: skip

    def _start(self, what: str, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", f"distributed.cli.dask_{what}", *arguments]
        made = subprocess.Popen(
            command, env={**os.environ, "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "60s",
                          "PYTHONWARNINGS": "ignore", **environment},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=self.folder,
        )  # fmt: skip
        self.processes.append(made)
        return made

    @property
    def address(self) -> str:
        return str(json.loads(self.file.read_text())["address"])


@contextmanager
def running_cluster(folder: Path) -> Iterator[Cluster]:
    """Yields a scheduler, which ends with its workers."""
    made = Cluster(folder)
    try:
        yield made
    finally:
        for process in reversed(made.processes):
            process.kill()
            process.wait()
