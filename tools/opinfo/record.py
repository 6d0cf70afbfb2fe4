"""A file of outcomes, so that a long run can go on where an earlier one ended."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict
from pathlib import Path

from opinfo.entries import Task
from opinfo.outcomes import Outcome


class Record:
    """Finished tasks with their outcomes, one JSON object a line."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def done(self, tasks: Collection[Task]) -> list[tuple[Task, list[Outcome]]]:
        """Returns those of the tasks that are finished. A line that was cut off is left out."""
        found = []
        chosen = set(tasks)
        for line in self.path.read_text().splitlines() if self.path.exists() else ():
            try:
                kept = json.loads(line)
            except json.JSONDecodeError:
                continue
            task = Task(kept["entry"], kept["dtype"])
            if task in chosen:
                found.append(
                    (task, [o for o, n in map(_outcome, kept["outcomes"]) for _ in range(n)])
                )
        return found

    def add(self, task: Task, outcomes: Sequence[Outcome]) -> None:
        """Adds a finished task."""
        runs: list[list[object]] = []
        for one in map(asdict, outcomes):
            if runs and runs[-1][0] == one:
                runs[-1][1] += 1  # type: ignore[operator]
            else:
                runs.append([one, 1])
        with self.path.open("a") as file:
            file.write(json.dumps({**asdict(task), "outcomes": runs}) + "\n")


def _outcome(run: Sequence[object]) -> tuple[Outcome, int]:
    fields, count = run
    assert isinstance(fields, dict)
    assert isinstance(count, int)
    return Outcome(**{**fields, "others": tuple(fields["others"])}), count
