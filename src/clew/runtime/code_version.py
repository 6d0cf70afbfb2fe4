"""The version of clew's code, by its content."""

from __future__ import annotations

import hashlib
import os
import stat
from functools import cache
from pathlib import Path
from typing import Final

from clew import version
from clew.runtime.cache import SEEN, Cache
from clew.support.files import read_bytes

_ROOT: Final = Path(version.__file__).parent


def code_version(store: Cache) -> str:
    """Returns a digest of the content of clew's source files. It is computed once, and kept in the
    cache as long as their sizes and times stay the same.

    Errors: OSError if a file cannot be read.
    """
    return _version(store.root)


@cache
def _version(root: Path | None) -> str:
    states: dict[str, str] = {}
    _add_states(os.fspath(_ROOT), "", states)
    files = sorted(states)
    listed = "\n".join([os.fspath(_ROOT), *map(states.__getitem__, files)])
    key = hashlib.sha256(listed.encode()).hexdigest()[:40] + SEEN
    store = Cache(root)
    found = store.get(key)
    if found is None:
        digest = hashlib.sha256(version.VERSION.encode())
        place = f"{os.fspath(_ROOT)}{os.sep}"
        for name in files:
            digest.update(f"\0{name}\0".encode() + read_bytes(place + name))
        found = digest.hexdigest()[:40].encode()
        store.put(key, found)
    return found.decode()


def _add_states(folder: str, below: str, states: dict[str, str]) -> None:
    """Adds the source files in a folder: name, size and time of writing as a text, by name."""
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
