"""What became of nodes, stage by stage: the page follows values with it, without asking again."""

from __future__ import annotations

from clew.explorer.schema import Links, StageLinks
from clew.explorer.session import Session
from clew.trace.links import LinkKind


def links(session: Session) -> Links:
    """Returns the links of all stages."""
    born, last = lifetimes(session)
    stages = [_links(session, n) for n in range(len(session.trace.stages))]
    return Links(born, last, _layers(session), stages)


def _layers(session: Session) -> list[list[int]]:
    """Returns by node numbers the layers that each serves: nodes are immutable, and keep theirs."""
    found: list[list[int]] = [[] for _ in session.numbers]
    for stage in range(len(session.trace.stages)):
        for node in session.trace.nodes(stage).values():
            names = node.span.layers
            found[session.numbers[node.id]] = [session.layers[n] for n in names]
    return found


def lifetimes(session: Session) -> tuple[list[int], list[int]]:
    """Returns by node numbers the first and the last stage that has each."""
    born = [0] * len(session.numbers)
    last = [0] * len(session.numbers)
    for stage in range(len(session.trace.stages) - 1, -1, -1):
        for node in session.trace.nodes(stage):
            born[session.numbers[node]] = stage
    for stage in range(len(session.trace.stages)):
        for node in session.trace.nodes(stage):
            last[session.numbers[node]] = stage
    return born, last


def _links(session: Session, stage: int) -> StageLinks:
    if not stage or not session.trace.stages[stage].changed:
        return StageLinks([], [], [])
    found = session.trace.links(stage).links
    return StageLinks(
        old=[session.numbers[x.old] for x in found],
        new=[session.numbers[x.new] for x in found],
        same=[int(x.kind is LinkKind.SAME) for x in found],
    )
