"""Files of the operating system (`/proc`, `/sys`) and data files of a package."""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path


def system_text(path: str | Path) -> str:
    """Returns the text of a system file under `/proc` or `/sys`.

    Errors: OSError if the file does not exist.
    """
    return Path(path).read_text()


def package_text(package: str, name: str) -> str:
    """Returns the text of a data file in one of clew's packages."""
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def nowhere(*, write: bool) -> int:
    """Returns a descriptor of the null device, which keeps nothing and holds nothing."""
    return os.open(os.devnull, os.O_WRONLY if write else os.O_RDONLY)
