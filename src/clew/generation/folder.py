"""Finds the parts of a language model in a folder: the model's file, and its tokenizer."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from clew.generation.settings import GENAI
from clew.generation.tokenizer import FILE as TOKENIZER
from clew.support.errors import InputError
from clew.support.files import read_json_file

_ONNX: Final = ("model.onnx", "decoder_model_merged.onnx", "decoder_with_past_model.onnx")
_WEIGHTS: Final = ("model.safetensors", "model.safetensors.index.json")


def model_in(path: Path) -> Path:
    """Returns what to compile of a path: a file, or a folder that transformers saved, itself; the
    ONNX file in a folder of ONNX Runtime GenAI or Optimum.

    Errors: I484 if a folder has no model.
    """
    if not os.path.isdir(path) or any(os.path.isfile(path / name) for name in _WEIGHTS):
        return path
    names = [_of_genai(path), *_ONNX, *(f"onnx/{name}" for name in _ONNX)]
    for name in names:
        if name and os.path.isfile(path / name):
            return path / name
    raise InputError(
        "I484",
        f"the folder {str(path)!r} has no language model",
        hint=f"it has {_WEIGHTS[0]} with config.json, or {_ONNX[0]}; "
        "transformers' save_pretrained and Optimum's export write such folders",
    )


def home_of(path: Path) -> Path:
    """Returns the folder of the tokenizer and the settings of a model: the folder itself, or that
    of its file, or the one above it (`onnx/model.onnx`).
    """
    if os.path.isdir(path):
        return path
    here = path.absolute().parent
    return next((f for f in (here, here.parent) if os.path.isfile(f / TOKENIZER)), here)


def _of_genai(folder: Path) -> str:
    """Returns the name of the file that `genai_config.json` gives for the decoder."""
    if not os.path.isfile(folder / GENAI):
        return ""
    try:
        config: Any = read_json_file(folder / GENAI)
        name = config["model"]["decoder"]["filename"]
    except (OSError, ValueError, TypeError, KeyError):
        return ""
    is_plain = isinstance(name, str) and not set(name) & set("/\\\0") and name not in (".", "..")
    return name if is_plain else ""
