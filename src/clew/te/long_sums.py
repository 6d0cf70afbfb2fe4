"""Long sums of floats are added up in `f64`, so that their rounding errors do not grow with their
length. This holds for every operator and every schedule.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from clew.ir.types import bits, is_float
from clew.te.expr import Binary, Inlined, Load, Reduce, Scalar, cast
from clew.te.tensor import Tensor
from clew.te.walk import loads

WIDE: Final = "f64"
_MOST_ADDED: Final = 1 << 10
"""Elements that one accumulator of a narrower dtype may add up."""
_PARTIAL_SUMS: Final = 32
"""Accumulators that schedules have, at least, for a sum of contiguous elements."""


def widened(stages: Iterable[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """Changes the long sums among stages: each becomes a conversion of a new stage, which adds up
    in `f64`. Yields each changed stage with its new one. The new stage takes the name, so that
    schedules find the sum by it at any length, and the conversion is `<name>.rounded`.

    A sum whose length only a run knows counts as long. Sums of products of two tensors keep their
    dtype, in which dot product instructions add up; schedules divide them into blocks
    (`schedules/library/blocks_of_sums.py`). Stages with a role have their own rules.
    """
    for stage in stages:
        body = stage.body
        if stage.role or not (isinstance(body, Reduce) and _is_long(body)):
            continue
        total = Reduce(body.combiner, cast(WIDE, body.value), body.axes)
        wide = Tensor(stage.name, stage.shape, WIDE, stage.axes, total, stage.layout, stage.role)
        stage.name = f"{stage.name}.rounded"
        stage.body = cast(stage.dtype, Load(wide, stage.axes))
        yield stage, wide


def accumulator(combiner: str, dtype: str) -> str:
    """Returns the dtype to accumulate many values of a dtype in."""
    rounds = combiner in ("sum", "prod") and is_float(dtype) and bits(dtype) < bits(WIDE)
    return WIDE if rounds else dtype


def _is_long(total: Reduce) -> bool:
    if total.combiner != "sum" or accumulator("sum", total.dtype) == total.dtype:
        return False
    if not total.axes or is_product(total.value):
        return False
    lanes = {id(index) for load in loads(total.value) for index in _contiguous(load)}
    axes = [a for a in total.axes if a.extent != 1]
    sizes = [a.extent for a in axes if isinstance(a.extent, int)]
    if len(sizes) < len(axes):
        return True
    partial = min(sizes[-1], _PARTIAL_SUMS) if axes and id(axes[-1]) in lanes else 1
    return math.prod(sizes) > _MOST_ADDED * partial


def _contiguous(load: Load) -> Sequence[Scalar]:
    """Returns the index along which a load's elements are contiguous, if there is one."""
    long = [i for i, size in zip(load.indices, load.source.shape, strict=True) if size != 1]
    return long[-1:]


def is_product(value: Scalar) -> bool:
    """Whether a value is a product of elements of two different tensors."""
    while isinstance(value, Inlined):
        value = value.value
    if not (isinstance(value, Binary) and value.op == "mul"):
        return False
    left, right = ({id(load.source) for load in loads(x)} for x in (value.a, value.b))
    return bool(left and right and not left & right)
