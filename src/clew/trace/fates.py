"""The fate of each layer, and gaps in the trace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from clew.trace.queries import Queries

# Kinds of nodes that compute nothing.
PASSIVE: Final = frozenset({"Constant", "Tuple", "TupleGetItem", "Var", "Function", "GlobalVar"})
# Kinds of nodes of the first stage that stand for the model as a whole, not for a layer.
_WHOLE: Final = frozenset({"Function", "Tuple", "GlobalVar"})


_REGION: Final = "region"


class FateKind(Enum):
    """How a layer ends."""

    KERNEL = "kernel"
    """Kernels compute it."""
    REGION = "region"
    """A backend runs it, as part of a region; kernels may convert values at the border."""
    KEPT = "kept"
    """It stays in the graph: a host operator, control flow."""
    VIEW = "view"
    """It is a view of memory written by another node, and costs nothing."""
    JOINED = "joined"
    """It is memory that its inputs are computed into."""
    FOLDED = "folded"
    """It was computed at compile time."""
    MERGED = "merged"
    """Existing nodes give its value."""
    DEAD = "dead"
    """Its value was unused."""
    IMPORTED = "imported"
    """The import made no node for it: its value was a known shape, or was unused."""


@dataclass(frozen=True)
class Fate:
    """A layer's fate: the pass that eliminated it, and the kernels or layers it went into."""

    kind: FateKind
    pass_name: str = ""
    into: tuple[str, ...] = ()

    def __str__(self) -> str:
        into = ", ".join(self.into[:4]) + (", ..." if len(self.into) > 4 else "")
        match self.kind:
            case FateKind.KERNEL | FateKind.REGION:
                return f"runs in {into}"
            case FateKind.KEPT:
                return f"stays in the graph as {into}"
            case FateKind.VIEW:
                return f"is a view of {into}"
            case FateKind.JOINED:
                return f"is put together by writing {into} into their places"
            case FateKind.FOLDED:
                return f"folded into constants by {self.pass_name}"
            case FateKind.MERGED:
                return f"merged into {into or 'what was there'} by {self.pass_name}"
            case FateKind.DEAD:
                return f"removed as dead by {self.pass_name}"
            case FateKind.IMPORTED:
                return f"settled by the import: {into}"


@dataclass(frozen=True)
class Gap:
    """Something the trace cannot account for, with its stage and line."""

    stage: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.stage}, line {self.line}: {self.text}"


def fate_of(trace: Queries, layer: str) -> Fate:
    """Returns a layer's fate."""
    final = trace.layer_nodes(trace.last).get(layer, ())
    if not final and layer in trace.eliminated and layer not in trace.layer_nodes(0):
        return Fate(FateKind.IMPORTED, "import", (trace.eliminated[layer],))
    if not final:
        return _eliminated(trace, layer)
    kernels = tuple(dict.fromkeys(k.name for k in trace.kernels_of(final)))
    regions = _regions(trace, final)
    if regions:
        return Fate(FateKind.REGION, into=(*regions, *kernels))
    if kernels:
        return Fate(FateKind.KERNEL, into=kernels)
    nodes, reader = trace.nodes(trace.last), trace.reader
    working = [n for n in final if reader.kind(nodes[n]) not in PASSIVE]
    if working or not any(reader.kind(nodes[n]) == "Constant" for n in final):
        memory = [reader.memory(nodes[n]) for n in working]
        if memory and all(memory):
            joined = any(kind == FateKind.JOINED.value for kind, *_ in memory)
            names = dict.fromkeys(name for _, *names in memory for name in names)
            return Fate(FateKind.JOINED if joined else FateKind.VIEW, into=tuple(names))
        titles = dict.fromkeys(reader.title(nodes[n]) for n in working or final)
        return Fate(FateKind.KEPT, into=tuple(titles))
    return Fate(FateKind.FOLDED, trace.stages[_folded_at(trace, layer)].name)


def _regions(trace: Queries, final: Iterable[int]) -> tuple[str, ...]:
    """Returns the regions, with their backends, among a layer's nodes of the last stage."""
    nodes, reader = trace.nodes(trace.last), trace.reader
    memory = [m for n in final if (m := reader.memory(nodes[n])) and m[0] == _REGION]
    return tuple(dict.fromkeys(name for _, *names in memory for name in names))


def _folded_at(trace: Queries, layer: str) -> int:
    """Returns the first stage from which the layer consists of constants only."""
    for stage in range(trace.last, -1, -1):
        nodes = trace.nodes(stage)
        found = trace.layer_nodes(stage).get(layer, ())
        if any(trace.reader.kind(nodes[n]) not in PASSIVE for n in found):
            return min(stage + 1, trace.last)
    return 0


def _eliminated(trace: Queries, layer: str) -> Fate:
    """Returns the fate of a layer that no node of the last stage serves."""
    stage = next(
        (s for s in range(trace.last, -1, -1) if layer in trace.layer_nodes(s)),
        0,
    )
    gone = min(stage + 1, trace.last)
    name = trace.stages[gone].name
    links = trace.links(gone) if gone > stage else None
    old, new = trace.nodes(stage), trace.nodes(gone)
    successors = {
        link.new: None
        for node in trace.layer_nodes(stage).get(layer, ())
        if trace.reader.kind(old[node]) not in _WHOLE and links is not None
        for link in links.forward(node)
    }
    if not successors:
        return Fate(FateKind.DEAD, name)
    constants = all(trace.reader.kind(new[n]) == "Constant" for n in successors)
    if constants and any(n not in old for n in successors):
        return Fate(FateKind.FOLDED, name)
    into: dict[str, None] = {}
    for node in successors:
        span = new[node].span
        into.update(dict.fromkeys(span.layers or [s.layer for s in span.sources]))
    return Fate(FateKind.MERGED, name, tuple(into))


def find_gaps(trace: Queries) -> list[Gap]:
    """Returns nodes without a source or origin, and kernels with dangling references."""
    return [
        *_sourceless(trace),
        *(gap for stage in range(1, len(trace.stages)) for gap in _rootless(trace, stage)),
        *_stray_kernels(trace),
    ]


def _gap(trace: Queries, stage: int, node: int, text: str) -> Gap:
    line = trace.printed(stage).line_of.get(node, 0)
    return Gap(trace.stages[stage].name, line, text)


def _sourceless(trace: Queries) -> Iterator[Gap]:
    for node in trace.nodes(0).values():
        if not node.span and trace.reader.kind(node) not in _WHOLE:
            yield _gap(trace, 0, node.id, f"{trace.reader.title(node)} has no source")


def _rootless(trace: Queries, stage: int) -> Iterator[Gap]:
    record = trace.stages[stage]
    if not record.changed:
        return
    if record.lineage is None:
        yield Gap(record.name, 0, "its lineage was not recorded")
        return
    before, links = trace.nodes(stage - 1), trace.links(stage)
    for node in trace.nodes(stage).values():
        if node.id not in before and not links.backward(node.id) and not node.span:
            title = trace.reader.title(node)
            yield _gap(trace, stage, node.id, f"{title} came from nothing in {record.name}")


def _stray_kernels(trace: Queries) -> Iterator[Gap]:
    nodes = trace.nodes(trace.last)
    for kernel in trace.kernels:
        lost = [op for op in (kernel.call, *kernel.ops) if op not in nodes]
        if lost:
            yield Gap(
                trace.stages[trace.last].name,
                0,
                f"kernel {kernel.name} names nodes {lost} of no stage",
            )
        bad = [s for s, p in kernel.stage_ops.items() if not 0 <= p < len(kernel.ops)]
        if bad:
            yield Gap(
                trace.stages[trace.last].name, 0, f"kernel {kernel.name}: stages {bad} of no op"
            )
