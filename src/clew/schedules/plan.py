"""Chooses a rule for a kernel: what to inline, what to keep, and who schedules what is left."""

from __future__ import annotations

from clew.loop.ir import Nest
from clew.loop.schedule import Schedule
from clew.schedules import amx, conv, dot, elementwise, matmul, parts, rows, spatial
from clew.schedules.shape import StageInfo, stage_infos
from clew.target import Target


def schedule_kernel(nest: Nest, target: Target) -> tuple[Schedule, tuple[str, ...]]:
    """Returns the schedule of a kernel and the names of the rules that were used, a root each.

    A root is a stage with loops of its own at the end: an output, or what several outputs share.
    """
    schedule = Schedule(nest)
    _inline(schedule)
    rules = [_schedule_root(schedule, root, target) for root in _roots(schedule)]
    return schedule, tuple(rules)


def _inline(schedule: Schedule) -> None:
    """Inlines what is cheap to compute where it is read.

    Kept are reductions, outputs, operands of a sum of products (each is read many times) and costly
    values that are read more than once.
    """
    for name in reversed(list(stage_infos(schedule))):
        infos = stage_infos(schedule)
        info = infos[name]
        if info.is_reduction or info.is_output:
            continue
        if any(infos[r].is_anchor for r in info.readers):
            continue
        read_again = len(info.readers) > 1 or any(infos[r].is_reduction for r in info.readers)
        if info.is_costly and read_again and len(info.readers) > 1:
            continue
        schedule.inline(name)


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
        if info.is_output or len(homes) != 1 or anchored:
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
    if alone and anchors:
        for narrow in (parts, amx, dot):
            if narrow.applies(infos, anchors[0], target) and narrow.schedule(
                schedule, infos, root, anchors[0], target
            ):
                return str(narrow.NAME)
        rule = conv if conv.applies(infos, anchors[0], target) else matmul
        if rule.schedule(schedule, infos, root, anchors[0], target):
            return str(rule.NAME)
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
        anchored = any(infos[r].is_anchor for r in readers)
        if not info.is_output and readers and readers <= members and not anchored:
            members.add(name)
    return [n for n in infos if n in members]
