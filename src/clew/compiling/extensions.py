"""Inserts users' passes, fusions and schedules into a compilation."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from clew.backends.backend import Backend
from clew.backends.compile_options import Extension
from clew.backends.cpu.schedule_choice import ScheduleFor, of_fusion, of_rule
from clew.passes.base import Pass
from clew.passes.fusion.fuse_ops import FuseOps
from clew.passes.fusion.fuse_regions import FuseRegions
from clew.passes.fusion.mark_fusions import Fusion, MarkFusions
from clew.passes.user_pass import GraphPass, placed
from clew.schedules import Rule
from clew.support.errors import PASSED_ON, InputError
from clew.support.files import run_program

_KINDS: Final = (GraphPass, Fusion, ScheduleFor, Rule, Backend)


def extensions_of(items: Iterable[Extension | str | Path]) -> list[Extension]:
    """Returns extensions. A Python file is replaced by the extensions it defines: its list
    `extend`, or, without one, every extension at its top level, in order.

    Errors: I176 for a file that does not exist, fails, or holds no extension.
    """
    found: list[Extension] = []
    for item in items:
        found += _in_file(Path(item)) if isinstance(item, (str, Path)) else [item]
    return found


def _in_file(file: Path) -> list[Extension]:
    if not os.path.isfile(file):
        raise InputError("I176", f"there is no Python file {str(file)!r} to extend with")
    try:
        names = run_program(file)
    except PASSED_ON:
        raise
    except BaseException as error:  # a user's program may raise anything
        raise InputError(
            "I176",
            f"{str(file)!r} cannot be run: {type(error).__name__}: {error}",
            hint="it is run as a Python program, for its passes, fusions and schedules",
        ) from error
    listed = names.get("extend")
    if isinstance(listed, (list, tuple)):
        return list(listed)
    found = [v for v in names.values() if isinstance(v, _KINDS)]
    if not found:
        raise InputError(
            "I176",
            f"{str(file)!r} has neither a list `extend` nor a pass, fusion, schedule or backend at "
            "its top level",
            hint="make them with clew.graph_pass, clew.fusion, clew.schedule_for and clew.Backend",
        )
    return list({id(item): item for item in found}.values())


def extended(
    passes: Sequence[Pass], items: Sequence[Extension | str | Path]
) -> tuple[list[Pass], list[ScheduleFor]]:
    """Returns the passes with users' passes and fusions inserted, and the schedules, those of
    fusions first. `compile` itself handles the backends among the items.

    Errors: I020 for an unknown place of a pass; I084 for an item that is not an extension; I085 for
    two fusions with one name; I176 (see `extensions_of`).
    """
    added = extensions_of(items)
    for item in added:
        if not isinstance(item, _KINDS):
            raise InputError(
                "I084",
                f"{item!r} cannot extend a compilation",
                hint="pass results of graph_pass, fusion, schedule_for; backends; or Python files",
            )
    fusions = tuple(x for x in added if isinstance(x, Fusion))
    names = [f.name for f in fusions]
    if len(set(names)) < len(names):
        raise InputError(
            "I085",
            f"two fusions have the same name: {', '.join(names)}",
            hint="fusion names identify kernels",
        )
    result = placed(passes, [x for x in added if isinstance(x, GraphPass)])
    if fusions:
        fuse = next((n for n, p in enumerate(result) if isinstance(p, FuseOps)), len(result))
        rest = result[fuse] if fuse < len(result) else None
        result.insert(fuse, FuseRegions(fusions, rest))
        # Users' passes at the front may make the composites that a fusion names.
        front = sum(1 for _ in itertools.takewhile(lambda p: isinstance(p, GraphPass), result))
        result.insert(front, MarkFusions(fusions))
    schedules = [of_fusion(f.name, f.schedule) for f in fusions if f.schedule is not None]
    schedules += [x for x in added if isinstance(x, ScheduleFor)]
    return result, [*schedules, *(of_rule(x) for x in added if isinstance(x, Rule))]
