"""The driver's platform: instructions, and functions of the operating system.

Functions:
- `void futex_wait(word, expected)`, `void futex_wake(word, count)`: wait, and wake threads.
- `i64 thread_id()`: the operating system's id of the calling thread.
- `void give_way()`: lets other threads that wait for this core run first.
- `i32 sched_getcpu()`: the number of this core.
- `void leave_cpu(cpu)`: moves the calling thread to another core, if it may run on one.
- `i1 is_off(id)`: whether a thread is not running now.
- `i64 pull(id, cpu, saved)`: restricts a thread to the given core, and puts the cores that it
  could run on before into `saved`. Returns their number of bytes, or 0 if nothing was done.
- `void let_go(cpu, saved, bytes)`: moves the calling thread away from a core, and lets it run on
  all of the cores in `saved` again.

A set of cores has a bit for each of the first 1024 cores. Threads stay where they are on systems
with more.
"""

from __future__ import annotations

from typing import Final

from clew.support.dataclass import dataclass

CPUS_BYTES: Final = 128


@dataclass(frozen=True)
class SystemCalls:
    """Linux's numbers of the system calls that the driver uses."""

    futex: int
    thread_id: int
    give_way: int
    get_cpus: int
    set_cpus: int


@dataclass(frozen=True)
class Platform:
    """Properties that depend on the driver's platform."""

    calls: SystemCalls | None
    pause: str  # an instruction that eases spinning
    pause_declaration: str
    clock: int  # CLOCK_MONOTONIC
    counter: str = ""  # an instruction that reads the processor's counter, if there is one
    counter_declaration: str = ""


def platform_of(triple: str) -> Platform:
    """Returns the properties of a platform. Without system calls, it has no threads."""
    arch = triple.split("-")[0]
    if arch in ("x86_64", "amd64"):
        calls = SystemCalls(futex=202, thread_id=186, give_way=24, get_cpus=204, set_cpus=203)
        pause, argument, counter = "llvm.x86.sse2.pause", "", "llvm.readcyclecounter"
    elif arch in ("aarch64", "arm64"):
        calls = SystemCalls(futex=98, thread_id=178, give_way=124, get_cpus=123, set_cpus=122)
        pause, argument, counter = "llvm.aarch64.hint", "i32 1", "llvm.readsteadycounter"
    else:
        return Platform(None, "fence seq_cst", "", 1)
    linux = "linux" in triple
    return Platform(
        calls if linux else None,
        f"call void @{pause}({argument})",
        f"declare void @{pause}({argument.removesuffix(' 1')})",
        1 if linux else 6,
        f"call i64 @{counter}()",
        f"declare i64 @{counter}()",
    )


LINUX: Final = """
declare i64 @syscall(i64, ...)
declare i32 @sched_getcpu()

define internal void @futex_wait(ptr %word, i32 %expected) noinline nounwind {
  %r = call i64 (i64, ...) @syscall(i64 {futex}, ptr %word, i32 128, i32 %expected, ptr null)
  ret void
}

define internal void @futex_wake(ptr %word, i32 %count) noinline nounwind {
  %r = call i64 (i64, ...) @syscall(i64 {futex}, ptr %word, i32 129, i32 %count)
  ret void
}

define internal i64 @thread_id() noinline nounwind {
  %r = call i64 (i64, ...) @syscall(i64 {thread_id})
  ret i64 %r
}

define internal void @give_way() noinline nounwind {
  %r = call i64 (i64, ...) @syscall(i64 {give_way})
  ret void
}

define internal i1 @includes(ptr %cpus, i64 %bytes, i32 %cpu) noinline nounwind {
entry:
  %number = zext i32 %cpu to i64
  %known = shl i64 %bytes, 3
  %inside = icmp sgt i64 %known, %number
  br i1 %inside, label %look, label %none
look:
  %place = lshr i64 %number, 3
  %low = and i32 %cpu, 7
  %bit = trunc i32 %low to i8
  %bytep = getelementptr i8, ptr %cpus, i64 %place
  %byte = load i8, ptr %bytep, align 1
  %shifted = lshr i8 %byte, %bit
  %included = trunc i8 %shifted to i1
  ret i1 %included
none:
  ret i1 false
}

define internal void @flip(ptr %cpus, i32 %cpu) noinline nounwind {
  %number = zext i32 %cpu to i64
  %place = lshr i64 %number, 3
  %low = and i32 %cpu, 7
  %bit = trunc i32 %low to i8
  %own = shl i8 1, %bit
  %bytep = getelementptr i8, ptr %cpus, i64 %place
  %byte = load i8, ptr %bytep, align 1
  %flipped = xor i8 %byte, %own
  store i8 %flipped, ptr %bytep, align 1
  ret void
}

define internal void @leave_cpu(i32 %cpu) noinline nounwind {
  %cpus = alloca [{CPUS_BYTES} x i8], align 8
  %bytes = call i64 (i64, ...) @syscall(i64 {get_cpus}, i64 0, i64 {CPUS_BYTES}, ptr %cpus)
  call void @let_go(i32 %cpu, ptr %cpus, i64 %bytes)
  ret void
}

define internal void @let_go(i32 %cpu, ptr %cpus, i64 %bytes) noinline nounwind {
entry:
  %there = call i1 @includes(ptr %cpus, i64 %bytes, i32 %cpu)
  br i1 %there, label %leave, label %exit
leave:
  call void @flip(ptr %cpus, i32 %cpu)
  %r0 = call i64 (i64, ...) @syscall(i64 {set_cpus}, i64 0, i64 %bytes, ptr %cpus)
  call void @flip(ptr %cpus, i32 %cpu)
  %r1 = call i64 (i64, ...) @syscall(i64 {set_cpus}, i64 0, i64 %bytes, ptr %cpus)
  br label %exit
exit:
  ret void
}

define internal i64 @pull(i64 %id, i32 %cpu, ptr %saved) noinline nounwind {
entry:
  %one = alloca [{CPUS_BYTES} x i8], align 8
  %bytes = call i64 (i64, ...) @syscall(i64 {get_cpus}, i64 %id, i64 {CPUS_BYTES}, ptr %saved)
  %allowed = call i1 @includes(ptr %saved, i64 %bytes, i32 %cpu)
  br i1 %allowed, label %narrow, label %none
narrow:
  call void @llvm.memset.p0.i64(ptr %one, i8 0, i64 {CPUS_BYTES}, i1 false)
  call void @flip(ptr %one, i32 %cpu)
  %r = call i64 (i64, ...) @syscall(i64 {set_cpus}, i64 %id, i64 %bytes, ptr %one)
  %done = icmp eq i64 %r, 0
  br i1 %done, label %exit, label %none
exit:
  ret i64 %bytes
none:
  ret i64 0
}
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

define internal i1 @is_off(i64 %id) noinline nounwind {
entry:
  %times = alloca [4 x i64], align 8
  %id32 = trunc i64 %id to i32
  %inverse = xor i32 %id32, -1
  %shifted = shl i32 %inverse, 3
  %clock = or i32 %shifted, 6
  %after = getelementptr i8, ptr %times, i64 16
  %r0 = call i32 @clock_gettime(i32 %clock, ptr %times)
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  {pause}
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, 16
  br i1 %more, label %loop, label %again
again:
  %r1 = call i32 @clock_gettime(i32 %clock, ptr %after)
  %bad = or i32 %r0, %r1
  %read = icmp eq i32 %bad, 0
  %s0 = load i128, ptr %times, align 8
  %s1 = load i128, ptr %after, align 8
  %same = icmp eq i128 %s0, %s1
  %off = and i1 %read, %same
  ret i1 %off
}
"""

WITHOUT_THREADS: Final = """
define internal void @futex_wait(ptr %word, i32 %expected) nounwind { ret void }
define internal void @futex_wake(ptr %word, i32 %count) nounwind { ret void }
define internal i64 @thread_id() nounwind { ret i64 0 }
define internal void @give_way() nounwind { ret void }
define internal i32 @sched_getcpu() nounwind { ret i32 0 }
define internal void @leave_cpu(i32 %cpu) nounwind { ret void }
define internal i1 @is_off(i64 %id) nounwind { ret i1 false }
define internal i64 @pull(i64 %id, i32 %cpu, ptr %saved) nounwind { ret i64 0 }
define internal void @let_go(i32 %cpu, ptr %saved, i64 %bytes) nounwind { ret void }
"""
