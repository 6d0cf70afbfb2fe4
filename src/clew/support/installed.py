"""The versions of installed packages, without importing them or reading their metadata."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable
from functools import lru_cache


def versions(names: Iterable[str]) -> list[str]:
    """Returns a text for each package that changes with its version."""
    wanted = dict.fromkeys(names, "")
    for place in sys.path:
        try:
            found = _installed(os.path.abspath(place), os.stat(place or os.curdir).st_mtime_ns)
        except OSError:
            continue
        for name, version in found:
            if wanted.get(name) == "":
                wanted[name] = version
    return [f"{name} {version or _file(name)}" for name, version in wanted.items()]


@lru_cache(maxsize=64)
def _installed(folder: str, written_ns: int) -> list[tuple[str, str]]:
    """Returns the names and versions of the packages that a folder holds."""
    listed = (each for each in os.listdir(folder) if each.endswith(".dist-info"))
    parts = (each.removesuffix(".dist-info").partition("-") for each in listed)
    return [(name, version) for name, _, version in parts]


def _file(name: str) -> str:
    """Returns the state of the file of a package that is not installed by a package manager."""
    try:
        found = importlib.util.find_spec(name)
        if found is None or found.origin is None:
            return "absent"
        status = os.stat(found.origin)
    except (ImportError, OSError, ValueError):
        return "absent"
    return f"{status.st_size} {status.st_mtime_ns}"
