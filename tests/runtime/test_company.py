"""Threads beside other processes: results stay right and the same, and threads keep their cores."""

import contextlib
import ctypes
import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import llvmlite.binding as llvm
import numpy as np
import pytest
from handmade import OUTPUT, PARALLEL, chain, code, library, ref, single, step

import clew
import clew.runtime.threads as threads_module
import zoo
from clew.codegen.artifact import ObjectCode
from clew.codegen.driver import driver as native
from clew.codegen.driver.system import CPUS_BYTES
from clew.codegen.worker import emit_object
from clew.runtime.driver import addresses_of, driver
from clew.runtime.guard import GuardSide
from clew.runtime.library import Library
from clew.runtime.memory import plan_segment
from clew.runtime.plan import BufferSpec
from clew.runtime.segment import NativeSegment
from clew.runtime.threads import ThreadPool, shared_pool
from clew.support.addresses import address_of

CORES = sorted(os.sched_getaffinity(0))
_PATIENCE_S = 60
_NEVER = 1 << 62
# Long enough for the scheduler to stop threads several times.
_TRIAL_S = 0.5


SPIN = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
print("spins", flush=True)
while True:
    pass
"""


@contextlib.contextmanager
def company(cores: Sequence[int]) -> Iterator[None]:
    """Keeps each of the cores busy with another process."""
    others = [
        subprocess.Popen([sys.executable, "-c", SPIN, str(core)], stdout=subprocess.PIPE)
        for core in cores
    ]
    try:
        for other in others:
            assert other.stdout is not None
            assert other.stdout.readline() == b"spins\n"
        yield
    finally:
        for other in others:
            other.kill()
            other.communicate()


def marks(grid: int, repeats: int, pool: ThreadPool) -> np.ndarray:
    """Runs `mark` over a grid so many times, starting from zeros."""
    kernel = code("mark", grid=grid, cost=PARALLEL)
    spec = BufferSpec("out", (grid,), "int32")
    plan = plan_segment([step(kernel, ref(OUTPUT))] * repeats, [], [spec], [], [])
    out = np.zeros(grid, np.int32)
    NativeSegment(plan, library(), pool)([], [out])
    return out


def trial() -> Iterator[int]:
    """Counts until a trial's time is over."""
    end = time.monotonic() + _TRIAL_S
    return itertools.takewhile(lambda _: time.monotonic() < end, itertools.count())


def words_of(pool: ThreadPool) -> np.ndarray:
    """Returns the words of a pool's memory, whose workers are started."""
    assert pool.address is not None
    assert pool._workers is not None
    return pool._workers.block.view(np.int64)


@pytest.mark.parametrize("threads", [2, 3, 5])
@pytest.mark.parametrize("busy", [CORES[-1:], CORES], ids=["last", "all"])
def test_every_piece_of_work_is_done_once(busy: list[int], threads: int) -> None:
    pool = ThreadPool(threads)
    with company(busy):
        for turn in trial():
            grid = (2, 7, 64, 1000)[turn % 4]
            assert (marks(grid, 200, pool) == 200).all()
    pool.close()


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("spin", [0, _NEVER])
@pytest.mark.parametrize("gap", [0, _NEVER])
@pytest.mark.parametrize("stint", [0, _NEVER])
def test_any_limits_give_right_results(stint: int, gap: int, spin: int, threads: int) -> None:
    """With 0, workers give way at once, see signs of company in every gap, or callers sleep at
    once and pull workers; with the largest numbers, they never do.
    """
    pool = ThreadPool(threads)
    words = words_of(pool)
    limits = native.POOL_STINT, native.POOL_GAP, native.POOL_COMPANY_SPIN
    for field, limit in zip(limits, (stint, gap, spin), strict=True):
        words[field // 8] = limit
    words[native.POOL_COMPANY // 8] = native.COMPANY
    for turn in itertools.islice(trial(), 200):
        grid = (2, 31, 500)[turn % 3]
        assert (marks(grid, 50, pool) == 50).all()
    pool.close()


IDLE = """
import os, time
from pathlib import Path
import numpy as np
from handmade import *
from clew.runtime.segment import NativeSegment
from clew.runtime.threads import ThreadPool
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
pool = ThreadPool(THREADS)
segment = NativeSegment(chain(512, 12), library(), pool)
x = np.arange(512, dtype=np.float32)
assert (segment([x, x])[0] == 2 * x + 11).all()

def spent():
    stats = [Path(f"/proc/self/task/{number}/schedstat") for number in pool.worker_ids]
    return [int(stat.read_text().split()[0]) for stat in stats]

deadline = time.monotonic() + 60
while True:
    before = spent()
    time.sleep(0.1)
    if spent() == before:
        break
    assert time.monotonic() < deadline, "a worker never sleeps"
assert len(before) == THREADS - 1
"""


@pytest.mark.parametrize("threads", [2, 4])
def test_idle_workers_sleep_even_on_the_callers_core(run_python, threads: int) -> None:  # type: ignore[no-untyped-def]
    result = run_python(IDLE.replace("THREADS", str(threads)))
    assert result.returncode == 0, result.stderr


def test_signs_of_company_fade(monkeypatch: pytest.MonkeyPatch) -> None:
    # Workers read these when they start. A busy host stops a virtual CPU for longer than the gap.
    monkeypatch.setattr(threads_module, "_STINT_NS", 0)
    monkeypatch.setattr(threads_module, "_GAP_NS", 10**15)
    pool = ThreadPool(2)
    words = words_of(pool)
    words[native.POOL_CALLER_SPIN // 8] = _NEVER
    words[native.POOL_COMPANY_SPIN // 8] = _NEVER // 2
    words[native.POOL_COMPANY // 8] = native.COMPANY
    deadline = time.monotonic() + _PATIENCE_S
    while words[native.POOL_COMPANY // 8]:
        assert (marks(64, 50, pool) == 50).all()
        assert time.monotonic() < deadline, "the worker never gave way"
    pool.close()


def test_a_worker_that_was_off_its_core_is_a_sign_of_company() -> None:
    pool = ThreadPool(2)
    words = words_of(pool)
    words[native.POOL_GAP // 8] = 0  # it always was
    deadline = time.monotonic() + _PATIENCE_S
    while words[native.POOL_COMPANY // 8] != native.COMPANY:
        assert (marks(64, 50, pool) == 50).all()
        assert time.monotonic() < deadline, "the worker never spun"
    pool.close()


def test_no_thread_is_waited_for_that_has_taken_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers of this pool end as soon as they start."""
    monkeypatch.setattr(driver(), "worker_address", addresses_of("getpid")["getpid"])
    for threads in (2, 4):
        pool = ThreadPool(threads)
        for grid in (2, 33, 400):
            assert (marks(grid, 20, pool) == 20).all()
        pool.close()


@pytest.mark.parametrize("side", list(GuardSide))
def test_kernels_stay_inside_their_buffers(side: GuardSide) -> None:
    x = np.arange(100, dtype=np.float32)
    with company(CORES[-1:]):
        segment = NativeSegment(chain(100, 12), library(), shared_pool(2), guard=side)
        for factor in trial():
            np.testing.assert_array_equal(segment([factor * x, x])[0], (factor + 1) * x + 11)


@pytest.mark.parametrize("name", ["bert_tiny", "mobilenet_tiny"])
def test_results_are_the_same_bits(name: str) -> None:
    alone = clew.compile(str(zoo.path(name)), threads=1)
    shared = [clew.compile(str(zoo.path(name)), threads=threads) for threads in (2, 3)]
    feeds = [zoo.inputs(name, seed) for seed in range(3)]
    wanted = [alone.run(feed) for feed in feeds]
    with company(CORES[-1:]):
        for _ in trial():
            for feed, outputs in zip(feeds, wanted, strict=True):
                for model in shared:
                    for key, value in model.run(feed).items():
                        assert value.tobytes() == outputs[key].tobytes()


def test_threads_may_run_where_they_could_before() -> None:
    """Workers that were moved or pulled to another core are free again once they look for work."""
    allowed = os.sched_getaffinity(0)
    pool = ThreadPool(3)
    words_of(pool)[native.POOL_COMPANY_SPIN // 8] = 0
    ids = pool.worker_ids
    kernel = code("slow", grid=64, cost=PARALLEL, scratch=64)  # stopped within chunks
    slow = NativeSegment(single(kernel, [], [BufferSpec("out", (64,), "float32")]), library(), pool)
    with company(CORES):
        for _ in trial():
            assert slow([])[0][0] == 1
    deadline = time.monotonic() + _PATIENCE_S
    while any(os.sched_getaffinity(number) != allowed for number in ids):
        assert (marks(64, 50, pool) == 50).all()
        time.sleep(0.001)
        assert time.monotonic() < deadline, "a worker is bound to some cores"
    assert os.sched_getaffinity(0) == allowed
    pool.close()


@pytest.fixture(scope="module")
def functions() -> Callable[[str, type | None, Sequence[type]], Callable[..., int]]:
    """Functions inside the driver, by name, result and arguments."""
    names = ("share_of", "pull", "let_go", "leave_cpu", "is_off", "includes", "flip")
    text = driver_text_with(names)
    data = emit_object(text, llvm.get_process_triple(), "", "")
    imports = addresses_of("syscall", "clock_gettime", "memmove", "memset", "sched_getcpu")
    code = Library([ObjectCode("driver", data, names)], imports)

    def find(name: str, result: type | None, *arguments: type) -> Callable[..., int]:
        found: Callable[..., int] = ctypes.CFUNCTYPE(result, *arguments)(code.address(name))
        return found

    return find


def driver_text_with(names: Sequence[str]) -> str:
    """Returns the driver's text, in which functions are visible from outside."""
    text = native.driver_text(llvm.get_process_triple())
    for name in names:
        for kind in ("i64", "i1", "void"):
            text = text.replace(f"define internal {kind} @{name}(", f"define {kind} @{name}(")
    return text


def test_claims_are_large_at_first_and_single_at_the_end(functions) -> None:  # type: ignore[no-untyped-def]
    share_of = functions("share_of", ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)
    for threads in (2, 3, 8):
        pool = np.zeros(native.POOL_BYTES // 8, np.int64)
        pool[native.POOL_SHARES // 8] = 2 * threads
        left, claims = 24 * threads, []
        while left:
            claims.append(share_of(address_of(pool), left))
            left -= claims[-1]
        assert claims[0] == 12
        assert claims == sorted(claims, reverse=True)
        assert claims[-2 * threads :] == [1] * (2 * threads)


def cores_in(cpus: np.ndarray, size_bytes: int) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(cpus[:size_bytes], bitorder="little")).tolist())


@pytest.mark.parametrize("cpu", [0, 1, 7, 8, 63, 64, 1023])
def test_sets_of_cores(cpu: int, functions) -> None:  # type: ignore[no-untyped-def]
    pointer, long, number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
    includes = functions("includes", ctypes.c_bool, pointer, long, number)
    flip = functions("flip", None, pointer, number)
    cpus = np.zeros(CPUS_BYTES, np.uint8)
    assert not includes(address_of(cpus), CPUS_BYTES, cpu)
    flip(address_of(cpus), cpu)
    assert cores_in(cpus, CPUS_BYTES) == {cpu}
    assert includes(address_of(cpus), CPUS_BYTES, cpu)
    assert not includes(address_of(cpus), cpu // 8, cpu)
    flip(address_of(cpus), cpu)
    assert not cpus.any()


def test_a_thread_is_pulled_to_a_core_and_let_go(functions) -> None:  # type: ignore[no-untyped-def]
    pointer, long, number = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
    pull = functions("pull", long, long, number, pointer)
    let_go = functions("let_go", None, number, pointer, long)
    leave_cpu = functions("leave_cpu", None, number)
    is_off = functions("is_off", ctypes.c_bool, long)
    ready, pulled, freed = threading.Barrier(2), threading.Event(), threading.Event()
    allowed, found, saved = os.sched_getaffinity(0), {}, np.zeros(CPUS_BYTES, np.uint8)

    def work() -> None:
        found["id"] = threading.get_native_id()
        ready.wait()
        pulled.wait()
        let_go(cpu, address_of(saved), size)
        found["after"] = os.sched_getaffinity(0)
        leave_cpu(cpu)
        found["left"] = os.sched_getaffinity(0)
        freed.set()

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait()
    deadline = time.monotonic() + _PATIENCE_S
    while not is_off(found["id"]):
        assert time.monotonic() < deadline, "the thread never waited"
    assert not is_off(threading.get_native_id())  # it runs while it asks
    assert not is_off(2**31 - 2)  # no such thread
    absent = max(allowed) + 1
    assert pull(found["id"], absent, address_of(saved)) == 0
    assert os.sched_getaffinity(found["id"]) == allowed
    for cpu in sorted(allowed):
        size = pull(found["id"], cpu, address_of(saved))
        assert os.sched_getaffinity(found["id"]) == {cpu}
        assert cores_in(saved, size) == allowed
        if cpu != max(allowed):
            os.sched_setaffinity(found["id"], allowed)
    pulled.set()
    assert freed.wait(_PATIENCE_S)
    thread.join()
    assert found["after"] == found["left"] == allowed
