"""A primitive for stores that bypass the caches."""

from __future__ import annotations

from dataclasses import replace

from clew.loop.affine import Simplifier
from clew.loop.ir import Nest, Stmt, Store, transform
from clew.loop.primitives.common import primitive
from clew.support.errors import ScheduleError


@primitive
def nontemporal(nest: Nest, simplifier: Simplifier, *, stage: str) -> Nest:
    """Makes the stores of a stage that writes an output bypass the caches, whole vectors at a time:
    `y[i] = x[i]` becomes `nontemporal y[i] = x[i]`.

    The lines written need not be read first, and do not evict others from the caches. It is a hint:
    stores of less than a whole vector stay ordinary.

    Errors: S002 if the stage stores nothing; S013 if it accumulates, or does not store to an
    output.
    """
    found = False

    def visit(stmt: Stmt) -> Stmt | None:
        nonlocal found
        if not isinstance(stmt, Store) or stmt.stage != stage:
            return None
        if stmt.combiner or stmt.buffer.scope != "output":
            raise ScheduleError(
                "S013",
                f"stage {stage} does not only write an output",
                hint="cache_write it, and name the stage that copies it out",
            )
        found = True
        return replace(stmt, nontemporal=True)

    body = transform(nest.body, visit)
    if not found:
        raise ScheduleError("S002", f"{nest.name} has no stage {stage!r}")
    return nest.with_body(body)
