"""Costs and placements kept in the tuner's database."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from clew.backends.backend import Backend
from clew.machine.target import Target
from clew.passes.placement.rules import Key
from clew.records import Store, Trial, default_path
from clew.support.errors import InputError
from clew.support.files import json_of
from clew.version import package_version

UNIT: Final = "unit"
"""The kind of a record of the time that a unit takes on a backend."""
PLACED: Final = "placement"
"""The kind of a record of where the operators of a model run."""


@dataclass(eq=False)
class Book:
    """The records of one machine, number of threads and version of clew.

    `path` is the file; None keeps no record beyond this object.

    Errors: I380 to I382 for a file that cannot be read or written.
    """

    path: Path | None
    target: Target
    threads: int
    _units: dict[tuple[str, str], Trial] | None = field(default=None, repr=False)

    def seconds(self, work: str, backend: Backend) -> float | None:
        """Returns the seconds that a unit of some work takes on a backend, if they are known."""
        if self._units is None:
            self._units = {(t.subject, t.choices): t for t in self._trials(UNIT)}
        found = self._units.get((work, str(backend)))
        return None if found is None or found.ns is None else found.ns * 1e-9

    def note(self, work: str, backend: Backend, seconds: float) -> None:
        """Keeps the seconds that a unit of some work takes on a backend."""
        self._add(UNIT, work, str(backend), "", ns=seconds * 1e9)

    def placed(self, subject: str) -> dict[str, Any] | None:
        """Returns the newest kept placement of a subject, as JSON values; None if there is none."""
        for trial in reversed(self._trials(PLACED, [subject])):
            try:
                found = json_of(trial.choices.encode())
            except ValueError:
                continue
            if isinstance(found, dict):
                return found
        return None

    def keep(self, subject: str, model: str, document: Mapping[str, Any], seconds: float) -> None:
        """Keeps a placement, as JSON values, and the seconds of a call of the placed model."""
        self._add(PLACED, subject, json.dumps(document), model, ns=seconds * 1e9)

    def _add(self, kind: str, subject: str, choices: str, model: str, ns: float) -> None:
        trial = Trial(
            kind=kind,
            subject=subject,
            choices=choices,
            machine=self.target.identity,
            threads=self.threads,
            version=package_version(),
            model=model,
            state="undecided",
            ns=ns,
        )
        if self._units is not None and kind == UNIT:
            self._units[subject, choices] = trial
        if self.path is not None:
            with Store(self.path) as store:
                store.add([trial])

    def _trials(self, kind: str, subjects: Sequence[str] | None = None) -> list[Trial]:
        if self.path is None or not os.path.isfile(self.path):
            return []
        with Store(self.path, write=False) as store:
            found = store.trials(self.target.identity, self.threads, kind, subjects)
        return [t for t in found if t.version == package_version()]


def book_at(tuned: str | Path | None, target: Target, threads: int) -> Book:
    """Returns the book of a file: `auto` is the default file, None keeps nothing."""
    path = default_path() if tuned == "auto" else None if tuned is None else Path(tuned)
    return Book(path, target, threads)


def keys_as_json(choices: Mapping[Key, str]) -> list[list[Any]]:
    """Returns the backends of operators, by their keys, as JSON values."""
    return [[list(k[0]), *k[1:], name] for k, name in choices.items()]


def keys_of_json(rows: Any) -> dict[Key, str]:
    """Returns the backends of operators from `keys_as_json`.

    Errors: I381 for other values.
    """
    try:
        return {(tuple(la), op, type_, int(n)): str(b) for la, op, type_, n, b in rows}
    except (TypeError, ValueError):
        raise InputError("I381", "a kept placement is damaged") from None
