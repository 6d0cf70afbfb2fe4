import os
import re
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from handmade import OUTPUT, PARALLEL, code, library, ref, single, step

from clew.runtime.memory import plan_segment
from clew.runtime.plan import BufferSpec
from clew.runtime.segment import NativeSegment
from clew.runtime.threads import ThreadPool, shared_pool
from clew.support.locks import once
from clew.support.settings import usable_cpus


def marks(grid: int, repeats: int, pool: ThreadPool) -> np.ndarray:
    """Runs `mark` over a grid so many times, starting from zeros."""
    spec = BufferSpec("out", (grid,), "int32")
    kernel = code("mark", grid=grid, cost=PARALLEL)
    plan = plan_segment([step(kernel, ref(OUTPUT))] * repeats, [], [spec], [], [])
    out = np.zeros(grid, np.int32)
    NativeSegment(plan, library(), pool)([], [out])
    return out


@pytest.mark.parametrize(("text", "most"), [("max 100000", 99), ("150000 100000", 2), ("1 9", 1)])
def test_a_containers_share_of_the_cpus_counts(
    text: str, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quota = tmp_path / "cpu.max"
    quota.write_text(f"{text}\n")
    monkeypatch.setattr("clew.support.settings._CPU_QUOTA", quota)
    assert usable_cpus() == min(most, len(os.sched_getaffinity(0)))


@pytest.mark.parametrize("threads", [1, 2, 3, 4, 8])
def test_every_piece_of_work_is_done_once(threads: int) -> None:
    pool = ThreadPool(threads)
    for grid in (1, 2, 5, 16, 33, 1000):
        for _ in range(20):
            assert (marks(grid, 50, pool) == 50).all()
    pool.close()


def test_a_pool_shared_by_several_callers() -> None:
    pool = ThreadPool(3)
    wrong: list[int] = []

    def work() -> None:
        for _ in range(100):
            if not (marks(64, 20, pool) == 20).all():
                wrong.append(1)

    callers = [threading.Thread(target=work) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


def test_workers_take_part() -> None:
    """With chunks long enough for a sleeper to wake, more than one scratch slice is written."""
    kernel = code("slow", grid=64, cost=PARALLEL, scratch=64)
    plan = single(kernel, [], [BufferSpec("out", (64,), "float32")])
    segment = NativeSegment(plan, library(), ThreadPool(2))
    out = np.zeros(64, np.float32)
    deadline = time.monotonic() + 60  # on a busy machine it may be long before both have a core
    while True:
        segment([], [out])
        _, scratch, _ = segment._idle[-1][1]._owners  # type: ignore[misc]
        if scratch[64:72].view(np.int64)[0] > 0 and scratch[:8].view(np.int64)[0] > 0:
            break
        assert time.monotonic() < deadline, "the second thread never ran a chunk"
    assert out[0] == 1


def test_a_pool_of_one_has_no_workers() -> None:
    pool = ThreadPool(1)
    assert pool.address is None
    assert (marks(16, 3, pool) == 3).all()


def test_a_closed_pool_still_runs_serially() -> None:
    pool = ThreadPool(2)
    assert (marks(16, 3, pool) == 3).all()
    count = len(os.listdir("/proc/self/task"))
    pool.close()
    assert len(os.listdir("/proc/self/task")) == count - 1
    assert (marks(16, 3, pool) == 3).all()


def test_a_dropped_pool_ends_its_workers() -> None:
    before = set(os.listdir("/proc/self/task"))  # some of them may end meanwhile
    pool = ThreadPool(3)
    assert (marks(16, 3, pool) == 3).all()
    workers = set(os.listdir("/proc/self/task")) - before
    assert len(workers) == 2
    del pool
    assert not workers & set(os.listdir("/proc/self/task"))


def test_pools_are_shared_by_size() -> None:
    assert shared_pool(2) is shared_pool(2)
    assert shared_pool(2) is not shared_pool(3)


def test_workers_take_no_signals() -> None:
    before = set(os.listdir("/proc/self/task"))
    pool = ThreadPool(3)
    assert (marks(16, 3, pool) == 3).all()
    workers = set(os.listdir("/proc/self/task")) - before
    assert len(workers) == 2
    for worker in workers:
        status = Path(f"/proc/self/task/{worker}/status").read_text()
        (blocked,) = re.findall(r"^SigBlk:\s*(\w+)", status, re.MULTILINE)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGCHLD):
            assert int(blocked, 16) >> (number - 1) & 1
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())  # the caller's are as before


FORK = """
import os
import numpy as np
from handmade import *
from clew.runtime.segment import NativeSegment
from clew.runtime.threads import shared_pool
segment = NativeSegment(chain(512, 12), library(), shared_pool(3))
x = np.arange(512, dtype=np.float32)
def right():
    return all((segment([x, x])[0] == 2 * x + 11).all() for _ in range(50))
assert right()
for _ in range(5):
    child = os.fork()
    if child == 0:
        os._exit(0 if right() and len(os.listdir("/proc/self/task")) == 3 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert right()
"""


def test_a_forked_child_has_threads_of_its_own(run_python) -> None:  # type: ignore[no-untyped-def]
    result = run_python(FORK)
    assert result.returncode == 0, result.stderr


FORK_DURING_CALL = """
import os, threading
import numpy as np
from handmade import *
from clew.runtime.segment import NativeSegment
from clew.runtime.threads import shared_pool
segment = NativeSegment(chain(512, 40), library(), shared_pool(2))
x = np.arange(512, dtype=np.float32)
stop = threading.Event()
def work():
    while not stop.is_set():
        segment([x, x])
thread = threading.Thread(target=work)
thread.start()
for _ in range(10):
    child = os.fork()
    if child == 0:
        right = all((segment([x, x])[0] == 2 * x + 39).all() for _ in range(50))
        os._exit(0 if right else 1)
    assert os.waitpid(child, 0)[1] == 0
stop.set()
thread.join()
"""


def test_a_fork_while_another_thread_is_in_a_call(run_python) -> None:  # type: ignore[no-untyped-def]
    result = run_python(FORK_DURING_CALL)
    assert result.returncode == 0, result.stderr


EXITS = """
import os, sys, threading
import numpy as np
from handmade import *
from clew.runtime.segment import NativeSegment
from clew.runtime.threads import shared_pool
plan = chain(256, 30)
library()
for number in range(50):
    child = os.fork()
    if child == 0:
        segment = NativeSegment(plan, library(), shared_pool(3))
        x = np.arange(256, dtype=np.float32)
        assert (segment([x, x])[0] == 2 * x + 29).all()
        if number % 2:  # a daemon thread is in the middle of calls
            def work():
                while True:
                    segment([x, x])
            threading.Thread(target=work, daemon=True).start()
            segment([x, x])
        sys.exit(0)  # through the interpreter's whole shutdown
    status = os.waitpid(child, 0)[1]
    assert status == 0, (number, status)
"""


def test_processes_end_cleanly(run_python) -> None:  # type: ignore[no-untyped-def]
    result = run_python(EXITS)
    assert result.returncode == 0, result.stderr


def test_threads_that_ask_at_once_get_the_same() -> None:
    """Of two drivers that threads made at once one was freed, and its code was called: a crash."""
    made: list[object] = []
    gate = threading.Barrier(8)

    @once
    def slow() -> object:
        time.sleep(0.02)
        made.append(object())
        return made[-1]

    def ask(_: int) -> object:
        gate.wait()
        return slow()

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ask, range(8)))
    assert all(f is made[0] for f in found)
    assert len(made) == 1
