"""What a GGUF file says about texts: its tokenizer, the chat template, ids that end a text."""

from __future__ import annotations

import os
from functools import partial

from clew.frontends.gguf.container import read_container
from clew.frontends.gguf.settings import Settings
from clew.frontends.gguf.tokenizer import tokenizer_json
from clew.frontends.gguf.vocabulary import Vocabulary, vocabulary_in
from clew.frontends.texts import ModelTexts


def texts_of(source: str | os.PathLike[str]) -> ModelTexts:
    """Returns what a file says about texts.

    Errors: M070 for a damaged file, M071 for invalid metadata.
    """
    container = read_container(source)
    context = Settings(container).get("context_length")
    context = context if type(context) is int and context > 0 else None
    vocabulary = vocabulary_in(container)
    if vocabulary is None:
        return ModelTexts(context=context)
    return ModelTexts(
        partial(tokenizer_json, vocabulary),
        vocabulary.chat_template,
        _special(vocabulary),
        () if vocabulary.eos is None else (vocabulary.eos,),
        context,
    )


def _special(vocabulary: Vocabulary) -> dict[str, str]:
    numbers = {
        "bos_token": vocabulary.bos,
        "eos_token": vocabulary.eos,
        "unk_token": vocabulary.unknown,
        "pad_token": vocabulary.padding,
    }
    return {name: vocabulary.tokens[n] for name, n in numbers.items() if n is not None}
