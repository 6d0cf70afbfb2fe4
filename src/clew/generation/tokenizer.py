"""`tokenizer.json`: from text to ids and back, through the library `tokenizers`."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from clew.support.errors import PASSED_ON, ClewError, InputError, ModelError
from clew.support.files import read_text, reason_of
from clew.support.libraries import optional_library
from clew.support.shown import Shown

FILE: Final = "tokenizer.json"
_PANIC: Final = "PanicException"


class Tokenizer(Shown):
    """The tokenizer of a model."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    @staticmethod
    def read(path: Path) -> Tokenizer:
        """Returns the tokenizer in a file. Errors: I485 without the library, M073."""
        try:
            text = read_text(path)
        except (OSError, ValueError) as error:
            raise _unreadable(FILE, error) from None
        return Tokenizer.of_text(text, FILE)

    @staticmethod
    def of_text(text: str, name: str) -> Tokenizer:
        """Returns the tokenizer that the text of a `tokenizer.json` describes. `name` is for
        messages. Errors: I485 without the library, M073.
        """
        library = optional_library(
            "tokenizers",
            InputError(
                "I485",
                "texts need the library tokenizers, which is not installed",
                hint="pip install 'clew[language]'; token ids work without it",
            ),
        )
        try:
            made = library.Tokenizer.from_str(text)
            made.no_truncation()  # as in transformers: both are for batches of a training
            made.no_padding()
            return Tokenizer(made)
        except PASSED_ON:
            raise
        except BaseException as error:
            raise _refused(error, _unreadable(name, error)) from None

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Returns the ids of a text. `special` adds what the model expects around a text, such as a
        token for its beginning.
        """
        try:
            found: list[int] = self._tokenizer.encode(text, add_special_tokens=special).ids
        except PASSED_ON:
            raise
        except BaseException as error:
            raise _refused(
                error,
                InputError(
                    "I480",
                    f"the tokenizer cannot encode the text: {error}",
                    hint="give token ids, or a text of complete Unicode characters",
                ),
            ) from None
        return found

    def cutting(self, most: int) -> Tokenizer:
        """Returns a tokenizer that cuts texts to at most `most` tokens."""
        made = copy.deepcopy(self._tokenizer)
        made.enable_truncation(most)
        made.no_padding()
        return Tokenizer(made)

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of ids, without special tokens. Errors: I481 for ids that the tokenizer
        cannot decode.
        """
        try:
            text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        except PASSED_ON:
            raise
        except BaseException as error:
            raise _refused(
                error,
                InputError(
                    "I481",
                    f"the tokenizer cannot decode the ids: {error}",
                    hint="ids are whole numbers, 0 or more",
                ),
            ) from None
        return text

    def id_of(self, token: str) -> int | None:
        """Returns the id of a token; None if there is none of that text."""
        found: int | None = self._tokenizer.token_to_id(token)
        return found


def _unreadable(name: str, error: BaseException) -> ModelError:
    return ModelError(
        "M073",
        f"{name} cannot be read: {reason_of(error)}",
        hint="the file is damaged, or of a newer version of the library tokenizers",
    )


def _refused(error: BaseException, coded: ClewError) -> BaseException:
    """Returns the coded error for one of the library; any other that is no `Exception` itself. A
    panic of Rust code is none, and its class is not exported.
    """
    return coded if isinstance(error, Exception) or type(error).__name__ == _PANIC else error
