"""Mutants of a language model's folder: the same ones for the same seeds, and each read or a coded
error.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from clew.frontends.checkpoint.loader import load
from clew.generation.companions import Companions
from clew.support.budgets import in_force
from clew.support.errors import ClewError
from hostile.codes import OURS
from hostile.folder_corpus import good, seeds
from hostile.folder_mutants import mutant
from hostile.probe import BUDGETS

FILES = good()


def test_mutants_follow_from_their_seed() -> None:
    files = list(FILES.values())
    for data in files:
        made = [mutant(data, files, random.Random(n)) for n in range(30)]
        assert made == [mutant(data, files, random.Random(n)) for n in range(30)]
        assert len(set(made)) > 20


def test_each_file_is_changed_in_one_seed() -> None:
    assert sorted(seed.main for seed in seeds()) == sorted(FILES)


@pytest.mark.parametrize("count", [60, pytest.param(5_000, marks=pytest.mark.exhaustive)])
def test_mutants_are_read_or_refused(count: int, tmp_path: Path) -> None:
    files, names, ends = list(FILES.values()), list(FILES), set()
    for name, data in FILES.items():
        (tmp_path / name).write_bytes(data)
    for number in range(count):
        name = names[number % len(names)]
        (tmp_path / name).write_bytes(mutant(FILES[name], files, random.Random(number)))
        is_graph = name in ("config.json", "model.safetensors")
        ends.add(code_of(load if is_graph else Companions.in_folder, tmp_path))
        assert not ends & set(OURS), number
        (tmp_path / name).write_bytes(FILES[name])
    assert {"", "M070", "M071", "M072", "M073", "M074", "M075"} <= ends


def code_of(read: object, folder: Path) -> str:
    """Returns the code of the error of a folder, "" if it is read."""
    assert callable(read)
    try:
        with in_force(BUDGETS), np.errstate(all="ignore"):
            read(folder)
    except ClewError as error:
        return error.code
    return ""
