"""Non-maximum suppression in native code; see `codegen.driver.overlaps`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from clew.codegen.artifact import ObjectCode
from clew.codegen.driver import overlaps as native
from clew.runtime.cache import default_cache
from clew.runtime.driver import native_object
from clew.runtime.jit import Library
from clew.runtime.memory import address_of
from clew.support.budgets import check_run_operations, current
from clew.support.locks import once

Array: TypeAlias = "np.ndarray[Any, Any]"

# The number of pairs to compare, in some milliseconds, before Python handles signals.
_PAIRS_OF_A_CALL: Final = 1 << 21


@dataclass(frozen=True)
class _Functions:
    code: ObjectCode
    library: Library
    keep_apart: Callable[[int], int]


@once
def _functions() -> _Functions:
    """Returns this process's native code, which is never unloaded."""
    code = native_object(native.overlaps_text(), native.EXPORTS, default_cache())
    library = Library([code])
    function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
    return _Functions(code, library, function(library.address(native.EXPORTS[0])))


def keep_apart(
    boxes: Array, order: Array, ends: Array, most: int, threshold: float, operations: int
) -> Array:
    """Returns `i64[count]`: the positions in `order` of the boxes that are kept.

    `boxes` is `f64[n, 4]` (low, low, high, high); `order`, `i64[candidates]`, holds rows of it,
    best first in each group; `ends`, `i64[groups]`, holds the end of each group. At most `most`
    boxes of a group are kept, none overlapping a kept one of its group by more than `threshold` of
    their union. `operations` is the cost of comparing two boxes.

    Errors: I269.
    """
    most = min(max(most, 0), len(order))
    kept = np.empty(-(-most // native.LANES) * native.BLOCK_BYTES // 8)
    return walk(boxes, order, ends, most, threshold, kept, np.empty_like(order), operations)


def walk(
    boxes: Array,
    order: Array,
    ends: Array,
    most: int,
    threshold: float,
    kept: Array,
    out: Array,
    operations: int,
) -> Array:
    """`keep_apart` with preallocated memory."""
    state = np.zeros(native.STATE_BYTES // 8, np.int64)
    places = (native.BOXES, native.ORDER, native.ENDS, native.KEPT, native.OUT)
    for place, array in zip(places, (boxes, order, ends, kept, out), strict=True):
        state[place // 8] = address_of(array)
    state[native.GROUPS // 8], state[native.MOST // 8] = len(ends), most
    state.view(np.float64)[native.THRESHOLD // 8] = threshold
    affordable = current().run_operations // operations + 1
    run, address, compared = _functions().keep_apart, address_of(state), native.COMPARED // 8
    while True:
        pause = int(state[compared]) + _PAIRS_OF_A_CALL
        state[native.UNTIL // 8] = min(pause, affordable)
        over = run(address)
        check_run_operations("non_max_suppression", operations * int(state[compared]))
        if over:
            return out[: state[native.KEPT_OF_ALL // 8]]
