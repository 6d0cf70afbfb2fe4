"""LLVM text of the functions that run a table of steps; see `codegen.driver.driver`."""

from __future__ import annotations

from typing import Final

TEXT: Final = """
define i32 @clew_run_steps(ptr %steps, i64 %n, ptr %pool, ptr %watch) nounwind {
  %status = call i32 @run(ptr %steps, i64 0, i64 %n, ptr %pool, ptr %watch, ptr null)
  ret i32 %status
}

define internal i32 @run(
  ptr %steps, i64 %from, i64 %n, ptr %pool, ptr %watch, ptr %segment
) noinline nounwind {
entry:
  %flows = icmp ne ptr %segment, null
  %timed = icmp ne ptr %watch, null
  %pooled = icmp ne ptr %pool, null
  br i1 %pooled, label %lock, label %begin
lock:
  %locked = call i32 @clew_pool_lock(ptr %pool)
  %busy = icmp eq i32 %locked, 0
  br i1 %busy, label %alone, label %begin
alone:
  br label %begin
begin:
  %p = phi ptr [ null, %entry ], [ %pool, %lock ], [ null, %alone ]
  %status = phi i32 [ {RAN}, %entry ], [ {RAN}, %lock ], [ {RAN_SERIALLY}, %alone ]
  %threaded = icmp ne ptr %p, null
  br i1 %flows, label %limit, label %start
limit:
  %slicep = getelementptr i8, ptr %segment, i64 {SEGMENT_SLICE}
  %slice = load i64, ptr %slicep, align 8
  %slow = icmp ne i64 %slice, 0
  br i1 %slow, label %slice_begins, label %start
slice_begins:
  %soon = {ticks}
  br label %start
start:
  %pauses = phi i1 [ false, %begin ], [ false, %limit ], [ true, %slice_begins ]
  %started = phi i64 [ 0, %begin ], [ 0, %limit ], [ %soon, %slice_begins ]
  %sliced = phi i64 [ 0, %begin ], [ 0, %limit ], [ %slice, %slice_begins ]
  br i1 %timed, label %wind, label %loop
wind:
  %countsp = getelementptr i8, ptr %watch, i64 {WATCH_COUNTS}
  %counts0 = load ptr, ptr %countsp, align 8
  %ticksp = getelementptr i8, ptr %watch, i64 {WATCH_TICKS}
  %firstp = getelementptr i8, ptr %watch, i64 {WATCH_FIRST}
  %lastp = getelementptr i8, ptr %watch, i64 {WATCH_LAST}
  %ticks0 = load ptr, ptr %ticksp, align 8
  %first0 = load i64, ptr %firstp, align 8
  %last0 = load i64, ptr %lastp, align 8
  %width = sub i64 %last0, %first0
  %none = icmp eq i64 %width, 0
  %wider = add i64 %width, 1
  %stamps0 = select i1 %none, i64 0, i64 %wider
  %t0 = {ticks}
  br label %loop
loop:
  %i = phi i64 [ %from, %start ], [ %from, %wind ], [ %next, %step_done ], [ %to, %flow_done ]
  %t = phi i64 [ 0, %start ], [ %t0, %wind ], [ %t2, %step_done ], [ %t5, %flow_done ]
  %ticks = phi ptr [ null, %start ], [ %ticks0, %wind ],
    [ %ticks, %step_done ], [ %ticks, %flow_done ]
  %counts = phi ptr [ null, %start ], [ %counts0, %wind ],
    [ %counts, %step_done ], [ %counts, %flow_done ]
  %first = phi i64 [ 0, %start ], [ %first0, %wind ], [ %first, %step_done ], [ %first, %flow_done ]
  %stamps = phi i64 [ 0, %start ], [ %stamps0, %wind ],
    [ %stamps, %step_done ], [ %stamps, %flow_done ]
  %began = phi i64 [ 0, %start ], [ %t0, %wind ], [ %began, %step_done ], [ %began, %flow_done ]
  %more = icmp ult i64 %i, %n
  br i1 %more, label %step, label %end
step:
  %at = mul i64 %i, {STEP_BYTES}
  %s = getelementptr i8, ptr %steps, i64 %at
  %kindp = getelementptr i8, ptr %s, i64 {STEP_KIND}
  %kind = load i64, ptr %kindp, align 8
  %calls_none = icmp ne i64 %kind, {KERNEL}
  br i1 %calls_none, label %flow, label %kernel
flow:
  %onward = add i64 %i, 1
  br i1 %flows, label %follow, label %flowed
follow:
  %there = call i64 @clew_go_on(ptr %s, i64 %onward)
  %tests = icmp eq i64 %kind, {TEST}
  %stays = icmp eq i64 %there, %i
  %full = and i1 %tests, %stays
  br i1 %full, label %pause, label %followed
followed:
  %iterates = icmp eq i64 %kind, {NEXT}
  %looks = and i1 %iterates, %pauses
  br i1 %looks, label %look, label %flowed
look:
  %t6 = {ticks}
  %gone = sub i64 %t6, %started
  %longer = icmp ugt i64 %gone, %sliced
  br i1 %longer, label %pause, label %flowed
pause:
  %stops = phi i32 [ {PAUSED}, %look ], [ {FULL}, %follow ]
  %startp = getelementptr i8, ptr %segment, i64 {SEGMENT_START}
  store i64 %there, ptr %startp, align 8
  br label %end
flowed:
  %to = phi i64 [ %onward, %flow ], [ %there, %followed ], [ %there, %look ]
  br i1 %timed, label %restamp, label %flow_done
restamp:
  %t4 = {ticks}
  br label %flow_done
flow_done:
  %t5 = phi i64 [ %t, %flowed ], [ %t4, %restamp ]
  br label %loop
kernel:
  %chunksp = getelementptr i8, ptr %s, i64 {STEP_CHUNKS}
  %chunks = load i64, ptr %chunksp, align 8
  %many = icmp ugt i64 %chunks, 1
  %parallel = and i1 %many, %threaded
  br i1 %parallel, label %together, label %serial
together:
  call void @run_parallel(ptr %p, ptr %s, i64 %chunks)
  br label %ran
serial:
  %chunk = phi i64 [ 0, %kernel ], [ %following, %again ]
  %left = icmp ult i64 %chunk, %chunks
  br i1 %left, label %again, label %ran
again:
  call void @run_chunk(ptr %s, i64 0, i64 %chunk)
  %following = add i64 %chunk, 1
  br label %serial
ran:
  %next = add i64 %i, 1
  %since = sub i64 %next, %first
  %inside = icmp ult i64 %since, %stamps
  br i1 %inside, label %stamp, label %step_done
stamp:
  %t1 = {ticks}
  %before = icmp eq i64 %since, 0
  br i1 %before, label %step_done, label %note
note:
  %took = sub i64 %t1, %t
  %tickp = getelementptr i64, ptr %ticks, i64 %i
  %sum = load i64, ptr %tickp, align 8
  %summed = add i64 %sum, %took
  store i64 %summed, ptr %tickp, align 8
  %countp = getelementptr i64, ptr %counts, i64 %i
  %often = load i64, ptr %countp, align 8
  %oftener = add i64 %often, 1
  store i64 %oftener, ptr %countp, align 8
  br label %step_done
step_done:
  %t2 = phi i64 [ %t, %ran ], [ %t1, %stamp ], [ %t1, %note ]
  br label %loop
end:
  %called_for = phi i64 [ 1, %loop ], [ 0, %pause ]
  %ends = phi i32 [ %status, %loop ], [ %stops, %pause ]
  br i1 %timed, label %finish, label %over
finish:
  %t3 = {ticks}
  %whole = sub i64 %t3, %began
  %callsp = getelementptr i8, ptr %watch, i64 {WATCH_CALLS}
  %wholep = getelementptr i8, ptr %watch, i64 {WATCH_WHOLE}
  %calls = load i64, ptr %callsp, align 8
  %called = add i64 %calls, %called_for
  store i64 %called, ptr %callsp, align 8
  %wholes = load i64, ptr %wholep, align 8
  %wholed = add i64 %wholes, %whole
  store i64 %wholed, ptr %wholep, align 8
  br label %over
over:
  br i1 %threaded, label %unlock, label %exit
unlock:
  %lockp = getelementptr i8, ptr %p, i64 {POOL_LOCKED}
  store atomic i32 0, ptr %lockp release, align 4
  br label %exit
exit:
  ret i32 %ends
}

define i32 @clew_run_segment(ptr %segment, ptr %bases, ptr %pool, ptr %watch) nounwind {
entry:
  %nstepsp = getelementptr i8, ptr %segment, i64 {SEGMENT_N_STEPS}
  %startp = getelementptr i8, ptr %segment, i64 {SEGMENT_START}
  %steps = load ptr, ptr %segment, align 8
  %nsteps = load i64, ptr %nstepsp, align 8
  %start = load i64, ptr %startp, align 8
  %fresh = icmp eq i64 %start, 0
  br i1 %fresh, label %place, label %resume
resume:
  store i64 0, ptr %startp, align 8
  br label %go
place:
  %patchesp = getelementptr i8, ptr %segment, i64 {SEGMENT_PATCHES}
  %npatchesp = getelementptr i8, ptr %segment, i64 {SEGMENT_N_PATCHES}
  %patches = load ptr, ptr %patchesp, align 8
  %npatches = load i64, ptr %npatchesp, align 8
  call void @patch(ptr %patches, i64 %npatches, ptr %bases)
  br label %go
go:
  %status = call i32 @run(
    ptr %steps, i64 %start, i64 %nsteps, ptr %pool, ptr %watch, ptr %segment
  )
  ret i32 %status
}
"""
