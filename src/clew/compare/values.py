"""What layers computed in a run of either build, and how far these values are from each other.

Only what is written to memory can be looked at. Where a layer's result is not, in one build or the
other, its nearest follower whose result is stands for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from clew.build.observe import node_values
from clew.build.tracing import relayout
from clew.compare.align import Match
from clew.compare.state import Side
from clew.ir.types import TensorType
from clew.precision import Deviation
from clew.support.difference import relative_error, relative_length

_HELD_BYTES: Final = 512 << 20
FLOOR: Final = 2e-6
"""Sums in another order differ by so much of the largest value, and nothing is wrong."""
_RISE: Final = 4.0


@dataclass(frozen=True)
class Numerics:
    """How far a layer's value is in B from that in A, and each from f32 at opt level 0.

    `at` is the layer whose value was looked at (its name in A): the layer itself, or its nearest
    follower with a value in memory in both builds. `input_error` is the largest `between.worst`
    of what it is computed from, and `rises` says whether its own is well above that.
    """

    at: str
    between: Deviation
    a: Deviation | None = None
    b: Deviation | None = None
    input_error: float = 0.0
    rises: bool = False


@dataclass(frozen=True)
class Run:
    """A build and what it is run with: arrays in the order of its inputs."""

    side: Side
    arrays: Sequence[Any]

    def values(self, layers: Iterable[str], like: Mapping[str, Any]) -> dict[str, Any]:
        """Returns what layers computed, as the model had them: in plain layouts. `like` has values
        of the same shapes, where these are not known before a run.
        """
        wanted = {layer: self.side.held(layer) for layer in layers}
        nodes = {node for node in wanted.values() if node is not None}
        found = node_values(self.side.build, self.arrays, nodes)
        values = {}
        for layer, node in wanted.items():
            if node in found:
                values[layer] = self._plain(layer, node, found[node], like.get(layer))
        return values

    def _plain(self, layer: str, node: int, value: Any, like: Any) -> Any:
        trace = self.side.trace
        now = trace.nodes(trace.last)[node].type
        first = trace.nodes(0)[self.side.values[layer].first.node].type
        if isinstance(now, TensorType) and isinstance(first, TensorType):
            if now.layout == first.layout:
                return value
            if first.is_static:
                like = np.broadcast_to(np.int8(0), first.concrete)
        return None if like is None else relayout(value, now, first, like)


def compare_values(
    a: Run, b: Run, references: tuple[Run | None, Run | None], matches: Sequence[Match]
) -> dict[str, Numerics]:
    """Returns the errors of matched layers, by their names in A; those without a value in memory,
    their own or a follower's, are left out. `references` are runs of the models in f32.
    """
    reference_a, reference_b = references
    partner = {m.a: m.b for m in matches}
    shared = [m for m in matches if _comparable(a.side, m.a) and _comparable(b.side, m.b)]
    own: dict[str, Numerics] = {}
    for batch in _batches(a.side, shared):
        ref_a = reference_a.values([m.a for m in batch], {}) if reference_a else {}
        if reference_b is None or reference_a is None:
            ref_b: dict[str, Any] = {}
        elif reference_b is reference_a:
            ref_b = {m.b: ref_a.get(m.a) for m in batch}
        else:
            ref_b = reference_b.values([m.b for m in batch], {})
        va = a.values([m.a for m in batch], ref_a)
        vb = b.values([m.b for m in batch], ref_b)
        for m in batch:
            between = _deviation(vb.get(m.b), va.get(m.a))
            if between is not None:
                ra, rb = ref_a.get(m.a), ref_b.get(m.b)
                errors = _deviation(va[m.a], ra), _deviation(vb[m.b], rb)
                own[m.a] = Numerics(m.a, between, *errors)
    own = _risen(a.side, own)
    return {name: own[at] for name, at in _nearest(a.side, partner, own).items()}


def output_error(outputs: Sequence[Any], references: Sequence[Any]) -> Deviation | None:
    """Returns the error of the worst output."""
    found = [
        _deviation(x, y)
        for x, y in zip(outputs, references, strict=True)
        if isinstance(x, np.ndarray) and isinstance(y, np.ndarray)
    ]
    known = [d for d in found if d is not None]
    return max(known, key=lambda d: d.worst) if known else None


def _comparable(side: Side, layer: str) -> bool:
    node = side.held(layer)
    return node is not None and isinstance(side.trace.nodes(side.trace.last)[node].type, TensorType)


def _batches(side: Side, matches: Sequence[Match]) -> Iterator[list[Match]]:
    """Yields matches whose values fit into memory together, those of either build and of the
    references.
    """
    batch: list[Match] = []
    held = 0
    for match in matches:
        node = side.held(match.a)
        assert node is not None
        type_ = side.trace.nodes(side.trace.last)[node].type
        size = 4 * type_.size_bytes if type_.is_static else 0
        if batch and held + size > _HELD_BYTES:
            yield batch
            batch, held = [], 0
        batch.append(match)
        held += size
    if batch:
        yield batch


def _deviation(value: Any, reference: Any) -> Deviation | None:
    """Returns how far a value is from a reference; None where the two do not compare."""
    if value is None or reference is None or np.shape(value) != np.shape(reference):
        return None
    x, y = np.asarray(value), np.asarray(reference)
    if x.dtype.kind not in "fiubV" or y.dtype.kind not in "fiubV":
        return None
    if x is y or (x.dtype == y.dtype and x.tobytes() == y.tobytes()):
        return Deviation(0.0, 0.0)
    return Deviation(relative_error(x, y), relative_length(x, y))


def _risen(side: Side, own: Mapping[str, Numerics]) -> dict[str, Numerics]:
    """Returns the errors with those of the inputs, and whether they rise above them."""
    before: dict[str, float] = {}
    found: dict[str, Numerics] = {}
    for name, layer in side.layers.items():
        given = max((before.get(r, 0.0) for r in layer.reads), default=0.0)
        before[name] = given
        if name in own:
            error = own[name].between.worst
            rises = error > FLOOR and not error <= _RISE * given
            found[name] = replace(own[name], input_error=given, rises=rises)
            before[name] = error
    return found


def _nearest(side: Side, partner: Mapping[str, str], own: Mapping[str, Any]) -> dict[str, str]:
    """Returns for each matched layer the nearest one, itself or after it, that has a value."""
    far = len(side.layers) + 1
    best: dict[str, tuple[int, str]] = {}
    for name in reversed(list(side.layers)):
        if name in own:
            best[name] = 0, name
            continue
        reached = [best[n] for n in side.layers[name].feeds if n in best]
        steps, at = min(reached, default=(far, ""), key=lambda found: found[0])
        if steps < far:
            best[name] = steps + 1, at
    return {name: best[name][1] for name in side.layers if name in partner and name in best}
