"""LLVM text of the driver's control flow: branches, loops, and copies between buffers.

A step of a kind other than `KERNEL` calls no kernel, but says which step comes next. Its argument
table holds addresses, as a kernel's does.

- `BEGIN`: the loop's counter is 0. Arguments: the counter, then where each *moving* buffer of the
  loop is in its first iteration.
- `TEST`: whether there is another iteration; if not, the target comes next. If there is one, but
  no memory for its rows, the loop is marked as full and this step itself comes next. Arguments: the
  counter and, if the trip count is not known before the run, a condition of one byte or the trip
  count itself (64 bits).
- `NEXT`: ends an iteration. The counter counts, moving buffers move, the target comes next.
- `COPY`: copies bytes from its second argument to its first.
- `UNLESS`: the target comes next unless the byte that its argument points to is set.
- `JUMP`: the target comes next.
- `END`: where a loop or branch is over. Does nothing.
- `ROW`: begins an iteration of a loop whose sizes change: writes the next row of a table of numbers
  to the addresses in the table's header. The target comes next if no row is left. Arguments: what
  the rows write to, for its lifetime.
- `SIZES`: reads counts that kernels before it have found, computes what follows from them, and
  writes the results to the addresses in the header of its table. If a count is negative or larger
  than its limit, or a number that must be at least 0 is negative, the table's fault is set and the
  target comes next. Arguments: the counts, then what else it writes to, for its lifetime.

A loop moves three buffers for each of its states: one that an iteration reads, one that it writes,
and a spare one. The next iteration reads the buffer that this one wrote, and writes the spare one.
Only the first iteration reads a fourth buffer, which holds the initial state. For each stack the
loop moves one buffer, which advances by the bytes of a row. The loop's patches then write the
addresses into the argument tables of the steps that read and write there, including steps of other
loops (`clew_patch_loop`).

If the trip count is known before the run, stacks have memory for all rows. Otherwise they have
memory for a number of rows, the loop's *capacity*. When the loop is full, Python moves the rows to
larger memory.

A loop ends early, with its fault set, if it takes more iterations than its limit in one call.
"""

from __future__ import annotations

from typing import Final

KERNEL, BEGIN, TEST, NEXT, COPY, UNLESS, JUMP, END, ROW, SIZES = range(10)

# A loop: 64-bit words. `TOTAL` counts the iterations of all entries of the loop since Python last
# reset it. `TRIPS` is `BY_CONDITION` or `BY_VALUE` if an argument of `TEST` ends the loop. The
# stacks of such a loop have memory for `CAPACITY` rows, and `FULL` is 1 if another row is needed. A
# loop whose full stacks are moved is entered once, so `TOTAL` is their number of rows.
BY_CONDITION, BY_VALUE = -1, -2
LOOP_LIMIT, LOOP_TRIPS, LOOP_TOTAL, LOOP_FAULT = 0, 8, 16, 24
LOOP_MOVING, LOOP_STATES, LOOP_STACKS, LOOP_STRIDES = 32, 40, 48, 56
LOOP_PATCHES, LOOP_N_PATCHES, LOOP_CAPACITY, LOOP_FULL, LOOP_BYTES = 64, 72, 80, 88, 96

# A table of rows: 64-bit words. `POSITION` is the next row, of `COUNT`; a row has `WIDTH` numbers.
# `DATA` is the first row and `TARGETS` the addresses that the numbers go to. `LOOP` is a loop to
# patch afterwards, or 0.
ROWS_POSITION, ROWS_COUNT, ROWS_WIDTH = 0, 8, 16
ROWS_DATA, ROWS_TARGETS, ROWS_LOOP, ROWS_BYTES = 24, 32, 40, 48

EXPORTS: Final = ("clew_go_on", "clew_patch_loop")

TEXT: Final = """
declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)

define internal void @patch(ptr %patches, i64 %n, ptr %bases) nounwind {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %patch ]
  %more = icmp ult i64 %i, %n
  br i1 %more, label %patch, label %exit
patch:
  %at = mul i64 %i, {PATCH_BYTES}
  %p = getelementptr i8, ptr %patches, i64 %at
  %basep = getelementptr i8, ptr %p, i64 {PATCH_BASE}
  %offsetp = getelementptr i8, ptr %p, i64 {PATCH_OFFSET}
  %slot = load ptr, ptr %p, align 8
  %index = load i64, ptr %basep, align 8
  %offset = load i64, ptr %offsetp, align 8
  %sourcep = getelementptr i64, ptr %bases, i64 %index
  %base = load ptr, ptr %sourcep, align 8
  %address = getelementptr i8, ptr %base, i64 %offset
  store ptr %address, ptr %slot, align 8
  %next = add i64 %i, 1
  br label %loop
exit:
  ret void
}

define void @clew_patch_loop(ptr %loop, ptr %moving) nounwind {
  %patchesp = getelementptr i8, ptr %loop, i64 {LOOP_PATCHES}
  %countp = getelementptr i8, ptr %loop, i64 {LOOP_N_PATCHES}
  %patches = load ptr, ptr %patchesp, align 8
  %count = load i64, ptr %countp, align 8
  call void @patch(ptr %patches, i64 %count, ptr %moving)
  ret void
}

define i64 @clew_go_on(ptr %step, i64 %next) noinline nounwind {
entry:
  %kindp = getelementptr i8, ptr %step, i64 {STEP_KIND}
  %targetp = getelementptr i8, ptr %step, i64 {STEP_TARGET}
  %extrap = getelementptr i8, ptr %step, i64 {STEP_EXTRA}
  %kind = load i64, ptr %kindp, align 8
  %args = load ptr, ptr %step, align 8
  %target = load i64, ptr %targetp, align 8
  %bytes = load i64, ptr %extrap, align 8
  %loop = load ptr, ptr %extrap, align 8
  switch i64 %kind, label %fall [
    i64 {BEGIN}, label %begin
    i64 {TEST}, label %test
    i64 {NEXT}, label %iteration
    i64 {COPY}, label %copy
    i64 {UNLESS}, label %unless
    i64 {JUMP}, label %jump
    i64 {ROW}, label %row_begins
    i64 {SIZES}, label %sizes
  ]
fall:
  ret i64 %next
jump:
  ret i64 %target
row_begins:
  %rcountp = getelementptr i8, ptr %loop, i64 {ROWS_COUNT}
  %rposition = load i64, ptr %loop, align 8
  %rcount = load i64, ptr %rcountp, align 8
  %rleft = icmp slt i64 %rposition, %rcount
  br i1 %rleft, label %row_found, label %jump
row_found:
  %rwidthp = getelementptr i8, ptr %loop, i64 {ROWS_WIDTH}
  %rdatap = getelementptr i8, ptr %loop, i64 {ROWS_DATA}
  %rtargetsp = getelementptr i8, ptr %loop, i64 {ROWS_TARGETS}
  %rloopp = getelementptr i8, ptr %loop, i64 {ROWS_LOOP}
  %rwidth = load i64, ptr %rwidthp, align 8
  %rdata = load ptr, ptr %rdatap, align 8
  %rtargets = load ptr, ptr %rtargetsp, align 8
  %rloop = load ptr, ptr %rloopp, align 8
  %rfirst = mul i64 %rposition, %rwidth
  %rnumbers = getelementptr i64, ptr %rdata, i64 %rfirst
  %rnext = add i64 %rposition, 1
  store i64 %rnext, ptr %loop, align 8
  br label %put
put:
  %w = phi i64 [ 0, %row_found ], [ %w1, %row_put ]
  %unwritten = icmp ult i64 %w, %rwidth
  br i1 %unwritten, label %row_put, label %row_written
row_put:
  %numberp = getelementptr i64, ptr %rnumbers, i64 %w
  %goesp = getelementptr i64, ptr %rtargets, i64 %w
  %number = load i64, ptr %numberp, align 8
  %goal = load ptr, ptr %goesp, align 8
  store i64 %number, ptr %goal, align 8
  %w1 = add i64 %w, 1
  br label %put
row_written:
  %repatches = icmp ne ptr %rloop, null
  br i1 %repatches, label %repatch, label %fall
repatch:
  %rmovingp = getelementptr i8, ptr %rloop, i64 {LOOP_MOVING}
  %rmoving = load ptr, ptr %rmovingp, align 8
  call void @clew_patch_loop(ptr %rloop, ptr %rmoving)
  ret i64 %next
sizes:
  %fits_all = call i1 @compute_sizes(ptr %loop, ptr %args)
  %sized = select i1 %fits_all, i64 %next, i64 %target
  ret i64 %sized
copy:
  %fromp = getelementptr i8, ptr %args, i64 8
  %to = load ptr, ptr %args, align 8
  %from = load ptr, ptr %fromp, align 8
  call void @llvm.memmove.p0.p0.i64(ptr %to, ptr %from, i64 %bytes, i1 false)
  ret i64 %next
unless:
  %decides = load ptr, ptr %args, align 8
  %decision = load i8, ptr %decides, align 1
  %taken = icmp ne i8 %decision, 0
  %after = select i1 %taken, i64 %next, i64 %target
  ret i64 %after
begin:
  %zerop = load ptr, ptr %args, align 8
  store i64 0, ptr %zerop, align 8
  %bmovingp = getelementptr i8, ptr %loop, i64 {LOOP_MOVING}
  %bstatesp = getelementptr i8, ptr %loop, i64 {LOOP_STATES}
  %bstacksp = getelementptr i8, ptr %loop, i64 {LOOP_STACKS}
  %bmoving = load ptr, ptr %bmovingp, align 8
  %bstates = load i64, ptr %bstatesp, align 8
  %bstacks = load i64, ptr %bstacksp, align 8
  %three = mul i64 %bstates, 3
  %all = add i64 %three, %bstacks
  br label %place
place:
  %n = phi i64 [ 0, %begin ], [ %n1, %placed ]
  %unplaced = icmp ult i64 %n, %all
  br i1 %unplaced, label %placed, label %begun
placed:
  %n1 = add i64 %n, 1
  %givenp = getelementptr i64, ptr %args, i64 %n1
  %given = load ptr, ptr %givenp, align 8
  %movesp = getelementptr i64, ptr %bmoving, i64 %n
  store ptr %given, ptr %movesp, align 8
  br label %place
begun:
  call void @clew_patch_loop(ptr %loop, ptr %bmoving)
  ret i64 %next
test:
  %countedp = load ptr, ptr %args, align 8
  %counted = load i64, ptr %countedp, align 8
  %ttripsp = getelementptr i8, ptr %loop, i64 {LOOP_TRIPS}
  %ttotalp = getelementptr i8, ptr %loop, i64 {LOOP_TOTAL}
  %ttrips = load i64, ptr %ttripsp, align 8
  %ttotal = load i64, ptr %ttotalp, align 8
  %limit = load i64, ptr %loop, align 8
  %known = icmp sge i64 %ttrips, 0
  br i1 %known, label %count, label %unknown
unknown:
  %endsp = getelementptr i8, ptr %args, i64 8
  %ends = load ptr, ptr %endsp, align 8
  %by_value = icmp eq i64 %ttrips, {BY_VALUE}
  br i1 %by_value, label %value, label %condition
value:
  %vtrips = load i64, ptr %ends, align 1
  %remain = icmp slt i64 %counted, %vtrips
  br label %tested
count:
  %left = icmp slt i64 %counted, %ttrips
  br label %tested
condition:
  %holdsb = load i8, ptr %ends, align 1
  %holds = icmp ne i8 %holdsb, 0
  br label %tested
tested:
  %goes = phi i1 [ %left, %count ], [ %remain, %value ], [ %holds, %condition ]
  br i1 %goes, label %check, label %over
check:
  %within = icmp slt i64 %ttotal, %limit
  br i1 %within, label %within_limit, label %fault
within_limit:
  %tcapacityp = getelementptr i8, ptr %loop, i64 {LOOP_CAPACITY}
  %tcapacity = load i64, ptr %tcapacityp, align 8
  %fits = icmp slt i64 %counted, %tcapacity
  br i1 %fits, label %enter, label %full
enter:
  ret i64 %next
full:
  %fullp = getelementptr i8, ptr %loop, i64 {LOOP_FULL}
  store i64 1, ptr %fullp, align 8
  %itself = sub i64 %next, 1
  ret i64 %itself
fault:
  %faultp = getelementptr i8, ptr %loop, i64 {LOOP_FAULT}
  store i64 1, ptr %faultp, align 8
  ret i64 %target
over:
  ret i64 %target
iteration:
  %counterp = load ptr, ptr %args, align 8
  %before = load i64, ptr %counterp, align 8
  %counter = add i64 %before, 1
  store i64 %counter, ptr %counterp, align 8
  %totalp = getelementptr i8, ptr %loop, i64 {LOOP_TOTAL}
  %total = load i64, ptr %totalp, align 8
  %total1 = add i64 %total, 1
  store i64 %total1, ptr %totalp, align 8
  %tripsp = getelementptr i8, ptr %loop, i64 {LOOP_TRIPS}
  %movingp = getelementptr i8, ptr %loop, i64 {LOOP_MOVING}
  %statesp = getelementptr i8, ptr %loop, i64 {LOOP_STATES}
  %stacksp = getelementptr i8, ptr %loop, i64 {LOOP_STACKS}
  %stridesp = getelementptr i8, ptr %loop, i64 {LOOP_STRIDES}
  %trips = load i64, ptr %tripsp, align 8
  %moving = load ptr, ptr %movingp, align 8
  %states = load i64, ptr %statesp, align 8
  %stacks0 = load i64, ptr %stacksp, align 8
  %strides = load ptr, ptr %stridesp, align 8
  %capacityp = getelementptr i8, ptr %loop, i64 {LOOP_CAPACITY}
  %capacity = load i64, ptr %capacityp, align 8
  %counts = icmp sge i64 %trips, 0
  %rows = select i1 %counts, i64 %trips, i64 %capacity
  %last = icmp sge i64 %counter, %rows
  %stacks = select i1 %last, i64 0, i64 %stacks0
  br label %rotate
rotate:
  %s = phi i64 [ 0, %iteration ], [ %s1, %rotated ]
  %m = phi i64 [ 0, %iteration ], [ %m3, %rotated ]
  %unrotated = icmp ult i64 %s, %states
  br i1 %unrotated, label %rotated, label %advance
rotated:
  %readp = getelementptr i64, ptr %moving, i64 %m
  %writep = getelementptr i64, ptr %readp, i64 1
  %sparep = getelementptr i64, ptr %readp, i64 2
  %write = load ptr, ptr %writep, align 8
  %spare = load ptr, ptr %sparep, align 8
  store ptr %write, ptr %readp, align 8
  store ptr %spare, ptr %writep, align 8
  store ptr %write, ptr %sparep, align 8
  %s1 = add i64 %s, 1
  %m3 = add i64 %m, 3
  br label %rotate
advance:
  %k = phi i64 [ 0, %rotate ], [ %k1, %advanced ]
  %unmoved = icmp ult i64 %k, %stacks
  br i1 %unmoved, label %advanced, label %turned
advanced:
  %column = add i64 %m, %k
  %rowp = getelementptr i64, ptr %moving, i64 %column
  %stridep = getelementptr i64, ptr %strides, i64 %k
  %row = load ptr, ptr %rowp, align 8
  %stride = load i64, ptr %stridep, align 8
  %following = getelementptr i8, ptr %row, i64 %stride
  store ptr %following, ptr %rowp, align 8
  %k1 = add i64 %k, 1
  br label %advance
turned:
  call void @clew_patch_loop(ptr %loop, ptr %moving)
  %most = load i64, ptr %loop, align 8
  %again = icmp sle i64 %total1, %most
  %whither = select i1 %again, i64 %target, i64 %next
  ret i64 %whither
}
"""
