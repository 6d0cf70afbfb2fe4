"""Products of numbers in parts on a matrix unit whose weights lie whole in memory: the part of a
panel that tiles need next is taken apart between the products of this one.

Weights are read once, at four bytes each, and their parts never leave the first-level cache. The
sums of a panel wait in memory from one part of its depth to the next.
"""

from __future__ import annotations

import math

from clew.loop.ir import loops
from clew.loop.primitives.prefetch import CACHE_LINE_BYTES, iterations
from clew.loop.products import product_of
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules.matmul import spread
from clew.schedules.parts import DATA_RANK, HIGH, WIDE, panels_of
from clew.schedules.shape import StageInfo, stage_infos

NAME = "split_weights"
# Steps of the depth whose parts lie side by side, twice, in the first-level cache.
_STEPS = (2, 3, 1)
# With more rows taking apart is little beside the products, and shares of it would be too small.
_MOST_PAIRS = 16
# A hardware prefetcher follows what it has seen begin: of a share's lines, one in so many is asked
# for, two pages ahead. Asking for all would take the buffers that tiles are loaded through.
_LINES_A_REQUEST = 4
_DISTANCE_BYTES = 8192
_PAIR_BYTES = 8


def operand(infos: dict[str, StageInfo], anchor: str, target: Target) -> str:
    """Returns the stage that takes the weight of a sum of products in tiles apart; "" where there
    is none.
    """
    info = infos[anchor]
    product = product_of(info.store)
    if product is None or len(info.axes) < 2 or len(info.reduction_axes) != 2:
        return ""
    shape = target.tile_shape(product.a.dtype, product.b.dtype)
    data, weight = product.a.source, product.b.source
    if shape is None or len(data.shape) != DATA_RANK or data.shape[-2:] != (shape[0], shape[2]):
        return ""
    if len(weight.shape) != DATA_RANK or weight.shape[-2:] != (WIDE * shape[1], product.group):
        return ""
    made = [n for n, i in infos.items() if i.store.buffer is weight]
    return made[0] if made and infos[made[0]].readers == [anchor] else ""


def applies(infos: dict[str, StageInfo], anchor: str, target: Target) -> bool:
    """Whether a stage sums products in tiles of weights that another stage takes apart."""
    return bool(operand(infos, anchor, target))


def schedule(
    schedule: Schedule, infos: dict[str, StageInfo], root: str, anchor: str, target: Target
) -> bool:
    """Schedules an anchor, the stage that takes its weight apart, and its tail `root` (itself, if
    there is none); False if the rule does not fit.
    """
    pieces = operand(infos, anchor, target)
    panels = panels_of(schedule, infos, root, anchor, target) if pieces else None
    if panels is None:
        return False
    infos = stage_infos(schedule)
    height, width, deep = panels.tile
    schedule.compute_at(anchor, panels.outer[-1], "scratch")
    panels.write_vectors(schedule, target)
    pairs, chunks, steps = _multiply(schedule, panels.info, anchor, (height, deep))
    _take_apart(schedule, infos[pieces], chunks, target)
    if schedule.extent(pairs) <= _MOST_PAIRS and schedule.extent(chunks) > 1:
        lines = _lines_of_share(schedule, infos[pieces].axes[1], chunks, steps, width)
        lines = max(1, lines // _LINES_A_REQUEST)
        schedule.overlap(pieces, chunks, steps, lines=lines, distance=_DISTANCE_BYTES)
    spread(schedule, panels.outer)
    return True


def _multiply(
    schedule: Schedule, info: StageInfo, anchor: str, tile: tuple[int, int]
) -> tuple[str, str, str]:
    """Chunks of the depth, all rows for each, two by two tiles at a time. Returns the loops over
    pairs of tiles, over chunks, and over steps in a chunk.
    """
    height, deep = tile
    terms, depth = info.reduction_axes
    *others, m, n = info.axes
    chunk = next(s for s in _STEPS if schedule.extent(depth) // deep % s == 0)
    schedule.reorder(depth, *others, m, n, terms)
    chunks, within = schedule.split(depth, chunk * deep)
    schedule.reorder(chunks, *others, m, n, within, terms)
    blocks, line = schedule.split(m, height)
    pairs, pair = schedule.split(blocks, HIGH)
    steps, inner = schedule.split(within, deep)
    schedule.reorder(pairs, steps, terms, pair, line, n, inner)
    schedule.unroll(terms)
    schedule.tensorize(anchor, line, n, inner, within=pairs)
    return pairs, chunks, steps


def _lines_of_share(schedule: Schedule, pair: str, chunks: str, steps: str, width: int) -> int:
    """Returns how many cache lines of weights each step takes apart."""
    body = next(n for n in loops(schedule.nest.body) if n.name == chunks).body
    share = math.ceil(schedule.extent(pair) / iterations(body, steps))
    return share * WIDE * width * _PAIR_BYTES // CACHE_LINE_BYTES


def _take_apart(schedule: Schedule, info: StageInfo, chunks: str, target: Target) -> None:
    """All parts of a vector of weights together, as each is what those before have left."""
    schedule.compute_at(info.name, chunks, "scratch")
    panel, pair, part, column, group = info.axes
    element = schedule.fuse(column, group)
    schedule.reorder(pair, panel, element, part)
    vector, lane = schedule.split(element, target.vector_lanes(info.store.buffer.dtype))
    schedule.reorder(vector, part, lane)
    for name in (vector, part):
        schedule.unroll(name)
    schedule.vectorize(lane)
