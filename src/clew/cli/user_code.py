"""Exceptions that the user's own Python code has raised."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
import traceback
from pathlib import Path

import clew
from clew.support.errors import ClewError, InputError


def of_user(error: BaseException) -> ClewError | None:
    """Returns the coded error for an exception raised in a file of the user: an extension, a
    module, a class. None if it was raised in clew, in Python or in an installed package.
    """
    frames = reversed(traceback.extract_tb(error.__traceback__))
    last = next((f for f in frames if _is_clew(f.filename) or not _is_installed(f.filename)), None)
    if last is None or _is_clew(last.filename):
        return None
    what = f"{type(error).__name__}: {error}".strip(": ")
    return InputError(
        "I068",
        f"{last.filename!r} failed at line {last.lineno}: {what}",
        hint="clew --debug COMMAND shows the traceback",
    )


def _is_installed(file: str) -> bool:
    if file.startswith("<") or not os.path.isfile(file):  # compiled extensions name no file
        return True
    here, kinds = Path(file).resolve(), ("stdlib", "platstdlib", "purelib", "platlib")
    folders = [sysconfig.get_paths()[kind] for kind in kinds]
    folders += [*site.getsitepackages(), site.getusersitepackages()]
    is_command = here == Path(sys.argv[0]).resolve()
    return is_command or any(here.is_relative_to(Path(folder).resolve()) for folder in folders)


def _is_clew(file: str) -> bool:
    return Path(file).is_relative_to(Path(clew.__file__).parent)
