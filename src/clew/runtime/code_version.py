"""The version of clew's code, by its content."""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path
from typing import Final

from clew import version
from clew.runtime.cache import SEEN, Cache
from clew.support.files import package_bytes

_ROOT: Final = os.path.dirname(version.__file__)


def code_version(store: Cache) -> str:
    """Returns a digest of the content of clew's source files. It is computed once, and kept in the
    cache as long as their sizes and times stay the same.

    Errors: OSError if a file cannot be read.
    """
    return _version(store.root)


@cache
def _version(root: Path | None) -> str:
    states = version.source_states()
    listed = "\n".join([_ROOT, *states.values()])
    key = hashlib.sha256(listed.encode()).hexdigest()[:40] + SEEN
    store = Cache(root)
    found = store.get(key)
    if found is None:
        digest = hashlib.sha256(version.VERSION.encode())
        for name in states:
            digest.update(f"\0{name}\0".encode())
            digest.update(package_bytes(f"{_ROOT}{os.sep}{name}"))
        found = digest.hexdigest()[:40].encode()
        store.put(key, found)
    return found.decode()
