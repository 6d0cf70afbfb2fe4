"""What a generation returns."""

from __future__ import annotations

import time

from clew.support.dataclass import dataclass
from clew.support.shown import Shown


@dataclass(frozen=True, repr=False)
class Generation(Shown):
    """The result of a generation.

    `ids` are the new tokens, with the one that ended them; `text` is their text without stop texts
    and special tokens, None without a tokenizer. `finish` says why it ended: `"eos"` (the model's
    token for the end of a text), `"stop"` (a stop text or id, in `stop`), `"length"` (`max_tokens`
    or the model's context), or `"interrupted"` (a stream that was closed).

    `prompt_tokens` are those of the prompt, of which `cached_tokens` were still in the caches of
    the previous generation. `first_token_s` is the time to the first token, `seconds` the whole
    time. `seed` is the one that tokens were drawn with. `score` is that of a beam: its log
    probability divided by a power of its length. `drafted` counts tokens of a draft, `accepted`
    those among them that were kept.
    """

    ids: tuple[int, ...]
    text: str | None
    finish: str
    stop: str | int | None
    prompt_tokens: int
    cached_tokens: int
    first_token_s: float
    seconds: float
    seed: int | None = None
    score: float | None = None
    drafted: int = 0
    accepted: int = 0

    @property
    def tokens_per_second(self) -> float:
        """New tokens after the first, per second."""
        later = self.seconds - self.first_token_s
        return (len(self.ids) - 1) / later if later > 0 and len(self.ids) > 1 else 0.0

    def __str__(self) -> str:
        return self.text if self.text is not None else " ".join(map(str, self.ids))

    def _about(self) -> str:
        shown = "" if self.text is None else f" {self.text!r:.60}"
        return f"{len(self.ids)} tokens, {self.finish}{shown}"


class Clock:
    """Counts the seconds of a generation, without those in which its reader works."""

    def __init__(self) -> None:
        self._before = 0.0
        self._since: float | None = None
        self.first: float | None = None

    def start(self) -> None:
        """Counts from now on."""
        self._since = time.perf_counter()

    def pause(self) -> None:
        """Stops counting."""
        self._before, self._since = self.seconds, None

    def note_first(self) -> None:
        """Notes the time of the first token."""
        if self.first is None:
            self.first = self.seconds

    @property
    def seconds(self) -> float:
        """The seconds counted so far."""
        return self._before + (time.perf_counter() - self._since if self._since is not None else 0)
