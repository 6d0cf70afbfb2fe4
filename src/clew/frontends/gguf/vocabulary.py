"""The tokenizer in a GGUF file.

Source: ggml, `docs/gguf.md` (`tokenizer.ggml.*`); llama.cpp, `llama-vocab.cpp`.
"""

from __future__ import annotations

import os
from typing import Any, Final

from clew.frontends.checkpoint.config import Config
from clew.frontends.gguf.container import Container, Items, read_container
from clew.support.budgets import Budgets, in_force
from clew.support.dataclass import dataclass

_PREFIX: Final = "tokenizer.ggml."
_NONE: Final = "no_vocab"
"""The tokenizer's model in files of models that read token ids only."""


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a model, by number, and how text is split into them.

    `model` is "gpt2" for byte-level BPE with `merges`, "llama" for SentencePiece with `scores`, or
    another name of llama.cpp; `splitting` names the rule that splits text before the merges.
    `types` has the kind of each token: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused,
    6 byte. Numbers of special tokens are None if there is no such token.
    """

    model: str
    splitting: str
    tokens: tuple[str, ...]
    scores: tuple[float, ...] = ()
    types: tuple[int, ...] = ()
    merges: tuple[str, ...] = ()
    bos: int | None = None
    eos: int | None = None
    unknown: int | None = None
    padding: int | None = None
    adds_bos: bool = False
    adds_eos: bool = False
    adds_space: bool = True
    chat_template: str = ""


def vocabulary_of(
    source: str | os.PathLike[str], *, budgets: Budgets | None = None
) -> Vocabulary | None:
    """Returns the tokenizer of a file; None if it has none.

    Errors: M070 for a damaged file, M071 for invalid metadata.
    """
    with in_force(budgets):
        return vocabulary_in(read_container(source))


def vocabulary_in(container: Container) -> Vocabulary | None:
    """Returns the tokenizer of a file that was read; None if it has none. Errors: M071."""
    if container.metadata.get(f"{_PREFIX}model", _NONE) == _NONE:
        return None
    return _Fields(container).vocabulary()


class _Fields:
    """Reads the metadata of a tokenizer with checked types."""

    def __init__(self, container: Container) -> None:
        self._metadata = container.metadata
        self._config = Config(container.metadata, repr(container.shown))

    def vocabulary(self) -> Vocabulary:
        """Returns the tokenizer."""
        model = self._config.text(f"{_PREFIX}model")
        tokens = self._texts("tokens")
        if not tokens:
            self._config.invalid(f"{_PREFIX}tokens")
        count = len(tokens)
        return Vocabulary(
            model,
            self._config.text(f"{_PREFIX}pre", ""),
            tokens,
            self._numbers("scores", count),
            self._numbers("token_type", count),
            self._texts("merges"),
            self._token("bos_token_id", count),
            self._token("eos_token_id", count),
            self._token("unknown_token_id", count),
            self._token("padding_token_id", count),
            self._config.flag(f"{_PREFIX}add_bos_token", model == "llama"),
            self._config.flag(f"{_PREFIX}add_eos_token", False),
            self._config.flag(f"{_PREFIX}add_space_prefix", True),
            self._config.text("tokenizer.chat_template", ""),
        )

    def _items(self, name: str) -> Items | None:
        found = self._metadata.get(f"{_PREFIX}{name}")
        if found is not None and not isinstance(found, Items):
            self._config.invalid(f"{_PREFIX}{name}")
        return found

    def _texts(self, name: str) -> tuple[str, ...]:
        found = self._items(name)
        if found is not None and not found.are_texts:
            self._config.invalid(f"{_PREFIX}{name}")
        return () if found is None else tuple(found.texts())

    def _numbers(self, name: str, count: int) -> tuple[Any, ...]:
        """Returns numbers, one for each token."""
        found = self._items(name)
        if found is None:
            return ()
        if not found.are_numbers or found.count != count:
            self._config.invalid(f"{_PREFIX}{name}")
        return tuple(found.numbers().tolist())

    def _token(self, name: str, count: int) -> int | None:
        found = self._metadata.get(f"{_PREFIX}{name}")
        if found is None:
            return None
        if type(found) is not int or not 0 <= found < count:
            self._config.invalid(f"{_PREFIX}{name}")
        return found
