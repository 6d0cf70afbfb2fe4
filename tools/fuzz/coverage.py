"""Which of ONNX's operators the generator draws, and why it does not draw the others."""

from __future__ import annotations

from typing import Any, Final

import onnx

from clew.frontends.onnx.registry import supported
from fuzz.operators import ENTRIES

_CHANCE: Final = "its results are chance: no two engines draw alike"
WHY_NOT: Final[dict[str, str]] = {
    "Bernoulli": _CHANCE,
    "Multinomial": _CHANCE,
    "RandomNormal": _CHANCE,
    "RandomNormalLike": _CHANCE,
    "RandomUniform": _CHANCE,
    "RandomUniformLike": _CHANCE,
    "ImageDecoder": "reads files of image formats: tests of its own hold it",
    "ai.onnx.preview::FlexAttention": "bodies are graphs of users': the suite's cases hold it",
    "ai.onnx.preview.training::Gradient": "no engine computes it",
    "ai.onnx.preview.training::Adagrad": "training: the suite's cases hold it",
    "ai.onnx.preview.training::Adam": "training: the suite's cases hold it",
    "ai.onnx.preview.training::Momentum": "training: the suite's cases hold it",
    "ai.onnx.ml::CastMap": "maps: the generator's values are tensors, sequences and optionals",
    "ai.onnx.ml::DictVectorizer": "maps, as above",
    "ai.onnx.ml::ZipMap": "maps, as above",
    "ai.onnx.ml::CategoryMapper": "strings and numbers: tests of its own hold it",
    "ai.onnx.ml::SVMClassifier": "its many tables are drawn by tests of its own",
    "ai.onnx.ml::TreeEnsemble": "its many tables are drawn by tests of its own",
}
"""Operators without an entry, each with the reason."""


def names() -> list[str]:
    """Returns ONNX's operators, deprecated ones left out."""
    return sorted(
        {
            f"{s.domain}::{s.name}" if s.domain else s.name
            for s in onnx.defs.get_all_schemas()
            if not s.deprecated or (s.domain, s.name) in ENTRIES
        }
    )


def missing() -> list[str]:
    """Returns operators without an entry."""
    have = {e.name for e in ENTRIES.values()}
    return [n for n in names() if n not in have]


def converted() -> list[str]:
    """Returns the operators that clew imports: by a converter, or by the standard's definition."""
    have = set(supported())
    found = []
    schemas: Any = onnx.defs.get_all_schemas()
    for s in schemas:
        body = s.has_function or s.has_context_dependent_function
        if (s.domain, s.name) in have or body:
            found.append(f"{s.domain}::{s.name}" if s.domain else s.name)
    return sorted(found)


def report() -> str:
    """Returns the covered and missing operators as text."""
    have = {e.name for e in ENTRIES.values()}
    known = converted()
    lines = [
        f"{sum(n in have for n in known)} of {len(known)} operators that clew converts are drawn"
    ]
    lines += [f"  not drawn: {n}: {WHY_NOT.get(n, 'NO REASON GIVEN')}" for n in missing()]
    return "\n".join(lines)
