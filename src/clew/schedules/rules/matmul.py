"""Matrix products in register tiles of rows by vectors. Sums stay in registers for the whole
reduction.

Panels of columns are outermost, so that a panel of the second operand stays in cache while the rows
of the first stream by.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from clew.loop.affine import Simplifier
from clew.loop.ir import buffer_loads
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules.demands import PRODUCTS, REDUCES, TAILED
from clew.schedules.library.register_tile import (
    register_tile,
    rows_in_cache,
    split_bands,
    split_tiles,
    spread,
)
from clew.schedules.library.streaming import stream
from clew.schedules.library.tile_sizes import (
    MOST_ROWS,
    UNROLLED,
    balanced,
    rows_of_tile,
    vectors_of_tile,
)
from clew.schedules.rule import Rule, TailMatch, Work
from clew.schedules.space import Choice, Settings, Space, flag, tile_size
from clew.schedules.stages import (
    flatten_axes,
    lane_stride,
    rows_together,
    stage_infos,
    sums_rows,
)

# The current panel and the next one take the rest of the second-level cache.
_SHARE_OF_ROWS: Final = 0.4
_VECTORS: Final = (1, 2, 3, 4)
_MOST_VECTORS: Final = max(_VECTORS)


@dataclass(frozen=True)
class Product(TailMatch):
    """A product whose columns are contiguous in one operand. `together` is the number of rows that
    share the second operand; 0 if all do. `panel` is the number of columns in a panel of the second
    operand; all columns if it is not packed in panels.
    """

    lanes: int
    columns: int
    together: int
    panel: int

    @property
    def height(self) -> int:
        """The number of rows that share the second operand; 0 for a vector."""
        shape = self.info.store.buffer.typical_shape
        return self.together or (shape[-2] if len(shape) > 1 else 0)


class Matmul(Rule[Product]):
    """Products of matrices whose columns are contiguous."""

    name = "matmul"
    demands = (REDUCES, TAILED, PRODUCTS)

    def match(self, work: Work, target: Target) -> Product | None:
        anchor, root = work.reduction.name, work.root.name
        if not work.reduction.axes:
            return None
        schedule = work.start.copy()
        flatten_axes(schedule, anchor, root)
        info = stage_infos(schedule)[anchor]
        last = next(n for n in info.loops if n.name == info.axes[-1])
        simplifier = Simplifier()
        lanes = min(target.vector_lanes(info.store.buffer.dtype), last.typical)
        steps = [
            lane_stride(x, last.index, lanes, simplifier) for x in buffer_loads(info.store.value)
        ]
        if None in steps or not any(steps) or sums_rows(info):
            return None
        together = rows_together(info, info.axes[-2]) if len(info.axes) > 1 else 0
        panel = min(
            (
                x.source.typical_shape[-1]
                for x, step in zip(buffer_loads(info.store.value), steps, strict=True)
                if step == 1
            ),
            default=last.typical,
        )
        return Product(schedule, target, anchor, root, lanes, last.typical, together, panel)

    def choices(self, match: Product) -> Space:
        target, height = match.target, match.height
        vectors = vectors_of_tile(match.columns, match.lanes)
        if match.panel < match.columns:
            vectors = min(max(1, match.panel // match.lanes), _MOST_VECTORS)
        choices = [
            Choice("vectors", vectors, _VECTORS, "vectors of columns in a register tile"),
            Choice("unroll", 0, UNROLLED, "unrolled reduction steps; 0: by the tile's size"),
            flag("prefetch", True, "prefetch the next panel while one is in use"),
        ]
        if height and not match.together:
            band = rows_in_cache(match.info, target, _SHARE_OF_ROWS)
            choices.append(tile_size("band", band, height, "rows that each panel serves", 8))
            height = balanced(height, band)
        if height:
            rows = balanced(height, rows_of_tile(target, vectors))
            choices.append(
                tile_size("rows", rows, min(height, MOST_ROWS), "rows in a register tile")
            )
        return Space(tuple(choices))

    def schedule(self, match: Product, settings: Settings) -> Schedule:
        schedule, infos = match.begin()
        info, lanes = infos[match.anchor], match.lanes
        out = match.result(schedule)
        *batch, columns = infos[match.root].axes_in(out)
        row = batch.pop() if batch else ""
        if match.together:
            outer, row = schedule.split(row, match.together)
            batch.append(outer)
        elif row:
            # Rows that ran twice would not let a result take the memory of what is added to it.
            axes = [*batch, row, columns]
            batch, row = split_bands(schedule, axes, settings["band"], "once")
        # Columns go outermost before they are split, so that a peeled last panel is a nest beside
        # the main one.
        rows = [row] if row else []
        schedule.reorder(columns, *batch, *rows)
        panel, column = schedule.split(columns, lanes * settings["vectors"])
        vector, lane = schedule.split(column, lanes, tail="guard")
        schedule.reorder(*batch, panel, *rows, vector, lane)
        attach = panel
        if row:
            attach, inner = split_tiles(schedule, row, settings["rows"])
            schedule.unroll(inner)
        schedule.compute_at(match.anchor, attach, "register")
        reduction = register_tile(schedule, info, lanes, unroll=settings["unroll"])
        schedule.unroll(vector)
        schedule.vectorize(lane)
        if settings["prefetch"]:
            levels = [attach, *reduction] if row else reduction
            stream(schedule, info, panel, levels, match.target, tiles=attach if row else "")
        banded = schedule.extent(batch[0]) > 1 if batch else False
        spread(schedule, [*batch, panel], attach if row and not banded else "")
        return schedule
