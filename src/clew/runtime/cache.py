"""The disk cache of objects and small metadata.

An entry is a file named by its key: a header with a checksum, then the data. Writers put a whole
file in place by renaming, so that readers in any process see all of it or none. A damaged or
foreign file is a miss. A disk that cannot be written or read means work without a cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import re
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from clew.support.files import only_ours, open_plain
from clew.support.locks import Lock
from clew.support.settings import settings

_MAGIC = b"clew-cache-1\n"
_DIGEST_BYTES = 32
_HEADER_BYTES = len(_MAGIC) + _DIGEST_BYTES
_KEY = re.compile(r"[0-9a-f]{8,128}")
_FOLDER = re.compile(r"[0-9a-f]{2}")
_TEMPORARY_PREFIX = "writing-"
# The second is that of containers (`runtime.container`).
_TEMPORARY_PREFIXES = (_TEMPORARY_PREFIX, ".clew-")
# No writer takes that long.
_ABANDONED_S = 3600.0
# A writer sees to it that the cache does not grow without end: when this process has written so
# much, and now and then for processes that end before. A look at all entries takes long where they
# are many.
_LIMIT_BYTES = 4 << 30
_LOOK_AFTER_BYTES = _LIMIT_BYTES // 32
_LOOK_AFTER_S = 3600.0
# Its time is that of the last look, by whatever process.
_LOOKED = "looked"
_unseen_bytes: Counter[Path] = Counter()
_unseen_lock = Lock()


@dataclass(frozen=True)
class CacheStats:
    """What lies on the disk, and how this process has fared with it."""

    entries: int
    size_bytes: int
    hits: int
    misses: int
    damaged: int


class Cache:
    """Bytes by hex key below a folder. `root=None` is a cache that keeps nothing."""

    def __init__(self, root: Path | None):
        self.root = root
        self._hits = self._misses = self._damaged = 0
        self._warned = False
        self._lock = Lock()

    def get(self, key: str) -> bytes | None:
        """Returns the data put under `key`, or None."""
        data = self._read(key) if self.root is not None else None
        with self._lock:
            if data is None:
                self._misses += 1
            else:
                self._hits += 1
        return data

    def put(self, key: str, data: bytes) -> None:
        """Keeps `data` under `key`; warns once, and goes on, where the disk refuses."""
        if self.root is None:
            return
        path = self._path(key)
        header = _MAGIC + hashlib.sha256(key.encode() + data).digest()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(prefix=_TEMPORARY_PREFIX, dir=path.parent)
            try:
                with os.fdopen(handle, "wb") as stream:
                    stream.write(header)
                    stream.write(data)
                os.replace(name, path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(name)
                raise
        except OSError as error:
            self._warn(error)
            return
        self.grew(len(data))

    def grew(self, size_bytes: int) -> None:
        """Notes that so much was written, and looks whether the cache is too large when it is time:
        what was used least recently is removed then.
        """
        if self.root is None:
            return
        with _unseen_lock:
            _unseen_bytes[self.root] += size_bytes
            due = _unseen_bytes[self.root] >= _LOOK_AFTER_BYTES
        if not due and self._looked_ago_s() < _LOOK_AFTER_S:
            return
        with _unseen_lock:
            _unseen_bytes[self.root] = 0
        with contextlib.suppress(OSError):
            (self.root / _LOOKED).touch()
        self.prune(_LIMIT_BYTES)

    def _looked_ago_s(self) -> float:
        assert self.root is not None
        try:
            return time.time() - (self.root / _LOOKED).stat().st_mtime
        except OSError:
            return math.inf

    def file(self, key: str) -> Path | None:
        """Returns where a file that its writer seals itself is kept; None without a disk.

        It counts, and is pruned, like any entry; who uses it says so (`touch`).
        """
        if self.root is None:
            return None
        path = self._path(key)
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def touch(self, path: Path) -> None:
        """Notes that a file of the cache is used; `prune` goes by that."""
        with contextlib.suppress(OSError):
            os.utime(path)

    def stats(self) -> CacheStats:
        """Counts entries and bytes on the disk; hits and misses are this process's."""
        sizes = [size for _, size, _ in self._entries()]
        return CacheStats(len(sizes), sum(sizes), self._hits, self._misses, self._damaged)

    def clear(self) -> int:
        """Removes every entry, and returns how many there were."""
        return sum(_remove(path) for path, _, _ in self._entries())

    def prune(self, max_bytes: int) -> int:
        """Removes the entries used least recently until `max_bytes` are left, and what writers that
        were killed have left; returns how many.
        """
        entries = sorted(self._entries(), key=lambda entry: entry[2])
        abandoned = [
            e for e in entries if _is_temporary(e[0]) and e[2] < time.time() - _ABANDONED_S
        ]
        removed = sum(_remove(path) for path, _, _ in abandoned)
        entries = [e for e in entries if e not in abandoned]
        total = sum(size for _, size, _ in entries)
        for path, size, _ in entries:
            if total <= max_bytes:
                break
            total -= size
            removed += _remove(path)
        return removed

    def _path(self, key: str) -> Path:
        assert self.root is not None
        assert _KEY.fullmatch(key), f"{key!r} is not a cache key"
        return self.root / key[:2] / key[2:]

    def _read(self, key: str) -> bytes | None:
        path = self._path(key)
        try:
            with open_plain(path, links=False) as file:
                content = file.read()
        except OSError:
            return None
        data = content[_HEADER_BYTES:]
        if content[:_HEADER_BYTES] != _MAGIC + hashlib.sha256(key.encode() + data).digest():
            self._damaged += 1
            _remove(path)
            return None
        self.touch(path)
        return data

    def _entries(self) -> Iterator[tuple[Path, int, float]]:
        """Yields path, size and time of last use; leaves other people's files alone."""
        if self.root is None:
            return
        for folder in _listed(self.root):
            for entry in _listed(folder.path) if _FOLDER.fullmatch(folder.name) else ():
                path = Path(entry.path)
                if not _KEY.fullmatch(folder.name + entry.name) and not _is_temporary(path):
                    continue
                with contextlib.suppress(OSError):  # another process may remove it meanwhile
                    status = entry.stat()
                    yield path, status.st_size, status.st_mtime

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(f"clew goes on without its disk cache: {error}", stacklevel=3)


def _listed(folder: Path | str) -> list[os.DirEntry[str]]:
    """Returns what is in a folder: nothing in one that is none, or was removed meanwhile."""
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError:
        return []


def _is_temporary(path: Path) -> bool:
    return path.name.startswith(_TEMPORARY_PREFIXES)


def _remove(path: Path) -> bool:
    try:
        path.unlink()
    except OSError:
        return False
    return True


def default_cache() -> Cache:
    """Returns the cache at the place that the settings name, or one that keeps nothing."""
    current = settings()
    if not current.cache_enabled:
        return Cache(None)
    if not only_ours(current.cache_dir):  # it holds native code, which is run
        warnings.warn(
            f"clew goes on without its disk cache: others may write to {current.cache_dir}",
            stacklevel=3,
        )
        return Cache(None)
    return Cache(current.cache_dir)
