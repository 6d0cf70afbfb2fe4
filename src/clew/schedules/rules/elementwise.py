"""Elementwise, broadcast and injective kernels: one pass over the output, vectors along its last
axis.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import partial
from typing import Final, Literal

from clew.cost.locality import stays_near
from clew.cost.policy.elementwise import (
    LEAST_PART_VECTORS,
    LEAST_TILE,
    MOST_SELECTED,
    NEAR_BYTES,
    RUNS_TOGETHER,
    TILES_TO_TRY,
    USUAL_TILE,
    VECTORS_MOVED,
)
from clew.ir.dims import typical
from clew.ir.types import memory_bytes
from clew.loop.affine import Simplifier, contains, is_clamp
from clew.loop.ir import buffer_loads, reads
from clew.loop.primitives.loops import MOST_LANES
from clew.loop.primitives.prefetch import CACHE_LINE_BYTES
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.machine.units import PAGE_BYTES
from clew.schedules.library import interleave
from clew.schedules.library.images import blocked_image
from clew.schedules.library.lane_patterns import regular_lanes, unrolled_vectors
from clew.schedules.library.register_tile import spread
from clew.schedules.library.streaming import write_past_caches
from clew.schedules.library.tile_sizes import lanes_of_chains, vector_factor
from clew.schedules.rule import Match, Rule, Work
from clew.schedules.space import Choice, Settings, Space
from clew.schedules.stages import (
    StageInfo,
    conditions_use,
    divides_by_sizes,
    lane_stride,
    offset_stride,
    stage_infos,
    walks_as_one,
)
from clew.support.dataclass import dataclass
from clew.support.errors import ScheduleError
from clew.te.expr import Index, Load, Select
from clew.te.walk import nodes

_LINES_APART: Final = 4  # axes of a blocked image once batch and blocks are one


@dataclass(frozen=True)
class Elements(Match):
    """A stage whose axes are fused as far as all accesses allow.

    `lines`, if any, is an axis that stays a separate loop inside the loop over the axes before it.
    `way` is the way to vectorize it: not at all (`scalar`), in lanes along the last axis (`lanes`),
    in tiles with an axis that an operand is contiguous along (`tiles`), in vectors along two axes
    (`interleave`), or several runs of an operand together (`runs`), which continues along `across`.
    If `blocks` is set, that axis becomes a loop inside `lines`: an operand continues along it.
    """

    root: str
    axes: tuple[str, ...]
    way: Literal["scalar", "lanes", "tiles", "interleave", "runs"]
    lines: str = ""
    across: str = ""
    apart_bytes: int = 0
    tile: int = USUAL_TILE
    selectors: tuple[str, ...] = ()
    lanes: int = 1
    blocks: str = ""

    @property
    def info(self) -> StageInfo:
        """The stage after its axes were fused."""
        return stage_infos(self.start)[self.root]


class Elementwise(Rule[Elements]):
    """Stages without a reduction."""

    name = "elementwise"

    def match(self, work: Work, target: Target) -> Elements | None:
        schedule, root = work.start.copy(), work.root.name
        info = work.root
        if not info.axes:
            return Elements(schedule, target, root, (), "scalar")
        axes = list(info.axes)
        image = blocked_image(info)
        vector = target.vector_lanes(info.store.buffer.dtype)
        blocked = image is not None and 1 < image.lanes <= vector
        least = _LINES_APART if blocked else 1  # the image's lines stay separate
        while len(axes) > least and walks_as_one(stage_infos(schedule)[root], axes[-2], axes[-1]):
            axes[-2:] = [schedule.fuse(axes[-2], axes[-1])]
        info = stage_infos(schedule)[root]
        if interleave.applies(info, axes, target):
            return Elements(schedule, target, root, tuple(axes), "interleave")
        if not blocked:
            _join_short(schedule, root, axes, vector)
            info = stage_infos(schedule)[root]
        across = _axis_across(info, axes, target)
        if across is not None:
            return Elements(
                schedule, target, root, tuple(axes), "tiles", across=across[0],
                apart_bytes=across[1], tile=across[2],
            )  # fmt: skip
        beside = _axis_beside(info, axes)
        if beside:
            return Elements(schedule, target, root, tuple(axes), "runs", across=beside)
        selectors = tuple(a for a in axes[1:-1] if _selects(info, a))
        kept = tuple(a for a in axes if a not in selectors)
        extent = schedule.extent(kept[-1])
        lanes = vector_factor(target, info.store.buffer.dtype, extent)
        lanes = regular_lanes(info, kept[-1], lanes)
        blocks = ""
        if blocked and not selectors:
            lines = axes[2]
            blocks = axes[1] if _shares_lines(info, axes, target) else ""
        else:
            lines = _line_axis(schedule, root, kept, selectors)
        return Elements(
            schedule, target, root, kept, "lanes", lines, selectors=selectors, lanes=lanes,
            blocks=blocks,
        )  # fmt: skip

    def choices(self, match: Elements) -> Space:
        if match.way == "tiles":
            about = "elements of a tile along the operand"
            return Space((Choice("tile", match.tile, TILES_TO_TRY, about),))
        if match.way != "lanes":
            return Space()
        extent, lanes = match.start.extent(match.axes[-1]), match.lanes
        vectors = 1
        if match.info.is_chain_of_floats:
            vectors = lanes_of_chains(match.target, extent, lanes) // lanes
        most = MOST_LANES // lanes
        options = tuple(v for v in (1, 2, 4) if v == 1 or (v <= most and not extent % (lanes * v)))
        options = tuple(sorted({*options, vectors}))
        return Space((Choice("vectors", vectors, options, "vectors computed together"),))

    def schedule(self, match: Elements, settings: Settings) -> Schedule:
        schedule, _ = match.begin()
        axes = list(match.axes)
        if match.way != "tiles" or _writes_lines(match):
            write_past_caches(schedule, match.info, match.target)
        if match.way == "interleave":
            interleave.schedule(schedule, match.info, axes, match.target)
        elif match.way == "tiles":
            _in_tiles(schedule, match, axes, settings["tile"])
        elif match.way == "runs":
            _in_runs(schedule, match, axes)
        elif match.way == "lanes":
            _in_lanes(schedule, match, axes, match.lanes * settings["vectors"])
        return schedule


def _in_lanes(schedule: Schedule, match: Elements, axes: list[str], lanes: int) -> None:
    """Vectorizes the last axis. The others become one loop. If `lines` is set, it stays a loop, and
    the axes before it and those after it become one loop each.
    """
    selectors, info = list(match.selectors), match.info
    if selectors:
        schedule.reorder(*axes, *selectors)
        schedule.partition(axes[0])  # whole parts need no checks
    apart = axes.index(match.lines) if match.lines else len(axes) - 1
    if match.blocks:
        axes[1], axes[2] = axes[2], axes[1]
        schedule.reorder(*axes)
    while len(axes) > apart + 3:
        axes[-3:-1] = [schedule.fuse(axes[-3], axes[-2])]
    for _ in range(apart - 1):
        axes[:2] = [schedule.fuse(axes[0], axes[1])]
    if lanes > 1:
        joins = 0 if selectors else _joins_along(info, axes[-1], lanes)
        for _ in range(joins):  # a part for each operand
            schedule.partition(axes[-1])
        pattern = 0 if selectors else unrolled_vectors(info, axes[-1], lanes)
        outer, inner = schedule.split(axes[-1], lanes)
        vectors = ""
        if pattern > 1:
            outer, vectors = schedule.split(outer, pattern)
        if selectors:
            schedule.reorder(outer, *selectors, inner)
        elif len(axes) > 1 and not joins:
            last = info.loops[-1].index
            clamps = _clamps_use(info, last)  # clamped lanes are not evenly spaced
            if clamps or conditions_use(info, (last,)):
                # Vectors on one side of a border need no checks. A short axis has no outer loop.
                schedule.attempt(partial(schedule.partition, outer, clamps=clamps))
        if vectors:
            schedule.unroll(vectors)
        schedule.vectorize(inner)
        axes[-1] = outer
    for name in selectors:
        schedule.unroll(name)
    if match.lines:
        spread(schedule, [axes[0]], axes[1])
    elif schedule.extent(axes[0]) > 1:
        schedule.parallel(axes[0])


def _shares_lines(info: StageInfo, axes: Sequence[str], target: Target) -> bool:
    """Whether a cache line of an operand holds several blocks of channels, as in an image with the
    channels last, and the operand does not stay in the cache from one block to the next.
    """
    simplifier = Simplifier()
    by_name = {n.name: n for n in info.loops}
    blocks, *inner = (by_name[axis] for axis in axes[1:])
    loads = list(buffer_loads(info.store.value))
    if blocks.typical == 1 or not loads:
        return False
    size = blocks.typical * math.prod(loop.typical for loop in inner)
    for load in loads:
        block = memory_bytes(load.dtype) * inner[-1].typical
        beside = offset_stride(load.source, load.indices, blocks.index, simplifier)
        if beside == inner[-1].size and block < CACHE_LINE_BYTES:
            return not stays_near(size * memory_bytes(load.dtype), target)
    return False


def _joins_along(info: StageInfo, axis: str, lanes: int) -> int:
    """Returns the number of borders between operands along an axis that a concatenation joins; 0 if
    parts of the axis would fill too little of their vectors.
    """
    loop = next(n for n in info.loops if n.name == axis)
    if not isinstance(loop.size, int):
        return 0
    borders = {
        id(node.cond)
        for node in nodes(info.store.value)
        if isinstance(node, Select)
        and contains(node.cond, loop.index)
        and all(any(isinstance(n, Load) for n in nodes(way)) for way in (node.a, node.b))
    }
    fills = loop.size >= LEAST_PART_VECTORS * lanes * (len(borders) + 1)
    return len(borders) if fills else 0


def _axis_beside(info: StageInfo, axes: list[str]) -> str:
    """Returns the axis along which an operand continues after the last one, where the result
    continues along another axis, on another page of the operand, as in a matrix that is packed in
    panels; "" if there is none.
    """
    loads = list(buffer_loads(info.store.value))
    if not axes[:-2] or len(loads) != 1 or any(not isinstance(n.size, int) for n in info.loops):
        return ""
    by_name, simplifier = {n.name: n for n in info.loops}, Simplifier()
    (load,), last = loads, by_name[axes[-1]]
    steps = {
        axis: offset_stride(load.source, load.indices, by_name[axis].index, simplifier)
        for axis in axes
    }
    row, size = steps[axes[-2]], memory_bytes(load.dtype)
    if steps[axes[-1]] != 1 or not isinstance(row, int) or row * size < PAGE_BYTES:
        return ""
    across = next((a for a in axes[:-2] if steps[a] == last.size), "")
    checked = (n.index for n in info.loops if n.name not in (across, axes[-1]))
    return "" if conditions_use(info, tuple(checked)) else across


def _in_runs(schedule: Schedule, match: Elements, axes: list[str]) -> None:
    """Moves several runs of a row of the operand together, and vectorizes the last axis."""
    *outer, row, last = axes
    outer.remove(match.across)
    last_index = next(n.index for n in match.info.loops if n.name == last)
    if conditions_use(match.info, (last_index,)):
        schedule.reorder(match.across, *outer, row, last)
        schedule.partition(match.across)  # the last run may be padded
    # A peeled tail would be a second nest of loops, which cannot be reordered together.
    tail = "guard" if schedule.extent(match.across) % RUNS_TOGETHER else "peel"
    group, some = schedule.split(match.across, RUNS_TOGETHER, tail=tail)
    schedule.reorder(group, *outer, row, some, last)
    lanes = vector_factor(match.target, match.info.store.buffer.dtype, schedule.extent(last))
    vector, lane = schedule.split(last, lanes, tail="guard")
    schedule.unroll(some)
    schedule.unroll(vector)
    schedule.vectorize(lane)
    spread(schedule, [group, *outer], row)


def _join_short(schedule: Schedule, root: str, axes: list[str], lanes: int) -> None:
    """Fuses a last axis that fills at most half of a vector with the axis before it, if the result
    is contiguous along both and the places of all lanes remain known. Axes that select between
    values, such as real and imaginary parts, stay separate.
    """
    while len(axes) > 1 and all(schedule.is_static(axis) for axis in axes[-2:]):
        if 2 * schedule.extent(axes[-1]) > lanes or schedule.extent(axes[-2]) == 1:
            return
        before = stage_infos(schedule)[root]
        last = next(n.index for n in before.loops if n.name == axes[-1])
        if conditions_use(before, (last,)):
            return
        trial = schedule.copy()
        fused = trial.fuse(axes[-2], axes[-1])
        info = stage_infos(trial)[root]
        index = next(n.index for n in info.loops if n.name == fused)
        buffer, indices = info.store.buffer, info.store.indices
        if offset_stride(buffer, indices, index, Simplifier()) != 1:
            return
        if not unrolled_vectors(info, fused, min(lanes, trial.extent(fused))):
            return
        axes[-2:] = [schedule.fuse(axes[-2], axes[-1])]


def _axis_across(info: StageInfo, axes: list[str], target: Target) -> tuple[str, int, int] | None:
    """Returns the axis that is contiguous in an operand whose lanes are not, as in a transpose, the
    distance between its lanes in bytes (0 if irregular), and the elements of a tile. Returns None
    if there is no such axis.
    """
    simplifier = Simplifier()
    indices = {n.name: n.index for n in info.loops}
    extents = {n.name: n.typical for n in info.loops}
    *outer, last = axes
    lanes = vector_factor(target, info.store.buffer.dtype, extents[last])
    for load in buffer_loads(info.store.value):
        step = lane_stride(load, indices[last], lanes, simplifier)
        if step in (0, 1):
            continue
        for axis in outer:
            tile = _neighbors(load, indices[axis], simplifier)
            if extents[axis] > 1 and tile:
                size = memory_bytes(load.dtype)
                return axis, abs(typical(step or 0)) * size, tile
    return None


def _neighbors(load: Load, index: Index, simplifier: Simplifier) -> int:
    """Returns the elements of a tile along a loop that are neighbors in memory, as many as in a
    block of channels; 0 if there are none.
    """
    tile = USUAL_TILE
    while tile >= LEAST_TILE:
        if lane_stride(load, index, tile, simplifier) == 1:
            return tile
        tile //= 2
    return 0


def _writes_lines(match: Elements) -> bool:
    """Whether each vector of a tile is a whole cache line of the result. Nontemporal stores of
    parts, with stores to many other lines between them, took 1.5 to 4 times as long as usual stores
    (Zen 3, 32-byte vectors).
    """
    dtype, last = match.info.store.buffer.dtype, match.start.extent(match.axes[-1])
    vector_bytes = match.target.vector_lanes(dtype) * memory_bytes(dtype)
    return vector_bytes >= CACHE_LINE_BYTES and last * memory_bytes(dtype) % CACHE_LINE_BYTES == 0


def _in_tiles(schedule: Schedule, match: Elements, axes: list[str], tile: int) -> None:
    """Arranges the loops in tiles, so that all elements of an operand's cache line are used while
    it is in cache. If the rows of the operand are far apart, tiles follow one another along them,
    several rows at once; if they are near each other, along the rows of the result.
    """
    *outer, last = axes
    across = match.across
    outer.remove(across)
    dtype = match.info.store.buffer.dtype
    lanes = vector_factor(match.target, dtype, schedule.extent(last))
    if outer and _fills_vectors(schedule, match, outer[-1], last):
        _in_tiles_along_two(
            schedule, [*outer, across, last], tile, match.target.vector_lanes(dtype)
        )
        return
    if match.apart_bytes <= NEAR_BYTES:
        schedule.reorder(*outer, across, last)
        padded = _partitioned(schedule, match, outer)
        column, column_inner = _split_tile(schedule, across, tile)
        schedule.reorder(column, last, column_inner)
        vector, lane = _split_tile(schedule, last, lanes)
        schedule.reorder(vector, column_inner, lane)
        schedule.unroll(column_inner)
        schedule.vectorize(lane)
        _spread_apart(schedule, [*outer, column, vector], padded)
        return
    schedule.reorder(last, *outer, across)
    block, inner = _split_tile(schedule, last, lanes * VECTORS_MOVED)
    schedule.reorder(block, *outer, across, inner)
    padded = _partitioned(schedule, match, [*outer, across])
    column, column_inner = _split_tile(schedule, across, tile)
    schedule.reorder(column, inner, column_inner)
    vector, lane = schedule.split(inner, lanes)
    schedule.reorder(vector, column_inner, lane)
    schedule.unroll(column_inner)
    schedule.vectorize(lane)
    _spread_apart(schedule, [block, *outer, column], padded)


def _partitioned(schedule: Schedule, match: Elements, axes: Sequence[str]) -> list[str]:
    """Partitions axes where padding begins and ends, and returns them: tiles without padding need
    no checks and are turned in registers.
    """
    indices = {n.name: n.index for n in match.info.loops}
    padded = [axis for axis in axes if conditions_use(match.info, (indices[axis],))]
    for axis in padded:
        schedule.partition(axis)
    return padded


def _fills_vectors(schedule: Schedule, match: Elements, before: str, last: str) -> bool:
    """Whether the last axis is a part of a vector, and the axis before it, of a free size, fills
    the vector: both are one run of the result.
    """
    info, simplifier = match.info, Simplifier()
    by_name = {n.name: n for n in info.loops}
    lanes, size = match.target.vector_lanes(info.store.buffer.dtype), by_name[last].size
    if not isinstance(size, int) or 2 * size > lanes:
        return False
    if before != match.axes[-2]:
        return False
    over, under = (
        offset_stride(info.store.buffer, info.store.indices, by_name[axis].index, simplifier)
        for axis in (before, last)
    )
    return under == 1 and over == size


def _in_tiles_along_two(schedule: Schedule, axes: list[str], tile: int, lanes: int) -> None:
    """Arranges the loops in tiles whose vectors lie along the last two axes of the result, which
    come before and after the axis that the operand is contiguous along.
    """
    *outer, before, across, last = axes
    schedule.reorder(*outer, before, across, last)
    group, some = _split_tile(schedule, before, lanes // schedule.extent(last))
    schedule.reorder(group, across, some, last)
    column, column_inner = _split_tile(schedule, across, tile)
    schedule.vectorize(schedule.fuse(some, last))
    schedule.unroll(column_inner)
    _spread_apart(schedule, [*outer, group, column])


def _split_tile(schedule: Schedule, loop: str, factor: int) -> tuple[str, str]:
    """Splits a loop of a tile. At a free size, the last tile is moved back: masks of lanes and of
    columns that only a run knows would rule out transposes in registers.
    """
    return schedule.split(loop, factor, "peel" if schedule.is_static(loop) else "shift")


def _spread_apart(schedule: Schedule, outer: list[str], parts: Sequence[str] = ()) -> None:
    """Fuses the outermost loops, as far as they are perfectly nested, except where the variable of
    the fused loop would be divided by a free size. Threads share the first two of the loops that
    remain. `parts` are loops that were partitioned.
    """
    name, lines = outer[0], ""
    for following in outer[1:]:
        is_number = schedule.is_static(following)
        try:
            fused = schedule.fuse(lines or name, following)
        except ScheduleError:
            lines = lines or (following if following in parts else "")
            break
        if is_number or not divides_by_sizes(schedule, fused):
            name, lines = (name, fused) if lines else (fused, "")
        elif lines:
            schedule.undo()
            break
        else:
            schedule.undo()
            lines = following
    spread(schedule, [name], lines)


def _selects(info: StageInfo, axis: str) -> bool:
    """Whether a short axis only selects between values that share their operands. Unrolled, such an
    axis reads shared operands once.
    """
    loop = next(n for n in info.loops if n.name == axis)
    inputs = [load for _, load in reads(info.store)]
    used = any(contains(i, loop.index) for load in inputs for i in load.indices)
    return loop.typical <= MOST_SELECTED and not used and conditions_use(info, (loop.index,))


def _line_axis(
    schedule: Schedule, root: str, axes: tuple[str, ...], selectors: tuple[str, ...]
) -> str:
    """Returns the innermost axis, except the last, that has a free size and whose fusion with the
    axis before it would add divisions by a free size; "" if there is none.

    Division by a constant becomes a multiplication. Other divisions take longer than the load and
    store of a vector, so they are left to the loop around the axis.
    """
    for before, axis in reversed([*itertools.pairwise(axes[:-1])]):
        if not schedule.is_static(axis):
            trial = schedule.copy()
            if selectors:
                trial.reorder(*axes, *selectors)
            fused = trial.fuse(before, axis)
            if divides_by_sizes(trial, fused):
                return axis
    return ""


def _clamps_use(info: StageInfo, index: Index) -> bool:
    """Whether an operand is read at a `min` or `max` of positions along a loop."""
    return any(
        is_clamp(node) and contains(node, index)
        for _, load in reads(info.store)
        for position in load.indices
        for node in nodes(position)
    )
