"""Files of the operating system (`/proc`, `/sys`) and data files of a package."""

from __future__ import annotations

import os
from pathlib import Path


def system_text(path: str | Path) -> str:
    """Returns the text of a system file under `/proc` or `/sys`.

    Errors: OSError if the file does not exist.
    """
    return Path(path).read_text()


def system_head(path: str, size_bytes: int) -> str:
    """Returns the first bytes of a system file as text: the whole of some takes long to make.

    Errors: OSError if the file does not exist.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, size_bytes).decode(errors="replace")
    finally:
        os.close(file)


def package_text(package: str, name: str) -> str:
    """Returns the text of a data file in one of clew's packages."""
    from importlib import resources  # noqa: PLC0415 - it loads many modules, which few need

    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def nowhere(*, write: bool) -> int:
    """Returns a descriptor of the null device, which keeps nothing and holds nothing."""
    return os.open(os.devnull, os.O_WRONLY if write else os.O_RDONLY)
