"""Numbers about the work of kernels, from which times can be learned."""

from __future__ import annotations

from clew.build.result import Build
from clew.predict.describe import describe_uses
from clew.predict.features import NUMBERS


def facts_of(build: Build, threads: int) -> list[dict[str, float]]:
    """Returns the numbers of each kernel use in a build, as in the table of `clew dataset`."""
    rows = describe_uses(build.uses, [segment.plan for segment in build.segments], threads)
    return [{name: float(row[name]) for name in NUMBERS} for row in rows]
