"""Native code that counts the elements of a tensor in histogram bins, by channel."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from clew.runtime.cache import default_cache
from clew.runtime.driver import native_object
from clew.runtime.library import Library
from clew.support.locks import once

Array = NDArray[Any]
_NAME: Final = "clew_count_in_bins"
# The channel of element (o, r, i) is r + step * i. Elements outside of the bins are counted in the
# last one. The bin of NaN is arbitrary (`freeze`), but one of the bins, so nothing else is written.
_TEXT: Final = f"""
define void @{_NAME}(ptr %values, i64 %outer, i64 %rows, i64 %inner, i64 %step,
                     ptr %factors, ptr %firsts, ptr %counts, i64 %bins) nounwind {{
entry:
  %last = sub i64 %bins, 1
  br label %slabs
slabs:
  %o = phi i64 [ 0, %entry ], [ %o1, %slab_done ]
  %start = phi ptr [ %values, %entry ], [ %from, %slab_done ]
  %more = icmp ult i64 %o, %outer
  br i1 %more, label %lines, label %done
lines:
  %r = phi i64 [ 0, %slabs ], [ %r1, %line_done ]
  %from = phi ptr [ %start, %slabs ], [ %at, %line_done ]
  %more_lines = icmp ult i64 %r, %rows
  br i1 %more_lines, label %elements, label %slab_done
elements:
  %i = phi i64 [ 0, %lines ], [ %i1, %element ]
  %c = phi i64 [ %r, %lines ], [ %c1, %element ]
  %at = phi ptr [ %from, %lines ], [ %at1, %element ]
  %more_elements = icmp ult i64 %i, %inner
  br i1 %more_elements, label %element, label %line_done
element:
  %factorp = getelementptr double, ptr %factors, i64 %c
  %firstp = getelementptr double, ptr %firsts, i64 %c
  %factor = load double, ptr %factorp, align 8
  %first = load double, ptr %firstp, align 8
  %narrow = load float, ptr %at, align 4
  %wide = fpext float %narrow to double
  %scaled = fmul double %wide, %factor
  %moved = fsub double %scaled, %first
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
  %c1 = add i64 %c, %step
  %at1 = getelementptr float, ptr %at, i64 1
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
    _function()[1](values.ctypes.data, *shape, *addresses, counts.shape[1])


@once
def _function() -> tuple[Library, Callable[..., None]]:
    """Returns the function, with the library that holds its code."""
    library = Library([native_object(_TEXT, (_NAME,), default_cache())])
    pointer, count = ctypes.c_void_p, ctypes.c_int64
    kinds = [pointer, *[count] * 4, *[pointer] * 3, count]
    return library, ctypes.CFUNCTYPE(None, *kinds)(library.address(_NAME))
