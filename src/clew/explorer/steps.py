"""Reads and replays the text of a schedule that somebody typed into a page.

Nothing in it is trusted: steps are literals of known types and small numbers, each is checked by
its primitive, and a nest that grows too large ends the replay.
"""

from __future__ import annotations

import time
import typing
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from clew.explorer.budget import check_size
from clew.loop.ir import Nest
from clew.loop.primitives.common import PRIMITIVES
from clew.loop.schedule import Schedule, Step
from clew.support.errors import ClewError, InputError, locate

LONGEST: Final = 60_000
"""Characters of a schedule's text."""

_MOST_STEPS: Final = 300  # the rules take 70 at most
_LONGEST_STEP: Final = 1000
_LARGEST: Final = 1 << 20
_MOST_NAMES: Final = 64
_SECONDS: Final = 30.0
# A stage is not computed in the kernel's arguments: those are outputs already, or not its own.
_SCOPES: Final = ("workspace", "scratch", "register")


def read_steps(text: str) -> list[tuple[int, Step]]:
    """Returns the steps of a text with the number of each one's line, from 1. Lines that are empty
    or begin with `#` are left out.

    Errors, all of which name the line: P020 (not a step), I234 (more or longer lines, or larger
    numbers than any schedule has).
    """
    steps: list[tuple[int, Step]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        with locate(stage=_place(number, line)):
            if len(line) > _LONGEST_STEP or len(steps) == _MOST_STEPS:
                raise InputError(
                    "I234",
                    "the schedule is too long",
                    hint=f"{_MOST_STEPS} steps, of {_LONGEST_STEP} characters each, are the limit",
                )
            step = _parsed(line)
            _check_values(step)
            steps.append((number, step))
    return steps


def _place(number: int, text: str) -> str:
    shown = text.strip()
    return f"line {number}: {shown[:80]}{'...' if len(shown) > 80 else ''}"  # noqa: PLR2004


def _parsed(line: str) -> Step:
    try:
        return Step.parse(line)
    except (RecursionError, MemoryError):
        raise InputError(
            "I234", "the step is nested too deeply", hint="arguments are names and numbers"
        ) from None


def _check_values(step: Step) -> None:
    """Checks a step's arguments against what its primitive says that they are.

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


def replayed(nest: Nest, text: str) -> Schedule:
    """Returns the schedule that a text makes of a nest.

    Errors, all of which name the line: those of `read_steps` and of the primitives (S..., S030 for
    an unknown one), I236 where a primitive does not know what to do with its arguments, I237 for a
    nest that grows too large.
    """
    schedule = Schedule(nest)
    lines = text.splitlines()
    until = time.monotonic() + _SECONDS
    for number, step in read_steps(text):
        with locate(stage=_place(number, lines[number - 1])):
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
            hint="what it is asked for makes no sense on this nest",
        ) from error
