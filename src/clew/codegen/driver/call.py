"""LLVM text of the function that Python calls to run a segment; see `runtime.native_call`.

`ptr clew_call(self, given)` is a `PyCFunction` that takes one argument (METH_O): the tuple of
inputs. `self` is a tuple:

0. the address of the call's record, as an integer;
1. the list of idle contexts;
2. the list of idle working memory, or None;
3. the context variable of the budgets in force;
4. of a session, the list whose only item is the list of its states;
5. the dict of its turn (`support.locks.Turn`), 6. the key in it, and 7. a holder.

Entries of the lists of idle things are tuples that begin with the address of their words.

The function returns a list of new arrays, or None if the call is left to Python: an input does not
fit exactly, no context is idle, memory is short, an index was out of range, a loop was stopped at
its limit, or the session runs another call. It only raises what a signal's handler raised during a
loop. Until it runs the segment, it lets no other thread run Python, except if Python collects
garbage while the list of results is made; nothing that it has read before can change by then.

It calls CPython's and NumPy's C interfaces. Only the heads of objects and the fields of arrays are
read in place; NumPy's own headers do the same, so these offsets are part of its binary interface.

The file is long because it is one LLVM function with its helpers, which share the layout of the
record.

Source: Python/C API Reference Manual; NumPy C-API, `PyArrayObject_fields`.
"""

from __future__ import annotations

import re
from typing import Final

from clew.codegen.driver import driver as native
from clew.codegen.driver import flow

# The head of an object, and the fields of an array, on 64-bit platforms.
OBJECT_TYPE: Final = 8
ARRAY_DATA, ARRAY_NDIM, ARRAY_DIMS = 16, 24, 32
ARRAY_BASE, ARRAY_DTYPE, ARRAY_FLAGS = 48, 56, 64
# NPY_ARRAY_C_CONTIGUOUS, NPY_ARRAY_ALIGNED and NPY_ARRAY_WRITEABLE.
CONTIGUOUS, ALIGNED, WRITEABLE = 0x1, 0x100, 0x400

# A record: 64-bit words. The types of tuples and of arrays, the dtype of bytes, and None. Inputs
# and blocks of results, each a number and a table. The address of the pool's cell (0: no pool).
# The address of the number of calls that may still be answered (0: all). The bytes of working
# memory (0: none), and the size from which it is left to Python. The number of contexts, and of
# working memories, to keep. Whether a run keeps the GIL, how many runs are still timed to decide
# that, the shortest of them, and the time below which runs keep it, in nanoseconds. The number of
# results, and the address of the limit of iterations (0: there are no loops). The number of arrays
# that a call gives, that of the results that it returns (the next states of a session are behind
# them), and whether there is a session. The watch (0: no step is timed).
CALL_TUPLE, CALL_ARRAY, CALL_BYTES, CALL_NONE = 0, 8, 16, 24
CALL_N_INPUTS, CALL_INPUTS, CALL_N_BLOCKS, CALL_BLOCKS = 32, 40, 48, 56
CALL_POOL, CALL_AHEAD, CALL_WORKING, CALL_SPARE = 64, 72, 80, 88
CALL_CONTEXTS, CALL_MEMORIES = 96, 104
CALL_KEEPS, CALL_TIMED, CALL_SHORTEST, CALL_LIMIT = 112, 120, 128, 136
CALL_N_RESULTS, CALL_LOOP_STEPS = 144, 152
CALL_N_GIVEN, CALL_N_SHOWN, CALL_HAS_SESSION = 160, 168, 176
CALL_WATCH, CALL_RECORD_BYTES = 184, 192
# An input: its dtype, its rank, the address of its shape, and the position of its address in a
# context's `bases` (-1: no kernel reads it). Its number among the given arrays and, behind them,
# the states.
INPUT_DTYPE, INPUT_NDIM, INPUT_DIMS, INPUT_BASE = 0, 8, 16, 24
INPUT_PLACE, INPUT_BYTES = 32, 40
# A block of memory that results share: its bytes, the number of results in it, and their table.
BLOCK_SIZE, BLOCK_N_RESULTS, BLOCK_RESULTS, BLOCK_BYTES = 0, 8, 16, 24
# A result: dtype, rank, address of the shape, offset in the block, position of its address in
# `bases`, position in the list of results.
RESULT_DTYPE, RESULT_NDIM, RESULT_DIMS = 0, 8, 16
RESULT_OFFSET, RESULT_BASE, RESULT_PLACE, RESULT_BYTES = 24, 32, 40, 48
# The words of a context: its segment, its `bases`, the records of its checks and their number of
# words, and the working memory that its tables refer to. The words of its loops, what they are
# before a run, and the number of loops.
CONTEXT_SEGMENT, CONTEXT_BASES, CONTEXT_RECORDS = 0, 8, 16
CONTEXT_N_RECORDS, CONTEXT_MEMORY = 24, 32
CONTEXT_LOOPS, CONTEXT_FRESH, CONTEXT_N_LOOPS, CONTEXT_BYTES = 40, 48, 56, 64
# The words of working memory: its address, and the bytes that have been used.
MEMORY_ADDRESS, MEMORY_USED, MEMORY_BYTES = 0, 8, 16
# The cell of a pool: its address (0: without workers), and whether that is valid.
POOL_ADDRESS, POOL_IS_KNOWN, POOL_CELL_BYTES = 0, 8, 16

EXPORTS: Final = ("clew_call",)
IMPORTS: Final = (
    "PyTuple_GetItem", "PyTuple_Size", "PyList_New", "PyList_SetItem", "PyList_GetItem",
    "PyList_Size", "PyList_SetSlice", "PyList_Append", "PyLong_AsLongLong", "Py_IncRef",
    "Py_DecRef", "PyErr_Clear", "PyErr_CheckSignals", "PyEval_SaveThread", "PyEval_RestoreThread",
    "PyList_GetSlice", "PyDict_Size", "PyDict_SetItem", "PyDict_DelItem", "PyContextVar_Get",
)  # fmt: skip
"""Functions of CPython, all documented. Only the last is not part of the stable interface."""
NUMPY_IMPORTS: Final = {"PyArray_NewFromDescr": 94, "PyArray_SetBaseObject": 282}
"""Functions of NumPy, and their places in the table `_ARRAY_API`, which versions only extend."""

_TEXT: Final = """
declare ptr @PyTuple_GetItem(ptr, i64)
declare i64 @PyTuple_Size(ptr)
declare ptr @PyList_New(i64)
declare i32 @PyList_SetItem(ptr, i64, ptr)
declare ptr @PyList_GetItem(ptr, i64)
declare i64 @PyList_Size(ptr)
declare i32 @PyList_SetSlice(ptr, i64, i64, ptr)
declare i32 @PyList_Append(ptr, ptr)
declare i64 @PyLong_AsLongLong(ptr)
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)
declare void @PyErr_Clear()
declare ptr @PyList_GetSlice(ptr, i64, i64)
declare i64 @PyDict_Size(ptr)
declare i32 @PyDict_SetItem(ptr, ptr, ptr)
declare i32 @PyDict_DelItem(ptr, ptr)
declare i32 @PyErr_CheckSignals()
declare i32 @PyContextVar_Get(ptr, ptr, ptr)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare ptr @PyArray_NewFromDescr(ptr, ptr, i32, ptr, ptr, ptr, i32, ptr)
declare i32 @PyArray_SetBaseObject(ptr, ptr)
declare i32 @clew_run_segment(ptr, ptr, ptr, ptr)
declare void @clew_clock(ptr)

define internal i64 @word(ptr %record, i64 %offset) alwaysinline nounwind {
  %at = getelementptr i8, ptr %record, i64 %offset
  %value = load i64, ptr %at, align 8
  ret i64 %value
}

define internal ptr @place(ptr %record, i64 %offset) alwaysinline nounwind {
  %at = getelementptr i8, ptr %record, i64 %offset
  %value = load ptr, ptr %at, align 8
  ret ptr %value
}

define internal void @set(ptr %record, i64 %offset, i64 %value) alwaysinline nounwind {
  %at = getelementptr i8, ptr %record, i64 %offset
  store i64 %value, ptr %at, align 8
  ret void
}

; Whether an array fits an input: type, dtype, order, alignment, rank and shape.
define internal i1 @fits(ptr %array, ptr %input, ptr %type) nounwind {
entry:
  %its_type = call ptr @place(ptr %array, i64 {OBJECT_TYPE})
  %is_array = icmp eq ptr %its_type, %type
  br i1 %is_array, label %typed, label %no
typed:
  %its_dtype = call ptr @place(ptr %array, i64 {ARRAY_DTYPE})
  %dtype = call ptr @place(ptr %input, i64 {INPUT_DTYPE})
  %same_dtype = icmp eq ptr %its_dtype, %dtype
  %flagsp = getelementptr i8, ptr %array, i64 {ARRAY_FLAGS}
  %flags = load i32, ptr %flagsp, align 4
  %needed = and i32 %flags, {NEEDED}
  %in_place = icmp eq i32 %needed, {NEEDED}
  %ndimp = getelementptr i8, ptr %array, i64 {ARRAY_NDIM}
  %ndim = load i32, ptr %ndimp, align 4
  %its_rank = zext i32 %ndim to i64
  %rank = call i64 @word(ptr %input, i64 {INPUT_NDIM})
  %same_rank = icmp eq i64 %its_rank, %rank
  %alike = and i1 %same_dtype, %same_rank
  %readable = and i1 %alike, %in_place
  br i1 %readable, label %shape, label %no
shape:
  %its_dims = call ptr @place(ptr %array, i64 {ARRAY_DIMS})
  %dims = call ptr @place(ptr %input, i64 {INPUT_DIMS})
  br label %axis
axis:
  %n = phi i64 [ 0, %shape ], [ %next, %equal ]
  %more = icmp ult i64 %n, %rank
  br i1 %more, label %compare, label %yes
compare:
  %its_sizep = getelementptr i64, ptr %its_dims, i64 %n
  %sizep = getelementptr i64, ptr %dims, i64 %n
  %its_size = load i64, ptr %its_sizep, align 8
  %size = load i64, ptr %sizep, align 8
  %same = icmp eq i64 %its_size, %size
  br i1 %same, label %equal, label %no
equal:
  %next = add i64 %n, 1
  br label %axis
yes:
  ret i1 true
no:
  ret i1 false
}

; Takes the last entry of a list, if there is one.
define internal ptr @take(ptr %list) nounwind {
entry:
  %size = call i64 @PyList_Size(ptr %list)
  %some = icmp sgt i64 %size, 0
  br i1 %some, label %pick, label %none
pick:
  %last = sub i64 %size, 1
  %found = call ptr @PyList_GetItem(ptr %list, i64 %last)
  call void @Py_IncRef(ptr %found)
  %failed = call i32 @PyList_SetSlice(ptr %list, i64 %last, i64 %size, ptr null)
  %gone = icmp eq i32 %failed, 0
  br i1 %gone, label %taken, label %kept
taken:
  ret ptr %found
kept:
  call void @Py_DecRef(ptr %found)
  call void @PyErr_Clear()
  br label %none
none:
  ret ptr null
}

; Puts an entry into a list that holds fewer than `most`; else drops it.
define internal void @give(ptr %list, ptr %entry, i64 %most) nounwind {
begin:
  %size = call i64 @PyList_Size(ptr %list)
  %fits = icmp slt i64 %size, %most
  br i1 %fits, label %add, label %drop
add:
  %failed = call i32 @PyList_Append(ptr %list, ptr %entry)
  %added = icmp eq i32 %failed, 0
  br i1 %added, label %drop, label %clear
clear:
  call void @PyErr_Clear()
  br label %drop
drop:
  call void @Py_DecRef(ptr %entry)
  ret void
}

define internal ptr @words_of(ptr %entry) nounwind {
  %number = call ptr @PyTuple_GetItem(ptr %entry, i64 0)
  %address = call i64 @PyLong_AsLongLong(ptr %number)
  %words = inttoptr i64 %address to ptr
  ret ptr %words
}

; Puts new arrays into `list`, and their addresses into `bases`. Returns whether there was memory.
define internal i1 @allocate(ptr %record, ptr %bases, ptr %list) nounwind {
entry:
  %type = call ptr @place(ptr %record, i64 {CALL_ARRAY})
  %bytes = call ptr @place(ptr %record, i64 {CALL_BYTES})
  %n_blocks = call i64 @word(ptr %record, i64 {CALL_N_BLOCKS})
  %blocks = call ptr @place(ptr %record, i64 {CALL_BLOCKS})
  br label %next_block
next_block:
  %b = phi i64 [ 0, %entry ], [ %b_after, %block_done ]
  %more_blocks = icmp ult i64 %b, %n_blocks
  br i1 %more_blocks, label %block, label %done
block:
  %b_at = mul i64 %b, {BLOCK_BYTES}
  %this = getelementptr i8, ptr %blocks, i64 %b_at
  call void @Py_IncRef(ptr %bytes)
  %memory = call ptr @PyArray_NewFromDescr(
    ptr %type, ptr %bytes, i32 1, ptr %this, ptr null, ptr null, i32 0, ptr null
  )
  %none = icmp eq ptr %memory, null
  br i1 %none, label %failed, label %aligned
aligned:
  %first = call i64 @word(ptr %memory, i64 {ARRAY_DATA})
  %beyond = add i64 %first, 63
  %begin = and i64 %beyond, -64
  %n_results = call i64 @word(ptr %this, i64 {BLOCK_N_RESULTS})
  %results = call ptr @place(ptr %this, i64 {BLOCK_RESULTS})
  br label %next_result
next_result:
  %r = phi i64 [ 0, %aligned ], [ %r_after, %placed ]
  %more_results = icmp ult i64 %r, %n_results
  br i1 %more_results, label %result, label %block_done
result:
  %r_at = mul i64 %r, {RESULT_BYTES}
  %row = getelementptr i8, ptr %results, i64 %r_at
  %dtype = call ptr @place(ptr %row, i64 {RESULT_DTYPE})
  %rank = call i64 @word(ptr %row, i64 {RESULT_NDIM})
  %ndim = trunc i64 %rank to i32
  %dims = call ptr @place(ptr %row, i64 {RESULT_DIMS})
  %offset = call i64 @word(ptr %row, i64 {RESULT_OFFSET})
  %base = call i64 @word(ptr %row, i64 {RESULT_BASE})
  %number = call i64 @word(ptr %row, i64 {RESULT_PLACE})
  %address = add i64 %begin, %offset
  %basep = getelementptr i64, ptr %bases, i64 %base
  store i64 %address, ptr %basep, align 8
  %data = inttoptr i64 %address to ptr
  call void @Py_IncRef(ptr %dtype)
  %array = call ptr @PyArray_NewFromDescr(
    ptr %type, ptr %dtype, i32 %ndim, ptr %dims, ptr null, ptr %data, i32 {FRESH}, ptr null
  )
  %no_array = icmp eq ptr %array, null
  br i1 %no_array, label %unshown, label %shown
shown:
  call void @Py_IncRef(ptr %memory)
  %unowned = call i32 @PyArray_SetBaseObject(ptr %array, ptr %memory)
  %is_owned = icmp eq i32 %unowned, 0
  br i1 %is_owned, label %placed, label %apart
placed:
  %unused = call i32 @PyList_SetItem(ptr %list, i64 %number, ptr %array)
  %r_after = add i64 %r, 1
  br label %next_result
block_done:
  call void @Py_DecRef(ptr %memory)
  %b_after = add i64 %b, 1
  br label %next_block
apart:
  call void @Py_DecRef(ptr %array)
  br label %unshown
unshown:
  call void @Py_DecRef(ptr %memory)
  br label %failed
failed:
  call void @PyErr_Clear()
  ret i1 false
done:
  ret i1 true
}

; Runs a segment. The GIL is released unless the runs before were short. Returns whether a signal's
; handler has raised an exception, while a loop paused.
define internal i1 @run(ptr %record, ptr %words, ptr %pool) nounwind {
entry:
  %before = alloca [2 x i64], align 8
  %after = alloca [2 x i64], align 8
  %segment = call ptr @place(ptr %words, i64 {CONTEXT_SEGMENT})
  %bases = call ptr @place(ptr %words, i64 {CONTEXT_BASES})
  %watch = call ptr @place(ptr %record, i64 {CALL_WATCH})
  br label %start
start:
  %keeps = call i64 @word(ptr %record, i64 {CALL_KEEPS})
  %is_short = icmp ne i64 %keeps, 0
  br i1 %is_short, label %holding, label %releasing
holding:
  %ran = call i32 @clew_run_segment(ptr %segment, ptr %bases, ptr %pool, ptr %watch)
  br label %look
releasing:
  %timed = call i64 @word(ptr %record, i64 {CALL_TIMED})
  %thread = call ptr @PyEval_SaveThread()
  %is_timed = icmp sgt i64 %timed, 0
  br i1 %is_timed, label %timing, label %plain
plain:
  %ran_apart = call i32 @clew_run_segment(ptr %segment, ptr %bases, ptr %pool, ptr %watch)
  call void @PyEval_RestoreThread(ptr %thread)
  br label %look
timing:
  call void @clew_clock(ptr %before)
  %ran_timed = call i32 @clew_run_segment(ptr %segment, ptr %bases, ptr %pool, ptr %watch)
  call void @clew_clock(ptr %after)
  call void @PyEval_RestoreThread(ptr %thread)
  %began = load i64, ptr %before, align 8
  %ended = load i64, ptr %after, align 8
  %took = sub i64 %ended, %began
  %shortest = call i64 @word(ptr %record, i64 {CALL_SHORTEST})
  %shorter = icmp slt i64 %took, %shortest
  %least = select i1 %shorter, i64 %took, i64 %shortest
  call void @set(ptr %record, i64 {CALL_SHORTEST}, i64 %least)
  %left = sub i64 %timed, 1
  call void @set(ptr %record, i64 {CALL_TIMED}, i64 %left)
  %limit = call i64 @word(ptr %record, i64 {CALL_LIMIT})
  %below = icmp slt i64 %least, %limit
  %last = icmp eq i64 %left, 0
  %both = and i1 %below, %last
  %decided = zext i1 %both to i64
  call void @set(ptr %record, i64 {CALL_KEEPS}, i64 %decided)
  br label %look
look:
  %status = phi i32 [ %ran, %holding ], [ %ran_apart, %plain ], [ %ran_timed, %timing ]
  %pauses = icmp sge i32 %status, {PAUSED}
  br i1 %pauses, label %signals, label %over
signals:
  %raised = call i32 @PyErr_CheckSignals()
  %goes_on = icmp eq i32 %raised, 0
  br i1 %goes_on, label %start, label %interrupted
over:
  ret i1 false
interrupted:
  ret i1 true
}

; The budget of iterations, if it is that of the process; else 0.
define internal i64 @limit_of(ptr %variable, ptr %none, ptr %steps) nounwind {
entry:
  %found = alloca ptr, align 8
  store ptr null, ptr %found, align 8
  %failed = call i32 @PyContextVar_Get(ptr %variable, ptr null, ptr %found)
  %value = load ptr, ptr %found, align 8
  %nothing = icmp eq ptr %value, null
  br i1 %nothing, label %unknown, label %known
unknown:
  call void @PyErr_Clear()
  ret i64 0
known:
  call void @Py_DecRef(ptr %value)
  %is_default = icmp eq ptr %value, %none
  %limit = load i64, ptr %steps, align 8
  %allowed = select i1 %is_default, i64 %limit, i64 0
  ret i64 %allowed
}

; Prepares the loops of a context for a run in which each may take `limit` iterations.
define internal void @begin_loops(ptr %words, i64 %limit) nounwind {
entry:
  %loops = call ptr @place(ptr %words, i64 {CONTEXT_LOOPS})
  %fresh = call ptr @place(ptr %words, i64 {CONTEXT_FRESH})
  %count = call i64 @word(ptr %words, i64 {CONTEXT_N_LOOPS})
  %bytes = mul i64 %count, {LOOP_BYTES}
  br label %copy
copy:
  %at = phi i64 [ 0, %entry ], [ %at_after, %word ]
  %more = icmp ult i64 %at, %bytes
  br i1 %more, label %word, label %limits
word:
  %value = call i64 @word(ptr %fresh, i64 %at)
  call void @set(ptr %loops, i64 %at, i64 %value)
  %at_after = add i64 %at, 8
  br label %copy
limits:
  %loop_at = phi i64 [ 0, %copy ], [ %loop_after, %set_limit ]
  %more_loops = icmp ult i64 %loop_at, %bytes
  br i1 %more_loops, label %set_limit, label %done
set_limit:
  %limit_at = add i64 %loop_at, {LOOP_LIMIT}
  call void @set(ptr %loops, i64 %limit_at, i64 %limit)
  %loop_after = add i64 %loop_at, {LOOP_BYTES}
  br label %limits
done:
  ret void
}

; Whether a loop was stopped at its limit.
define internal i1 @is_stopped(ptr %words) nounwind {
entry:
  %loops = call ptr @place(ptr %words, i64 {CONTEXT_LOOPS})
  %count = call i64 @word(ptr %words, i64 {CONTEXT_N_LOOPS})
  %bytes = mul i64 %count, {LOOP_BYTES}
  br label %next
next:
  %at = phi i64 [ 0, %entry ], [ %after, %loop ]
  %any = phi i64 [ 0, %entry ], [ %joined, %loop ]
  %more = icmp ult i64 %at, %bytes
  br i1 %more, label %loop, label %done
loop:
  %fault_at = add i64 %at, {LOOP_FAULT}
  %fault = call i64 @word(ptr %loops, i64 %fault_at)
  %joined = or i64 %any, %fault
  %after = add i64 %at, {LOOP_BYTES}
  br label %next
done:
  %stopped = icmp ne i64 %any, 0
  ret i1 %stopped
}

; Clears the records of checks. Returns whether an index was out of range.
define internal i1 @cleared(ptr %words) nounwind {
entry:
  %records = call ptr @place(ptr %words, i64 {CONTEXT_RECORDS})
  %count = call i64 @word(ptr %words, i64 {CONTEXT_N_RECORDS})
  br label %look
look:
  %n = phi i64 [ 0, %entry ], [ %next, %clear ]
  %any = phi i64 [ 0, %entry ], [ %joined, %clear ]
  %more = icmp ult i64 %n, %count
  br i1 %more, label %clear, label %done
clear:
  %at = getelementptr i64, ptr %records, i64 %n
  %found = load i64, ptr %at, align 8
  %joined = or i64 %any, %found
  store i64 0, ptr %at, align 8
  %next = add i64 %n, 1
  br label %look
done:
  %faulty = icmp ne i64 %any, 0
  ret i1 %faulty
}

; Ends the turn of a session. An exception that a signal's handler raised remains.
define internal void @end_turn(ptr %self) nounwind {
  %held = call ptr @PyTuple_GetItem(ptr %self, i64 5)
  %key = call ptr @PyTuple_GetItem(ptr %self, i64 6)
  %unused = call i32 @PyDict_DelItem(ptr %held, ptr %key)
  ret void
}

; The array for an input: a given one or a state.
define internal ptr @array_of(ptr %row, ptr %given, i64 %n_given, ptr %states) nounwind {
entry:
  %place = call i64 @word(ptr %row, i64 {INPUT_PLACE})
  %is_given = icmp slt i64 %place, %n_given
  br i1 %is_given, label %from_given, label %from_states
from_given:
  %array = call ptr @PyTuple_GetItem(ptr %given, i64 %place)
  ret ptr %array
from_states:
  %number = sub i64 %place, %n_given
  %state = call ptr @PyList_GetItem(ptr %states, i64 %number)
  ret ptr %state
}

; Moves the states behind the shown results to the session. Returns whether there was memory.
define internal i1 @keep_states(ptr %cell, ptr %list, i64 %n_shown, i64 %n_results) nounwind {
entry:
  %states = call ptr @PyList_GetSlice(ptr %list, i64 %n_shown, i64 %n_results)
  %none = icmp eq ptr %states, null
  br i1 %none, label %failed, label %shorten
shorten:
  %kept = call i32 @PyList_SetSlice(ptr %list, i64 %n_shown, i64 %n_results, ptr null)
  %is_short = icmp eq i32 %kept, 0
  br i1 %is_short, label %replace, label %drop
replace:
  %unused = call i32 @PyList_SetItem(ptr %cell, i64 0, ptr %states)
  ret i1 true
drop:
  call void @Py_DecRef(ptr %states)
  br label %failed
failed:
  call void @PyErr_Clear()
  ret i1 false
}

define ptr @clew_call(ptr %self, ptr %given) nounwind {
entry:
  %number = call ptr @PyTuple_GetItem(ptr %self, i64 0)
  %address = call i64 @PyLong_AsLongLong(ptr %number)
  %record = inttoptr i64 %address to ptr
  %none = call ptr @place(ptr %record, i64 {CALL_NONE})
  %given_type = call ptr @place(ptr %given, i64 {OBJECT_TYPE})
  %tuple = call ptr @place(ptr %record, i64 {CALL_TUPLE})
  %is_tuple = icmp eq ptr %given_type, %tuple
  br i1 %is_tuple, label %count, label %declined
count:
  %given_size = call i64 @PyTuple_Size(ptr %given)
  %n_inputs = call i64 @word(ptr %record, i64 {CALL_N_INPUTS})
  %n_given = call i64 @word(ptr %record, i64 {CALL_N_GIVEN})
  %all_given = icmp eq i64 %given_size, %n_given
  br i1 %all_given, label %allowed, label %declined
allowed:
  %aheadp = call ptr @place(ptr %record, i64 {CALL_AHEAD})
  %unlimited = icmp eq ptr %aheadp, null
  br i1 %unlimited, label %turns, label %limited
limited:
  %ahead = load i64, ptr %aheadp, align 8
  %may = icmp sgt i64 %ahead, 0
  br i1 %may, label %turns, label %declined
turns:
  %session = call i64 @word(ptr %record, i64 {CALL_HAS_SESSION})
  %stateless = icmp eq i64 %session, 0
  br i1 %stateless, label %check, label %begin_turn
begin_turn:
  %held = call ptr @PyTuple_GetItem(ptr %self, i64 5)
  %key = call ptr @PyTuple_GetItem(ptr %self, i64 6)
  %holder = call ptr @PyTuple_GetItem(ptr %self, i64 7)
  ; No other thread comes between these two.
  %holders = call i64 @PyDict_Size(ptr %held)
  %is_free = icmp eq i64 %holders, 0
  br i1 %is_free, label %hold, label %declined
hold:
  %unheld = call i32 @PyDict_SetItem(ptr %held, ptr %key, ptr %holder)
  %is_held = icmp eq i32 %unheld, 0
  br i1 %is_held, label %read_states, label %no_turn
no_turn:
  call void @PyErr_Clear()
  br label %declined
read_states:
  %cell_of_states = call ptr @PyTuple_GetItem(ptr %self, i64 4)
  %its_states = call ptr @PyList_GetItem(ptr %cell_of_states, i64 0)
  br label %check
check:
  %states = phi ptr [ null, %turns ], [ %its_states, %read_states ]
  %array_type = call ptr @place(ptr %record, i64 {CALL_ARRAY})
  %inputs = call ptr @place(ptr %record, i64 {CALL_INPUTS})
  br label %next_input
next_input:
  %i = phi i64 [ 0, %check ], [ %i_after, %fitting ]
  %more_inputs = icmp ult i64 %i, %n_inputs
  br i1 %more_inputs, label %input, label %find_pool
input:
  %i_at = mul i64 %i, {INPUT_BYTES}
  %row = getelementptr i8, ptr %inputs, i64 %i_at
  %array = call ptr @array_of(ptr %row, ptr %given, i64 %n_given, ptr %states)
  %fits = call i1 @fits(ptr %array, ptr %row, ptr %array_type)
  br i1 %fits, label %fitting, label %unanswered
fitting:
  %i_after = add i64 %i, 1
  br label %next_input
find_pool:
  %cell = call ptr @place(ptr %record, i64 {CALL_POOL})
  %serial = icmp eq ptr %cell, null
  br i1 %serial, label %find_limit, label %pooled
pooled:
  %known = call i64 @word(ptr %cell, i64 {POOL_IS_KNOWN})
  %workers = call ptr @place(ptr %cell, i64 {POOL_ADDRESS})
  %is_known = icmp ne i64 %known, 0
  br i1 %is_known, label %find_limit, label %unanswered
find_limit:
  %pool = phi ptr [ null, %find_pool ], [ %workers, %pooled ]
  %steps = call ptr @place(ptr %record, i64 {CALL_LOOP_STEPS})
  %no_loops = icmp eq ptr %steps, null
  br i1 %no_loops, label %find_context, label %budget
budget:
  %variable = call ptr @PyTuple_GetItem(ptr %self, i64 3)
  %budgeted = call i64 @limit_of(ptr %variable, ptr %none, ptr %steps)
  %is_limited = icmp ne i64 %budgeted, 0
  br i1 %is_limited, label %find_context, label %unanswered
find_context:
  %limit = phi i64 [ 0, %find_limit ], [ %budgeted, %budget ]
  %contexts = call ptr @PyTuple_GetItem(ptr %self, i64 1)
  %context = call ptr @take(ptr %contexts)
  %no_context = icmp eq ptr %context, null
  br i1 %no_context, label %unanswered, label %has_context
has_context:
  %words = call ptr @words_of(ptr %context)
  %working = call i64 @word(ptr %record, i64 {CALL_WORKING})
  %memories = call ptr @PyTuple_GetItem(ptr %self, i64 2)
  %needs_none = icmp eq i64 %working, 0
  br i1 %needs_none, label %place_inputs, label %find_memory
find_memory:
  %found_memory = call ptr @take(ptr %memories)
  %no_memory = icmp eq ptr %found_memory, null
  br i1 %no_memory, label %leave_context, label %has_memory
has_memory:
  %memory_words = call ptr @words_of(ptr %found_memory)
  %memory_at = call i64 @word(ptr %memory_words, i64 {MEMORY_ADDRESS})
  %used = call i64 @word(ptr %memory_words, i64 {MEMORY_USED})
  %tables_at = call i64 @word(ptr %words, i64 {CONTEXT_MEMORY})
  %spare = call i64 @word(ptr %record, i64 {CALL_SPARE})
  %is_there = icmp eq i64 %memory_at, %tables_at
  %suffices = icmp uge i64 %used, %working
  %is_small = icmp ult i64 %used, %spare
  %serves = and i1 %is_there, %suffices
  %is_ours = and i1 %serves, %is_small
  br i1 %is_ours, label %place_inputs, label %leave_memory
place_inputs:
  %memory = phi ptr [ null, %has_context ], [ %found_memory, %has_memory ]
  %bases = call ptr @place(ptr %words, i64 {CONTEXT_BASES})
  br label %next_place
next_place:
  %p = phi i64 [ 0, %place_inputs ], [ %p_after, %place_done ]
  %more_places = icmp ult i64 %p, %n_inputs
  br i1 %more_places, label %place_input, label %make_results
place_input:
  %p_at = mul i64 %p, {INPUT_BYTES}
  %p_row = getelementptr i8, ptr %inputs, i64 %p_at
  %base = call i64 @word(ptr %p_row, i64 {INPUT_BASE})
  %is_read = icmp sge i64 %base, 0
  br i1 %is_read, label %write_base, label %place_done
write_base:
  %p_array = call ptr @array_of(ptr %p_row, ptr %given, i64 %n_given, ptr %states)
  %data = call i64 @word(ptr %p_array, i64 {ARRAY_DATA})
  %basep = getelementptr i64, ptr %bases, i64 %base
  store i64 %data, ptr %basep, align 8
  br label %place_done
place_done:
  %p_after = add i64 %p, 1
  br label %next_place
make_results:
  %n_results = call i64 @word(ptr %record, i64 {CALL_N_RESULTS})
  %list = call ptr @PyList_New(i64 %n_results)
  %no_list = icmp eq ptr %list, null
  br i1 %no_list, label %short_of_memory, label %fill
short_of_memory:
  call void @PyErr_Clear()
  br label %give_back
fill:
  %filled = call i1 @allocate(ptr %record, ptr %bases, ptr %list)
  br i1 %filled, label %ready, label %give_back
ready:
  br i1 %unlimited, label %go, label %count_call
count_call:
  %ahead_now = load i64, ptr %aheadp, align 8
  %ahead_after = sub i64 %ahead_now, 1
  store i64 %ahead_after, ptr %aheadp, align 8
  br label %go
go:
  call void @begin_loops(ptr %words, i64 %limit)
  %interrupted = call i1 @run(ptr %record, ptr %words, ptr %pool)
  br i1 %interrupted, label %abandon, label %ran
abandon:
  ; Where a loop paused, the tables of the context are not those of a new run.
  call void @Py_DecRef(ptr %context)
  call void @Py_DecRef(ptr %list)
  %has_memory_left = icmp ne ptr %memory, null
  br i1 %has_memory_left, label %abandon_memory, label %raise
abandon_memory:
  call void @Py_DecRef(ptr %memory)
  br label %raise
raise:
  br label %close
ran:
  %faulty = call i1 @cleared(ptr %words)
  %stopped = call i1 @is_stopped(ptr %words)
  %is_wrong = or i1 %faulty, %stopped
  %is_right = xor i1 %is_wrong, true
  br label %give_back
give_back:
  %has_run = phi i1 [ false, %short_of_memory ], [ false, %fill ], [ %is_right, %ran ]
  %had_memory = icmp ne ptr %memory, null
  br i1 %had_memory, label %give_memory, label %give_context
give_memory:
  %most_memories = call i64 @word(ptr %record, i64 {CALL_MEMORIES})
  call void @give(ptr %memories, ptr %memory, i64 %most_memories)
  br label %give_context
give_context:
  %most_contexts = call i64 @word(ptr %record, i64 {CALL_CONTEXTS})
  call void @give(ptr %contexts, ptr %context, i64 %most_contexts)
  br i1 %has_run, label %answer, label %discard
answer:
  br i1 %stateless, label %close, label %keep
keep:
  %n_shown = call i64 @word(ptr %record, i64 {CALL_N_SHOWN})
  %kept_in = call ptr @PyTuple_GetItem(ptr %self, i64 4)
  %is_kept = call i1 @keep_states(ptr %kept_in, ptr %list, i64 %n_shown, i64 %n_results)
  br i1 %is_kept, label %close, label %drop_list
discard:
  br i1 %no_list, label %unanswered, label %drop_list
drop_list:
  call void @Py_DecRef(ptr %list)
  br label %unanswered
leave_memory:
  %kept_memories = call i64 @word(ptr %record, i64 {CALL_MEMORIES})
  call void @give(ptr %memories, ptr %found_memory, i64 %kept_memories)
  br label %leave_context
leave_context:
  %kept_contexts = call i64 @word(ptr %record, i64 {CALL_CONTEXTS})
  call void @give(ptr %contexts, ptr %context, i64 %kept_contexts)
  br label %unanswered
unanswered:
  call void @Py_IncRef(ptr %none)
  br label %close
close:
  %found = phi ptr [ %none, %unanswered ], [ null, %raise ], [ %list, %answer ], [ %list, %keep ]
  br i1 %stateless, label %end, label %end_turn
end_turn:
  call void @end_turn(ptr %self)
  br label %end
end:
  ret ptr %found
declined:
  call void @Py_IncRef(ptr %none)
  ret ptr %none
}
"""

_WORDS: Final = {
    **{name: value for name, value in globals().items() if isinstance(value, int)},
    **{name: value for name, value in vars(flow).items() if name.startswith("LOOP_")},
    "PAUSED": native.PAUSED,
    "NEEDED": CONTIGUOUS | ALIGNED,
    "FRESH": CONTIGUOUS | ALIGNED | WRITEABLE,
}


def call_text() -> str:
    """Returns the LLVM module of the function."""
    return re.sub(r"\{(\w+)\}", lambda found: str(_WORDS[found[1]]), _TEXT)
