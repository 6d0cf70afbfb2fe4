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

Threads: see `codegen.driver.pool`.

Times: a step takes from the stamp after the step before it to its own. Stamps are ticks of the
processor's own counter where that runs at one rate, as reading it takes a third of what asking the
system's clock does; elsewhere they are that clock's nanoseconds. Kernels of some ten nanoseconds
take no longer than a stamp, so a watch names a range of steps: no others are stamped. A step in a
loop is stamped in each iteration, and the watch counts how often.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from clew.codegen.driver import flow as native_flow
from clew.codegen.driver import library as native_library
from clew.codegen.driver import pool as native_pool
from clew.codegen.driver import run as native_run
from clew.codegen.driver import sizes as native_sizes
from clew.codegen.driver import system as native_system

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
POOL_CALLER_SLEEPS, POOL_STOP, POOL_LOCKED, POOL_COMPANY = 512, 640, 768, 896
POOL_CALLER_CPU = POOL_JOB + 8  # written with the job
# Constant while the pool lives. The ticks for which a worker and a caller spin, and a caller in
# company; the ticks of a worker's stint in company; the ticks between two looks of a spinning
# thread that show that it was off its core; twice the number of threads; the number of workers.
POOL_WORKER_SPIN, POOL_CALLER_SPIN, POOL_COMPANY_SPIN = 1024, 1032, 1040
POOL_STINT, POOL_GAP, POOL_SHARES, POOL_WORKERS, POOL_BYTES = 1048, 1056, 1064, 1072, 1152

# The evidence of company that a sign of it leaves; each sign to the contrary takes one away.
COMPANY = 4

# A worker's record, which follows the pool: the pool, and the worker's number (the caller is thread
# 0). The worker writes the operating system's thread id when it starts, and then whether it may
# hold chunks. `PULLED` is nonzero if the caller has pulled it to another core: the bytes of
# `CPUS`, the cores that it could run on before.
RECORD_POOL, RECORD_THREAD, RECORD_ID, RECORD_HOLDS, RECORD_PULLED = 0, 8, 16, 24, 32
RECORD_CPUS, RECORD_BYTES = 64, 256

EXPORTS = (
    "clew_run_steps",
    "clew_run_segment",
    "clew_worker",
    "clew_pool_lock",
    "clew_pool_stop",
    "clew_clock",
    *native_flow.EXPORTS,
)


def supports_threads(triple: str) -> bool:
    """Whether threads of the driver can wait on this platform."""
    return native_system.platform_of(triple).calls is not None


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
"""

_CHUNK = """
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
  ; A size that the run has found may leave a chunk nothing, and not all functions read the range.
  %pieces = icmp slt i64 %begin, %end
  %lines = icmp slt i64 %first, %last
  %some = and i1 %pieces, %lines
  br i1 %some, label %run, label %done
run:
  call void %function(ptr %args, ptr %scratch, i64 %begin, i64 %end, i64 %first, i64 %last)
  br label %done
done:
  ret void
}
"""

_TABLES = native_sizes.TEXT + native_flow.TEXT + native_run.TEXT
_LAID_OUT = ("STEP_", "CHUNK_", "SEGMENT_", "PATCH_", "WATCH_", "POOL_", "RECORD_", "RAN")
_OFFSETS = {name: value for name, value in globals().items() if name.startswith(_LAID_OUT)}
_OFFSETS |= {"PAUSED": PAUSED, "FULL": FULL, "COMPANY": COMPANY}
_FLOW = {
    name: value
    for part in (native_flow, native_sizes, native_library)
    for name, value in vars(part).items()
    if isinstance(value, int)
}


def driver_text(triple: str, counter: bool = False) -> str:
    """Returns the LLVM module of the driver for a platform.

    With `counter`, steps are timed by the processor's counter if the architecture has one; it must
    run at a constant rate on all cores.
    """
    platform = native_system.platform_of(triple)
    counts = counter and platform.counter
    words: dict[str, object] = {
        **_OFFSETS,
        **_FLOW,
        **(vars(platform.calls) if platform.calls else {}),
        "CPUS_BYTES": native_system.CPUS_BYTES,
        "pause": platform.pause,
        "pause_declaration": platform.pause_declaration,
        "clock": platform.clock,
        "ticks": platform.counter if counts else "call i64 @now_ns()",
        "counter_declaration": platform.counter_declaration if counts else "",
    }
    system = native_system.LINUX if platform.calls else native_system.WITHOUT_THREADS
    text = system + _BASICS + _CHUNK + native_pool.TEXT + _TABLES
    return _filled(text, words)


def library_text() -> str:
    """Returns the LLVM module of the driver for exported libraries, without a clock, threads of its
    own, or system calls. Its pool is a `LIBRARY_POOL_...` block.
    """
    words: dict[str, object] = {**_OFFSETS, **_FLOW, "ticks": "add i64 0, 0"}
    return _filled(native_library.TEXT + _CHUNK + _TABLES, words)


def _filled(text: str, words: Mapping[str, object]) -> str:
    return re.sub(r"\{(\w+)\}", lambda found: str(words.get(found[1], found[0])), text)
