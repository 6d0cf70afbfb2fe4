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
    there, because the backend has a memory space of its own; a copy that two regions share is
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
