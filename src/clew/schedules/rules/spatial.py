"""Reductions whose output's last axis is contiguous in the input (pooling, sums over leading axes):
lanes run along that axis. A register tile is a run of memory, or neighbors along the axis before it
if these read the same elements, or runs are short.
"""

from __future__ import annotations

import math

from clew.cost.policy.threads import PIECES_FOR_THREADS
from clew.cost.policy.tiles import MOST_UNROLLED_NEIGHBORS, NEIGHBORS, REGISTERS_OF_SPATIAL
from clew.loop.affine import Simplifier, contains
from clew.loop.products import offset_of
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules.demands import REDUCES, TAILED
from clew.schedules.library.register_tile import register_tile, split_tiles, spread
from clew.schedules.rule import Rule, TailMatch, Work
from clew.schedules.space import Choice, Settings, Space
from clew.schedules.stages import StageInfo, flatten_axes, largest_load, stride
from clew.te.expr import Binary, Imm, Index, Load
from clew.te.walk import nodes


class Spatial(Rule[TailMatch]):
    """Reductions along axes that are not contiguous, or are short."""

    name = "spatial"
    demands = (REDUCES, TAILED)

    def match(self, work: Work, target: Target) -> TailMatch | None:
        info = work.reduction
        load = largest_load(info)
        if load is None or not info.axes:
            return None
        simplifier = Simplifier()
        steps = {n.name: stride(load, n.index, simplifier) for n in info.loops}
        last = next(n for n in info.loops if n.name == info.axes[-1])
        if last.typical < 2:
            return None
        if steps[last.name] is None and not _alternates(load, last.index, simplifier):
            return None
        lanes = target.vector_lanes(info.lane_dtype)
        along = (n for n in info.loops if n.name in info.reduction_axes)
        if steps[last.name] != 1 and any(steps[n.name] == 1 and n.typical >= lanes for n in along):
            return None  # lanes along the reduction are contiguous
        schedule = work.start.copy()
        flatten_axes(schedule, info.name, work.root.name)
        return TailMatch(schedule, target, info.name, work.root.name)

    def choices(self, match: TailMatch) -> Space:
        shape, target = match.info.store.buffer.typical_shape, match.target
        lanes = min(target.vector_lanes(match.info.lane_dtype), shape[-1])
        every = -(-shape[-1] // lanes)
        if len(shape) > 1 and (every < NEIGHBORS or _shares(match.info)):
            options = tuple(n for n in (1, 2, 4, 8) if n <= shape[-2]) or (1,)
            neighbors = min(NEIGHBORS, shape[-2])
            options = tuple(sorted({*options, neighbors}))
            return Space((Choice("rows", neighbors, options, "rows in a register tile"),))
        if math.prod(shape[:-1]) >= PIECES_FOR_THREADS:
            most = target.vector_registers - REGISTERS_OF_SPATIAL
            vectors = -(-every // -(-every // most))
        else:
            most = target.vector_registers // 2  # a step reads a run of memory
            vectors = max(1, min(most, every // PIECES_FOR_THREADS))
        options = tuple(sorted({1, 2, 4, 8, most, vectors}))
        return Space((Choice("vectors", vectors, options, "vectors in a register tile"),))

    def schedule(self, match: TailMatch, settings: Settings) -> Schedule:
        schedule, infos = match.begin()
        info = infos[match.anchor]
        *outer, column = infos[match.root].axes_in(match.result(schedule))
        lanes = min(match.target.vector_lanes(info.lane_dtype), schedule.extent(column))
        row, vectors = outer.pop() if "rows" in settings else "", settings.get("vectors", 1)
        if row:
            schedule.reorder(column, *outer, row)
        panel, lane = schedule.split(column, lanes * vectors)
        attach, neighbors = panel, 1
        if row:
            neighbors = settings["rows"]
            schedule.reorder(*outer, panel, row, lane)
            attach, inner = split_tiles(schedule, row, neighbors, tail="peel")
            schedule.unroll(inner)
        schedule.compute_at(match.anchor, attach, "register")
        taps = register_tile(schedule, info, lanes)

        def without_padding() -> None:
            schedule.skip_padding(match.anchor, lanes=info.axes[-1])
            schedule.partition(attach)
            if schedule.extent(taps[-1]) * max(neighbors, NEIGHBORS) <= MOST_UNROLLED_NEIGHBORS:
                schedule.unroll(taps[-1])  # neighbors read the same elements

        schedule.attempt(without_padding)  # there may be none
        if vectors > 1:
            vector, lane = schedule.split(lane, lanes, tail="guard")
            schedule.unroll(vector)
        schedule.vectorize(lane)
        spread(schedule, [*outer, panel])
        return schedule


def _alternates(load: Load, index: Index, simplifier: Simplifier) -> bool:
    """Whether neighbors along an axis read from a few runs of memory in turn, as the phases of a
    stride do.
    """
    form = offset_of(load.source, load.indices, simplifier)
    moving = [atom for atom, _ in form.terms if simplifier.uses(atom, index)]
    return bool(moving) and all(
        isinstance(atom, Binary)
        and atom.op in ("floordiv", "mod")
        and isinstance(atom.b, Imm)
        and not any(isinstance(node, Load) for node in nodes(atom))
        for atom in moving
    )


def _shares(info: StageInfo) -> bool:
    """Whether neighbors along the axis before the last read the same elements, as windows do."""
    load = largest_load(info)
    assert load is not None
    row = next(n.index for n in info.loops if n.name == info.axes[-2])
    taps = [n.index for n in info.loops if n.name in info.reduction_axes]
    return any(
        contains(place, row) and any(contains(place, tap) for tap in taps) for place in load.indices
    )
