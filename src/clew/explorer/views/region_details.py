"""Details that the backend of a region reports, with bounded numbers of slices and lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from clew.backends.backend import DescribedRegion
from clew.backends.details import DetailSlice, DetailTable, DetailTrack, Layers
from clew.explorer.schema import RegionDetails, RegionTable, RegionTrack
from clew.explorer.schema_regions import Number
from clew.explorer.session import Session
from clew.explorer.views.regions import compiled_regions
from clew.ir.expr import Function
from clew.passes.placement.claims import with_composites
from clew.support.errors import InputError, RunError

MOST_SLICES: Final = 2_000
MOST_LINES: Final = 2_000


@dataclass
class Piece:
    """A slice, or neighbors on a track joined."""

    first: DetailSlice
    layers: Layers
    end: int
    count: int = 0
    busy: int = 0
    waits: Counter[str] = field(default_factory=Counter)

    def add(self, other: DetailSlice) -> None:
        """Joins a slice that follows."""
        self.end = other.end
        self.count += 1
        self.busy += other.end - other.begin
        if other.waited:
            self.waits[other.waited_for] += other.waited
        self.layers = tuple(dict.fromkeys((*self.layers, *other.layers)))


def region_details(session: Session, region: int) -> RegionDetails:
    """Returns the details of a region.

    Errors: I244 for a place without a region, or a region whose backend provides no details; I361
    for an exception in the backend's code.
    """
    use = session.region(region)
    compiled = session.once(compiled_regions).get(use.call.id)
    if not isinstance(compiled, DescribedRegion):
        raise InputError("I244", f"the backend {use.backend} provides no details of {use.name}")
    function = use.call.op
    assert isinstance(function, Function)
    backends = session.compiled.options.backends
    backend = next((b for b in backends if b.name == use.backend), None)
    if backend is not None:
        function = with_composites(function, backend)
    try:
        told = compiled.describe(function)
    except Exception as error:  # whatever a backend's code raises
        why = f"{type(error).__name__}: {error}"
        raise RunError(
            "I361", f"the backend {use.backend} failed to describe {use.name}: {why}"
        ) from error
    most = MOST_SLICES // max(1, len(told.tracks))
    lines = told.lines[:MOST_LINES]
    return RegionDetails(
        summary=told.summary,
        tables=[_table(session, each) for each in told.tables],
        unit=told.unit,
        tracks=[_track(session, each, most) for each in told.tracks],
        lines_are=told.lines_are,
        total_lines=len(told.lines),
        lines=[line.text for line in lines],
        line_layers=[_numbers(session, line.layers) for line in lines],
    )


def _table(session: Session, table: DetailTable) -> RegionTable:
    return RegionTable(
        title=table.title,
        columns=list(table.columns),
        rows=[list(row.cells) for row in table.rows],
        layers=[_numbers(session, row.layers) for row in table.rows],
    )


def _track(session: Session, track: DetailTrack, most: int) -> RegionTrack:
    pieces = joined(track.slices, most)
    return RegionTrack(
        name=track.name,
        total=len(track.slices),
        begins=[p.first.begin for p in pieces],
        ends=[p.end for p in pieces],
        counts=[p.count for p in pieces],
        busy=[p.busy for p in pieces],
        waited=[p.waits.total() for p in pieces],
        waited_for=[p.waits.most_common(1)[0][0] if p.waits else "" for p in pieces],
        texts=[p.first.text for p in pieces],
        layers=[_numbers(session, p.layers) for p in pieces],
    )


def joined(slices: Sequence[DetailSlice], most: int) -> list[Piece]:
    """Returns at most so many pieces. Neighbors of the same layers are joined first, those that are
    narrow together; neighbors of different layers only if that is not enough.
    """
    if len(slices) <= most:
        return _joined(slices, width=-1, same=True)
    span = max(s.end for s in slices) - min(s.begin for s in slices)
    for same in (True, False):
        width = max(1, span // most)
        while width < 2 * max(1, span):
            pieces = _joined(slices, width, same)
            if len(pieces) <= most:
                return pieces
            width *= 2
    return _joined(slices, 2 * max(1, span), same=False)


def _joined(slices: Sequence[DetailSlice], width: int, same: bool) -> list[Piece]:
    pieces: list[Piece] = []
    for each in slices:
        last = pieces[-1] if pieces else None
        fits = last is not None and each.end - last.first.begin <= width
        if last is None or not fits or (same and last.layers != each.layers):
            last = Piece(each, each.layers, each.end)
            pieces.append(last)
        last.add(each)
    return pieces


def _numbers(session: Session, layers: Layers) -> list[Number]:
    return [session.layers[name] for name in layers if name in session.layers]
