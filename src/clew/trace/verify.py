"""Verifies the trace: evaluates both ends of every *same* link on real inputs and compares them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

import numpy as np

from clew.support.difference import largest, wide_dtype
from clew.support.shown import Shown
from clew.trace.links import Link
from clew.trace.queries import Queries
from clew.trace.refs import NodeRef

Values: TypeAlias = dict[int, Any]

_STEPS: Final = {"bfloat16": 2.0**-7, "float16": 2.0**-10}
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


class Evaluator(Protocol):
    """Evaluates modules, which are opaque to the trace."""

    def values(self, module: Any, inputs: Mapping[str, Any], known: Mapping[int, Any]) -> Values:
        """Returns the values of a module's nodes by id, narrow floats in f32. Those of some nodes
        are known.
        """
        ...

    def folded(self, nodes: Sequence[Any]) -> Values:
        """Returns the values, in their own dtypes, of those nodes that depend on constants only."""
        ...

    def has_narrow(self, node: Any) -> bool:
        """Whether a node has narrow floats."""
        ...

    def relayout(self, value: Any, source: Any, target: Any, like: Any) -> Any:
        """Returns a value of type `source` as one of type `target`, another layout of the same
        tensor; `like` has that type.
        """
        ...


def verify_links(
    trace: Queries, inputs: Mapping[str, Any], evaluator: Evaluator, rtol: float, atol: float
) -> VerifyReport:
    """Returns the result of evaluating *same* links on these inputs.

    Proceeds stage by stage; a node's value is kept while later stages keep the node.
    """
    check = _Check(trace, evaluator, rtol, atol)
    before = evaluator.values(trace.stages[0].module, inputs, {})
    for stage in range(1, len(trace.stages)):
        record = trace.stages[stage]
        if not record.changed:
            continue
        kept = {n: v for n, v in before.items() if n in trace.nodes(stage)}
        rounded = check.constants(stage, before, kept)
        values = evaluator.values(record.module, inputs, kept | rounded)
        check.links(stage, before, values, rounded)
        before = evaluator.values(record.module, inputs, kept) if rounded else values
    return VerifyReport(check.checked, check.skipped, check.worst, tuple(check.failures))


class _Check:
    """Compares the ends of links, and counts."""

    def __init__(self, trace: Queries, evaluator: Evaluator, rtol: float, atol: float) -> None:
        self._trace = trace
        self._evaluator = evaluator
        self._rtol = rtol
        self._floor = atol / rtol if rtol else 0.0
        self.checked = self.skipped = 0
        self.worst = 0.0
        self.failures: list[FalseLink] = []

    def constants(self, stage: int, before: Values, kept: Values) -> Values:
        """Checks new constants that narrow floats were folded or rounded to, which may be one step
        off. Returns their values before that, so that nodes that read them are compared as if
        nothing had been rounded.
        """
        nodes, evaluator = self._trace.nodes(stage), self._evaluator
        olds = self._trace.nodes(stage - 1)
        if not any(map(evaluator.has_narrow, [*olds.values(), *nodes.values()])):
            return {}
        links = [k for k in self._trace.same_links(stage)
                 if k.old in before and k.new not in kept
                 and self._trace.reader.kind(nodes[k.new]) == "Constant"]  # fmt: skip
        folded = evaluator.folded([olds[link.old] for link in links])
        found: Values = {}
        for link in links:
            old, new = olds[link.old], nodes[link.new]
            data = evaluator.folded([new])[new.id]
            was = folded.get(link.old, before[link.old])
            steps = max(_step(was), _step(data))
            self._compare(stage, link, was, data, max(self._rtol, steps))
            found[new.id] = evaluator.relayout(before[link.old], old.type, new.type, data)
        return found

    def links(self, stage: int, before: Values, values: Values, done: Values) -> None:
        """Checks all links of a stage but those to constants that are checked."""
        olds = self._trace.nodes(stage - 1)
        for link in self._trace.same_links(stage):
            if link.new in done:
                continue
            if link.old not in before or link.new not in values:
                self.skipped += self._trace.reader.kind(olds[link.old]) != "Function"
                continue
            was, value = before[link.old], values[link.new]
            self._compare(stage, link, was, value, max(self._rtol, _step(was), _step(value)))

    def _compare(self, stage: int, link: Link, was: Any, value: Any, allowed: float) -> None:
        self.checked += 1
        old, new = self._trace.nodes(stage - 1)[link.old], self._trace.nodes(stage)[link.new]
        value = self._evaluator.relayout(value, new.type, old.type, was)
        error = difference(was, value, self._floor)
        if error <= allowed:
            self.worst = max(self.worst, error)
            return
        reason = (
            f"{old.type} and {new.type} cannot be compared"
            if error == np.inf
            else f"relative error {error:.2g}, at most {allowed:.2g} expected"
        )
        refs = NodeRef(stage - 1, link.old), NodeRef(stage, link.new)
        name = self._trace.stages[stage].name
        self.failures.append(FalseLink(name, *refs, old.span.layers, reason))


def _step(value: Any) -> float:
    """Returns the relative step between neighbors of a narrow float dtype; 0 for other dtypes. Of
    several values, the largest.
    """
    if isinstance(value, (tuple, list)):
        return max(map(_step, value), default=0.0)
    return _STEPS.get(getattr(getattr(value, "dtype", None), "name", ""), 0.0)


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
