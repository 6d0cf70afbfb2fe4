"""Convolutions of operands split into parts (`conv_parts`) whose image has a free size.

The pixels of all lines, and the zeros between the lines, are the rows of one matrix. A tile of rows
may extend across the end of a line, so all tiles are full at all sizes of the image. Two tiles are
computed at a time, and the last one alone if their number is odd (for some convolutions, the
operator pads rows to pairs of tiles instead). Each band of tiles is split into parts right before
its products, and the parts stay in the second-level cache.
"""

from __future__ import annotations

from clew.cost.policy.caches import SHARE_OF_SPLIT_BAND
from clew.cost.policy.threads import MOST_TILES_OF_BAND, ROWS_PER_ROW_AROUND, TILES_OF_BAND
from clew.cost.policy.tiles import TILES_HIGH, TILES_WIDE
from clew.ir.dims import SymDim, exact_quotient, product, typical
from clew.ir.types import memory_bytes
from clew.loop.affine import Simplifier
from clew.loop.ir import buffer_loads, number
from clew.loop.products import product_of
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.machine.units import TILE_ROWS
from clew.schedules.library.register_tile import spread
from clew.schedules.rule import Demand, Work
from clew.schedules.rules.conv_parts import SUMS, ConvParts, InParts, multiply, split_vectors
from clew.schedules.space import Settings, Space, tile_size
from clew.schedules.stages import StageInfo


def _has_free_rows(work: Work, target: Target) -> bool:
    return isinstance(work.by_role[SUMS].store.buffer.shape[2], SymDim)


class ConvPartsRows(ConvParts):
    """The stages of a convolution in parts whose number of pixels is known only at run time."""

    name = "conv_parts_rows"
    demands = (*ConvParts.demands, Demand("free rows", _has_free_rows))

    def match(self, work: Work, target: Target) -> InParts | None:
        found = super().match(work, target)
        return found if found is not None and found.stages.split is not None else None

    def choices(self, match: InParts) -> Space:
        tiles = _tiles_in_cache(match.stages.sums, match.target)
        return Space((tile_size("band", tiles, 2 * tiles, "tiles of rows in a band", TILES_HIGH),))

    def schedule(self, match: InParts, settings: Settings) -> Schedule:
        schedule, infos = match.begin()
        stages, target = match.stages, match.target
        sums = infos[stages.sums.name]
        n, co, oh, ow, ci = infos[match.root].axes
        gap = _gap(stages.image)
        if gap:
            schedule.widen(ow, gap)
        rows, in_pairs = _rows_of_tile(sums)
        tile, line = schedule.split(schedule.fuse(oh, ow), rows, tail="guard")
        band, tile = schedule.split(tile, settings["band"] * TILE_ROWS // rows, tail="once")
        schedule.reorder(n, band, co, tile, line, ci)
        panel, half = schedule.split(co, TILES_WIDE)
        schedule.reorder(panel, tile, line, half, ci)
        block = schedule.split(tile, TILES_HIGH, tail="shrink")[0] if in_pairs else tile
        schedule.compute_at(sums.name, block, "scratch")
        vector, lane = schedule.split(ci, target.vector_lanes("f32"), tail="guard")
        schedule.unroll(half)
        schedule.unroll(vector)
        schedule.vectorize(lane)
        schedule.share_guards(block)
        multiply(schedule, sums)
        assert stages.split is not None
        assert stages.pixels is not None
        schedule.compute_at(stages.split.name, band, "scratch")
        _, channels, *phases, pixel, _, _ = stages.split.axes
        schedule.reorder(pixel, channels, *phases)
        split_vectors(schedule, stages.split, stages.pixels, target)
        spread(schedule, [n, band])
        return schedule


def _gap(image: StageInfo) -> int:
    """Returns the number of rows of sums between two lines of the image."""
    (load,) = buffer_loads(image.store.value)
    line = image.store.indices[2]
    if image.store.buffer.shape[2] == 1:
        return 0
    step = Simplifier().linear(load.indices[2]).coefficient(line)
    return number(step - image.store.buffer.shape[3], "the gap between lines")


def _rows_of_tile(sums: StageInfo) -> tuple[int, bool]:
    """Returns the rows of a tile, and whether two tiles are computed at a time."""
    in_pairs = exact_quotient(sums.store.buffer.shape[2], TILES_HIGH * TILE_ROWS) is None
    return (TILE_ROWS if in_pairs else TILES_HIGH * TILE_ROWS), in_pairs


def _tiles_in_cache(sums: StageInfo, target: Target) -> int:
    """Returns the number of tiles of rows whose parts fit a share of the second-level cache."""
    multiplied = product_of(sums.store)
    assert multiplied is not None
    data = multiplied.a.source
    _, *blocks, pixels, parts, channels = data.shape
    pixel_bytes = typical(product((*blocks, parts, channels))) * memory_bytes(data.dtype)
    around = typical(pixels - sums.store.buffer.shape[2])
    rows = int(target.l2_bytes * SHARE_OF_SPLIT_BAND) // pixel_bytes - around
    most = MOST_TILES_OF_BAND + around * ROWS_PER_ROW_AROUND // TILE_ROWS
    found: int = min(max(rows // TILE_ROWS, TILES_OF_BAND), most)
    return found
