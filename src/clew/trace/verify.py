"""Verifies the trace: evaluates both ends of every *same* link on real inputs and compares them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np

from clew.support.difference import largest, wide_dtype
from clew.support.shown import Shown
from clew.trace.queries import Queries
from clew.trace.refs import NodeRef

Values: TypeAlias = dict[int, Any]
Evaluate: TypeAlias = Callable[[Any, Mapping[str, Any], Mapping[int, Any]], Values]
"""Module, inputs by name and known values by node id -> values of nodes by id."""
Relayout: TypeAlias = Callable[[Any, Any, Any, Any], Any]
"""Value, its type, the type to convert it to (another layout of the same tensor) and a value of
that type, for its sizes -> value.
"""

# Roundings of narrow floats between operators, which passes leave out, add up.
_ADDED_UP: Final = 4
_NARROW: Final = {"bfloat16": 2.0**-7, "float16": 2.0**-10}
_BLOCK_ELEMS: Final = 1 << 18


@dataclass(frozen=True)
class FalseLink:
    """A *same* link whose ends differ, and their difference relative to the largest magnitude."""

    stage: str
    old: NodeRef
    new: NodeRef
    layers: tuple[str, ...]
    reason: str

    def __str__(self) -> str:
        layers = ", ".join(self.layers) or "no layer"
        ends = f"node {self.old.node} is not {self.new.node}"
        return f"{self.stage}: {ends} ({layers}): {self.reason}"


@dataclass(frozen=True, repr=False)
class VerifyReport(Shown):
    """The number of links that hold, those that do not, and the number not evaluated.

    `worst` is the largest relative error among links that hold. Values inside loops are those of
    the last iteration. Code that does not run on these inputs (a branch, for example) cannot be
    evaluated. Links inside kernels called more than once are skipped, since their nodes have
    several values.
    """

    checked: int
    skipped: int
    worst: float
    failures: tuple[FalseLink, ...]

    def _about(self) -> str:
        bad = len(self.failures)
        return f"{self.checked - bad} of {self.checked} links hold, worst error {self.worst:.2g}"

    @property
    def ok(self) -> bool:
        """Whether every checked link holds."""
        return not self.failures

    def __str__(self) -> str:
        lines = [
            f"{self.checked - len(self.failures)} of {self.checked} links hold "
            f"(largest relative error {self.worst:.2g}); {self.skipped} not evaluated"
        ]
        return "\n".join([*lines, *(f"  {failure}" for failure in self.failures)])


def verify_links(
    trace: Queries,
    inputs: Mapping[str, Any],
    evaluate: Evaluate,
    relayout: Relayout,
    rtol: float,
    atol: float,
) -> VerifyReport:
    """Returns the result of evaluating *same* links on these inputs.

    Proceeds stage by stage; a node's value is kept while later stages keep the node.
    """
    floor = atol / rtol if rtol else 0.0
    checked = skipped = 0
    worst = 0.0
    failures: list[FalseLink] = []
    values = evaluate(trace.stages[0].module, inputs, {})
    for stage in range(1, len(trace.stages)):
        record = trace.stages[stage]
        if not record.changed:
            continue
        before = values
        kept = {n: v for n, v in before.items() if n in trace.nodes(stage)}
        values = evaluate(record.module, inputs, kept)
        olds, news = trace.nodes(stage - 1), trace.nodes(stage)
        for link in trace.same_links(stage):
            old, new = olds[link.old], news[link.new]
            if link.old not in before or link.new not in values:
                skipped += trace.reader.kind(old) != "Function"
                continue
            checked += 1
            value = relayout(values[link.new], new.type, old.type, before[link.old])
            error = difference(before[link.old], value, floor)
            allowed = max(
                rtol, _ADDED_UP * _precision(before[link.old]), _precision(values[link.new])
            )
            if error <= allowed:
                worst = max(worst, error)
                continue
            reason = (
                f"{old.type} and {new.type} cannot be compared"
                if error == np.inf
                else f"relative error {error:.2g}, at most {allowed:.2g} expected"
            )
            refs = NodeRef(stage - 1, link.old), NodeRef(stage, link.new)
            failures.append(FalseLink(record.name, *refs, old.span.layers, reason))
    return VerifyReport(checked, skipped, worst, tuple(failures))


def _precision(value: Any) -> float:
    """Returns the relative step between neighbors of a narrow float dtype, since rounding may move
    equal values to either; 0 for other dtypes. Of several values, the largest.
    """
    if isinstance(value, (tuple, list)):
        return max(map(_precision, value), default=0.0)
    return _NARROW.get(getattr(getattr(value, "dtype", None), "name", ""), 0.0)


def difference(a: Any, b: Any, floor: float = 0.0) -> float:
    """Returns the largest difference, relative to the largest magnitude in `a` (plus `floor`).

    Infinite if the values cannot be compared: different parts or shapes, or NaN or infinities in
    different places.
    """
    return largest(a, b, partial(_difference, floor=floor))


def _difference(a: Any, b: Any, floor: float) -> float:
    left, right = np.asarray(a), np.asarray(b)
    if left.shape != right.shape:
        return float("inf")
    if left.dtype.kind in "OSUT" or right.dtype.kind in "OSUT":
        return 0.0 if np.array_equal(left, right) else float("inf")
    if left.dtype.kind in "iub" and right.dtype.kind in "iub" and np.array_equal(left, right):
        return 0.0
    most = scale = 0.0
    for x, y in _blocks(left, right):
        finite = np.isfinite(x)
        same_places = np.array_equal(x[~finite], y[~finite], equal_nan=True)
        if not same_places or not np.isfinite(y[finite]).all():
            return float("inf")
        most = max(most, float(np.abs(x[finite] - y[finite]).max(initial=0.0)))
        scale = max(scale, float(np.abs(x[finite]).max(initial=0.0)))
    scale += floor
    return most / scale if scale else most


def _blocks(left: Any, right: Any) -> Iterator[tuple[Any, Any]]:
    """Yields both arrays' elements in a wide dtype, block by block."""
    wide = wide_dtype(left, right)
    x, y = left.reshape(-1), right.reshape(-1)
    for start in range(0, x.size, _BLOCK_ELEMS):
        here = slice(start, start + _BLOCK_ELEMS)
        yield x[here].astype(wide), y[here].astype(wide)
