"""compute_at fusion of all stages of a kernel: each is computed where a tile of the result needs
it, in the scratch memory of one thread.

The rule chooses the loop for each stage: the loop of the result that keeps the fewest elements of
the stage live without recomputing many. A stage that no loop divides, such as weights, is computed
before. Sums of products get register tiles, and reductions are vectorized along their rows.
"""

from __future__ import annotations

import math

from clew.cost.policy.fusion import MOST_COMPUTED_AGAIN
from clew.cost.policy.tiles import MOST_ROWS
from clew.loop.affine import Simplifier
from clew.loop.ir import Scope, buffer_loads, stores_in
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules.library.register_tile import register_tile, split_tiles, spread
from clew.schedules.library.row_vectors import reduce_in_vectors, vectorize_last
from clew.schedules.library.tile_sizes import (
    balanced,
    rows_of_tile,
    vectors_of_tile,
)
from clew.schedules.rule import Match, Rule, Work
from clew.schedules.rules.elementwise import Elementwise
from clew.schedules.space import Choice, Settings, Space
from clew.schedules.stages import StageInfo, lane_stride
from clew.support.errors import ScheduleError


class Melt(Rule[Match]):
    """Kernels of a user's fusion with `mode="melt"`, after cheap stages have been inlined."""

    name = "melt"
    scope = "melt"

    def match(self, work: Work, target: Target) -> Match | None:
        """Matches every kernel with one result.

        Errors: S050 if the kernel has several results.
        """
        if len(work.outputs) != 1:
            names = ", ".join(o.name for o in work.outputs)
            raise ScheduleError(
                "S050",
                f"{work.start.nest.name} has {len(work.outputs)} results ({names}); mode='melt' "
                "supports one",
                hint="choose a pattern that has one result, or use mode='stack'",
            )
        return Match(work.start, target)

    def choices(self, match: Match) -> Space:
        options = tuple(range(1, MOST_ROWS + 1))
        most = rows_of_tile(match.target, 2)
        return Space((Choice("rows", most, options, "most rows of the result in a tile"),))

    def schedule(self, match: Match, settings: Settings) -> Schedule:
        schedule, found = match.begin()
        infos, target = dict(found), match.target
        (root,) = (info for info in infos.values() if info.is_output)
        if any(loop.size == 0 for info in infos.values() for loop in info.loops):
            return schedule  # no iterations to schedule
        holders = _holders(schedule, infos, target)
        out = holders.get(root.name, root.name)
        if root.is_reduction and root.name not in holders:
            out = schedule.cache_write(root.name)
        places = _loops_of_result(schedule, root, out, bool(holders), settings["rows"])
        moved = _place(schedule, infos, root, holders, places, target)
        for name, info in infos.items():
            if name in holders or name in holders.values():
                continue
            if info.is_reduction:
                reduce_in_vectors(schedule, info, target)
            elif name in moved:
                vectorize_last(schedule, info.axes[-1:], target, info)
            else:
                schedule = Elementwise().applied(Work(schedule, (name,)), target)
        if places:
            spread(schedule, places)
        return schedule


def _holders(schedule: Schedule, infos: dict[str, StageInfo], target: Target) -> dict[str, str]:
    """Returns the holders of sums of products. A holder is the stage that writes the results of
    register tiles: the elementwise stage that reads the sum, or a copy.
    """
    holders: dict[str, str] = {}
    for name, info in infos.items():
        if not (info.is_anchor and _in_vectors(info, target)):
            continue
        readers = [infos[r] for r in info.readers]
        tail = len(readers) == 1 and not readers[0].is_reduction
        if tail and readers[0].name not in holders.values():
            tail = readers[0].store.buffer.shape == info.store.buffer.shape
            tail = tail and all(
                load.indices == readers[0].store.indices
                for load in buffer_loads(readers[0].store.value)
                if load.source is info.store.buffer
            )
        else:
            tail = False
        holders[name] = readers[0].name if tail else schedule.cache_write(name)
    return holders


def _in_vectors(info: StageInfo, target: Target) -> bool:
    """Whether the operands of a sum of products can be loaded in vectors along its last axis."""
    if not info.axes:
        return False
    last = next(n for n in info.loops if n.name == info.axes[-1])
    lanes = min(target.vector_lanes(info.store.buffer.dtype), last.typical)
    simplifier = Simplifier()
    steps = [lane_stride(x, last.index, lanes, simplifier) for x in buffer_loads(info.store.value)]
    return lanes > 1 and None not in steps and any(steps)


def _loops_of_result(
    schedule: Schedule, root: StageInfo, out: str, tiled: bool, most: int
) -> list[str]:
    """Returns the loops of the result in which stages may be computed, outermost first: the loops
    over its rows, the last one in steps of a register tile.
    """
    axes = root.axes_in(out)
    if not root.is_reduction or root.is_anchor:
        axes = axes[:-1]  # lanes
    if not axes or not tiled:
        return axes
    row = axes[-1]
    if schedule.extent(row) > most:
        axes[-1], _ = split_tiles(schedule, row, balanced(schedule.extent(row), most))
    return axes


def _place(
    schedule: Schedule,
    infos: dict[str, StageInfo],
    root: StageInfo,
    holders: dict[str, str],
    places: list[str],
    target: Target,
) -> set[str]:
    """Moves each stage to its loop, and each sum of products into the tiles of its holder. Returns
    the moved stages, including the result.
    """
    held_by = {holder: name for name, holder in holders.items()}
    out = holders.get(root.name, root.name)
    moved = {root.name}
    if root.name in holders or root.name in held_by:
        anchor = infos[held_by[out]]
        _tile(schedule, anchor, root.axes_in(out), places, target)
    elif root.is_reduction and places:
        alone = f"{out}.{places[-1].rsplit('.', 1)[-1]}" == places[-1]
        schedule.compute_at(root.name, places[-1], "register" if alone else "scratch")
    for name in reversed(list(infos)):
        held = holders.get(name, name)
        if name == root.name or (held != name and not held.endswith("@out")):
            continue  # moved with its holder
        place, scope = _best(schedule, infos[name], held, places)
        if place is not None:
            moved.add(name)
            schedule.compute_at(held, place, scope)
        if held in held_by:
            _tile(schedule, infos[held_by[held]], infos[name].axes_in(held), [], target)
            if place is None:
                spread(schedule, [f"{infos[name].axes_in(held)[0]}"])
    return moved


def _best(
    schedule: Schedule, info: StageInfo, held: str, places: list[str]
) -> tuple[str | None, Scope]:
    """Returns the loop in which a stage has the fewest live elements, the outermost of several, and
    the memory for them. The loop is None if the stage is better computed before.
    """
    whole = math.prod(info.store.buffer.typical_shape)
    best, least, times = None, whole, 1.0
    scope: Scope = "scratch"
    for place in places:
        times *= schedule.extent(place)
        try:
            schedule.compute_at(held, place, "scratch")
        except ScheduleError:
            continue
        stores = stores_in(schedule.nest.body)
        buffers = [s.buffer for s in stores if s.stage == held]
        alive = max(math.prod(buffer.typical_shape) for buffer in buffers)
        schedule.undo()
        if alive * times > whole * MOST_COMPUTED_AGAIN:
            continue
        if alive < least or (best is None and times == 1.0):
            best, least = place, alive
            scope = "register" if all(b.elements == 1 for b in buffers) else "scratch"
    return best, scope


def _tile(
    schedule: Schedule, info: StageInfo, axes: list[str], outer: list[str], target: Target
) -> None:
    """Computes a sum of products in register tiles of its holder, whose loops are `axes`; the loops
    in `outer` are already arranged.
    """
    buffer = info.store.buffer
    lanes = min(target.vector_lanes(buffer.dtype), buffer.typical_shape[-1])
    *above, column = axes
    inside = above[len(outer) :]
    if outer and outer[-1].endswith(".o"):
        inside = [f"{outer[-1][:-2]}.i"]
    vectors = vectors_of_tile(schedule.extent(column), lanes)
    # The column goes outermost before it is split, so that a peeled last panel is a separate nest.
    schedule.reorder(column, *inside)
    panel, column = schedule.split(column, lanes * vectors)
    vector, lane = schedule.split(column, lanes, tail="guard")
    attach = panel
    if inside:
        *batch, row = inside
        schedule.reorder(*batch, panel, row, vector, lane)
        size = balanced(schedule.extent(row), rows_of_tile(target, vectors))
        attach, inner = split_tiles(schedule, row, size)
        schedule.unroll(inner)
    schedule.compute_at(info.name, attach, "register")
    register_tile(schedule, info, lanes)
    schedule.unroll(vector)
    schedule.vectorize(lane)
