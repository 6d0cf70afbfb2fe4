"""The part of the wire format for regions on other backends (see `schema.py`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

Number: TypeAlias = int


@dataclass(frozen=True)
class RegionCopy:
    """A copy at the border of a region: the value's type, its bytes, and the memory spaces."""

    value: str
    bytes: int
    source: str
    target: str


@dataclass(frozen=True)
class RegionInfo:
    """A region of the last stage's graph that a backend runs, in the order of `compiled.regions`.

    `ops` are its operators' names in order and `numbers` their nodes in the last stage; `call` is
    the number of its call. Regions with equal code have the same number `distinct`. `reads` and
    `results` are the types of its values at the border, and `copies` those that the program copies
    there, because the backend has its own memory space; a copy that two regions share is
    listed at both.
    """

    index: int
    name: str
    backend: str
    call: Number
    ops: list[str]
    numbers: list[Number]
    layers: list[Number]
    distinct: int
    reads: list[str]
    results: list[str]
    copies: list[RegionCopy]
    described: bool


@dataclass(frozen=True)
class RegionTable:
    """A table about the inside of a region; `layers` has those of each row."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    layers: list[list[Number]]


@dataclass(frozen=True)
class RegionTrack:
    """A track of a region's timeline, in columns. `total` counts the pieces of work; where there
    are too many, neighbors are joined: `counts` of them, which work for `busy` units between
    `begins` and `ends`, and wait for `waited` units before or between. `texts` and `waited_for`
    are those of the first and of the longest wait.
    """

    name: str
    total: int
    begins: list[int]
    ends: list[int]
    counts: list[int]
    busy: list[int]
    waited: list[int]
    waited_for: list[str]
    texts: list[str]
    layers: list[list[Number]]


@dataclass(frozen=True)
class RegionDetails:
    """The details that a region's backend reports. `lines` are the first of `total_lines` lines,
    whose name is `lines_are`; `line_layers` has the layers of each.
    """

    summary: str
    tables: list[RegionTable]
    unit: str
    tracks: list[RegionTrack]
    lines_are: str
    total_lines: int
    lines: list[str]
    line_layers: list[list[Number]]


@dataclass(frozen=True)
class PlacedPlan:
    """A plan that was measured as a whole: the seconds of a call, or why it failed."""

    name: str
    seconds: float | None
    failure: str
    chosen: bool


@dataclass(frozen=True)
class Alternative:
    """The cost of a part on another backend, in seconds: its work, and the borders that it would
    then have; or why it cannot run there.
    """

    backend: str
    seconds: float | None
    borders: float
    why_not: str


@dataclass(frozen=True)
class PlacedRegion:
    """Neighboring operators on one backend, the CPU included, with their costs in seconds; `basis`
    says where the costs come from.
    """

    backend: str
    layers: list[Number]
    ops: list[str]
    seconds: float
    borders: float
    basis: str
    others: list[Alternative]


@dataclass(frozen=True)
class Placement:
    """A measured placement (`clew.place`): the plans measured as a whole, the fastest first, and
    the parts of the chosen one. `summary` has the size of the problem and the quality of the
    search.
    """

    summary: str
    plans: list[PlacedPlan]
    regions: list[PlacedRegion]
