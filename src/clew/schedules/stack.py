"""Stacked kernels: groups of stages in one kernel, each scheduled like a separate kernel and run
one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from clew.loop.ir import Nest, Store, walk
from clew.loop.part import part_of
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules.plan import Decision, Plan, Planner
from clew.schedules.registry import RULES, Registry
from clew.schedules.request import NO_REQUEST, Request
from clew.schedules.space import Settings, Space

STACK: Final = "stack"
"""Represents the stacking among the rules of a kernel."""


def schedule_stack(
    nest: Nest,
    groups: Sequence[Sequence[str]],
    target: Target,
    rules: Registry = RULES,
    request: Request = NO_REQUEST,
) -> Plan:
    """Returns the plan of a kernel whose stages come in groups.

    Errors: S061 to S065 if the request fits no group.
    """
    whole = Schedule(nest)
    planner = Planner(target, rules, request)
    planner.decisions.append(Decision(STACK, "", Space(), Settings({})))
    for group in groups:
        part, shared = part_of(nest, group)
        made = planner.kernel(part)
        whole.refusals += made.refusals
        for step in made.steps:
            args = dict(step.args)
            if step.primitive == "nontemporal" and _result_of(part, args["stage"]) in shared:
                continue  # a later group reads it soon
            if step.primitive == "flatten":
                args["keep"] = tuple(sorted(shared))
            whole.apply(step.primitive, **args)
    return planner.finished(nest, whole)


def _result_of(nest: Nest, stage: str) -> str:
    stores = (s for s in walk(nest.body) if isinstance(s, Store))
    return next((s.buffer.name for s in stores if s.stage == stage), "")
