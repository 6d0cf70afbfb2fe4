"""Writing files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clew.support.errors import InputError
from clew.support.files import reason_of


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Converts a failure to write a file to a coded error.

    Errors: I115.
    """
    try:
        yield
    except OSError as error:
        raise InputError("I115", f"{str(path)!r} cannot be written: {reason_of(error)}") from None
