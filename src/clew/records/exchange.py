"""Records as JSON lines: one record per line, trials and their uses."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from clew.records.store import Store, Use
from clew.records.trial import RUNNING, Trial
from clew.support.errors import InputError
from clew.support.files import json_of, read_bytes, reason_of
from clew.support.writing import write_text

_USE: Final = "use"


def export_records(store: Store, path: Path) -> int:
    """Writes all finished trials, and the uses of their kernels, to a file; returns the number of
    trials.

    Errors: I383 if it cannot be written; those of `Store`.
    """
    trials = [t for t in store.trials() if t.state not in RUNNING]
    subjects = {(t.kind, t.subject) for t in trials}
    uses = [u for u in store.uses() if (u.kind, u.subject) in subjects]
    lines = [json.dumps(t.to_json()) for t in trials]
    lines += [json.dumps({_USE: asdict(u)}) for u in uses]
    try:
        write_text(path, "".join(f"{line}\n" for line in lines))
    except OSError as error:
        raise InputError(
            "I383", f"cannot write records to {str(path)!r}: {reason_of(error)}"
        ) from None
    return len(trials)


def import_records(store: Store, path: Path) -> int:
    """Adds the records in a file that the store lacks; returns the number of new trials. Either all
    are added or, if the file is invalid, none.

    Errors: I384 if it cannot be read, or a line is not a record; I330 for a file that is too large;
    those of `Store`.
    """
    trials: list[Trial] = []
    uses: list[Use] = []
    try:
        data = read_bytes(path)
    except OSError as error:
        raise InputError(
            "I384", f"cannot read records from {str(path)!r}: {reason_of(error)}"
        ) from None
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            value = json_of(line, finite=True)
            if isinstance(value, dict) and _USE in value:
                uses.append(_use(value[_USE]))
                continue
            trial = Trial.of_json(value)
            if trial.state in RUNNING:
                raise ValueError("the trial has not ended")
            trials.append(trial)
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(
                "I384",
                f"line {number} of {str(path)!r} is not a record: {reason_of(error)}",
                hint="clew tune --export FILE writes such a file; a line may not be cut",
            ) from None
    return store.add(trials, uses)


def _use(value: Any) -> Use:
    names = ("kind", "subject", "model", "kernel", "choices")
    texts = [value[name] for name in names]
    layers = value["layers"]
    if not all(isinstance(text, str) for text in (*texts, *layers)):
        raise ValueError("a use holds something other than text")
    kind, subject, model, kernel, choices = texts
    return Use(kind, subject, model, kernel, tuple(layers), choices)
