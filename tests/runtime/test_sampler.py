import contextlib
import ctypes
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from handmade import chain, code, f32, library, single

import clew.runtime.sampler as sampling
from clew.runtime.sampler import Row, Sampler, Samples, sampling_supported
from clew.runtime.segment import NativeSegment
from clew.runtime.threads import SAMPLING_SIGNAL, ThreadPool, shared_pool
from clew.support.errors import InputError

pytestmark = pytest.mark.skipif(not sampling_supported(), reason="no sampler for this platform")

ELEMENTS = 1 << 12
STEPS = 6


def sampled(threads: int, repeats: int = 400, interval_ns: int = 100_000) -> Samples:
    """Samples a chain of steps until there is something to look at."""
    segment = NativeSegment(chain(ELEMENTS, STEPS), library(), shared_pool(threads))
    x = np.ones(ELEMENTS, np.float32)
    parts: list[Samples] = []
    deadline = time.monotonic() + 30
    with segment.prepared([x, x]) as context, Sampler(segment.pool, interval_ns) as sampler:
        while sum(map(len, parts)) < 60 and time.monotonic() < deadline:
            sampler.run(context.steps_address, [Row(0, context.n_entries, repeats)])
            parts.append(sampler.take())
    return Samples(
        np.concatenate([p.addresses for p in parts]),
        np.concatenate([p.steps for p in parts]),
        np.concatenate([p.threads for p in parts]),
        sum(p.lost for p in parts),
    )


def action() -> int | None:
    """The address of the signal's handler."""
    now = sampling._Action()
    sampling._sigaction(None, now)
    handler: int | None = now.handler
    return handler


def timers() -> int:
    """How many timers of the operating system the process has, where the system tells."""
    try:
        with open("/proc/self/timers") as file:
            return sum(line.startswith("ID:") for line in file)
    except OSError:
        return 0


def test_samples_are_of_the_steps_that_run() -> None:
    samples = sampled(1)
    assert len(samples) >= 60
    assert set(samples.steps.tolist()) <= {*range(STEPS), -1}
    assert set(samples.threads.tolist()) == {0}
    assert samples.lost == 0
    start = library().address("add")
    inside = (samples.addresses >= start) & (samples.addresses < start + 4096)
    assert inside.sum() > len(samples) / 2  # the rest is the driver's


def test_workers_are_sampled() -> None:
    # On a busy machine one thread may do all pieces of a short run.
    seen: set[int] = set()
    end = time.monotonic() + 60
    while seen != {0, 1} and time.monotonic() < end:
        seen |= set(sampled(2).threads.tolist())
    assert seen == {0, 1}


def test_results_are_as_without() -> None:
    segment = NativeSegment(chain(ELEMENTS, STEPS), library(), shared_pool(2))
    x = np.arange(ELEMENTS, dtype=np.float32)
    with segment.prepared([x, x]) as context, Sampler(segment.pool) as sampler:
        sampler.run(context.steps_address, [Row(0, context.n_entries, 500)])
    assert (segment([x, x])[0] == 2 * x + STEPS - 1).all()


def test_a_row_restores_what_its_steps_overwrite() -> None:
    """`x += 1` run three times with its operand put back is run once."""
    kernel = code("add", grid=8)
    plan = single(kernel, [f32("a", 8), f32("b", 8)], [f32("out", 8)])
    segment = NativeSegment(plan, library(), ThreadPool(1))
    x, one = np.zeros(8, np.float32), np.ones(8, np.float32)
    with segment.prepared([x, one]) as context, Sampler(segment.pool) as sampler:
        slots = context._args
        slots[2] = slots[0]  # in place
        sampler.run(context.steps_address, [Row(0, 1, 3)])
        assert (x == 3).all()
        sampler.run(context.steps_address, [Row(0, 1, 5, (int(slots[0]), x.nbytes))])
        assert (x == 4).all()


def test_everything_is_as_before_afterwards() -> None:
    assert SAMPLING_SIGNAL is not None
    before = action(), timers(), signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with Sampler(shared_pool(2)):
        assert action() != before[0]
        assert timers() == (before[1] + 2 if Path("/proc/self/timers").exists() else 0)
    assert (action(), timers(), signal.pthread_sigmask(signal.SIG_BLOCK, ())) == before


def test_a_caller_that_blocks_the_signal_is_sampled_and_blocks_it_again() -> None:
    assert SAMPLING_SIGNAL is not None
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {SAMPLING_SIGNAL})
    try:
        assert len(sampled(1)) >= 60
        assert SAMPLING_SIGNAL in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_everything_is_as_before_after_an_exception() -> None:
    before = action(), timers()
    with (
        contextlib.suppress(KeyboardInterrupt),
        Sampler(shared_pool(2)) as sampler,
        sampler.ticking(),
    ):
        time.sleep(0.01)
        raise KeyboardInterrupt
    assert (action(), timers()) == before
    assert len(sampled(1)) >= 60  # and it works again


def test_timers_that_the_system_refuses_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = action(), timers()
    create = sampling._Record.create_timer

    def refuse_the_second(record: sampling._Record, thread: int, interval_ns: int) -> None:
        create(record, thread if record is sampling._record(0) else 1, interval_ns)

    monkeypatch.setattr(sampling._Record, "create_timer", refuse_the_second)
    with pytest.raises(InputError, match="provides no timer") as error, Sampler(shared_pool(2)):
        pass
    assert error.value.code == "I117"
    assert (action(), timers()) == before


def test_one_at_a_time() -> None:
    with Sampler(ThreadPool(1)):
        with pytest.raises(InputError, match="another sampler") as error, Sampler(ThreadPool(1)):
            pass
        assert error.value.code == "I118"
        found: list[str] = []

        def other() -> None:
            try:
                with Sampler(ThreadPool(1)):
                    pass
            except InputError as error:
                found.append(error.code)

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert found == ["I118"]


def test_a_signal_that_the_process_uses_is_left_to_it() -> None:
    assert SAMPLING_SIGNAL is not None
    before = signal.signal(SAMPLING_SIGNAL, lambda *_: None)
    try:
        with pytest.raises(InputError, match="uses signal") as error, Sampler(ThreadPool(1)):
            pass
        assert error.value.code == "I118"
    finally:
        signal.signal(SAMPLING_SIGNAL, before)
    with Sampler(ThreadPool(1)):
        pass


def test_the_signal_from_elsewhere_is_no_sample() -> None:
    assert SAMPLING_SIGNAL is not None
    with Sampler(ThreadPool(1)) as sampler:
        for _ in range(5):
            signal.pthread_kill(threading.get_ident(), SAMPLING_SIGNAL)
        assert len(sampler.take()) == 0


def test_errno_survives_the_handler() -> None:
    """The handler makes a system call, and one of the caller's may just have failed."""
    location = ctypes.CDLL(None).__errno_location
    location.restype = ctypes.POINTER(ctypes.c_int)
    errno = location()
    with Sampler(ThreadPool(1)) as sampler:
        (record,) = sampler._records
        timer = sampling.native.RECORD_TIMER // 8
        record._words[timer] = 1 << 20  # none, so that setting it again fails
        sampling._shared.going[0] = 1
        record.set_timer(20_000_000)
        errno[0] = 77
        deadline = time.monotonic() + 30
        while not len(samples := sampler.take()) and time.monotonic() < deadline:
            pass
        assert len(samples) == 1
        assert errno[0] == 77
        sampling._shared.going[0] = 0


PENDING = """
import signal, threading
from clew.runtime.sampler import Sampler
from clew.runtime.threads import SAMPLING_SIGNAL, ThreadPool
with Sampler(ThreadPool(1)):
    signal.pthread_sigmask(signal.SIG_BLOCK, {SAMPLING_SIGNAL})
    signal.pthread_kill(threading.get_ident(), SAMPLING_SIGNAL)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {SAMPLING_SIGNAL})
"""


def test_a_signal_that_comes_too_late_does_no_harm(run_python) -> None:  # type: ignore[no-untyped-def]
    result = run_python(PENDING)
    assert result.returncode == 0, result.stderr


FORK = """
import os, signal
import numpy as np
from handmade import *
from clew.runtime.sampler import Row, Sampler
from clew.runtime.segment import NativeSegment
from clew.runtime.threads import shared_pool
segment = NativeSegment(chain(512, 12), library(), shared_pool(2))
x = np.arange(512, dtype=np.float32)
def right():
    return all((segment([x, x])[0] == 2 * x + 11).all() for _ in range(20))
def sample():
    with segment.prepared([x, x]) as context, Sampler(segment.pool) as sampler:
        sampler.run(context.steps_address, [Row(0, context.n_entries, 2000)])
        return len(sampler.take())
with Sampler(segment.pool, 20_000) as sampler:
    with sampler.ticking():
        for _ in range(5):
            child = os.fork()
            if child == 0:
                os._exit(0 if right() and sample() else 1)
            assert os.waitpid(child, 0)[1] == 0
            assert right()
assert sample()
with Sampler(segment.pool):
    child = os.fork()
if child == 0:
    os._exit(0 if sample() else 1)
assert os.waitpid(child, 0)[1] == 0
"""


def test_a_forked_child_is_not_sampled_and_may_sample(run_python) -> None:  # type: ignore[no-untyped-def]
    result = run_python(FORK)
    assert result.returncode == 0, result.stderr


MANY = """
import threading
import numpy as np
from handmade import *
from clew.runtime.sampler import Row, Sampler
from clew.runtime.segment import NativeSegment
from clew.runtime.threads import shared_pool
segment = NativeSegment(chain(512, 12), library(), shared_pool(3))
x = np.arange(512, dtype=np.float32)
stop = threading.Event()
wrong = []
def work():
    while not stop.is_set():
        if not (segment([x, x])[0] == 2 * x + 11).all():
            wrong.append(1)
threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads:
    thread.start()
for _ in range(50):
    with segment.prepared([x, x]) as context, Sampler(segment.pool, 10_000) as sampler:
        sampler.run(context.steps_address, [Row(0, context.n_entries, 20)])
        sampler.take()
stop.set()
for thread in threads:
    thread.join()
assert not wrong
"""


def test_sampling_again_and_again_beside_other_calls(run_python) -> None:  # type: ignore[no-untyped-def]
    result = run_python(MANY)
    assert result.returncode == 0, result.stderr


def test_there_is_an_error_where_there_is_no_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "_triple", lambda: "arm64-apple-darwin")
    with pytest.raises(InputError, match="not supported on arm64") as error, Sampler(ThreadPool(1)):
        pass
    assert error.value.code == "I117"


def test_workers_let_its_signal_through_and_no_other() -> None:
    assert SAMPLING_SIGNAL is not None
    before = set(os.listdir("/proc/self/task"))
    pool = ThreadPool(3)
    started = pool.worker_ids
    assert {str(n) for n in started} == set(os.listdir("/proc/self/task")) - before
    for worker in started:
        with open(f"/proc/self/task/{worker}/status") as file:
            (blocked,) = [line.split()[1] for line in file if line.startswith("SigBlk:")]
        free = {n for n in signal.valid_signals() if not int(blocked, 16) >> (n - 1) & 1}
        assert free == {SAMPLING_SIGNAL, signal.SIGKILL, signal.SIGSTOP}
    pool.close()
    assert ThreadPool(1).worker_ids == []
