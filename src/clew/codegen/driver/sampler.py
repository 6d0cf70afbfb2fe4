"""LLVM text of the sampler: a signal handler that records where threads are, and a loop that runs
steps and publishes which one is running.

Functions:
- `void clew_on_sample(signal, info, context)`: the handler. It writes the address of the
  interrupted instruction and the number in the *step word* into the thread's ring of samples, then
  sets the thread's timer again. It takes no lock, allocates nothing, and does not use Python.
  Signals from other senders are ignored.
- `i64 clew_run_sampled(run_steps, go_on, steps, rows, n_rows, pool, word)`: runs rows of steps, one
  step per call of the driver, after writing its number into the step word, which is -1 while no
  step runs; `go_on` returns the next step. The driver itself is unchanged. Returns the number of
  steps that did not get the pool.
- `void clew_divide(out, by, n)`: a loop of `n` dependent divisions. The position of its samples
  shows which instruction a sample refers to on this machine.

A timer fires once and is set again by the handler, after a random time between 0.5 and 1.5 times
the wanted interval. Samples therefore never synchronize with a repeated kernel, and a machine that
is slow to deliver signals still makes progress.

Source: the offsets of the program counter are those of `ucontext_t` in Linux's
`arch/{x86,arm64}/include/uapi/asm/{ucontext,sigcontext}.h`; `siginfo_t` is that of `siginfo.h`.
"""

from __future__ import annotations

from dataclasses import dataclass

from clew.codegen.driver.driver import STEP_BYTES

# The handler's data of a thread: 64-bit words, then the ring of samples.
RECORD_TAKEN, RECORD_MASK, RECORD_RING, RECORD_TIMER = 0, 8, 16, 24
RECORD_RANDOM, RECORD_INTERVAL, RECORD_GOING, RECORD_STEP = 32, 40, 48, 56
RECORD_BYTES = 64

# A sample: the address of an instruction, and the step.
SAMPLE_ADDRESS, SAMPLE_STEP, SAMPLE_BYTES = 0, 8, 16

# A row: steps `begin` to `end`, repeats, and memory that is restored before each repetition.
ROW_BEGIN, ROW_END, ROW_REPEATS = 0, 8, 16
ROW_TO, ROW_FROM, ROW_SIZE, ROW_BYTES = 24, 32, 40, 48

NO_STEP = -1

EXPORTS = ("clew_on_sample", "clew_run_sampled", "clew_divide")
IMPORTS = ("syscall", "__errno_location", "memcpy")


@dataclass(frozen=True)
class SystemCalls:
    """Linux's numbers of the system calls that the sampler uses."""

    timer_create: int
    timer_settime: int
    timer_delete: int


@dataclass(frozen=True)
class Platform:
    """Properties that depend on the architecture. `counter` is the program counter's offset in
    bytes in the context that a handler receives.
    """

    counter: int
    calls: SystemCalls


_PLATFORMS = {
    "x86_64": Platform(168, SystemCalls(222, 223, 226)),
    "aarch64": Platform(440, SystemCalls(107, 110, 111)),
}
_PLATFORMS |= {"amd64": _PLATFORMS["x86_64"], "arm64": _PLATFORMS["aarch64"]}


def platform_of(triple: str) -> Platform | None:
    """Returns the properties of a platform, or None if the sampler does not support it."""
    return _PLATFORMS.get(triple.split("-")[0]) if "linux" in triple else None


_TEXT = """
declare i64 @syscall(i64, ...)
declare ptr @__errno_location()
declare ptr @memcpy(ptr, ptr, i64)

define void @clew_on_sample(i32 %signal, ptr %info, ptr %context) nounwind {
entry:
  %spec = alloca [4 x i64], align 8
  %codep = getelementptr i8, ptr %info, i64 8
  %valuep = getelementptr i8, ptr %info, i64 24
  %code = load i32, ptr %codep, align 4
  %ours = icmp eq i32 %code, -2
  br i1 %ours, label %note, label %exit
note:
  %record = load ptr, ptr %valuep, align 8
  %maskp = getelementptr i8, ptr %record, i64 {RECORD_MASK}
  %ringp = getelementptr i8, ptr %record, i64 {RECORD_RING}
  %timerp = getelementptr i8, ptr %record, i64 {RECORD_TIMER}
  %randomp = getelementptr i8, ptr %record, i64 {RECORD_RANDOM}
  %intervalp = getelementptr i8, ptr %record, i64 {RECORD_INTERVAL}
  %goingp = getelementptr i8, ptr %record, i64 {RECORD_GOING}
  %stepp = getelementptr i8, ptr %record, i64 {RECORD_STEP}
  %counterp = getelementptr i8, ptr %context, i64 {counter}
  %address = load i64, ptr %counterp, align 8
  %word = load ptr, ptr %stepp, align 8
  %step = load atomic i64, ptr %word monotonic, align 8
  %taken = load i64, ptr %record, align 8
  %mask = load i64, ptr %maskp, align 8
  %ring = load ptr, ptr %ringp, align 8
  %slot = and i64 %taken, %mask
  %at = mul i64 %slot, {SAMPLE_BYTES}
  %sample = getelementptr i8, ptr %ring, i64 %at
  %samplestepp = getelementptr i8, ptr %sample, i64 {SAMPLE_STEP}
  store i64 %address, ptr %sample, align 8
  store i64 %step, ptr %samplestepp, align 8
  %more = add i64 %taken, 1
  store atomic i64 %more, ptr %record release, align 8
  %goingword = load ptr, ptr %goingp, align 8
  %going = load atomic i64, ptr %goingword monotonic, align 8
  %on = icmp ne i64 %going, 0
  br i1 %on, label %again, label %exit
again:
  %x0 = load i64, ptr %randomp, align 8
  %l1 = shl i64 %x0, 13
  %x1 = xor i64 %x0, %l1
  %r2 = lshr i64 %x1, 7
  %x2 = xor i64 %x1, %r2
  %l3 = shl i64 %x2, 17
  %x3 = xor i64 %x2, %l3
  store i64 %x3, ptr %randomp, align 8
  %interval = load i64, ptr %intervalp, align 8
  %high = lshr i64 %x3, 32
  %product = mul i64 %high, %interval
  %drawn = lshr i64 %product, 32
  %half = lshr i64 %interval, 1
  %wait = add i64 %drawn, %half
  %zero1 = getelementptr i8, ptr %spec, i64 8
  %zero2 = getelementptr i8, ptr %spec, i64 16
  %waitp = getelementptr i8, ptr %spec, i64 24
  store i64 0, ptr %spec, align 8
  store i64 0, ptr %zero1, align 8
  store i64 0, ptr %zero2, align 8
  store i64 %wait, ptr %waitp, align 8
  %timer = load i64, ptr %timerp, align 8
  %errnop = call ptr @__errno_location()
  %errno = load i32, ptr %errnop, align 4
  %r = call i64 (i64, ...) @syscall(i64 {settime}, i64 %timer, i64 0, ptr %spec, ptr null)
  store i32 %errno, ptr %errnop, align 4
  br label %exit
exit:
  ret void
}

define i64 @clew_run_sampled(
  ptr %run, ptr %go_on, ptr %steps, ptr %rows, i64 %n, ptr %pool, ptr %word
) nounwind {
entry:
  br label %row
row:
  %i = phi i64 [ 0, %entry ], [ %i1, %row_done ]
  %alone0 = phi i64 [ 0, %entry ], [ %alone1, %row_done ]
  %more = icmp ult i64 %i, %n
  br i1 %more, label %begin_row, label %exit
begin_row:
  %rowat = mul i64 %i, {ROW_BYTES}
  %beginp = getelementptr i8, ptr %rows, i64 %rowat
  %endp = getelementptr i8, ptr %beginp, i64 {ROW_END}
  %repeatsp = getelementptr i8, ptr %beginp, i64 {ROW_REPEATS}
  %top = getelementptr i8, ptr %beginp, i64 {ROW_TO}
  %fromp = getelementptr i8, ptr %beginp, i64 {ROW_FROM}
  %sizep = getelementptr i8, ptr %beginp, i64 {ROW_SIZE}
  %begin = load i64, ptr %beginp, align 8
  %end = load i64, ptr %endp, align 8
  %repeats = load i64, ptr %repeatsp, align 8
  %to = load ptr, ptr %top, align 8
  %from = load ptr, ptr %fromp, align 8
  %size = load i64, ptr %sizep, align 8
  %kept = icmp ne i64 %size, 0
  br i1 %kept, label %keep, label %repeat
keep:
  %k = call ptr @memcpy(ptr %from, ptr %to, i64 %size)
  br label %repeat
repeat:
  %j = phi i64 [ 0, %begin_row ], [ 0, %keep ], [ %j1, %repeat_done ]
  %alone1 = phi i64 [ %alone0, %begin_row ], [ %alone0, %keep ], [ %alone2, %repeat_done ]
  %again = icmp ult i64 %j, %repeats
  br i1 %again, label %restore, label %row_done
restore:
  %further = icmp ne i64 %j, 0
  %wanted = and i1 %further, %kept
  br i1 %wanted, label %copy, label %step
copy:
  %c = call ptr @memcpy(ptr %to, ptr %from, i64 %size)
  br label %step
step:
  %s = phi i64 [ %begin, %restore ], [ %begin, %copy ], [ %s1, %run_step ]
  %alone2 = phi i64 [ %alone1, %restore ], [ %alone1, %copy ], [ %alone3, %run_step ]
  %left = icmp ult i64 %s, %end
  br i1 %left, label %run_step, label %repeat_done
run_step:
  store atomic i64 %s, ptr %word monotonic, align 8
  %at = mul i64 %s, {STEP_BYTES}
  %first = getelementptr i8, ptr %steps, i64 %at
  %status = call i32 %run(ptr %first, i64 1, ptr %pool, ptr null)
  store atomic i64 {NO_STEP}, ptr %word monotonic, align 8
  %serially = icmp ne i32 %status, 0
  %one = zext i1 %serially to i64
  %alone3 = add i64 %alone2, %one
  %onward = add i64 %s, 1
  %s1 = call i64 %go_on(ptr %first, i64 %onward)
  br label %step
repeat_done:
  %j1 = add i64 %j, 1
  br label %repeat
row_done:
  %i1 = add i64 %i, 1
  br label %row
exit:
  ret i64 %alone0
}

define void @clew_divide(ptr %out, double %by, i64 %n) nounwind {
entry:
  %start = load double, ptr %out, align 8
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %x = phi double [ %start, %entry ], [ %quotient, %loop ]
  %quotient = fdiv double %x, %by
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %n
  br i1 %more, label %loop, label %exit
exit:
  store double %quotient, ptr %out, align 8
  ret void
}
"""


def sampler_text(platform: Platform) -> str:
    """Returns the LLVM module of the sampler for a platform."""
    words: dict[str, object] = {
        **{n: v for n, v in globals().items() if n.startswith(("RECORD_", "SAMPLE_", "ROW_"))},
        "NO_STEP": NO_STEP,
        "STEP_BYTES": STEP_BYTES,
        "counter": platform.counter,
        "settime": platform.calls.timer_settime,
    }
    text = _TEXT
    for name, value in words.items():
        text = text.replace("{" + name + "}", str(value))
    return text
