"""The table of thresholds holds all of them, and each is used."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from pathlib import Path

import clew
from clew.cost.policy.table import subjects, thresholds

SOURCE = Path(clew.__file__).parent


def test_each_threshold_has_the_facts_of_its_own_value() -> None:
    for name, subject, facts in thresholds():
        module = importlib.import_module(f"clew.cost.policy.{subject}")
        assert getattr(module, name) is facts.value, name
        assert "" not in (facts.unit, facts.reason), name


def test_names_say_alone_which_threshold_is_meant() -> None:
    assert {n: c for n, c in Counter(t.name for t in thresholds()).items() if c > 1} == {}


def test_every_module_is_a_subject() -> None:
    files = {path.stem for path in (SOURCE / "cost" / "policy").glob("*.py")}
    assert files - {"__init__", "facts", "table"} == set(subjects())


def test_every_threshold_is_used() -> None:
    used = set[str]()
    for path in SOURCE.rglob("*.py"):
        if path.parent.name != "policy":
            used.update(re.findall(r"\b[A-Z][A-Z0-9_]+\b", path.read_text(encoding="utf-8")))
    assert [t.name for t in thresholds() if t.name not in used] == []
