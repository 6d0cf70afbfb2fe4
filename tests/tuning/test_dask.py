"""The same search on the workers of a scheduler, also when one of them is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import clew
from clew.ir.module import Module
from clew.records import Store
from clew.runner import Failed
from clew.support.errors import InputError

pytest.importorskip("distributed")
cloudpickle = pytest.importorskip("cloudpickle")

from clew.runner.dask import DaskRunner  # noqa: E402


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
        import json

        return str(json.loads(self.file.read_text())["address"])


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    for process in reversed(made.processes):
        process.kill()
        process.wait()


def test_a_search_survives_the_loss_of_a_worker(
    tmp_path: Path, module: Module, cluster: Cluster
) -> None:
    path, workers = tmp_path / "t.db", [cluster.worker(), cluster.worker()]
    runner = DaskRunner(cluster.address, 120)
    runner.client.wait_for_workers(2, timeout=120)
    runner.close()
    killed = threading.Event()

    def kill(text: str) -> None:
        if " trials: " in text and not killed.is_set():
            workers[0].send_signal(signal.SIGKILL)
            killed.set()

    report = clew.tune(
        module, minutes=8, trials=14, database=path, threads=1, scheduler=cluster.address,
        on_progress=kill,
    )  # fmt: skip
    assert killed.is_set()
    assert workers[0].wait(10) == -signal.SIGKILL
    assert report.tally is not None
    assert report.tally.trials >= 14
    with Store(path) as store:
        trials = store.trials()
    assert {t.state for t in trials} <= {"won", "lost", "undecided"}
    assert all(t.pairs >= 5 for t in trials)


def _end(item: int) -> int:
    if item == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return item * 10


def test_work_that_ends_its_workers_fails_alone(cluster: Cluster) -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers have no tests
    for _ in range(6):
        cluster.worker()
    runner = DaskRunner(cluster.address, 120)
    runner.client.wait_for_workers(6, timeout=120)
    found: dict[int, Any] = dict(runner.run(_end, iter(range(4))))
    runner.close()
    assert isinstance(found.pop(2), Failed)
    assert found == {0: 0, 1: 10, 3: 30}


def test_workers_must_be_alike(cluster: Cluster) -> None:
    cluster.worker()
    runner = DaskRunner(cluster.address, 120)
    cluster.worker(CLEW_COMPILE_JOBS="1", PYTHONPATH=_other_clew(cluster.folder))
    runner.client.wait_for_workers(2, timeout=120)
    runner.close()
    with pytest.raises(InputError, match="differ in clew") as caught:
        DaskRunner(cluster.address, 120)
    assert caught.value.code == "I387"


def _other_clew(folder: Path) -> str:
    """Returns a search path with another version of clew."""
    import shutil

    source = Path(clew.__file__).parent
    shutil.copytree(source, folder / "other" / "clew", ignore=shutil.ignore_patterns("static"))
    changed = folder / "other" / "clew" / "schedules" / "space.py"
    changed.write_text(changed.read_text() + "\n# another version\n")
    return os.pathsep.join([str(folder / "other"), os.environ.get("PYTHONPATH", "")])


def test_an_address_where_nobody_answers_is_an_error(tmp_path: Path, module: Module) -> None:
    with pytest.raises(InputError) as caught:
        DaskRunner("tcp://127.0.0.1:1", wait_s=2)
    assert caught.value.code == "I387"
    assert caught.value.hint
