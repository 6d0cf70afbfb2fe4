"""LLVM text of the step of control flow that computes sizes from counts (`SIZES` in `flow.py`)."""

from __future__ import annotations

from typing import Final

# A table of sizes: 64-bit words. The counts, of which `LIMITS` has the largest values, go to the
# registers from `FIRST` on; `REGISTERS` is number 0. An instruction of `CODE` consists of an
# operation, the register of its result, and those of its operands. `NEEDS` are registers; a target
# consists of a register, the address that the value goes to, a number to be added to the value, and
# the address of another number to be added.
# Values are known to fit in 64 bits, and divisors to be positive.
SIZES_N_COUNTS, SIZES_LIMITS, SIZES_REGISTERS, SIZES_FIRST = 0, 8, 16, 24
SIZES_N_CODE, SIZES_CODE, SIZES_N_NEEDS, SIZES_NEEDS = 32, 40, 48, 56
SIZES_N_TARGETS, SIZES_TARGETS, SIZES_FAULT, SIZES_BYTES = 64, 72, 80, 88
ADD, MULTIPLY, DIVIDE, REMAINDER, LEAST, MOST = range(6)

TEXT: Final = """
define internal i1 @compute_sizes(ptr %table, ptr %args) noinline nounwind {
entry:
  %ncountsp = getelementptr i8, ptr %table, i64 {SIZES_N_COUNTS}
  %ncounts = load i64, ptr %ncountsp, align 8
  %limitsp = getelementptr i8, ptr %table, i64 {SIZES_LIMITS}
  %limits = load ptr, ptr %limitsp, align 8
  %registersp = getelementptr i8, ptr %table, i64 {SIZES_REGISTERS}
  %registers = load ptr, ptr %registersp, align 8
  %firstp = getelementptr i8, ptr %table, i64 {SIZES_FIRST}
  %first = load i64, ptr %firstp, align 8
  %ncodep = getelementptr i8, ptr %table, i64 {SIZES_N_CODE}
  %ncode = load i64, ptr %ncodep, align 8
  %codep = getelementptr i8, ptr %table, i64 {SIZES_CODE}
  %code = load ptr, ptr %codep, align 8
  %nneedsp = getelementptr i8, ptr %table, i64 {SIZES_N_NEEDS}
  %nneeds = load i64, ptr %nneedsp, align 8
  %needsp = getelementptr i8, ptr %table, i64 {SIZES_NEEDS}
  %needs = load ptr, ptr %needsp, align 8
  %ntargetsp = getelementptr i8, ptr %table, i64 {SIZES_N_TARGETS}
  %ntargets = load i64, ptr %ntargetsp, align 8
  %targetsp = getelementptr i8, ptr %table, i64 {SIZES_TARGETS}
  %targets = load ptr, ptr %targetsp, align 8
  br label %counts
counts:
  %c = phi i64 [ 0, %entry ], [ %c1, %count_fits ]
  %uncounted = icmp ult i64 %c, %ncounts
  br i1 %uncounted, label %count, label %computes
count:
  %countpp = getelementptr i64, ptr %args, i64 %c
  %limitp = getelementptr i64, ptr %limits, i64 %c
  %countp = load ptr, ptr %countpp, align 8
  %limit = load i64, ptr %limitp, align 8
  %counted = load i64, ptr %countp, align 1
  %place = add i64 %first, %c
  %holdsp = getelementptr i64, ptr %registers, i64 %place
  store i64 %counted, ptr %holdsp, align 8
  %within = icmp ule i64 %counted, %limit
  br i1 %within, label %count_fits, label %fault
count_fits:
  %c1 = add i64 %c, 1
  br label %counts
fault:
  %faultp = getelementptr i8, ptr %table, i64 {SIZES_FAULT}
  store i64 1, ptr %faultp, align 8
  ret i1 false
computes:
  %i = phi i64 [ 0, %counts ], [ %i1, %computed ]
  %uncomputed = icmp ult i64 %i, %ncode
  br i1 %uncomputed, label %operation, label %checks
operation:
  %at = mul i64 %i, 4
  %opp = getelementptr i64, ptr %code, i64 %at
  %dstp = getelementptr i64, ptr %opp, i64 1
  %leftp = getelementptr i64, ptr %opp, i64 2
  %rightp = getelementptr i64, ptr %opp, i64 3
  %op = load i64, ptr %opp, align 8
  %dst = load i64, ptr %dstp, align 8
  %left = load i64, ptr %leftp, align 8
  %right = load i64, ptr %rightp, align 8
  %ap = getelementptr i64, ptr %registers, i64 %left
  %bp = getelementptr i64, ptr %registers, i64 %right
  %a = load i64, ptr %ap, align 8
  %b = load i64, ptr %bp, align 8
  switch i64 %op, label %add [
    i64 {MULTIPLY}, label %multiply
    i64 {DIVIDE}, label %divide
    i64 {REMAINDER}, label %remainder
    i64 {LEAST}, label %least
    i64 {MOST}, label %most
  ]
add:
  %sum = add i64 %a, %b
  br label %computed
multiply:
  %product = mul i64 %a, %b
  br label %computed
divide:
  %toward0 = sdiv i64 %a, %b
  %drest = srem i64 %a, %b
  %dbelow = icmp slt i64 %drest, 0
  %dless = sext i1 %dbelow to i64
  %quotient = add i64 %toward0, %dless
  br label %computed
remainder:
  %rest = srem i64 %a, %b
  %below = icmp slt i64 %rest, 0
  %more = select i1 %below, i64 %b, i64 0
  %remains = add i64 %rest, %more
  br label %computed
least:
  %isless = icmp slt i64 %a, %b
  %lower = select i1 %isless, i64 %a, i64 %b
  br label %computed
most:
  %ismore = icmp sgt i64 %a, %b
  %higher = select i1 %ismore, i64 %a, i64 %b
  br label %computed
computed:
  %value = phi i64 [ %sum, %add ], [ %product, %multiply ], [ %quotient, %divide ],
    [ %remains, %remainder ], [ %lower, %least ], [ %higher, %most ]
  %goesp = getelementptr i64, ptr %registers, i64 %dst
  store i64 %value, ptr %goesp, align 8
  %i1 = add i64 %i, 1
  br label %computes
checks:
  %n = phi i64 [ 0, %computes ], [ %n1, %needed ]
  %unchecked = icmp ult i64 %n, %nneeds
  br i1 %unchecked, label %check, label %writes
check:
  %needp = getelementptr i64, ptr %needs, i64 %n
  %need = load i64, ptr %needp, align 8
  %neededp = getelementptr i64, ptr %registers, i64 %need
  %needs0 = load i64, ptr %neededp, align 8
  %holds = icmp sge i64 %needs0, 0
  br i1 %holds, label %needed, label %fault
needed:
  %n1 = add i64 %n, 1
  br label %checks
writes:
  %t = phi i64 [ 0, %checks ], [ %t1, %write ]
  %unwritten = icmp ult i64 %t, %ntargets
  br i1 %unwritten, label %write, label %exit
write:
  %tat = mul i64 %t, 4
  %fromp = getelementptr i64, ptr %targets, i64 %tat
  %topp = getelementptr i64, ptr %fromp, i64 1
  %basep = getelementptr i64, ptr %fromp, i64 2
  %otherpp = getelementptr i64, ptr %fromp, i64 3
  %otherp = load ptr, ptr %otherpp, align 8
  %other = load i64, ptr %otherp, align 8
  %from = load i64, ptr %fromp, align 8
  %to = load ptr, ptr %topp, align 8
  %base = load i64, ptr %basep, align 8
  %takenp = getelementptr i64, ptr %registers, i64 %from
  %taken = load i64, ptr %takenp, align 8
  %further = add i64 %taken, %base
  %written = add i64 %further, %other
  store i64 %written, ptr %to, align 8
  %t1 = add i64 %t, 1
  br label %writes
exit:
  ret i1 true
}
"""
