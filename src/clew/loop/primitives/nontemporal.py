"""Primitive that writes past the caches."""

from __future__ import annotations

from dataclasses import replace

from clew.loop.affine import Simplifier
from clew.loop.ir import Nest, Stmt, Store, transform
from clew.loop.primitives.common import primitive
from clew.support.errors import ScheduleError


@primitive
def nontemporal(nest: Nest, simplifier: Simplifier, *, stage: str) -> Nest:
    """Has the stores of a stage that writes an output go past the caches, whole vectors at a time:
    `y[i] = x[i]` becomes `nontemporal y[i] = x[i]`.

    What is written does not have to be read before, and leaves the caches to others. It is a hint:
    stores that are no whole vectors are ordinary ones.

    Errors: S002 when the stage stores nothing; S013 when it adds to what it stores, or stores to no
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
                f"stage {stage} does not just write an output",
                hint="cache_write it, and name the stage that copies it out",
            )
        found = True
        return replace(stmt, nontemporal=True)

    body = transform(nest.body, visit)
    if not found:
        raise ScheduleError("S002", f"{nest.name} has no stage {stage!r}")
    return nest.with_body(body)
