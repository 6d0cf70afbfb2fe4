"""Batches of sequences: each call of the model generates one token for every sequence."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np

from clew.generation.decoder import Decoder
from clew.generation.language_model import LanguageModel
from clew.generation.sequence import Growing
from clew.support.errors import ClewError

Array: TypeAlias = "np.ndarray[Any, Any]"


class Step(NamedTuple):
    """The result of a step for a sequence: its new token and the text that is certain with it, or
    the error that ended it.
    """

    sequence: Growing
    token: int = -1
    piece: str = ""
    error: Exception | None = None


class _Member:
    """A sequence, and where its caches are: a decoder and the number of its row. `logits` are those
    of its next token, if they are known.
    """

    def __init__(self, sequence: Growing, at: tuple[Decoder, int], logits: Array) -> None:
        self.sequence = sequence
        self.at = at
        self.logits: Array | None = logits

    def choose(self, logits: Array) -> Step:
        """Chooses the next token, and ends the sequence if that fails."""
        sequence, self.logits = self.sequence, None
        try:
            token = sequence.choice.token(logits, sequence.tokens)
            return Step(sequence, token, sequence.take(token))
        except Exception as error:
            sequence.interrupt()
            return Step(sequence, error=error)


class _Lane:
    """Sequences that share a call of the model: the rows of one decoder."""

    def __init__(self) -> None:
        self.members: list[_Member] = []
        self.is_shared = False
        """Whether the decoder has, or had, room for several sequences."""
        self._decoder: Decoder | None = None

    @property
    def length(self) -> int:
        """The number of tokens of the first sequence."""
        return len(self.members[0].sequence.tokens)

    def step(self) -> list[Step]:
        """Generates the next token of each sequence."""
        fresh = [(m, m.logits) for m in self.members if m.logits is not None]
        old = [m for m in self.members if m.logits is None]
        steps = self._continued(old) if old else []
        return steps + [member.choose(logits) for member, logits in fresh]

    def _continued(self, members: list[_Member]) -> list[Step]:
        try:
            rows = self._in_rows(members)
            last = np.array([[member.sequence.tokens[-1]] for member in rows])
            assert self._decoder is not None
            logits = self._decoder.feed(last, 1)[:, -1]
        except Exception as error:
            for member in members:
                member.sequence.interrupt()
            return [Step(member.sequence, error=error) for member in members]
        return [member.choose(row) for member, row in zip(rows, logits, strict=True)]

    def _in_rows(self, members: list[_Member]) -> list[_Member]:
        """Makes the sequences rows of one decoder, and returns them in this order. Those that are
        among its first rows stay there.
        """
        if self._decoder is None or all(m.at[0] is not self._decoder for m in members):
            self._decoder = members[0].at[0]
        target, rows = self._decoder, dict[int, _Member]()
        for member in members:
            if member.at[0] is target and member.at[1] < len(members):
                rows[member.at[1]] = member
        moved = iter([m for m in members if m not in rows.values()])
        ordered = [rows[n] if n in rows else next(moved) for n in range(len(members))]
        if target.count != len(ordered) or len(rows) < len(ordered):
            target.take([member.at for member in ordered])
        self.is_shared |= len(ordered) > 1
        for number, member in enumerate(ordered):
            member.at = (target, number)
        return ordered


class Batch:
    """Sequences that are generated together, and may join and leave between two steps.

    If the model cannot mix lengths, only sequences of equal length share a call; if its batch is 1,
    each sequence has its own call.
    """

    def __init__(self, model: LanguageModel) -> None:
        self._model, self._wiring = model, model.wiring
        self._lanes: list[_Lane] = []

    def __len__(self) -> int:
        return sum(len(lane.members) for lane in self._lanes)

    def join(self, sequence: Growing, decoder: Decoder, logits: Array, row: int = 0) -> None:
        """Adds a sequence that a row of a decoder has read; `logits` are its next ones,
        f32[vocabulary]. The batch takes ownership of the decoder.
        """
        lane = self._lane(len(sequence.tokens))
        if lane is None:
            lane = _Lane()
            self._lanes.append(lane)
        lane.members.append(_Member(sequence, (decoder, row), logits))

    def _lane(self, length: int) -> _Lane | None:
        """Returns the lane that a sequence of this length may join."""
        if not self._wiring.batches:
            return None
        mixes = self._wiring.mixes_lengths
        found = (lane for lane in self._lanes if mixes or lane.length == length)
        return next(found, None)

    def step(self) -> list[Step]:
        """Generates the next token of each sequence. Those that end or fail leave."""
        steps = [step for lane in self._lanes for step in lane.step()]
        for step in steps:
            if step.sequence.finish:
                self.leave(step.sequence)
        return steps

    def leave(self, sequence: Growing) -> None:
        """Removes a sequence; the model keeps its caches for later prompts."""
        for lane in self._lanes:
            for member in lane.members:
                if member.sequence is sequence:
                    lane.members.remove(member)
                    self._keep(member, lane)
        self._lanes = [lane for lane in self._lanes if lane.members]

    def _keep(self, member: _Member, lane: _Lane) -> None:
        decoder, row = member.at
        prefixes = self._model.prefixes
        if not decoder.is_whole or (len(self) and not prefixes.keeps_many):
            return
        if lane.is_shared or decoder.count > 1:
            shared, decoder = decoder, Decoder(self._wiring)
            try:
                decoder.take([(shared, row)])
            except ClewError:  # there is no memory for it, but the sequence has its result
                return
        prefixes.keep(decoder)

    def close(self) -> None:
        """Removes all sequences."""
        for lane in list(self._lanes):
            for member in list(lane.members):
                self.leave(member.sequence)
