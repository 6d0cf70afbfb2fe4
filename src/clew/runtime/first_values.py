"""First values of states with a free size: one row, which is repeated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from clew.runtime.input_spec import InputSpec


def is_row(spec: InputSpec) -> bool:
    """Whether an input has a first value whose size along a free axis is 1: that value is repeated
    along the axis.
    """
    initial = spec.initial
    return (
        initial is not None
        and not spec.takes_any_shape
        and any(
            isinstance(size, str) and have == 1
            for size, have in zip(spec.shape, initial.shape, strict=True)
        )
    )


def repeated(spec: InputSpec, sizes: Mapping[str, int]) -> Any:
    """Returns the first value of a state for named sizes; unknown ones are 1."""
    initial = spec.initial
    assert initial is not None
    shape = tuple(
        sizes.get(size, 1) if isinstance(size, str) and have == 1 else have
        for size, have in zip(spec.shape, initial.shape, strict=True)
    )
    return initial if shape == initial.shape else np.broadcast_to(initial, shape).copy()


def with_sizes(inputs: Sequence[InputSpec], given: Sequence[Any]) -> Sequence[Any]:
    """Returns the inputs of a call in order, in which the specs' own first values have the sizes
    that the other inputs give.
    """
    pairs = list(zip(inputs, given, strict=True))
    rows = {spec.name for spec, value in pairs if value is spec.initial and is_row(spec)}
    if not rows:
        return given
    sizes: dict[str, int] = {}
    for spec, value in pairs:
        if spec.name in rows:
            continue
        for size, have in zip(spec.shape, np.shape(value), strict=False):
            if isinstance(size, str):
                sizes[size] = have
    return [repeated(spec, sizes) if spec.name in rows else value for spec, value in pairs]


def named_with_sizes(inputs: Sequence[InputSpec], given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns inputs by name, as `with_sizes`; some may be missing."""
    specs = [spec for spec in inputs if spec.name in given]
    made = with_sizes(specs, [given[spec.name] for spec in specs])
    return {**given, **dict(zip((spec.name for spec in specs), made, strict=True))}
