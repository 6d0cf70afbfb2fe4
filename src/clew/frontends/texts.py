"""What the file of a language model says about texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field

from clew.support.dataclass import dataclass


@dataclass(frozen=True)
class ModelTexts:
    """What a file has besides the model.

    `tokenizer` returns the text of a `tokenizer.json`; it raises U009 for a kind that clew does not
    know, and is None if the file has no tokenizer. `template` is the chat template, "" for none,
    and `special` the texts that it uses by name. `ends` are the ids that end a text. `context` is
    the number of tokens that the model can read, None if it is unknown.
    """

    tokenizer: Callable[[], str] | None = None
    template: str = ""
    special: Mapping[str, str] = field(default_factory=dict)
    ends: tuple[int, ...] = ()
    context: int | None = None
