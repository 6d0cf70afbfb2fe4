"""Reads and replays the text of a schedule that a user typed into a page.

The text is not trusted: steps are literals of known types and small numbers, each primitive checks
its step, and a nest that grows too large ends the replay.
"""

from __future__ import annotations

import time
import typing
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

from clew.explorer.builds.budget import check_size
from clew.loop.ir import Nest
from clew.loop.primitives.common import PRIMITIVES
from clew.loop.schedule import Schedule, Step
from clew.support.errors import ClewError, InputError, locate

MOST_STEPS: Final = 300
"""Limit for a schedule; rules use at most 70."""

LONGEST: Final = 1000
"""Characters of a step."""

_LARGEST: Final = 1 << 20
_MOST_NAMES: Final = 64
_SECONDS: Final = 30.0
# A stage cannot be computed in the kernel's arguments: they are already outputs, or not its own.
_SCOPES: Final = ("workspace", "scratch", "register")


def read_steps(texts: Sequence[str]) -> list[tuple[int, Step]]:
    """Returns steps from texts, each with its place among the texts, from 1. Texts that are empty
    or begin with `#` are skipped.

    Errors, all of which name the step: P020 (not a step), I234 (numbers larger than in any
    schedule, or arguments of the wrong kind).
    """
    steps: list[tuple[int, Step]] = []
    for number, text in enumerate(texts, 1):
        if text.strip() and not text.lstrip().startswith("#"):
            with locate(stage=f"step {number}"):
                step = _parsed(text)
                _check_values(step)
                steps.append((number, step))
    return steps


def _parsed(text: str) -> Step:
    try:
        return Step.parse(text)
    except (RecursionError, MemoryError):
        raise InputError(
            "I234", "the step is nested too deeply", hint="arguments are names and numbers"
        ) from None


def _check_values(step: Step) -> None:
    """Checks a step's arguments against the types that its primitive declares.

    Errors: I234.
    """
    names = [name for name, _ in step.args]
    if len(set(names)) < len(names):
        raise InputError("I234", "an argument is given twice", hint="each has one value")
    function = PRIMITIVES.get(step.primitive)
    wanted = {} if function is None else _types(function)
    for name, value in step.args:
        if not _fits(value, wanted.get(name)):
            shown = repr(value)[:60] if isinstance(value, (str, int, tuple)) else "something else"
            raise InputError(
                "I234",
                f"{name} is {shown}",
                hint=f"it is {_said(wanted.get(name))}",
            )


@cache
def _types(function: Callable[..., Any]) -> dict[str, Any]:
    return typing.get_type_hints(function)


def _fits(value: Any, hint: Any) -> bool:
    if typing.get_origin(hint) is typing.Literal:
        return value in _SCOPES
    if hint is int:
        return type(value) is int and 0 <= value <= _LARGEST
    if hint is str:
        return isinstance(value, str)
    if typing.get_origin(hint) is tuple:
        return (
            isinstance(value, tuple)
            and len(value) <= _MOST_NAMES
            and all(isinstance(v, str) for v in value)
        )
    return isinstance(value, str) or (type(value) is int and 0 <= value <= _LARGEST)


def _said(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return f"one of {', '.join(_SCOPES)}"
    if hint is int:
        return f"a whole number from 0 to {_LARGEST}"
    return "a tuple of names, as ('i', 'j')" if typing.get_origin(hint) is tuple else "a name"


def replayed(nest: Nest, texts: Sequence[str]) -> Schedule:
    """Returns the schedule made by applying texts of steps to a nest.

    Errors, all of which name the step (as `step 3`): those of `read_steps` and of the primitives
    (S..., S030 for an unknown one), I236 if a primitive cannot handle its arguments, I237 for a
    nest that grows too large.
    """
    schedule = Schedule(nest)
    until = time.monotonic() + _SECONDS
    for number, step in read_steps(texts):
        with locate(stage=f"step {number}"):
            _apply(schedule, step)
            check_size(schedule.nest)
            if time.monotonic() > until:
                raise InputError(
                    "I237",
                    f"the steps up to here took {_SECONDS:.0f} seconds",
                    hint="the nest has grown too large: split and unroll less",
                )
    return schedule


def _apply(schedule: Schedule, step: Step) -> None:
    try:
        schedule.apply(step.primitive, **dict(step.args))
    except ClewError:
        raise
    except Exception as error:
        raise InputError(
            "I236",
            f"{step.primitive} failed: {type(error).__name__}: {str(error)[:200]}",
            hint="its arguments are invalid for this nest",
        ) from error
