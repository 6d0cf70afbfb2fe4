"""Convolutions of signals in plain layout [n, c, 1, w]: lanes are neighbors along the signal, and a
register tile is channels by vectors of them.

Tiles of channels are outermost: their weights stay in cache while the signal streams by, or a band
of it that stays in cache as well, and results are written along the signal.
"""

from __future__ import annotations

from clew.cost.policy.caches import SHARE_OF_SIGNAL
from clew.cost.policy.tiles import (
    ACCUMULATORS_OF_SIGNAL,
    MOST_ROWS,
    UNROLLED_STEPS,
    VECTORS_OF_SIGNAL,
)
from clew.loop.affine import Simplifier, contains
from clew.loop.ir import buffer_loads
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules.demands import IMAGE, PRODUCTS, REDUCES, TAILED
from clew.schedules.library.images import Image, image_of, reads_own_channels
from clew.schedules.library.register_tile import register_tile, split_tiles, spread
from clew.schedules.library.tile_sizes import (
    balanced,
    rows_of_tile,
)
from clew.schedules.rule import Demand, Rule, TailMatch, Work
from clew.schedules.space import Choice, Settings, Space, tile_size
from clew.schedules.stages import lane_stride, rows_together
from clew.support.dataclass import dataclass
from clew.te.expr import Load


def _is_signal(work: Work, target: Target) -> bool:
    image = image_of(work.reduction)
    assert image is not None
    return not image.lane and image.shape[2] == 1


@dataclass(frozen=True)
class Signal(TailMatch):
    """A convolution of a signal; `lanes` neighbors are a vector. `together` is the number of
    channels that read the same channels of the signal; 0 if all do.
    """

    image: Image
    lanes: int
    together: int

    @property
    def channels(self) -> int:
        """The number of channels that share vectors of the signal."""
        return self.together or self.image.blocks


class Lines(Rule[Signal]):
    """Convolutions of signals whose neighbors are contiguous."""

    name = "lines"
    demands = (REDUCES, TAILED, PRODUCTS, IMAGE, Demand("a plain signal", _is_signal))

    def match(self, work: Work, target: Target) -> Signal | None:
        info = work.reduction
        image = image_of(info)
        assert image is not None
        lanes = min(target.vector_lanes(info.store.buffer.dtype), image.width)
        pixel = next(n.index for n in info.loops if n.name == image.pixel)
        simplifier = Simplifier()
        steps = [lane_stride(x, pixel, lanes, simplifier) for x in buffer_loads(info.store.value)]
        together = rows_together(info, image.block)
        own = together < 2 and reads_own_channels(info)
        if lanes < 2 or own or sorted(steps, key=str) != [0, 1]:
            return None
        return Signal(work.start, target, info.name, work.root.name, image, lanes, together)

    def choices(self, match: Signal) -> Space:
        widest = min(VECTORS_OF_SIGNAL, -(-match.image.width // match.lanes))
        vectors = min(range(1, widest + 1), key=lambda n: _loads(_most_rows(match, n), n))
        rows = balanced(match.channels, _most_rows(match, vectors))
        band = _band(match, vectors * match.lanes)
        return Space(
            (
                Choice("vectors", vectors, (1, 2, 3, 4), "vectors of neighbors in a register tile"),
                tile_size(
                    "rows", rows, min(match.channels, MOST_ROWS), "channels in a register tile"
                ),
                tile_size("band", band, match.image.width, "neighbors computed for all channels"),
                Choice(
                    "unroll", 0, UNROLLED_STEPS, "unrolled reduction steps; 0: by the tile's size"
                ),
            )
        )

    def schedule(self, match: Signal, settings: Settings) -> Schedule:
        schedule, infos = match.begin()
        info, lanes = infos[match.anchor], match.lanes
        out = match.result(schedule)
        n, channel, line, pixel = infos[match.root].axes_in(out)
        # Outermost first: an odd band, tile or panel is a nest beside the others.
        outer = []
        if settings["band"] < match.image.width:
            schedule.reorder(pixel, channel, n, line)
            tail = "peel" if schedule.is_static(pixel) else "once"
            band, pixel = schedule.split(pixel, settings["band"], tail=tail)
            outer.append(band)
        schedule.reorder(channel, n, line, pixel)
        if match.together:
            group, channel = schedule.split(channel, match.together)
            outer.append(group)
        tile, row = split_tiles(schedule, channel, settings["rows"])
        schedule.reorder(tile, n, line, pixel, row)
        panel, column = schedule.split(pixel, lanes * settings["vectors"])
        vector, lane = schedule.split(column, lanes, tail="guard")
        schedule.reorder(panel, row, vector, lane)
        schedule.compute_at(match.anchor, panel, "register")
        register_tile(schedule, info, lanes, unroll=settings["unroll"])
        schedule.unroll(row)
        schedule.unroll(vector)
        schedule.vectorize(lane)
        spread(schedule, [*outer, tile, n, line, panel])
        return schedule


def _most_rows(match: Signal, vectors: int) -> int:
    """Returns the largest number of channels of a register tile that is `vectors` wide."""
    most = min(ACCUMULATORS_OF_SIGNAL // vectors, rows_of_tile(match.target, vectors))
    return min(match.channels, most)


def _loads(rows: int, vectors: int) -> float:
    """Returns the loads of a tile per multiplication. The fewest are those of 5 rows of 4 vectors
    with 32 registers, and of 4 rows of 3 vectors with 16.
    """
    return (rows + vectors) / (rows * vectors)


def _band(match: Signal, panel: int) -> int:
    """Returns the number of neighbors whose part of the signal stays in the second-level cache
    while all channels read it: whole panels of neighbors, or all neighbors.
    """
    width = match.image.width
    load = next(x for x in buffer_loads(match.info.store.value) if _has_pixels(match, x))
    signal_bytes = load.source.typical_bytes // load.source.typical_shape[0]
    most = int(match.target.l2_bytes * SHARE_OF_SIGNAL * width / max(signal_bytes, 1))
    if most >= width or match.channels <= ACCUMULATORS_OF_SIGNAL:
        return width
    panels = balanced(-(-width // panel), max(most // panel, 1))
    return panels * panel


def _has_pixels(match: Signal, load: Load) -> bool:
    """Whether a load moves along the signal."""
    pixel = next(n.index for n in match.info.loops if n.name == match.image.pixel)
    return any(contains(i, pixel) for i in load.indices)
