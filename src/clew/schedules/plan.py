"""Chooses a rule for a kernel: what to inline, what to keep, and who schedules what is left."""

from __future__ import annotations

import math
from typing import Final

from clew.loop.ir import Nest
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules import (
    amx,
    attention,
    conv,
    conv_parts,
    dot,
    elementwise,
    matmul,
    matvec,
    melt,
    neighbors,
    parts,
    rows,
    separable,
    spatial,
    split_weights,
    windows,
    winograd,
)
from clew.schedules.shape import StageInfo, stage_infos

# Rules that know a kernel by all of its stages; the first that fits has it. One that gives up may
# have begun.
_WHOLE_KERNELS: Final = (attention, winograd, separable, neighbors, conv_parts)
# Of so many operations a value is not computed anew where it is read so often.
_LONG, _AGAIN = 16, 64


def schedule_kernel(nest: Nest, target: Target) -> tuple[Schedule, tuple[str, ...]]:
    """Returns the schedule of a kernel and the names of the rules that were used, a root each.

    A root is a stage with loops of its own at the end: an output, or what several outputs share.
    """
    for rule in _WHOLE_KERNELS:
        schedule = Schedule(nest)
        found = rule.find(schedule, target)
        if found is not None and rule.schedule(schedule, found, target) is not False:
            return schedule, (str(rule.NAME),)
    schedule = Schedule(nest)
    _inline(schedule)
    # Stages that a rule may take into the loops of their reader come last, if they still stand.
    infos = stage_infos(schedule)
    roots, taken = _roots(schedule), _taken_in(infos, target)
    rules = [_schedule_root(schedule, root, target) for root in roots if root not in taken]
    left = [root for root in taken if root in stage_infos(schedule)]
    rules += [_schedule_root(schedule, root, target) for root in left]
    return schedule, tuple(rules)


def schedule_melted(nest: Nest, target: Target) -> tuple[Schedule, tuple[str, ...]]:
    """Returns the schedule of a kernel whose stages are to be computed at tiles of its result."""
    schedule = Schedule(nest)
    _inline(schedule)
    melt.schedule(schedule, target)
    return schedule, (melt.NAME,)


def _taken_in(infos: dict[str, StageInfo], target: Target) -> list[str]:
    anchors = [name for name, info in infos.items() if info.is_anchor]
    return [x for x in (split_weights.operand(infos, a, target) for a in anchors) if x]


def _inline(schedule: Schedule) -> None:
    """Inlines what is cheap to compute where it is read.

    Kept are reductions, outputs, operands of a sum of products (each is read many times), costly
    values that are read more than once, quotients of what a row was reduced to, and tables.
    """
    for name in reversed(list(stage_infos(schedule))):
        infos = stage_infos(schedule)
        info = infos[name]
        if info.is_reduction or info.is_output:
            continue
        anchors = [infos[r] for r in info.readers if infos[r].is_anchor]
        if anchors and not (windows.is_padding(info) and windows.reads_own_channels(anchors[0])):
            continue
        read_again = len(info.readers) > 1 or any(infos[r].is_reduction for r in info.readers)
        if info.is_costly and read_again and len(info.readers) > 1:
            continue
        if _is_row_value(infos, info) or _is_table(infos, info):
            continue
        schedule.inline(name)


def _is_row_value(infos: dict[str, StageInfo], info: StageInfo) -> bool:
    """Whether a value made of a reduction's result takes some time, and is for many elements."""
    if not (info.is_costly or info.divides):
        return False
    if not any(infos[n].is_reduction for n in infos if info.name in infos[n].readers):
        return False
    points = math.prod(loop.extent for loop in info.loops)
    return any(math.prod(n.extent for n in infos[r].loops) > points for r in info.readers)


def _is_table(infos: dict[str, StageInfo], info: StageInfo) -> bool:
    """Whether a few values that take long are read again and again: they are made first."""
    if info.is_reduction or info.is_output or info.operations < _LONG:
        return False
    points = _AGAIN * math.prod(loop.extent for loop in info.loops)
    return any(math.prod(n.extent for n in infos[r].loops) >= points for r in info.readers)


def _roots(schedule: Schedule) -> list[str]:
    """Returns the stages that keep loops of their own: those not computed inside one reader's
    loops.
    """
    infos = stage_infos(schedule)
    roots: list[str] = []
    home: dict[str, str] = {}
    for name in reversed(list(infos)):
        info = infos[name]
        homes = {home[r] for r in info.readers}
        anchored = any(infos[r].is_anchor for r in info.readers)
        if info.is_output or len(homes) != 1 or anchored or _is_table(infos, info):
            roots.append(name)
            home[name] = name
        else:
            home[name] = homes.pop()
    return list(reversed(roots))


def _schedule_root(schedule: Schedule, root: str, target: Target) -> str:
    """Schedules a root and what is computed in it; returns the rule's name."""
    infos = stage_infos(schedule)
    members = _members(infos, root)
    if any(loop.extent == 0 for m in members for loop in infos[m].loops):
        return "empty"  # no iterations to arrange
    reductions = [m for m in members if infos[m].is_reduction]
    anchors = [m for m in reductions if infos[m].is_anchor]
    alone = len(reductions) == 1 and len(members) <= 2
    if alone:
        arguments = (schedule, infos, root, reductions[0], target)
        if windows.applies(infos, reductions[0], target) and windows.schedule(*arguments):
            return windows.NAME
        for narrow in (split_weights, parts, amx, dot) if anchors else ():
            if narrow.applies(infos, anchors[0], target) and narrow.schedule(*arguments):
                return str(narrow.NAME)
        if anchors and matvec.applies(infos, root, anchors[0], target):
            matvec.schedule(*arguments)
            return matvec.NAME
        if anchors and conv.applies(infos, anchors[0], target) and conv.schedule(*arguments):
            return conv.NAME
        if anchors and matmul.schedule(*arguments):
            return matmul.NAME
    if alone and spatial.applies(infos, reductions[0], root, target):
        spatial.schedule(schedule, infos, root, reductions[0], target)
        return spatial.NAME
    if reductions:
        rows.schedule(schedule, infos, root, members, target)
        return rows.NAME
    elementwise.schedule(schedule, infos, root, target)
    return elementwise.NAME


def _members(infos: dict[str, StageInfo], root: str) -> list[str]:
    """Returns the stages computed in a root's loops, the root last."""
    members = {root}
    for name in reversed(list(infos)):
        info = infos[name]
        readers = set(info.readers)
        anchored = any(infos[r].is_anchor for r in readers if r in infos)  # others have moved
        inside = not (info.is_output or anchored or _is_table(infos, info))
        if inside and readers and readers <= members:
            members.add(name)
    return [n for n in infos if n in members]
