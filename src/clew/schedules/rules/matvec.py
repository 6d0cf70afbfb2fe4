"""Memory-bound products of one row, or of a few, with a matrix.

Several vectors of columns are computed together. This keeps as many memory streams and sums in
flight, and hides the latency of additions. A large matrix that is not packed is read in row order,
once for all rows of the other operand.
"""

from __future__ import annotations

import math
from typing import Final

from clew.cost.policy.precision import MOST_PRODUCTS
from clew.cost.policy.threads import PIECES_FOR_THREADS
from clew.cost.policy.tiles import (
    DEPTH_OF_STREAM,
    FULL_VECTORS_OF_ROW,
    ROWS_OF_STREAM,
    STEPS_OF_ROW,
    STEPS_OF_STREAM,
    VECTORS_OF_ROW,
    VECTORS_OF_STREAM,
)
from clew.loop.affine import Simplifier, contains
from clew.loop.ir import buffer_loads
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules.demands import ONE_ROW, PRODUCTS, REDUCES, TAILED
from clew.schedules.library.register_tile import spread
from clew.schedules.rule import Demand, Rule, TailMatch, Work
from clew.schedules.space import Choice, Settings, Space, tile_size
from clew.schedules.stages import StageInfo, lane_stride, stride
from clew.support.dataclass import dataclass

ROWS_OF_A_STREAM: Final = Demand(
    f"{ONE_ROW.name}; or a few rows with a matrix that does not fit a cache",
    lambda work, target: ONE_ROW.holds(work, target) or _stream_rows(work.reduction, target) > 1,
)


@dataclass(frozen=True)
class Row(TailMatch):
    """A row of results whose columns are contiguous in the matrix. `streams`: the matrix is large
    and read in row order, for one row of the other operand or a few.
    """

    lanes: int
    vectors: int
    streams: bool


class Matvec(Rule[Row]):
    """Products of one row with a matrix of more columns than a register tile has, and of a few rows
    with a large one.
    """

    name = "matvec"
    demands = (REDUCES, TAILED, PRODUCTS, ROWS_OF_A_STREAM)

    def match(self, work: Work, target: Target) -> Row | None:
        info = work.reduction
        lanes = target.vector_lanes(info.store.buffer.dtype)
        if (
            len(info.reduction_axes) != 1
            or info.store.buffer.typical_shape[-1] < lanes * VECTORS_OF_ROW
        ):
            return None
        last = next(n for n in info.loops if n.name == info.axes[-1])
        loads = buffer_loads(info.store.value)
        steps = [lane_stride(x, last.index, lanes, Simplifier()) for x in loads]
        if sorted(steps, key=str) != [0, 1]:
            return None
        streams = _stream_rows(info, target) > 0
        vectors = VECTORS_OF_STREAM if streams else _vectors(info, lanes, target)
        return Row(work.start, target, info.name, work.root.name, lanes, vectors, streams)

    def choices(self, match: Row) -> Space:
        if match.streams:
            return _choices_of_stream(match)
        about = "vectors of columns computed together"
        return Space(
            (
                Choice("vectors", match.vectors, (1, 2, 4, 8, 16), about),
                Choice("unroll", STEPS_OF_ROW, (1, 2, 4, 8), "unrolled reduction steps"),
            )
        )

    def schedule(self, match: Row, settings: Settings) -> Schedule:
        if match.streams:
            return _sum_parts(match, settings)
        schedule, infos = match.begin()
        info, lanes = infos[match.anchor], match.lanes
        out = match.result(schedule)
        *rows, columns = infos[match.root].axes_in(out)
        ones = [row for row in rows if schedule.extent(row) == 1]
        batch = [row for row in rows if row not in ones]
        schedule.reorder(*batch, columns, *ones)
        panel, column = schedule.split(columns, lanes * settings["vectors"])
        vector, lane = schedule.split(column, lanes, tail="guard")
        schedule.reorder(panel, *ones, vector, lane)
        schedule.compute_at(match.anchor, panel, "register")
        (step,) = info.reduction_axes
        schedule.reorder(step, *info.axes)
        own_vector, own_lane = schedule.split(info.axes[-1], lanes, tail="guard")
        if 1 < settings["unroll"] < schedule.extent(step):
            _, each = schedule.split(step, settings["unroll"])
            schedule.unroll(each)
        for name in (*info.axes[:-1], own_vector, *ones, vector):
            schedule.unroll(name)
        for name in (own_lane, lane):
            schedule.vectorize(name)
        spread(schedule, [*batch, panel])
        return schedule


def _choices_of_stream(match: Row) -> Space:
    depth = next(n.extent for n in match.info.loops if n.name in match.info.reduction_axes)
    panels = -(-match.info.store.buffer.typical_shape[-1] // (match.lanes * match.vectors))
    part = min(MOST_PRODUCTS, -(-depth // -(-PIECES_FOR_THREADS // panels)))
    part = -(-part // STEPS_OF_STREAM) * STEPS_OF_STREAM
    about = "vectors of columns read one after another"
    return Space(
        (
            Choice("vectors", match.vectors, (64, 128, 256, VECTORS_OF_STREAM), about),
            Choice("unroll", STEPS_OF_STREAM, (1, 2, 4, 8), "unrolled reduction steps"),
            tile_size("depth", min(part, depth), depth, "rows of the matrix in a part", 8),
        )
    )


def _sum_parts(match: Row, settings: Settings) -> Schedule:
    """Reads the matrix in row order, sums parts of the depth in memory, and adds up the parts
    (split-K). Threads share the parts. The sums of a part are loaded and stored once for a few
    steps of the depth.
    """
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


def _vectors(info: StageInfo, lanes: int, target: Target) -> int:
    """Returns the number of vectors of columns computed together: more if the rows of the matrix
    are not packed in panels, because memory is read in longer runs.
    """
    depth = next(n.index for n in info.loops if n.name == info.reduction_axes[0])
    steps = [stride(x, depth, Simplifier()) for x in buffer_loads(info.store.value)]
    if all(isinstance(step, int) and step <= lanes * VECTORS_OF_ROW for step in steps):
        return VECTORS_OF_ROW
    *rows, columns = info.store.buffer.typical_shape
    whole = columns // lanes
    most = min(target.vector_registers // 2, whole, whole * math.prod(rows) // PIECES_FOR_THREADS)
    return next((n for n in FULL_VECTORS_OF_ROW if n <= most), VECTORS_OF_ROW)


def _stream_rows(info: StageInfo, target: Target) -> int:
    """Returns the number of rows that are multiplied by a matrix of known size that exceeds the
    second-level cache and is therefore read fastest in row order. Returns 0 if there are too many
    rows, or if the matrix is smaller, shallow or packed.
    """
    known = all(isinstance(n.size, int) for n in info.loops)
    if not known or len(info.reduction_axes) != 1 or not info.axes:
        return 0
    *over, columns = info.store.buffer.typical_shape
    by_name = {n.name: n.index for n in info.loops}
    depth = by_name[info.reduction_axes[0]]
    *rows, column = (by_name[name] for name in info.axes)
    matrix = max(buffer_loads(info.store.value), key=lambda x: x.source.typical_bytes)
    deep = isinstance(depth.extent, int) and depth.extent >= DEPTH_OF_STREAM
    if math.prod(over) > ROWS_OF_STREAM or not deep:
        return 0
    if matrix.source.typical_bytes <= target.l2_bytes:
        return 0
    shared = not any(contains(place, row) for place in matrix.indices for row in rows)
    line = stride(matrix, depth, Simplifier())
    plain = stride(matrix, column, Simplifier()) == 1 and isinstance(line, int) and line >= columns
    return math.prod(over) if shared and plain else 0
