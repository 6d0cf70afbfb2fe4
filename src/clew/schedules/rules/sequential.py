"""Stages that visit positions in order (`te.sequential`): rows are distributed over threads, and
loops that write contiguous elements, or combine contiguous ones, are vectorized.
"""

from __future__ import annotations

from clew.loop.affine import Simplifier
from clew.loop.ir import Buffer, For, Stmt, Store, loops, stores_in, walk
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules.library.register_tile import spread
from clew.schedules.library.tile_sizes import vector_factor
from clew.schedules.rule import Match, Rule, Work
from clew.schedules.space import Settings
from clew.schedules.stages import offset_stride, stride
from clew.support.dataclass import dataclass
from clew.te.roles import IN_ORDER


@dataclass(frozen=True)
class Lane:
    """A loop to vectorize, with its number of lanes, and whether it uses a register tile, whose
    elements need literal indices.
    """

    loop: str
    lanes: int
    is_tile: bool


@dataclass(frozen=True)
class Visits(Match):
    """The outer loops with independent iterations, outermost first, and the loops to vectorize."""

    rows: tuple[str, ...] = ()
    lanes: tuple[Lane, ...] = ()


class Sequential(Rule[Visits]):
    """Stages that visit positions in order."""

    name = "sequential"
    scope = "sequential"

    def match(self, work: Work, target: Target) -> Visits | None:
        (stage,) = work.members
        schedule = work.start
        nests = [s for s in schedule.nest.body.stmts if _writes(s, stage)]
        lanes = _lanes(nests, target)
        vectorized = {lane.loop for lane in lanes}
        rows: list[str] = []
        inner = nests[0]
        while len(nests) == 1 and isinstance(inner, For) and inner.index.role != IN_ORDER:
            if inner.name not in vectorized:
                rows.append(inner.name)
            inner = inner.body
        return Visits(schedule, target, tuple(rows), lanes)

    def schedule(self, match: Visits, settings: Settings) -> Schedule:
        schedule, _ = match.begin()
        for lane in match.lanes:
            outer, inner = schedule.split(lane.loop, lane.lanes)
            if lane.is_tile:
                schedule.unroll(outer)
            schedule.vectorize(inner)
        if match.rows:
            # Rows may share a temporary value.
            schedule.attempt(lambda: spread(schedule, list(match.rows)))
        return schedule


def _lanes(nests: list[Stmt], target: Target) -> tuple[Lane, ...]:
    """Returns the loops to vectorize: those whose iterations write contiguous elements, or combine
    contiguous elements in one register.
    """
    used: dict[str, list[list[Buffer]]] = {}
    extents: dict[str, int] = {}
    tiles: set[str] = set()
    for loop in (loop for nest in nests for loop in loops(nest)):
        if loop.kind != "serial" or loop.index.role == IN_ORDER:
            continue
        if any(True for _ in loops(loop.body)):
            continue
        extents[loop.name] = loop.typical
        stores = stores_in(loop.body)
        used.setdefault(loop.name, []).extend(_contiguous(s, loop) for s in stores)
        touched = [b for s in stores for b in (s.buffer, *(x.source for x in s.loads))]
        if any(
            isinstance(b, Buffer) and b.scope == "register" and b.elements != 1 for b in touched
        ):
            tiles.add(loop.name)
    found: list[Lane] = []
    for name, each in used.items():
        buffers = [b for some in each for b in some]
        lanes = min((vector_factor(target, b.dtype, extents[name]) for b in buffers), default=1)
        if all(each) and lanes > 1:
            found.append(
                Lane(name, lanes, name in tiles or any(b.scope == "register" for b in buffers))
            )
    return tuple(found)


def _contiguous(store: Store, loop: For) -> list[Buffer]:
    """Returns the buffers whose contiguous elements a store in a loop writes, or combines in one
    register; none if it does neither.
    """
    simplifier = Simplifier()
    step = offset_stride(store.buffer, store.indices, loop.index, simplifier)
    if step == 1:
        return [store.buffer]
    if step != 0 or store.buffer.scope != "register" or not store.combiner:
        return []
    return [x.source for x in store.loads if stride(x, loop.index, simplifier) == 1]


def _writes(stmt: Stmt, stage: str) -> bool:
    return any(isinstance(s, Store) and s.stage == stage for s in walk(stmt))
