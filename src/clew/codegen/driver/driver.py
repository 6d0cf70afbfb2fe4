"""LLVM text of the native driver, which runs a table of steps on a pool of threads.

Python lays out the memory described here and calls the functions; no Python runs between two
kernels. The text suits any architecture of LLVM; threads wait with Linux futexes.

Functions:
- `i32 clew_run_steps(steps, n_steps, pool, watch)`: runs the steps in order. `watch`, unless null,
  selects the steps to time. Returns `RAN`, or `RAN_SERIALLY` if another call held the pool. Steps
  of control flow do nothing.
- `i32 clew_run_segment(segment, bases, pool, watch)`: puts the addresses of this call's buffers
  into the argument tables, then runs the steps, round loops and along branches. Returns `PAUSED`
  after an iteration of a loop if the call has taken longer than the segment's slice, and `FULL`
  before an iteration whose rows have no memory; the next call continues there.
- `i64 clew_go_on(step, next)`: executes a step of control flow, and returns the step after one
  that has run, which is `next` by default (`codegen.driver.flow`).
- `void clew_patch_loop(loop, moving)`: writes the addresses of a loop's moving buffers into the
  argument tables.
- `void clew_clock(now)`: writes the clock's nanoseconds, then the ticks that a watch counts.
- `ptr clew_worker(record)`: the function of a pool thread, which runs until the pool is stopped.
- `i32 clew_pool_lock(pool)`: 1 if the caller now owns the pool.
- `void clew_pool_stop(pool)`: makes the workers of a locked pool return.
- `void clew_pause(n)`: `n` pauses of a spinning thread.

Threads: one 64-bit *ticket* holds the generation (32 bits), the first remaining chunk (16) and the
end of the remaining chunks (16), and is claimed by compare-and-swap. It must hold both ends, or a
late worker could claim a chunk of a finished step. The caller takes chunks from the front and the
workers take them from the back, in the order that `runtime.grid` defines, so two threads each run
one half of every step, up to a chunk or two. A thread that claims a chunk may read the job, because
the caller leaves a step only when all its chunks are done. Waiting threads spin for a while and
then sleep; only sleeping threads are woken.

Times: a step takes from the stamp after the step before it to its own. Stamps are ticks of the
processor's own counter where that runs at one rate, as reading it takes a third of what asking the
system's clock does; elsewhere they are that clock's nanoseconds. Kernels of some ten nanoseconds
take no longer than a stamp, so a watch names a range of steps: no others are stamped. A step in a
loop is stamped in each iteration, and the watch counts how often.
"""

from __future__ import annotations

from dataclasses import dataclass

from clew.codegen.driver import flow as native_flow
from clew.codegen.driver import run as native_run

MAX_CHUNKS = 0xFFFF

RAN, RAN_SERIALLY, PAUSED, FULL = 0, 1, 2, 3

# A step: eight 64-bit words. Its chunks are a separate table. `STEP_EXTRA` is a loop, or a number
# of bytes.
STEP_ARGS, STEP_SCRATCH, STEP_SCRATCH_STRIDE = 0, 8, 16
STEP_TABLE, STEP_CHUNKS = 24, 32
STEP_KIND, STEP_TARGET, STEP_EXTRA, STEP_BYTES = 40, 48, 56, 64

# A chunk: five 64-bit words, a function and its ranges of the grid and of the lines.
CHUNK_FUNCTION, CHUNK_BEGIN, CHUNK_END = 0, 8, 16
CHUNK_FIRST, CHUNK_LAST, CHUNK_BYTES = 24, 32, 40

# A segment: steps and their number, patches and their number; the step to start at, which is
# nonzero only after a pause; the ticks until a pause (0: never). A patch writes
# `bases[index] + offset` to an address: three 64-bit words.
SEGMENT_STEPS, SEGMENT_N_STEPS, SEGMENT_PATCHES, SEGMENT_N_PATCHES = 0, 8, 16, 24
SEGMENT_START, SEGMENT_SLICE, SEGMENT_BYTES = 32, 40, 48
PATCH_ADDRESS, PATCH_BASE, PATCH_OFFSET, PATCH_BYTES = 0, 8, 16, 24

# A watch: the address of the tick sums of the steps, the first timed step, the step after the last,
# the number of calls, their ticks from first step to last, and the address of the counts of stamps.
WATCH_TICKS, WATCH_FIRST, WATCH_LAST, WATCH_CALLS, WATCH_WHOLE = 0, 8, 16, 24, 32
WATCH_COUNTS, WATCH_BYTES = 40, 48

# A pool: each field has a separate cache line, because different threads write them.
POOL_TICKET, POOL_JOB, POOL_DONE, POOL_SLEEPERS = 0, 128, 256, 384
POOL_CALLER_SLEEPS, POOL_STOP, POOL_LOCKED, POOL_BYTES = 512, 640, 768, 1024
# Constant while the pool lives: the pauses for which a worker and a caller spin.
POOL_WORKER_SPINS, POOL_CALLER_SPINS = 896, 904

# A worker's record: the pool, and the worker's number (the caller is thread 0). The worker writes
# the operating system's thread id when it starts.
RECORD_POOL, RECORD_THREAD, RECORD_ID, RECORD_BYTES = 0, 8, 16, 64

EXPORTS = (
    "clew_run_steps",
    "clew_run_segment",
    "clew_worker",
    "clew_pool_lock",
    "clew_pool_stop",
    "clew_pause",
    "clew_clock",
    *native_flow.EXPORTS,
)


@dataclass(frozen=True)
class _Platform:
    """Properties that depend on the driver's platform."""

    futex: int | None  # system call numbers, None without
    thread_id: int | None
    pause: str  # an instruction that eases spinning
    pause_declaration: str
    clock: int  # CLOCK_MONOTONIC
    counter: str = ""  # an instruction that reads the processor's counter, if there is one
    counter_declaration: str = ""


def _platform(triple: str) -> _Platform:
    arch = triple.split("-")[0]
    declaration = ""
    if arch in ("x86_64", "amd64"):
        futex, thread_id, name, argument = 202, 186, "llvm.x86.sse2.pause", ""
        counter = "call i64 @llvm.readcyclecounter()"
        declaration = "declare i64 @llvm.readcyclecounter()"
    elif arch in ("aarch64", "arm64"):
        futex, thread_id, name, argument = 98, 178, "llvm.aarch64.hint", "i32 1"
        counter = "call i64 @llvm.readsteadycounter()"
        declaration = "declare i64 @llvm.readsteadycounter()"
    else:
        return _Platform(None, None, "fence seq_cst", "", 1)
    linux = "linux" in triple
    return _Platform(
        futex if linux else None,
        thread_id if linux else None,
        f"call void @{name}({argument})",
        f"declare void @{name}({argument.removesuffix(' 1')})",
        1 if linux else 6,
        counter,
        declaration,
    )


def supports_threads(triple: str) -> bool:
    """Whether threads of the driver can wait on this platform."""
    return _platform(triple).futex is not None


_FUTEX = """
declare i64 @syscall(i64, ...)
define internal void @futex_wait(ptr %word, i32 %expected) noinline nounwind {
  %r = call i64 (i64, ...) @syscall(i64 {number}, ptr %word, i32 128, i32 %expected, ptr null)
  ret void
}
define internal void @futex_wake(ptr %word, i32 %count) noinline nounwind {
  %r = call i64 (i64, ...) @syscall(i64 {number}, ptr %word, i32 129, i32 %count)
  ret void
}
define internal i64 @thread_id() noinline nounwind {
  %r = call i64 (i64, ...) @syscall(i64 {thread_id})
  ret i64 %r
}
"""

_NO_FUTEX = """
define internal void @futex_wait(ptr %word, i32 %expected) nounwind { ret void }
define internal void @futex_wake(ptr %word, i32 %count) nounwind { ret void }
define internal i64 @thread_id() nounwind { ret i64 0 }
"""

_BASICS = """
{pause_declaration}
declare i32 @clock_gettime(i32, ptr)

define internal i64 @now_ns() noinline nounwind {
  %ts = alloca [2 x i64], align 8
  %r = call i32 @clock_gettime(i32 {clock}, ptr %ts)
  %nsp = getelementptr i8, ptr %ts, i64 8
  %s = load i64, ptr %ts, align 8
  %ns = load i64, ptr %nsp, align 8
  %scaled = mul i64 %s, 1000000000
  %t = add i64 %scaled, %ns
  ret i64 %t
}

{counter_declaration}
define void @clew_clock(ptr %now) nounwind {
  %ns = call i64 @now_ns()
  %ticks = {ticks}
  %ticksp = getelementptr i8, ptr %now, i64 8
  store i64 %ns, ptr %now, align 8
  store i64 %ticks, ptr %ticksp, align 8
  ret void
}

define void @clew_pause(i64 %n) nounwind {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  {pause}
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %exit
exit:
  ret void
}

define internal void @run_chunk(ptr %step, i64 %thread, i64 %index) nounwind {
  %argsp = getelementptr i8, ptr %step, i64 {STEP_ARGS}
  %scratchp = getelementptr i8, ptr %step, i64 {STEP_SCRATCH}
  %stridep = getelementptr i8, ptr %step, i64 {STEP_SCRATCH_STRIDE}
  %tablep = getelementptr i8, ptr %step, i64 {STEP_TABLE}
  %args = load ptr, ptr %argsp, align 8
  %base = load ptr, ptr %scratchp, align 8
  %stride = load i64, ptr %stridep, align 8
  %table = load ptr, ptr %tablep, align 8
  %offset = mul i64 %thread, %stride
  %scratch = getelementptr i8, ptr %base, i64 %offset
  %at = mul i64 %index, {CHUNK_BYTES}
  %chunk = getelementptr i8, ptr %table, i64 %at
  %beginp = getelementptr i8, ptr %chunk, i64 {CHUNK_BEGIN}
  %endp = getelementptr i8, ptr %chunk, i64 {CHUNK_END}
  %firstp = getelementptr i8, ptr %chunk, i64 {CHUNK_FIRST}
  %lastp = getelementptr i8, ptr %chunk, i64 {CHUNK_LAST}
  %function = load ptr, ptr %chunk, align 8
  %begin = load i64, ptr %beginp, align 8
  %end = load i64, ptr %endp, align 8
  %first = load i64, ptr %firstp, align 8
  %last = load i64, ptr %lastp, align 8
  call void %function(ptr %args, ptr %scratch, i64 %begin, i64 %end, i64 %first, i64 %last)
  ret void
}
"""

_WORKER = """
define ptr @clew_worker(ptr %record) nounwind {
entry:
  %threadp = getelementptr i8, ptr %record, i64 {RECORD_THREAD}
  %pool = load ptr, ptr %record, align 8
  %thread = load i64, ptr %threadp, align 8
  %generationp = getelementptr i8, ptr %pool, i64 4
  %jobp = getelementptr i8, ptr %pool, i64 {POOL_JOB}
  %donep = getelementptr i8, ptr %pool, i64 {POOL_DONE}
  %sleepersp = getelementptr i8, ptr %pool, i64 {POOL_SLEEPERS}
  %callerp = getelementptr i8, ptr %pool, i64 {POOL_CALLER_SLEEPS}
  %stopp = getelementptr i8, ptr %pool, i64 {POOL_STOP}
  %spinsp = getelementptr i8, ptr %pool, i64 {POOL_WORKER_SPINS}
  %idp = getelementptr i8, ptr %record, i64 {RECORD_ID}
  %id = call i64 @thread_id()
  store atomic i64 %id, ptr %idp release, align 8
  br label %look
look:
  %ticket = load atomic i64, ptr %pool acquire, align 8
  %end = and i64 %ticket, 65535
  %high = lshr i64 %ticket, 16
  %first = and i64 %high, 65535
  %work = icmp ult i64 %first, %end
  br i1 %work, label %claim, label %idle
claim:
  %job = load atomic ptr, ptr %jobp monotonic, align 8
  %index = sub i64 %end, 1
  %taken = sub i64 %ticket, 1
  %swap = cmpxchg ptr %pool, i64 %ticket, i64 %taken acq_rel monotonic, align 8
  %won = extractvalue { i64, i1 } %swap, 1
  br i1 %won, label %run, label %look
run:
  call void @run_chunk(ptr %job, i64 %thread, i64 %index)
  %before = atomicrmw add ptr %donep, i32 1 seq_cst, align 4
  %asleep = load atomic i32, ptr %callerp seq_cst, align 4
  %awake = icmp eq i32 %asleep, 0
  br i1 %awake, label %look, label %wake
wake:
  call void @futex_wake(ptr %donep, i32 1)
  br label %look
idle:
  %stop = load atomic i32, ptr %stopp acquire, align 4
  %go = icmp eq i32 %stop, 0
  %spins = load i64, ptr %spinsp, align 8
  br i1 %go, label %spin, label %quit
spin:
  %i = phi i64 [ 0, %idle ], [ %next, %again ]
  %seen = load atomic i64, ptr %pool acquire, align 8
  %changed = icmp ne i64 %seen, %ticket
  br i1 %changed, label %look, label %again
again:
  {pause}
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %spins
  br i1 %more, label %spin, label %sleep
sleep:
  %s0 = atomicrmw add ptr %sleepersp, i32 1 seq_cst, align 4
  %upper = lshr i64 %ticket, 32
  %generation = trunc i64 %upper to i32
  call void @futex_wait(ptr %generationp, i32 %generation)
  %s1 = atomicrmw sub ptr %sleepersp, i32 1 seq_cst, align 4
  br label %look
quit:
  ret ptr null
}
"""

_PARALLEL = """
define internal void @publish(ptr %pool, i64 %chunks, i32 %wakes) noinline nounwind {
entry:
  %generationp = getelementptr i8, ptr %pool, i64 4
  %sleepersp = getelementptr i8, ptr %pool, i64 {POOL_SLEEPERS}
  %old = load atomic i64, ptr %pool monotonic, align 8
  %generation = lshr i64 %old, 32
  %following = add i64 %generation, 1
  %upper = shl i64 %following, 32
  %ticket = or i64 %upper, %chunks
  %previous = atomicrmw xchg ptr %pool, i64 %ticket seq_cst, align 8
  %sleepers = load atomic i32, ptr %sleepersp seq_cst, align 4
  %none = icmp eq i32 %sleepers, 0
  br i1 %none, label %exit, label %wake
wake:
  call void @futex_wake(ptr %generationp, i32 %wakes)
  br label %exit
exit:
  ret void
}

define internal void @run_parallel(ptr %pool, ptr %step, i64 %chunks) noinline nounwind {
entry:
  %jobp = getelementptr i8, ptr %pool, i64 {POOL_JOB}
  %donep = getelementptr i8, ptr %pool, i64 {POOL_DONE}
  %callerp = getelementptr i8, ptr %pool, i64 {POOL_CALLER_SLEEPS}
  %spinsp = getelementptr i8, ptr %pool, i64 {POOL_CALLER_SPINS}
  %spins = load i64, ptr %spinsp, align 8
  %n = trunc i64 %chunks to i32
  %helpers = sub i32 %n, 1
  store atomic ptr %step, ptr %jobp monotonic, align 8
  store atomic i32 0, ptr %donep monotonic, align 4
  call void @publish(ptr %pool, i64 %chunks, i32 %helpers)
  br label %look
look:
  %own = phi i32 [ 0, %entry ], [ %own, %claim ], [ %more, %run ]
  %ticket = load atomic i64, ptr %pool acquire, align 8
  %end = and i64 %ticket, 65535
  %high = lshr i64 %ticket, 16
  %index = and i64 %high, 65535
  %work = icmp ult i64 %index, %end
  br i1 %work, label %claim, label %join
claim:
  %taken = add i64 %ticket, 65536
  %swap = cmpxchg ptr %pool, i64 %ticket, i64 %taken acq_rel monotonic, align 8
  %won = extractvalue { i64, i1 } %swap, 1
  br i1 %won, label %run, label %look
run:
  call void @run_chunk(ptr %step, i64 0, i64 %index)
  %more = add i32 %own, 1
  br label %look
join:
  %others = sub i32 %n, %own
  br label %spin
spin:
  %i = phi i64 [ 0, %join ], [ %next, %again ]
  %done = load atomic i32, ptr %donep acquire, align 4
  %all = icmp eq i32 %done, %others
  br i1 %all, label %exit, label %again
again:
  {pause}
  %next = add i64 %i, 1
  %on = icmp slt i64 %next, %spins
  br i1 %on, label %spin, label %doze
doze:
  store atomic i32 1, ptr %callerp seq_cst, align 4
  br label %check
check:
  %count = load atomic i32, ptr %donep seq_cst, align 4
  %complete = icmp eq i32 %count, %others
  br i1 %complete, label %up, label %sleep
sleep:
  call void @futex_wait(ptr %donep, i32 %count)
  br label %check
up:
  store atomic i32 0, ptr %callerp seq_cst, align 4
  br label %exit
exit:
  ret void
}

define i32 @clew_pool_lock(ptr %pool) nounwind {
  %lockp = getelementptr i8, ptr %pool, i64 {POOL_LOCKED}
  %swap = cmpxchg ptr %lockp, i32 0, i32 1 acquire monotonic, align 4
  %won = extractvalue { i32, i1 } %swap, 1
  %r = zext i1 %won to i32
  ret i32 %r
}

define void @clew_pool_stop(ptr %pool) nounwind {
  %stopp = getelementptr i8, ptr %pool, i64 {POOL_STOP}
  store atomic i32 1, ptr %stopp release, align 4
  call void @publish(ptr %pool, i64 0, i32 2147483647)
  ret void
}
"""

_LAID_OUT = ("STEP_", "CHUNK_", "SEGMENT_", "PATCH_", "WATCH_", "POOL_", "RECORD_", "RAN")
_OFFSETS = {name: value for name, value in globals().items() if name.startswith(_LAID_OUT)}
_OFFSETS |= {"PAUSED": PAUSED, "FULL": FULL}
_FLOW = {name: value for name, value in vars(native_flow).items() if isinstance(value, int)}


def driver_text(triple: str, counter: bool = False) -> str:
    """Returns the LLVM module of the driver for a platform.

    With `counter`, steps are timed by the processor's counter if the architecture has one; it must
    run at a constant rate on all cores.
    """
    platform = _platform(triple)
    counts = counter and platform.counter
    words: dict[str, object] = {
        **_OFFSETS,
        **_FLOW,
        "number": platform.futex,
        "thread_id": platform.thread_id,
        "pause": platform.pause,
        "pause_declaration": platform.pause_declaration,
        "clock": platform.clock,
        "ticks": platform.counter if counts else "call i64 @now_ns()",
        "counter_declaration": platform.counter_declaration if counts else "",
    }
    futex = _NO_FUTEX if platform.futex is None else _FUTEX
    text = futex + _BASICS + _WORKER + _PARALLEL + native_flow.TEXT + native_run.TEXT
    for name, value in words.items():
        text = text.replace("{" + name + "}", str(value))
    return text
