"""Tries an edited schedule of one kernel: compiles it, runs the model with it, and compares."""

from __future__ import annotations

import glob
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from clew.backends.cpu.lowering import KernelSource
from clew.backends.cpu.schedule_choice import ScheduleFor
from clew.build.kernel_trace import kernel_traces
from clew.build.result import Build, KernelUse
from clew.explorer.actions.params import number, texts, whole
from clew.explorer.builds import budget
from clew.explorer.inputs import drawn
from clew.explorer.schema import ScheduleTrial
from clew.explorer.session import Session
from clew.explorer.steps import LONGEST, MOST_STEPS, replayed
from clew.explorer.views.code import code_of
from clew.explorer.views.schedule import schedule_steps
from clew.ir.dims import typical
from clew.loop.schedule import Schedule
from clew.serving.ready import segment_inputs
from clew.support.difference import relative_error
from clew.support.errors import ClewError, InputError, locate

Say = Callable[[str, float | None], None]

_SECONDS: Final = 1.0
_MOST_SECONDS: Final = 60.0
_LEAST_ROUNDS: Final = 5
_MOST_ROUNDS: Final = 200


def schedule(session: Session, params: Mapping[str, Any], say: Say) -> ScheduleTrial:
    """Replaces the schedule of one kernel, by its place, in the whole model: `steps` are texts, one
    primitive each; `seconds` is the time for timing.

    All other kernels stay unchanged. Both programs run on the same random inputs; then the kernel
    is timed in each of them, interleaved, at its place in the model.

    Errors: I200 (no such kernel), I235 (parameters); those of the steps, with the step (see
    `replayed`); I237 for a schedule that exceeds a limit; I238 if no code can be generated; I061
    (inputs without random values).
    """
    kernel = whole(params, "kernel")
    steps = texts(params, "steps", MOST_STEPS, LONGEST)
    seconds = number(params, "seconds", _SECONDS, 0.0, _MOST_SECONDS)
    session.kernel(kernel)
    before = session.compiled.build
    use = before.uses[kernel]
    say("replaying the steps", 0.0)
    new = replayed(use.source.nest, steps)
    say("generating code", 0.1)
    _check(use.source, new)
    say("compiling", 0.2)
    after = _built(session, use, new)
    say("running both", 0.6)
    arrays = drawn(session)
    same, error = _compared(before, after, arrays)
    times = _timed(before, after, kernel, arrays, seconds, say)
    return ScheduleTrial(
        kernel=kernel,
        before_ns=times[0],
        after_ns=times[1],
        same_bits=same,
        error=error,
        steps=schedule_steps(new, use.source.stages.ops),
        code=code_of(kernel, kernel_traces(after)[kernel]),
    )


def _check(source: KernelSource, new: Schedule) -> None:
    """Generates the code of a schedule, and rejects it if it exceeds a limit.

    Errors: I237, I238.
    """
    plain, old = budget.estimate(source.nest), budget.estimate(source.scheduled_nest)
    trial = _trial_source(source, new)
    try:
        budget.check_estimate(budget.estimate(trial.scheduled_nest), old, plain)
        made = trial.emitted
    except ClewError:
        raise
    except Exception as error:
        raise InputError(
            "I238",
            f"no code can be generated: {type(error).__name__}: {str(error)[:200]}",
            hint="code generation may not support the last steps; remove some of them",
        ) from error
    known = source.emitted
    taken = made.scratch_bytes + sum(made.workspace_bytes)
    taken_before = known.scratch_bytes + sum(known.workspace_bytes)
    budget.check_code(made.llvm, typical(taken), typical(taken_before))


def _trial_source(source: KernelSource, new: Schedule) -> KernelSource:
    by_hand = [ScheduleFor("page", tuple(new.steps))]
    expected = source.expected
    return KernelSource(source.function, source.target, by_hand, source.bounds, expected=expected)


def _built(session: Session, use: KernelUse, new: Schedule) -> Build:
    """Returns the model with another schedule for one use of a kernel: its last stage, built."""
    model = session.compiled
    mine = ScheduleFor("page", tuple(new.steps), kernel=glob.escape(use.name))
    options = replace(
        model.options,
        passes=(),
        disabled=(),
        required=(),
        instruments=(),
        schedules=(mine, *model.options.schedules),
        trace=False,
        on_progress=lambda text: None,
    )
    with locate(stage=f"the edited schedule of {use.name}"):
        return model.build_with(model.build.stages[-1].module, options)


def _compared(before: Build, after: Build, arrays: Sequence[Any]) -> tuple[bool, float]:
    """Returns whether the outputs of both have the same bits, and the largest relative error."""
    ours, theirs = ([np.array(x) for x in build.program(arrays)] for build in (before, after))
    same = all(a.tobytes() == b.tobytes() for a, b in zip(ours, theirs, strict=True))
    error = max((relative_error(b, a) for a, b in zip(ours, theirs, strict=True)), default=0.0)
    return same, error


def _timed(
    before: Build,
    after: Build,
    kernel: int,
    arrays: Sequence[Any],
    seconds: float,
    say: Say,
) -> tuple[float, float]:
    """Returns the median nanoseconds of a kernel in both programs, which run interleaved."""
    runs = []
    for build in (before, after):
        use = build.uses[kernel]
        inputs = segment_inputs(build.program, build.segments, arrays).get(use.segment)
        if inputs is None:
            return 0.0, 0.0  # in a branch that is not taken
        runs.append((build.segments[use.segment], use.step, inputs))
    took: tuple[list[float], list[float]] = ([], [])
    start = time.monotonic()
    for turn in range(_MOST_ROUNDS):
        elapsed = time.monotonic() - start
        if turn >= _LEAST_ROUNDS and elapsed > seconds:
            break
        say(f"timing, round {turn + 1}", 0.7 + 0.3 * min(1.0, elapsed / max(seconds, 1e-9)))
        for number_ in (0, 1) if turn % 2 == 0 else (1, 0):
            segment, step, inputs = runs[number_]
            took[number_].append(float(segment.profile(inputs)[0, step]))
    return float(np.median(took[0])), float(np.median(took[1]))
