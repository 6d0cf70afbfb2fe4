"""Host operators that pass on sizes between native segments."""

from __future__ import annotations

from typing import Any

import numpy as np

from clew.ir.types import TensorType, Type
from clew.ops.common import axis_of, f32, tensor_type
from clew.ops.registry import Sample, register_op
from clew.ops.traits import Traits

Array = np.ndarray[Any, Any]


@register_op(
    "size_of",
    traits=Traits(sizes="read", collects=True),
    host=True,
    samples=(Sample(f32(3, 4), axis=1), Sample(f32(3), axis=1, error="T104")),
)
def size_of(x: Array, *, axis: int) -> Array:
    """The size of an axis, `i64[]`; programs use it to read data-dependent sizes."""
    return np.asarray(x.shape[axis], np.int64)


@size_of.types
def _size_of_types(x: Type, *, axis: int) -> Type:
    axis_of("size_of", axis, tensor_type("size_of", x).rank)
    return TensorType((), "i64")


@register_op(
    "sized",
    host=True,
    traits=Traits(passes_on=True),
    samples=(Sample(f32(4, 2), f32(3)),),
)
def sized(*values: Any) -> Array:
    """The last input. The other inputs order the execution: calls whose attributes name the size of
    an input, the last one included, run after all inputs are computed.
    """
    return values[-1]  # type: ignore[no-any-return]


@sized.types
def _sized_types(*values: Type) -> Type:
    return values[-1]
