"""The list of schedule rules."""

from __future__ import annotations

from pathlib import Path

from clew import schedules


def test_every_module_with_a_name_is_a_rule_of_the_list() -> None:
    folder = Path(schedules.__file__).parent
    named = {f.stem for f in folder.glob("*.py") if "\nNAME = " in f.read_text()}
    assert named == {rule.__name__.rpartition(".")[2] for rule in schedules.RULES.values()}
    assert len(schedules.RULES) == len(named) > 10
