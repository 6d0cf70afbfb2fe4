"""Details that a compiled region may report: tables, timelines, and a text such as its
instructions. The explorer shows them (`DescribedRegion` in `backend.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from clew.support.dataclass import dataclass

Layers = tuple[str, ...]


@dataclass(frozen=True)
class DetailRow:
    """A row of a table, with the layers that it is about."""

    cells: Sequence[str]
    layers: Layers = ()


@dataclass(frozen=True)
class DetailTable:
    """A table; its first column names the rows."""

    title: str
    columns: Sequence[str]
    rows: Sequence[DetailRow]


@dataclass(frozen=True)
class DetailSlice:
    """A piece of work, from `begin` to `end` in the unit of the timeline. Before it, its track
    waited for `waited` units, in the end for `waited_for`.
    """

    begin: int
    end: int
    text: str
    layers: Layers = ()
    waited: int = 0
    waited_for: str = ""


@dataclass(frozen=True)
class DetailTrack:
    """Pieces of work that follow each other, on an engine or a core; they do not overlap."""

    name: str
    slices: Sequence[DetailSlice]


@dataclass(frozen=True)
class DetailLine:
    """A line of the region's text, with the layers that it serves."""

    text: str
    layers: Layers = ()


@dataclass(frozen=True)
class RegionDetails:
    """The details of a region: `unit` is that of the timeline, `lines_are` the name of its lines,
    both in the plural.
    """

    summary: str
    tables: Sequence[DetailTable] = ()
    unit: str = ""
    tracks: Sequence[DetailTrack] = ()
    lines_are: str = "lines"
    lines: Sequence[DetailLine] = ()
