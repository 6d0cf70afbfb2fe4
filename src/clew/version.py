"""Versions of clew and of the code that generates native code; both are parts of cache keys."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from functools import cache
from typing import Final

VERSION: Final = "0.2.0"
# The folders whose code determines a function's native code. `ir` is one of them, because its
# dimensions become the extents, strides and bounds of loops.
DECIDING: Final = (
    "backends", "build", "codegen", "cost", "ir", "loop", "machine", "ops", "schedules", "te",
)  # fmt: skip


@cache
def codegen_version() -> str:
    """Returns a string that changes with any code that affects a function's native code."""
    return _digest(DECIDING)


@cache
def package_version() -> str:
    """Returns a string that changes with any code that affects a model's program."""
    return _digest(())


@cache
def source_states() -> Mapping[str, str]:
    """Returns the state of each source file of the package, by its name in the package's folder:
    name, size, and time of writing. An edit changes the last two.
    """
    states: dict[str, str] = {}
    _add_states(os.path.dirname(__file__), "", states)
    return {name: states[name] for name in sorted(states)}


def _add_states(folder: str, below: str, states: dict[str, str]) -> None:
    deeper = []
    with os.scandir(folder) as entries:
        for entry in entries:
            name = entry.name
            if name.endswith(".py"):
                status = entry.stat()
                name = below + name
                states[name] = f"{name} {status.st_size} {status.st_mtime_ns}"
            elif "." not in name and name != "__pycache__" and stat.S_ISDIR(entry.stat().st_mode):
                deeper.append(name)
    for name in deeper:
        _add_states(f"{folder}/{name}", f"{below}{name}/", states)


def _digest(folders: tuple[str, ...]) -> str:
    """Returns a digest of the states of the source files in some folders; of all without any."""
    import hashlib  # noqa: PLC0415 - it loads OpenSSL, which `import clew` does without

    found = source_states()
    chosen = [s for name, s in found.items() if not folders or name.split("/", 1)[0] in folders]
    return hashlib.blake2b("\n".join([VERSION, *chosen]).encode(), digest_size=8).hexdigest()
