"""What the system says of itself in files: `/proc`, `/sys`, and what a package brings along."""

from __future__ import annotations

from importlib import resources
from pathlib import Path


def system_text(path: str | Path) -> str:
    """Returns the text of a file of the system's, under `/proc` or `/sys`.

    Errors: OSError where the system has no such file.
    """
    return Path(path).read_text()


def package_text(package: str, name: str) -> str:
    """Returns the text of a file that a package of clew's holds."""
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")
