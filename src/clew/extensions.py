"""What users add to a compilation (passes, fusions, schedules), each put where it takes part."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, TypeAlias

from clew.backends.backend import Backend
from clew.build.schedule_choice import ScheduleFor, of_fusion
from clew.passes.base import Pass
from clew.passes.fusion.fuse_ops import FuseOps
from clew.passes.fusion.fuse_regions import FuseRegions
from clew.passes.fusion.mark_fusions import Fusion, MarkFusions
from clew.passes.user_pass import GraphPass, placed
from clew.support.errors import InputError
from clew.support.files import run_program

Extension: TypeAlias = GraphPass | Fusion | ScheduleFor | Backend
_EXTENSIONS: Final = (GraphPass, Fusion, ScheduleFor, Backend)


def extensions_of(items: Iterable[Extension | str | Path]) -> list[Extension]:
    """Returns extensions; a Python file is replaced by those it holds.

    A file holds its list `extend`, or, without one, every extension at its top level in order.

    Errors: I176 for a file that does not exist, fails, or holds no extension.
    """
    found: list[Extension] = []
    for item in items:
        found += _in_file(Path(item)) if isinstance(item, (str, Path)) else [item]
    return found


def _in_file(file: Path) -> list[Extension]:
    if not file.is_file():
        raise InputError("I176", f"there is no Python file {str(file)!r} to extend with")
    try:
        names = run_program(file)
    except (Exception, SystemExit) as error:  # whatever a user's program raises
        raise InputError(
            "I176",
            f"{str(file)!r} cannot be run: {type(error).__name__}: {error}",
            hint="it is run as a Python program, for its passes, fusions and schedules",
        ) from error
    listed = names.get("extend")
    if isinstance(listed, (list, tuple)):
        return list(listed)
    found = [v for v in names.values() if isinstance(v, _EXTENSIONS)]
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
    """Returns the passes with users' passes and fusions in their places, and the schedules, those
    of fusions first. Backends among the items are for `compile`, which places their regions.

    Errors: I020 for a pass's place that there is not; I084 for what is no extension, I085 for two
    fusions of one name; I176 (see `extensions_of`).
    """
    added = extensions_of(items)
    for item in added:
        if not isinstance(item, _EXTENSIONS):
            raise InputError(
                "I084",
                f"{item!r} is nothing that a compilation can be extended with",
                hint="it takes what graph_pass, fusion and schedule_for return, backends, files",
            )
    fusions = tuple(x for x in added if isinstance(x, Fusion))
    names = [f.name for f in fusions]
    if len(set(names)) < len(names):
        raise InputError(
            "I085", f"two fusions of one name: {', '.join(names)}", hint="names tell kernels apart"
        )
    result = placed(passes, [x for x in added if isinstance(x, GraphPass)])
    if fusions:
        fuse = next((n for n, p in enumerate(result) if isinstance(p, FuseOps)), len(result))
        rest = result[fuse] if fuse < len(result) else None
        result.insert(fuse, FuseRegions(fusions, rest))
        result.insert(0, MarkFusions(fusions))
    schedules = [of_fusion(f.name, f.schedule) for f in fusions if f.schedule is not None]
    return result, [*schedules, *(x for x in added if isinstance(x, ScheduleFor))]
