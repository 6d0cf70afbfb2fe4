"""Products of parts (bf16x3) on a matrix unit, of rows whose number is known only at run time.

Rows are divided into bands. The kernel splits the data of a band into parts right before it
multiplies them, and the parts stay in the second-level cache while panels of weights stream by.
Rows of the last tile that lie beyond the end repeat the last row and are not stored.
"""

from __future__ import annotations

from typing import Final

from clew.cost.policy.tiles import TILES_HIGH, TILES_WIDE
from clew.loop.products import product_of
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules.demands import PARTS_IN_TILES
from clew.schedules.library.panels import (
    PartsMatch,
    band_size,
    match_parts,
    multiply_tiles,
    splitting,
    write_vectors,
)
from clew.schedules.library.streaming import stream
from clew.schedules.rule import Demand, Rule, Work
from clew.schedules.space import Settings, Space, flag
from clew.schedules.stages import StageInfo
from clew.support.dataclass import dataclass

_DATA_PARTS: Final = "data_parts"


def _operand(work: Work) -> StageInfo | None:
    """Returns the stage that splits the data, if only the products read it."""
    product = product_of(work.reduction.store)
    return None if product is None else splitting(work, product.a.source, _DATA_PARTS)


@dataclass(frozen=True)
class RowsMatch(PartsMatch):
    """Products of parts, and the stage `split` that splits their data."""

    split: str


class PartsRows(Rule[RowsMatch]):
    """Products of parts in tiles of a matrix unit, with data that the same kernel splits."""

    name = "parts_rows"
    takes = (_DATA_PARTS,)
    demands = (
        *PARTS_IN_TILES,
        Demand("unsplit data", lambda work, target: _operand(work) is not None),
    )

    def match(self, work: Work, target: Target) -> RowsMatch | None:
        found, split = match_parts(work, target), _operand(work)
        assert split is not None
        return None if found is None else RowsMatch(**vars(found), split=split.name)

    def choices(self, match: RowsMatch) -> Space:
        prefetch = flag("prefetch", True, "prefetch the next panel while one is in use")
        return Space((band_size(match), prefetch))

    def schedule(self, match: RowsMatch, settings: Settings) -> Schedule:
        schedule, infos = match.begin()
        info, (height, width, _) = infos[match.anchor], match.tile
        *batch, row, across = infos[match.root].axes_in(match.result(schedule))
        blocks, line = schedule.split(row, height, tail="guard")
        band, blocks = schedule.split(blocks, settings["band"] // height, tail="once")
        schedule.reorder(across, band, *batch, blocks, line)  # the last panel is a separate nest
        panel, inside = schedule.split(across, TILES_WIDE * width)
        schedule.reorder(band, *batch, panel, blocks, line, inside)
        pairs, pair = schedule.split(blocks, TILES_HIGH, tail="shrink")
        schedule.reorder(pairs, pair, line, inside)
        schedule.compute_at(match.anchor, pairs, "scratch", beyond=True)
        write_vectors(schedule, inside, match.target)
        schedule.share_guards(line)
        steps = multiply_tiles(schedule, info, match.tile)
        if settings["prefetch"]:
            stream(schedule, info, panel, [pairs, steps], match.target)
        _split(schedule, infos[match.split], band, match.target)
        schedule.parallel(band)
        # Loops over a batch may come between the two.
        schedule.attempt(lambda: schedule.parallel(panel, repeat=True))
        return schedule


def _split(schedule: Schedule, info: StageInfo, at: str, target: Target) -> None:
    """Splits the data of a band, all parts of a vector at once."""
    schedule.compute_at(info.name, at, "scratch", beyond=True)
    row_block, block, part, row, k = info.axes
    vector, lane = schedule.split(k, target.vector_lanes(info.store.buffer.dtype))
    schedule.reorder(row_block, block, row, vector, part, lane)
    schedule.unroll(vector)
    schedule.unroll(part)
    schedule.vectorize(lane)
