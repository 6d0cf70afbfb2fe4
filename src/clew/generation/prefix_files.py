"""Prompt caches in a folder: the keys and values of blocks of tokens.

A file holds one block. Its name is a digest of the model and of all tokens up to the end of the
block, so prompts with a common prefix share files. The format is that of saved models
(`runtime/container.py`): a JSON text and arrays, with a checksum. The names, dtypes and shapes of
the arrays are those of the model.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np

from clew.runtime.container import read_container, write_container
from clew.support.errors import ClewError, ClewWarning, warn
from clew.support.files import reason_of

if TYPE_CHECKING:
    from clew.generation.decoder import Decoder

Array: TypeAlias = "np.ndarray[Any, Any]"
_BLOCK: Final = 64
"""Tokens per file: a prompt reads again at most this many tokens of a stored prefix."""
_PROBE: Final = 8
_SUFFIX: Final = ".prefix"
_KIND: Final = "prefix"
MOST_BYTES: Final = 4 << 30


class ModelOfFiles(NamedTuple):
    """What identifies the files of a model: a digest of it, and for each state its dtype, the shape
    of its elements for a block of tokens, and the axis of these.
    """

    digest: str
    states: Mapping[str, tuple[np.dtype[Any], tuple[int, ...], int]]


class PrefixFiles:
    """The files of a model in a folder. All files in it, also those of other models, have at most
    `most_bytes`; the least recently used ones are removed.
    """

    def __init__(self, folder: Path, model: ModelOfFiles, most_bytes: int = MOST_BYTES) -> None:
        self._folder, self._model, self._most_bytes = folder, model, most_bytes

    def load(self, tokens: Sequence[int], known: int) -> tuple[list[int], dict[str, Array]] | None:
        """Returns the longest stored prefix of a prompt and its states by name; None if it has at
        most `known` tokens.
        """
        blocks: list[Mapping[str, Array]] = []
        paths = self._paths(tokens)
        if len(paths) * _BLOCK <= known or not os.path.isfile(paths[known // _BLOCK]):
            return None
        for path in paths:
            block = self._read(path)
            if block is None:
                break
            blocks.append(block)
        count = len(blocks) * _BLOCK
        if count <= known:
            return None
        states = {
            name: np.concatenate([block[name] for block in blocks], axis)
            for name, (*_, axis) in self._model.states.items()
        }
        return list(tokens[:count]), states

    def store(self, decoder: Decoder) -> None:
        """Stores the blocks of a decoder's sequence that have no file yet."""
        paths = self._paths(decoder.rows[0])
        missing = [n for n, path in enumerate(paths) if not os.path.exists(path)]
        for number in missing:
            states = decoder.states(number * _BLOCK, (number + 1) * _BLOCK)
            text = {"kind": _KIND, "model": self._model.digest}
            arrays = [states[name][0] for name in self._model.states]
            blobs = [np.ascontiguousarray(array).reshape(-1).view("u1") for array in arrays]
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                write_container(paths[number], text, blobs)
            except (OSError, ClewError) as error:
                found = ClewWarning(
                    "I494",
                    f"prompts are not stored in {str(self._folder)!r}: {reason_of(error)}",
                    hint="give prefix_cache a writable folder",
                )
                warn(found, of_model=False)
                return
        if missing:
            self._prune()

    def _paths(self, tokens: Sequence[int]) -> list[Path]:
        digest, found = hashlib.blake2b(self._model.digest.encode(), digest_size=20), []
        for end in range(_BLOCK, len(tokens) + 1, _BLOCK):
            digest.update(np.array(tokens[end - _BLOCK : end], "<i8").tobytes())
            found.append(self._folder / (digest.hexdigest() + _SUFFIX))
        return found

    def _read(self, path: Path) -> dict[str, Array] | None:
        """Returns the states of a block; None if there is no file, or it cannot be read, or is
        damaged; a damaged one is removed.
        """
        if not os.path.isfile(path):
            return None
        try:
            held = read_container(path)
            text = held.text
            if text["kind"] != _KIND or text["model"] != self._model.digest:
                raise ValueError("it belongs to another model")
            found = {
                name: blob.view(dtype).reshape(shape)
                for (name, (dtype, shape, _)), blob in zip(
                    self._model.states.items(), held.blobs, strict=True
                )
            }
        except (ClewError, ValueError, KeyError, TypeError) as error:
            if not os.path.isfile(path):  # another process has removed it
                return None
            damaged = ClewWarning(
                "I494",
                f"the stored prompt {str(path)!r} is ignored: {reason_of(error)}",
                hint="the model reads the prompt again and stores it; no result changes",
            )
            warn(damaged, of_model=False)
            if not isinstance(error.__cause__, OSError):  # one that cannot be read may be sound
                with contextlib.suppress(OSError):
                    path.unlink()
            return None
        with contextlib.suppress(OSError):  # in a folder of another user, or one for reading only
            os.utime(path)
        return found

    def _prune(self) -> None:
        """Removes the least recently used files beyond the limit."""
        found = []
        with contextlib.suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name.endswith(_SUFFIX):
                    status = entry.stat(follow_symlinks=False)
                    found.append((status.st_mtime_ns, status.st_size, entry.path))
        total = 0
        for _, size, path in sorted(found, reverse=True):
            total += size
            if total > self._most_bytes:
                with contextlib.suppress(OSError):
                    os.unlink(path)


def model_of_files(source: Path, decoder: Decoder) -> ModelOfFiles:
    """Returns what identifies a model. The digest is of the names, sizes and modification times of
    its files, except hidden ones and stored prompts, and of its results for a few tokens, which
    also depend on options and machine. `decoder` is new.

    Errors: those of a call of the model.
    """
    folder, stem = (
        (source, "") if os.path.isdir(source) else (source.absolute().parent, source.stem)
    )
    digest = hashlib.blake2b(digest_size=20)
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda each: each.name):
            if entry.name.startswith(".") or entry.name.endswith(_SUFFIX):
                continue
            try:
                status = entry.stat()
            except OSError:  # a link to a file that does not exist
                continue
            if stat.S_ISREG(status.st_mode) and entry.name.startswith(stem):
                about = (entry.name, status.st_size, status.st_mtime_ns)
                digest.update(repr(about).encode("utf-8", "surrogatepass"))
    probe = np.arange(min(_PROBE, decoder.wiring.at_once))[None]
    digest.update(np.ascontiguousarray(decoder.feed(probe)).tobytes())
    states = {}
    for name, (array, axis) in decoder.states(0, probe.shape[1]).items():
        shape = (*array.shape[:axis], _BLOCK, *array.shape[axis + 1 :])
        states[name] = array.dtype, shape, axis
        digest.update(repr((name, array.dtype.str, array.shape, axis)).encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return ModelOfFiles(digest.hexdigest(), states)
