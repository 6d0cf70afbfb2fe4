"""What modules call that stands above them: all of it is there, and nothing else."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import clew
from clew.support import rooms


def _asked_for() -> set[str]:
    """Returns the names of functions that modules of clew ask for."""
    names = set()
    texts = (f.read_text(encoding="utf-8") for f in Path(clew.__file__).parent.rglob("*.py"))
    for text in (text for text in texts if "room" in text):
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.Call(func=ast.Name(id="room"), args=[ast.Constant(value=name)]):
                    names.add(name)
    return names


def test_what_is_given_is_what_is_asked_for() -> None:
    assert _asked_for() == set(rooms._LOADERS) != set()


@pytest.mark.parametrize("name", sorted(rooms._LOADERS))
def test_each_is_a_function_of_a_module_above(name: str) -> None:
    assert rooms.room(name).__module__.startswith("clew.")
