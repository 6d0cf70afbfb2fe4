"""Passes, fusions and schedules that users keep in files."""

from __future__ import annotations

import runpy
from collections.abc import Iterable
from pathlib import Path

from clew.build.schedule_choice import ScheduleFor
from clew.extensions import Extension
from clew.passes.mark_fusions import Fusion
from clew.passes.user_pass import GraphPass
from clew.support.errors import InputError


def extensions_of(items: Iterable[Extension | str | Path]) -> list[Extension]:
    """Returns extensions, in place of files what they have at their top level, in their order.

    Errors: I176 for a file that cannot be run or has none.
    """
    found: list[Extension] = []
    for item in items:
        found += _in_file(Path(item)) if isinstance(item, (str, Path)) else [item]
    return found


def _in_file(file: Path) -> list[Extension]:
    try:
        names = runpy.run_path(str(file))
    except Exception as error:  # whatever a user's program raises
        raise InputError(
            "I176", f"{str(file)!r} cannot be run: {type(error).__name__}: {error}"
        ) from error
    found = [v for v in names.values() if isinstance(v, (GraphPass, Fusion, ScheduleFor))]
    if not found:
        raise InputError(
            "I176",
            f"{str(file)!r} has no pass, fusion or schedule at its top level",
            hint="make them with clew.graph_pass, clew.fusion and clew.schedule_for",
        )
    return list({id(item): item for item in found}.values())
