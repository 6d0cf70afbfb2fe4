"""Who hands what to whom: layers in the model, kernels in the program."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from clew.explorer.session import Session
from clew.explorer.views.source import source
from clew.ir.expr import Call, Constant, Expr, Function, Var
from clew.ir.visit import inner_functions, post_order


@dataclass(frozen=True)
class Neighbours:
    """For places of layers, those whose results they read and those that read theirs; the line of
    the model pane that each has first, and those lines.
    """

    reads: dict[int, list[int]] = field(default_factory=dict)
    feeds: dict[int, list[int]] = field(default_factory=dict)
    lines: dict[int, int] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)


def neighbours(session: Session) -> Neighbours:
    """Returns what is next to each layer in the model; for `Session.once`."""
    model = session.once(source)
    found = Neighbours(texts=[line.strip() for line in model.text.split("\n")])
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
        if layer >= 0:
            found.lines.setdefault(layer, line)
    return found


@dataclass(frozen=True)
class Operand:
    """What a kernel reads: the kernel that computes it, or a parameter, input or host operator
    (`node`), and its type.
    """

    type: str
    kernel: int
    node: Expr | None


@dataclass(frozen=True)
class Dataflow:
    """For places of kernels, what they read and the kernels that read their results."""

    reads: dict[int, list[Operand]] = field(default_factory=dict)
    readers: dict[int, list[int]] = field(default_factory=dict)


def dataflow(session: Session) -> Dataflow:
    """Returns what kernels hand on to each other; for `Session.once`."""
    found = Dataflow()
    sources: dict[int, list[tuple[int, Expr | None]]] = {}
    kernel_of = session.kernel_of_call
    main = session.trace.stages[session.trace.last].module.main
    for function in _functions(main):
        for node in post_order(function.body):
            place = kernel_of.get(node.id)
            if place is None:
                sources[node.id] = _behind(node, sources)
                continue
            sources[node.id] = [(place, None)]
            assert isinstance(node, Call)
            found.reads[place] = [
                Operand(str(argument.type), kernel, behind)
                for argument in node.args
                for kernel, behind in sources.get(argument.id, [(-1, argument)])
            ]
    for place, operands in found.reads.items():
        for operand in operands:
            if operand.kernel >= 0:
                known = found.readers.setdefault(operand.kernel, [])
                if place not in known:
                    known.append(place)
    return found


def _functions(main: Function) -> list[Function]:
    """Returns the functions whose bodies hold kernels: the main one, branches and loops."""
    found, pending = {}, [main]
    while pending:
        function = pending.pop()
        if function.id not in found:
            found[function.id] = function
            for node in post_order(function.body):
                pending += [f for f in inner_functions(node) if not f.is_primitive]
    return list(found.values())


def _behind(node: Any, sources: dict[int, list[tuple[int, Expr | None]]]) -> list[tuple[int, Any]]:
    """Returns what a value that no kernel computes is memory of: a view of kernels' results, or the
    node itself.
    """
    if isinstance(node, (Constant, Var)):
        return [(-1, node)]
    below = [s for c in node.children if not isinstance(c, Function) for s in sources.get(c.id, ())]
    kernels = list(dict.fromkeys(s for s in below if s[0] >= 0))
    return kernels if kernels else [(-1, node)]
