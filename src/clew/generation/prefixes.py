"""The caches of earlier prompts, for prompts with a common prefix."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clew.generation.decoder import Decoder
from clew.generation.prefix_files import PrefixFiles
from clew.runtime.wiring import Wiring
from clew.support.locks import Lock
from clew.support.shown import Shown, counted


class Prefixes(Shown):
    """Decoders that have read prompts and texts: the most recently used ones, up to `most_bytes`,
    and at least the last one; also those in a folder (`files`).

    For a prompt, only the tokens after the longest common prefix are read. Thread-safe.
    """

    def __init__(self, wiring: Wiring) -> None:
        self._wiring = wiring
        self._kept: list[Decoder] = []
        self._lock = Lock()
        self.most_bytes = 0
        self.files: PrefixFiles | None = None

    def _about(self) -> str:
        return f"{counted(len(self._kept), 'text')}, {self.nbytes} bytes"

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def keeps_many(self) -> bool:
        """Whether the caches of several texts may be kept, in memory or in files."""
        return self.most_bytes > 0 or self.files is not None

    @property
    def nbytes(self) -> int:
        """The memory of the caches in bytes."""
        with self._lock:
            return sum(decoder.nbytes for decoder in self._kept)

    def take(self, tokens: Sequence[int]) -> Decoder:
        """Returns a decoder that has read as many first tokens of a prompt as possible, but not the
        last one, whose logits are needed.
        """
        most = len(tokens) - 1
        with self._lock:
            shared = [common(each.rows[0], tokens[:most]) for each in self._kept]
            best = int(np.argmax(shared)) if shared else 0
            count = shared[best] if shared else 0
            found = self._taken(best, count) if count or not self.most_bytes else None
        found = found or Decoder(self._wiring)
        if not found.rewind(count):
            found.rewind(0)
        read = len(found.rows[0]) if found.count else 0
        stored = self.files.load(tokens[:most], read) if self.files is not None else None
        if stored is not None and found.wiring.rewinds:
            found = Decoder(self._wiring)
            found.restore(*stored)
        return found

    def _taken(self, number: int, count: int) -> Decoder | None:
        """Returns a kept decoder, or a copy of it if other prompts may still use the rest."""
        if not self._kept:
            return None
        decoder = self._kept.pop(number)
        if not self.most_bytes or count == len(decoder.rows[0]):
            return decoder
        self._kept.append(decoder)  # the last one was used last
        return decoder.copy()

    def keep(self, decoder: Decoder) -> None:
        """Keeps a decoder that has read one sequence. Nobody else may change it."""
        if not decoder.is_whole or decoder.count != 1:
            return
        tokens = decoder.rows[0]
        if self.files is not None and self._wiring.rewinds:
            self.files.store(decoder)
        with self._lock:
            self._kept = [d for d in self._kept if common(d.rows[0], tokens) < len(d.rows[0])]
            self._kept.append(decoder)
            while len(self._kept) > 1 and self.nbytes > self.most_bytes:
                self._kept.pop(0)

    def forget(self) -> None:
        """Frees all caches in memory."""
        with self._lock:
            self._kept = []


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """Returns the length of the longest common prefix of two texts, in tokens."""
    size = min(len(one), len(other))
    differ = np.flatnonzero(np.array(one[:size]) != np.array(other[:size]))
    return int(differ[0]) if differ.size else size
