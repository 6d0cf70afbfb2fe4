"""Caches bounded by bytes."""

from __future__ import annotations

import ast
import re
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clew
from clew.support import caches
from clew.support.caches import bounded_cache, held_bytes

_SOURCE = Path(clew.__file__).parent
# Caches of few small values, whatever models there are: what machines, classes and clew's
# and torch's own tables say.
_SMALL = {
    "_clean", "_computes", "_installed", "_model", "_physical_bytes", "_signature",
    "_target_machine", "_texts", "_x86_kind", "_x86_register", "instructions_of", "primitives",
    "registers_in", "rules", "x86",
}  # fmt: skip


def test_results_are_cached() -> None:
    calls = []

    @bounded_cache(1 << 20)
    def double(x: int) -> int:
        """Doubles."""
        calls.append(x)
        return 2 * x

    assert [double(n) for n in (1, 2, 1, 2)] == [2, 4, 2, 4]
    assert calls == [1, 2]
    assert double.__name__ == "double"
    assert double.__doc__ == "Doubles."


@pytest.mark.parametrize("depth", [0, 2])
def test_large_results_do_not_stay(depth: int) -> None:
    @bounded_cache(1 << 20)
    def text(x: int) -> object:
        found: object = str(x) * 10_000
        for _ in range(depth):
            found = [found]
        return found

    tracemalloc.start()
    try:
        for n in range(10, 99):
            for m in range(20):
                text(n * 1000 + m)  # 50 kB each, 89 MB in total
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 4 << 20


def test_bytes_of_few_entries_are_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    estimated: list[Any] = []

    def noted(*values: Any, counted: set[int]) -> int:
        estimated.append(values)
        return 1

    monkeypatch.setattr(caches, "held_bytes", noted)

    @bounded_cache(1 << 20)
    def pair(x: int, text: str) -> tuple[int, str]:
        return x, text

    for n in range(1600):
        pair(n, "short")
    assert len(estimated) < 200
    pair(0, "long" * 2000)
    assert estimated[-1][1].startswith("longlong")


def test_shared_objects_count_once() -> None:
    calls = []
    shared = [str(n) for n in range(200)]  # about 12 kB

    @bounded_cache(1 << 20)
    def pair(x: int) -> tuple[int, list[str]]:
        calls.append(x)
        return x, shared

    for _ in range(2):
        for n in range(1000):
            pair(n)
    assert calls == list(range(1000))


def test_bytes_held() -> None:
    counted: set[int] = set()
    text = "x" * 1000
    assert held_bytes([text], counted=counted) > 1000
    assert held_bytes((text,), counted=counted) < 1000
    assert held_bytes(np.zeros(100_000)) > 800_000
    assert held_bytes(["x" * 1000, ("y" * 1000,)]) > 2000
    assert held_bytes([str(n) for n in range(10_000)]) > 10_000 * 8
    assert held_bytes((int, len, np)) < 1000


def test_other_caches_hold_little() -> None:
    """A cache of a function of models' names, types or sizes is a `bounded_cache`."""
    found = set()
    texts = (path.read_text() for path in _SOURCE.rglob("*.py"))
    for text in (text for text in texts if "lru_cache" in text):
        for node in ast.walk(ast.parse(text)):
            decorators = map(ast.unparse, getattr(node, "decorator_list", ()))
            if any(re.search(r"\blru_cache\b", d) for d in decorators):
                found.add(node.name)  # type: ignore[attr-defined]
    assert found <= _SMALL
