"""The schedule player: a kernel's loop nest after each recorded primitive."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import lru_cache

from clew.build.kernel_html import loop_ops
from clew.build.kernel_trace import single_stages
from clew.explorer.schema import ScheduleStep, ScheduleView
from clew.explorer.session import Session
from clew.loop.ir import Nest
from clew.loop.primitives.common import PRIMITIVES
from clew.loop.printer import print_nest
from clew.loop.schedule import Schedule

SIMPLIFIED = "simplified"


def schedule(session: Session, kernel: int) -> ScheduleView:
    """Returns the recorded schedule of a kernel by its place.

    Errors: I200 for a kernel that does not exist.
    """
    used = session.uses[session.place(kernel)]
    known = session.once(_steps_by_key)
    if used.key not in known:
        known[used.key] = schedule_steps(used.schedule, session.kernels[kernel].stage_ops)
    return ScheduleView(
        kernel=kernel,
        rules=list(used.rules),
        steps=known[used.key],
        primitives=primitives(),
    )


def _steps_by_key(session: Session) -> dict[str, list[ScheduleStep]]:
    """Returns the cached steps by kernel key: uses of one kernel share them."""
    return {}


def schedule_steps(schedule: Schedule, stage_ops: Mapping[str, int]) -> list[ScheduleStep]:
    """Returns a schedule's steps, with the nest before them first and the nest that code is
    generated from last.
    """
    texts = ["", *map(str, schedule.steps)]
    names = ["", *(step.primitive for step in schedule.steps)]
    steps = [
        _step(text, name, nest, stage_ops)
        for text, name, nest in zip(texts, names, schedule.history, strict=True)
    ]
    final = _step(SIMPLIFIED, "", schedule.finished(), stage_ops)
    return steps if final.loops == steps[-1].loops else [*steps, final]


def _step(text: str, name: str, nest: Nest, stage_ops: Mapping[str, int]) -> ScheduleStep:
    printed = print_nest(nest)
    ops = loop_ops(len(printed.lines), single_stages(printed), stage_ops)
    return ScheduleStep(text, name, printed.lines, ops)


@lru_cache(maxsize=1)
def primitives() -> dict[str, str]:
    """Returns each primitive's signature and the first line of its description."""
    found = {}
    for name, function in sorted(PRIMITIVES.items()):
        signature = inspect.signature(function)
        taken = list(signature.parameters.values())[2:]  # the nest and how to simplify it
        shown = ", ".join(str(p).replace("'", "", 2) for p in taken)
        about = (inspect.getdoc(function) or "").split("\n\n")[0]
        found[name] = f"{name}({shown})\n{' '.join(about.split())}"
    return found
