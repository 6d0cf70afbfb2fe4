; Hand-written kernels with the interface of compiled ones:
;   void kernel(ptr args, ptr scratch, i64 begin, i64 end)

declare float @expf(float)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

; out[i] = a[i] + b[i]   f32; the grid counts elements
define void @add(ptr %args, ptr %scratch, i64 %begin, i64 %end) {
entry:
  %bp = getelementptr ptr, ptr %args, i64 1
  %op = getelementptr ptr, ptr %args, i64 2
  %a = load ptr, ptr %args
  %b = load ptr, ptr %bp
  %out = load ptr, ptr %op
  %some = icmp slt i64 %begin, %end
  br i1 %some, label %loop, label %exit
loop:
  %i = phi i64 [ %begin, %entry ], [ %next, %loop ]
  %ai = getelementptr float, ptr %a, i64 %i
  %bi = getelementptr float, ptr %b, i64 %i
  %oi = getelementptr float, ptr %out, i64 %i
  %x = load float, ptr %ai
  %y = load float, ptr %bi
  %z = fadd float %x, %y
  store float %z, ptr %oi
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %exit
exit:
  ret void
}

; out[i] = out[i] + 1   i32: a chunk that runs twice or never shows
define void @mark(ptr %args, ptr %scratch, i64 %begin, i64 %end) {
entry:
  %out = load ptr, ptr %args
  %some = icmp slt i64 %begin, %end
  br i1 %some, label %loop, label %exit
loop:
  %i = phi i64 [ %begin, %entry ], [ %next, %loop ]
  %oi = getelementptr i32, ptr %out, i64 %i
  %x = load i32, ptr %oi
  %y = add i32 %x, 1
  store i32 %y, ptr %oi
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %exit
exit:
  ret void
}

; rows of 64 f32 go from a to out by way of the thread's scratch memory
define void @through_scratch(ptr %args, ptr %scratch, i64 %begin, i64 %end) {
entry:
  %op = getelementptr ptr, ptr %args, i64 1
  %a = load ptr, ptr %args
  %out = load ptr, ptr %op
  %some = icmp slt i64 %begin, %end
  br i1 %some, label %loop, label %exit
loop:
  %i = phi i64 [ %begin, %entry ], [ %next, %loop ]
  %at = mul i64 %i, 64
  %ai = getelementptr float, ptr %a, i64 %at
  %oi = getelementptr float, ptr %out, i64 %at
  call void @llvm.memcpy.p0.p0.i64(ptr %scratch, ptr %ai, i64 256, i1 false)
  fence seq_cst
  call void @llvm.memcpy.p0.p0.i64(ptr %oi, ptr %scratch, i64 256, i1 false)
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %exit
exit:
  ret void
}

; two phases: partial[i] = a[2i] + a[2i+1]; then out[0] = sum of 8 partials   f32
define void @total.0(ptr %args, ptr %scratch, i64 %begin, i64 %end) {
entry:
  %pp = getelementptr ptr, ptr %args, i64 2
  %a = load ptr, ptr %args
  %partial = load ptr, ptr %pp
  br label %loop
loop:
  %i = phi i64 [ %begin, %entry ], [ %next, %loop ]
  %j = mul i64 %i, 2
  %k = add i64 %j, 1
  %aj = getelementptr float, ptr %a, i64 %j
  %ak = getelementptr float, ptr %a, i64 %k
  %x = load float, ptr %aj
  %y = load float, ptr %ak
  %s = fadd float %x, %y
  %pi = getelementptr float, ptr %partial, i64 %i
  store float %s, ptr %pi
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %exit
exit:
  ret void
}
define void @total.1(ptr %args, ptr %scratch, i64 %begin, i64 %end) {
entry:
  %op = getelementptr ptr, ptr %args, i64 1
  %pp = getelementptr ptr, ptr %args, i64 2
  %out = load ptr, ptr %op
  %partial = load ptr, ptr %pp
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %sum = phi float [ 0.0, %entry ], [ %s, %loop ]
  %pi = getelementptr float, ptr %partial, i64 %i
  %x = load float, ptr %pi
  %s = fadd float %sum, %x
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, 8
  br i1 %more, label %loop, label %exit
exit:
  store float %s, ptr %out
  ret void
}

; out[0] = expf(a[0]): calls the C library
define void @call_exp(ptr %args, ptr %scratch, i64 %begin, i64 %end) {
  %op = getelementptr ptr, ptr %args, i64 1
  %a = load ptr, ptr %args
  %out = load ptr, ptr %op
  %x = load float, ptr %a
  %y = call float @expf(float %x)
  store float %y, ptr %out
  ret void
}

; out[distance] = 1.0, where the distance is the grid: for reaching outside of a buffer of f32
define void @write_at_grid(ptr %args, ptr %scratch, i64 %begin, i64 %end) {
  %out = load ptr, ptr %args
  %oi = getelementptr float, ptr %out, i64 %end
  store float 1.0, ptr %oi
  ret void
}

; out[-1] = 1.0
define void @write_before(ptr %args, ptr %scratch, i64 %begin, i64 %end) {
  %out = load ptr, ptr %args
  %oi = getelementptr float, ptr %out, i64 -1
  store float 1.0, ptr %oi
  ret void
}

; out[0] = a[-1]
define void @read_before(ptr %args, ptr %scratch, i64 %begin, i64 %end) {
  %op = getelementptr ptr, ptr %args, i64 1
  %a = load ptr, ptr %args
  %out = load ptr, ptr %op
  %ai = getelementptr float, ptr %a, i64 -1
  %x = load float, ptr %ai
  store float %x, ptr %out
  ret void
}

; counts to 20,000 times the grid
define void @slow(ptr %args, ptr %scratch, i64 %begin, i64 %end) {
entry:
  %out = load ptr, ptr %args
  %length = sub i64 %end, %begin
  %stop = mul i64 %length, 20000
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %next = add i64 %i, 1
  store volatile i64 %next, ptr %scratch
  %more = icmp slt i64 %next, %stop
  br i1 %more, label %loop, label %exit
exit:
  %oi = getelementptr float, ptr %out, i64 %begin
  store float 1.0, ptr %oi
  ret void
}

define void @nothing(ptr %args, ptr %scratch, i64 %begin, i64 %end) {
  ret void
}
