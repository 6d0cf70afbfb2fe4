"""Products of operands in parts (bf16x3) on a matrix unit, with weights stored unsplit: the kernel
splits the next chunk of a panel's depth between the products of the current chunk.

Weights are read once, as `f32`, and their parts never leave the first-level cache. The sums of a
panel are stored in memory between chunks.
"""

from __future__ import annotations

import math
from typing import Final

from clew.cost.policy.tiles import (
    DISTANCE_BYTES,
    LINES_A_REQUEST,
    MOST_PAIRS_TO_OVERLAP,
    STEPS_OF_SPLIT_CHUNK,
    TILES_HIGH,
    TILES_WIDE,
)
from clew.ir.dims import typical
from clew.loop.ir import loops
from clew.loop.primitives.prefetch import CACHE_LINE_BYTES, iterations
from clew.loop.products import product_of
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules.demands import PARTS_IN_TILES
from clew.schedules.library.panels import (
    PartsMatch,
    arrange_panels,
    band_size,
    has_static_rows,
    match_parts,
    splitting,
    write_vectors,
)
from clew.schedules.library.register_tile import spread
from clew.schedules.rule import Demand, Rule, Work
from clew.schedules.space import Choice, Settings, Space, flag
from clew.schedules.stages import StageInfo
from clew.support.dataclass import dataclass

_WEIGHT_PARTS: Final = "weight_parts"
_PAIR_BYTES: Final = 8


def _operand(work: Work, target: Target) -> StageInfo | None:
    """Returns the stage that splits the weight, if only the products in tiles read it."""
    product = product_of(work.reduction.store)
    if product is None:
        return None
    shape = target.tile_shape(product.a.dtype, product.b.dtype)
    panel = product.b.source.shape[-2:]
    fits = shape is not None and panel == (TILES_WIDE * shape[1], product.group)
    return splitting(work, product.b.source, _WEIGHT_PARTS) if fits else None


@dataclass(frozen=True)
class WeightMatch(PartsMatch):
    """Products of parts, and the stage `pieces` that splits their weight."""

    pieces: str


class SplitWeights(Rule[WeightMatch]):
    """Products of parts in tiles, with weights that the same kernel splits."""

    name = "split_weights"
    takes = (_WEIGHT_PARTS,)
    demands = (
        *PARTS_IN_TILES,
        Demand("unsplit weights", lambda work, target: _operand(work, target) is not None),
    )

    def match(self, work: Work, target: Target) -> WeightMatch | None:
        found, pieces = match_parts(work, target), _operand(work, target)
        assert pieces is not None
        if found is None or not has_static_rows(found):
            return None
        return WeightMatch(**vars(found), pieces=pieces.name)

    def choices(self, match: WeightMatch) -> Space:
        (depth,) = (n.typical for n in match.info.loops if n.name == match.info.reduction_axes[-1])
        deep = depth // match.tile[2]
        steps = next(s for s in STEPS_OF_SPLIT_CHUNK if deep % s == 0)
        overlap = (
            -(-match.rows // match.tile[0]) // TILES_HIGH <= MOST_PAIRS_TO_OVERLAP and deep > steps
        )
        return Space(
            (
                band_size(match),
                Choice("steps", steps, tuple(s for s in (1, 2, 3, 4) if deep % s == 0),
                       "steps of the depth in a chunk"),
                flag("overlap", overlap, "split the next chunk between products"),
            )
        )  # fmt: skip

    def schedule(self, match: WeightMatch, settings: Settings) -> Schedule:
        schedule, infos = match.begin()
        info, pieces = infos[match.anchor], infos[match.pieces]
        height, width, deep = match.tile
        panels = arrange_panels(schedule, match, infos[match.root], settings["band"])
        schedule.compute_at(match.anchor, panels.outer[-1], "scratch")
        write_vectors(schedule, panels.inside, match.target)
        chunks, steps = _multiply(schedule, info, (height, deep), settings["steps"])
        _take_apart(schedule, pieces, chunks, match.target)
        if settings["overlap"] and schedule.extent(chunks) > 1:
            lines = _lines_of_share(schedule, pieces.axes[1], chunks, steps, width)
            lines = max(1, lines // LINES_A_REQUEST)
            schedule.overlap(pieces.name, chunks, steps, lines=lines, distance=DISTANCE_BYTES)
        spread(schedule, panels.outer)
        return schedule


def _multiply(
    schedule: Schedule, info: StageInfo, tile: tuple[int, int], chunk: int
) -> tuple[str, str]:
    """Computes chunk by chunk of the depth, all rows for each, in two by two tiles. Returns the
    loop over chunks and the loop over the steps of a chunk.
    """
    height, deep = tile
    terms, depth = info.reduction_axes
    *others, m, n = info.axes
    schedule.reorder(depth, *others, m, n, terms)
    chunks, within = schedule.split(depth, chunk * deep)
    schedule.reorder(chunks, *others, m, n, within, terms)
    blocks, line = schedule.split(m, height)
    pairs, pair = schedule.split(blocks, TILES_HIGH)
    steps, inner = schedule.split(within, deep)
    schedule.reorder(pairs, steps, terms, pair, line, n, inner)
    schedule.unroll(terms)
    schedule.tensorize(info.name, line, n, inner, within=pairs)
    return chunks, steps


def _lines_of_share(schedule: Schedule, pair: str, chunks: str, steps: str, width: int) -> int:
    """Returns the number of cache lines of weights that each step splits."""
    body = next(n for n in loops(schedule.nest.body) if n.name == chunks).body
    share = math.ceil(schedule.extent(pair) / typical(iterations(body, steps)))
    return share * TILES_WIDE * width * _PAIR_BYTES // CACHE_LINE_BYTES


def _take_apart(schedule: Schedule, info: StageInfo, chunks: str, target: Target) -> None:
    """Splits weights a vector at a time, all parts together: each part is the remainder of the
    previous ones.
    """
    schedule.compute_at(info.name, chunks, "scratch")
    panel, pair, part, column, group = info.axes
    element = schedule.fuse(column, group)
    schedule.reorder(pair, panel, element, part)
    vector, lane = schedule.split(element, target.vector_lanes(info.store.buffer.dtype))
    schedule.reorder(vector, part, lane)
    for name in (vector, part):
        schedule.unroll(name)
    schedule.vectorize(lane)
