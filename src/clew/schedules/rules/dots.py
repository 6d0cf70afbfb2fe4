"""Products whose operands are both contiguous along the depth, of few rows: dot products of rows.

Vectors lie along the depth. A register tile of rows by columns holds a vector of partial sums for
each product, so that every vector loaded is multiplied several times, and no operand is packed. The
lanes are added up once per result.
"""

from __future__ import annotations

from typing import Final

from clew.cost.policy.tiles import DOT_COLUMNS, DOT_REGISTERS, MOST_DOT_ROWS, USUAL_DOT_ROWS
from clew.loop.affine import contains
from clew.loop.ir import buffer_loads
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules.demands import PRODUCTS, REDUCES, TAILED
from clew.schedules.library.register_tile import split_tiles, spread
from clew.schedules.library.tile_sizes import balanced
from clew.schedules.rule import Demand, Rule, TailMatch, Work
from clew.schedules.space import Settings, Space, flag, tile_size
from clew.schedules.stages import axes_of_rows, flatten_axes, multiplies_rows, stage_infos
from clew.support.dataclass import dataclass

ALONG_DEPTH: Final = Demand(
    "operands contiguous along the depth",
    lambda work, target: multiplies_rows(work.reduction, target),
)


@dataclass(frozen=True)
class DotProducts(TailMatch):
    """Products of `rows` rows with those of the buffer `matrix`."""

    rows: int
    matrix: str


class Dots(Rule[DotProducts]):
    """Products of a few rows with the rows of another matrix."""

    name = "dots"
    demands = (REDUCES, TAILED, PRODUCTS, ALONG_DEPTH)

    def match(self, work: Work, target: Target) -> DotProducts | None:
        schedule, anchor, root = work.start.copy(), work.reduction.name, work.root.name
        flatten_axes(schedule, anchor, root)
        info = stage_infos(schedule)[anchor]
        if len(info.axes) - len(axes_of_rows(info)) != len(info.axes[:-2]) + 1:
            return None  # one axis of rows, and perhaps a batch of matrices
        column = next(n.index for n in info.loops if n.name == info.axes[-1])
        matrix = next(
            x.source.name
            for x in buffer_loads(info.store.value)
            if any(contains(i, column) for i in x.indices)
        )
        rows = info.store.buffer.typical_shape[-2]
        return DotProducts(schedule, target, anchor, root, rows, matrix)

    def choices(self, match: DotProducts) -> Space:
        most = min((match.target.vector_registers - DOT_REGISTERS) // DOT_COLUMNS, MOST_DOT_ROWS)
        rows = balanced(match.rows, min(most, USUAL_DOT_ROWS))
        return Space(
            (
                tile_size("rows", rows, min(match.rows, most), "rows in a register tile"),
                flag("prefetch", match.rows > 1, "prefetch the next panel while one is in use"),
            )
        )

    def schedule(self, match: DotProducts, settings: Settings) -> Schedule:
        schedule, infos = match.begin()
        info = infos[match.anchor]
        lanes = match.target.vector_lanes(info.store.buffer.dtype)
        *batch, row, column = infos[match.root].axes_in(match.result(schedule))
        # A panel of columns serves all rows while it is in a cache.
        schedule.reorder(*batch, column, row)
        panel, lane = schedule.split(column, min(lanes, schedule.extent(column)))
        schedule.reorder(panel, row, lane)
        tile, row = split_tiles(schedule, row, settings["rows"])
        schedule.compute_at(match.anchor, tile, "scratch")
        schedule.vectorize(lane)
        *matrices, m, n = info.axes
        (depth,) = info.reduction_axes
        schedule.reorder(n, depth, m)  # columns outermost: the last tile of a panel may be shorter
        block, across = split_tiles(schedule, n, DOT_COLUMNS)
        # The last vector of a depth that is no multiple adds to the same sums.
        whole = schedule.is_multiple(depth, lanes)
        steps, inner = schedule.split(depth, lanes, tail="peel" if whole else "guard")
        schedule.reorder(block, steps, m, across, inner)
        schedule.rfactor(match.anchor, inner)
        for loop in (*matrices, m, across):
            schedule.unroll(loop)
        schedule.vectorize(inner)
        schedule.vectorize(f"{match.anchor}.rf0")
        if not whole:
            schedule.partition(steps)
        if settings["prefetch"]:
            schedule.attempt(lambda: schedule.prefetch(match.matrix, panel, steps))  # if several
        spread(schedule, [*batch, panel])
        return schedule
