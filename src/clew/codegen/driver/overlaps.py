"""LLVM text of non-maximum suppression: keeps the best of overlapping boxes, group by group.

`i64 clew_keep_apart(state)` walks the candidates of each group, best first. A candidate is kept
unless a kept box of its group overlaps it by more than the threshold; a group ends after `MOST`
boxes. It returns 1 when all groups are done, and 0 after comparing `UNTIL` pairs or more; called
again, it continues there.

Kept boxes are compared four at a time. A block of four holds their low sides, high sides and areas,
one vector each. The area of an empty position is NaN, and so is that of a box with a NaN
coordinate: comparisons with NaN are false, so both overlap nothing.

The arithmetic is that of the reference, `ops.host.non_max_suppression`, operation by operation.
"""

from __future__ import annotations

from typing import Final

# The state: 64-bit words. `BOXES` is f64[boxes, 4]: low, low, high, high. `ORDER`, i64[candidates],
# holds rows of `BOXES`; `ENDS`, i64[groups], the end of each group in it. `KEPT` has room for the
# blocks of one group, `OUT`, i64, for the positions in `ORDER` of all kept boxes.
BOXES, ORDER, ENDS, GROUPS, MOST, THRESHOLD, KEPT, OUT = range(0, 64, 8)
# The state to resume from: a group, a position in `ORDER`, the numbers of boxes kept in the group
# and in total, and the number of compared pairs.
GROUP, PLACE, KEPT_OF_GROUP, KEPT_OF_ALL, COMPARED, UNTIL = range(64, 112, 8)
STATE_BYTES: Final = 112

LANES: Final = 4
BLOCK_BYTES: Final = 5 * LANES * 8

EXPORTS: Final = ("clew_keep_apart",)

_TEXT: Final = """
define i64 @clew_keep_apart(ptr %state) nounwind {
entry:
  %orderp = getelementptr i8, ptr %state, i64 {ORDER}
  %endsp = getelementptr i8, ptr %state, i64 {ENDS}
  %groupsp = getelementptr i8, ptr %state, i64 {GROUPS}
  %mostp = getelementptr i8, ptr %state, i64 {MOST}
  %thresholdp = getelementptr i8, ptr %state, i64 {THRESHOLD}
  %blocksp = getelementptr i8, ptr %state, i64 {KEPT}
  %outp = getelementptr i8, ptr %state, i64 {OUT}
  %groupp = getelementptr i8, ptr %state, i64 {GROUP}
  %placep = getelementptr i8, ptr %state, i64 {PLACE}
  %keptp = getelementptr i8, ptr %state, i64 {KEPT_OF_GROUP}
  %allp = getelementptr i8, ptr %state, i64 {KEPT_OF_ALL}
  %comparedp = getelementptr i8, ptr %state, i64 {COMPARED}
  %untilp = getelementptr i8, ptr %state, i64 {UNTIL}
  %boxes = load ptr, ptr %state, align 8
  %order = load ptr, ptr %orderp, align 8
  %ends = load ptr, ptr %endsp, align 8
  %groups = load i64, ptr %groupsp, align 8
  %most = load i64, ptr %mostp, align 8
  %threshold1 = load double, ptr %thresholdp, align 8
  %blocks = load ptr, ptr %blocksp, align 8
  %out = load ptr, ptr %outp, align 8
  %group0 = load i64, ptr %groupp, align 8
  %place0 = load i64, ptr %placep, align 8
  %kept0 = load i64, ptr %keptp, align 8
  %all0 = load i64, ptr %allp, align 8
  %compared0 = load i64, ptr %comparedp, align 8
  %until = load i64, ptr %untilp, align 8
  %t0 = insertelement <4 x double> poison, double %threshold1, i32 0
  %threshold = shufflevector <4 x double> %t0, <4 x double> poison, <4 x i32> zeroinitializer
  br label %in_group
in_group:
  %group = phi i64 [ %group0, %entry ], [ %group1, %group_over ]
  %place_in = phi i64 [ %place0, %entry ], [ %end, %group_over ]
  %kept_in = phi i64 [ %kept0, %entry ], [ 0, %group_over ]
  %all_in = phi i64 [ %all0, %entry ], [ %all, %group_over ]
  %compared_in = phi i64 [ %compared0, %entry ], [ %compared, %group_over ]
  %some = icmp ult i64 %group, %groups
  br i1 %some, label %group_begins, label %over
group_begins:
  %endp = getelementptr i64, ptr %ends, i64 %group
  %end = load i64, ptr %endp, align 8
  br label %candidate
candidate:
  %place = phi i64 [ %place_in, %group_begins ], [ %place1, %next ]
  %kept = phi i64 [ %kept_in, %group_begins ], [ %kept2, %next ]
  %all = phi i64 [ %all_in, %group_begins ], [ %all2, %next ]
  %compared = phi i64 [ %compared_in, %group_begins ], [ %compared2, %next ]
  %left = icmp slt i64 %place, %end
  %room = icmp slt i64 %kept, %most
  %goes_on = and i1 %left, %room
  br i1 %goes_on, label %admit, label %group_over
group_over:
  %group1 = add i64 %group, 1
  br label %in_group
admit:
  %fresh = icmp slt i64 %compared, %until
  br i1 %fresh, label %read, label %pause
read:
  %rowp = getelementptr i64, ptr %order, i64 %place
  %row = load i64, ptr %rowp, align 8
  %box = getelementptr [4 x double], ptr %boxes, i64 %row
  %low1p = getelementptr i8, ptr %box, i64 8
  %high0p = getelementptr i8, ptr %box, i64 16
  %high1p = getelementptr i8, ptr %box, i64 24
  %low0 = load double, ptr %box, align 8
  %low1 = load double, ptr %low1p, align 8
  %high0 = load double, ptr %high0p, align 8
  %high1 = load double, ptr %high1p, align 8
  %height = fsub double %high0, %low0
  %width = fsub double %high1, %low1
  %area = fmul double %height, %width
  %low0i = insertelement <4 x double> poison, double %low0, i32 0
  %low1i = insertelement <4 x double> poison, double %low1, i32 0
  %high0i = insertelement <4 x double> poison, double %high0, i32 0
  %high1i = insertelement <4 x double> poison, double %high1, i32 0
  %areai = insertelement <4 x double> poison, double %area, i32 0
  %low0v = shufflevector <4 x double> %low0i, <4 x double> poison, <4 x i32> zeroinitializer
  %low1v = shufflevector <4 x double> %low1i, <4 x double> poison, <4 x i32> zeroinitializer
  %high0v = shufflevector <4 x double> %high0i, <4 x double> poison, <4 x i32> zeroinitializer
  %high1v = shufflevector <4 x double> %high1i, <4 x double> poison, <4 x i32> zeroinitializer
  %areav = shufflevector <4 x double> %areai, <4 x double> poison, <4 x i32> zeroinitializer
  %place1 = add i64 %place, 1
  %compared1 = add i64 %compared, 1
  br label %against
against:
  %n = phi i64 [ 0, %read ], [ %n1, %beside ]
  %block = phi ptr [ %blocks, %read ], [ %block1, %beside ]
  %further = icmp slt i64 %n, %kept
  br i1 %further, label %compare, label %keep
compare:
  %klow1p = getelementptr i8, ptr %block, i64 32
  %khigh0p = getelementptr i8, ptr %block, i64 64
  %khigh1p = getelementptr i8, ptr %block, i64 96
  %kareap = getelementptr i8, ptr %block, i64 128
  %klow0 = load <4 x double>, ptr %block, align 8
  %klow1 = load <4 x double>, ptr %klow1p, align 8
  %khigh0 = load <4 x double>, ptr %khigh0p, align 8
  %khigh1 = load <4 x double>, ptr %khigh1p, align 8
  %karea = load <4 x double>, ptr %kareap, align 8
  %upper0 = fcmp olt <4 x double> %khigh0, %high0v
  %upper1 = fcmp olt <4 x double> %khigh1, %high1v
  %lower0 = fcmp ogt <4 x double> %klow0, %low0v
  %lower1 = fcmp ogt <4 x double> %klow1, %low1v
  %to0 = select <4 x i1> %upper0, <4 x double> %khigh0, <4 x double> %high0v
  %to1 = select <4 x i1> %upper1, <4 x double> %khigh1, <4 x double> %high1v
  %from0 = select <4 x i1> %lower0, <4 x double> %klow0, <4 x double> %low0v
  %from1 = select <4 x i1> %lower1, <4 x double> %klow1, <4 x double> %low1v
  %side0 = fsub <4 x double> %to0, %from0
  %side1 = fsub <4 x double> %to1, %from1
  %apart0 = fcmp olt <4 x double> %side0, zeroinitializer
  %apart1 = fcmp olt <4 x double> %side1, zeroinitializer
  %shared0 = select <4 x i1> %apart0, <4 x double> zeroinitializer, <4 x double> %side0
  %shared1 = select <4 x i1> %apart1, <4 x double> zeroinitializer, <4 x double> %side1
  %shared = fmul <4 x double> %shared0, %shared1
  %both = fadd <4 x double> %karea, %areav
  %union = fsub <4 x double> %both, %shared
  %allowed = fmul <4 x double> %threshold, %union
  %overlaps = fcmp ogt <4 x double> %shared, %allowed
  %bits = bitcast <4 x i1> %overlaps to i4
  %n1 = add i64 %n, {LANES}
  %suppressed = icmp ne i4 %bits, 0
  br i1 %suppressed, label %drop, label %beside
beside:
  %block1 = getelementptr i8, ptr %block, i64 {BLOCK_BYTES}
  br label %against
drop:
  br label %next
keep:
  %lane = and i64 %kept, {LAST_LANE}
  %number = lshr i64 %kept, {LANE_BITS}
  %at = mul i64 %number, {BLOCK_BYTES}
  %its = getelementptr i8, ptr %blocks, i64 %at
  %areasp = getelementptr i8, ptr %its, i64 128
  %first = icmp eq i64 %lane, 0
  br i1 %first, label %clear, label %put
clear:
  store <4 x double> splat (double 0x7FF8000000000000), ptr %areasp, align 8
  br label %put
put:
  %put_low0p = getelementptr double, ptr %its, i64 %lane
  %put_low1p = getelementptr i8, ptr %put_low0p, i64 32
  %put_high0p = getelementptr i8, ptr %put_low0p, i64 64
  %put_high1p = getelementptr i8, ptr %put_low0p, i64 96
  %put_areap = getelementptr i8, ptr %put_low0p, i64 128
  store double %low0, ptr %put_low0p, align 8
  store double %low1, ptr %put_low1p, align 8
  store double %high0, ptr %put_high0p, align 8
  store double %high1, ptr %put_high1p, align 8
  store double %area, ptr %put_areap, align 8
  %found = getelementptr i64, ptr %out, i64 %all
  store i64 %place, ptr %found, align 8
  %kept1 = add i64 %kept, 1
  %all1 = add i64 %all, 1
  br label %next
next:
  %pairs = phi i64 [ %n1, %drop ], [ %n, %put ]
  %kept2 = phi i64 [ %kept, %drop ], [ %kept1, %put ]
  %all2 = phi i64 [ %all, %drop ], [ %all1, %put ]
  %compared2 = add i64 %compared1, %pairs
  br label %candidate
pause:
  store i64 %group, ptr %groupp, align 8
  store i64 %place, ptr %placep, align 8
  store i64 %kept, ptr %keptp, align 8
  store i64 %all, ptr %allp, align 8
  store i64 %compared, ptr %comparedp, align 8
  ret i64 0
over:
  store i64 %all_in, ptr %allp, align 8
  store i64 %compared_in, ptr %comparedp, align 8
  ret i64 1
}
"""


def overlaps_text() -> str:
    """Returns the LLVM module."""
    words = {n: v for n, v in globals().items() if isinstance(v, int) and n.isupper()}
    words |= {"LAST_LANE": LANES - 1, "LANE_BITS": LANES.bit_length() - 1}
    text = _TEXT
    for name, value in words.items():
        text = text.replace("{" + name + "}", str(value))
    return text
