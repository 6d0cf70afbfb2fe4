"""Memory-bound products of one or a few rows with a large matrix that is not packed.

The matrix is read once, in row order, for all rows of the other operand. Threads share parts of the
depth, each of which is summed in memory; the partial sums are then added up (split-K).
"""

from __future__ import annotations

import math
from typing import Final

from clew.cost.policy.precision import MOST_PRODUCTS
from clew.cost.policy.threads import PIECES_FOR_THREADS
from clew.cost.policy.tiles import (
    DEPTH_OF_STREAM,
    ROWS_OF_STREAM,
    STEPS_OF_STREAM,
    VECTORS_OF_ROW,
    VECTORS_OF_STREAM,
)
from clew.loop.affine import Simplifier, contains
from clew.loop.ir import buffer_loads
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules.demands import PRODUCTS, REDUCES, TAILED
from clew.schedules.library.register_tile import spread
from clew.schedules.rule import Demand, Rule, TailMatch, Work
from clew.schedules.space import Choice, Settings, Space, tile_size
from clew.schedules.stages import StageInfo, lane_stride, stride
from clew.support.dataclass import dataclass
from clew.te.expr import Load


def _few_rows(work: Work, target: Target) -> bool:
    info = work.reduction
    known = all(isinstance(n.size, int) for n in info.loops)
    return known and math.prod(info.store.buffer.typical_shape[:-1]) <= ROWS_OF_STREAM


def _large(work: Work, target: Target) -> bool:
    return bool(_matrix(work.reduction).source.typical_bytes > target.l2_bytes)


def _matrix(info: StageInfo) -> Load:
    return max(buffer_loads(info.store.value), key=lambda x: x.source.typical_bytes)


FEW_ROWS: Final = Demand("a known number of rows, a few at most", _few_rows)
LARGE_MATRIX: Final = Demand("an operand larger than the second-level cache", _large)


@dataclass(frozen=True)
class Stream(TailMatch):
    """A product with a matrix in which the columns of the results are contiguous."""

    lanes: int


class Streamed(Rule[Stream]):
    """Products of one or a few rows with a deep matrix that exceeds the second-level cache."""

    name = "streamed"
    demands = (REDUCES, TAILED, PRODUCTS, FEW_ROWS, LARGE_MATRIX)

    def match(self, work: Work, target: Target) -> Stream | None:
        info = work.reduction
        lanes = target.vector_lanes(info.store.buffer.dtype)
        if len(info.reduction_axes) != 1 or not info.axes:
            return None
        if info.store.buffer.typical_shape[-1] < lanes * VECTORS_OF_ROW:
            return None
        if not _reads_columns(info, lanes) or not _in_row_order(info):
            return None
        return Stream(work.start, target, info.name, work.root.name, lanes)

    def choices(self, match: Stream) -> Space:
        depth = next(n.extent for n in match.info.loops if n.name in match.info.reduction_axes)
        panels = -(-match.info.store.buffer.typical_shape[-1] // (match.lanes * VECTORS_OF_STREAM))
        part = min(MOST_PRODUCTS, -(-depth // -(-PIECES_FOR_THREADS // panels)))
        part = -(-part // STEPS_OF_STREAM) * STEPS_OF_STREAM
        about = "vectors of columns read one after the other"
        return Space(
            (
                Choice("vectors", VECTORS_OF_STREAM, (64, 128, 256, VECTORS_OF_STREAM), about),
                Choice("unroll", STEPS_OF_STREAM, (1, 2, 4, 8), "unrolled reduction steps"),
                tile_size("depth", min(part, depth), depth, "rows of the matrix in a part", 8),
            )
        )

    def schedule(self, match: Stream, settings: Settings) -> Schedule:
        """Sums of a part are loaded and stored once per few steps of the depth."""
        schedule, infos = match.begin()
        info, lanes = infos[match.anchor], match.lanes
        *lines, place = infos[match.root].axes_in(match.result(schedule))
        (step,), (*rows, column) = info.reduction_axes, info.axes
        schedule.reorder(step, column, *rows)
        parts, step = schedule.split(step, settings["depth"])
        schedule.reorder(parts, column, step, *rows)
        panel, column = schedule.split(column, lanes * settings["vectors"])
        schedule.reorder(panel, step, *rows, column)
        total = schedule.sum_parts(info.name, parts)
        steps, each = schedule.split(step, settings["unroll"])
        schedule.reorder(steps, column, each, *rows)
        vector, lane = schedule.split(column, lanes)
        schedule.reorder(vector, each, *rows, lane)
        for name in (each, *rows):
            schedule.unroll(name)
        schedule.vectorize(lane)
        spread(schedule, [parts, panel])
        schedule.reorder(place, *lines)
        run, place = schedule.split(place, lanes * VECTORS_OF_ROW)
        schedule.reorder(run, *lines, place)
        schedule.compute_at(total, [run, *lines][-1], "register")
        *axes, place_of_sum = (f"{total}.i{n}" for n in range(len(info.axes)))
        schedule.reorder(f"{total}.part", *axes, place_of_sum)
        for at in (place, place_of_sum):
            vectors, lane = schedule.split(at, lanes, tail="guard")
            schedule.unroll(vectors)
            schedule.vectorize(lane)
        for name in axes:
            schedule.unroll(name)
        schedule.parallel(run)
        return schedule


def _reads_columns(info: StageInfo, lanes: int) -> bool:
    """Whether one operand is the same for all columns, and the other is contiguous along them."""
    last = next(n for n in info.loops if n.name == info.axes[-1])
    loads = buffer_loads(info.store.value)
    steps = [lane_stride(x, last.index, lanes, Simplifier()) for x in loads]
    return sorted(steps, key=str) == [0, 1]


def _in_row_order(info: StageInfo) -> bool:
    """Whether the matrix is deep, not packed, and shared by all rows of the other operand."""
    by_name = {n.name: n.index for n in info.loops}
    depth = by_name[info.reduction_axes[0]]
    if not isinstance(depth.extent, int) or depth.extent < DEPTH_OF_STREAM:
        return False
    *rows, column = (by_name[name] for name in info.axes)
    matrix = _matrix(info)
    shared = not any(contains(place, row) for place in matrix.indices for row in rows)
    line = stride(matrix, depth, Simplifier())
    columns = info.store.buffer.typical_shape[-1]
    plain = stride(matrix, column, Simplifier()) == 1 and isinstance(line, int) and line >= columns
    return shared and plain
