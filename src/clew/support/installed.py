"""The versions of installed packages, without importing them or reading their metadata."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable


def versions(names: Iterable[str]) -> list[str]:
    """Returns a text for each package that changes with its version."""
    wanted = dict.fromkeys(names, "")
    for place in sys.path:
        try:
            listed = os.listdir(place or os.curdir)
        except OSError:
            continue
        for each in listed:
            if each.endswith(".dist-info"):
                name, _, version = each.removesuffix(".dist-info").partition("-")
                if wanted.get(name) == "":
                    wanted[name] = version
    return [f"{name} {version or _file(name)}" for name, version in wanted.items()]


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
