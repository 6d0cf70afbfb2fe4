"""A language model with the tokens that it has read: more tokens in, logits out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from clew.runtime.session import Session
from clew.runtime.wiring import Wiring
from clew.support.errors import ClewError
from clew.support.shown import Shown

Array: TypeAlias = "np.ndarray[Any, Any]"


class Decoder(Shown):
    """A session and the tokens in its caches, by sequence of the batch.

    Sequences may have different lengths if the model supports that. All end at the same position of
    the caches: shorter ones are padded on the left. A model without caches reads all tokens again
    in each call. If a call fails, the decoder keeps its state from before the call.
    """

    def __init__(self, wiring: Wiring, session: Session | None = None) -> None:
        """`session` runs the model if it has states; None for a new one."""
        self.wiring = wiring
        self._session = wiring.model.session() if session is None and wiring.states else session
        self._rows: list[list[int]] = []
        # The number of positions in the caches; those before a sequence's first token are padding.
        self._end = 0
        self._axes = {state.name: state.batch for state in wiring.states}
        self.is_whole = True
        """Whether tokens and caches agree; not after an interrupt in the middle of a change."""

    @property
    def rows(self) -> Sequence[Sequence[int]]:
        """The tokens of each sequence that the model has read."""
        return self._rows

    @property
    def count(self) -> int:
        """The number of sequences."""
        return len(self._rows)

    def feed(self, ids: Array, scored: int | None = None) -> Array:
        """Reads more tokens of each sequence and returns the logits after the last `scored` ones
        (None: all): `ids` is i64[batch, new], the result f32[batch, scored, vocabulary]. The first
        call sets the number of sequences.

        Errors: I481 for ids out of range; those of a call of the model.
        """
        self.wiring.check_ids(ids)
        before = self._rows or [[] for _ in ids]
        rows = [[*row, *new] for row, new in zip(before, ids.tolist(), strict=True)]
        count = ids.shape[1] if scored is None else scored
        self.is_whole = False
        try:
            logits = self._logits(ids, rows, count)
        except ClewError:
            # The session has its state from before the call, or none.
            self.is_whole = self._session is None or not self._session.is_lost
            raise
        self._rows, self._end, self.is_whole = rows, self._end + ids.shape[1], True
        return logits[:, logits.shape[1] - count :]

    def _logits(self, ids: Array, rows: Sequence[Sequence[int]], count: int) -> Array:
        if self._session is None:
            whole, past = np.array(rows, np.int64), 0
        else:
            whole, past = ids, self._end
        padding = [past + whole.shape[1] - len(row) for row in rows]
        given = self.wiring.inputs(whole, past, padding, whole.shape[1] - count)
        run = self.wiring.model.run if self._session is None else self._session.run
        found: Array = run(given)[self.wiring.logits]
        return found

    def read(self, ids: Array) -> Array:
        """Reads more tokens, i64[batch, new], in several calls if necessary, and returns the logits
        after the last one, f32[batch, vocabulary].

        Errors: those of `feed`.
        """
        begin = 0
        while begin < ids.shape[1]:
            size = self.wiring.most(self._end) if self._session is not None else ids.shape[1]
            logits = self.feed(ids[:, begin : begin + size], 1)
            begin += size
        return logits[:, -1]

    def rewind(self, length: int) -> bool:
        """Returns to the first `length` tokens of sequences of equal length. Returns whether that
        was possible: states that do not grow with the tokens, such as those of recurrent layers,
        can only be reset.
        """
        if not self._rows or length >= self._end:
            return True
        if self._session is not None and length and not self.wiring.rewinds:
            return False
        was_whole, self.is_whole = self.is_whole, False
        if self._session is not None:
            if length:
                self._session.rewind(length + self._pads[0])
            else:
                self._session.reset()
        self._end = length + self._pads[0] if length else 0
        self._rows = [row[:length] for row in self._rows] if length else []
        self.is_whole = was_whole
        return True

    @property
    def _pads(self) -> list[int]:
        """The number of padding positions before each sequence."""
        return [self._end - len(row) for row in self._rows]

    def select(self, rows: Sequence[int]) -> None:
        """Replaces the sequences by some of them, in an order, perhaps repeated."""
        if list(rows) != list(range(self.count)):
            self.take([(self, row) for row in rows])

    def take(self, rows: Sequence[tuple[Decoder, int]]) -> None:
        """Replaces the sequences by rows of decoders of the same model, each with its number. Rows
        of this decoder that keep their number are not copied.
        """
        was_whole, self.is_whole = self.is_whole, False
        chosen = [list(decoder.rows[row]) for decoder, row in rows]
        end = max(map(len, chosen), default=0)
        if self._session is not None:
            if rows:
                sources = [
                    (decoder._session, row, len(tokens))
                    for (decoder, row), tokens in zip(rows, chosen, strict=True)
                    if decoder._session is not None
                ]
                end = self._session.take_rows(sources, self._axes) or end
            else:
                self._session.reset()
        self._rows, self._end, self.is_whole = chosen, end, was_whole

    def copy(self) -> Decoder:
        """Returns an independent decoder with the same tokens; the two share the caches until one
        of them writes (copy on write).
        """
        made = Decoder(self.wiring, None if self._session is None else self._session.copy())
        made._rows, made._end = [list(row) for row in self._rows], self._end
        made.is_whole = self.is_whole
        return made

    @property
    def nbytes(self) -> int:
        """The memory of the caches in bytes."""
        return 0 if self._session is None else self._session.nbytes

    def states(self, begin: int, end: int) -> dict[str, tuple[Array, int]]:
        """Returns the cache contents for some tokens of the only sequence, by state, each with the
        axis of tokens.
        """
        assert self._session is not None
        pad, axes = self._pads[0], {state.name: state.axis for state in self.wiring.states}
        found = self._session.positions(pad + begin, pad + end)
        return {name: (found[name], axis) for name, axis in axes.items()}

    def restore(self, tokens: Sequence[int], states: Mapping[str, Array]) -> None:
        """Sets a new decoder to a sequence of tokens and their states.

        Errors: I042, I043, I371 for states of another model.
        """
        assert self._session is not None
        self._session.set(states)
        self._rows, self._end = [list(tokens)], len(tokens)
