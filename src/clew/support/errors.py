"""Errors a user can meet: each has a code, says where it arose, and gives a hint.

A code is one letter for the area and three digits. `docs/errors.md` lists them all; a test holds
the list against the code. Mistakes of clew itself are assertions, never a `ClewError`.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, TypeAlias

Surface: TypeAlias = Literal["python", "cli", "page"]
"""Where a message is read: a Python program, the command line, or the explorer's page."""


class Hint(str):
    """A hint in the words of a Python program, with those of the command line and of the explorer's
    page where these name other options. `cli` also serves the page where there is no `page`.
    """

    cli: str
    page: str

    def __new__(cls, python: str, *, cli: str = "", page: str = "") -> Hint:
        hint = super().__new__(cls, python)
        hint.cli, hint.page = cli, page
        return hint

    def on(self, surface: Surface) -> str:
        """Returns the hint in a surface's words."""
        if surface == "python":
            return str(self)
        return (surface == "page" and self.page) or self.cli or str(self)


class ClewError(Exception):
    """A mistake in what clew was given.

    `code` is stable and documented, `hint` says what to do, and `layer`, `stage` and `pass_name`
    say where: they are filled in by the arrow at work (`locate`), innermost first. `inputs` are
    those that were given, where these may be at fault.
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
        self.inputs = ""

    def __str__(self) -> str:
        return self.text()

    def text(self, surface: Surface = "python") -> str:
        """Returns the message, the place and the hint, a line each, in a surface's words."""
        lines = [f"error[{self.code}] {self.message}"]
        if self.layer:
            lines.append(f"  layer: {self.layer}")
        if self.stage:
            lines.append(f"  stage: {self.stage}")
        if self.pass_name:
            lines.append(f"  pass:  {self.pass_name}")
        if self.inputs:
            lines.append(f"  given: {self.inputs}")
        if self.hint:
            lines.append(f"  hint: {hint_on(self.hint, surface)}")
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


class ClewWarning(UserWarning):
    """Something that was asked for and had no effect, or not the one it was asked for.

    `warnings.simplefilter("error", clew.ClewWarning)` makes an error of it.
    """

    def __init__(self, code: str, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.text()

    def text(self, surface: Surface = "python") -> str:
        """Returns the message and the hint, a line each, in a surface's words."""
        head = f"warning[{self.code}] {self.message}"
        return f"{head}\n  hint: {hint_on(self.hint, surface)}" if self.hint else head


def warn(warning: ClewWarning) -> None:
    """Issues a warning at the line outside of clew that led to it."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and _is_own(frame.f_globals.get("__name__", "")):
        frame, level = frame.f_back, level + 1
    warnings.warn(warning, stacklevel=level + 1)


def _is_own(module: str) -> bool:
    return module == "clew" or module.startswith("clew.")


def hint_on(hint: str, surface: Surface) -> str:
    """Returns a hint in a surface's words."""
    return hint.on(surface) if isinstance(hint, Hint) else hint


@contextmanager
def locate(
    *, layer: str = "", stage: str = "", pass_name: str = "", inputs: str = ""
) -> Iterator[None]:
    """Adds where it happened to every `ClewError` that passes through; inner locations win."""
    try:
        yield
    except ClewError as error:
        error.layer = error.layer or layer
        error.stage = error.stage or stage
        error.pass_name = error.pass_name or pass_name
        error.inputs = error.inputs or inputs
        raise
