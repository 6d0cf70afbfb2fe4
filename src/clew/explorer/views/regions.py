"""Regions on other backends, the copies at their borders, and the placement that made them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from clew.backends.backend import DescribedRegion
from clew.explorer.schema import (
    Alternative,
    PlacedPlan,
    PlacedRegion,
    Placement,
    RegionCopy,
    RegionInfo,
)
from clew.explorer.session import Session
from clew.ir.types import leaves
from clew.runtime.program import Branch, Copy, Program, Repeat, RunRegion

if TYPE_CHECKING:
    from clew.placement.report import Placement as Placed


def regions(session: Session) -> list[RegionInfo]:
    """Returns the regions of a build; for `Session.once`."""
    copies = _copies(session.compiled.build.program)
    compiled = session.once(compiled_regions)
    distinct: dict[str, int] = {}
    return [
        RegionInfo(
            index=place,
            name=use.name,
            backend=use.backend,
            call=session.numbers[use.call.id],
            ops=use.ops,
            numbers=[session.numbers[op] for op in session.region_ops[place]],
            layers=[session.layers[la] for la in use.layers if la in session.layers],
            distinct=distinct.setdefault(f"{use.backend}:{use.key}", len(distinct)),
            reads=[str(arg.type) for arg in use.call.args],
            results=list(map(str, leaves(use.call.type))),
            copies=copies.get(use.call.id, []),
            described=isinstance(compiled.get(use.call.id), DescribedRegion),
        )
        for place, use in enumerate(session.regions)
    ]


def compiled_regions(session: Session) -> dict[int, object]:
    """Returns the compiled regions by the ids of their calls; for `Session.once`."""
    return {
        step.node: step.function.compiled
        for part in _programs(session.compiled.build.program)
        for step in part.instructions
        if isinstance(step, RunRegion)
    }


def _copies(program: Program) -> dict[int, list[RegionCopy]]:
    """Returns the copies at the borders of regions, by the ids of the regions' calls."""
    found: dict[int, list[RegionCopy]] = {}
    for part in _programs(program):
        copies = [step for step in part.instructions if isinstance(step, Copy)]
        for step in part.instructions:
            if isinstance(step, RunRegion):
                found[step.node] = [
                    _copy(c) for c in copies if c.target in step.inputs or c.source in step.outputs
                ]
    return found


def _copy(copy: Copy) -> RegionCopy:
    shape, dtype = copy.type.shape, copy.type.dtype
    return RegionCopy(
        value=f"{dtype.name}[{', '.join(map(str, shape))}]",
        bytes=math.prod(shape) * dtype.itemsize,
        source=copy.source_space.name,
        target=copy.target_space.name,
    )


def _programs(program: Program) -> Iterator[Program]:
    """Yields a program and those of its branches and loops."""
    yield program
    for step in program.instructions:
        inner: tuple[Program, ...] = ()
        if isinstance(step, Branch):
            inner = (step.then, step.orelse)
        elif isinstance(step, Repeat):
            inner = (step.cond, step.body)
        for part in inner:
            yield from _programs(part)


def placement(session: Session) -> Placement | None:
    """Returns the measured placement that a build was compiled with; None without one."""
    placed: Placed | None = session.compiled.placement
    if placed is None:
        return None
    plans = sorted(placed.plans, key=lambda p: math.inf if p.seconds is None else p.seconds)
    return Placement(
        summary=placed.summary,
        plans=[PlacedPlan(p.name, p.seconds, p.failure, p.name == placed.best.name) for p in plans],
        regions=[
            PlacedRegion(
                backend=r.backend,
                layers=[session.layers[la] for la in r.layers if la in session.layers],
                ops=list(r.ops),
                seconds=r.seconds,
                borders=r.borders,
                basis=r.basis,
                others=[Alternative(o.backend, o.seconds, o.borders, o.why_not) for o in r.others],
            )
            for r in placed.regions
        ],
    )
