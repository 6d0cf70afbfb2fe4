"""Products of operands split into parts (`split_parts`, bf16x3) on a matrix unit. Like `tiles`, but
the data are already laid out in tiles, and each step computes the products of all parts.

A step of two by two tiles of sums computes 24 products from 12 loaded tiles. The second-level cache
can deliver tiles at that rate without stalling the matrix unit.
"""

from __future__ import annotations

from clew.cost.policy.tiles import TILES_HIGH
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules.demands import PARTS_IN_TILES
from clew.schedules.library.panels import (
    PartsMatch,
    arrange_panels,
    band_size,
    has_static_rows,
    match_parts,
    multiply_tiles,
    write_vectors,
)
from clew.schedules.library.register_tile import spread
from clew.schedules.library.streaming import stream
from clew.schedules.rule import Rule, Work
from clew.schedules.space import Settings, Space, flag


class Parts(Rule[PartsMatch]):
    """Products of parts in tiles of a matrix unit."""

    name = "parts"
    demands = PARTS_IN_TILES

    def match(self, work: Work, target: Target) -> PartsMatch | None:
        found = match_parts(work, target)
        return found if found is not None and has_static_rows(found) else None

    def choices(self, match: PartsMatch) -> Space:
        prefetch = flag("prefetch", True, "prefetch the next panel while one is in use")
        return Space((band_size(match), prefetch))

    def schedule(self, match: PartsMatch, settings: Settings) -> Schedule:
        schedule, infos = match.begin()
        info = infos[match.anchor]
        panels = arrange_panels(schedule, match, infos[match.root], settings["band"])
        blocks, line = schedule.split(panels.row, match.tile[0])
        pairs, pair = schedule.split(blocks, TILES_HIGH)
        schedule.reorder(pairs, pair, line, panels.inside)
        schedule.compute_at(match.anchor, pairs, "scratch")
        write_vectors(schedule, panels.inside, match.target)
        steps = multiply_tiles(schedule, info, match.tile)
        if settings["prefetch"]:
            stream(schedule, info, panels.outer[-1], [pairs, steps], match.target)
        spread(schedule, panels.outer, "" if panels.banded else pairs)
        return schedule
