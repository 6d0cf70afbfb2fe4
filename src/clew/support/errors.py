"""Errors a user can meet. Each has a code, a place and a hint.

A code is one letter for the area and three digits. `docs/errors.md` lists them all; a test compares
the list with the code. Errors in clew itself are assertions, never a `ClewError`.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Literal, TypeAlias

from clew.support.scoped import scoped

PASSED_ON: Final = (MemoryError, KeyboardInterrupt, GeneratorExit)
"""Exceptions that say nothing about the code that raised them. Code that turns all foreign
exceptions into coded errors passes them on.
"""
Surface: TypeAlias = Literal["python", "cli", "page"]
"""Where a message is read: in a Python program, on the command line, or on the explorer's page."""


class Hint(str):
    """A hint worded for Python, with other wordings for the command line and the explorer's page if
    their options have other names. Without `page`, the page shows `cli`.
    """

    cli: str
    page: str

    def __new__(cls, python: str, *, cli: str = "", page: str = "") -> Hint:
        hint = super().__new__(cls, python)
        hint.cli, hint.page = cli, page
        return hint

    def on(self, surface: Surface) -> str:
        """Returns the hint's wording for a surface."""
        if surface == "python":
            return str(self)
        return (surface == "page" and self.page) or self.cli or str(self)


class ClewError(Exception):
    """An error in the user's input.

    `code` is stable and documented; `hint` says what to do. `layer`, `stage` and `pass_name` give
    the place: `locate` fills them in as the error propagates, innermost first. `position` is the
    line of the user's code that calls the layer. `inputs` lists the given inputs if they may be the
    cause.
    """

    area = "clew"

    def __init__(self, code: str, message: str, *, hint: str = "", layer: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.layer = layer
        self.position = ""
        self.stage = ""
        self.pass_name = ""
        self.inputs = ""

    def __str__(self) -> str:
        return self.text()

    def text(self, surface: Surface = "python") -> str:
        """Returns the message, the place and the hint, one per line, worded for a surface."""
        lines = [f"error[{self.code}] {self.message}"]
        if self.layer:
            lines.append(f"  layer: {self.layer}")
        if self.position:
            lines.append(f"  code:  {self.position}")
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
    """U...: the model is valid, but clew cannot compile it (yet)."""

    area = "unsupported"


class GraphTypeError(ClewError):
    """T...: types, shapes or attributes of an operator do not fit."""

    area = "type"


class TextError(ClewError):
    """P...: the text form of a graph or schedule does not parse."""

    area = "text"


class InputError(ClewError):
    """I...: an argument of `load`, `compile`, a compiled model or the command line is wrong."""

    area = "input"


class RunError(InputError, IndexError):
    """I...: an operator met values during a run that it cannot process, such as an index out of
    range.

    It is also an `IndexError`: code that evaluates operators before a run catches it and leaves the
    call to the run.
    """


class ScheduleError(ClewError):
    """S...: a schedule primitive is not legal here."""

    area = "schedule"


class CompileError(ClewError):
    """C...: native compilation, linking or a stored artifact failed."""

    area = "compile"


class ClewWarning(UserWarning):
    """A request of the user that had no effect, or not the requested one.

    `warnings.simplefilter("error", clew.ClewWarning)` turns it into an error.
    """

    def __init__(self, code: str, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.text()

    def text(self, surface: Surface = "python") -> str:
        """Returns the message and the hint, one per line, worded for a surface."""
        head = f"warning[{self.code}] {self.message}"
        return f"{head}\n  hint: {hint_on(self.hint, surface)}" if self.hint else head


def warn(warning: ClewWarning, *, of_model: bool = True) -> None:
    """Issues a warning at the line outside of clew that caused it. `noting_warnings` collects
    those that are due to the model and its options.
    """
    noted = _noted.get()
    if noted is not None and of_model:
        noted.append(warning)
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and _is_own(frame.f_globals.get("__name__", "")):
        frame, level = frame.f_back, level + 1
    warnings.warn(warning, stacklevel=level + 1)


_noted: ContextVar[list[ClewWarning] | None] = ContextVar("warnings", default=None)


@contextmanager
def noting_warnings() -> Iterator[list[ClewWarning]]:
    """Yields a list to which the warnings about models that this thread issues inside the block
    are added.
    """
    noted: list[ClewWarning] = []
    with scoped(_noted, noted):
        yield noted


def _is_own(module: str) -> bool:
    return module == "clew" or module.startswith("clew.")


def hint_on(hint: str, surface: Surface) -> str:
    """Returns a hint's wording for a surface."""
    return hint.on(surface) if isinstance(hint, Hint) else hint


@contextmanager
def locate(
    *,
    layer: str = "",
    stage: str = "",
    pass_name: str = "",
    inputs: Callable[[], str] | None = None,
) -> Iterator[None]:
    """Adds a place to every `ClewError` that leaves the block; inner places win. `inputs` returns
    a description of the inputs, and is called only for an error.
    """
    try:
        yield
    except ClewError as error:
        error.layer = error.layer or layer
        error.stage = error.stage or stage
        error.pass_name = error.pass_name or pass_name
        if inputs is not None:
            error.inputs = error.inputs or inputs()
        raise
