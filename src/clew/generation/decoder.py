"""A language model with the tokens that it has read: more tokens in, logits out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from clew.generation.wiring import Wiring
from clew.runtime.session import Session
from clew.support.errors import ClewError
from clew.support.shown import Shown

Array: TypeAlias = "np.ndarray[Any, Any]"


class Decoder(Shown):
    """A session and the tokens in its caches, the same number for each sequence of the batch.

    A model without caches reads all tokens again in each call. If a call fails, the decoder remains
    as it was before it.
    """

    def __init__(self, wiring: Wiring) -> None:
        self.wiring = wiring
        self._session: Session | None = wiring.model.session() if wiring.states else None
        self._tokens: Array = np.zeros((1, 0), np.int64)
        self.is_whole = True
        """Whether tokens and caches agree; not after an interrupt in the middle of a change."""

    @property
    def tokens(self) -> Array:
        """The tokens that the model has read: i64[batch, tokens]."""
        return self._tokens

    @property
    def length(self) -> int:
        """The number of tokens of each sequence."""
        return int(self._tokens.shape[1])

    def feed(self, ids: Array) -> Array:
        """Reads more tokens and returns the logits after each: `ids` is i64[batch, new], the result
        f32[batch, new, vocabulary]. New sequences may be more than one if nothing was read yet.

        Errors: I481 for ids out of range; those of a call of the model.
        """
        self.wiring.check_ids(ids)
        before = self._tokens if self.length else np.zeros((len(ids), 0), np.int64)
        whole = np.concatenate([before, ids], 1)
        self.is_whole = False
        try:
            logits = self._logits(ids, whole)
        except ClewError:  # the session has its state from before the call
            self.is_whole = True
            raise
        self._tokens, self.is_whole = whole, True
        return logits

    def _logits(self, ids: Array, whole: Array) -> Array:
        if self._session is None:
            found = self.wiring.model.run(self.wiring.inputs(whole, 0))
            return found[self.wiring.logits][:, self.length :]  # type: ignore[no-any-return]
        found = self._session.run(self.wiring.inputs(ids, self.length))
        return found[self.wiring.logits]  # type: ignore[no-any-return]

    def read(self, ids: Array) -> Array:
        """Reads more tokens, i64[batch, new], in several calls if they are many, and returns the
        logits after the last, f32[batch, vocabulary].

        Errors: those of `feed`.
        """
        size = self.wiring.at_once if self._session is not None else ids.shape[1]
        for begin in range(0, ids.shape[1], size):
            logits = self.feed(ids[:, begin : begin + size])[:, -1]
        return logits

    def rewind(self, length: int) -> bool:
        """Returns to the first `length` tokens, and whether that was possible: states that do not
        grow with the tokens, such as those of recurrent layers, are only returned to their start.
        """
        if length >= self.length:
            return True
        if self._session is not None and length and not self.wiring.rewinds:
            return False
        was_whole, self.is_whole = self.is_whole, False
        if self._session is not None:
            if length:
                self._session.rewind(length)
            else:
                self._session.reset()
        self._tokens, self.is_whole = self._tokens[:, :length], was_whole
        return True

    def select(self, rows: Sequence[int]) -> None:
        """Replaces the sequences by some of them, in an order, perhaps repeated."""
        if list(rows) == list(range(len(self._tokens))):
            return
        was_whole, self.is_whole = self.is_whole, False
        if self._session is not None:
            state, chosen = self._session.state, {}
            for each in self.wiring.states:
                chosen[each.name] = np.take(state[each.name], rows, each.batch)
            self._session.set(chosen)
        self._tokens, self.is_whole = self._tokens[list(rows)], was_whole

    @property
    def takes_batches(self) -> bool:
        """Whether several sequences can be read at once."""
        return self.wiring.batch is None and all(s.batch >= 0 for s in self.wiring.states)
