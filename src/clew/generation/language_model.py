"""A compiled model with the tokenizer, the chat template and the settings of its folder."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clew.generation.companions import Companions
from clew.generation.decoder import Decoder
from clew.generation.opening import opened
from clew.generation.prefix_files import PrefixFiles, model_of_files
from clew.generation.prefixes import Prefixes
from clew.generation.settings import Settings
from clew.generation.tokenizer import Tokenizer
from clew.runtime.wiring import Wiring
from clew.support.errors import InputError
from clew.support.shown import Shown

if TYPE_CHECKING:
    from clew.profile.token_costs import TokenCosts

Messages = Sequence[Mapping[str, Any]]


class LanguageModel(Shown):
    """A compiled model that generates text, from `clew.language_model`.

    It keeps the caches of its last generation: the next one reads only the tokens in which its
    prompt differs. Several threads may generate with one model at once; each such generation reads
    its whole prompt.
    """

    def __init__(self, model: Any, companions: Companions) -> None:
        self._model = model
        self._wiring = Wiring(model)
        self._tokenizer, self._no_tokenizer, self._template, self._settings = companions
        self.prefixes = Prefixes(self._wiring)
        """The caches of earlier prompts."""

    def _about(self) -> str:
        tokens = f"{self._wiring.vocabulary or 'unknown'} tokens"
        context = self._settings.context
        return f"{tokens}, context {context}" if context else tokens

    @property
    def model(self) -> Any:
        """The compiled model."""
        return self._model

    @property
    def wiring(self) -> Wiring:
        """The roles of the model's inputs and outputs."""
        return self._wiring

    @property
    def settings(self) -> Settings:
        """The settings of the model's folder or file."""
        return self._settings

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer; None if the model has none."""
        return self._tokenizer

    @property
    def has_chat_template(self) -> bool:
        """Whether the model has a chat template."""
        return self._template is not None

    def encode(self, text: str) -> list[int]:
        """Returns the ids of a text, with the token for the beginning of a text if the model has
        one.

        Errors: I480, I485 (no tokenizer).
        """
        return self._need_tokenizer().encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of ids, without special tokens. Errors: I485 (no tokenizer)."""
        return self._need_tokenizer().decode(ids)

    def prompt_of(self, messages: Messages, /, **values: Any) -> str:
        """Returns the prompt of a conversation by the chat template, up to the beginning of the
        model's answer. `values` are further variables of the template, such as `enable_thinking`.

        Errors: I487 (no template, or it refuses the messages), I485 (jinja2 is not installed).
        """
        if self._template is None:
            raise InputError(
                "I487",
                "the model has no chat template",
                hint="give a text as prompt; chat models have chat_template.jinja, or "
                "chat_template in tokenizer_config.json",
            )
        return self._template.render(messages, **values)

    def encode_chat(self, messages: Messages, /, **values: Any) -> list[int]:
        """Returns the ids of a conversation's prompt. Errors: those of `prompt_of`, I485."""
        text = self.prompt_of(messages, **values)
        return self._need_tokenizer().encode(text, special=False)

    def _need_tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            raise self._no_tokenizer.with_traceback(None)  # it would hold the frames of all raises
        return self._tokenizer

    def keep_prefixes(self, source: Any, folder: str | os.PathLike[str] | None) -> None:
        """Keeps prompt caches in a folder, if one is given. `source` is the file or the folder
        of the model.

        Errors: I493.
        """
        if folder is None:
            return
        if not isinstance(source, (str, os.PathLike)):
            raise InputError(
                "I493",
                "prefix_cache needs a model from a folder or file, which identifies it",
                hint="give the model's folder or file to clew.language_model",
            )
        if not self._wiring.states or not self._wiring.rewinds:
            raise InputError(
                "I493",
                "prefix_cache needs a model whose caches grow with the tokens",
                hint="leave out prefix_cache",
            )
        model = model_of_files(Path(source), Decoder(self._wiring))
        self.prefixes.files = PrefixFiles(Path(folder), model)

    def costs(self, length: int = 256, prompt: int = 256) -> TokenCosts:
        """Returns the costs of tokens: the memory of weights and states and, by layer, the bytes
        that must be read and the times of a decode step after `length` tokens and of the first call
        of a prompt of `prompt` tokens.

        Errors: I495 for a saved model, a model without caches, and what is no integer of at least
        1; I265 for too many tokens; those of a call.
        """
        from clew.profile.token_costs import costs_of  # noqa: PLC0415 - it imports the compiler

        return costs_of(self._wiring, length, prompt)

    def forget(self) -> None:
        """Frees the caches of earlier prompts in memory."""
        self.prefixes.forget()


def language_model(
    source: Any,
    *,
    folder: str | os.PathLike[str] | None = None,
    prefix_cache: str | os.PathLike[str] | None = None,
    **options: Any,
) -> LanguageModel:
    """Returns a model that generates text.

    `source` is a folder that `transformers` saved, a folder with an ONNX model (Optimum, ONNX
    Runtime GenAI), a GGUF, ONNX or `.clew` file, or a compiled model. `folder` has the tokenizer
    and the settings; by default, they are those in the model's file or next to it. `prefix_cache`
    is a folder that keeps prompt caches, of at most 4 GiB: a prefix that a prompt shares with an
    earlier one, also of another process, is not read again. Options are those of `clew.compile`.

    Errors: I484 (no language model), I485 (tokenizers is not installed), I493 (`prefix_cache` for a
    model that is no file or whose caches cannot be cut), M073 to M075 (damaged files of the
    folder), I014 (options of a model that is compiled already), and those of `clew.compile`.
    """
    made = LanguageModel(*opened(source, folder, options))
    made.keep_prefixes(source, prefix_cache)
    return made
