"""Errors for the page: coded, without tracebacks and without folders of this machine."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterable
from pathlib import Path

from clew.explorer.schema import ErrorInfo
from clew.support.errors import ClewError, InputError, hint_on
from clew.support.exhausted import exhausted
from clew.support.folders import temporary_place
from clew.support.settings import settings


class Failure(Exception):
    """An error for the page, with the status of its HTTP response."""

    def __init__(self, error: ErrorInfo | ClewError, status: int = 422) -> None:
        self.info = error if isinstance(error, ErrorInfo) else error_info(error)
        self.status = status
        super().__init__(self.info.message)


class Cancelled(Exception):
    """The user cancelled the work."""


def error_info(error: BaseException, folders: Iterable[Path] = ()) -> ErrorInfo:
    """Returns an error as the page shows it; `folders` and the machine's usual ones are removed
    from paths.
    """
    if isinstance(error, MemoryError) or isinstance(error.__cause__, MemoryError):
        error = InputError(
            "I218",
            "the worker process reached its memory limit",
            hint="raise the limit with clew explore --memory GIB",
        )
    if not isinstance(error, ClewError):
        error = exhausted(error) or InputError(
            "I221",
            f"internal error: {type(error).__name__}: {error}",
            hint="this is a bug in clew; the terminal of clew explore shows the traceback",
        )
    hidden = _folders(folders)
    return ErrorInfo(
        code=error.code,
        message=_without(error.message, hidden),
        layer=error.layer,
        stage=error.stage,
        pass_name=error.pass_name,
        hint=_without(hint_on(error.hint, "page"), hidden),
    )


def error_text(info: ErrorInfo) -> str:
    """Returns an error as the command line prints it."""
    error = ClewError(info.code, info.message, hint=info.hint, layer=info.layer)
    error.stage, error.pass_name = info.stage, info.pass_name
    return str(error)


def died(code: int | None) -> ErrorInfo:
    """Returns the error for a worker process that ended on its own, with its exit code."""
    if code is not None and code < 0:
        try:
            how = f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            how = f"was killed by signal {-code}"
    else:
        how = f"ended with exit code {code}"
    memory = code in (-signal.SIGKILL, -signal.SIGABRT, -signal.SIGSEGV)
    return error_info(
        InputError(
            "I217",
            f"the worker process {how}",
            hint="it may have run out of memory, or hit a bug in clew"
            if memory
            else "the terminal of clew explore may show why",
        )
    )


def _folders(more: Iterable[Path]) -> list[str]:
    own = [
        *more,
        settings().cache_dir,
        temporary_place(),
        Path(__file__).parents[1],
        Path(sys.prefix),
        Path.cwd(),
        Path.home(),
    ]
    texts = {str(path) for p in own for path in (p, p.absolute(), p.resolve())}
    return sorted((t for t in texts if len(t) > 1 and t.startswith("/")), key=len, reverse=True)


def _without(text: str, folders: Iterable[str]) -> str:
    for folder in folders:
        text = text.replace(folder + "/", "").replace(folder, "…")
    return text
