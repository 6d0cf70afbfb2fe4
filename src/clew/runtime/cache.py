"""The disk cache of objects and small metadata.

An entry is a file named by its key: a header with a checksum, then the data. Writers rename
complete files into place, so that readers in any process see all of an entry or none. A damaged or
foreign file is a miss. If the disk cannot be written or read, clew works without a cache.

The contents are executed, so nobody else may write to them: folders are private to the user, and
the owner and mode of each folder and file are checked when it is opened.

The suffix of a key says what an entry is:

| suffix | entry |
|---|---|
| none | an object, or other small data |
| `.native` | an object of the run time itself |
| `.start` | what a file of a model compiles to (`serving/start.py`) |
| `.index` | a stored build: its parts, and a description (`serving/stored.py`) |
| `.part` | a part of stored builds, which lasts as long as an index that names it |
| `.seen` | what is known of a file as long as the file's identity stays the same |

The time of the last use of an entry is its file's time of writing. Parts keep theirs.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import re
import stat
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

from clew.support.dataclass import dataclass
from clew.support.errors import ClewWarning, warn
from clew.support.folders import (
    PRIVATE,
    create_in,
    is_ours,
    make_private,
    open_folder,
    open_ours,
    why_not_ours,
)
from clew.support.locks import Lock
from clew.support.settings import settings
from clew.support.writing import TEMPORARY_PREFIX as WRITTEN_PREFIX

_MAGIC = b"clew-cache-1\n"
_DIGEST_BYTES = 32
_HEADER_BYTES = len(_MAGIC) + _DIGEST_BYTES
INDEX: Final = ".index"
PART: Final = ".part"
START: Final = ".start"
SEEN: Final = ".seen"
NATIVE: Final = ".native"
_KINDS: Final = frozenset(("", INDEX, PART, START, SEEN, NATIVE))
_KEY_DIGITS: Final = range(8, 129)
_DIGITS: Final = frozenset("0123456789abcdef")
_TEMPORARY_PREFIX = "writing-"
_WRITING = (_TEMPORARY_PREFIX, WRITTEN_PREFIX)
# Other files in a cache: modules that LLVM could not compile, and the marker of the last check.
_OURS: Final = r"[0-9a-f]{2}|looked|failed-[0-9a-f]+\.ll"
# Permissions of everybody but the owner.
_OF_OTHERS = 0o077
# The longest time that any writer takes.
_ABANDONED_S = 3600.0
# Writers bound the size of the cache. A process checks it after writing one part in so many of the
# bound, and occasionally for processes that end before that. A check of many entries is slow.
_LOOK_AFTER_SHARE = 32
_LOOK_AFTER_S = 3600.0
# Uses are noted so often.
_NOTE_AFTER_S = 60.0
MOST_BYTES: Final = 4 << 30
"""The default bound of a cache's size; less on small disks (`DISK_SHARE`)."""
DISK_SHARE: Final = 20
"""By default, the cache takes at most one part in so many of the disk."""
# Its modification time is the time of the last check by any process.
_LOOKED = "looked"
_unseen_bytes: Counter[Path] = Counter()
_unseen_lock = Lock()


@dataclass(frozen=True)
class Entry:
    """A file of the cache. `key` is "" for files of unfinished writes."""

    path: Path
    key: str
    size_bytes: int
    used_s: float


@dataclass(frozen=True)
class Index:
    """A stored build: the keys of its parts, and a description."""

    parts: tuple[str, ...]
    about: Mapping[str, Any]


@dataclass(frozen=True)
class CacheStats:
    """Contents of the disk cache, and this process's use of it."""

    entries: int
    size_bytes: int
    hits: int
    misses: int
    damaged: int


class Cache:
    """A store of bytes by hex key in a folder. `root=None` is a cache that stores nothing."""

    def __init__(self, root: Path | None):
        self.root = root
        self._hits = self._misses = self._damaged = 0
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
        """Stores `data` under `key`; if the disk refuses, warns once and continues."""
        if self.root is None:
            return
        if self.write(key, (_MAGIC + hashlib.sha256(key.encode() + data).digest(), data)):
            self.grew(len(data))

    def write(self, key: str, pieces: Sequence[Any], *, sync: bool = False) -> bool:
        """Stores pieces of bytes as a file that its readers check themselves, and returns whether
        the disk took it. `sync` waits until it is on the disk.
        """
        try:
            with self._folder(key, make=True) as folder:
                name = f"{_TEMPORARY_PREFIX}{os.urandom(8).hex()}"
                try:
                    with create_in(folder, name) as stream:
                        for piece in pieces:
                            stream.write(piece)
                        if sync:
                            stream.flush()
                            os.fsync(stream.fileno())
                    os.replace(name, key[2:], src_dir_fd=folder, dst_dir_fd=folder)
                except BaseException:
                    with contextlib.suppress(OSError):
                        os.unlink(name, dir_fd=folder)
                    raise
        except OSError as error:
            assert self.root is not None
            reason = error.strerror if error.errno == errno.EPERM else error
            _go_on_without(self.root, str(reason))
            return False
        return True

    def index(self, key: str) -> Index | None:
        """Returns the parts of a stored build."""
        return _index_of(self.get(key + INDEX))

    def peek(self, key: str) -> bytes | None:
        """Returns the data put under `key`, or None, without marking it as used."""
        file = self.open(key)
        if file is None:
            return None
        with file, contextlib.suppress(OSError):
            return _checked(key, file.read())
        return None

    def peek_index(self, key: str) -> Index | None:
        """Returns the parts of a stored build, without marking it as used."""
        return _index_of(self.peek(key + INDEX))

    def put_index(self, key: str, index: Index) -> None:
        """Stores the parts of a build, which must have been written before."""
        text = json.dumps({"parts": list(index.parts), "about": dict(index.about)})
        self.put(key + INDEX, text.encode())

    def grew(self, size_bytes: int) -> None:
        """Records that `size_bytes` were written, and checks the size of the cache when it is time:
        if it is too large, the least recently used entries are removed.
        """
        if self.root is None:
            return
        with _unseen_lock:
            _unseen_bytes[self.root] += size_bytes
            due = _unseen_bytes[self.root] * _LOOK_AFTER_SHARE >= self.limit_bytes
        if not due and self._looked_ago_s() < _LOOK_AFTER_S:
            return
        with _unseen_lock:
            _unseen_bytes[self.root] = 0
        looked = self.root / _LOOKED
        with contextlib.suppress(OSError):
            if os.path.islink(looked) or not os.path.exists(looked):
                _remove(looked)
                looked.touch(0o600)
            os.utime(looked, follow_symlinks=False)
        self.prune(self.limit_bytes)

    @property
    def limit_bytes(self) -> int:
        """The size that writers keep the cache to."""
        given = settings().cache_bytes
        if given is not None:
            return given
        place = self.root
        while place is not None and place != place.parent:
            with contextlib.suppress(OSError):
                disk = os.statvfs(place)
                return min(MOST_BYTES, disk.f_blocks * disk.f_frsize // DISK_SHARE)
            place = place.parent
        return MOST_BYTES

    def _looked_ago_s(self) -> float:
        assert self.root is not None
        try:
            return time.time() - (self.root / _LOOKED).stat().st_mtime
        except OSError:
            return math.inf

    def open(self, key: str) -> BinaryIO | None:
        """Opens an entry; returns None if there is none, or if it belongs to another user."""
        if self.root is None:
            return None
        try:
            with self._folder(key) as folder:
                return open_ours(key[2:], folder)
        except OSError:
            return None

    def drop(self, key: str | None) -> None:
        """Removes an entry if it exists."""
        if self.root is not None and key is not None:
            _remove(self._path(key))

    def touch(self, file: BinaryIO) -> None:
        """Marks an open file of the cache as used, for `prune`."""
        with contextlib.suppress(OSError):
            if abs(time.time() - os.fstat(file.fileno()).st_mtime) > _NOTE_AFTER_S:
                os.utime(file.fileno())

    def stats(self) -> CacheStats:
        """Counts entries and bytes on the disk; hits and misses are this process's."""
        sizes = [entry.size_bytes for entry in self.entries()]
        return CacheStats(len(sizes), sum(sizes), self._hits, self._misses, self._damaged)

    def clear(self) -> int:
        """Removes every entry, and returns their number."""
        return sum(_remove(entry.path) for entry in self.entries())

    def prune(self, max_bytes: int) -> int:
        """Removes the least recently used entries until `max_bytes` are left, and what killed
        writers left; returns the number of removed files. A stored build counts with its parts;
        those that several builds share are removed with the last of these.
        """
        entries = sorted(self.entries(), key=lambda entry: entry.used_s, reverse=True)
        old_s = time.time() - _ABANDONED_S
        parts = {e.key: e for e in entries if e.key.endswith(PART)}
        kept: set[str] = set()
        dropped: list[Entry] = []
        total, is_full = 0, False
        for entry in entries:
            if not entry.key:
                if entry.used_s < old_s:
                    dropped.append(entry)
                continue
            if entry.key.endswith(PART):
                continue
            is_index = entry.key.endswith(INDEX)
            index = self.peek_index(entry.key.removesuffix(INDEX)) if is_index else None
            named = () if index is None else index.parts
            new = {key for key in named if key in parts and key not in kept}
            size = entry.size_bytes + sum(parts[key].size_bytes for key in new)
            is_full = is_full or total + size > max_bytes
            if is_full:
                dropped.append(entry)
            else:
                total += size
                kept |= new
        # A part may be new because the writer of its build is not done.
        lost = [e for key, e in parts.items() if key not in kept and (is_full or e.used_s < old_s)]
        return sum(_remove(entry.path) for entry in (*dropped, *lost))

    def _path(self, key: str) -> Path:
        assert self.root is not None
        if not _is_key(key):
            raise AssertionError(f"{key!r} is not a cache key")
        return self.root / key[:2] / key[2:]

    @contextmanager
    def _folder(self, key: str, *, make: bool = False) -> Iterator[int]:
        """Opens the folder of a key's entry.

        Errors: OSError if there is none, or if others may write to it.
        """
        if self.root is None:
            raise OSError(errno.ENOENT, "no cache")
        path = self._path(key).parent
        try:
            folder = open_folder(path)
        except (FileNotFoundError, PermissionError):
            if not make:
                raise
            make_private(path)
            if not is_ours(os.lstat(path)):
                _reclaim(path)
            folder = open_folder(path)
        try:
            yield folder
        finally:
            os.close(folder)

    def _read(self, key: str) -> bytes | None:
        file = self.open(key)
        if file is None:
            return None
        with file:
            try:
                data = _checked(key, file.read())
            except OSError:
                return None
            if data is not None:
                self.touch(file)
                return data
        self._damaged += 1
        _remove(self._path(key))
        return None

    def entries(self) -> Iterator[Entry]:
        """Yields the files of the cache; skips other users' files."""
        if self.root is None:
            return
        for folder in _listed(self.root):
            is_folder = folder.is_dir(follow_symlinks=False) and _is_folder(folder.name)
            for entry in _listed(folder.path) if is_folder else ():
                path = Path(entry.path)
                key = folder.name + entry.name
                if not _is_key(key):
                    if not _is_temporary(path):
                        continue
                    key = ""
                with contextlib.suppress(OSError):  # another process may remove it concurrently
                    status = entry.stat(follow_symlinks=False)
                    yield Entry(path, key, status.st_size, status.st_mtime)


def _is_key(text: str) -> bool:
    digits, dot, kind = text.partition(".")
    return len(digits) in _KEY_DIGITS and _DIGITS.issuperset(digits) and dot + kind in _KINDS


def _is_folder(name: str) -> bool:
    return len(name) == 2 and _DIGITS.issuperset(name)


def _checked(key: str, content: bytes) -> bytes | None:
    """Returns the data of an entry's content; None if it is damaged or another's."""
    data = content[_HEADER_BYTES:]
    expected = _MAGIC + hashlib.sha256(key.encode() + data).digest()
    return data if content[:_HEADER_BYTES] == expected else None


def _index_of(data: bytes | None) -> Index | None:
    """Returns the index in an entry's data; None if it holds none."""
    if data is None:
        return None
    try:
        found = json.loads(data)
        parts = tuple(map(str, found["parts"]))
        if not all(map(_is_key, parts)):
            return None
        return Index(parts, dict(found["about"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _listed(folder: Path | str) -> list[os.DirEntry[str]]:
    """Returns the contents of a folder; [] if it is not a folder or was removed meanwhile."""
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError:
        return []


def _is_temporary(path: Path) -> bool:
    return path.name.startswith(_WRITING)


def _remove(path: Path) -> bool:
    try:
        path.unlink()
    except OSError:
        return False
    return True


def default_cache() -> Cache:
    """Returns the cache at the path from the settings, or one that stores nothing.

    A path that others may write to is not used, because the contents are executed; the process is
    warned once. A cache of this user that others could write to is emptied and made private.
    """
    current = settings()
    if not current.cache_enabled:
        return Cache(None)
    root = current.cache_dir
    reason = why_not_ours(root) or _why_open(root)
    if not reason:
        return Cache(root)
    _go_on_without(root, reason)
    return Cache(None)


def _go_on_without(root: Path, reason: str) -> None:
    """Warns once of a cache that cannot be used."""
    with _unseen_lock:
        known = root in _warned_of
        _warned_of.add(root)
    if not known:
        warning = ClewWarning(
            "C170",
            f"clew continues without its disk cache: {reason}",
            hint="CLEW_CACHE_DIR names another folder; CLEW_CACHE=0 switches the cache off",
        )
        warn(warning, of_model=False)


_warned_of: set[Path] = set()


def _why_open(root: Path) -> str:
    """Returns why others can write to a folder, after making it private; "" if they cannot."""
    try:
        status = root.stat()
        if not status.st_mode & _OF_OTHERS or not stat.S_ISDIR(status.st_mode):
            return ""
        if all(_is_of_cache(entry) for entry in _listed(root)):
            os.chmod(root, PRIVATE)
            if not is_ours(status):
                for entry in _listed(root):
                    _reclaim(Path(entry.path))
            return ""
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{root} cannot be made private: {error.strerror}"
    return "" if is_ours(status) else f"others may write to {root}, which also holds other files"


def _reclaim(folder: Path) -> None:
    """Makes a cache folder private, and removes its entries, which others may have changed."""
    with contextlib.suppress(OSError):
        status = os.lstat(folder)
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
            os.chmod(folder, PRIVATE)
            for entry in _listed(folder):
                if _is_key(folder.name + entry.name) or entry.name.startswith(_WRITING):
                    _remove(Path(entry.path))


def _is_of_cache(entry: os.DirEntry[str]) -> bool:
    """Whether an entry of a folder was created by a cache."""
    return bool(re.fullmatch(_OURS, entry.name)) or entry.name.startswith(_WRITING)
