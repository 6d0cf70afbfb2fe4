"""The differences of a layer between two builds: one sentence for each kind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from clew.backends.cpu.lowering import KernelSource
from clew.compare.align import Alignment, Match
from clew.compare.layers import Layer, Spelled, digest_of, of_two_formats
from clew.compare.rows import Group, LayerDiff
from clew.compare.state import KernelPart, Side, State
from clew.compare.times import Times, Timing
from clew.compare.values import FLOOR, Numerics
from clew.ir.structural import structural_hash

_NAMES_SHOWN = 3


def layer_diffs(
    sides: tuple[Side, Side],
    alignment: Alignment,
    groups: Sequence[Group],
    times: Times | None,
    values: Mapping[str, Numerics],
) -> tuple[LayerDiff, ...]:
    """Returns the layers of A in order; layers only in B come after the layer they follow there."""
    maker = _Maker(sides, alignment, groups, times, values)
    a, b = sides
    in_a = {m.b: m.a for m in alignment.matches}
    following: dict[str | None, list[str]] = {}
    last: str | None = None
    for name in b.layers:
        if name in in_a:
            last = in_a[name]
        else:
            following.setdefault(last, []).append(name)
    found = [maker.added(name) for name in following.get(None, ())]
    for name in a.layers:
        found.append(maker.of_a(name))
        found += [maker.added(other) for other in following.get(name, ())]
    return tuple(found)


class _Maker:
    """Makes the rows of a report."""

    def __init__(
        self,
        sides: tuple[Side, Side],
        alignment: Alignment,
        groups: Sequence[Group],
        times: Times | None,
        values: Mapping[str, Numerics],
    ) -> None:
        self._a, self._b = sides
        self._of_two_formats = of_two_formats(self._a.layers, self._b.layers)
        self._matches = {m.a: m for m in alignment.matches}
        self._in_a = {m.b: m.a for m in alignment.matches}
        self._group = {name: n for n, group in enumerate(groups) for name in group.layers}
        self._times = times
        self._values = values
        self._schedules: dict[tuple[str, str], str] = {}

    def of_a(self, name: str) -> LayerDiff:
        """Returns a layer of A, with its partner in B if it has one."""
        match = self._matches.get(name)
        if match is not None:
            return self._paired(match)
        layer, state = self._a.layers[name], self._a.states[name]
        why = _conversion(self._a, name) or {"removed": "only A has it"}
        group, time = self._group.get(name, -1), self._time(name, "")
        return LayerDiff(name, None, layer.op, "", "", 0.0, why, state, None, group, time)

    def added(self, name: str) -> LayerDiff:
        """Returns a layer that only B has."""
        layer, state = self._b.layers[name], self._b.states[name]
        why = _conversion(self._b, name) or {"added": "only B has it"}
        group, time = self._group.get(f"B:{name}", -1), self._time("", name)
        return LayerDiff(None, name, "", layer.op, "", 0.0, why, None, state, group, time)

    def _time(self, a: str, b: str) -> Timing | None:
        return self._times.of_layers(a, b) if self._times is not None else None

    def _paired(self, match: Match) -> LayerDiff:
        one, other = self._a.layers[match.a], self._b.layers[match.b]
        states = self._a.states[match.a], self._b.states[match.b]
        time, numerics = self._time(match.a, match.b), self._values.get(match.a)
        differs = dict(self._differences(one, other, *states))
        if time is not None and time.differs:
            differs["time"] = f"{time.a:.1f} → {time.b:.1f} µs"
        if numerics is not None and numerics.at == match.a and numerics.between.worst > FLOOR:
            rise = f", where its inputs differ by {numerics.input_error:.1e}"
            differs["values"] = f"{numerics.between.worst:.1e}{rise if numerics.rises else ''}"
        return LayerDiff(
            match.a,
            match.b,
            one.op,
            other.op,
            match.how,
            match.confidence,
            differs,
            *states,
            self._group.get(match.a, -1),
            time,
            numerics,
        )

    def _differences(
        self, one: Layer, other: Layer, a: State, b: State
    ) -> Iterator[tuple[str, str]]:
        if one.name != other.name:
            yield "name", f"{one.name} → {other.name}"
        if self._a.trace.stages[0].module is not self._b.trace.stages[0].module:
            yield from self._in_the_model(one, other)
        if a.backends != b.backends:
            yield "backend", f"{_places(a)} → {_places(b)}"
        elif bool(a.kernels) != bool(b.kernels) or a.fate_kind != b.fate_kind:
            yield "fate", f"{_fate(a)} → {_fate(b)}"
        elif a.kernels:
            yield from self._in_kernels(a, b)
        if a.dtype and b.dtype and a.dtype != b.dtype:
            yield "dtype", f"{a.dtype} → {b.dtype}"
        if a.type and b.type and a.layout != b.layout:
            yield "layout", f"{a.layout or 'plain'} → {b.layout or 'plain'}"
        if Counter(a.weights) != Counter(b.weights):
            yield "packing", f"{_listed(a.weights)} → {_listed(b.weights)}"
        passes = [p for p in {**a.passes, **b.passes} if a.passes.get(p) != b.passes.get(p)]
        if passes:
            yield "passes", ", ".join(passes)

    def _in_the_model(self, one: Layer, other: Layer) -> Iterator[tuple[str, str]]:
        """Yields differences between the imported models."""
        if self._of_two_formats:
            if one.essence != other.essence:
                yield "operator", f"{one.op} → {other.op}"
        elif one.op != other.op:
            yield "operator", f"{one.op} → {other.op}"
        elif one.kinds != other.kinds:
            yield "attributes", f"read as {'+'.join(one.kinds)} → {'+'.join(other.kinds)}"
        elif one.calls != other.calls:
            changes = [
                c for pair in zip(one.calls, other.calls, strict=True) for c in _changes(*pair)
            ]
            yield "attributes", "; ".join(changes)
        elif one.weights != other.weights:
            pairs = zip(one.parameters, other.parameters, strict=True)
            changed = [x for x, y in pairs if digest_of(x) != digest_of(y)]
            names = [c.name or "a constant" for c in changed]
            count = len(one.parameters)
            among = f" (of {count} parameters)" if count > 1 else ""
            yield "weights", f"{_listed(names)}{among}"
        reads = tuple(self._in_a.get(n, f"B:{n}") if n else "" for n in other.reads)
        if reads != one.reads:
            named = [[n or "an input" for n in names] for names in (one.reads, other.reads)]
            yield "inputs", f"reads {_listed(named[0])} → {_listed(named[1])}"

    def _in_kernels(self, a: State, b: State) -> Iterator[tuple[str, str]]:
        ours = {la for part in a.kernels for la in part.layers}
        theirs = {self._in_a.get(la, f"B:{la}") for part in b.kernels for la in part.layers}
        if ours != theirs:
            order = {**dict.fromkeys(self._a.layers), **dict.fromkeys(sorted(theirs))}
            alone = [la for la in order if la in ours - theirs]
            joined = [la for la in order if la in theirs - ours]
            told = [f"shares a kernel with {_listed(alone)} in A only"] if alone else []
            told += [f"shares a kernel with {_listed(joined)} in B only"] if joined else []
            yield "fusion", "; ".join(told)
        if _operators(a.kernels) != _operators(b.kernels):
            yield "kernel", f"{_told(a.kernels)} → {_told(b.kernels)}"
            return
        for x, y in zip(a.kernels, b.kernels, strict=False):
            change = self._schedule(self._a.uses[x.kernel].source, self._b.uses[y.kernel].source)
            if change:
                yield "schedule", f"{x.kernel}: {change}"
                return

    def _schedule(self, one: KernelSource, other: KernelSource) -> str:
        """Returns how the schedules of two kernels with the same operators differ."""
        keys = one.key, other.key
        if keys not in self._schedules:
            self._schedules[keys] = _schedules(one, other) if one.key != other.key else ""
        return self._schedules[keys]


def _conversion(side: Side, layer: str) -> dict[str, str]:
    """Returns the conversion of a layer that only converts a value, and its fate; nothing for
    other layers.
    """
    told = []
    for row in side.conversions.get(layer, ()):
        value = f" of {row.value}" if row.value else ""
        readers = f" for {_listed(row.readers)}" if row.readers else ""
        numbers = f"{row.numbers}, " if row.numbers else ""
        told.append(f"{row.step} {row.before} → {row.after}{value}{readers}, {numbers}{row.ending}")
    return {"conversion": "; ".join(told)} if told else {}


def _schedules(one: KernelSource, other: KernelSource) -> str:
    if one.rules != other.rules:
        return f"{', '.join(one.rules)} → {', '.join(other.rules)}"
    same = structural_hash(one.function) == structural_hash(other.function)
    if same and one.schedule.text != other.schedule.text:
        return f"other steps of {', '.join(one.rules)}"
    return ""


def _operators(parts: Sequence[KernelPart]) -> list[tuple[str, ...]]:
    return sorted(part.ops for part in parts)


def _told(parts: Sequence[KernelPart]) -> str:
    return " | ".join("+".join(op.removeprefix("nn.") for op in part.ops) for part in parts)


def _places(state: State) -> str:
    """Returns the backends that run a layer, the CPU included."""
    return ", ".join(state.backends) or "cpu"


def _fate(state: State) -> str:
    return state.fate or f"runs in {_listed([part.kernel for part in state.kernels])}"


def _changes(one: Spelled, other: Spelled) -> Iterator[str]:
    """Yields differences between two calls of one operator."""
    ours, theirs = dict(one.attrs), dict(other.attrs)
    for name in {**ours, **theirs}:
        if ours.get(name) != theirs.get(name):
            yield f"{name} {ours.get(name, 'none')} → {theirs.get(name, 'none')}"
    if one.parameters != other.parameters:
        yield f"{_listed(one.parameters)} → {_listed(other.parameters)}"


def _listed(names: Sequence[str]) -> str:
    """Returns the first few names."""
    more = len(names) - _NAMES_SHOWN
    shown = ", ".join(names[:_NAMES_SHOWN]) or "none"
    return f"{shown} and {more} more" if more > 0 else shown
