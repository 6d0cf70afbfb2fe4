"""The values of layers in a run of both builds, and the differences between them.

Only values in memory can be compared. If a layer's result is not in memory in both builds, its
nearest follower whose result is takes its place. A result that only one model quantizes is in
memory as integers; its value there is the dequantized one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from clew.build.observe import node_values
from clew.build.relayout import relayout
from clew.compare.align import Match
from clew.compare.precision import Deviation
from clew.compare.state import Side
from clew.ir.expr import Call, Constant
from clew.ir.types import TensorType
from clew.ops.registry import Op
from clew.support.difference import relative_error, relative_length
from clew.trace.values import follow_values

_HELD_BYTES: Final = 512 << 20
# The dtypes of quantized tensors, and the largest error of rounding to them.
_STORED: Final = ("i8", "u8", "i16", "u16")
_ROUNDING: Final = 0.3
FLOOR: Final = 1e-5
"""Relative to the largest value, the error caused by a different order of summation."""
_RISE: Final = 4.0


@dataclass(frozen=True)
class Numerics:
    """The difference of a layer's value between B and A, and of each from f32 at opt level 0.

    `at` is the layer whose value was compared (its name in A): the layer itself, or its nearest
    follower with a value in memory in both builds. If the compared value was quantized, `quantized`
    names the layers that quantize and dequantize it. `input_error` is the largest `between.worst`
    of its operands, and `rises` says whether its own is well above that.
    """

    at: str
    between: Deviation
    a: Deviation | None = None
    b: Deviation | None = None
    quantized: tuple[str, ...] = ()
    input_error: float = 0.0
    rises: bool = False


@dataclass(frozen=True)
class RoundTrip:
    """Layers in only one of the models: one that quantizes a layer's result, and one that
    dequantizes it; the same if it does both.

    `step` is the operator that quantizes, with constant numbers, and `node` holds its integers in
    the last stage; None if layers of other operators have that effect.
    """

    quantize: str
    restore: str
    step: Call | None = None
    node: int | None = None

    @property
    def layers(self) -> tuple[str, ...]:
        """Both layers, or the one."""
        return tuple(dict.fromkeys((self.quantize, self.restore)))


class Run:
    """A build and its inputs: arrays in the order of its inputs."""

    def __init__(self, side: Side, arrays: Sequence[Any], alone: Collection[str] = ()) -> None:
        self.side = side
        self.arrays = arrays
        self.ends = dict(_corrections(side, frozenset(alone)))
        self.trips = dict(_round_trips(side, frozenset(alone)))
        self.trips |= dict(_quantized(side, frozenset(alone), self.ends))

    def known(self, layer: str) -> bool:
        """Whether a run gives a layer's value."""
        end = self.ends.get(layer, layer)
        return _tensor_held(self.side, end) is not None or layer in self.trips

    def _held(self, layer: str) -> int | None:
        """Returns the node that holds a layer's value, or the integers for it."""
        trip = self.trips.get(layer)
        if trip is not None and trip.node is not None:
            return trip.node
        return self.side.held(self.ends.get(layer, layer) if trip is None else trip.quantize)

    def size_bytes(self, layer: str) -> int:
        """Returns the size of a layer's value; 0 if it is known only during the run."""
        node = self._held(layer)
        type_ = None if node is None else _last_type(self.side, node)
        return 0 if type_ is None else self.side.build.known(type_.memory_bytes) or 0

    def values(self, layers: Iterable[str], like: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the values of layers in plain layouts, as in the model. `like` has values of the
        same shapes, for shapes that are known only during the run.
        """
        asked = list(layers)
        nodes = {la: self._held(la) for la in asked}
        found = node_values(
            self.side.build, self.arrays, {n for n in nodes.values() if n is not None}
        )
        values = {}
        for layer, node in nodes.items():
            if node is None or node not in found:
                continue
            trip = self.trips.get(layer)
            first = self._first(self.ends.get(layer, layer) if trip is None else trip.quantize)
            if trip is not None and trip.step is not None:
                first = trip.step
            value = self._plain(first, node, found[node], like.get(layer))
            if trip is not None and value is not None:
                value = self._restored(trip, value)
            values[layer] = value
        return values

    def _first(self, layer: str) -> Any:
        return self.side.trace.nodes(0)[self.side.values[layer].first.node]

    def _plain(self, of: Any, node: int, value: Any, like: Any) -> Any:
        trace = self.side.trace
        now, first = trace.nodes(trace.last)[node].type, of.type
        if isinstance(now, TensorType) and isinstance(first, TensorType):
            first = self.side.build.type_at(first)
            assert isinstance(first, TensorType)
            if first.is_static:
                like = np.broadcast_to(np.int8(0), first.concrete)
            elif now.layout == first.layout and now.rank == first.rank:
                return value
        return None if like is None else relayout(value, now, first, like)

    def _restored(self, trip: RoundTrip, value: Any) -> Any:
        """Returns the model's dequantized form of a value: that of the numbers by which it was
        divided, which may be others than those by which it is multiplied.
        """
        if trip.step is not None:
            scale, *zero = (a.data.astype(np.float32) for a in trip.step.args[1:])  # type: ignore[attr-defined]
            return (value.astype(np.float32) - (zero[0] if zero else np.float32(0))) * scale
        known = {self._first(trip.quantize).id: value}
        stack = [self._first(trip.restore)]
        while stack:
            node = stack[-1]
            missing = [c for c in node.children if c.id not in known]
            if node.id in known:
                stack.pop()
            elif isinstance(node, Constant):
                known[node.id] = node.data
            elif not isinstance(node, Call) or not isinstance(node.op, Op):
                return None  # not just arithmetic on the value and constants
            elif missing:
                stack += missing
            else:
                args = [known[a.id] for a in node.args]
                known[node.id] = node.op.run_reference(args, node.attrs)
        return known[self._first(trip.restore).id]


def _round_trips(side: Side, alone: frozenset[str]) -> Iterator[tuple[str, RoundTrip]]:
    """Yields layers whose results are in memory only as integers, because of layers that only this
    model has. Whether these quantize is decided by their values.
    """
    for name in alone:
        layer = side.layers[name]
        stored = _tensor_held(side, name)
        if stored is None or stored.dtype not in _STORED or len(set(layer.reads)) != 1:
            continue
        (source,) = set(layer.reads)
        if not source or source in alone or side.held(source) is not None:
            continue
        for restore in layer.feeds:
            if restore in alone and set(side.layers[restore].reads) == {name}:
                types = [_first_type(side, n) for n in (source, restore)]
                if types[0] is not None and types[0] == types[1]:
                    yield source, RoundTrip(name, restore)
                    break


def _corrections(side: Side, alone: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yields quantized layers, and the layers that only this model has and that alone read them and
    add a constant: the correction of their bias, which a file has as a separate node.
    """
    for name in alone:
        layer = side.layers[name]
        reads = set(layer.reads)
        if layer.kinds != ("add",) or len(layer.parameters) != 1 or len(reads) != 1:
            continue
        (source,) = reads
        if source in side.trace.notes and side.layers[source].feeds == [name]:
            yield source, name


def _quantized(
    side: Side, alone: frozenset[str], ends: Mapping[str, str]
) -> Iterator[tuple[str, RoundTrip]]:
    """Yields layers whose results are in memory only as the integers of a `quantize` with constant
    numbers, which only this model has. `ends` has the layers that end others.
    """
    first = side.trace.nodes(0)
    begins = {end: layer for layer, end in ends.items()}
    for name in side.layers:
        for node in side.trace.layer_nodes(0).get(name, ()) if name in alone else ():
            step = first[node]
            if not isinstance(step, Call) or step.op_name != "quantize" or step.attrs.block:
                continue
            marked = [s.layer for s in step.args[0].span.sources if s.output is not None]
            source = begins.get(marked[0], marked[0]) if marked else ""
            if not source or source in alone or side.held(ends.get(source, source)) is not None:
                continue
            held = follow_values(side.trace, 0, [node])[node][0]
            stored = [n for n in held if n in side.outside and _last_type(side, n) is not None]
            if stored and all(isinstance(a, Constant) for a in step.args[1:]):
                readers = [n for n in side.layers[name].feeds if n in alone]
                yield source, RoundTrip(name, readers[0] if readers else name, step, stored[0])


def _first_type(side: Side, layer: str) -> Any:
    value = side.values.get(layer)
    return None if value is None else side.trace.nodes(0)[value.first.node].type


def compare_values(
    a: Run, b: Run, references: tuple[Run | None, Run | None], matches: Sequence[Match]
) -> dict[str, Numerics]:
    """Returns the errors of matched layers, by their names in A. Layers are omitted if neither they
    nor a follower have a value in memory. `references` are runs of the models in f32.
    """
    shared = [m for m in matches if a.known(m.a) and b.known(m.b)]
    own: dict[str, Numerics] = {}
    for batch in _batches(a, b, shared):
        own.update(_compared(a, b, references, batch))
    own = _risen(a.side, own)
    nearest = _nearest(a.side, {m.a for m in matches}, own)
    return {name: own[at] for name, at in nearest.items()}


def _compared(
    a: Run, b: Run, references: tuple[Run | None, Run | None], batch: Sequence[Match]
) -> Iterator[tuple[str, Numerics]]:
    """Yields the errors of layers whose values fit into memory together."""
    ours, theirs = [m.a for m in batch], [m.b for m in batch]
    ref_a, ref_b = references
    exact_a = _exact(a, ref_a, ours)
    if ref_b is ref_a and not b.trips:
        exact_b = {m.b: exact_a.get(m.a) for m in batch}
    else:
        exact_b = _exact(b, ref_b, theirs)
    va, vb = a.values(ours, exact_a), b.values(theirs, exact_b)
    for m in batch:
        trips = [run.trips.get(name) for run, name in ((a, m.a), (b, m.b))]
        exact = exact_a.get(m.a), exact_b.get(m.b)
        if not all(map(_is_rounding, (a, b), (m.a, m.b), (exact_a, exact_b))):
            continue
        between = _deviation(vb.get(m.b), va.get(m.a))
        if between is not None:
            errors = _deviation(va[m.a], exact[0]), _deviation(vb[m.b], exact[1])
            through = tuple(n for t in trips if t is not None for n in t.layers)
            yield m.a, Numerics(m.a, between, *errors, through)


def _exact(run: Run, reference: Run | None, layers: Sequence[str]) -> dict[str, Any]:
    """Returns the values of layers in f32, and those of round trips there."""
    if reference is None:
        return {}
    trips = [run.trips[name] for name in layers if name in run.trips]
    restored = [trip.restore for trip in trips if trip.step is None]
    return reference.values([*layers, *restored], {})


def _is_rounding(run: Run, layer: str, exact: Mapping[str, Any]) -> bool:
    """Whether a round trip, if there is one, gives the layer's own value except for rounding."""
    trip = run.trips.get(layer)
    if trip is None or trip.step is not None:
        return True
    found = _deviation(exact.get(trip.restore), exact.get(layer))
    return found is not None and found.rms < _ROUNDING


def output_error(outputs: Sequence[Any], references: Sequence[Any]) -> Deviation | None:
    """Returns the error of the worst output."""
    found = [
        _deviation(x, y)
        for x, y in zip(outputs, references, strict=True)
        if isinstance(x, np.ndarray) and isinstance(y, np.ndarray)
    ]
    known = [d for d in found if d is not None]
    return max(known, key=lambda d: d.worst) if known else None


def _tensor_held(side: Side, layer: str) -> TensorType | None:
    """Returns the type of a layer's result if it is a tensor in memory."""
    node = side.held(layer)
    return None if node is None else _last_type(side, node)


def _last_type(side: Side, node: int) -> TensorType | None:
    """Returns the type of a node of the last stage if it is a tensor."""
    type_ = side.trace.nodes(side.trace.last)[node].type
    return type_ if isinstance(type_, TensorType) else None


def _batches(a: Run, b: Run, matches: Sequence[Match]) -> Iterator[list[Match]]:
    """Yields batches of matches whose values, in both builds and the references, fit into memory
    together.
    """
    batch: list[Match] = []
    held = 0
    for match in matches:
        size = 4 * max(a.size_bytes(match.a), b.size_bytes(match.b))
        if batch and held + size > _HELD_BYTES:
            yield batch
            batch, held = [], 0
        batch.append(match)
        held += size
    if batch:
        yield batch


def _deviation(value: Any, reference: Any) -> Deviation | None:
    """Returns the deviation of a value from a reference, or None if they cannot be compared."""
    if value is None or reference is None or np.shape(value) != np.shape(reference):
        return None
    x, y = np.asarray(value), np.asarray(reference)
    if x.dtype.kind not in "fciubV" or y.dtype.kind not in "fciubV":
        return None
    if x is y or (x.dtype == y.dtype and x.tobytes() == y.tobytes()):
        return Deviation(0.0, 0.0)
    return Deviation(relative_error(x, y), relative_length(x, y))


def _risen(side: Side, own: Mapping[str, Numerics]) -> dict[str, Numerics]:
    """Adds the errors of the inputs, and whether the layers' own errors rise above them."""
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


def _nearest(side: Side, matched: Collection[str], own: Mapping[str, Any]) -> dict[str, str]:
    """Returns, for each matched layer, the nearest layer, itself or after it, that has a value."""
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
    return {name: best[name][1] for name in side.layers if name in matched and name in best}
