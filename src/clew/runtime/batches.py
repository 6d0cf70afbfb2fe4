"""Runs a model on rows, in batches of rows with equal shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from clew.runtime.input_spec import InputSpec
from clew.support.errors import InputError
from clew.support.near import did_you_mean, listed

Array: TypeAlias = "np.ndarray[Any, Any]"


def check_count(name: str, value: Any) -> None:
    """Errors: I460 for a value that is not a whole number of at least 1."""
    if not isinstance(value, int) or value < 1:
        hint = f"{name} must be a whole number, 1 or more"
        raise InputError("I460", f"{name} is {value!r:.60}", hint=hint)


@dataclass(frozen=True)
class Batching:
    """How a model takes rows: `size` at once, or any number up to that if the axis is free."""

    size: int
    is_free: bool

    @staticmethod
    def of(inputs: Sequence[InputSpec], most: int) -> Batching:
        """Returns how a model with these inputs takes rows, at most `most` at once if that is free.

        Errors: I455 if the inputs have no common first axis.
        """
        firsts = {spec.shape[0] if spec.shape else None for spec in inputs}
        named = all(spec.dtype is not None and not spec.takes_any_shape for spec in inputs)
        derived = any(0 in spec.expressions for spec in inputs)
        first = firsts.pop() if len(firsts) == 1 else None
        if first is None or not named or derived or first == 0:
            shown = listed(f"{spec.name} {spec.shown_type}" for spec in inputs)
            raise InputError(
                "I455",
                f"the inputs have no common first axis to put rows on: {shown}",
                hint="export the model with a batch axis, which may be 1",
            )
        return Batching(most, True) if isinstance(first, str) else Batching(first, False)

    def groups(self, shapes: Sequence[tuple[tuple[int, ...], ...]]) -> list[list[int]]:
        """Returns batches of rows with equal shapes, as numbers of rows. Batches of one shape
        follow each other, the smallest shapes first.
        """
        by_shape: dict[tuple[tuple[int, ...], ...], list[int]] = {}
        for row, shape in enumerate(shapes):
            by_shape.setdefault(shape, []).append(row)
        return [
            rows[begin : begin + self.size]
            for _, rows in sorted(by_shape.items())
            for begin in range(0, len(rows), self.size)
        ]


def run_rows(
    model: Any,
    batching: Batching,
    rows: Mapping[str, Sequence[Array]],
    count: int,
    outputs: Sequence[str] = (),
) -> dict[str, list[Array]]:
    """Returns, by output, the results of each of `count` rows. `rows` holds the values of each
    input, one per row; `outputs` the outputs to return, all if there are none.

    Errors: those of calls; I456 for an output without a row for each row of the inputs, I459 for an
    output that the model does not have.
    """
    for name in outputs:
        if name not in model.output_names:
            hint = did_you_mean(name, model.output_names, "outputs")
            raise InputError("I459", f"the model has no output {name!r}", hint=hint)
    names = list(rows)
    shapes = [tuple(rows[name][row].shape for name in names) for row in range(count)]
    found: dict[str, list[Any]] = {}
    for group in batching.groups(shapes):
        filled = group if batching.is_free else group + [group[-1]] * (batching.size - len(group))
        feed = {name: np.stack([rows[name][row] for row in filled]) for name in names}
        for name, value in model.run(feed).items():
            if outputs and name not in outputs:
                continue
            per_row = found.setdefault(name, [None] * count)
            if not isinstance(value, np.ndarray) or not value.ndim or len(value) != len(filled):
                raise _no_rows(name, value, len(filled))
            for place, row in enumerate(group):
                per_row[row] = value[place, ...]  # an array, also of one text
    for name, values in found.items():
        if len({value.ndim for value in values}) > 1:
            raise _no_rows(name, values[0], count)
    return found


def _no_rows(name: str, value: Any, rows: int) -> InputError:
    shape = list(value.shape) if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
    return InputError(
        "I456",
        f"output {name!r} has no row for each of {rows} rows of the inputs: it is {shape}",
        hint="name the outputs to keep: outputs=[...], or --outputs",
    )
