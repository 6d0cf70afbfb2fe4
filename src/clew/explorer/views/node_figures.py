"""Figures of operators, at every stage: an operator's own share, not that of its whole layer.

In the last stage an operator has its share of its kernel's figure, as the profile divides it, in
parts for its layers. Each part goes back to the operators that it was made of, stage by stage along
the trace's links: to those that serve the same layer, in proportion to their FLOPs. So the
operators of each stage add up to the same total.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clew.explorer.schema import NodeFigures
from clew.explorer.session import Session
from clew.ir.expr import Call, Function
from clew.ir.visit import post_order
from clew.ops.registry import Op
from clew.profile.rollup import divided
from clew.profile.rows import KernelProfile
from clew.profile.work import LayerWork


@dataclass(frozen=True)
class Portion:
    """The part of a last-stage operator's figure for one of its layers; `node` is the operator's
    id.
    """

    node: int
    layer: str
    amount: float


def portions_of(session: Session, rows: Iterable[KernelProfile]) -> list[Portion]:
    """Returns the times of the operators of kernels and host steps."""
    places = {kernel.name: kernel for kernel in session.kernels}
    portions: list[Portion] = []
    for row in rows:
        kernel = places.get(row.name)
        for operator in row.operators:
            if kernel is None:
                node = row.node
            elif operator.position < len(kernel.ops) and operator.basis != "undivided":
                node = kernel.ops[operator.position]
            else:
                continue
            if node is not None:
                portions += [Portion(node, part.layer, part.ns) for part in operator.parts]
    return portions


def sums(session: Session, portions: Sequence[Portion]) -> list[NodeFigures]:
    """Returns each operator's figure by stage; empty for stages that changed nothing."""
    origins = session.once(_origins)
    work = session.once(_work)
    result = []
    for stage, record in enumerate(session.trace.stages):
        found: dict[int, float] = {}
        for portion in portions if record.changed or not stage else ():
            for node, amount in _shared(session, stage, origins[stage], portion, work):
                found[node] = found.get(node, 0.0) + amount
        found |= _of_calls(session.trace.nodes(stage).values(), found) if found else {}
        result.append(_columns(session, found))
    return result


def _of_calls(nodes: Iterable[Any], found: Mapping[int, float]) -> dict[int, float]:
    """Returns the figures of function calls: the sums over all operators inside."""
    sums: dict[int, float] = {}
    for node in nodes:
        if isinstance(node, Call) and isinstance(node.op, Function):
            inside = [found[n.id] for n in post_order(node.op) if n.id in found]
            if inside:
                sums[node.id] = sum(inside)
    return sums


def means(session: Session, valued: Sequence[tuple[Portion, float]]) -> list[NodeFigures]:
    """Returns by stage the means of the values given with portions, weighted by the portions."""
    weighed = [Portion(p.node, p.layer, p.amount * value) for p, value in valued]
    wholes = sums(session, [p for p, _ in valued])
    result = []
    for above, below in zip(sums(session, weighed), wholes, strict=True):
        whole = dict(zip(below.number, below.figure, strict=True))
        rows = [
            (number, figure / whole[number])
            for number, figure in zip(above.number, above.figure, strict=True)
            if whole.get(number)
        ]
        result.append(NodeFigures([n for n, _ in rows], [f for _, f in rows]))
    return result


def of_results(session: Session, figures: Mapping[str, float | None]) -> list[NodeFigures]:
    """Returns by stage the figures of layers, at the nodes whose values are the layers' results."""
    result = []
    for stage, record in enumerate(session.trace.stages):
        found: dict[int, float] = {}
        nodes = session.trace.nodes(stage).values() if record.changed or not stage else ()
        for node in nodes:
            for source in node.span.sources:
                figure = None if source.output is None else figures.get(source.layer)
                if figure is not None:
                    found[node.id] = max(figure, found.get(node.id, 0.0))
        result.append(_columns(session, found))
    return result


def of_operators(session: Session, figures: Mapping[str, float]) -> list[NodeFigures]:
    """Returns by stage the largest figure among its layers for each operator and each call of a
    function.
    """
    result = []
    for stage, record in enumerate(session.trace.stages):
        found: dict[int, float] = {}
        nodes = session.trace.nodes(stage).values() if record.changed or not stage else ()
        for node in nodes:
            known = [figures[la] for la in node.span.layers if la in figures]
            if known and isinstance(node, Call):
                found[node.id] = max(known)
        result.append(_columns(session, found))
    return result


def _columns(session: Session, found: Mapping[int, float]) -> NodeFigures:
    return NodeFigures([session.numbers[node] for node in found], list(found.values()))


def _shared(
    session: Session,
    stage: int,
    origins: Mapping[int, Sequence[int]],
    portion: Portion,
    work: LayerWork,
) -> Iterator[tuple[int, float]]:
    """Yields the parts of a portion for operators of a stage, by operator id."""
    nodes: Mapping[int, Any] = session.trace.nodes(stage)
    known = [nodes[n] for n in origins.get(portion.node, ()) if _is_operator(nodes[n])]
    own = [node for node in known if portion.layer in node.span.layers] or known
    shares = [work.flops(node) for node in own] if len(own) > 1 else [1.0] * len(own)
    parts = divided(portion.amount, shares) if own else []
    yield from zip((node.id for node in own), parts, strict=True)


def _is_operator(node: Any) -> bool:
    return isinstance(node, Call) and isinstance(node.op, Op)


def _work(session: Session) -> LayerWork:
    return LayerWork(session.compiled.build)


def _origins(session: Session) -> list[dict[int, list[int]]]:
    """Returns by stage the origins of each last-stage operator, by operator id."""
    trace = session.trace
    here = {node.id: [node.id] for node in trace.nodes(trace.last).values() if _is_operator(node)}
    found = [here]
    for stage in range(trace.last, 0, -1):
        if trace.stages[stage].changed:
            here = {node: _before(session, stage, then) for node, then in here.items()}
        found.append(here)
    return found[::-1]


def _before(session: Session, stage: int, nodes: Iterable[int]) -> list[int]:
    links = session.trace.links(stage)
    return list(dict.fromkeys(link.old for node in nodes for link in links.backward(node)))
