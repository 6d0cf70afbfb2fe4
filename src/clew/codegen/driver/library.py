"""LLVM IR that replaces the thread pool in exported libraries by the caller's function.

A library has no threads. If its caller passes a function that runs tasks in parallel
(`NAME_threads` in the header), each phase whose work is divided passes its chunks to that function
as tasks.
"""

from __future__ import annotations

from typing import Final

# A pool: the caller's function `void(ptr context, ptr task, ptr work, i64 count)`, and its context.
# The rest of a pool's bytes is unused, except for the lock that the driver releases after a run.
LIBRARY_POOL_PARALLEL, LIBRARY_POOL_CONTEXT = 0, 8

# A task is `void(ptr work, i64 index, i64 thread)`; its `work` is the step.
TEXT: Final = """
define internal i32 @clew_pool_lock(ptr %pool) nounwind {
  ret i32 1
}

define internal void @library_task(ptr %work, i64 %index, i64 %thread) nounwind {
  call void @run_chunk(ptr %work, i64 %thread, i64 %index)
  ret void
}

define internal void @run_parallel(ptr %pool, ptr %step, i64 %chunks) nounwind {
  %contextp = getelementptr i8, ptr %pool, i64 {LIBRARY_POOL_CONTEXT}
  %parallel = load ptr, ptr %pool, align 8
  %context = load ptr, ptr %contextp, align 8
  call void %parallel(ptr %context, ptr @library_task, ptr %step, i64 %chunks)
  ret void
}
"""
