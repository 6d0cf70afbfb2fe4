"""Edges between layers in the model, and between kernels in the program."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from clew.explorer.session import Session
from clew.explorer.views.source import CODE, source
from clew.ir.expr import Call, Expr, Function, Tuple, TupleGetItem
from clew.ir.visit import inner_functions, post_order


@dataclass(frozen=True)
class Neighbors:
    """By layer place: the layers whose results it reads, those that read its results, those in its
    branches, loops or function, and its first line in the model pane; all lines.
    """

    reads: dict[int, list[int]] = field(default_factory=dict)
    feeds: dict[int, list[int]] = field(default_factory=dict)
    holds: dict[int, list[int]] = field(default_factory=dict)
    lines: dict[int, int] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)


def neighbors(session: Session) -> Neighbors:
    """Returns the neighbors of each layer in the model; for `Session.once`."""
    model = session.once(source)
    found = Neighbors(texts=[line.strip() for line in model.text.split("\n")])
    for edge in model.edges:
        if edge.source >= 0 and edge.target >= 0:
            for table, one, other in (
                (found.reads, edge.target, edge.source),
                (found.feeds, edge.source, edge.target),
            ):
                known = table.setdefault(one, [])
                if other not in known:
                    known.append(other)
    for line, layer in enumerate(model.line_layers, 1):
        if layer >= 0 and not found.texts[line - 1].startswith(CODE):
            found.lines.setdefault(layer, line)
    if session.listing is not None:
        for holder in session.listing.lines:
            inner = [line.name for body in holder.bodies for line in body.lines]
            held = [session.layers[name] for name in inner if name in session.layers]
            if held and holder.name in session.layers:
                found.holds[session.layers[holder.name]] = held
    return found


@dataclass(frozen=True)
class Operand:
    """An operand of a kernel: the kernel that computes it, or a parameter, input or host operator
    (`node`), and its type.
    """

    type: str
    kernel: int
    node: Expr | None


@dataclass(frozen=True)
class Dataflow:
    """By kernel place: its operands, and the readers of its results: kernels (`readers`), branches,
    loops and host operators (`others`), the model's outputs by name (`outputs`).
    """

    reads: dict[int, list[Operand]] = field(default_factory=dict)
    readers: dict[int, list[int]] = field(default_factory=dict)
    others: dict[int, dict[int, Expr]] = field(default_factory=dict)
    outputs: dict[int, list[str]] = field(default_factory=dict)


def dataflow(session: Session) -> Dataflow:
    """Returns the edges between kernels; for `Session.once`."""
    found = Dataflow()
    sources: dict[int, list[tuple[int, Expr | None]]] = {}
    kernel_of = session.kernel_of_call
    main = session.trace.stages[session.trace.last].module.main
    for function in _functions(main):
        for node in post_order(function.body):
            place = kernel_of.get(node.id)
            if place is None:
                sources[node.id] = _behind(session, node, sources)
                if sources[node.id] == [(-1, node)]:
                    for kernel in _kernels_below(node, sources):
                        found.others.setdefault(kernel, {})[node.id] = node
                continue
            sources[node.id] = [(place, None)]
            assert isinstance(node, Call)
            found.reads[place] = [
                Operand(str(argument.type), kernel, behind)
                for argument in node.args
                for kernel, behind in sources.get(argument.id, [(-1, argument)])
            ]
    results = main.body.fields if isinstance(main.body, Tuple) else (main.body,)
    for name, result in zip(session.compiled.output_names, results, strict=False):
        for kernel, _ in sources.get(result.id, ()):
            if kernel >= 0:
                found.outputs.setdefault(kernel, []).append(name)
    for place, operands in found.reads.items():
        for operand in operands:
            if operand.kernel >= 0:
                known = found.readers.setdefault(operand.kernel, [])
                if place not in known:
                    known.append(place)
    return found


def _functions(main: Function) -> list[Function]:
    """Returns the functions whose bodies contain kernels: the main one, branches and loops."""
    found, pending = {}, [main]
    while pending:
        function = pending.pop()
        if function.id not in found:
            found[function.id] = function
            for node in post_order(function.body):
                pending += [f for f in inner_functions(node) if not f.is_primitive]
    return list(found.values())


def _kernels_below(
    node: Expr, sources: dict[int, list[tuple[int, Expr | None]]]
) -> dict[int, None]:
    """Returns the kernels whose results a node reads directly."""
    read = [s for child in node.children for s in sources.get(child.id, ())]
    return dict.fromkeys(kernel for kernel, _ in read if kernel >= 0)


def _behind(
    session: Session, node: Any, sources: dict[int, list[tuple[int, Expr | None]]]
) -> list[tuple[int, Expr | None]]:
    """Returns the node whose memory holds a value that no kernel computes, or else the value's own
    node.
    """
    match node:
        case TupleGetItem(value=Call()) | Tuple():
            passed_on = node.children
        case Call() if session.trace.reader.memory(node):
            passed_on = node.args
        case _:
            return [(-1, node)]
    return list(dict.fromkeys(s for c in passed_on for s in sources.get(c.id, ())))
