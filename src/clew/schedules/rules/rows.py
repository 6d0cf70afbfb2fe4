"""Row kernels (softmax, norms, reductions over trailing axes): all stages are computed row by row.

The leading axes that all stages share select a row. Reductions run along the row in vectors of
partial results. Values that several stages read stay in a scratch row. A stage of several short
rows is computed before the next one, since each waits for the last instruction of the one before.
"""

from __future__ import annotations

import math

from clew.cost.policy.sums import MOST_SHORT_ROW, PARTIAL_VECTORS, ROWS_TOGETHER
from clew.cost.policy.threads import PIECES_FOR_THREADS
from clew.ir.dims import product
from clew.loop.affine import Simplifier
from clew.loop.ir import buffer_loads
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules.demands import REDUCES
from clew.schedules.library.register_tile import spread
from clew.schedules.library.row_vectors import (
    down_columns,
    joined,
    reduce_in_vectors,
    split_columns,
    sums_columns,
    vectorize_last,
)
from clew.schedules.library.streaming import write_past_caches
from clew.schedules.rule import Match, Rule, Work
from clew.schedules.space import Choice, Settings, Space
from clew.schedules.stages import (
    StageInfo,
    axes_of_rows,
    lane_stride,
    stage_infos,
    sums_rows,
)
from clew.support.dataclass import dataclass
from clew.te.expr import Binary, Imm, Scalar


@dataclass(frozen=True)
class RowStages(Match):
    """The stages computed per row, the root last."""

    members: tuple[str, ...]


class Rows(Rule[RowStages]):
    """Reductions and the stages computed in the loops of their result."""

    name = "rows"
    demands = (REDUCES,)

    def match(self, work: Work, target: Target) -> RowStages | None:
        return RowStages(work.start, target, work.members)

    def choices(self, match: RowStages) -> Space:
        choices = [Choice("partial", PARTIAL_VECTORS, (1, 2, 4, 8), "vectors of partial results")]
        together = _rows_together(match)
        if together > 1:
            choices.append(Choice("together", together, ROWS_TOGETHER, "rows computed together"))
        return Space(tuple(choices))

    def schedule(self, match: RowStages, settings: Settings) -> Schedule:
        schedule, found = match.begin()
        infos, target, root = dict(found), match.target, match.members[-1]
        info = infos[root]
        out = schedule.cache_write(root) if info.is_reduction else root
        members = [m for m in match.members if m != root or info.is_reduction]
        axes = info.axes_in(out)
        # Leading axes that select a row: the root's own, and those that the other stages have.
        own = shared = _row_rank(infos, members, info)
        row, inside = axes[:own], axes[own:]
        products = [infos[m] for m in members if sums_rows(infos[m])]
        if not inside and products:
            # A row of a matrix serves all rows of the other operand while it is in a cache.
            *others, column = row
            of_rows = {loop.name.rsplit(".", 1)[-1] for loop in axes_of_rows(products[0])}
            sharing = [name for name in others if name.rsplit(".", 1)[-1] in of_rows]
            row = [*(name for name in others if name not in sharing), column, *sharing]
            schedule.reorder(*row)
        grouped = _steps_of_group(infos, members, info, own)
        if grouped:
            group, step = schedule.split(inside[0], grouped)
            row, inside, shared = [*row, group], [step, *inside[1:]], own + 1
        columns = _columns(infos, members, shared, target) if row else set()
        several = bool(row) and not (grouped or columns) and settings.get("together", 1) > 1
        if several:
            row[-1], _ = schedule.split(row[-1], settings["together"])
        for member in reversed(members) if row else ():
            inner = infos[member].store.buffer.shape[shared:]
            alone = product(inner) == 1 or member in columns
            in_register = alone and not several
            schedule.compute_at(member, row[-1], "register" if in_register else "scratch")
        readers = {reader for m in columns for reader in infos[m].readers}
        for member in members:
            if member in columns or member in readers:
                lanes = target.vector_lanes(infos[member].lane_dtype)
                down_columns(schedule, infos[member], lanes)
            elif infos[member].is_reduction:
                reduce_in_vectors(schedule, infos[member], target, settings["partial"])
            else:
                names = infos[member].axes
                last = names[-1:]
                if several and _is_value_of_row(infos[member], shared):  # lanes are rows
                    last = names[shared - 1 : shared]
                    schedule.reorder(*(n for n in names if n not in last), *last)
                elif names[shared:]:
                    last = [joined(schedule, infos[member], names[shared:])]
                vectorize_last(schedule, last, target, infos[member])
        if root in columns:  # registers are copied out one by one
            split_columns(schedule, inside[-1], target.vector_lanes(info.lane_dtype))
        else:
            last = [joined(schedule, info, info.axes[own:], inside)] if inside else []
            vectorize_last(schedule, last, target, info)
        if not info.is_reduction:
            write_past_caches(schedule, info, target)
        if row:
            spread(schedule, row)
        return schedule


def _is_value_of_row(info: StageInfo, shared: int) -> bool:
    """Whether a stage without a reduction computes a single value for each row."""
    return not info.is_reduction and product(info.store.buffer.shape[shared:]) == 1


def _rows_together(match: RowStages) -> int:
    """Returns the number of rows that are computed together: several, if each is so short that the
    chains of instructions between its stages take much of the time.
    """
    infos = stage_infos(match.start)
    root, together = infos[match.members[-1]], ROWS_TOGETHER[-1]
    members = [m for m in match.members if m != root.name]
    rank = _row_rank(infos, members, root)
    if root.is_reduction or not rank or not all(isinstance(n.size, int) for n in root.loops):
        return 1
    if any(_reads_alone(infos[m], match.target) for m in match.members):
        return 1
    *outer, rows = root.store.buffer.typical_shape[:rank]
    elems = math.prod(root.store.buffer.typical_shape[rank:])
    pieces = math.prod(outer) * (rows // together)
    short = match.target.vector_lanes(root.lane_dtype) <= elems <= MOST_SHORT_ROW
    return together if short and pieces >= PIECES_FOR_THREADS else 1


def _reads_alone(info: StageInfo, target: Target) -> bool:
    """Whether a stage reads elements of a row that lie apart, as in a transpose, or reduces a
    combination of several rows. If its row is computed alone, elements that one stage has combined
    stay in registers for the others.
    """
    last = info.loops[-1].index
    lanes, simplifier = target.vector_lanes(info.lane_dtype), Simplifier()
    steps = [lane_stride(x, last, lanes, simplifier) for x in buffer_loads(info.store.value)]
    wide = sum(step != 0 for step in steps)
    return any(step not in (0, 1) for step in steps) or (info.is_reduction and wide > 1)


def _columns(
    infos: dict[str, StageInfo], members: list[str], shared: int, target: Target
) -> set[str]:
    """Returns the reductions whose results, all in one vector or a few, stay in registers: other
    members read them, and each is over nothing else.
    """
    found: set[str] = set()
    for member in members:
        inner = infos[member].store.buffer.shape[shared:]
        readers = set(infos[member].readers)
        read = readers <= set(members) and all(_reads_column(infos, r, member) for r in readers)
        if inner and read and product(inner) == inner[-1] and sums_columns(infos[member], target):
            found.add(member)
    return found


def _reads_column(infos: dict[str, StageInfo], reader: str, member: str) -> bool:
    """Whether a stage is elementwise along its last axis and reads a member's results there, so
    that it can take them lane by lane.
    """
    info, source = infos[reader], infos[member].store.buffer
    own = info.store.indices[-1] if info.store.indices else None
    return (
        not info.is_reduction
        and info.store.buffer.shape[-1:] == source.shape[-1:]
        and all(
            load.indices[-1] is own
            for load in buffer_loads(info.store.value)
            if load.source is source
        )
    )


def _row_rank(infos: dict[str, StageInfo], members: list[str], root: StageInfo) -> int:
    """Returns the number of leading axes that all stages share, such that each stage reads only its
    own row of the others.
    """
    names = set(members)
    rank = len(root.axes) if root.is_reduction else max(len(root.axes) - 1, 0)
    for member in members:
        rank = min(rank, len(infos[member].axes))
    stages = [infos[m] for m in members] + [root]
    buffers = {id(infos[m].store.buffer) for m in names}
    for info in stages:
        for position in range(rank):
            same_extent = info.store.buffer.shape[position] == root.store.buffer.shape[position]
            if not same_extent or not _reads_own(info, position, buffers):
                rank = min(rank, position)
    return rank


def _steps_of_group(
    infos: dict[str, StageInfo], members: list[str], root: StageInfo, rank: int
) -> int:
    """Returns how many steps of the root's first unshared axis read one row of the other stages,
    such as the channels of a group; 0 if it is no such axis.
    """
    shape = root.store.buffer.shape
    extent = shape[rank] if rank < len(shape) else None
    if root.is_reduction or not isinstance(extent, int):
        return 0
    own, others = root.store.indices[rank], [infos[m] for m in members]
    buffers = {id(info.store.buffer) for info in others}
    divisors = {
        _divisor(load.indices[rank], own) if rank < len(load.indices) else 0
        for load in buffer_loads(root.store.value)
        if id(load.source) in buffers
    }
    by = divisors.pop() if len(divisors) == 1 else 0
    if by < 2 or extent % by:
        return 0
    for info in others:
        sizes = info.store.buffer.shape
        if rank >= len(sizes) or sizes[rank] != extent // by or not _reads_own(info, rank, buffers):
            return 0
    return by


def _divisor(index: Scalar, of: Scalar) -> int:
    """Returns the number by which an index divides another, rounding down; 0 if it is not such."""
    match index:
        case Binary(op="floordiv", a=a, b=Imm(value=int() as by)) if a is of:
            return by
    return 0


def _reads_own(info: StageInfo, position: int, buffers: set[int]) -> bool:
    own = info.store.indices[position]
    return info.store.buffer.shape[position] == 1 or all(
        load.indices[position] is own
        for load in buffer_loads(info.store.value)
        if id(load.source) in buffers
    )
