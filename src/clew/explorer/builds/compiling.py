"""From a model's file and options to a `Session`, for worker processes and `--get`."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Final

from clew.backends.compile_options import AUTO
from clew.backends.cpu.schedule_choice import ScheduleFor, schedule_for
from clew.compiling.compile import build_model
from clew.compiling.loading import loaded
from clew.explorer.actions.table import Say
from clew.explorer.actions.tokens import LENGTH
from clew.explorer.builds.budget import too_much
from clew.explorer.own import Own, compile_options
from clew.explorer.schema import Options
from clew.explorer.session import Session
from clew.explorer.steps import LONGEST, MOST_STEPS, replayed
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.placement.placing import placed_for_compile
from clew.runtime.drawing import settled
from clew.runtime.wiring import decode_step
from clew.serving.built_model import BuiltModel
from clew.support.budgets import Budgets, in_force
from clew.support.errors import InputError

# Progress at the start of each step: shares of the time of a network compiled without the cache.
_PASSES, _KERNELS, _LINKING, _TRACE = 0.05, 0.2, 0.85, 0.9
_KERNEL: Final = re.compile(r"kernel (\d+) of (\d+)")


def open_session(
    path: Path, model: str, options: Options, say: Say, *, own: Own | None = None
) -> Session:
    """Returns a session on a model's file, compiled and with its trace read. `model` is its name.

    A language model with free sizes is built for a decode step.

    Errors: those of loading and compiling; I061 for inputs with named sizes and no given shape.
    """
    own = own or Own()
    chosen = compile_options(options, own)
    budgets = Budgets(**own.budgets)
    say(f"reading {model}", 0.0)
    start = time.perf_counter()
    with in_force(budgets):
        module, rest = loaded(path, chosen)
    read = time.perf_counter()

    def on_progress(text: str) -> None:
        say(text, _fraction(text))

    bounded = None if budgets == Budgets() else budgets
    steps = [_replaying(k, text) for k, text in options.schedules.items()]
    given = rest.changed(extend=[*chosen.extend, *steps], on_progress=on_progress, budgets=bounded)
    if given.place == AUTO:
        given = given.changed(place=placed_for_compile(module, given.backends, given))
    compiled = build_model(module, given)
    _run_sizes(compiled)
    compiled.build  # noqa: B018 - one that the cache had whole is built here
    done = time.perf_counter()
    seconds = {"load": read - start, "compile": done - read}
    session = Session(compiled, model=model, path=path, options=options, seconds=seconds)
    say("reading the trace", _TRACE)
    session.numbers  # noqa: B018 - made while the page still shows progress
    return session


def _run_sizes(compiled: BuiltModel) -> None:
    """Builds a language model for a decode step, unless the sizes of its inputs are given.

    Errors: I061 for named sizes of another model.
    """
    try:
        for wanted in compiled.inputs:
            settled(wanted, {}, None, compiled.inputs)
    except InputError as error:
        step = decode_step(compiled, LENGTH)
        if step is None:
            raise error from None
        compiled.build_for(step)


def _replaying(kernel: str, text: str) -> ScheduleFor:
    """Returns the schedule that steps make of kernels; the steps may come from a page.

    Errors: I237 for more or longer steps than any schedule has.
    """
    steps = text.splitlines()
    if len(steps) > MOST_STEPS or max(map(len, steps), default=0) > LONGEST:
        raise too_much(f"more than {MOST_STEPS} steps, or one of more than {LONGEST} characters")

    def replay(schedule: Schedule, target: Target) -> None:
        for step in replayed(schedule.nest, steps).steps:
            schedule.apply(step.primitive, **dict(step.args))

    made: ScheduleFor = schedule_for(kernel, name=kernel)(replay)
    return made


def _fraction(text: str) -> float | None:
    """Returns the fraction of compiling done, from a progress message of `clew.compile`."""
    kernel = _KERNEL.match(text)
    if kernel is not None:
        return _KERNELS + (_LINKING - _KERNELS) * (int(kernel[1]) - 1) / int(kernel[2])
    return {"graph passes": _PASSES, "linking": _LINKING}.get(text)
