"""Errors a user can meet: each has a code, says where it arose, and gives a hint.

A code is one letter for the area and three digits. `docs/errors.md` lists them all; a test holds
the list against the code. Mistakes of clew itself are assertions, never a `ClewError`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class ClewError(Exception):
    """A mistake in what clew was given.

    `code` is stable and documented, `hint` says what to do, and `layer`, `stage` and `pass_name`
    say where: they are filled in by the arrow at work (`locate`), innermost first.
    """

    area = "clew"

    def __init__(self, code: str, message: str, *, hint: str = "", layer: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.layer = layer
        self.stage = ""
        self.pass_name = ""

    def __str__(self) -> str:
        lines = [f"error[{self.code}] {self.message}"]
        if self.layer:
            lines.append(f"  layer: {self.layer}")
        if self.stage:
            lines.append(f"  stage: {self.stage}")
        if self.pass_name:
            lines.append(f"  pass:  {self.pass_name}")
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)


class ModelError(ClewError):
    """M...: the model file is damaged, unsafe or inconsistent."""

    area = "model"


class UnsupportedError(ClewError):
    """U...: the model is valid, and clew cannot compile it (yet)."""

    area = "unsupported"


class GraphTypeError(ClewError):
    """T...: types, shapes or attributes of an operator do not fit."""

    area = "type"


class TextError(ClewError):
    """P...: the text form of a graph or schedule does not parse."""

    area = "text"


class InputError(ClewError):
    """I...: what was passed to `load`, `compile`, a compiled model or the command line is wrong."""

    area = "input"


class RunError(InputError, IndexError):
    """I...: an operator met values in a run that it cannot serve, such as an index outside.

    It is an `IndexError` too: what evaluates operators ahead of a run leaves such a call to it.
    """


class ScheduleError(ClewError):
    """S...: a schedule primitive is not legal here."""

    area = "schedule"


class CompileError(ClewError):
    """C...: native compilation, linking or a stored artifact failed."""

    area = "compile"


@contextmanager
def locate(*, layer: str = "", stage: str = "", pass_name: str = "") -> Iterator[None]:
    """Adds where it happened to every `ClewError` that passes through; inner locations win."""
    try:
        yield
    except ClewError as error:
        error.layer = error.layer or layer
        error.stage = error.stage or stage
        error.pass_name = error.pass_name or pass_name
        raise
