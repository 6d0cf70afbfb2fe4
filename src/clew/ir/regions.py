"""Regions: operators that a user wants to keep together.

A region is a separate kind of source and is carried by spans, as layers are. So everything a pass
builds for an operator of a region belongs to the region, and passes need no special code.
"""

from __future__ import annotations

from typing import Final

from clew.ir.expr import Call, Expr
from clew.trace.lineage import building, context
from clew.trace.span import Source, Span

_KIND: Final = "fusion"
_FRONTEND: Final = "clew"


def regions_of(node: Expr) -> tuple[str, ...]:
    """Returns the names of the regions that a node belongs to."""
    return tuple(s.layer for s in node.span.sources if s.kind == _KIND)


def enter_region(call: Call, region: str, mode: str) -> Call:
    """Returns the same call, marked as part of a region. Called by rewriters only."""
    source = Source(region, mode, _FRONTEND, _KIND)
    with building(context.span | Span([source]), context.origins):
        return Call(call.op, call.args, call.attrs)
