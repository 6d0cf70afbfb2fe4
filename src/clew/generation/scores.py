"""From the logits of a model to the probabilities of the next token.

The order is that of `transformers`: repetition, presence and frequency penalties, the caller's
function, temperature, top-k, top-p, min-p. Greedy and beam search end before the temperature.

Source: `generation/logits_process.py` of transformers 5; presence and frequency penalties as in the
OpenAI API, counted over generated tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from clew.generation.options import LogitsCallback, Options
from clew.support.errors import PASSED_ON, InputError

Scores: TypeAlias = "np.ndarray[Any, np.dtype[np.float32]]"
"""Scores of all tokens of the vocabulary: f32[vocabulary]."""
Probabilities: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"


def checked_logits(logits: Any) -> Scores:
    """Returns a model's logits for one position as f32. Errors: I489 for NaN."""
    found: Scores = np.asarray(logits).astype(np.float32)
    if np.isnan(found).any():
        raise InputError(
            "I489",
            "the model's logits are NaN",
            hint="clew precision and clew bisect find the layer; its weights may be damaged",
        )
    return found


def penalized(scores: Scores, tokens: Sequence[int], prompt_tokens: int, of: Options) -> Scores:
    """Returns scores after all penalties and the caller's function. `tokens` are those of the
    prompt and the generated ones.

    Errors: I488 and I489 (see `called_back`).
    """
    repetition = of.repetition_penalty
    if repetition is not None and repetition != 1:
        seen = np.unique(np.array(tokens, np.int64))
        seen = seen[seen < len(scores)]
        found = scores[seen]
        factor = np.float32(repetition)
        with np.errstate(over="ignore"):
            scores[seen] = _bounded(np.where(found < 0, found * factor, found / factor), found)
    if (of.presence_penalty or of.frequency_penalty) and len(tokens) > prompt_tokens:
        new, counts = np.unique(np.array(tokens[prompt_tokens:], np.int64), return_counts=True)
        penalties = (of.presence_penalty or 0) + (of.frequency_penalty or 0) * counts
        scores[new] = _bounded(scores[new] - penalties, scores[new])
    return scores if of.logits is None else called_back(scores, tokens, of.logits)


def _bounded(changed: Any, before: Any) -> Any:
    """Returns changed scores as finite f32; those that were infinite before remain so."""
    most = np.finfo(np.float32).max
    return np.where(np.isfinite(before), np.clip(changed, -most, most), before)


def called_back(scores: Scores, tokens: Sequence[int], function: LogitsCallback) -> Scores:
    """Returns the scores that a caller's function makes.

    Errors: I488 if it fails or returns anything else than f32[vocabulary] of finite numbers and
    minus infinity; I489 if it forbids all tokens.
    """
    try:
        array = np.asarray(function(np.array(tokens, np.int64), scores.copy()))
    except PASSED_ON:
        raise
    except Exception as error:
        raise InputError(
            "I488",
            f"the function for logits failed: {type(error).__name__}: {error}",
            hint="the tokens so far are kept: iterate over stream=True, and read its result",
        ) from error
    if array.shape != scores.shape or array.dtype.kind != "f":
        raise _refused(f"returned {array.dtype}{list(array.shape)}", scores)
    with np.errstate(over="ignore"):  # refused below
        made: Scores = array.astype(np.float32)
    if np.isnan(made).any() or (made == np.inf).any():
        raise _refused("returned NaN or infinity", scores)
    if (made == -np.inf).all():
        raise InputError(
            "I489",
            "the function for logits forbids all tokens",
            hint="a grammar that is complete has to allow the token that ends the text",
        )
    return made


def _refused(what: str, scores: Scores) -> InputError:
    return InputError(
        "I488",
        f"the function for logits {what}",
        hint=f"it returns scores of {len(scores)} tokens, f32, minus infinity for forbidden ones",
    )


def narrowed(scores: Scores, of: Options, keep: int = 1) -> Scores:
    """Returns scores divided by the temperature, and minus infinity for tokens outside top-k, top-p
    and min-p, which keep at least `keep` tokens.
    """
    if of.temperature not in (None, 0, 1):
        least = np.finfo(np.float32).tiny
        with np.errstate(over="ignore"):  # a tiny temperature leaves the best token
            scores = (scores - scores.max()) / np.maximum(np.float32(of.temperature), least)
    if of.top_k:
        count = min(max(of.top_k, keep), len(scores))
        least = np.partition(scores, len(scores) - count)[len(scores) - count]
        scores = np.where(scores < least, -np.inf, scores)
    if of.top_p is not None and of.top_p < 1:
        order = np.argsort(scores, kind="stable")
        below = np.cumsum(probabilities(scores)[order]) <= 1 - of.top_p
        below[-keep:] = False
        scores = scores.copy()
        scores[order[below]] = -np.inf
    if of.min_p is not None:
        found = probabilities(scores)
        below = found < of.min_p * found.max()
        below[np.argsort(found, kind="stable")[-keep:]] = False
        scores = np.where(below, -np.inf, scores)
    return scores.astype(np.float32)


def probabilities(scores: Scores) -> Probabilities:
    """Returns the softmax of scores, f64."""
    wide = scores.astype(np.float64)
    chances: Probabilities = np.exp(wide - wide.max())
    chances /= chances.sum()
    return chances


def log_probabilities(scores: Scores) -> Scores:
    """Returns the logarithm of the softmax of scores."""
    wide = scores.astype(np.float64)
    wide -= wide.max()
    found: Scores = (wide - np.log(np.exp(wide).sum())).astype(np.float32)
    return found


def drawn(chances: Probabilities, rng: np.random.Generator) -> int:
    """Returns a token drawn with given probabilities, by one number of the generator."""
    ends = np.cumsum(chances)
    place = int(np.searchsorted(ends, rng.random() * ends[-1], side="right"))
    possible = np.flatnonzero(chances)
    # Rounding may lead beyond the last token that has a chance.
    return int(min(place, int(possible[-1])))
