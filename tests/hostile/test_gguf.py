"""Mutants of GGUF files: the same ones for the same seeds, and each a module or a coded error."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from clew.frontends.gguf.loader import load
from clew.frontends.gguf.vocabulary import vocabulary_of
from clew.support.budgets import in_force
from clew.support.errors import ClewError
from hostile.codes import OURS
from hostile.gguf_corpus import seeds
from hostile.gguf_mutants import mutant
from hostile.probe import BUDGETS

CORPUS = seeds()


def test_mutants_follow_from_their_seed() -> None:
    data = [seed.data for seed in CORPUS]
    made = [mutant(data[0], data, random.Random(n)) for n in range(40)]
    assert made == [mutant(data[0], data, random.Random(n)) for n in range(40)]
    assert len(set(made)) > 30


@pytest.mark.parametrize("count", [150, pytest.param(5_000, marks=pytest.mark.exhaustive)])
def test_mutants_are_read_or_refused(count: int, tmp_path: Path) -> None:
    data, ends, path = [seed.data for seed in CORPUS], [], tmp_path / "m.gguf"
    for number in range(count):
        path.write_bytes(mutant(data[number % len(data)], data, random.Random(number)))
        for read in (load, vocabulary_of):
            ends.append(code_of(read, path))
            assert ends[-1] not in OURS, number
    assert {"", "M070", "M071", "M072", "U009"} <= set(ends)


def code_of(read: object, path: Path) -> str:
    """Returns the code of the error of a file, "" if it loads."""
    assert callable(read)
    try:
        with in_force(BUDGETS), np.errstate(all="ignore"):
            read(path)
    except ClewError as error:
        return error.code
    return ""
