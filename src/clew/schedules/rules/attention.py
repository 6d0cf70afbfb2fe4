"""Attention: two matrix products with a softmax between them, fused at tiles of queries.

Lanes are queries, if there are more than a few. Scores are stored in scratch as [key, query], so
that one broadcast of a key's element serves all lanes, softmax needs no reduction across lanes, and
only the queries of a tile are transposed. Tiles are independent, and threads share them. Values
whose elements are not contiguous are copied once, before all tiles. So are keys and values of many
rows that lie apart, as the rows of one head among others do: each would be on another page of
memory.

Of `bf16`, both products sum pairs of neighbors: queries and weights are stored in pairs, and the
values are packed in pairs once. On a matrix unit, values are rows along the keys instead, both
products are tiles of keys or elements by queries, and the weighted sum is transposed when it is
read.

A few queries would leave most lanes empty. Scores are then stored as [query, key]: products with a
key sum vectors along its elements, and lanes of the softmax are keys. Chunks of values stay in the
first-level cache while tiles of their elements are summed.

For each (batch, head, tile), the kernel computes the queries, the scores in register tiles of keys
by queries, the softmax, and the weighted sum in register tiles of queries by elements of the
values. Tiles of a few queries, as of a decoder, prefetch later keys and values.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from clew.cost.policy.caches import QUERIES_TO_COPY, SHARE_OF_HEAD
from clew.cost.policy.tiles import (
    DOT_COLUMNS,
    KEYS_AHEAD,
    MOST_ROWS,
    ROWS_READ_TURNED,
    TILES_HIGH,
    TILES_WIDE,
    VALUES_AHEAD,
    VALUES_OF_CHUNK,
)
from clew.ir.types import memory_bytes
from clew.loop.affine import Simplifier
from clew.loop.ir import buffer_loads
from clew.loop.products import offset_of, product_of, step_along
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules.demands import NOT_EMPTY, ONE_RESULT
from clew.schedules.library.products import dot_tile, multiply_in_tiles
from clew.schedules.library.register_tile import (
    register_tile,
    split_tiles,
    spread,
    tile_loops,
)
from clew.schedules.library.row_vectors import down_columns, reduce_in_vectors, vectorize_last
from clew.schedules.library.tile_sizes import (
    balanced,
    rows_of_tile,
    vectors_of_tile,
)
from clew.schedules.rule import Match, Rule, Work, stage_role
from clew.schedules.rules.elementwise import Elementwise
from clew.schedules.space import Choice, Settings, Space, flag, tile_size
from clew.schedules.stages import StageInfo, lane_stride, stage_infos
from clew.support.dataclass import dataclass
from clew.te import roles
from clew.te.expr import Imm, Index

_PAIR: Final = 2
_NAMES: Final = (
    "queries", "scores", "logits", "top", "power", "total", "inverse", "weighted",
)  # fmt: skip


@dataclass(frozen=True)
class _FarRows:
    """An input that a product reads by contiguous rows that lie apart: the loops over batch, head,
    row and element, and the bytes of the rows of a head.
    """

    product: str
    buffer: str
    axes: tuple[str, ...]
    head_bytes: int


@dataclass(frozen=True)
class Parts(Match):
    """Names of the stages by their roles. `bias` is set only if the bias differs by query, and
    `apart` only if the elements of the values are not contiguous. `far` are the products that read
    an input by rows that lie apart, with the names of the loops over these rows. `axes` are the
    loops of the result over batch, head, query and element. `keys` is set if narrow keys are
    widened in a stage.
    """

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
    apart: str
    far: tuple[_FarRows, ...]
    axes: tuple[str, ...]
    keys: str = ""

    @property
    def pairs(self) -> bool:
        """Whether both products sum pairs of narrow floats."""
        return product_of(stage_infos(self.start)[self.weighted].store) is not None

    @property
    def are_rows(self) -> bool:
        """Whether scores are rows of keys, of a few queries."""
        return stage_infos(self.start)[self.logits].axis_roles[-1] == roles.KEY

    @property
    def is_turned(self) -> bool:
        """Whether the weighted sum has an axis of queries after that of elements, for a matrix
        unit.
        """
        return stage_infos(self.start)[self.weighted].axis_roles[-1] == roles.QUERY

    @property
    def tile(self) -> tuple[int, int, int] | None:
        """The tile of a matrix unit that both products take, if the target has one."""
        scores = product_of(stage_infos(self.start)[self.scores].store)
        return self.target.tile_shape(scores.a.dtype, scores.b.dtype) if scores else None

    @property
    def lanes(self) -> int:
        """The lanes of a vector of scores."""
        stage = stage_infos(self.start)[self.weighted]
        return self.target.vector_lanes(stage.store.buffer.dtype)


class Attention(Rule[Parts]):
    """The stages of `nn.attention`, with a tail that may permute the axes of the result."""

    name = "attention"
    scope = "kernel"
    demands = (*(stage_role(f"attention.{name}") for name in _NAMES), ONE_RESULT, NOT_EMPTY)

    def match(self, work: Work, target: Target) -> Parts | None:
        of = {name: work.by_role[f"attention.{name}"].name for name in _NAMES}
        root, bias = work.outputs[0].name, work.by_role.get("attention.bias")
        anchors = [info.name for info in work.stages if info.is_anchor]
        if sorted(anchors) != sorted((of["scores"], of["weighted"])):
            return None
        differs = bias is not None and bias.store.buffer.shape[-1] != 1
        own = bias.name if bias is not None and differs else ""
        narrow = work.by_role.get("attention.keys")
        keys = narrow.name if narrow is not None else ""
        kept = {*of.values(), root, own, keys}
        packed = work.by_role.get("attention.values")
        apart = packed.name if packed else _values_apart(work, of["weighted"], kept, target)
        schedule = work.start.copy()
        for name in reversed(list(work.infos)):
            if name not in kept and name != apart:
                schedule.inline(name)
        infos = stage_infos(schedule)
        axes = _result_axes(infos, root, of["weighted"])
        if axes is None:
            return None
        if infos[of["weighted"]].axis_roles[-1] == roles.QUERY:
            batch, head, depth, row = axes
            axes = batch, head, row, depth
        far = _far_rows(infos, of["scores"], of["weighted"])
        match = Parts(
            schedule, target, **of, root=root, bias=own, apart=apart, far=far, axes=axes, keys=keys
        )
        # Transposed values are for a matrix unit only.
        return None if match.is_turned and match.tile is None else match

    def choices(self, match: Parts) -> Space:
        target, lanes = match.target, match.lanes
        infos = stage_infos(match.start)
        if match.is_turned:
            most = ROWS_READ_TURNED
            return Space((tile_size("rows", most, most, "queries that are transposed together"),))
        *_, rows, width = infos[match.weighted].store.buffer.typical_shape
        if match.are_rows:
            return _choices_of_rows(match, rows, width)
        keys = infos[match.logits].store.buffer.typical_shape[2]
        vectors = vectors_of_tile(rows, lanes)
        high = balanced(keys, rows_of_tile(target, vectors))
        across = vectors_of_tile(width, min(lanes, width))
        size = balanced(min(lanes * vectors, rows), rows_of_tile(target, across))
        choices = [
            Choice("vectors", vectors, (1, 2, 4), "vectors of queries in a tile"),
            tile_size("keys", high, min(keys, MOST_ROWS), "keys in a register tile"),
            tile_size("rows", size, MOST_ROWS, "queries in a tile of the weighted sum"),
        ]
        # A few queries read each key and value once.
        few = rows <= lanes or not match.start.is_static(match.axes[2])
        choices.append(flag("prefetch", few, "prefetch keys and values of later steps"))
        if match.far:
            most = max(far.head_bytes for far in match.far)
            copied = most > SHARE_OF_HEAD * target.l2_bytes and rows >= QUERIES_TO_COPY
            choices.append(flag("copied", copied, "copy keys and values whose rows lie apart"))
        return Space(tuple(choices))

    def schedule(self, match: Parts, settings: Settings) -> Schedule:
        if match.is_turned:
            return _in_tiles(match, settings)
        if match.are_rows:
            return _in_rows(match, settings)
        schedule, infos = match.begin()
        target, lanes = match.target, match.lanes
        far = match.far if settings.get("copied") else ()
        copies = [schedule.cache_read(x.product, x.buffer, *x.axes) for x in far]
        if copies:
            infos = stage_infos(schedule)
        batch, head, row, depth = match.axes
        *_, width = infos[match.weighted].store.buffer.typical_shape
        tile = _tile_of_queries(schedule, match.axes, lanes * settings["vectors"])
        inside = f"{row}.i"
        # The weighted sum: queries by elements of the values, all keys in registers.
        few = min(lanes, width)
        vectors = vectors_of_tile(width, few)
        schedule.reorder(depth, inside)
        panel, column = schedule.split(depth, few * vectors)
        schedule.reorder(panel, inside, column)
        vector, lane = schedule.split(column, few, tail="guard")
        block, each = split_tiles(schedule, inside, settings["rows"])
        schedule.compute_at(match.weighted, block, "register")
        _softmax_at(schedule, match, tile)
        keys = infos[match.logits].axis_of(roles.KEY)
        # Free sizes: tiles of scores are costly to compile, and the last is seldom the only one.
        tail = "balance" if schedule.is_static(keys) else "clamp"
        step, key = schedule.split(keys, settings["keys"], tail=tail)
        schedule.compute_at(match.scores, step, "register")
        if match.keys:  # once for all queries of the tile, whose products read single elements
            schedule.compute_at(match.keys, step, "scratch")
        schedule.compute_at(match.queries, tile, "scratch")
        if match.pairs:
            dot_tile(schedule, infos[match.weighted], few, _PAIR)
            dot_tile(schedule, infos[match.scores], lanes, _PAIR)
        else:
            (summed,) = infos[match.weighted].reduction_axes
            count = schedule.extent(summed)
            along = register_tile(schedule, infos[match.weighted], few)
            chunk = register_tile(schedule, infos[match.scores], lanes)
            first = infos[match.weighted].axes[0]
            if settings["prefetch"]:
                _request(schedule, infos[match.scores], step, chunk[-1], KEYS_AHEAD)
                steps = max(VALUES_AHEAD * schedule.extent(along[-1]) // max(count, 1), 1)
                _request(schedule, infos[match.weighted], along[-1], first, steps)
        schedule.unroll(key)
        if match.keys:
            _, widened = schedule.split(infos[match.keys].axes[-1], lanes, tail="guard")
            schedule.vectorize(widened)
        _softmax_in_vectors(schedule, infos, match)
        for name in (each, vector):
            schedule.unroll(name)
        schedule.vectorize(lane)
        for name in filter(None, (match.bias, match.apart, *copies)):
            schedule = Elementwise().applied(Work(schedule, (name,)), target)
        spread(schedule, [batch, head, tile])
        return schedule


def _request(schedule: Schedule, info: StageInfo, ahead: str, at: str, distance: int) -> None:
    """Prefetches an input of a product, `distance` iterations ahead."""
    for buffer in {x.source.name: x.source for x in buffer_loads(info.store.value)}.values():
        if buffer.scope == "input":
            fetch = partial(schedule.prefetch, buffer.name, ahead, at, distance=distance)
            schedule.attempt(fetch)  # its rows may lie apart


def _choices_of_rows(match: Parts, rows: int, width: int) -> Space:
    """Returns the choices for scores that are rows of keys."""
    lanes = match.lanes
    most = max(1, match.target.vector_registers // (2 * rows))
    vectors = balanced(-(-width // min(lanes, width)), most)
    return Space(
        (
            tile_size("vectors", vectors, most, "vectors of a value's elements in a tile"),
            tile_size("keys", DOT_COLUMNS, 2 * DOT_COLUMNS, "keys in a register tile"),
            flag("prefetch", True, "prefetch later keys"),
        )
    )


def _in_rows(match: Parts, settings: Settings) -> Schedule:
    """Returns the schedule for scores that are rows of keys. The lanes of the products with keys
    are elements of a key, and those of the softmax are keys.
    """
    schedule, infos = match.begin()
    target, lanes = match.target, match.lanes
    batch, head, row, depth = match.axes
    width = infos[match.weighted].store.buffer.typical_shape[-1]
    few = min(lanes, width)
    schedule.reorder(batch, head, row, depth)
    _, lane = schedule.split(depth, few)
    for name in (match.weighted, match.inverse, match.total, match.power, match.top, match.logits):
        schedule.compute_at(name, head, "scratch")
    keys = infos[match.logits].axis_of(roles.KEY)
    query = infos[match.logits].axis_of(roles.QUERY)
    schedule.reorder(keys, query)
    step, key = schedule.split(keys, lanes, tail="peel" if schedule.is_static(keys) else "clamp")
    schedule.reorder(step, query, key)
    schedule.compute_at(match.scores, step, "scratch")
    schedule.compute_at(match.queries, head, "scratch")
    high, prefetch = settings["keys"], bool(settings["prefetch"])
    _scores_of_rows(schedule, infos[match.scores], lanes, high, prefetch=prefetch)
    _sum_of_values(schedule, infos[match.weighted], few, settings["vectors"])
    schedule.unroll(query)
    schedule.vectorize(key)
    for name in (match.queries, match.power):
        vectorize_last(schedule, [infos[name].axes[-1]], target, infos[name])
    for name in (match.top, match.total):
        reduce_in_vectors(schedule, infos[name], target)
    schedule.vectorize(lane)
    for name in filter(None, (match.bias, match.apart)):
        schedule = Elementwise().applied(Work(schedule, (name,)), target)
    spread(schedule, [batch, head])
    return schedule


def _scores_of_rows(
    schedule: Schedule, info: StageInfo, lanes: int, high: int, *, prefetch: bool
) -> None:
    """Sums products of a few keys with all queries in vectors along the elements of a key."""
    m, n = info.axes[-2:]
    (depth,) = info.reduction_axes
    schedule.reorder(n, depth, m)
    block, across = split_tiles(schedule, n, high)
    lanes = min(lanes, schedule.extent(depth))
    whole = schedule.is_multiple(depth, lanes)
    steps, inner = schedule.split(depth, lanes, tail="peel" if whole else "guard")
    schedule.reorder(block, steps, m, across, inner)
    schedule.rfactor(info.name, inner)
    for loop in (m, across):
        schedule.unroll(loop)
    schedule.vectorize(inner)
    schedule.vectorize(f"{info.name}.rf0")
    if not whole:
        schedule.partition(steps)
    if prefetch:
        _request(schedule, info, block, steps, max(VALUES_AHEAD // high, 1))


def _sum_of_values(schedule: Schedule, info: StageInfo, lanes: int, vectors: int) -> None:
    """Adds up chunks of values, which stay in the first-level cache, in tiles of all queries by
    some vectors of elements.
    """
    *outer, row, depth = info.axes
    (keys,) = info.reduction_axes
    schedule.reorder(keys, *outer, row, depth)
    chunk, key = schedule.split(keys, VALUES_OF_CHUNK)
    schedule.reorder(chunk, *outer, depth, key, row)  # the last panel may be narrower
    panel, column = schedule.split(depth, lanes * vectors)
    schedule.reorder(panel, key, row, column)
    schedule.hold_sums(info.name, panel)
    tile_loops(schedule, [row, column], [key], lanes)


def _in_tiles(match: Parts, settings: Settings) -> Schedule:
    """Returns the schedule for a matrix unit: both products in two by two tiles."""
    schedule, infos = match.begin()
    target, lanes = match.target, match.lanes
    shape = match.tile
    assert shape is not None
    high, wide = TILES_HIGH * shape[0], TILES_WIDE * shape[1]
    batch, head, row, depth = match.axes
    # A last tile that repeats rows takes no longer than a shorter one, and no code of its own.
    tail = "clamp" if schedule.extent(row) > wide else "peel"
    tile = _tile_of_queries(schedule, match.axes, wide, tail)
    inside = f"{row}.i"
    schedule.reorder(depth, inside)
    panel, column = split_tiles(schedule, depth, balanced(schedule.extent(depth), high))
    schedule.reorder(panel, column, inside)
    schedule.compute_at(match.weighted, panel, "scratch")
    vector, lane = schedule.split(column, min(lanes, schedule.extent(column)), tail="guard")
    schedule.reorder(vector, inside, lane)
    _, each = split_tiles(schedule, inside, settings["rows"])
    _softmax_at(schedule, match, tile)
    keys = infos[match.logits].axis_of(roles.KEY)
    step, _ = split_tiles(schedule, keys, balanced(schedule.extent(keys), high))
    schedule.compute_at(match.scores, step, "scratch")
    schedule.compute_at(match.queries, tile, "scratch")
    for name in (match.scores, match.weighted):
        multiply_in_tiles(schedule, infos[name], shape[2])
    _softmax_in_vectors(schedule, infos, match)
    schedule.unroll(each)
    schedule.vectorize(lane)
    for name in filter(None, (match.bias, match.apart)):
        schedule = Elementwise().applied(Work(schedule, (name,)), target)
    spread(schedule, [batch, head, tile])
    return schedule


def _softmax_at(schedule: Schedule, match: Parts, tile: str) -> None:
    """Computes the softmax of a tile of queries at its loop."""
    for name in (match.inverse, match.total, match.power, match.top, match.logits):
        # Lanes that are pairs read the largest score of a query twice.
        registers = name == match.total or (name == match.top and not match.pairs)
        schedule.compute_at(name, tile, "register" if registers else "scratch")


def _softmax_in_vectors(schedule: Schedule, infos: Mapping[str, StageInfo], match: Parts) -> None:
    """Vectorizes the queries and the stages of the softmax."""
    for name in (match.queries, match.logits, match.power, match.inverse):
        if match.pairs and name in (match.queries, match.power):
            _down_pairs(schedule, infos[name], match.lanes)
        else:
            down_columns(schedule, infos[name], match.lanes)
    for name in (match.top, match.total):
        down_columns(schedule, infos[name], match.lanes)


def _down_pairs(schedule: Schedule, info: StageInfo, lanes: int) -> None:
    """Vectorizes a stage along queries and the pairs that are stored for each."""
    *_, query, pair = info.axes
    _, lane = schedule.split(schedule.fuse(query, pair), lanes * _PAIR, tail="guard")
    schedule.vectorize(lane)


def _values_apart(work: Work, weighted: str, kept: set[str], target: Target) -> str:
    """Returns the stage of the values if their elements are not contiguous in memory, as in images
    with channels first; "" if vectors of them can be loaded.
    """
    simplifier = Simplifier()
    read = {x.source.name for x in buffer_loads(work.infos[weighted].store.value)}
    for name, info in work.infos.items():
        if info.store.buffer.name not in read or name in kept:
            continue
        last = next(n for n in info.loops if n.name == info.axes[-1])
        lanes = min(target.vector_lanes(info.store.buffer.dtype), last.typical)
        loads = list(buffer_loads(info.store.value))
        if any(lane_stride(x, last.index, lanes, simplifier) not in (0, 1) for x in loads):
            return name
    return ""


def _far_rows(infos: dict[str, StageInfo], scores: str, weighted: str) -> tuple[_FarRows, ...]:
    """Returns the inputs that products read by contiguous rows that lie apart, such as the keys
    of one head among others. Inputs of sizes that only a run knows are left out.
    """
    found = []
    for name in (scores, weighted):
        info = infos[name]
        if len(info.reduction_axes) != 1 or not all(isinstance(n.size, int) for n in info.loops):
            continue
        batch, head, second, last = info.axes
        (summed,) = info.reduction_axes
        # Keys are rows of what is summed over, values are summed over rows.
        row, inner, query = (second, summed, last) if name == scores else (summed, last, second)
        by_name = {n.name: n for n in info.loops}
        rows, elements = by_name[row], by_name[inner]
        loads = list(buffer_loads(info.store.value))
        for load in loads:
            if load.source.scope != "input" or sum(x.source is load.source for x in loads) > 1:
                continue
            form = offset_of(load.source, load.indices, Simplifier())
            step = step_along(form, rows.index)
            apart = step is not None and step > elements.typical
            shared = step_along(form, by_name[query].index) == 0
            if apart and shared and step_along(form, elements.index) == 1:
                head_bytes = rows.typical * elements.typical * memory_bytes(load.source.dtype)
                axes = (batch, head, row, inner)
                found.append(_FarRows(name, load.source.name, axes, head_bytes))
    return tuple(found)


def _result_axes(infos: dict[str, StageInfo], result: str, weighted: str) -> tuple[str, ...] | None:
    """Returns the result's loops over batch, head, query and element, in this order; None if the
    result does not read the weighted sums once per element, by its loops.
    """
    root = infos[result]
    sums = infos[weighted].store.buffer
    loads = [x for x in buffer_loads(root.store.value) if x.source is sums]
    names = {id(n.index): n.name for n in root.loops}
    if len(loads) != 1 or len(root.loops) != len(loads[0].indices):
        return None
    indices = loads[0].indices
    used = {id(i) for i in indices}
    # A loop with one iteration appears in the indices only as a constant.
    single = [n.name for n in root.loops if n.size == 1 and id(n.index) not in used]
    numbers = [i for i in indices if not isinstance(i, Index)]
    if len(numbers) != len(single) or not all(isinstance(i, Imm) for i in numbers):
        return None
    if any(isinstance(i, Index) and id(i) not in names for i in indices):
        return None
    return tuple(names[id(i)] if isinstance(i, Index) else single.pop(0) for i in indices)


def _tile_of_queries(
    schedule: Schedule, axes: tuple[str, ...], size: int, tail: str = "peel"
) -> str:
    """Splits the result's rows into tiles; returns the loop over tiles. `tail` is for a number of
    rows that is known.
    """
    batch, head, row, depth = axes
    schedule.reorder(row, batch, head, depth)
    tail = tail if schedule.is_static(row) else "clamp"
    tile, inner = schedule.split(row, size, tail=tail)
    # The keys and values of a head stay in cache from tile to tile.
    schedule.reorder(batch, head, tile, inner, depth)
    return tile
