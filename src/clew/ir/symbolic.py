"""Symbolic evaluation of operators on sizes: rules that operators declare (`Traits.symbolic`).

A result must hold for every size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from clew.ir.dims import SymDim, dim_max, dim_min
from clew.ir.expr import Call
from clew.ir.types import is_float

Array: TypeAlias = NDArray[Any]
Rule: TypeAlias = Callable[[Call, Sequence[Array]], Array | None]
"""Maps a call and its operands' elements (ints, floats, bools, symbols) to the result's elements,
or to None if they are not known for every size.
"""


def pairwise(function: Callable[[Any, Any], Any]) -> Rule:
    """Returns the rule of an elementwise operator on pairs that broadcast: `function` returns the
    result of a pair, or None if unknown.
    """

    def rule(call: Call, values: Sequence[Array]) -> Array | None:
        left, right = np.broadcast_arrays(values[0].astype(object), values[1].astype(object))
        result = np.empty(left.shape, dtype=object)
        for index in np.ndindex(left.shape):
            a, b = _exact(left[index]), _exact(right[index])
            item = None if a is None or b is None else function(a, b)
            if item is None:
                return None
            result[index] = item
        return result

    return rule


def _exact(item: Any) -> Any:
    """Returns an element as an int or symbol, or None for a fraction, which is not a size."""
    if isinstance(item, SymDim):
        return item
    if isinstance(item, float):
        return int(item) if item.is_integer() else None
    return int(item)


def _divide(call: Call, values: Sequence[Array]) -> Array | None:
    fractional = is_float(call.tensor.dtype)

    def quotient(a: Any, b: Any) -> Any:
        if not isinstance(b, SymDim) and b <= 0:
            return None
        if fractional and a % b != 0:
            return None
        if _is_size(a):
            return a // b
        # ONNX rounds towards zero.
        return dim_max(a, 0) // b - dim_max(-a, 0) // b

    return pairwise(quotient)(call, values)


def _remainder(a: Any, b: Any) -> Any:
    positive = isinstance(b, SymDim) or b > 0
    return a % b if positive and _is_size(a) else None


def _is_size(a: Any) -> bool:
    """Whether the value is at least zero for all sizes that are at least zero."""
    if isinstance(a, SymDim):
        return all(
            coefficient >= 0 and all(_atom_is_size(atom) for atom, _ in monomial)
            for monomial, coefficient in a.terms
        )
    return bool(a >= 0)


def _atom_is_size(atom: Any) -> bool:
    some = any if atom.op == "max" else all
    return not atom.op or some(_is_size(arg) for arg in atom.args)


def _largest(a: Any, b: Any) -> Any:
    for one, other in ((a, b), (b, a)):
        if _is_size(one - other):
            return one
    return dim_max(a, b)


def _smallest(a: Any, b: Any) -> Any:
    for one, other in ((a, b), (b, a)):
        if _is_size(other - one):
            return one
    return dim_min(a, b)


def _equal(a: Any, b: Any) -> bool | None:
    difference = a - b
    if not isinstance(difference, SymDim):
        return bool(difference == 0)
    apart = _is_size(difference - 1) or _is_size(-difference - 1)
    return False if apart else None


def _less(a: Any, b: Any) -> bool | None:
    if _is_size(b - a - 1):
        return True
    return False if _is_size(a - b) else None


def _negated(answer: bool | None) -> bool | None:
    return None if answer is None else not answer


def unary(function: Callable[[Any], Any]) -> Rule:
    """Returns the rule of an elementwise operator with one operand."""

    def rule(call: Call, values: Sequence[Array]) -> Array | None:
        result = np.empty(values[0].shape, dtype=object)
        for index in np.ndindex(values[0].shape):
            item = function(values[0][index])
            if item is None:
                return None
            result[index] = item
        return result

    return rule


def _cast(call: Call, values: Sequence[Array]) -> Array | None:
    dtype = call.attrs["dtype"]
    if dtype == "bool":
        return unary(lambda a: True if _is_size(a - 1) else None)(call, values)
    return values[0]


def folded(function: Callable[[Any, Any], Any], start: int) -> Rule:
    """Returns the rule of a reduction with the attribute `axes`; `start` is the value for no
    elements.
    """

    def rule(call: Call, values: Sequence[Array]) -> Array | None:
        axes = tuple(call.attrs["axes"]) or tuple(range(values[0].ndim))
        moved = np.moveaxis(values[0], axes, range(len(axes)))
        kept = moved.shape[len(axes) :]
        result = np.full(kept, start, dtype=object)
        for row in moved.reshape(-1, *kept):
            result = np.frompyfunc(function, 2, 1)(result, row)
        return np.asarray(result, dtype=object)

    return rule


def _shape(call: Call, values: Sequence[Array]) -> Array:
    shape = call.args[0].tensor.shape
    result = np.empty(len(shape), dtype=object)
    result[:] = shape
    return result


SHAPE: Final = _shape
ADD: Final = pairwise(lambda a, b: a + b)
SUBTRACT: Final = pairwise(lambda a, b: a - b)
MULTIPLY: Final = pairwise(lambda a, b: a * b)
DIVIDE: Final = _divide
REMAINDER: Final = pairwise(_remainder)
MAXIMUM: Final = pairwise(_largest)
MINIMUM: Final = pairwise(_smallest)
EQUAL: Final = pairwise(_equal)
NOT_EQUAL: Final = pairwise(lambda a, b: _negated(_equal(a, b)))
LESS: Final = pairwise(_less)
LESS_EQUAL: Final = pairwise(lambda a, b: _negated(_less(b, a)))
GREATER: Final = pairwise(lambda a, b: _less(b, a))
GREATER_EQUAL: Final = pairwise(lambda a, b: _negated(_less(a, b)))
NEGATIVE: Final = unary(lambda a: -a)
ABS: Final = unary(lambda a: a if _is_size(a) else None)
ROUND: Final = unary(lambda a: a)
CAST: Final = _cast
SUM: Final = folded(lambda a, b: a + b, 0)
PROD: Final = folded(lambda a, b: a * b, 1)
