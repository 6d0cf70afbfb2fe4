"""Native code that counts the elements of a tensor in histogram bins, by channel."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clew.machine.target import host
from clew.runtime.cache import default_cache
from clew.runtime.driver import Baseline, native_object
from clew.runtime.library import Library
from clew.support.locks import once

Array = NDArray[Any]
_NAME: Final = "clew_count_in_bins"
_LANES: Final = 8  # elements whose bins are computed at once
_COPIES: Final = 2  # of the bins of a line
_BLOCK: Final = 512  # elements of a line whose bins are computed before they are counted


def _vector(kind: str) -> str:
    return f"<{_LANES} x {kind}>"


def _all(kind: str, name: str, value: str) -> str:
    """Returns the text that sets all lanes of `name` to a value."""
    return f"""
  {name}.one = insertelement {_vector(kind)} poison, {kind} {value}, i64 0
  {name} = shufflevector {_vector(kind)} {name}.one, {_vector(kind)} poison,
                         <{_LANES} x i32> zeroinitializer"""


def _bins(tag: str) -> str:
    """Returns the text that computes the bins of as many elements as there are lanes."""
    return f"""
  %factor.{tag} = load {_vector("double")}, ptr %factorp.{tag}, align 8
  %first.{tag} = load {_vector("double")}, ptr %firstp.{tag}, align 8
  %narrow.{tag} = load {_vector("float")}, ptr %at.{tag}, align 4
  %wide.{tag} = fpext {_vector("float")} %narrow.{tag} to {_vector("double")}
  %scaled.{tag} = fmul {_vector("double")} %wide.{tag}, %factor.{tag}
  %moved.{tag} = fsub {_vector("double")} %scaled.{tag}, %first.{tag}
  %within.{tag} = fcmp olt {_vector("double")} %moved.{tag}, %ends
  %limited.{tag} = select <{_LANES} x i1> %within.{tag}, {_vector("double")} %moved.{tag},
                                          {_vector("double")} %ends
  %rounded.{tag} = fptosi {_vector("double")} %limited.{tag} to {_vector("i32")}
  %place.{tag} = freeze {_vector("i32")} %rounded.{tag}
  %inside.{tag} = icmp ult {_vector("i32")} %place.{tag}, %lasts
  %bin.{tag} = select <{_LANES} x i1> %inside.{tag}, {_vector("i32")} %place.{tag},
                                      {_vector("i32")} %lasts
  %bins.{tag} = zext {_vector("i32")} %bin.{tag} to {_vector("i64")}"""


def _counted(base: str, kind: str, place: Callable[[int], str]) -> str:
    """Returns the text that adds 1 to a counter for each lane. `place` returns the text that
    computes a lane's position from `base`.
    """
    return "".join(
        f"""{place(n)}
  {base}.p{n} = getelementptr {kind}, ptr {base}, i64 {base}.to{n}
  {base}.before{n} = load {kind}, ptr {base}.p{n}, align 4
  {base}.after{n} = add {kind} {base}.before{n}, 1
  store {kind} {base}.after{n}, ptr {base}.p{n}, align 4"""
        for n in range(_LANES)
    )


def _stored(lane: int) -> str:
    return f"""
  %found{lane}.p = getelementptr i32, ptr %found.q, i64 {lane}
  %found{lane} = load i32, ptr %found{lane}.p, align 4
  %copies.to{lane} = zext i32 %found{lane} to i64"""


def _extracted(lane: int) -> str:
    return f"""
  %row.to{lane} = extractelement {_vector("i64")} %to.g, i64 {lane}"""


_SUMS: Final = "".join(
    f"""
  %part{n} = shufflevector <{_LANES * _COPIES} x i32> %all, <{_LANES * _COPIES} x i32> poison,
      <{_LANES} x i32> <{", ".join(f"i32 {_COPIES * lane + n}" for lane in range(_LANES))}>
  %part{n}.wide = zext {_vector("i32")} %part{n} to {_vector("i64")}
  %sum{n + 1} = add {_vector("i64")} %sum{n}, %part{n}.wide"""
    for n in range(_COPIES)
)

# The channel of element (o, r, i) is r + step * i. Elements outside of the bins are counted in the
# last one. The bin of NaN is arbitrary (`freeze`), but one of the bins, so nothing else is written.
#
# Neighbours often fall in one bin, and each addition to a counter waits for the one before. So the
# lanes of a line count in different copies of its bins, `i32[bins, 2]`, which are zeros before and
# after. A core passes a stored number on to a load without a long delay if it knows both addresses
# early, so those of a block of elements are computed first. Lines shorter than their bins
# (`%copies` is null) are counted at once, as are rows, whose neighbours belong to different
# channels.
_TEXT: Final = f"""
define void @{_NAME}(ptr %values, i64 %outer, i64 %rows, i64 %inner, i64 %step,
                     ptr %factors, ptr %firsts, ptr %counts, i64 %bins, ptr %copies) nounwind {{
entry:
  %found = alloca [{_BLOCK} x i32], align 64
  %line_factors = alloca {_vector("double")}, align 64
  %line_firsts = alloca {_vector("double")}, align 64
  %last = sub i64 %bins, 1
  %last.narrow = trunc i64 %last to i32
  %end = sitofp i64 %last to double{_all("i32", "%lasts", "%last.narrow")}
  {_all("double", "%ends", "%end")}
  %stride = mul i64 %step, %bins{_all("i64", "%strides", "%stride")}
  %lanes = mul {_vector("i64")} %strides, <{", ".join(f"i64 {n}" for n in range(_LANES))}>
  %is_line = icmp eq i64 %step, 0
  %at_once = icmp eq ptr %copies, null
  %whole = and i64 %inner, {-_LANES}
  br label %slabs
slabs:
  %o = phi i64 [ 0, %entry ], [ %o1, %slab_done ]
  %start = phi ptr [ %values, %entry ], [ %from, %slab_done ]
  %more = icmp ult i64 %o, %outer
  br i1 %more, label %lines, label %done
lines:
  %r = phi i64 [ 0, %slabs ], [ %r1, %line_done ]
  %from = phi ptr [ %start, %slabs ], [ %next, %line_done ]
  %more_lines = icmp ult i64 %r, %rows
  br i1 %more_lines, label %line, label %slab_done
line:
  %next = getelementptr float, ptr %from, i64 %inner
  %factorp = getelementptr double, ptr %factors, i64 %r
  %firstp = getelementptr double, ptr %firsts, i64 %r
  %factor = load double, ptr %factorp, align 8
  %first = load double, ptr %firstp, align 8{_all("double", "%factor.all", "%factor")}
  {_all("double", "%first.all", "%first")}
  store {_vector("double")} %factor.all, ptr %line_factors, align 64
  store {_vector("double")} %first.all, ptr %line_firsts, align 64
  %factorp.p = getelementptr double, ptr %line_factors, i64 0
  %firstp.p = getelementptr double, ptr %line_firsts, i64 0
  br i1 %at_once, label %groups, label %parts
parts:
  %f = phi i64 [ 0, %line ], [ %f1, %added ]
  %more_parts = icmp ult i64 %f, %whole
  br i1 %more_parts, label %part, label %merge
part:
  %left = sub i64 %whole, %f
  %is_last = icmp ult i64 %left, {_BLOCK}
  %length = select i1 %is_last, i64 %left, i64 {_BLOCK}
  %from.f = getelementptr float, ptr %from, i64 %f
  br label %find
find:
  %p = phi i64 [ 0, %part ], [ %p1, %find ]
  %at.p = getelementptr float, ptr %from.f, i64 %p{_bins("p")}
  %spread.p = mul {_vector("i32")} %bin.p, <{", ".join([f"i32 {_COPIES}"] * _LANES)}>
  %to.p = add {_vector("i32")} %spread.p,
              <{", ".join(f"i32 {n % _COPIES}" for n in range(_LANES))}>
  %found.p = getelementptr i32, ptr %found, i64 %p
  store {_vector("i32")} %to.p, ptr %found.p, align 32
  %p1 = add i64 %p, {_LANES}
  %more.p = icmp ult i64 %p1, %length
  br i1 %more.p, label %find, label %add
add:
  %q = phi i64 [ 0, %find ], [ %q1, %add ]
  %found.q = getelementptr i32, ptr %found, i64 %q{_counted("%copies", "i32", _stored)}
  %q1 = add i64 %q, {_LANES}
  %more.q = icmp ult i64 %q1, %length
  br i1 %more.q, label %add, label %added
added:
  %f1 = add i64 %f, %length
  br label %parts
merge:
  %b = phi i64 [ 0, %parts ], [ %b1, %merged ]
  %more_bins = icmp ult i64 %b, %bins
  br i1 %more_bins, label %merged, label %elements
merged:
  %own = mul i64 %r, %bins
  %own.b = add i64 %own, %b
  %sum.p = getelementptr i64, ptr %counts, i64 %own.b
  %sum0 = load {_vector("i64")}, ptr %sum.p, align 8
  %copies.b = mul i64 %b, {_COPIES}
  %copies.p = getelementptr i32, ptr %copies, i64 %copies.b
  %all = load <{_LANES * _COPIES} x i32>, ptr %copies.p, align 4{_SUMS}
  store <{_LANES * _COPIES} x i32> zeroinitializer, ptr %copies.p, align 4
  store {_vector("i64")} %sum{_COPIES}, ptr %sum.p, align 8
  %b1 = add i64 %b, {_LANES}
  br label %merge
groups:
  %g = phi i64 [ 0, %line ], [ %g1, %group ]
  %more_groups = icmp ult i64 %g, %whole
  br i1 %more_groups, label %group, label %elements
group:
  %at.g = getelementptr float, ptr %from, i64 %g
  %steps.g = mul i64 %g, %step
  %c.g = add i64 %r, %steps.g
  %own_factors = getelementptr double, ptr %factors, i64 %c.g
  %own_firsts = getelementptr double, ptr %firsts, i64 %c.g
  %factorp.g = select i1 %is_line, ptr %line_factors, ptr %own_factors
  %firstp.g = select i1 %is_line, ptr %line_firsts, ptr %own_firsts{_bins("g")}
  %before.g = mul i64 %c.g, %bins
  %row = getelementptr i64, ptr %counts, i64 %before.g
  %to.g = add {_vector("i64")} %bins.g, %lanes{_counted("%row", "i64", _extracted)}
  %g1 = add i64 %g, {_LANES}
  br label %groups
elements:
  %i = phi i64 [ %whole, %merge ], [ %whole, %groups ], [ %i1, %element ]
  %more_elements = icmp ult i64 %i, %inner
  br i1 %more_elements, label %element, label %line_done
element:
  %steps = mul i64 %i, %step
  %c = add i64 %r, %steps
  %factorp.i = getelementptr double, ptr %factors, i64 %c
  %firstp.i = getelementptr double, ptr %firsts, i64 %c
  %factor.i = load double, ptr %factorp.i, align 8
  %first.i = load double, ptr %firstp.i, align 8
  %at = getelementptr float, ptr %from, i64 %i
  %narrow = load float, ptr %at, align 4
  %wide = fpext float %narrow to double
  %scaled = fmul double %wide, %factor.i
  %moved = fsub double %scaled, %first.i
  %rounded = fptosi double %moved to i64
  %place = freeze i64 %rounded
  %inside = icmp ult i64 %place, %bins
  %bin = select i1 %inside, i64 %place, i64 %last
  %before = mul i64 %c, %bins
  %index = add i64 %before, %bin
  %countp = getelementptr i64, ptr %counts, i64 %index
  %count = load i64, ptr %countp, align 8
  %count1 = add i64 %count, 1
  store i64 %count1, ptr %countp, align 8
  %i1 = add i64 %i, 1
  br label %elements
line_done:
  %r1 = add i64 %r, 1
  br label %lines
slab_done:
  %o1 = add i64 %o, 1
  br label %slabs
done:
  ret void
}}
"""


def count_in_bins(values: Array, factors: Array, firsts: Array, counts: Array) -> None:
    """Counts the elements of `values`, `f32[outer, channels, inner]`, which must be finite, in
    `counts`, `i64[channels, bins]`: an element x of channel c in bin `x * factors[c] - firsts[c]`,
    rounded down, which must not be negative.
    """
    assert values.dtype == np.float32, "other dtypes are converted before"
    assert counts.dtype == np.int64, "the native code adds to 64-bit integers"
    assert counts.flags.c_contiguous, "counted in place"
    outer, channels, inner = values.shape
    assert len(counts) == len(factors) == len(firsts) == channels, "one row per channel"
    values = np.ascontiguousarray(values)
    wide = [np.ascontiguousarray(x, np.float64) for x in (factors, firsts)]
    shape = (outer, 1, channels, 1) if inner == 1 else (outer, channels, inner, 0)
    addresses = [x.ctypes.data for x in (*wide, counts)]
    bins = counts.shape[1]
    has_copies = inner >= bins and not bins % _LANES
    copies = np.zeros((bins, _COPIES), np.int32) if has_copies else None
    place = None if copies is None else copies.ctypes.data
    _function()[1](values.ctypes.data, *shape, *addresses, bins, place)


@once
def _function() -> tuple[Library, Callable[..., None]]:
    """Returns the function, with the library that holds its code."""
    here = host()
    target = Baseline(here.triple, here.cpu, here.features)
    library = Library([native_object(_TEXT, (_NAME,), default_cache(), target=target)])
    pointer, count = ctypes.c_void_p, ctypes.c_int64
    kinds = [pointer, *[count] * 4, *[pointer] * 3, count, pointer]
    return library, ctypes.CFUNCTYPE(None, *kinds)(library.address(_NAME))
