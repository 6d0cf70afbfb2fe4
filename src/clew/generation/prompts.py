"""Prompts as callers give them: texts, ids, conversations, or lists of these."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from clew.generation.language_model import LanguageModel
from clew.support.dataclass import dataclass
from clew.support.errors import InputError
from clew.support.foreign import array_of


@dataclass(frozen=True)
class Prompts:
    """Prompts as ids, and whether they were given as a list of several."""

    ids: list[list[int]]
    are_many: bool

    @staticmethod
    def of(model: LanguageModel, given: Any) -> Prompts:
        """Returns what a caller gave as a prompt.

        Errors: I480 (an empty prompt, or something else), I481 (ids out of range), I483 (a prompt
        that fills the model's context), I485 and I487 (texts and conversations).
        """
        if not _is_text_or_list(given):
            given = _plain(given)
        one = _ids(model, given)
        if one is not None:
            found, many = [one], False
        elif isinstance(given, Sequence) and not isinstance(given, (str, bytes)) and given:
            ids = [_ids(model, e if _is_text_or_list(e) else _plain(e)) for e in given]
            found, many = [i for i in ids if i is not None], True
            if len(found) < len(given):
                raise _no_prompt(given)
        else:
            raise _no_prompt(given)
        for each in found:
            _check(model, each)
        return Prompts(found, many)


def _is_text_or_list(given: Any) -> bool:
    return isinstance(given, (str, list, tuple))


def _plain(given: Any) -> Any:
    """Returns an array, or a tensor of another library, as nested lists; other values unchanged."""
    try:
        array = array_of(given)
    except Exception:
        return given
    return array.tolist() if array.dtype.kind in "iu" and array.ndim in (1, 2) else given


def _ids(model: LanguageModel, given: Any) -> list[int] | None:
    """Returns the ids of one prompt; None for anything else."""
    if isinstance(given, str):
        return model.encode(given)
    if not isinstance(given, (list, tuple)):
        return None
    if given and all(isinstance(e, Mapping) for e in given):
        return model.encode_chat(given)
    if all(_is_id(e) for e in given):
        return [int(e) for e in given]
    return None


def _is_id(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, (bool, np.bool_))


def _check(model: LanguageModel, ids: list[int]) -> None:
    if not ids:
        raise InputError(
            "I480",
            "the prompt has no tokens",
            hint="give a text that is not empty, or the id of the token that begins a text",
        )
    model.wiring.check_ids(ids)
    context = model.settings.context
    if context is not None and len(ids) >= context:
        raise InputError(
            "I483",
            f"the prompt has {len(ids)} tokens, and the model's context is {context}",
            hint="shorten the prompt",
        )


def _no_prompt(given: Any) -> InputError:
    return InputError(
        "I480",
        f"{given!r:.60} is no prompt",
        hint="a prompt is a text, a list of token ids, a list of messages "
        '({"role": "user", "content": "..."}), or a list of such prompts',
    )
