"""LLVM text of the pool: how threads claim the chunks of a step, wait, and share cores.

**Claims.** One 64-bit *ticket* holds the generation (32 bits), the first remaining chunk (16) and
the end of the remaining chunks (16), and is claimed by compare-and-swap. It must hold both ends, or
a late worker could claim a chunk of a finished step. The caller takes chunks from the front and the
workers take them from the back, in the order that `runtime.division` defines. A claim takes the
remaining chunks divided by twice the number of threads, at least one: claims are large at first and
small at the end. Chunks, not claims, determine the results. A thread that claims chunks may read
the job, because the caller leaves a step only when all claimed chunks are done; it never waits for
a worker that has claimed none.

**Waiting.** Threads that wait spin for a while and then sleep. Only sleeping threads are woken.

**Company.** Another process may compute on the core of a worker. The scheduler then stops the
worker, usually for some milliseconds, and a chunk that it holds takes as long. If there are signs
of company, workers

- work in *stints*, shorter than the time after which schedulers stop a thread, and give way between
  two chunks at the end of each: a worker that is not running holds no chunk,
- claim single chunks, and
- leave the caller's core, which the scheduler may have put them on.

If a worker is stopped within a chunk nevertheless, the caller pulls the worker to its own core and
sleeps until the chunk is done.

Signs of company: a worker that spins or gives way does not run for a while; the caller waits for
long; a worker waits on the caller's core. Giving way without effect is a sign to the contrary.
"""

from __future__ import annotations

from typing import Final

TEXT: Final = """
define internal i64 @share_of(ptr %pool, i64 %left) alwaysinline nounwind {
  %sharesp = getelementptr i8, ptr %pool, i64 {POOL_SHARES}
  %shares = load i64, ptr %sharesp, align 8
  %part = udiv i64 %left, %shares
  %none = icmp eq i64 %part, 0
  %share = select i1 %none, i64 1, i64 %part
  ret i64 %share
}

define ptr @clew_worker(ptr %record) nounwind {
entry:
  %threadp = getelementptr i8, ptr %record, i64 {RECORD_THREAD}
  %pool = load ptr, ptr %record, align 8
  %thread = load i64, ptr %threadp, align 8
  %generationp = getelementptr i8, ptr %pool, i64 4
  %jobp = getelementptr i8, ptr %pool, i64 {POOL_JOB}
  %cpup = getelementptr i8, ptr %pool, i64 {POOL_CALLER_CPU}
  %donep = getelementptr i8, ptr %pool, i64 {POOL_DONE}
  %sleepersp = getelementptr i8, ptr %pool, i64 {POOL_SLEEPERS}
  %callerp = getelementptr i8, ptr %pool, i64 {POOL_CALLER_SLEEPS}
  %stopp = getelementptr i8, ptr %pool, i64 {POOL_STOP}
  %companyp = getelementptr i8, ptr %pool, i64 {POOL_COMPANY}
  %limitp = getelementptr i8, ptr %pool, i64 {POOL_WORKER_SPIN}
  %stintp = getelementptr i8, ptr %pool, i64 {POOL_STINT}
  %gapp = getelementptr i8, ptr %pool, i64 {POOL_GAP}
  %shortp = getelementptr i8, ptr %pool, i64 {POOL_COMPANY_SPIN}
  %holdsp = getelementptr i8, ptr %record, i64 {RECORD_HOLDS}
  %pulledp = getelementptr i8, ptr %record, i64 {RECORD_PULLED}
  %cpusp = getelementptr i8, ptr %record, i64 {RECORD_CPUS}
  %limit = load i64, ptr %limitp, align 8
  %short = load i64, ptr %shortp, align 8
  %stint = load i64, ptr %stintp, align 8
  %gap = load i64, ptr %gapp, align 8
  %resumedp = alloca i64, align 8
  %idlep = alloca i64, align 8
  %lookedp = alloca i64, align 8
  %t0 = {ticks}
  store i64 %t0, ptr %resumedp, align 8
  store i64 %t0, ptr %idlep, align 8
  %idp = getelementptr i8, ptr %record, i64 {RECORD_ID}
  %id = call i64 @thread_id()
  store atomic i64 %id, ptr %idp release, align 8
  br label %look
look:
  store atomic i64 0, ptr %holdsp monotonic, align 8
  %pulled = load atomic i64, ptr %pulledp acquire, align 8
  %stays = icmp eq i64 %pulled, 0
  br i1 %stays, label %open, label %free
free:
  %there = call i32 @sched_getcpu()
  call void @let_go(i32 %there, ptr %cpusp, i64 %pulled)
  store atomic i64 0, ptr %pulledp release, align 8
  %t6 = {ticks}
  store i64 %t6, ptr %resumedp, align 8
  br label %look
open:
  %ticket = load atomic i64, ptr %pool acquire, align 8
  %end = and i64 %ticket, 65535
  %high = lshr i64 %ticket, 16
  %first = and i64 %high, 65535
  %work = icmp ult i64 %first, %end
  br i1 %work, label %ready, label %idle
ready:
  %left = sub i64 %end, %first
  %company0 = load atomic i32, ptr %companyp monotonic, align 4
  %alone = icmp eq i32 %company0, 0
  br i1 %alone, label %shared, label %careful
careful:
  %t1 = {ticks}
  %resumed1 = load i64, ptr %resumedp, align 8
  %ran1 = sub i64 %t1, %resumed1
  %spent1 = icmp ugt i64 %ran1, %stint
  br i1 %spent1, label %yield, label %claim
shared:
  %most = call i64 @share_of(ptr %pool, i64 %left)
  br label %claim
claim:
  %share = phi i64 [ %most, %shared ], [ 1, %careful ]
  %job = load atomic ptr, ptr %jobp monotonic, align 8
  %from = sub i64 %end, %share
  %taken = sub i64 %ticket, %share
  store atomic i64 1, ptr %holdsp monotonic, align 8
  %swap = cmpxchg ptr %pool, i64 %ticket, i64 %taken acq_rel monotonic, align 8
  %won = extractvalue { i64, i1 } %swap, 1
  br i1 %won, label %run, label %look
run:
  %above = phi i64 [ %end, %claim ], [ %index, %run ]
  %index = sub i64 %above, 1
  call void @run_chunk(ptr %job, i64 %thread, i64 %index)
  %more = icmp ugt i64 %index, %from
  br i1 %more, label %run, label %ran
ran:
  %count = trunc i64 %share to i32
  %before = atomicrmw add ptr %donep, i32 %count seq_cst, align 4
  store i64 0, ptr %idlep, align 8
  %asleep = load atomic i32, ptr %callerp seq_cst, align 4
  %awake = icmp eq i32 %asleep, 0
  br i1 %awake, label %look, label %wake
wake:
  call void @futex_wake(ptr %donep, i32 1)
  br label %look
idle:
  %stop = load atomic i32, ptr %stopp acquire, align 4
  %go = icmp eq i32 %stop, 0
  br i1 %go, label %rest, label %quit
rest:
  %t2 = {ticks}
  store i64 %t2, ptr %lookedp, align 8
  %idle0 = load i64, ptr %idlep, align 8
  %begins = icmp eq i64 %idle0, 0
  br i1 %begins, label %begin, label %spin
begin:
  store i64 %t2, ptr %idlep, align 8
  br label %spin
spin:
  %seen = load atomic i64, ptr %pool acquire, align 8
  %changed = icmp ne i64 %seen, %ticket
  %held = load atomic i64, ptr %pulledp monotonic, align 8
  %moved = icmp ne i64 %held, 0
  %acts = or i1 %changed, %moved
  br i1 %acts, label %look, label %again
again:
  {pause}
  %now = {ticks}
  %looked = load i64, ptr %lookedp, align 8
  store i64 %now, ptr %lookedp, align 8
  %away = sub i64 %now, %looked
  %off = icmp ugt i64 %away, %gap
  br i1 %off, label %returned, label %here
returned:
  store atomic i32 {COMPANY}, ptr %companyp monotonic, align 4
  store i64 %now, ptr %resumedp, align 8
  br label %here
here:
  %idle1 = load i64, ptr %idlep, align 8
  %idled = sub i64 %now, %idle1
  %enough = icmp ugt i64 %idled, %limit
  br i1 %enough, label %sleep, label %stay
stay:
  %company2 = load atomic i32, ptr %companyp monotonic, align 4
  %accompanied = icmp ne i32 %company2, 0
  %waits = icmp ugt i64 %idled, %short
  %watchful = or i1 %accompanied, %waits
  %own = call i32 @sched_getcpu()
  %callers = load atomic i32, ptr %cpup monotonic, align 4
  %same = icmp eq i32 %own, %callers
  %leaves = and i1 %same, %watchful
  br i1 %leaves, label %leave, label %elsewhere
leave:
  call void @leave_cpu(i32 %own)
  br label %yield
elsewhere:
  %resumed2 = load i64, ptr %resumedp, align 8
  %ran2 = sub i64 %now, %resumed2
  %spent2 = icmp ugt i64 %ran2, %stint
  %gives = and i1 %spent2, %accompanied
  br i1 %gives, label %yield, label %spin
yield:
  %t3 = {ticks}
  call void @give_way()
  %t4 = {ticks}
  store i64 %t4, ptr %resumedp, align 8
  %gone = sub i64 %t4, %t3
  %long = icmp ugt i64 %gone, %gap
  %company3 = load atomic i32, ptr %companyp monotonic, align 4
  %more_than_none = call i32 @llvm.smax.i32(i32 %company3, i32 1)
  %less = sub i32 %more_than_none, 1
  %evidence = select i1 %long, i32 {COMPANY}, i32 %less
  store atomic i32 %evidence, ptr %companyp monotonic, align 4
  br label %look
sleep:
  %s0 = atomicrmw add ptr %sleepersp, i32 1 seq_cst, align 4
  %upper = lshr i64 %ticket, 32
  %generation = trunc i64 %upper to i32
  call void @futex_wait(ptr %generationp, i32 %generation)
  %s1 = atomicrmw sub ptr %sleepersp, i32 1 seq_cst, align 4
  %t5 = {ticks}
  store i64 %t5, ptr %resumedp, align 8
  store i64 0, ptr %idlep, align 8
  br label %look
quit:
  ret ptr null
}

declare i64 @llvm.umax.i64(i64, i64)
declare i32 @llvm.smax.i32(i32, i32)

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

define internal void @pull_workers(ptr %pool) noinline nounwind {
entry:
  %countp = getelementptr i8, ptr %pool, i64 {POOL_WORKERS}
  %count = load i64, ptr %countp, align 8
  %cpu = call i32 @sched_getcpu()
  br label %loop
loop:
  %n = phi i64 [ 0, %entry ], [ %next, %done ]
  %more = icmp ult i64 %n, %count
  br i1 %more, label %look, label %exit
look:
  %at = mul i64 %n, {RECORD_BYTES}
  %from = add i64 %at, {POOL_BYTES}
  %record = getelementptr i8, ptr %pool, i64 %from
  %holdsp = getelementptr i8, ptr %record, i64 {RECORD_HOLDS}
  %pulledp = getelementptr i8, ptr %record, i64 {RECORD_PULLED}
  %idp = getelementptr i8, ptr %record, i64 {RECORD_ID}
  %cpusp = getelementptr i8, ptr %record, i64 {RECORD_CPUS}
  %holds = load atomic i64, ptr %holdsp monotonic, align 8
  %pulled = load atomic i64, ptr %pulledp acquire, align 8
  %works = icmp ne i64 %holds, 0
  %unpulled = icmp eq i64 %pulled, 0
  %may = and i1 %works, %unpulled
  br i1 %may, label %ask, label %done
ask:
  %id = load atomic i64, ptr %idp monotonic, align 8
  %off = call i1 @is_off(i64 %id)
  br i1 %off, label %pull, label %done
pull:
  %bytes = call i64 @pull(i64 %id, i32 %cpu, ptr %cpusp)
  store atomic i64 %bytes, ptr %pulledp release, align 8
  br label %done
done:
  %next = add i64 %n, 1
  br label %loop
exit:
  ret void
}

define internal void @run_parallel(ptr %pool, ptr %step, i64 %chunks) noinline nounwind {
entry:
  %jobp = getelementptr i8, ptr %pool, i64 {POOL_JOB}
  %cpup = getelementptr i8, ptr %pool, i64 {POOL_CALLER_CPU}
  %donep = getelementptr i8, ptr %pool, i64 {POOL_DONE}
  %callerp = getelementptr i8, ptr %pool, i64 {POOL_CALLER_SLEEPS}
  %companyp = getelementptr i8, ptr %pool, i64 {POOL_COMPANY}
  %spinp = getelementptr i8, ptr %pool, i64 {POOL_CALLER_SPIN}
  %shortp = getelementptr i8, ptr %pool, i64 {POOL_COMPANY_SPIN}
  %n = trunc i64 %chunks to i32
  %helpers = sub i32 %n, 1
  %start = {ticks}
  %cpu = call i32 @sched_getcpu()
  store atomic ptr %step, ptr %jobp monotonic, align 8
  store atomic i32 %cpu, ptr %cpup monotonic, align 4
  store atomic i32 0, ptr %donep monotonic, align 4
  call void @publish(ptr %pool, i64 %chunks, i32 %helpers)
  br label %look
look:
  %own = phi i64 [ 0, %entry ], [ %own, %claim ], [ %owned, %ran ]
  %ticket = load atomic i64, ptr %pool acquire, align 8
  %end = and i64 %ticket, 65535
  %high = lshr i64 %ticket, 16
  %index = and i64 %high, 65535
  %work = icmp ult i64 %index, %end
  br i1 %work, label %claim, label %join
claim:
  %left = sub i64 %end, %index
  %share = call i64 @share_of(ptr %pool, i64 %left)
  %counted = shl i64 %share, 16
  %taken = add i64 %ticket, %counted
  %after = add i64 %index, %share
  %swap = cmpxchg ptr %pool, i64 %ticket, i64 %taken acq_rel monotonic, align 8
  %won = extractvalue { i64, i1 } %swap, 1
  br i1 %won, label %run, label %look
run:
  %at = phi i64 [ %index, %claim ], [ %next_at, %run ]
  call void @run_chunk(ptr %step, i64 0, i64 %at)
  %next_at = add i64 %at, 1
  %more = icmp ult i64 %next_at, %after
  br i1 %more, label %run, label %ran
ran:
  %owned = add i64 %own, %share
  br label %look
join:
  %rest = sub i64 %chunks, %own
  %others = trunc i64 %rest to i32
  %first_done = load atomic i32, ptr %donep acquire, align 4
  %over = icmp eq i32 %first_done, %others
  br i1 %over, label %exit, label %wait
wait:
  %company = load atomic i32, ptr %companyp monotonic, align 4
  %accompanied = icmp ne i32 %company, 0
  %long = load i64, ptr %spinp, align 8
  %short = load i64, ptr %shortp, align 8
  %began = {ticks}
  %ran_for = sub i64 %began, %start
  %least = call i64 @llvm.umax.i64(i64 %own, i64 1)
  %each = udiv i64 %ran_for, %least
  %two = shl i64 %each, 1
  %soon = add i64 %two, %short
  %limit = select i1 %accompanied, i64 %soon, i64 %long
  br label %spin
spin:
  %done = load atomic i32, ptr %donep acquire, align 4
  %all = icmp eq i32 %done, %others
  br i1 %all, label %exit, label %again
again:
  {pause}
  %now = {ticks}
  %waited = sub i64 %now, %began
  %on = icmp ult i64 %waited, %limit
  br i1 %on, label %spin, label %doze
doze:
  store atomic i32 {COMPANY}, ptr %companyp monotonic, align 4
  call void @pull_workers(ptr %pool)
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
