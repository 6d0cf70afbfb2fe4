"""A stage's graph IR: its text, and the nodes on its lines."""

from __future__ import annotations

from typing import Any

from clew.explorer.schema import Nodes, RemarkLine, Stage
from clew.explorer.session import Session
from clew.explorer.views.links import lifetimes
from clew.ir.expr import Expr, Function
from clew.ir.visit import inner_functions, post_order


def stage(session: Session, stage: int) -> Stage:
    """Returns a stage by its place.

    Errors: I071 for one that does not exist.
    """
    trace = session.trace
    place = session.stage(stage)
    record = trace.stages[place]
    return Stage(
        index=place,
        name=record.name,
        text=trace.printed(place).text,
        nodes=_nodes(session, place),
        remarks=[
            RemarkLine(session.numbers.get(r.node_id, -1), r.pass_name, r.text)
            for r in record.remarks
        ],
    )


def _nodes(session: Session, place: int) -> Nodes:
    trace, numbers, layers = session.trace, session.numbers, session.layers
    line_of = trace.printed(place).line_of
    standing = [n for n in trace.nodes(place).values() if n.id in line_of]
    ordered: list[Any] = sorted(standing, key=lambda n: (line_of[n.id], n.id))
    reader = trace.reader
    parents = _parents(trace.stages[place].module)
    kernels = session.kernels_of_node if place == trace.last else {}
    born, _, _ = session.once(lifetimes)
    return Nodes(
        number=[numbers[n.id] for n in ordered],
        line=[line_of[n.id] for n in ordered],
        kind=[reader.kind(n) for n in ordered],
        title=[reader.title(n) for n in ordered],
        type=[str(n.type) for n in ordered],
        layers=[[layers[la] for la in n.span.layers if la in layers] for n in ordered],
        marks=[_marks(session, n) for n in ordered],
        inputs=[[numbers[c.id] for c in _operands(n)] for n in ordered],
        functions=[[numbers[f.id] for f in inner_functions(n)] for n in ordered],
        parent=[numbers.get(parents.get(n.id, -1), -1) for n in ordered],
        kernel=[kernels.get(n.id, [session.kernel_of_call.get(n.id, -1)])[0]
                if place == trace.last else -1 for n in ordered],
        born=[born[numbers[n.id]] for n in ordered],
    )  # fmt: skip


def _marks(session: Session, node: Expr) -> list[int]:
    """Returns the layers whose result a node is."""
    return [
        session.layers[s.layer]
        for s in node.span.sources
        if s.output is not None and s.layer in session.layers
    ]


def _operands(node: Expr) -> list[Expr]:
    """Returns the nodes that a node reads, without the bodies of functions."""
    if isinstance(node, Function):
        return []
    return [c for c in node.children if not isinstance(c, Function)]


def _parents(module: Any) -> dict[int, int]:
    """Returns for nodes of inner functions the id of the function that contains them."""
    found: dict[int, int] = {}
    pending = [module.main]
    seen: set[int] = set()
    while pending:
        function = pending.pop()
        if function.id in seen:
            continue
        seen.add(function.id)
        inner = function is not module.main
        for node in post_order(function):
            if inner and node is not function:
                found.setdefault(node.id, function.id)
            for other in inner_functions(node):
                if other is not function:
                    found.setdefault(other.id, function.id if inner else -1)
                    pending.append(other)
    return found
