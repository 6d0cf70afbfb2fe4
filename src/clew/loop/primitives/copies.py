"""A primitive that copies an input for the stage that reads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from clew.loop.affine import Simplifier, contains
from clew.loop.ir import (
    Buffer,
    For,
    Nest,
    Stmt,
    Store,
    block,
    loops,
    reads,
    transform,
)
from clew.loop.primitives.common import check_positive, primitive, stage_statements
from clew.support.errors import ScheduleError
from clew.te.expr import Index, Load, Scalar
from clew.te.walk import map_loads, substitute


@primitive
def cache_read(
    nest: Nest,
    simplifier: Simplifier,
    *,
    stage: str,
    buffer: str,
    axes: tuple[str, ...] = (),
    gap: int = 0,
) -> Nest:
    """Copies an input that a stage reads; a new stage `<stage>@<buffer>`, which `compute_at` can
    move, computes the copy.

    The copy has the shape of the input: a tile of an array whose rows are far apart is contiguous
    in its copy. With `axes`, it has an axis for each of these loops of the stage instead: what the
    stage reads, in their order. `gap` elements that nothing uses follow each line of the copy, so
    that its lines do not compete for the same places in a cache.

    Errors: S002, S004 for a negative gap, S020; S024 if the stage already has such a copy; S034 if
    the stage reads no input with this name; S035 if not exactly one load reads it, by the loops of
    `axes`.
    """
    if gap:
        check_positive("gap", gap)
    statements = stage_statements(nest, stage)
    own = {id(s) for s in statements}
    name = f"{stage}@{buffer}"
    if name in nest.body.inside.stages:
        raise ScheduleError("S024", f"{buffer!r} is already copied for stage {stage!r}")
    found = [
        load
        for s in statements
        for _, load in reads(s)
        if load.source.name == buffer and load.source.scope == "input"
    ]
    if not found:
        raise ScheduleError("S034", f"stage {stage!r} of {nest.name} reads no input {buffer!r}")
    source = found[0].source
    read = tuple(loop.index for loop in _loops_of_load(statements, found, axes, stage))
    shape = tuple(index.extent for index in read) if axes else source.shape
    lines = (*shape[:-1], shape[-1] + gap) if shape else shape
    temporary = Buffer(name, lines, source.dtype, "workspace")
    copied = tuple(Index(f"{name}.i{n}", extent) for n, extent in enumerate(shape))
    origin: tuple[Scalar, ...] = copied
    if axes:
        places = {id(index): new for index, new in zip(read, copied, strict=True)}
        origin = tuple(substitute(i, places) for i in found[0].indices)
    copy: Stmt = Store(temporary, copied, Load(source, origin), name)
    for axis in reversed(copied):
        copy = For(axis, "serial", copy)

    def changed(stmt: Stmt) -> Stmt | None:
        if not isinstance(stmt, Store):
            return None

        def change(load: Load, new: Sequence[Scalar]) -> Scalar | None:
            if load.source is not source:
                return None
            return Load(temporary, read if axes else tuple(new))

        return replace(stmt, value=map_loads(stmt.value, change))

    stmts: list[Stmt] = []
    for stmt in nest.body.stmts:
        if id(stmt) in own:
            if copy not in stmts:
                stmts.append(copy)
            stmts.append(transform(stmt, changed))
        else:
            stmts.append(stmt)
    return nest.with_body(block(*stmts))


def _loops_of_load(
    statements: Sequence[Stmt], found: Sequence[Load], axes: Sequence[str], stage: str
) -> list[For]:
    """Returns the loops named `axes`, on which the only load of an input depends; none without
    names.

    Errors: S035.
    """
    if not axes:
        return []
    (reading, *others) = [s for s in statements if any(x is found[0] for _, x in reads(s))]
    by_name = {loop.name: loop for loop in loops(reading)}
    chosen = [by_name[name] for name in axes if name in by_name]
    rest = [loop for loop in by_name.values() if loop not in chosen]
    only = len(found) == 1 and not others and len(chosen) == len(axes)
    if not only or any(contains(i, x.index) for i in found[0].indices for x in rest):
        raise ScheduleError(
            "S035",
            f"stage {stage!r} does not read {found[0].source.name!r} once, by {', '.join(axes)}",
            hint="name all loops whose variables are in the indices of its only load",
        )
    return chosen
