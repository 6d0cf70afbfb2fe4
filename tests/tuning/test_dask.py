"""The same search on the workers of a scheduler, also when one of them is killed."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.dask_cluster import Cluster, running_cluster

import clew
from clew.ir.module import Module
from clew.predict.dataset import Wanted, collect
from clew.predict.table import read_table
from clew.records import Store
from clew.runner import DaskRunner, Failed
from clew.support.errors import InputError
from clew.tuning.workbench import SLOWER_ALONE

pytest.importorskip("distributed")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with running_cluster(tmp_path) as made:
        yield made


def test_a_search_survives_the_loss_of_a_worker(
    tmp_path: Path, module: Module, cluster: Cluster
) -> None:
    path, workers = tmp_path / "t.db", [cluster.worker(), cluster.worker()]
    runner = DaskRunner(cluster.address, 120)
    runner.client.wait_for_workers(2, timeout=120)
    numbers: dict[str, int] = runner.client.run(os.getpid)
    killed: list[int] = []
    ended = threading.Event()

    def kill() -> None:
        while not ended.is_set() and not killed:
            for worker, tasks in runner.client.processing().items():
                if any("_done" in str(task) for task in tasks) and numbers[worker] not in killed:
                    os.kill(numbers[worker], signal.SIGKILL)
                    killed.append(numbers[worker])
            time.sleep(0.02)

    watcher = threading.Thread(target=kill)

    def begin(text: str) -> None:
        if " trials: " in text and not watcher.ident:
            watcher.start()

    report = clew.tune(
        module, minutes=8, trials=40, database=path, threads=1, scheduler=cluster.address,
        on_progress=begin,
    )  # fmt: skip
    ended.set()
    watcher.join()
    runner.close()
    assert killed
    assert [w.wait(10) for w in workers if w.pid in killed] == [-signal.SIGKILL] * len(killed)
    assert report.tally is not None
    assert report.tally.trials >= 40
    with Store(path) as store:
        trials = store.trials()
    assert {t.state for t in trials} <= {"won", "lost", "undecided"}
    # Those without turns were slower alone, or had the code of another.
    assert all(
        t.pairs >= 5 or t.reason == SLOWER_ALONE or "the same code as" in t.reason for t in trials
    )


def test_work_that_ends_its_workers_fails_alone(cluster: Cluster) -> None:
    for _ in range(6):
        cluster.worker()
    runner = DaskRunner(cluster.address, 120)
    runner.client.wait_for_workers(6, timeout=120)
    end = "__import__('os').kill(__import__('os').getpid(), 9)"
    found: dict[str, Any] = dict(runner.run(eval, iter(["1 + 1", end, "2 * 5", "3 - 1"])))
    with pytest.raises(ZeroDivisionError):
        list(runner.run(eval, iter(["1 / 0"])))
    runner.close()
    assert isinstance(found.pop(end), Failed)
    assert found == {"1 + 1": 2, "2 * 5": 10, "3 - 1": 2}


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


def test_tables_are_measured_by_workers(tmp_path: Path, cluster: Cluster, file: Path) -> None:
    pytest.importorskip("pyarrow")
    cluster.worker()
    path = tmp_path / "table.parquet"
    runner = DaskRunner(cluster.address, 120)
    asked = Wanted(models=(file,), networks=1, seed=7, turns=1)
    found = collect(path, asked, runner=runner)
    again = collect(path, asked, runner=runner)
    runner.close()
    assert (found.networks, found.failed) == (2, [])
    assert (again.networks, again.skipped) == (0, 2)
    assert set(read_table(path).column("network").to_pylist()) == {file.stem, "small-7"}
