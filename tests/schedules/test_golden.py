"""Schedules that rules choose, as text: each file in `golden/` is a case, and holds for each target
the kernels with the rules that took them and the steps of their schedules.

`CLEW_UPDATE_GOLDEN=1` writes what the rules choose now; review the diff.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest
from golden_cases import CASES, kernels, targets

from clew.schedules import RULES

GOLDEN: Final = Path(__file__).parent / "golden"


def chosen(case: str) -> str:
    """Returns a case's kernels, rules and steps on each target."""
    lines: list[str] = []
    for target in targets():
        for source in kernels(case, target):
            lines.append(f"# {target.name}: {source.name}: {', '.join(source.rules)}")
            for number, (way, _) in enumerate(source.ways):
                lines += ["  or:"] if number else []
                lines += [f"  {step}" for step in way.schedule.steps]
        lines.append("")
    return "\n".join(lines)


@pytest.mark.parametrize("case", CASES)
def test_schedules_are_those_on_record(case: str) -> None:
    file, found = GOLDEN / f"{case}.txt", chosen(case)
    if os.environ.get("CLEW_UPDATE_GOLDEN"):
        file.write_text(found)
    assert file.read_text() == found, "schedules changed: CLEW_UPDATE_GOLDEN=1 writes them anew"


def test_each_rule_is_on_record() -> None:
    heads = [
        line for file in GOLDEN.glob("*.txt") for line in file.read_text().splitlines()
        if line.startswith("# ")
    ]  # fmt: skip
    used = {rule for head in heads for rule in head.rpartition(": ")[2].split(", ")}
    by_users = {"melt", "stack"}  # of fusions that only users ask for
    assert used >= set(RULES.names()) - by_users
    assert {f.stem for f in GOLDEN.glob("*.txt")} == set(CASES)
