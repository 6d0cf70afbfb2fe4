"""What belongs to a language model besides its graph: tokenizer, chat template, settings.

They lie in the model's folder, or in its file.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from clew.frontends.formats import format_of
from clew.frontends.texts import ModelTexts
from clew.generation.folder import home_of
from clew.generation.settings import Settings
from clew.generation.template import ChatTemplate
from clew.generation.tokenizer import FILE, Tokenizer
from clew.support.errors import ClewError, InputError, UnsupportedError


class Companions(NamedTuple):
    """The tokenizer, or None and the error that texts raise; the chat template, if there is one;
    the settings.
    """

    tokenizer: Tokenizer | None
    absent: ClewError
    template: ChatTemplate | None = None
    settings: Settings = Settings()

    @staticmethod
    def none() -> Companions:
        """Returns those of a model that has none: token ids need none."""
        return Companions(None, _absent(""))

    @staticmethod
    def beside(path: Path) -> Companions:
        """Returns those of a model's file or folder.

        Errors: M070 and M071 (the file), M073 to M075 (files of the folder).
        """
        found = None if os.path.isdir(path) else format_of(path)
        texts = None if found is None else found.texts(path)
        return Companions.in_folder(home_of(path)) if texts is None else _in_file(texts, path)

    @staticmethod
    def in_folder(folder: Path) -> Companions:
        """Returns those of a folder. Errors: M073 to M075."""
        absent: ClewError = _absent(f"there is no {FILE} in {str(folder)!r}")
        tokenizer = None
        if os.path.isfile(folder / FILE):
            try:
                tokenizer = Tokenizer.read(folder / FILE)
            except InputError as error:  # the library is not installed
                absent = error
        return Companions(tokenizer, absent, ChatTemplate.read(folder), Settings.read(folder))


def _in_file(texts: ModelTexts, path: Path) -> Companions:
    absent: ClewError = _absent(f"{str(path)!r} has none")
    tokenizer = None
    if texts.tokenizer is not None:
        try:
            tokenizer = Tokenizer.of_text(texts.tokenizer(), f"the tokenizer of {str(path)!r}")
        except (InputError, UnsupportedError) as error:  # no library, or an unknown kind
            absent = error
    template = ChatTemplate(texts.template, texts.special) if texts.template else None
    settings = Settings(ends=texts.ends, context=texts.context)
    return Companions(tokenizer, absent, template, settings)


def _absent(why: str) -> InputError:
    return InputError(
        "I485",
        f"texts need a tokenizer{', and ' if why else ''}{why}",
        hint="give token ids, or folder= with the tokenizer of the model",
    )
