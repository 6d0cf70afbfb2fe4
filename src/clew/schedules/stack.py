"""Kernels in one: groups of stages, each scheduled as a kernel of its own would be, one after the
other.
"""

from __future__ import annotations

from collections.abc import Sequence

from clew.loop.ir import Nest, Store, walk
from clew.loop.part import part_of
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules.plan import schedule_kernel

NAME = "stack"


def schedule_stack(
    nest: Nest, groups: Sequence[Sequence[str]], target: Target
) -> tuple[Schedule, tuple[str, ...]]:
    """Returns the schedule of a kernel whose stages come in groups, and the names of the rules."""
    whole = Schedule(nest)
    names = [NAME]
    for group in groups:
        part, shared = part_of(nest, group)
        made, rules = schedule_kernel(part, target)
        names += rules
        for step in made.steps:
            args = dict(step.args)
            if step.primitive == "nontemporal" and _result_of(part, args["stage"]) in shared:
                continue  # it is read at once
            if step.primitive == "flatten":
                args["keep"] = tuple(sorted(shared))
            whole.apply(step.primitive, **args)
    return whole, tuple(names)


def _result_of(nest: Nest, stage: str) -> str:
    stores = (s for s in walk(nest.body) if isinstance(s, Store))
    return next((s.buffer.name for s in stores if s.stage == stage), "")
