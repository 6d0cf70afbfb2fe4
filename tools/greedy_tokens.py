"""Compares greedy tokens with those of transformers, for random models of several architectures.

    python tools/greedy_tokens.py [--prompts 20] [--tokens 200] [--length 24] [KIND ...]

Both generate from the same weights in f32, with caches. If tokens differ, the logits of
transformers for the text before the first difference, in f64 and without a cache, decide whether it
is a tie: the logits of the two tokens differ by less than 1e-5 of the largest logit. Prints a line
per architecture. The exit code is 1 if any difference is not a tie. Requires PyTorch, transformers
and the repository's tests.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import numpy as np

import clew

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

checkpoints = importlib.import_module("generation.checkpoints")
torch, transformers = checkpoints.torch, checkpoints.transformers

_TIE: Final = 1e-5
_MOST: Final = 512  # positions of a model


def first_difference(found: list[int], expected: list[int]) -> int | None:
    """Returns the index of the first token that differs; None if all are equal."""
    pairs = zip(found, expected, strict=False)
    differing = (n for n, (own, other) in enumerate(pairs) if own != other)
    return next(differing, None if len(found) == len(expected) else min(len(found), len(expected)))


def is_tie(model: Any, text: list[int], own: int, other: int) -> bool:
    """Whether the logits of two tokens after a text are equal up to rounding."""
    with torch.no_grad():
        logits = model.double()(torch.tensor([text])).logits[0, -1].numpy()
    model.float()
    gap = abs(logits[own] - logits[other])
    return bool(gap < _TIE * np.abs(logits).max())


def compared(kind: str, count: int, tokens: int, length: int) -> dict[str, int]:
    """Returns the numbers of texts that are equal, that differ only by a tie, and that differ, and
    the number of tokens.
    """
    result = {"equal": 0, "tie": 0, "different": 0, "tokens": 0}
    with tempfile.TemporaryDirectory() as folder:
        positions = "n_positions" if kind == "gpt2" else "max_position_embeddings"
        changes: dict[str, Any] = {positions: _MOST}
        model = checkpoints.saved(Path(folder), kind, eos_token_id=None, **changes)
        ours = clew.language_model(folder, threads=1)
        for ids in checkpoints.prompts(count, length, seed=1):
            expected = checkpoints.theirs(model, ids, max_new_tokens=tokens)[0]
            found = list(clew.generate(ours, ids.tolist(), max_tokens=tokens).ids)
            place = first_difference(found, expected)
            result["tokens"] += len(expected)
            if place is None:
                result["equal"] += 1
                continue
            pair = [part[place] if place < len(part) else 0 for part in (found, expected)]
            text = [*ids.tolist(), *expected[:place]]
            result["tie" if is_tie(model, text, *pair) else "different"] += 1
    return result


def main() -> int:
    """Compares the architectures named on the command line; all by default."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=", ".join(checkpoints.KINDS))
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--length", type=int, default=24)
    given = parser.parse_args()
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    different = 0
    for kind in given.kinds or checkpoints.KINDS:
        begin = time.perf_counter()
        found = compared(kind, given.prompts, given.tokens, given.length)
        different += found["different"]
        shown = ", ".join(f"{name} {number}" for name, number in found.items())
        print(f"{kind}: {shown}, {time.perf_counter() - begin:.0f} s", flush=True)
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main())
