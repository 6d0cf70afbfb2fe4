"""pytest runs all tests. By default, it leaves out folders that are named `build` or `dist`."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


def test_no_folder_of_tests_is_left_out(pytestconfig: pytest.Config) -> None:
    left_out = pytestconfig.getini("norecursedirs")
    folders = {part for p in TESTS.rglob("test_*.py") for part in p.relative_to(TESTS).parts[:-1]}
    assert "build" in folders
    assert [f for f in folders if any(fnmatch(f, pattern) for pattern in left_out)] == []
