"""The start of a model from the disk cache, before the compiler is imported.

A *start* is an entry of the cache that says what a model's file compiles to. Its key covers a
fingerprint of the file, the options, the machine, and the versions of clew and of the libraries
that read models. It names the files that were read, each with the SHA-256 of its content, and the
stored build. A start is used only if all of these files have that content.

Fingerprints are quick: the whole of a small file, samples of a large one. They only find a start.
What a large file contains is computed once and kept in the cache with the file's identity: device,
inode, size, and the times of writing and of the last change of any kind. The last of these cannot
be set back, but it has a resolution, so the content of a file that has just changed is not kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path, PosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import numpy as np

from clew.backends.compile_options import CompileOptions, Limits
from clew.machine.here import identity as machine_identity
from clew.machine.kept import costs_file
from clew.runtime.cache import SEEN, START, Cache
from clew.runtime.code_version import code_version
from clew.runtime.threads import thread_count
from clew.serving.from_file import LoadedChain
from clew.serving.stored import StoredBuild, record_of, warning_of
from clew.support.background import start_thread
from clew.support.budgets import Budgets, current
from clew.support.dataclass import dataclass
from clew.support.errors import ClewWarning, CompileError, warn
from clew.support.files import Identity, Read, identity_of, open_below, open_plain
from clew.support.installed import versions
from clew.support.links import LINKS, current_links
from clew.support.trust import is_trusted
from clew.support.user_code import has_user_code

if TYPE_CHECKING:  # the compiler's half
    from clew.backends.options import Options
    from clew.ir.defaults import Defaults
    from clew.ir.deferred import DeferredModule
    from clew.ir.module import Module
    from clew.serving.model_chain import ModuleChain

_FORMAT: Final = "start 1"
# Files of this size are read as a whole each time.
_SMALL_BYTES: Final = 4 << 20
_SAMPLES, _SAMPLE_BYTES = 32, 4 << 10
_BLOCK_BYTES: Final = 1 << 20
# Times of files have a resolution of up to two seconds.
_SETTLED_NS: Final = 3_000_000_000
# Larger files are hashed in the background after a compilation.
_HASHED_AT_ONCE_BYTES: Final = 16 << 20
# The libraries that decide what is read from a file; torch reads archives only.
_LIBRARIES: Final = ("llvmlite", "ml_dtypes", "onnx")
_ARCHIVE: Final = b"PK"
_PACKAGE: Final = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")


@dataclass(frozen=True)
class Prepared:
    """The module and the options of a compilation before its build."""

    module: Module | DeferredModule
    options: Options
    cache: Cache
    defaults: Defaults | None = None


@dataclass(frozen=True)
class Found:
    """What a start leads to: the stored build, the names of inputs with default values, and whether
    sizes may get builds of their own.
    """

    stored: LoadedChain
    build: str
    defaults: tuple[str, ...]


class Start:
    """The place in the cache for the start of a model."""

    def __init__(
        self, model: _Model, key: str, cache: Cache, threads: int, about: Mapping[str, str]
    ) -> None:
        self._model = model
        self._key = key
        self._cache = cache
        self._threads = threads
        self._about = about
        self._record: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, model: Any, options: CompileOptions, cache: Cache) -> Start | None:
        """Returns the place for a model and options; None if what it compiles to cannot be told
        from files and plain values.

        Errors: I012 for a number of threads that does not exist.
        """
        if cache.root is None or not options.cache or current() != Budgets() or has_user_code():
            return None
        if type(options.target) is not str:
            return None
        limits = options.group(Limits)
        trust = is_trusted() if limits.trust is None else limits.trust
        given = options.digest()
        if given is None or (limits.links or current_links()) != LINKS[0]:
            return None
        source = _Model.of(model)
        machine = machine_identity()
        if source is None or machine is None:
            return None
        threads = thread_count(options.threads)
        try:
            parts = (
                _FORMAT,
                source.fingerprint,
                given,
                str(threads),
                str(trust),
                machine,
                code_version(cache),
                f"numpy {np.__version__}",
                *versions((*_LIBRARIES, *(("torch",) if source.is_archive else ()))),
            )
        except OSError:
            return None
        key = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:40]
        about = {
            name: value if isinstance(value, str) else json.dumps(value)
            for name, value in options.record().items()
        }
        return cls(source, key, cache, threads, about)

    def load(self) -> Found | None:
        """Returns what the start leads to; None if there is none, or if a file differs."""
        data = self._cache.get(self._key + START)
        if data is None:
            return None
        try:
            record = json.loads(data)
            files = [_File(*each) for each in record["files"]]
            warned = [warning_of(each) for each in record["warnings"]]
            build, defaults = str(record["build"]), tuple(map(str, record["defaults"]))
        except (ValueError, KeyError, TypeError):
            return None
        if not self._holds(files):
            return None
        stored = StoredBuild(build, self._cache, self._threads).load(made_here=True)
        if stored is None:
            return None
        self._record = record
        for warning in warned:
            warn(warning)
        return Found(stored, build, defaults)

    def given(self, model: Any) -> Any:
        """Returns the model as it was given, or its full path if the working folder has changed."""
        path = self._model.path
        return model if path is None or os.path.abspath(model) == path else path

    def check(self, again: Start | None) -> None:
        """Checks that the model still is what was loaded, given the start for it now.

        Errors: C164 if a file, the machine's costs, the records of tuning, or clew itself changed.
        """
        assert self._record is not None
        files = [_File(*each) for each in self._record["files"]]
        if again is None or again._key != self._key or not again._holds(files):
            raise CompileError(
                "C164",
                f"{self._model.shown} has changed since it was compiled",
                hint="compile it again; cache=False reads all of a model at once",
            )

    def keep(
        self,
        chain: ModuleChain,
        defaults: Sequence[str],
        reads: Sequence[Read],
        warned: Sequence[ClewWarning],
    ) -> None:
        """Stores where the build of a model lies, if it is in the cache. `reads` are the files that
        the compilation has read.
        """
        build = chain.stored_key
        if build is None or has_user_code() or self._model.has_changed(reads):
            return
        record = {
            "build": build,
            "defaults": list(defaults),
            "warnings": [record_of(warning) for warning in warned],
            "about": {"model": self._model.shown, "options": dict(self._about)},
        }

        def write() -> None:
            files = self._model.files(reads, self._cache)
            if files is not None:
                text = json.dumps({**record, "files": files}, ensure_ascii=True)
                self._cache.put(self._key + START, text.encode())

        at_once = sum(read.identity[2] for read in reads) < _HASHED_AT_ONCE_BYTES
        if at_once or start_thread(write, "clew-store", daemon=False) is None:
            write()

    def _holds(self, files: Sequence[_File]) -> bool:
        return self._model.holds(files, self._cache)


@dataclass(frozen=True)
class _File:
    """A file that a compilation has read: below the model's folder, step by step without links, or
    at a path. The model's own file has neither.
    """

    below: Sequence[str]
    path: str
    digest: str


class _Model:
    """A model as given: a file, or bytes."""

    def __init__(self, path: str | None, data: bytes, fingerprint: str, shown: str) -> None:
        self.path = path
        self._data = data
        self.fingerprint = fingerprint
        self.shown = shown
        self.is_archive = data.startswith(_ARCHIVE)
        self._identity: Identity | None = None

    @classmethod
    def of(cls, model: Any) -> _Model | None:
        """Returns the model; None for other objects, and for files that cannot be read, whose
        errors an import reports.
        """
        if type(model) is bytes:
            return cls(None, model, _sha256(model), "the model")
        if type(model) is not str and type(model) not in (PosixPath, Path):
            return None
        try:
            with open_plain(model) as file:
                before = identity_of(file.fileno())
                head, fingerprint = _fingerprint(file, before[2])
                if before[2] > current().file_bytes or identity_of(file.fileno()) != before:
                    return None
        except OSError:
            return None
        found = cls(os.path.abspath(model), head, fingerprint, os.fspath(model))
        found._identity = before
        return found

    def holds(self, files: Sequence[_File], cache: Cache) -> bool:
        """Whether files have their content."""
        return all(self._digest(each, cache) == each.digest for each in files)

    def _digest(self, file: _File, cache: Cache) -> str:
        if self.path is None:
            return self.fingerprint if not file.below and not file.path else ""
        try:
            with self._opened(file) as stream:
                if file.below and os.fstat(stream.fileno()).st_nlink != 1:
                    return ""  # an import reports it
                return _digest(stream, cache)
        except OSError:
            return ""

    def _opened(self, file: _File) -> BinaryIO:
        assert self.path is not None
        folder = os.path.dirname(self.path)
        if file.below:
            return os.fdopen(open_below(Path(folder), file.below), "rb")
        return open_plain(os.path.join(folder, file.path) if file.path else self.path)

    def has_changed(self, reads: Sequence[Read]) -> bool:
        """Whether one of its files was written while it was compiled."""
        seen: dict[tuple[Any, ...], Identity] = {}
        if self.path is not None and self._identity is not None:
            seen[(self.path, ())] = self._identity
        return any(seen.setdefault((r.path, r.below), r.identity) != r.identity for r in reads)

    def files(self, reads: Sequence[Read], cache: Cache) -> list[Any] | None:
        """Returns the files that were read, with their content; None if one has changed."""
        if self.path is None:
            return [["", "", self.fingerprint]] if not _others(reads) else None
        folder, found = os.path.dirname(self.path), {}
        places: dict[tuple[str, tuple[str, ...]], Identity | None] = {}
        places[self.path, ()] = self._identity
        places |= {(read.path, read.below): read.identity for read in _others(reads)}
        for (path, below), identity in places.items():
            if below and path != folder:
                return None
            name = "" if below or path == self.path else os.path.relpath(path, folder)
            file = _File(list(below), name, "")
            try:
                with self._opened(file) as stream:
                    digest = _digest(stream, cache)
                    if identity_of(stream.fileno()) != identity:
                        return None
            except OSError:
                return None
            found[(path, below)] = [list(below), name, digest]
        return list(found.values())


def _others(reads: Sequence[Read]) -> list[Read]:
    """Returns the reads of files whose content other parts of the key do not cover."""
    costs = os.path.abspath(costs_file())
    return [r for r in reads if r.path != costs and not r.path.startswith(_PACKAGE)]


def _sha256(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


def _fingerprint(file: BinaryIO, size_bytes: int) -> tuple[bytes, str]:
    """Returns the first bytes of an open file, and a quick digest of it."""
    if size_bytes <= _SMALL_BYTES:
        data = file.read(size_bytes)
        return data[:_SAMPLE_BYTES], _sha256(data)
    digest, head = hashlib.sha256(f"{size_bytes}\0".encode()), b""
    for number in range(_SAMPLES):
        at = (size_bytes - _SAMPLE_BYTES) * number // (_SAMPLES - 1)
        sample = os.pread(file.fileno(), _SAMPLE_BYTES, at)
        head = head or sample
        digest.update(sample)
    return head, f"sampled {digest.hexdigest()}"


def _digest(file: BinaryIO, cache: Cache) -> str:
    """Returns the SHA-256 of an open file's content: computed, or kept with its identity.

    Errors: OSError if it changes meanwhile.
    """
    identity = identity_of(file.fileno())
    size_bytes = identity[2]
    file.seek(0)
    if size_bytes <= _SMALL_BYTES:
        found = _sha256(file.read(size_bytes))
        _check_same(file, identity)
        return found
    samples = _fingerprint(file, size_bytes)[1]
    key = _sha256(repr(identity).encode())[:40] + SEEN
    kept = (cache.get(key) or b"").decode(errors="replace").partition("|")
    if kept[2] == samples:
        return kept[0]
    digest, block = hashlib.sha256(), memoryview(bytearray(_BLOCK_BYTES))
    left = size_bytes
    while left > 0:
        count = file.readinto(block[: min(left, _BLOCK_BYTES)])  # type: ignore[attr-defined]
        if not count:
            break
        digest.update(block[:count])
        left -= count
    _check_same(file, identity)
    if time.time_ns() - max(identity[3], identity[4]) > _SETTLED_NS:
        cache.put(key, f"{digest.hexdigest()}|{samples}".encode())
    return digest.hexdigest()


def _check_same(file: BinaryIO, identity: Identity) -> None:
    if identity_of(file.fileno()) != identity:
        raise OSError("it changed while it was read")
