"""Mutants of TFLite files: the same ones for the same seeds, and each a module or a coded error."""

from __future__ import annotations

import random
import warnings

import numpy as np
import pytest

from clew.frontends.tflite.loader import load
from clew.support.budgets import in_force
from clew.support.errors import ClewError
from hostile.codes import OURS
from hostile.probe import BUDGETS
from hostile.tflite_corpus import seeds
from hostile.tflite_mutants import mutant, tables
from tflite_files import written

CORPUS = seeds()


def test_files_of_the_corpus_are_read_and_written() -> None:
    for seed in CORPUS:
        model = tables(seed.data)
        assert tables(written("Model", model)) == model, seed.name
    assert len(CORPUS) > 12


def test_mutants_follow_from_their_seed() -> None:
    data = [seed.data for seed in CORPUS]
    made = [mutant(data[0], data, random.Random(n)) for n in range(40)]
    assert made == [mutant(data[0], data, random.Random(n)) for n in range(40)]
    assert len(set(made)) > 30


@pytest.mark.parametrize("count", [140, pytest.param(5_000, marks=pytest.mark.exhaustive)])
def test_mutants_are_read_or_refused(count: int) -> None:
    data, ends = [seed.data for seed in CORPUS], []
    for number in range(count):
        changed = mutant(data[number % len(data)], data, random.Random(number))
        ends.append(code_of(changed))
        assert ends[-1] not in OURS, number
    assert {"", "M060", "M006", "M012"} <= set(ends)


def code_of(data: bytes) -> str:
    """Returns the code of the error of a file, "" if it loads."""
    try:
        with warnings.catch_warnings(), in_force(BUDGETS), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            load(data)
    except ClewError as error:
        return error.code
    return ""
