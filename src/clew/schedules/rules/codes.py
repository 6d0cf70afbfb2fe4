"""Products with weights of a few bits (`nn.dense_codes`), unpacked in registers.

One kernel holds both sums: at each block of the depth, the products of integers are summed in
registers, then scaled and added to the result's sums. Words of weights are loaded once for all
codes in them, all rows and all parts of the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from clew.cost.policy.tiles import (
    MOST_ROWS,
    ROWS_OF_CODES,
    VECTORS_OF_CODES,
    VECTORS_OF_COLUMNS,
)
from clew.loop.ir import buffer_loads
from clew.loop.products import product_of
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules.demands import NOT_EMPTY, ONE_RESULT
from clew.schedules.library.products import dot_lanes, dot_tile
from clew.schedules.library.register_tile import split_tiles, spread
from clew.schedules.library.streaming import stream
from clew.schedules.library.tile_sizes import balanced
from clew.schedules.rule import Demand, Rule, TailMatch, Work, stage_role
from clew.schedules.space import Choice, Settings, Space, flag, tile_size
from clew.schedules.stages import StageInfo, flatten_axes, stage_infos
from clew.support.dataclass import dataclass
from clew.te import roles
from clew.te.expr import Binary, Imm, Index

_BLOCK_SUMS: Final = "block_sums"


def _unit(work: Work, target: Target) -> bool:
    found = work.by_role.get(_BLOCK_SUMS)
    return found is not None and bool(dot_lanes(product_of(found.store), target))


@dataclass(frozen=True)
class Sums(TailMatch):
    """The sums over blocks, `sums`, which the anchor scales and adds; `width` columns of the weight
    are a panel.
    """

    sums: str
    width: int
    lanes: int

    @property
    def parts(self) -> int:
        """The number of parts of the data."""
        return stage_infos(self.start)[self.sums].store.buffer.typical_shape[-3]


class Codes(Rule[Sums]):
    """Sums over blocks of products of integers, unpacked from words."""

    name = "codes"
    scope = "kernel"
    demands: ClassVar[Sequence[Demand]] = (
        stage_role(_BLOCK_SUMS),
        ONE_RESULT,
        NOT_EMPTY,
        Demand("dot product instructions for the codes", _unit),
    )
    vectors: ClassVar[int] = VECTORS_OF_CODES
    """Vectors of columns in a tile."""

    def match(self, work: Work, target: Target) -> Sums | None:
        sums, root = work.by_role[_BLOCK_SUMS], work.outputs[0]
        (anchor, *others) = sums.readers
        if others or work.infos[anchor].reduction_roles != (roles.BLOCK,):
            return None
        schedule = work.start.copy()
        for name in reversed(list(work.infos)):
            if name not in (sums.name, anchor, root.name):
                if work.infos[name].is_reduction:
                    return None
                schedule.inline(name)
        infos = stage_infos(schedule)
        if infos[root.name].store.buffer.shape != infos[anchor].store.buffer.shape:
            return None
        flatten_axes(schedule, *dict.fromkeys((sums.name, anchor, root.name)))
        product = product_of(sums.store)
        assert product is not None
        packed = isinstance(product.numbers[0], Binary) or product.a.dtype == "u8"
        words = product.a if packed else product.b
        lanes = dot_lanes(product, target)
        width = words.source.shape[-2]
        if not isinstance(width, int):
            return None
        return Sums(schedule, target, anchor, root.name, sums.name, width, lanes)

    def choices(self, match: Sums) -> Space:
        shape = match.info.store.buffer.typical_shape
        height = shape[-2] if len(shape) > 1 else 0
        most = max(1, match.width // match.lanes)
        vectors = min(most, self.vectors)
        choices = [
            Choice(
                "vectors", vectors, tuple(n for n in VECTORS_OF_COLUMNS if n <= most),
                "vectors of columns in a tile",
            ),
            flag("prefetch", True, "prefetch the next panel while one is in use"),
        ]  # fmt: skip
        if height:
            rows = balanced(height, _rows_at_once(match, vectors))
            choices.append(
                tile_size("rows", rows, min(height, MOST_ROWS), "rows in a register tile")
            )
        return Space(tuple(choices))

    def schedule(self, match: Sums, settings: Settings) -> Schedule:
        schedule, infos = match.begin()
        info, sums, lanes = infos[match.anchor], infos[match.sums], match.lanes
        out = match.result(schedule)
        *batch, columns = infos[match.root].axes_in(out)
        row = batch.pop() if batch else ""
        rows = [row] if row else []
        schedule.reorder(columns, *batch, *rows)
        panel, column = schedule.split(columns, lanes * settings["vectors"])
        vector, lane = schedule.split(column, lanes, tail="guard")
        schedule.reorder(panel, *batch, *rows, vector, lane)
        attach = [panel, *batch][-1]
        if row:
            attach, inner = split_tiles(schedule, row, settings["rows"])
            schedule.unroll(inner)
        schedule.compute_at(info.name, attach, "register")
        block = _scale(schedule, info, lanes)
        schedule.compute_at(sums.name, block, "register")
        _multiply(schedule, sums, lanes)
        schedule.unroll(vector)
        schedule.vectorize(lane)
        if settings["prefetch"]:
            for each in (sums, info):
                stream(schedule, each, panel, [*([attach] if row else []), block], match.target)
        spread(schedule, [panel])
        return schedule


def _rows_at_once(match: Sums, vectors: int) -> int:
    """Returns the number of rows whose sums of a block stay in registers beside codes and data:
    they take half of the registers, or three quarters for a few rows, which share unpacked codes.
    """
    of_a_row, registers = vectors * match.parts, match.target.vector_registers
    few = min(ROWS_OF_CODES, registers * 3 // 4 // of_a_row)
    return max(1, few, registers // 2 // of_a_row)


def _scale(schedule: Schedule, info: StageInfo, lanes: int) -> str:
    """Orders the loops of the scaled sums; returns the loop over blocks."""
    *others, column = info.axes
    (block,) = info.reduction_axes
    schedule.reorder(block, *others, column)
    shared = _blocks_of_factor(info, block)
    if shared > 1:
        _, block = schedule.split(block, shared)  # so that factors are loaded once for all of them
    vector, lane = schedule.split(column, lanes, tail="guard")
    for name in (*others, vector):
        schedule.unroll(name)
    schedule.vectorize(lane)
    return block


def _blocks_of_factor(info: StageInfo, block: str) -> int:
    """Returns the number of blocks that share a factor of their scales: the index of a factor is
    that of the block over this number.
    """
    for load in buffer_loads(info.store.value):
        for index in load.indices:
            if isinstance(index, Binary) and index.op == "floordiv":
                inner, by = index.children
                if isinstance(inner, Index) and inner.name == block and isinstance(by, Imm):
                    return int(by.value)
    return 1


def _multiply(schedule: Schedule, sums: StageInfo, lanes: int) -> None:
    """Sums products of integers over a block, code by code."""
    _, code, _ = sums.reduction_axes
    product = product_of(sums.store)
    assert product is not None
    dot_tile(schedule, sums, lanes, product.group)
    schedule.unroll(code)
