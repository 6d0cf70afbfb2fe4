"""Tolerances for differences of values, derived from dtypes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from clew.ir.expr import Expr, Function
from clew.ir.module import Module
from clew.ir.types import NARROW_FLOATS, TensorType, TupleType, Type
from clew.ir.visit import post_order
from clew.trace.verify import difference

FLOOR: Final = 1e-6
"""Smaller magnitudes are rounding errors of larger values."""

# The error that rounding may cause in one operator or kernel: a different order of summation, or a
# result rounded to the other side. Rounding of intermediate values has less effect than rounding of
# the result.
_DUE_WIDE: Final = 1e-4
_DUE: Final = {"f16": 4 * 2.0**-10, "bf16": 4 * 2.0**-7}
_ON_THE_WAY: Final = 1 / 4
# The same for a whole network's outputs.
_WHOLE: Final = {"f16": 2e-2, "bf16": 1e-1}
_WHOLE_WIDE: Final = 1e-3


def error_of(reference: Any, value: Any) -> float:
    """Returns the largest difference, relative to the largest magnitude in `reference`.

    Infinite if shapes, NaN or infinities differ.
    """
    with np.errstate(all="ignore"):
        return difference(reference, value, FLOOR)


def dtypes_of(type_: Type) -> set[str]:
    """Returns the dtypes of a tensor or of the fields of a tuple."""
    if isinstance(type_, TupleType):
        return {d for f in type_.fields for d in dtypes_of(f)}
    return {type_.dtype} if isinstance(type_, TensorType) else set()


def narrow_in(nodes: Iterable[Expr]) -> set[str]:
    """Returns the narrow floats among the dtypes of nodes."""
    found: set[str] = set()
    for node in nodes:
        if not isinstance(node, Function):
            found |= dtypes_of(node.type) & set(NARROW_FLOATS)
    return found


def due_of(results: Iterable[str], inside: Iterable[str] = ()) -> float:
    """Returns the error that rounding may cause in one operator or kernel with results of these
    dtypes, and intermediate values of others.
    """
    final = max((_DUE.get(d, _DUE_WIDE) for d in results), default=_DUE_WIDE)
    return max(final, *(_DUE.get(d, 0.0) * _ON_THE_WAY for d in inside), _DUE_WIDE)


def whole_tolerance(module: Module, narrowed: Iterable[str] = ()) -> float:
    """Returns the error that rounding may cause in the outputs of a whole network imported as
    `module`, with products in the dtypes `narrowed`.
    """
    functions = [f for _, f in module]
    narrow = narrow_in(post_order(functions, into_functions=True)) | set(narrowed)
    return max((_WHOLE.get(d, _WHOLE_WIDE) for d in narrow), default=_WHOLE_WIDE)
