"""Settings of a model's folder: ids that end a text, defaults of options, the longest context.

They come from `generation_config.json` and `config.json` (transformers), or from
`genai_config.json` (the model builder of ONNX Runtime GenAI).
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Final

from clew.generation.options import LEAST_FACTOR, MOST_FACTOR, MOST_POWER
from clew.support.dataclass import dataclass
from clew.support.errors import ClewWarning, ModelError, warn
from clew.support.files import read_json_file, reason_of
from clew.support.near import listed

GENERATION: Final = "generation_config.json"
MODEL: Final = "config.json"
GENAI: Final = "genai_config.json"
SENTENCES: Final = "sentence_bert_config.json"
_CONTEXTS: Final = ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length")
_SAMPLING: Final = ("temperature", "top_k", "top_p", "min_p")
_NUMBERS: Final = {
    "temperature": (0.0, MOST_FACTOR), "top_k": (0, math.inf), "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0), "repetition_penalty": (LEAST_FACTOR, MOST_FACTOR),
    "num_beams": (1, 1024), "length_penalty": (-MOST_POWER, MOST_POWER),
    "max_new_tokens": (1, 1 << 31),
}  # fmt: skip
_WHOLE: Final = ("top_k", "num_beams", "max_new_tokens")
_RENAMED: Final = {"num_beams": "beams", "max_new_tokens": "max_tokens"}
_NEUTRAL: Final[Mapping[str, Any]] = {
    "no_repeat_ngram_size": 0, "bad_words_ids": None, "suppress_tokens": None,
    "begin_suppress_tokens": None, "forced_bos_token_id": None, "forced_eos_token_id": None,
    "guidance_scale": 1.0, "sequence_bias": None, "typical_p": 1.0, "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0, "min_new_tokens": None, "min_length": 0, "top_h": None,
    "exponential_decay_length_penalty": None,
}  # fmt: skip
"""Fields that change the tokens and that clew lacks, with the values that change nothing."""


@dataclass(frozen=True)
class Settings:
    """The settings of a folder: ids that end a text, defaults of `Options` by name, and the number
    of tokens that the model can read (None: unknown).
    """

    ends: tuple[int, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    context: int | None = None

    @staticmethod
    def read(folder: Path) -> Settings:
        """Returns the settings of a folder. Errors: M075 for an invalid file."""
        model, generation = _object(folder, MODEL), _object(folder, GENERATION)
        genai = _object(folder, GENAI)
        if genai:
            inner = _part(genai, "model", GENAI)
            generation = {**_part(genai, "search", GENAI), **generation}
            model = {**inner, **model}
            if "context_length" in inner:
                model["max_position_embeddings"] = inner["context_length"]
        ends = generation.get("eos_token_id")
        _note_ignored(generation)
        return Settings(
            _ids(model.get("eos_token_id") if ends is None else ends),
            _defaults(generation),
            _read_at_once(folder) or _context(model),
        )


def _defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, (low, high) in _NUMBERS.items():
        value = given.get(name)
        if value is None:
            continue
        kinds = (int,) if name in _WHOLE else (int, float)
        if type(value) not in kinds or not low <= value <= high or value != value:
            raise _wrong(GENERATION, f"has {name}: {value!r:.60}")
        found[_RENAMED.get(name, name)] = value
    early = given.get("early_stopping")
    if early is not None:
        if early not in (True, False, "never"):
            raise _wrong(GENERATION, f"has early_stopping: {early!r:.60}")
        found["early_stopping"] = early
    if given.get("do_sample") is not True:
        found = {n: v for n, v in found.items() if n not in _SAMPLING}
    else:
        found.setdefault("temperature", 1.0)
    return found


def _note_ignored(given: Mapping[str, Any]) -> None:
    ignored = [n for n, v in _NEUTRAL.items() if given.get(n) not in (None, v)]
    if ignored:
        warn(
            ClewWarning(
                "I492",
                f"{GENERATION} sets {listed(ignored)}, which clew ignores",
                hint="logits= takes a function that changes the scores of tokens",
            )
        )


def _read_at_once(folder: Path) -> int | None:
    """Returns the number of tokens to which sentence-transformers cuts texts."""
    most = _object(folder, SENTENCES).get("max_seq_length")
    if most is not None and (type(most) is not int or most < 1):
        raise _wrong(SENTENCES, f"has max_seq_length: {most!r:.60}")
    return most


def _context(model: Mapping[str, Any]) -> int | None:
    for name in _CONTEXTS:
        value = model.get(name)
        if value is not None:
            if type(value) is not int or value < 1:
                raise _wrong(MODEL, f"has {name}: {value!r:.60}")
            return value
    return None


def _ids(value: Any) -> tuple[int, ...]:
    found = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(i) is int for i in found):
        raise _wrong(GENERATION, f"has eos_token_id: {value!r:.60}")
    return tuple(i for i in found if i >= 0)


def _part(given: Mapping[str, Any], name: str, file: str) -> dict[str, Any]:
    found = given.get(name, {})
    if not isinstance(found, dict):
        raise _wrong(file, f"has {name}: {found!r:.60}")
    return found


def _object(folder: Path, name: str) -> dict[str, Any]:
    """Returns the object in a file; an empty one if there is no such file."""
    if not os.path.isfile(folder / name):
        return {}
    try:
        found = read_json_file(folder / name)
    except (OSError, ValueError) as error:
        raise _wrong(name, f"cannot be read: {reason_of(error)}") from None
    if not isinstance(found, dict):
        raise _wrong(name, "is no object")
    return found


def _wrong(name: str, what: str) -> ModelError:
    return ModelError("M075", f"{name} of the model's folder {what}", hint="save the model again")
