"""LLVM text of functions that read Python's texts: tests, lookups, patterns and n-grams.

A text is read where it lies, in the compact form of CPython (PEP 393): one, two or four bytes a
character, behind a head whose layout `TextLayout` states; `runtime.text_layout` finds it and checks
it. A function returns a nonzero status at the first element that is not a compact `str`. The caller
holds the GIL. Most functions never call Python, and all write only to the memory they are given;
`support.text_tables` describes the tables that they read. The file is long because it is one LLVM
module, whose functions share their helpers; `text_numbers.py` adds the conversions of numbers.

**New texts.** Three functions create texts with functions of Python's stable interface, and store
them in an array of objects, whose old elements they release.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from clew.codegen.driver.text_numbers import NUMBERS
from clew.support import text_tables as tables
from clew.support.text_tables import HEADER_WORDS, SLOT_WORDS, STEP_WORDS

EXPORTS: Final = (
    "clew_text_check", "clew_text_length", "clew_text_fill", "clew_text_places", "clew_text_match",
    "clew_gram_fill", "clew_gram_counts", "clew_text_concat", "clew_text_split",
    "clew_text_numbers", "clew_text_decimals", "clew_text_integers", "clew_text_call",
)  # fmt: skip
IMPORTS: Final = ("memcmp", "memchr")
PYTHON_IMPORTS: Final = (
    "PyUnicode_Concat",
    "PyUnicode_Substring",
    "PyUnicode_FromStringAndSize",
    "PyErr_Clear",
    "PyErr_Occurred",
    "PyErr_BadArgument",
    "PyLong_AsLongLong",
    "PyLong_FromLongLong",
    "PyTuple_GetItem",
    "Py_IncRef",
    "Py_DecRef",
)

COMPACT_BIT: Final = 8
ASCII_BIT: Final = 16
"""Bits of the form of a text. The three bits below them hold the bytes of a character."""


@dataclass(frozen=True)
class TextLayout:
    """Where CPython keeps what is read of a `str`: offsets in bytes of its type, its number of
    characters (`i64`), its state (`i32`) and its characters, in ASCII and else; and the bit of the
    state at which its form begins.
    """

    type_at: int
    length_at: int
    state_at: int
    ascii_at: int
    wide_at: int
    form_shift: int


# What `clew_text_call` reads: the function, its number of arguments, and the type of arrays.
CALL_FUNCTION, CALL_COUNT, CALL_ARRAY, CALL_BYTES = 0, 8, 16, 24
MOST_ARGUMENTS: Final = 8

_NAMES: Final = {
    "ARRAY_DATA": object.__basicsize__,  # as in `support.addresses`
    "CALL_COUNT": CALL_COUNT,
    "CALL_ARRAY": CALL_ARRAY,
    "BODY": 8 * HEADER_WORDS,
    "SLOT": 8 * SLOT_WORDS,
    "STEP": 8 * STEP_WORDS,
    "COMPACT_BIT": COMPACT_BIT,
    "ASCII_BIT": ASCII_BIT,
    **{
        name: 8 * value
        for name, value in vars(tables).items()
        if name.startswith(("TABLE_", "AUTOMATON_", "GRAMS_", "RULE_"))
    },
}

_TEXT: Final = """
declare i32 @memcmp(ptr, ptr, i64)
declare ptr @memchr(ptr, i32, i64)
declare ptr @PyUnicode_Concat(ptr, ptr)
declare ptr @PyUnicode_Substring(ptr, i64, i64)
declare ptr @PyUnicode_FromStringAndSize(ptr, i64)
declare double @llvm.fabs.f64(double)
declare void @PyErr_Clear()
declare ptr @PyErr_Occurred()
declare i32 @PyErr_BadArgument()
declare i64 @PyLong_AsLongLong(ptr)
declare ptr @PyLong_FromLongLong(i64)
declare ptr @PyTuple_GetItem(ptr, i64)
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)

%form = type { ptr, i64, i64 }

define internal i64 @mix(i64 %a, i64 %b) alwaysinline nounwind {
  %aw = zext i64 %a to i128
  %bw = zext i64 %b to i128
  %product = mul i128 %aw, %bw
  %low = trunc i128 %product to i64
  %upper = lshr i128 %product, 64
  %high = trunc i128 %upper to i64
  %mixed = xor i64 %low, %high
  ret i64 %mixed
}

; The first byte of element %i, its bytes, and those of one character; 0 of these if it is no
; compact str.
define internal %form @text_at(ptr %texts, i64 %i, ptr %type) alwaysinline nounwind {
  %place = getelementptr ptr, ptr %texts, i64 %i
  %text = load ptr, ptr %place, align 8
  %absent = icmp eq ptr %text, null
  br i1 %absent, label %none, label %typed
typed:
  %typep = getelementptr i8, ptr %text, i64 {type_at}
  %its = load ptr, ptr %typep, align 8
  %right = icmp eq ptr %its, %type
  br i1 %right, label %read, label %none
read:
  %statep = getelementptr i8, ptr %text, i64 {state_at}
  %state = load i32, ptr %statep, align 4
  %bits = lshr i32 %state, {form_shift}
  %compactbit = and i32 %bits, {COMPACT_BIT}
  %compact = icmp ne i32 %compactbit, 0
  br i1 %compact, label %found, label %none
found:
  %asciibit = and i32 %bits, {ASCII_BIT}
  %ascii = icmp ne i32 %asciibit, 0
  %offset = select i1 %ascii, i64 {ascii_at}, i64 {wide_at}
  %data = getelementptr i8, ptr %text, i64 %offset
  %kind32 = and i32 %bits, 7
  %kind = zext i32 %kind32 to i64
  %lengthp = getelementptr i8, ptr %text, i64 {length_at}
  %length = load i64, ptr %lengthp, align 8
  %size = mul i64 %length, %kind
  %f0 = insertvalue %form undef, ptr %data, 0
  %f1 = insertvalue %form %f0, i64 %size, 1
  %f2 = insertvalue %form %f1, i64 %kind, 2
  ret %form %f2
none:
  ret %form { ptr null, i64 0, i64 0 }
}

; Whether %count characters of 2 or 4 bytes hold half of a surrogate pair.
define internal i1 @has_half_16(ptr %data, i64 %count) nounwind {
entry:
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %after, %next ]
  %any = phi i16 [ 0, %entry ], [ %any1, %next ]
  %unitp = getelementptr i16, ptr %data, i64 %i
  %unit = load i16, ptr %unitp, align 2
  %top = and i16 %unit, -2048
  %half = icmp eq i16 %top, -10240
  %bit = zext i1 %half to i16
  %any1 = or i16 %any, %bit
  %after = add i64 %i, 1
  %more = icmp ult i64 %after, %count
  br i1 %more, label %next, label %done
done:
  %found = icmp ne i16 %any1, 0
  ret i1 %found
}

define internal i1 @has_half_32(ptr %data, i64 %count) nounwind {
entry:
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %after, %next ]
  %any = phi i32 [ 0, %entry ], [ %any1, %next ]
  %unitp = getelementptr i32, ptr %data, i64 %i
  %unit = load i32, ptr %unitp, align 4
  %top = and i32 %unit, -2048
  %half = icmp eq i32 %top, 55296
  %bit = zext i1 %half to i32
  %any1 = or i32 %any, %bit
  %after = add i64 %i, 1
  %more = icmp ult i64 %after, %count
  br i1 %more, label %next, label %done
done:
  %found = icmp ne i32 %any1, 0
  ret i1 %found
}

; A hash, not 0, of %size bytes. Reads whole words; the last may overlap the one before.
define internal i64 @hash_of(ptr %bytes, i64 %size, i64 %secret) alwaysinline nounwind {
  %seed0 = mul i64 %size, -7046029254386353131
  %seed = xor i64 %seed0, %secret
  %long = icmp uge i64 %size, 8
  br i1 %long, label %words, label %short
words:
  %last = sub i64 %size, 8
  br label %next
next:
  %at = phi i64 [ 0, %words ], [ %after, %step ]
  %sum = phi i64 [ %seed, %words ], [ %mixed, %step ]
  %inside = icmp ult i64 %at, %last
  br i1 %inside, label %step, label %tail
step:
  %wordp = getelementptr i8, ptr %bytes, i64 %at
  %word = load i64, ptr %wordp, align 1
  %both = xor i64 %word, %sum
  %mixed = call i64 @mix(i64 %both, i64 -6884282663029611473)
  %after = add i64 %at, 8
  br label %next
tail:
  %tailp = getelementptr i8, ptr %bytes, i64 %last
  %tailw = load i64, ptr %tailp, align 1
  br label %finish
short:
  %four = icmp uge i64 %size, 4
  br i1 %four, label %halves, label %few
halves:
  %half = sub i64 %size, 4
  %h0 = load i32, ptr %bytes, align 1
  %h1p = getelementptr i8, ptr %bytes, i64 %half
  %h1 = load i32, ptr %h1p, align 1
  %h0w = zext i32 %h0 to i64
  %h1w = zext i32 %h1 to i64
  %h1s = shl i64 %h1w, 32
  %hw = or i64 %h0w, %h1s
  br label %finish
few:
  %any = icmp ne i64 %size, 0
  br i1 %any, label %three, label %finish
three:
  %middle = lshr i64 %size, 1
  %end = sub i64 %size, 1
  %b1p = getelementptr i8, ptr %bytes, i64 %middle
  %b2p = getelementptr i8, ptr %bytes, i64 %end
  %b0 = load i8, ptr %bytes, align 1
  %b1 = load i8, ptr %b1p, align 1
  %b2 = load i8, ptr %b2p, align 1
  %b0w = zext i8 %b0 to i64
  %b1w = zext i8 %b1 to i64
  %b2w = zext i8 %b2 to i64
  %b1s = shl i64 %b1w, 8
  %b2s = shl i64 %b2w, 16
  %b01 = or i64 %b0w, %b1s
  %b012 = or i64 %b01, %b2s
  br label %finish
finish:
  %rest = phi i64 [ %tailw, %tail ], [ %hw, %halves ], [ %b012, %three ], [ 0, %few ]
  %before = phi i64 [ %sum, %tail ], [ %seed, %halves ], [ %seed, %three ], [ %seed, %few ]
  %input = xor i64 %rest, %before
  %hash = call i64 @mix(i64 %input, i64 -2266404186210603135)
  %zero = icmp eq i64 %hash, 0
  %result = select i1 %zero, i64 1, i64 %hash
  ret i64 %result
}

; The slot of a key: its own, or the free one where it belongs.
define internal ptr @slot_of(ptr %table, ptr %bytes, i64 %size, i64 %form, i64 %hash)
    alwaysinline nounwind {
  %maskp = getelementptr i8, ptr %table, i64 {TABLE_MASK}
  %mask = load i64, ptr %maskp, align 8
  %slots = getelementptr i8, ptr %table, i64 {BODY}
  br label %look
look:
  %from = phi i64 [ %hash, %0 ], [ %further, %differs ]
  %number = and i64 %from, %mask
  %offset = mul i64 %number, {SLOT}
  %slot = getelementptr i8, ptr %slots, i64 %offset
  %its = load i64, ptr %slot, align 8
  %free = icmp eq i64 %its, 0
  br i1 %free, label %done, label %held
held:
  %same = icmp eq i64 %its, %hash
  br i1 %same, label %sized, label %differs
sized:
  %sizep = getelementptr i8, ptr %slot, i64 16
  %itsform = load i64, ptr %sizep, align 8
  %fits = icmp eq i64 %itsform, %form
  br i1 %fits, label %compare, label %differs
compare:
  %bytesp = getelementptr i8, ptr %slot, i64 8
  %itsbytes = load ptr, ptr %bytesp, align 8
  %order = call i32 @memcmp(ptr %itsbytes, ptr %bytes, i64 %size)
  %equal = icmp eq i32 %order, 0
  br i1 %equal, label %done, label %differs
differs:
  %further = add i64 %from, 1
  br label %look
done:
  ret ptr %slot
}

; Calls another function of this module for Python, in a tenth of the time that ctypes takes: a
; PyCFunction with METH_FASTCALL. The first item of %self is the address of the call's record.
; An argument is a number, or an array, of which the address of the first element is passed.
define ptr @clew_text_call(ptr %self, ptr %given, i64 %count) nounwind {
entry:
  %words = alloca [8 x i64], align 8
  %number = call ptr @PyTuple_GetItem(ptr %self, i64 0)
  %address = call i64 @PyLong_AsLongLong(ptr %number)
  %record = inttoptr i64 %address to ptr
  %countp = getelementptr i8, ptr %record, i64 {CALL_COUNT}
  %needed = load i64, ptr %countp, align 8
  %arrayp = getelementptr i8, ptr %record, i64 {CALL_ARRAY}
  %array = load ptr, ptr %arrayp, align 8
  %complete = icmp eq i64 %count, %needed
  br i1 %complete, label %next, label %wrong
next:
  %i = phi i64 [ 0, %entry ], [ %after, %step ]
  %more = icmp ult i64 %i, %needed
  br i1 %more, label %one, label %go
one:
  %objectp = getelementptr ptr, ptr %given, i64 %i
  %object = load ptr, ptr %objectp, align 8
  %typep = getelementptr i8, ptr %object, i64 {type_at}
  %type = load ptr, ptr %typep, align 8
  %is_array = icmp eq ptr %type, %array
  br i1 %is_array, label %data, label %plain
data:
  %datap = getelementptr i8, ptr %object, i64 {ARRAY_DATA}
  %first = load i64, ptr %datap, align 8
  br label %step
plain:
  %value = call i64 @PyLong_AsLongLong(ptr %object)
  %odd = icmp eq i64 %value, -1
  br i1 %odd, label %look, label %step
look:
  %raised = call ptr @PyErr_Occurred()
  %fine = icmp eq ptr %raised, null
  br i1 %fine, label %step, label %refused
step:
  %word = phi i64 [ %first, %data ], [ %value, %plain ], [ -1, %look ]
  %wordp = getelementptr i64, ptr %words, i64 %i
  store i64 %word, ptr %wordp, align 8
  %after = add i64 %i, 1
  br label %next
go:
  %function = load ptr, ptr %record, align 8
{ARGUMENTS}
  %result = call i64 %function({PASSED})
  %found = call ptr @PyLong_FromLongLong(i64 %result)
  ret ptr %found
wrong:
  %set = call i32 @PyErr_BadArgument()
  ret ptr null
refused:
  ret ptr null
}

; Whether all elements are texts with a form in UTF-8: 0 if so.
define i64 @clew_text_check(ptr %texts, i64 %count, ptr %type) nounwind {
entry:
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %after, %step ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %one, label %good
one:
  %text = call %form @text_at(ptr %texts, i64 %i, ptr %type)
  %kind = extractvalue %form %text, 2
  switch i64 %kind, label %bad [ i64 1, label %step i64 2, label %pairs i64 4, label %fours ]
pairs:
  %data2 = extractvalue %form %text, 0
  %size2 = extractvalue %form %text, 1
  %count2 = lshr i64 %size2, 1
  %half2 = call i1 @has_half_16(ptr %data2, i64 %count2)
  br i1 %half2, label %bad, label %step
fours:
  %data4 = extractvalue %form %text, 0
  %size4 = extractvalue %form %text, 1
  %count4 = lshr i64 %size4, 2
  %half4 = call i1 @has_half_32(ptr %data4, i64 %count4)
  br i1 %half4, label %bad, label %step
step:
  %after = add i64 %i, 1
  br label %next
good:
  ret i64 0
bad:
  ret i64 1
}

; The characters of all elements together; -1 if one is no text.
define i64 @clew_text_length(ptr %texts, i64 %count, ptr %type) nounwind {
entry:
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %after, %step ]
  %sum = phi i64 [ 0, %entry ], [ %total, %step ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %one, label %good
one:
  %text = call %form @text_at(ptr %texts, i64 %i, ptr %type)
  %kind = extractvalue %form %text, 2
  %wrong = icmp eq i64 %kind, 0
  br i1 %wrong, label %bad, label %step
step:
  %size = extractvalue %form %text, 1
  %shift = lshr i64 %kind, 1
  %length = lshr i64 %size, %shift
  %total = add i64 %sum, %length
  %after = add i64 %i, 1
  br label %next
good:
  ret i64 %sum
bad:
  ret i64 -1
}

; Enters keys into a table; of equal ones, the last place stays.
define i64 @clew_text_fill(ptr %texts, i64 %count, ptr %table) nounwind {
entry:
  %typep = getelementptr i8, ptr %table, i64 {TABLE_TYPE}
  %type = load ptr, ptr %typep, align 8
  %secretp = getelementptr i8, ptr %table, i64 {TABLE_SECRET}
  %secret = load i64, ptr %secretp, align 8
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %after, %step ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %one, label %good
one:
  %text = call %form @text_at(ptr %texts, i64 %i, ptr %type)
  %bytes = extractvalue %form %text, 0
  %size = extractvalue %form %text, 1
  %kind = extractvalue %form %text, 2
  %wrong = icmp eq i64 %kind, 0
  br i1 %wrong, label %bad, label %step
step:
  %size8 = shl i64 %size, 3
  %form = or i64 %size8, %kind
  %hash = call i64 @hash_of(ptr %bytes, i64 %size, i64 %secret)
  %slot = call ptr @slot_of(ptr %table, ptr %bytes, i64 %size, i64 %form, i64 %hash)
  %bytesp = getelementptr i8, ptr %slot, i64 8
  %lengthp = getelementptr i8, ptr %slot, i64 16
  %placep = getelementptr i8, ptr %slot, i64 24
  store i64 %hash, ptr %slot, align 8
  store ptr %bytes, ptr %bytesp, align 8
  store i64 %form, ptr %lengthp, align 8
  store i64 %i, ptr %placep, align 8
  %after = add i64 %i, 1
  br label %next
good:
  ret i64 0
bad:
  ret i64 1
}

; The places of texts in a table.
define i64 @clew_text_places(ptr %texts, i64 %count, ptr %table, ptr %out) nounwind {
entry:
  %typep = getelementptr i8, ptr %table, i64 {TABLE_TYPE}
  %type = load ptr, ptr %typep, align 8
  %secretp = getelementptr i8, ptr %table, i64 {TABLE_SECRET}
  %secret = load i64, ptr %secretp, align 8
  %unknownp = getelementptr i8, ptr %table, i64 {TABLE_UNKNOWN}
  %unknown = load i64, ptr %unknownp, align 8
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %after, %write ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %one, label %good
one:
  %text = call %form @text_at(ptr %texts, i64 %i, ptr %type)
  %bytes = extractvalue %form %text, 0
  %size = extractvalue %form %text, 1
  %kind = extractvalue %form %text, 2
  %wrong = icmp eq i64 %kind, 0
  br i1 %wrong, label %bad, label %step
step:
  %size8 = shl i64 %size, 3
  %form = or i64 %size8, %kind
  %hash = call i64 @hash_of(ptr %bytes, i64 %size, i64 %secret)
  %slot = call ptr @slot_of(ptr %table, ptr %bytes, i64 %size, i64 %form, i64 %hash)
  %its = load i64, ptr %slot, align 8
  %placep = getelementptr i8, ptr %slot, i64 24
  %place = load i64, ptr %placep, align 8
  %free = icmp eq i64 %its, 0
  %found = select i1 %free, i64 %unknown, i64 %place
  br label %write
write:
  %outp = getelementptr i64, ptr %out, i64 %i
  store i64 %found, ptr %outp, align 8
  %after = add i64 %i, 1
  br label %next
good:
  ret i64 0
bad:
  ret i64 1
}

; The state after one more byte.
define internal i64 @moved(ptr %rows, i64 %state, i64 %byte) alwaysinline nounwind {
  %row = shl i64 %state, 8
  %low = and i64 %byte, 255
  %cell = or i64 %row, %low
  %cellp = getelementptr i16, ptr %rows, i64 %cell
  %next = load i16, ptr %cellp, align 2
  %to = zext i16 %next to i64
  ret i64 %to
}

; Whether an automaton accepts each text.
define i64 @clew_text_match(ptr %texts, i64 %count, ptr %automaton, ptr %out) nounwind {
entry:
  %typep = getelementptr i8, ptr %automaton, i64 {AUTOMATON_TYPE}
  %type = load ptr, ptr %typep, align 8
  %startp = getelementptr i8, ptr %automaton, i64 {AUTOMATON_START}
  %start = load i64, ptr %startp, align 8
  %acceptsp = getelementptr i8, ptr %automaton, i64 {AUTOMATON_ACCEPTS}
  %accepts = load i64, ptr %acceptsp, align 8
  %rows = getelementptr i8, ptr %automaton, i64 {BODY}
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %after, %write ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %one, label %good
one:
  %text = call %form @text_at(ptr %texts, i64 %i, ptr %type)
  %bytes = extractvalue %form %text, 0
  %size = extractvalue %form %text, 1
  %kind = extractvalue %form %text, 2
  %wrong = icmp eq i64 %kind, 0
  br i1 %wrong, label %bad, label %begin
begin:
  %shift = lshr i64 %kind, 1
  %length = lshr i64 %size, %shift
  %narrow = icmp eq i64 %kind, 1
  %paired = icmp eq i64 %kind, 2
  br label %look
look:
  %at = phi i64 [ 0, %begin ], [ %beyond, %moved ]
  %state = phi i64 [ %start, %begin ], [ %to, %moved ]
  %inside = icmp ult i64 %at, %length
  %alive = icmp ne i64 %state, 0
  %on = and i1 %inside, %alive
  br i1 %on, label %load, label %write
load:
  %beyond = add i64 %at, 1
  br i1 %narrow, label %load1, label %wide
load1:
  %unit1p = getelementptr i8, ptr %bytes, i64 %at
  %unit1 = load i8, ptr %unit1p, align 1
  %char1 = zext i8 %unit1 to i64
  br label %loaded
wide:
  br i1 %paired, label %load2, label %load4
load2:
  %unit2p = getelementptr i16, ptr %bytes, i64 %at
  %unit2 = load i16, ptr %unit2p, align 2
  %char2 = zext i16 %unit2 to i64
  br label %loaded
load4:
  %unit4p = getelementptr i32, ptr %bytes, i64 %at
  %unit4 = load i32, ptr %unit4p, align 4
  %char4 = zext i32 %unit4 to i64
  br label %loaded
loaded:
  %char = phi i64 [ %char1, %load1 ], [ %char2, %load2 ], [ %char4, %load4 ]
  %single = icmp ult i64 %char, 128
  br i1 %single, label %one1, label %several
one1:
  %to1 = call i64 @moved(ptr %rows, i64 %state, i64 %char)
  br label %moved
several:
  %tail0 = and i64 %char, 63
  %tail = or i64 %tail0, 128
  %rest1 = lshr i64 %char, 6
  %double = icmp ult i64 %char, 2048
  br i1 %double, label %lead2, label %more2
lead2:
  %first2 = or i64 %rest1, 192
  %s2 = call i64 @moved(ptr %rows, i64 %state, i64 %first2)
  br label %last
more2:
  %third0 = and i64 %rest1, 63
  %third = or i64 %third0, 128
  %rest2 = lshr i64 %char, 12
  %triple = icmp ult i64 %char, 65536
  br i1 %triple, label %lead3, label %lead4
lead3:
  %first3 = or i64 %rest2, 224
  %s3 = call i64 @moved(ptr %rows, i64 %state, i64 %first3)
  br label %second
lead4:
  %rest3 = lshr i64 %char, 18
  %first4 = or i64 %rest3, 240
  %after0 = and i64 %rest2, 63
  %after1 = or i64 %after0, 128
  %s4 = call i64 @moved(ptr %rows, i64 %state, i64 %first4)
  %s5 = call i64 @moved(ptr %rows, i64 %s4, i64 %after1)
  br label %second
second:
  %s6 = phi i64 [ %s3, %lead3 ], [ %s5, %lead4 ]
  %s7 = call i64 @moved(ptr %rows, i64 %s6, i64 %third)
  br label %last
last:
  %s8 = phi i64 [ %s2, %lead2 ], [ %s7, %second ]
  %s9 = call i64 @moved(ptr %rows, i64 %s8, i64 %tail)
  br label %moved
moved:
  %to = phi i64 [ %to1, %one1 ], [ %s9, %last ]
  br label %look
write:
  %accepted = icmp uge i64 %state, %accepts
  %value = zext i1 %accepted to i8
  %outp = getelementptr i8, ptr %out, i64 %i
  store i8 %value, ptr %outp, align 1
  %after = add i64 %i, 1
  br label %next
good:
  ret i64 0
bad:
  ret i64 1
}

; The slot of a step of the trie: its own, or the free one where it belongs.
define internal ptr @step_of(ptr %grams, i64 %node, i64 %token) alwaysinline nounwind {
  %maskp = getelementptr i8, ptr %grams, i64 {GRAMS_MASK}
  %mask = load i64, ptr %maskp, align 8
  %secretp = getelementptr i8, ptr %grams, i64 {GRAMS_SECRET}
  %secret = load i64, ptr %secretp, align 8
  %slots = getelementptr i8, ptr %grams, i64 {BODY}
  %spread = mul i64 %node, -7046029254386353131
  %salted = xor i64 %spread, %secret
  %input = xor i64 %salted, %token
  %hash = call i64 @mix(i64 %input, i64 -2266404186210603135)
  br label %look
look:
  %from = phi i64 [ %hash, %0 ], [ %further, %differs ]
  %number = and i64 %from, %mask
  %offset = mul i64 %number, {STEP}
  %slot = getelementptr i8, ptr %slots, i64 %offset
  %leadsp = getelementptr i8, ptr %slot, i64 16
  %leads = load i64, ptr %leadsp, align 8
  %gramp = getelementptr i8, ptr %slot, i64 24
  %gram = load i64, ptr %gramp, align 8
  %either = or i64 %leads, %gram
  %free = icmp eq i64 %either, 0
  br i1 %free, label %done, label %held
held:
  %itsnode = load i64, ptr %slot, align 8
  %tokenp = getelementptr i8, ptr %slot, i64 8
  %itstoken = load i64, ptr %tokenp, align 8
  %samenode = icmp eq i64 %itsnode, %node
  %sametoken = icmp eq i64 %itstoken, %token
  %same = and i1 %samenode, %sametoken
  br i1 %same, label %done, label %differs
differs:
  %further = add i64 %from, 1
  br label %look
done:
  ret ptr %slot
}

; Enters n-grams of a length into a trie, and writes the number of each. Equal ones have the same.
define void @clew_gram_fill(ptr %tokens, i64 %count, i64 %length, ptr %grams, ptr %out) nounwind {
entry:
  %last = sub i64 %length, 1
  %nodesp = getelementptr i8, ptr %grams, i64 {GRAMS_NODES}
  %countp = getelementptr i8, ptr %grams, i64 {GRAMS_COUNT}
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %after, %write ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %one, label %finished
one:
  %begin = mul i64 %i, %length
  br label %look
look:
  %k = phi i64 [ 0, %one ], [ %k1, %went ]
  %node = phi i64 [ 0, %one ], [ %to, %went ]
  %at = add i64 %begin, %k
  %tokenp = getelementptr i64, ptr %tokens, i64 %at
  %token = load i64, ptr %tokenp, align 8
  %slot = call ptr @step_of(ptr %grams, i64 %node, i64 %token)
  %slottokenp = getelementptr i8, ptr %slot, i64 8
  store i64 %node, ptr %slot, align 8
  store i64 %token, ptr %slottokenp, align 8
  %ends = icmp eq i64 %k, %last
  br i1 %ends, label %end, label %inner
inner:
  %leadsp = getelementptr i8, ptr %slot, i64 16
  %leads = load i64, ptr %leadsp, align 8
  %none = icmp eq i64 %leads, 0
  br i1 %none, label %enter, label %went
enter:
  %nodes = load i64, ptr %nodesp, align 8
  %nodes1 = add i64 %nodes, 1
  %nodes2 = add i64 %nodes, 2
  store i64 %nodes1, ptr %nodesp, align 8
  store i64 %nodes2, ptr %leadsp, align 8
  br label %went
went:
  %leads1 = phi i64 [ %leads, %inner ], [ %nodes2, %enter ]
  %to = sub i64 %leads1, 1
  %k1 = add i64 %k, 1
  br label %look
end:
  %gramp = getelementptr i8, ptr %slot, i64 24
  %gram = load i64, ptr %gramp, align 8
  %fresh = icmp eq i64 %gram, 0
  br i1 %fresh, label %number, label %write
number:
  %distinct = load i64, ptr %countp, align 8
  %distinct1 = add i64 %distinct, 1
  store i64 %distinct1, ptr %countp, align 8
  store i64 %distinct1, ptr %gramp, align 8
  br label %write
write:
  %gram1 = phi i64 [ %gram, %end ], [ %distinct1, %number ]
  %found = sub i64 %gram1, 1
  %outp = getelementptr i64, ptr %out, i64 %i
  store i64 %found, ptr %outp, align 8
  %after = add i64 %i, 1
  br label %next
finished:
  ret void
}

; Adds the occurrences of n-grams in rows of %size tokens to rows of %width counts in %out, and
; weighs them. Between two tokens of an n-gram lie 0 to %skips - 1 others.
define void @clew_gram_counts(ptr %tokens, i64 %rows, i64 %size, i64 %skips, ptr %grams, i64 %width,
    i64 %mode, ptr %out) nounwind {
entry:
  %weightsp = getelementptr i8, ptr %grams, i64 {GRAMS_WEIGHTS}
  %weights = load ptr, ptr %weightsp, align 8
  %columnsp = getelementptr i8, ptr %grams, i64 {GRAMS_COLUMNS}
  %columns = load i64, ptr %columnsp, align 8
  br label %nextrow
nextrow:
  %row = phi i64 [ 0, %entry ], [ %row1, %rowend ]
  %morerows = icmp ult i64 %row, %rows
  br i1 %morerows, label %beginrow, label %finished
beginrow:
  %rowbegin = mul i64 %row, %size
  %rowtokens = getelementptr i64, ptr %tokens, i64 %rowbegin
  %outbegin = mul i64 %row, %width
  %rowout = getelementptr float, ptr %out, i64 %outbegin
  br label %nextskip
nextskip:
  %step = phi i64 [ 1, %beginrow ], [ %step1, %skipdone ]
  %within = icmp ule i64 %step, %skips
  %closest = icmp eq i64 %step, 1
  %reaches = icmp ult i64 %step, %size
  %useful = or i1 %closest, %reaches
  %skip = and i1 %within, %useful
  br i1 %skip, label %nextstart, label %rowdone
nextstart:
  %start = phi i64 [ 0, %nextskip ], [ %start1, %startdone ]
  %morestarts = icmp ult i64 %start, %size
  br i1 %morestarts, label %look, label %skipdone
look:
  %at = phi i64 [ %start, %nextstart ], [ %at1, %onward ]
  %node = phi i64 [ 0, %nextstart ], [ %to, %onward ]
  %tokenp = getelementptr i64, ptr %rowtokens, i64 %at
  %token = load i64, ptr %tokenp, align 8
  %slot = call ptr @step_of(ptr %grams, i64 %node, i64 %token)
  %gramp = getelementptr i8, ptr %slot, i64 24
  %gram = load i64, ptr %gramp, align 8
  %isgram = icmp ne i64 %gram, 0
  %first = icmp eq i64 %at, %start
  %later = xor i1 %first, true
  ; A single token has nothing in between, so it counts once.
  %counted = or i1 %closest, %later
  %counts = and i1 %isgram, %counted
  br i1 %counts, label %add, label %lead
add:
  %column = sub i64 %gram, 1
  %outp = getelementptr float, ptr %rowout, i64 %column
  %old = load float, ptr %outp, align 4
  %new = fadd float %old, 1.0
  store float %new, ptr %outp, align 4
  br label %lead
lead:
  %leadsp = getelementptr i8, ptr %slot, i64 16
  %leads = load i64, ptr %leadsp, align 8
  %at1 = add i64 %at, %step
  %ends = icmp eq i64 %leads, 0
  %beyond = icmp uge i64 %at1, %size
  %over = or i1 %ends, %beyond
  br i1 %over, label %startdone, label %onward
onward:
  %to = sub i64 %leads, 1
  br label %look
startdone:
  %start1 = add i64 %start, 1
  br label %nextstart
skipdone:
  %step1 = add i64 %step, 1
  br label %nextskip
rowdone:
  switch i64 %mode, label %rowend [ i64 1, label %nextwhether i64 2, label %nexttimes ]
nextwhether:
  %c1 = phi i64 [ 0, %rowdone ], [ %c1after, %whether ]
  %more1 = icmp ult i64 %c1, %columns
  br i1 %more1, label %whether, label %rowend
whether:
  %out1p = getelementptr float, ptr %rowout, i64 %c1
  %out1 = load float, ptr %out1p, align 4
  %weight1p = getelementptr float, ptr %weights, i64 %c1
  %weight1 = load float, ptr %weight1p, align 4
  %occurs = fcmp ogt float %out1, 0.0
  %value1 = select i1 %occurs, float %weight1, float 0.0
  store float %value1, ptr %out1p, align 4
  %c1after = add i64 %c1, 1
  br label %nextwhether
nexttimes:
  %c2 = phi i64 [ 0, %rowdone ], [ %c2after, %times ]
  %more2 = icmp ult i64 %c2, %columns
  br i1 %more2, label %times, label %rowend
times:
  %out2p = getelementptr float, ptr %rowout, i64 %c2
  %out2 = load float, ptr %out2p, align 4
  %weight2p = getelementptr float, ptr %weights, i64 %c2
  %weight2 = load float, ptr %weight2p, align 4
  %value2 = fmul float %out2, %weight2
  store float %value2, ptr %out2p, align 4
  %c2after = add i64 %c2, 1
  br label %nexttimes
rowend:
  %row1 = add i64 %row, 1
  br label %nextrow
finished:
  ret void
}

; Puts a new text in the place of an object; 1 if there is none, for want of memory.
define internal i64 @put(ptr %place, ptr %text) nounwind {
  %failed = icmp eq ptr %text, null
  br i1 %failed, label %clear, label %store
clear:
  call void @PyErr_Clear()
  ret i64 1
store:
  %old = load ptr, ptr %place, align 8
  store ptr %text, ptr %place, align 8
  %none = icmp eq ptr %old, null
  br i1 %none, label %done, label %drop
drop:
  call void @Py_DecRef(ptr %old)
  br label %done
done:
  ret i64 0
}

; Joins texts, two by two; of each side, the texts are one or %count.
define i64 @clew_text_concat(ptr %left, i64 %leftstep, ptr %right, i64 %rightstep, i64 %count,
    ptr %type, ptr %out) nounwind {
entry:
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %after, %step ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %one, label %good
one:
  %li = mul i64 %i, %leftstep
  %ri = mul i64 %i, %rightstep
  %lform = call %form @text_at(ptr %left, i64 %li, ptr %type)
  %rform = call %form @text_at(ptr %right, i64 %ri, ptr %type)
  %lkind = extractvalue %form %lform, 2
  %rkind = extractvalue %form %rform, 2
  %kinds = mul i64 %lkind, %rkind
  %wrong = icmp eq i64 %kinds, 0
  br i1 %wrong, label %bad, label %join
join:
  %lp = getelementptr ptr, ptr %left, i64 %li
  %rp = getelementptr ptr, ptr %right, i64 %ri
  %l = load ptr, ptr %lp, align 8
  %r = load ptr, ptr %rp, align 8
  %text = call ptr @PyUnicode_Concat(ptr %l, ptr %r)
  %place = getelementptr ptr, ptr %out, i64 %i
  %status = call i64 @put(ptr %place, ptr %text)
  %failed = icmp ne i64 %status, 0
  br i1 %failed, label %bad, label %step
step:
  %after = add i64 %i, 1
  br label %next
good:
  ret i64 0
bad:
  ret i64 1
}

; The character at a position.
define internal i64 @char_at(ptr %data, i64 %kind, i64 %at) alwaysinline nounwind {
  %narrow = icmp eq i64 %kind, 1
  br i1 %narrow, label %load1, label %wide
load1:
  %unit1p = getelementptr i8, ptr %data, i64 %at
  %unit1 = load i8, ptr %unit1p, align 1
  %char1 = zext i8 %unit1 to i64
  br label %loaded
wide:
  %paired = icmp eq i64 %kind, 2
  br i1 %paired, label %load2, label %load4
load2:
  %unit2p = getelementptr i16, ptr %data, i64 %at
  %unit2 = load i16, ptr %unit2p, align 2
  %char2 = zext i16 %unit2 to i64
  br label %loaded
load4:
  %unit4p = getelementptr i32, ptr %data, i64 %at
  %unit4 = load i32, ptr %unit4p, align 4
  %char4 = zext i32 %unit4 to i64
  br label %loaded
loaded:
  %char = phi i64 [ %char1, %load1 ], [ %char2, %load2 ], [ %char4, %load4 ]
  ret i64 %char
}

; Whether a character separates pieces.
define internal i1 @separates(ptr %rule, i64 %known, i64 %char) alwaysinline nounwind {
  %inside = icmp ult i64 %char, %known
  br i1 %inside, label %look, label %done
look:
  %bytes = getelementptr i8, ptr %rule, i64 {BODY}
  %bytep = getelementptr i8, ptr %bytes, i64 %char
  %byte = load i8, ptr %bytep, align 1
  %set = icmp ne i8 %byte, 0
  br label %done
done:
  %is = phi i1 [ false, %0 ], [ %set, %look ]
  ret i1 %is
}

; Counts the pieces of each text, and writes the most and the sum behind these counts. With %out, it
; also puts the pieces there, %width for each text, the last of which are empty.
define i64 @clew_text_split(ptr %texts, i64 %count, ptr %rule, ptr %counts, i64 %width, ptr %out)
    nounwind {
entry:
  %typep = getelementptr i8, ptr %rule, i64 {RULE_TYPE}
  %type = load ptr, ptr %typep, align 8
  %knownp = getelementptr i8, ptr %rule, i64 {RULE_SIZE}
  %known = load i64, ptr %knownp, align 8
  %runsp = getelementptr i8, ptr %rule, i64 {RULE_RUNS}
  %runs64 = load i64, ptr %runsp, align 8
  %runs = icmp ne i64 %runs64, 0
  %mostp = getelementptr i8, ptr %rule, i64 {RULE_MOST}
  %most = load i64, ptr %mostp, align 8
  %emptyp = getelementptr i8, ptr %rule, i64 {RULE_EMPTY}
  %empty = load ptr, ptr %emptyp, align 8
  %singlep = getelementptr i8, ptr %rule, i64 {RULE_SINGLE}
  %single = load i64, ptr %singlep, align 8
  %single32 = trunc i64 %single to i32
  %hasone = icmp sge i64 %single, 0
  %puts = icmp ne ptr %out, null
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %after, %written ]
  %longest = phi i64 [ 0, %entry ], [ %longest1, %written ]
  %sum = phi i64 [ 0, %entry ], [ %sum1, %written ]
  %more = icmp ult i64 %i, %count
  br i1 %more, label %one, label %ends
one:
  %text = call %form @text_at(ptr %texts, i64 %i, ptr %type)
  %data = extractvalue %form %text, 0
  %size = extractvalue %form %text, 1
  %kind = extractvalue %form %text, 2
  %wrong = icmp eq i64 %kind, 0
  br i1 %wrong, label %bad, label %begin
begin:
  %shift = lshr i64 %kind, 1
  %length = lshr i64 %size, %shift
  %objectp = getelementptr ptr, ptr %texts, i64 %i
  %object = load ptr, ptr %objectp, align 8
  %cell = mul i64 %i, %width
  %row = getelementptr ptr, ptr %out, i64 %cell
  br label %piece
piece:
  %from0 = phi i64 [ 0, %begin ], [ %nextfrom, %onward ]
  %pieces = phi i64 [ 0, %begin ], [ %pieces1, %onward ]
  br i1 %runs, label %skip, label %start
skip:
  %from1 = phi i64 [ %from0, %piece ], [ %from2, %skipped ]
  %left = icmp ult i64 %from1, %length
  br i1 %left, label %skiplook, label %write
skiplook:
  %skipchar = call i64 @char_at(ptr %data, i64 %kind, i64 %from1)
  %skips = call i1 @separates(ptr %rule, i64 %known, i64 %skipchar)
  br i1 %skips, label %skipped, label %start
skipped:
  %from2 = add i64 %from1, 1
  br label %skip
start:
  %from = phi i64 [ %from0, %piece ], [ %from1, %skiplook ]
  %final = icmp uge i64 %pieces, %most
  br i1 %final, label %found, label %search
search:
  %bytes = icmp eq i64 %kind, 1
  %quick = and i1 %bytes, %hasone
  br i1 %quick, label %byte, label %scan
byte:
  %fromp = getelementptr i8, ptr %data, i64 %from
  %rest = sub i64 %length, %from
  %hit = call ptr @memchr(ptr %fromp, i32 %single32, i64 %rest)
  %missed = icmp eq ptr %hit, null
  %hitaddress = ptrtoint ptr %hit to i64
  %dataaddress = ptrtoint ptr %data to i64
  %distance = sub i64 %hitaddress, %dataaddress
  %hitat = select i1 %missed, i64 %length, i64 %distance
  br label %found
scan:
  %at0 = phi i64 [ %from, %search ], [ %at1, %scanned ]
  %inside = icmp ult i64 %at0, %length
  br i1 %inside, label %look, label %found
look:
  %char = call i64 @char_at(ptr %data, i64 %kind, i64 %at0)
  %stops = call i1 @separates(ptr %rule, i64 %known, i64 %char)
  br i1 %stops, label %found, label %scanned
scanned:
  %at1 = add i64 %at0, 1
  br label %scan
found:
  %at = phi i64 [ %length, %start ], [ %hitat, %byte ], [ %at0, %scan ], [ %at0, %look ]
  %pieces1 = add i64 %pieces, 1
  br i1 %puts, label %room, label %found1
room:
  %fits = icmp ult i64 %pieces, %width
  br i1 %fits, label %make, label %bad
make:
  %made = call ptr @PyUnicode_Substring(ptr %object, i64 %from, i64 %at)
  %place = getelementptr ptr, ptr %row, i64 %pieces
  %status = call i64 @put(ptr %place, ptr %made)
  %failed = icmp ne i64 %status, 0
  br i1 %failed, label %bad, label %found1
found1:
  %goes = icmp ult i64 %at, %length
  br i1 %goes, label %onward, label %write
onward:
  %nextfrom = add i64 %at, 1
  br label %piece
write:
  %total = phi i64 [ %pieces, %skip ], [ %pieces1, %found1 ]
  %countp = getelementptr i64, ptr %counts, i64 %i
  store i64 %total, ptr %countp, align 8
  %after = add i64 %i, 1
  %longer = icmp ugt i64 %total, %longest
  %longest1 = select i1 %longer, i64 %total, i64 %longest
  %sum1 = add i64 %sum, %total
  br label %pad
pad:
  %column = phi i64 [ %total, %write ], [ %column1, %padded ]
  %short = icmp ult i64 %column, %width
  %pads = and i1 %short, %puts
  br i1 %pads, label %padded, label %written
padded:
  %padp = getelementptr ptr, ptr %row, i64 %column
  call void @Py_IncRef(ptr %empty)
  %padstatus = call i64 @put(ptr %padp, ptr %empty)
  %column1 = add i64 %column, 1
  br label %pad
written:
  br label %next
ends:
  %longestp = getelementptr i64, ptr %counts, i64 %count
  %sump = getelementptr i64, ptr %longestp, i64 1
  store i64 %longest, ptr %longestp, align 8
  store i64 %sum, ptr %sump, align 8
  br label %good
good:
  ret i64 0
bad:
  ret i64 1
}
"""


def texts_text(layout: TextLayout) -> str:
    """Returns the LLVM text of the module for a layout of texts."""
    numbers = range(MOST_ARGUMENTS)
    loads = [
        f"  %p{n} = getelementptr i64, ptr %words, i64 {n}\n  %a{n} = load i64, ptr %p{n}, align 8"
        for n in numbers
    ]
    # A function ignores the words behind its own arguments.
    text = (_TEXT + NUMBERS).replace("{ARGUMENTS}", "\n".join(loads))
    text = text.replace("{PASSED}", ", ".join(f"i64 %a{n}" for n in numbers))
    for name, value in (_NAMES | vars(layout)).items():
        text = text.replace(f"{{{name}}}", str(value))
    return text
