"""What users add to a compilation, sorted to where it takes part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from clew.build.schedule_choice import ScheduleFor, of_fusion
from clew.passes.base import Pass
from clew.passes.fuse_ops import FuseOps
from clew.passes.fuse_regions import FuseRegions
from clew.passes.mark_fusions import Fusion, MarkFusions
from clew.passes.user_pass import GraphPass, placed
from clew.support.errors import InputError

Extension: TypeAlias = GraphPass | Fusion | ScheduleFor


def extended(
    passes: Sequence[Pass], added: Sequence[Extension]
) -> tuple[list[Pass], list[ScheduleFor]]:
    """Returns the passes with users' passes and fusions in their places, and the schedules, those
    of fusions first.

    Errors: I020 for a pass's place that there is not; I084 for what is no extension, I085 for two
    fusions of one name.
    """
    for item in added:
        if not isinstance(item, (GraphPass, Fusion, ScheduleFor)):
            raise InputError(
                "I084",
                f"{item!r} is nothing that a compilation can be extended with",
                hint="it takes what graph_pass, fusion and schedule_for return",
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
        result.insert(fuse, FuseRegions(fusions))
        result.insert(0, MarkFusions(fusions))
    schedules = [of_fusion(f.name, f.schedule) for f in fusions if f.schedule is not None]
    return result, [*schedules, *(x for x in added if isinstance(x, ScheduleFor))]
