"""Errors and warnings of commands, on stderr. What prints them is imported when there are some."""

from __future__ import annotations

import warnings
from typing import TextIO

from clew.cli.user_code import of_user
from clew.support.errors import ClewError, ClewWarning
from clew.support.exhausted import exhausted


def show_warnings() -> None:
    """Prints every clew warning to stderr, worded for the command line."""
    shown = warnings.showwarning

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if isinstance(message, ClewWarning):
            _print(message.text("cli"), "bold yellow")
        else:
            shown(message, category, filename, lineno, file, line)

    warnings.showwarning = show
    warnings.simplefilter("always", ClewWarning)


def show_error(error: BaseException) -> None:
    """Prints the error that ended a command."""
    coded = error if isinstance(error, ClewError) else exhausted(error) or of_user(error)
    if coded is not None:
        _print(coded.text("cli"), "bold red")
        return
    hint = "  hint: this is a bug in clew; clew --debug COMMAND shows the traceback"
    _print(f"internal error: {type(error).__name__}: {error}\n{hint}", "red")


def _print(text: str, style: str) -> None:
    """Prints a text whose first line has a style."""
    import rich.text  # noqa: PLC0415 - it loads what prints colors

    from clew.cli.output import stderr  # noqa: PLC0415

    first, _, rest = text.partition("\n")
    stderr().print(rich.text.Text.assemble((first, style), "\n" if rest else "", rest))
