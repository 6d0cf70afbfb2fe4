"""The models that builds can be made of: those of the command line, and uploaded ones.

A model is asked for by the name that it has here, never by a path.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from clew.explorer.failures import Failure
from clew.support.errors import InputError

SUFFIXES: Final = (".onnx", ".txt")
_LONGEST_NAME: Final = 100
_MOST_UPLOADING: Final = 2
# All uploads together may be this many times as large as one.
_UPLOADS: Final = 4
_CHUNK_WAIT_S: Final = 15.0
_UPLOAD_WAIT_S: Final = 600.0


@dataclass(frozen=True)
class Model:
    """A model's file. `folder` is the upload's own, None for one of the command line."""

    name: str
    path: Path
    folder: Path | None = None
    bytes: int = 0


class Models:
    """The models of a session; uploads go to folders of their own under `folder`."""

    def __init__(self, folder: Path, most_bytes: int, chunk_wait_s: float = _CHUNK_WAIT_S) -> None:
        self._folder = folder
        self._chunk_wait_s = chunk_wait_s
        self.most_bytes: Final = most_bytes
        self._models: dict[str, Model] = {}
        self._uploading = 0

    @property
    def names(self) -> list[str]:
        """The names of all models."""
        return list(self._models)

    def add(self, path: Path) -> Model:
        """Adds a model of the command line, once a file."""
        path = path.absolute()
        for model in self._models.values():
            if model.path == path:
                return model
        return self._add(Model(self._unique(display_name(path.name)), path))

    def get(self, name: str) -> Model:
        """Returns a model by its name.

        Raises `Failure` with I216 for a name that none has.
        """
        model = self._models.get(name)
        if model is None:
            raise Failure(
                InputError(
                    "I216",
                    f"no model {name[:_LONGEST_NAME]!r}",
                    hint=f"there are {', '.join(self._models) or 'none yet'}; a file is uploaded",
                ),
                404,
            )
        return model

    def drop(self, model: Model) -> None:
        """Forgets an uploaded model and removes its file."""
        if model.folder is not None:
            self._models.pop(model.name, None)
            shutil.rmtree(model.folder, ignore_errors=True)

    async def upload(self, name: str, announced: int | None, chunks: AsyncIterator[bytes]) -> Model:
        """Returns a model whose file comes in parts; `name` is for display alone.

        Raises `Failure`: I228 (kind of file), I212 (size), I213 (time), I215 (too many at once).
        """
        shown = display_name(name)
        suffix = Path(shown).suffix.lower()
        if suffix not in SUFFIXES:
            raise Failure(
                InputError(
                    "I228",
                    f"{shown!r} has no suffix that is read",
                    hint=f"one of {', '.join(SUFFIXES)}",
                ),
                415,
            )
        if self._uploading >= _MOST_UPLOADING:
            raise Failure(InputError("I215", f"{_MOST_UPLOADING} models are being uploaded"), 429)
        self._check(announced or 0)
        folder = self._folder / secrets.token_hex(8)
        folder.mkdir(mode=0o700)
        path = folder / f"model{suffix}"
        self._uploading += 1
        try:
            count = await self._receive(path, chunks)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            self._uploading -= 1
        return self._add(Model(self._unique(shown), path, folder, count))

    async def _receive(self, path: Path, chunks: AsyncIterator[bytes]) -> int:
        count = 0
        try:
            async with asyncio.timeout(_UPLOAD_WAIT_S):
                with path.open("xb") as file:
                    while True:
                        try:
                            async with asyncio.timeout(self._chunk_wait_s):
                                chunk = await anext(chunks)
                        except StopAsyncIteration:
                            return count
                        count += len(chunk)
                        self._check(count)
                        file.write(chunk)
        except TimeoutError:
            raise Failure(InputError("I213", "the upload came too slowly"), 408) from None

    def _check(self, count: int) -> None:
        if count > self.most_bytes:
            raise Failure(
                InputError(
                    "I212",
                    f"the model has more than the {self.most_bytes} bytes that are taken",
                    hint="clew explore --max-upload MIB takes more",
                ),
                413,
            )
        kept = sum(model.bytes for model in self._models.values())
        if kept + count > _UPLOADS * self.most_bytes:
            raise Failure(
                InputError("I212", "all uploads take too much", hint="close one of the builds"), 413
            )

    def _add(self, model: Model) -> Model:
        self._models[model.name] = model
        return model

    def _unique(self, name: str) -> str:
        found, number = name, 2
        while found in self._models:
            found, number = f"{name} ({number})", number + 1
        return found


def display_name(name: str) -> str:
    """Returns a file's name without folders and what cannot be printed."""
    last = name.replace("\\", "/").rsplit("/", 1)[-1]
    kept = "".join(c for c in last if c.isprintable())
    return kept[-_LONGEST_NAME:] or "model"
