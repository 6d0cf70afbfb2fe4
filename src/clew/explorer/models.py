"""The models that can be built: those of the command line, and uploaded ones.

Clients name a model by its name here, never by a path.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from clew.explorer.failures import Failure
from clew.support.errors import InputError
from clew.support.interrupts import held_interrupts
from clew.support.kinds import Kind
from clew.support.loading import LOADING
from clew.support.recognize import kind_of_name
from clew.support.writing import create

if TYPE_CHECKING:
    from clew.frontends.format import Format

_LONGEST_NAME: Final = 100
_MOST_UPLOADING: Final = 2
_MOST_PARTS: Final = 64
# File names as models refer to them: no folders, no hidden files.
_PART_NAME: Final = re.compile(r"(?!\.)[^/\\\x00-\x1f\x7f]{1,200}")
# Longest file name without its suffix, in bytes; every file system accepts this.
_LONGEST_FILE: Final = 200
# Limit for all uploads together, as a multiple of the limit for one.
_UPLOADS: Final = 4
_CHUNK_WAIT_S: Final = 15.0
_UPLOAD_WAIT_S: Final = 600.0


@dataclass(frozen=True)
class Part:
    """One file of an upload, with the number of its bytes."""

    name: str
    bytes: int


@dataclass(frozen=True)
class Model:
    """A model's file. `folder` is the upload's folder, None for a model of the command line."""

    name: str
    path: Path
    folder: Path | None = None
    bytes: int = 0


class Models:
    """The models of a session; each upload has its own folder under `folder`."""

    def __init__(self, folder: Path, most_bytes: int, chunk_wait_s: float = _CHUNK_WAIT_S) -> None:
        self.folder: Final = folder
        self._chunk_wait_s = chunk_wait_s
        self.most_bytes: Final = most_bytes
        self._models: dict[str, Model] = {}
        self._uploading = 0

    @property
    def names(self) -> list[str]:
        """The names of all models."""
        return list(self._models)

    def add(self, path: Path) -> Model:
        """Adds a model of the command line; the same file is added once."""
        path = path.absolute()
        for model in self._models.values():
            if model.path == path:
                return model
        return self._add(Model(self._unique(display_name(path.name)), path))

    def add_local(self, name: str) -> Model:
        """Adds a model without a file; it will be written to its own folder."""
        folder = self.folder / secrets.token_hex(8)
        folder.mkdir(mode=0o700)
        return self._add(Model(self._unique(display_name(name)), folder / "model.txt"))

    def get(self, name: str) -> Model:
        """Returns a model by its name.

        Raises `Failure` with I216 for an unknown name.
        """
        model = self._models.get(name)
        if model is None:
            raise Failure(
                InputError(
                    "I216",
                    f"no model {name[:_LONGEST_NAME]!r}",
                    hint=f"the models are {', '.join(self._models) or 'none yet'}; upload a file",
                ),
                404,
            )
        return model

    def drop(self, model: Model) -> None:
        """Forgets an uploaded model and removes its files."""
        if model.folder is not None:
            self._models.pop(model.name, None)
            shutil.rmtree(model.folder, ignore_errors=True)

    async def upload(
        self,
        name: str,
        announced: int | None,
        chunks: AsyncIterator[bytes],
        parts: Sequence[Part] = (),
    ) -> Model:
        """Returns a model whose file arrives in chunks; `name` is only for display. `announced` is
        the announced number of bytes.

        A model with external weights is uploaded with its weight files: `parts` are the files that
        follow each other in the chunks, the model's first. They are stored side by side under the
        given names, by which the model refers to them.

        Raises `Failure`: I228 (kind of file), I210 (parts), I212 (size), I213 (time), I215 (too
        many at once).
        """
        shown = display_name(parts[0].name if parts else name)
        suffix = Path(shown).suffix.lower()
        if suffix not in await asyncio.to_thread(_suffixes):
            raise await self._foreign(shown, chunks)
        _check_parts(parts)
        if self._uploading >= _MOST_UPLOADING:
            raise Failure(
                InputError("I215", f"{_MOST_UPLOADING} uploads are already in progress"), 429
            )
        self._check(max(announced or 0, sum(part.bytes for part in parts)))
        folder = self.folder / secrets.token_hex(8)
        folder.mkdir(mode=0o700)
        files = list(parts) or [Part(_file_name(shown, suffix), -1)]
        self._uploading += 1
        try:
            count = await self._receive(folder, files, chunks)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            self._uploading -= 1
        return self._add(Model(self._unique(shown), folder / files[0].name, folder, count))

    async def _foreign(self, shown: str, chunks: AsyncIterator[bytes]) -> Failure:
        """Returns the failure for a file of another kind, identified by its first bytes."""
        suffixes = f"models end in {' or '.join(await asyncio.to_thread(_suffixes))}"
        kind: Format | Kind | None = kind_of_name(shown)
        with suppress(Failure, TimeoutError):
            async with asyncio.timeout(self._chunk_wait_s):
                head = await _Incoming(chunks, self._chunk_wait_s).next(1 << 16)
                kind = await asyncio.to_thread(_recognized, head) or kind
        if kind is None:
            error = InputError("I228", f"{shown!r} has an unsupported suffix", hint=suffixes)
        else:
            error = InputError("I228", f"{shown!r} is {kind.what}", hint=suffixes)
        if isinstance(kind, Kind):
            error.hint = kind.advice
        return Failure(error, 415)

    async def _receive(
        self, folder: Path, files: Sequence[Part], chunks: AsyncIterator[bytes]
    ) -> int:
        count = 0
        incoming = _Incoming(chunks, self._chunk_wait_s)
        try:
            async with asyncio.timeout(_UPLOAD_WAIT_S):
                for part in files:
                    with create(folder / part.name) as file:
                        missing = part.bytes
                        while missing and (chunk := await incoming.next(missing)):
                            count += len(chunk)
                            missing -= len(chunk) if part.bytes >= 0 else 0
                            self._check(count)
                            file.write(chunk)
                    if missing > 0:
                        raise _bad_parts("fewer bytes than their sizes add up to")
                if await incoming.next(1):
                    raise _bad_parts("more bytes than their sizes add up to")
        except TimeoutError:
            raise Failure(InputError("I213", "the upload took too long"), 408) from None
        return count

    def _check(self, count: int) -> None:
        if count > self.most_bytes:
            raise Failure(
                InputError(
                    "I212",
                    f"the model is larger than the limit of {self.most_bytes} bytes",
                    hint="raise the limit with clew explore --max-upload MIB",
                ),
                413,
            )
        kept = sum(model.bytes for model in self._models.values())
        if kept + count > _UPLOADS * self.most_bytes:
            raise Failure(
                InputError(
                    "I212", "all uploads together are too large", hint="close one of the builds"
                ),
                413,
            )

    def _add(self, model: Model) -> Model:
        self._models[model.name] = model
        return model

    def _unique(self, name: str) -> str:
        found, number = name, 2
        while found in self._models:
            found, number = f"{name} ({number})", number + 1
        return found


def _suffixes() -> list[str]:
    """Returns the suffixes of files that can be uploaded."""
    with LOADING, held_interrupts():
        from clew.frontends.formats import uploaded_suffixes  # noqa: PLC0415 - the server starts without

    return uploaded_suffixes()


def _recognized(head: bytes) -> Format | Kind | None:
    """Returns what a file is by its first bytes."""
    from clew.frontends.formats import recognized_in_memory  # noqa: PLC0415 - as above

    return recognized_in_memory(head)


class _Incoming:
    """The bytes of an upload, read in pieces."""

    def __init__(self, chunks: AsyncIterator[bytes], wait_s: float) -> None:
        self._chunks = chunks
        self._wait_s = wait_s
        self._rest = b""

    async def next(self, most: int) -> bytes:
        """Returns at most `size` bytes (all of them, if negative); none at the end."""
        while not self._rest:
            async with asyncio.timeout(self._wait_s):
                try:
                    self._rest = await anext(self._chunks)
                except StopAsyncIteration:
                    return b""
        if most < 0:
            found, self._rest = self._rest, b""
        else:
            found, self._rest = self._rest[:most], self._rest[most:]
        return found


def _file_name(shown: str, suffix: str) -> str:
    """Returns the file name for an upload, which appears in errors: its own name if that is a plain
    file name.
    """
    stem = shown[: -len(suffix)].lstrip(".").encode()[-_LONGEST_FILE:].decode(errors="ignore")
    return f"{stem or 'model'}{suffix}"


def _check_parts(parts: Sequence[Part]) -> None:
    if len(parts) > _MOST_PARTS:
        raise _bad_parts(f"more than {_MOST_PARTS}")
    if len({part.name for part in parts}) < len(parts):
        raise _bad_parts("two have the same name")
    for part in parts:
        if not _PART_NAME.fullmatch(part.name) or len(part.name.encode()) > 240:
            raise _bad_parts(f"{display_name(part.name)!r} is not a plain file name")
        if part.bytes < 0:
            raise _bad_parts("a size is negative")


def _bad_parts(reason: str) -> Failure:
    return Failure(InputError("I210", f"malformed request: parts: {reason}"), 400)


def display_name(name: str) -> str:
    """Returns a file's name without folders and unprintable characters."""
    last = name.replace("\\", "/").rsplit("/", 1)[-1]
    kept = "".join(c for c in last if c.isprintable())
    return kept[-_LONGEST_NAME:] or "model"
