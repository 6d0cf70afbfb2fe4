"""LLVM text of functions that convert numbers to texts and back; part of the module in `texts.py`,
whose `text_at` and `put` they call.
"""

from __future__ import annotations

from typing import Final

NUMBERS: Final = """
; Reads decimals of up to 15 digits whose exponent, less the decimals, is from -22 to 22, as `f64`:
; a quotient or product of two exact numbers, so correctly rounded. Returns the first element from
; %from that is something else, or %count. %powers holds 10^0 to 10^22, the least number to read and
; the limit that all are below.
define i64 @clew_text_numbers(ptr %texts, i64 %from, i64 %count, ptr %type, ptr %powers, ptr %out)
    nounwind {
entry:
  %leastp = getelementptr double, ptr %powers, i64 23
  %least = load double, ptr %leastp, align 8
  %limitp = getelementptr double, ptr %powers, i64 24
  %limit = load double, ptr %limitp, align 8
  br label %next
next:
  %i = phi i64 [ %from, %entry ], [ %after, %write ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %one, label %stop
one:
  %text = call %form @text_at(ptr %texts, i64 %i, ptr %type)
  %data = extractvalue %form %text, 0
  %size = extractvalue %form %text, 1
  %kind = extractvalue %form %text, 2
  %narrow = icmp eq i64 %kind, 1
  %some = icmp ne i64 %size, 0
  %reads = and i1 %narrow, %some
  br i1 %reads, label %signed, label %stop
signed:
  %first = load i8, ptr %data, align 1
  %minus = icmp eq i8 %first, 45
  %plus = icmp eq i8 %first, 43
  %hassign = or i1 %minus, %plus
  %start = zext i1 %hassign to i64
  br label %digits
digits:
  %at = phi i64 [ %start, %signed ], [ %at1, %digit ], [ %at1, %point ]
  %m = phi i64 [ 0, %signed ], [ %m1, %digit ], [ %m, %point ]
  %seen = phi i64 [ 0, %signed ], [ %seen1, %digit ], [ %seen, %point ]
  %pointed = phi i64 [ 0, %signed ], [ %pointed, %digit ], [ 1, %point ]
  %places = phi i64 [ 0, %signed ], [ %places1, %digit ], [ %places, %point ]
  %inside = icmp ult i64 %at, %size
  br i1 %inside, label %look, label %ended
look:
  %charp = getelementptr i8, ptr %data, i64 %at
  %char = load i8, ptr %charp, align 1
  %value = sub i8 %char, 48
  %at1 = add i64 %at, 1
  %isdigit = icmp ult i8 %value, 10
  br i1 %isdigit, label %digit, label %other
digit:
  %value64 = zext i8 %value to i64
  %m10 = mul i64 %m, 10
  %m1 = add i64 %m10, %value64
  %seen1 = add i64 %seen, 1
  %places1 = add i64 %places, %pointed
  %many = icmp ugt i64 %seen1, 15
  br i1 %many, label %stop, label %digits
other:
  %lower = or i8 %char, 32
  %scientific = icmp eq i8 %lower, 101
  br i1 %scientific, label %power, label %maybe
maybe:
  %ispoint = icmp eq i8 %char, 46
  %firstpoint = icmp eq i64 %pointed, 0
  %fine = and i1 %ispoint, %firstpoint
  br i1 %fine, label %point, label %stop
point:
  br label %digits
power:
  %anysign = icmp ult i64 %at1, %size
  br i1 %anysign, label %powersign, label %stop
powersign:
  %psignp = getelementptr i8, ptr %data, i64 %at1
  %psign = load i8, ptr %psignp, align 1
  %pminus = icmp eq i8 %psign, 45
  %pplus = icmp eq i8 %psign, 43
  %phassign = or i1 %pminus, %pplus
  %pskip = zext i1 %phassign to i64
  %pstart = add i64 %at1, %pskip
  %pany = icmp ult i64 %pstart, %size
  br i1 %pany, label %powerdigit, label %stop
powerdigit:
  %pat = phi i64 [ %pstart, %powersign ], [ %pat1, %powernext ]
  %p = phi i64 [ 0, %powersign ], [ %p1, %powernext ]
  %pcharp = getelementptr i8, ptr %data, i64 %pat
  %pchar = load i8, ptr %pcharp, align 1
  %pvalue = sub i8 %pchar, 48
  %pisdigit = icmp ult i8 %pvalue, 10
  br i1 %pisdigit, label %powernext, label %stop
powernext:
  %pvalue64 = zext i8 %pvalue to i64
  %p10 = mul i64 %p, 10
  %p1 = add i64 %p10, %pvalue64
  %pat1 = add i64 %pat, 1
  %pmore = icmp ult i64 %pat1, %size
  %psmall = icmp ult i64 %p1, 100
  %pgoes = and i1 %pmore, %psmall
  br i1 %pgoes, label %powerdigit, label %powerdone
powerdone:
  %pnegative = sub i64 0, %p1
  %pshift = select i1 %pminus, i64 %p1, i64 %pnegative
  %scaled = add i64 %places, %pshift
  br i1 %psmall, label %ended, label %stop
ended:
  %q = phi i64 [ %places, %digits ], [ %scaled, %powerdone ]
  %none = icmp eq i64 %seen, 0
  %qlimit = add i64 %q, 22
  %far = icmp ugt i64 %qlimit, 44
  %refuse = or i1 %none, %far
  br i1 %refuse, label %stop, label %signs
signs:
  %qbelow = icmp slt i64 %q, 0
  %qneg = sub i64 0, %q
  %qsize = select i1 %qbelow, i64 %qneg, i64 %q
  %powerp = getelementptr double, ptr %powers, i64 %qsize
  %ten = load double, ptr %powerp, align 8
  %exact = sitofp i64 %m to double
  %quotient = fdiv double %exact, %ten
  %product = fmul double %exact, %ten
  %absolute = select i1 %qbelow, double %product, double %quotient
  %negated = fneg double %absolute
  %number = select i1 %minus, double %negated, double %absolute
  %enough = fcmp oge double %number, %least
  %below = fcmp olt double %number, %limit
  %fits = and i1 %enough, %below
  br i1 %fits, label %write, label %stop
write:
  %outp = getelementptr double, ptr %out, i64 %i
  store double %number, ptr %outp, align 8
  %after = add i64 %i, 1
  br label %next
stop:
  ret i64 %i
}

; Puts texts of numbers: the shortest decimal that reads as the same `f32` (%single) or `f64`, in
; plain notation with a point. Returns the first element from %from for which it does not find it:
; numbers below 1e-4 except 0, `f32` from 2^24 up, `f64` from 1e15 up or with more than 15 digits,
; and numbers about halfway between two decimals; otherwise %count. %powers holds 10^0 to 10^22.
;
; If a decimal of at most 6 (15) digits reads as a float, it is the nearest of all with 6 (15)
; digits, so shorter ones need no search; trailing zeros are dropped. With 7 to 9 digits, if any
; decimal reads as the float, so does the nearest, also next to the powers of 2 in this range.
define i64 @clew_text_decimals(ptr %numbers, i64 %single, i64 %from, i64 %count, ptr %powers,
    ptr %out) nounwind {
entry:
  %buffer = alloca [48 x i8], align 8
  %is32 = icmp ne i64 %single, 0
  %limit = select i1 %is32, double 0x4170000000000000, double 1.0e15
  %fewest = select i1 %is32, i64 6, i64 15
  %most = select i1 %is32, i64 9, i64 15
  br label %next
next:
  %i = phi i64 [ %from, %entry ], [ %after, %put ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %one, label %stop
one:
  %numberp = getelementptr double, ptr %numbers, i64 %i
  %number = load double, ptr %numberp, align 8
  %a = call double @llvm.fabs.f64(double %number)
  %bits = bitcast double %a to i64
  %zero = fcmp oeq double %a, 0.0
  br i1 %zero, label %spell, label %sized
sized:
  %large = fcmp oge double %a, 0x3F1A36E2EB1C432D
  %below = fcmp olt double %a, %limit
  %within = and i1 %large, %below
  br i1 %within, label %scale, label %stop
scale:
  %biased = lshr i64 %bits, 52
  %exponent = sub i64 %biased, 1023
  %logs = mul i64 %exponent, 1233
  %e = ashr i64 %logs, 12
  %whole0 = add i64 %e, 1
  %moredigits = icmp sgt i64 %whole0, %fewest
  %p0 = select i1 %moredigits, i64 %whole0, i64 %fewest
  %q0 = sub i64 %p0, %whole0
  %t0p = getelementptr double, ptr %powers, i64 %q0
  %t0ten = load double, ptr %t0p, align 8
  %t0 = fmul double %a, %t0ten
  %full0p = getelementptr double, ptr %powers, i64 %p0
  %full0 = load double, ptr %full0p, align 8
  %wider = fcmp oge double %t0, %full0
  %widerq = zext i1 %wider to i64
  %q00 = sub i64 %q0, %widerq
  %lacks = icmp slt i64 %q00, 0
  %lacksq = zext i1 %lacks to i64
  %q1 = add i64 %q00, %lacksq
  %p1 = add i64 %p0, %lacksq
  br label %try
try:
  %p = phi i64 [ %p1, %scale ], [ %pnext, %again ]
  %q = phi i64 [ %q1, %scale ], [ %qnext, %again ]
  %tenp = getelementptr double, ptr %powers, i64 %q
  %ten = load double, ptr %tenp, align 8
  %t = fmul double %a, %ten
  %half = fadd double %t, 0.5
  %m = fptosi double %half to i64
  %exact = sitofp i64 %m to double
  %off = fsub double %t, %exact
  %far = call double @llvm.fabs.f64(double %off)
  %between = fcmp ogt double %far, 0x3FDFFFFBCE4217D3
  %r = fdiv double %exact, %ten
  %same64 = fcmp oeq double %r, %a
  %r32 = fptrunc double %r to float
  %a32 = fptrunc double %a to float
  %same32 = fcmp oeq float %r32, %a32
  %same = select i1 %is32, i1 %same32, i1 %same64
  br i1 %between, label %stop, label %judge
judge:
  br i1 %same, label %drop, label %again
again:
  %pnext = add i64 %p, 1
  %qnext = add i64 %q, 1
  %ends = icmp uge i64 %p, %most
  br i1 %ends, label %stop, label %try
drop:
  %dm = phi i64 [ %m, %judge ], [ %tenth, %dropped ]
  %dq = phi i64 [ %q, %judge ], [ %dq1, %dropped ]
  %tenth = udiv i64 %dm, 10
  %back = mul i64 %tenth, 10
  %even = icmp eq i64 %back, %dm
  %long = icmp ugt i64 %dq, 1
  %drops = and i1 %even, %long
  br i1 %drops, label %dropped, label %points
dropped:
  %dq1 = sub i64 %dq, 1
  br label %drop
points:
  %nopoint = icmp eq i64 %dq, 0
  %dm10 = mul i64 %dm, 10
  %sm0 = select i1 %nopoint, i64 %dm10, i64 %dm
  %sq0 = select i1 %nopoint, i64 1, i64 %dq
  br label %spell
spell:
  %sm = phi i64 [ 0, %one ], [ %sm0, %points ]
  %sq = phi i64 [ 1, %one ], [ %sq0, %points ]
  br label %digit
digit:
  %place = phi i64 [ 48, %spell ], [ %place2, %digitdone ]
  %left = phi i64 [ %sm, %spell ], [ %rest, %digitdone ]
  %done = phi i64 [ 0, %spell ], [ %done1, %digitdone ]
  %rest = udiv i64 %left, 10
  %rest10 = mul i64 %rest, 10
  %value = sub i64 %left, %rest10
  %value8 = trunc i64 %value to i8
  %char = add i8 %value8, 48
  %place1 = sub i64 %place, 1
  %place1p = getelementptr i8, ptr %buffer, i64 %place1
  store i8 %char, ptr %place1p, align 1
  %done1 = add i64 %done, 1
  %atpoint = icmp eq i64 %done1, %sq
  br i1 %atpoint, label %point, label %digitdone
point:
  %pointat = sub i64 %place1, 1
  %pointp = getelementptr i8, ptr %buffer, i64 %pointat
  store i8 46, ptr %pointp, align 1
  br label %digitdone
digitdone:
  %place2 = phi i64 [ %place1, %digit ], [ %pointat, %point ]
  %before = icmp ule i64 %done1, %sq
  %nonzero = icmp ne i64 %rest, 0
  %goes = or i1 %before, %nonzero
  br i1 %goes, label %digit, label %sign
sign:
  %signbits = bitcast double %number to i64
  %negative = icmp slt i64 %signbits, 0
  %signat = sub i64 %place2, 1
  %signp = getelementptr i8, ptr %buffer, i64 %signat
  store i8 45, ptr %signp, align 1
  %begin = select i1 %negative, i64 %signat, i64 %place2
  %length = sub i64 48, %begin
  %beginp = getelementptr i8, ptr %buffer, i64 %begin
  %made = call ptr @PyUnicode_FromStringAndSize(ptr %beginp, i64 %length)
  %outp = getelementptr ptr, ptr %out, i64 %i
  %status = call i64 @put(ptr %outp, ptr %made)
  %failed = icmp ne i64 %status, 0
  br i1 %failed, label %stop, label %put
put:
  %after = add i64 %i, 1
  br label %next
stop:
  ret i64 %i
}

; Puts texts of integers of %width bytes, signed if %signed; as truths, True and False (%width 0).
; Returns 0; 1 if there was no memory.
define i64 @clew_text_integers(ptr %numbers, i64 %width, i64 %signed, i64 %count, ptr %true,
    ptr %false, ptr %out) nounwind {
entry:
  %buffer = alloca [24 x i8], align 8
  %issigned = icmp ne i64 %signed, 0
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %after, %put ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %one, label %good
one:
  %outp = getelementptr ptr, ptr %out, i64 %i
  %offset = mul i64 %i, %width
  %numberp = getelementptr i8, ptr %numbers, i64 %offset
  switch i64 %width, label %truth
    [ i64 8, label %read8 i64 4, label %read4 i64 2, label %read2 i64 1, label %read1 ]
truth:
  %truthp = getelementptr i8, ptr %numbers, i64 %i
  %bit = load i8, ptr %truthp, align 1
  %holds = icmp ne i8 %bit, 0
  %name = select i1 %holds, ptr %true, ptr %false
  call void @Py_IncRef(ptr %name)
  br label %made
read8:
  %x8 = load i64, ptr %numberp, align 8
  br label %value
read4:
  %x4 = load i32, ptr %numberp, align 4
  %s4 = sext i32 %x4 to i64
  %u4 = zext i32 %x4 to i64
  %v4 = select i1 %issigned, i64 %s4, i64 %u4
  br label %value
read2:
  %x2 = load i16, ptr %numberp, align 2
  %s2 = sext i16 %x2 to i64
  %u2 = zext i16 %x2 to i64
  %v2 = select i1 %issigned, i64 %s2, i64 %u2
  br label %value
read1:
  %x1 = load i8, ptr %numberp, align 1
  %s1 = sext i8 %x1 to i64
  %u1 = zext i8 %x1 to i64
  %v1 = select i1 %issigned, i64 %s1, i64 %u1
  br label %value
value:
  %x = phi i64 [ %x8, %read8 ], [ %v4, %read4 ], [ %v2, %read2 ], [ %v1, %read1 ]
  %below = icmp slt i64 %x, 0
  %negative = and i1 %below, %issigned
  %minus = sub i64 0, %x
  %size = select i1 %negative, i64 %minus, i64 %x
  br label %digit
digit:
  %place = phi i64 [ 24, %value ], [ %place1, %digit ]
  %left = phi i64 [ %size, %value ], [ %rest, %digit ]
  %rest = udiv i64 %left, 10
  %rest10 = mul i64 %rest, 10
  %last = sub i64 %left, %rest10
  %last8 = trunc i64 %last to i8
  %char = add i8 %last8, 48
  %place1 = sub i64 %place, 1
  %charp = getelementptr i8, ptr %buffer, i64 %place1
  store i8 %char, ptr %charp, align 1
  %goes = icmp ne i64 %rest, 0
  br i1 %goes, label %digit, label %sign
sign:
  %signat = sub i64 %place1, 1
  %signp = getelementptr i8, ptr %buffer, i64 %signat
  store i8 45, ptr %signp, align 1
  %begin = select i1 %negative, i64 %signat, i64 %place1
  %length = sub i64 24, %begin
  %beginp = getelementptr i8, ptr %buffer, i64 %begin
  %spelled = call ptr @PyUnicode_FromStringAndSize(ptr %beginp, i64 %length)
  br label %made
made:
  %text = phi ptr [ %name, %truth ], [ %spelled, %sign ]
  %status = call i64 @put(ptr %outp, ptr %text)
  %failed = icmp ne i64 %status, 0
  br i1 %failed, label %bad, label %put
put:
  %after = add i64 %i, 1
  br label %next
good:
  ret i64 0
bad:
  ret i64 1
}
"""
