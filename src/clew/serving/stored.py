"""Builds in the disk cache: a model that was compiled before is mapped instead of compiled.

The key of a build covers the model's structure and weights, the passes with their options, the
target, and clew's own code (`build_key.py`). The trace and the loops of kernels are not stored. If
they are needed, the passes run again, with the same result.

A stored build is an index and its parts: a container with everything but large weights, and a file
for each of these. The files are named by their content, so builds with equal weights share them.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypeVar

import numpy as np

from clew.runtime.cache import PART, SEEN, Cache, Index
from clew.runtime.code_version import code_version
from clew.runtime.container import BLOBS, Container, packed, read_opened, write_container
from clew.runtime.sizes_key import SizesKey
from clew.runtime.variant import Variant
from clew.serving.from_file import LoadedChain, read_stored
from clew.serving.served import Declined, Request, Served
from clew.support.background import start_thread
from clew.support.collection import no_collections
from clew.support.errors import ClewError, ClewWarning, CompileError, Hint
from clew.support.shared_arrays import content_digest

if TYPE_CHECKING:
    from clew.build.result import Build  # the compiler's half
    from clew.runtime.artifact import LoadedBuild
    from clew.serving.often import Specializing

# Larger builds are written in the background, so that the caller does not wait.
_WRITTEN_AT_ONCE_BYTES = 4 << 20
# Larger builds are not stored: their disk space costs more than the time of the passes. Nor are
# those that take more than this share of the cache, which would push out all others.
_MOST_BYTES, _MOST_SHARE = 2 << 30, 2
# Weights of this size have a file of their own, which builds share.
_SHARED_BYTES = 64 << 10
# A file of weights: the magic, the SHA-256 of the content, and zeros up to the content.
_MAGIC: Final = b"clew-part-1\n"
_HEADER_BYTES: Final = 64
_SHOWN: Final = "the stored build"
# The field of the text with the numbers of the blobs that are parts of their own, and these.
_OWN: Final = "own_parts"
# The field of the text with the warnings that the compilation issued.
_WARNED: Final = "warned"
# Fields of the text that a saved model does not have, or that differ with the caller's options.
_OF_STORED: Final = frozenset((_OWN, _WARNED, BLOBS, "options"))

T = TypeVar("T")


class Stored:
    """Serves the sizes that the stored build serves, without running the passes.

    `rebuild` makes the build that explains a program, from its sizes. `specializing` times the
    calls, if sizes may get builds of their own.
    """

    name: Final = "the stored build"

    def __init__(
        self,
        chain: LoadedChain,
        rebuild: Callable[[Mapping[str, int]], Build],
        specializing: Specializing | None,
    ) -> None:
        self._chain = chain
        self._rebuild = rebuild
        self._specializing = specializing

    def serve(self, request: Request) -> Served[Build] | Declined:
        """Errors: I042 if sizes contradict each other."""
        interface = self._chain.interface
        if interface.takes_any_rank:
            variant = Variant.of(interface.inputs, request.arrays)
            if variant is not None and variant.ranks and variant not in self._chain.variants:
                return Declined(self.name, f"it has no variant with {variant}")
        answer = self._chain.first(request)
        if not isinstance(answer, Served):
            return Declined(self.name, "; ".join(declined.reason for declined in answer))
        served = self._served(answer, request.key, request.sizes)
        if self._specializing is None or request.is_empty:
            return served
        key, sizes = request.key, request.sizes
        often = self._specializing.often(key, sizes, answer.program, 0.0)
        return replace(served, often=often)

    def _served(
        self, answer: Served[LoadedBuild], key: SizesKey, sizes: Mapping[str, int]
    ) -> Served[Build]:
        """Returns the answer of the stored build to a call as one of a compiled model."""
        more = answer.again

        def again(key: SizesKey, sizes: Mapping[str, int]) -> Served[Build] | None:
            other = None if more is None else more(key, sizes)
            return None if other is None else self._served(other, key, sizes)

        return Served(
            self.name, key, sizes, answer.program, rebuild=lambda: self._rebuild(sizes),
            weight=answer.weight, again=again,
        )  # fmt: skip


def record_of(warning: ClewWarning) -> list[str]:
    """Returns a warning as texts, for a record in the cache."""
    hint = warning.hint
    wordings = [str(hint), hint.cli, hint.page] if isinstance(hint, Hint) else [hint]
    return [warning.code, warning.message, *wordings]


def warning_of(record: Sequence[str]) -> ClewWarning:
    """Returns a warning from its texts."""
    code, message, hint, *others = map(str, record)
    worded = Hint(hint, cli=others[0], page=others[1]) if others else hint
    return ClewWarning(code, message, hint=worded)


class StoredBuild:
    """The place of one model's build in the cache."""

    def __init__(
        self, key: str | None, cache: Cache, threads: int, backends: Sequence[Any] = ()
    ) -> None:
        """Without a key, nothing is stored."""
        self.key = key if cache.root is not None else None
        self._cache = cache
        self._threads = threads
        self._backends = backends
        self.warned: list[ClewWarning] = []

    def load(self, *, made_here: bool = False) -> LoadedChain | None:
        """Returns what is stored, ready to run; None if there is none, or it is damaged. With
        `made_here`, a machine like this one has made it. `warned` then holds the warnings that were
        issued when it was made.

        Checksums are computed once. Later loads only map the files, as long as their devices,
        inodes, sizes, and times of writing and change stay the same.
        """
        return self._read(partial(self._loaded, made_here))

    def _read(self, read: Callable[[Container], T]) -> T | None:
        """Returns what `read` makes of what is stored; None if there is none, or it is damaged."""
        index = self._cache.index(self.key) if self.key is not None else None
        if index is None:
            return None
        with ExitStack() as open_files:
            files = [self._cache.open(part) for part in index.parts]
            for file in files:
                open_files.enter_context(file or contextlib.nullcontext())
            known = [file for file in files if file is not None]
            if len(known) == len(files):
                try:
                    with no_collections():
                        return self._checked(index, known, read)
                except ClewError:
                    pass
        self._drop(index)
        return None

    def _loaded(self, made_here: bool, whole: Container) -> LoadedChain:
        found = read_stored(whole, self._threads, self._backends, made_here=made_here)
        found.copied = self._copied
        return found

    def _copied(self, path: Path, options: Mapping[str, Any]) -> bool:
        """Writes what is stored to a file, as if the model had been compiled again and saved, with
        the record of its options; false if it is not stored any more. Errors: C050 (the file).
        """
        whole = self._read(lambda whole: whole)
        if whole is None:
            return False
        text = {name: each for name, each in whole.text.items() if name not in _OF_STORED}
        write_container(path, {**text, **({"options": options} if options else {})}, whole.blobs)
        return True

    def _checked(
        self, index: Index, files: Sequence[BinaryIO], read: Callable[[Container], T]
    ) -> T:
        seen = f"{self.key}{SEEN}"
        identity = repr([_identity(file) for file in files]).encode()
        checked = self._cache.get(seen) == identity
        container = read_opened(files[0], _SHOWN, checked=checked)
        blobs, own = list(container.blobs), container.text.get(_OWN)
        # Another process may have replaced one of the two.
        if not isinstance(own, list) or [part for _, part in own] != list(index.parts[1:]):
            raise CompileError("C054", f"{_SHOWN} is damaged: its index does not fit")
        for (number, part), file in zip(own, files[1:], strict=True):
            blobs[number] = _weights(file, part, checked=checked)
        whole = Container(container.text, blobs)
        found = read(whole)
        if not checked:
            self._cache.put(seen, identity)
        self.warned = [warning_of(each) for each in container.text.get(_WARNED, ())]
        return found

    def keep(
        self,
        content: Callable[[], tuple[dict[str, Any], list[Any]]],
        size_bytes: int,
        about: Mapping[str, Any],
        warned: Sequence[ClewWarning] = (),
    ) -> None:
        """Stores the text and blobs of a build, and the warnings issued; large builds in the
        background.

        If a build cannot be saved or the disk write fails, there is no error: the model is compiled
        again the next time.
        """
        key = self.key
        if key is None or size_bytes > min(_MOST_BYTES, self._cache.limit_bytes // _MOST_SHARE):
            return

        def write() -> None:
            with contextlib.suppress(ClewError, OSError), no_collections():
                text, blobs = content()
                told = {_WARNED: [record_of(warning) for warning in warned]} if warned else {}
                written = self._write(key, {**text, **told}, blobs, about)
                if written is not None:
                    self._cache.grew(written)

        at_once = size_bytes < _WRITTEN_AT_ONCE_BYTES
        if at_once or start_thread(write, "clew-store", daemon=False) is None:
            write()

    def _write(
        self, key: str, text: dict[str, Any], blobs: list[Any], about: Mapping[str, Any]
    ) -> int | None:
        """Writes a build, its index last. Returns the bytes written; None if the disk takes none.

        Everything is on the disk before it is known as checked.
        """
        own = [n for n, blob in enumerate(blobs) if blob.nbytes >= _SHARED_BYTES]
        head = f"{hashlib.sha256(f'head {key}'.encode()).hexdigest()[:40]}{PART}"
        parts, total = [head], 0
        for number in own:
            digest = content_digest(blobs[number])
            part = f"{digest.hex()[:40]}{PART}"
            parts.append(part)
            if not self._has(part, blobs[number].nbytes + _HEADER_BYTES):
                header = (_MAGIC + digest).ljust(_HEADER_BYTES, b"\0")
                if not self._cache.write(part, (header, blobs[number].data), sync=True):
                    return None
                total += blobs[number].nbytes
        rest = [np.empty(0, np.uint8) if n in set(own) else blob for n, blob in enumerate(blobs)]
        pieces = packed({**text, _OWN: list(zip(own, parts[1:], strict=True))}, rest)
        if not self._cache.write(head, pieces, sync=True):
            return None
        self._cache.put_index(
            key, Index(tuple(parts), {**about, "code": code_version(self._cache)})
        )
        files = [self._cache.open(part) for part in parts]
        with ExitStack() as open_files:
            for file in files:
                open_files.enter_context(file or contextlib.nullcontext())
            if None not in files:
                identity = repr([_identity(file) for file in files if file is not None])
                self._cache.put(f"{key}{SEEN}", identity.encode())
        return total + sum(len(piece) for piece in pieces)

    def _has(self, part: str, size_bytes: int) -> bool:
        file = self._cache.open(part)
        if file is None:
            return False
        with file:
            return os.fstat(file.fileno()).st_size == size_bytes

    def _drop(self, index: Index) -> None:
        """Removes a build that cannot be read. Builds that share its parts are made again, too."""
        for part in index.parts:
            self._cache.drop(part)


def _weights(file: BinaryIO, part: str, *, checked: bool) -> np.ndarray:
    """Returns the content of a file of weights, mapped.

    Errors: C054 if it is damaged.
    """
    try:
        pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise CompileError("C054", f"{_SHOWN} is damaged: {error}") from error
    content = np.frombuffer(pages, np.uint8)[_HEADER_BYTES:]
    if not checked:
        digest = hashlib.sha256(content.data)
        header = _MAGIC + digest.digest()
        if pages[: len(header)] != header or not part.startswith(digest.hexdigest()[:40]):
            raise CompileError("C054", f"{_SHOWN} is damaged: the checksum of a part does not fit")
    return content


def _identity(file: BinaryIO) -> tuple[int, ...]:
    """Returns an identity that changes if an open file is written or replaced."""
    found = os.fstat(file.fileno())
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
