"""Two matrix products with a softmax between (attention), melted at tiles of queries.

Lanes are queries: scores lie in scratch as [key, query], so that a key's element is one broadcast
for all of them, softmax goes down columns without any reduction across lanes, and only a tile's own
queries are transposed. Nothing is shared between tiles, which are therefore what threads take.
Values that do not lie side by side are put in order once, ahead of all tiles.

For each (batch, head, tile): queries, scores a register tile of keys by queries at a time, softmax,
and the weighted sum a register tile of queries by elements of the values at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

from clew.loop.affine import Simplifier
from clew.loop.ir import buffer_loads
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules import elementwise
from clew.schedules.matmul import register_tile, spread
from clew.schedules.shape import StageInfo, lane_stride, stage_infos
from clew.schedules.tiles import balanced, rows_of_tile, vectors_of_tile
from clew.te.expr import Imm, Index

NAME = "attention"


@dataclass(frozen=True)
class Parts:
    """Names of the stages by what they are; `bias` is kept only where it differs by query."""

    queries: str
    scores: str
    logits: str
    top: str
    power: str
    total: str
    inverse: str
    weighted: str
    root: str
    bias: str

    @property
    def kept(self) -> set[str]:
        """The stages that are not computed where they are read."""
        return {*vars(self).values()} - {""}


def find(schedule: Schedule, target: Target) -> Parts | None:
    """Returns the stages of an attention; None for any other kernel."""
    infos = stage_infos(schedule)
    anchors = [name for name, info in infos.items() if info.is_anchor]
    roots = [name for name, info in infos.items() if info.is_output]
    empty = any(loop.extent == 0 for info in infos.values() for loop in info.loops)
    if len(anchors) != 2 or len(roots) != 1 or empty:
        return None
    scores, weighted = anchors
    reads = {n: [m for m in infos if n in infos[m].readers] for n in infos}
    powers = [n for n in reads[weighted] if not infos[n].is_reduction and infos[n].is_costly]
    if len(powers) != 1:
        return None
    power = powers[0]
    tops = [n for n in reads[power] if infos[n].store.combiner == "max"]
    totals = [n for n in infos[power].readers if infos[n].store.combiner == "sum" and n != weighted]
    logits = [n for n in reads[power] if not infos[n].is_reduction]
    queries = [n for n in reads[scores] if len(infos[n].axes) == len(infos[scores].axes)]
    if not (len(tops) == len(totals) == len(logits) == 1 and queries):
        return None
    inverses = [n for n in infos[totals[0]].readers if not infos[n].is_output]
    # The first operand of the scores is what the stage multiplies first.
    first = [x.source.name for x in buffer_loads(infos[scores].store.value)]
    own = [n for n in queries if infos[n].store.buffer.name in first and _lanes_last(infos, n)]
    if len(own) != 1 or len(inverses) != 1 or reads[logits[0]].count(scores) != 1:
        return None
    bias = [n for n in reads[logits[0]] if n != scores]
    differing = [n for n in bias if infos[n].store.buffer.shape[-1] > 1]
    return Parts(own[0], scores, logits[0], tops[0], power, totals[0], inverses[0], weighted,
                 roots[0], differing[0] if differing else "")  # fmt: skip


def _lanes_last(infos: dict[str, StageInfo], name: str) -> bool:
    """Whether a stage's last axis is as long as that of the scores, which are its readers."""
    (reader,) = infos[name].readers
    last = infos[reader].store.indices[-1]
    loads = [x for x in buffer_loads(infos[reader].store.value)
             if x.source is infos[name].store.buffer]  # fmt: skip
    return all(x.indices[-1] is last for x in loads)


def schedule(schedule: Schedule, parts: Parts, target: Target) -> bool:
    """Schedules the kernel; False if the rule does not fit."""
    apart = _values_apart(schedule, parts, target)
    for name in reversed(list(stage_infos(schedule))):
        if name not in parts.kept and name != apart:
            schedule.inline(name)
    infos = stage_infos(schedule)
    axes = _result_axes(infos, parts)
    if axes is None:
        return False
    batch, head, row, depth = axes
    weighted = infos[parts.weighted]
    lanes = target.vector_lanes(weighted.store.buffer.dtype)
    _, _, rows, width = weighted.store.buffer.shape
    tile = _tile_of_queries(schedule, parts, axes, lanes * vectors_of_tile(rows, lanes))
    inside = f"{row}.i"
    # The weighted sum: queries by elements of the values, all keys in registers.
    vectors = vectors_of_tile(width, min(lanes, width))
    few = min(lanes, width)
    schedule.reorder(depth, inside)
    panel, column = schedule.split(depth, few * vectors)
    schedule.reorder(panel, inside, column)
    vector, lane = schedule.split(column, few, tail="guard")
    size = balanced(schedule.extent(inside), rows_of_tile(target, vectors))
    block, each = schedule.split(inside, size, tail="balance")
    schedule.compute_at(parts.weighted, block, "register")
    for name in (parts.inverse, parts.total, parts.power, parts.top, parts.logits):
        registers = name in (parts.total, parts.top)
        schedule.compute_at(name, tile, "register" if registers else "scratch")
    keys = _loop_of(schedule, infos[parts.logits], 2)
    most = rows_of_tile(target, vectors_of_tile(rows, lanes))
    step, key = schedule.split(keys, balanced(schedule.extent(keys), most), tail="balance")
    schedule.compute_at(parts.scores, step, "register")
    schedule.compute_at(parts.queries, tile, "scratch")
    register_tile(schedule, infos[parts.weighted], few)
    register_tile(schedule, infos[parts.scores], lanes)
    schedule.unroll(key)
    for name in (parts.queries, parts.logits, parts.power, parts.inverse):
        _down_columns(schedule, infos[name], lanes)
    for name in (parts.top, parts.total):
        schedule.reorder(*infos[name].reduction_axes, *infos[name].axes)
        _down_columns(schedule, infos[name], lanes)
    for name in (each, vector):
        schedule.unroll(name)
    schedule.vectorize(lane)
    for name in filter(None, (parts.bias, apart)):
        elementwise.schedule(schedule, stage_infos(schedule), name, target)
    spread(schedule, [batch, head, tile])
    return True


def _values_apart(schedule: Schedule, parts: Parts, target: Target) -> str:
    """Returns the stage of the values where their elements lie apart in memory, as those of images
    with channels first do; "" where vectors of them can be loaded.
    """
    simplifier = Simplifier()
    infos = stage_infos(schedule)
    weighted = infos[parts.weighted].store
    read = {x.source.name for x in buffer_loads(weighted.value)}
    for name, info in infos.items():
        if info.store.buffer.name not in read or name in parts.kept:
            continue
        last = next(n for n in info.loops if n.name == info.axes[-1])
        lanes = min(target.vector_lanes(info.store.buffer.dtype), last.extent)
        loads = list(buffer_loads(info.store.value))
        if any(lane_stride(x, last.index, lanes, simplifier) not in (0, 1) for x in loads):
            return name
    return ""


def _result_axes(infos: dict[str, StageInfo], parts: Parts) -> tuple[str, ...] | None:
    """Returns the result's loops over batch, head, query and element, in this order."""
    root = infos[parts.root]
    sums = infos[parts.weighted].store.buffer
    loads = [x for x in buffer_loads(root.store.value) if x.source is sums]
    names = {id(n.index): n.name for n in root.loops}
    if len(loads) != 1 or len(root.loops) != len(loads[0].indices):
        return None
    indices = loads[0].indices
    used = {id(i) for i in indices}
    # Of a loop of one step only its number is left.
    single = [n.name for n in root.loops if n.extent == 1 and id(n.index) not in used]
    numbers = [i for i in indices if not isinstance(i, Index)]
    if len(numbers) != len(single) or not all(isinstance(i, Imm) for i in numbers):
        return None
    if any(isinstance(i, Index) and id(i) not in names for i in indices):
        return None
    return tuple(names[id(i)] if isinstance(i, Index) else single.pop(0) for i in indices)


def _tile_of_queries(schedule: Schedule, parts: Parts, axes: tuple[str, ...], size: int) -> str:
    """Splits the result's rows outside all else; returns the loop over tiles."""
    batch, head, row, depth = axes
    schedule.reorder(row, batch, head, depth)
    tile, inner = schedule.split(row, size)
    # A head's keys and values stay in cache from tile to tile.
    schedule.reorder(batch, head, tile, inner, depth)
    return tile


def _loop_of(schedule: Schedule, info: StageInfo, axis: int) -> str:
    index = info.store.indices[axis]
    return next(n.name for n in info.loops if n.index is index)


def _down_columns(schedule: Schedule, info: StageInfo, lanes: int) -> None:
    """Makes a stage's last axis lanes, its vectors one after another."""
    column = info.axes[-1]
    vector, lane = schedule.split(column, min(lanes, schedule.extent(column)), tail="guard")
    schedule.unroll(vector)
    schedule.vectorize(lane)
