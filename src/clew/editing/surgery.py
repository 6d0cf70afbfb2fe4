"""The operation behind all edits: rebuilds a module with some values read from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from clew.ir.expr import Constant, Expr, Function, Tuple, mark_results
from clew.ir.module import Module
from clew.ir.rewrite import rebuild
from clew.ir.visit import post_order
from clew.support.errors import InputError, locate
from clew.trace.lineage import building
from clew.trace.span import EMPTY, Source, Span

Build: TypeAlias = Callable[..., Expr]


@dataclass(frozen=True)
class Insertion:
    """The user's function and its source. A replacement of a layer also serves that layer."""

    source: Source
    build: Build
    serves: Span = EMPTY

    def made(self, *values: Expr) -> Expr:
        """Returns the result of the user's function on the values, under the edit's source.

        Errors: I052 if it is not an expression.
        """
        span = Span([self.source]) | self.serves.unmarked()
        with building(span), locate(layer=self.source.layer):
            result = self.build(*values)
            if not isinstance(result, Expr):
                raise InputError(
                    "I052",
                    f"the function returned a {type(result).__name__}",
                    hint="it must return a graph expression: clew.get_op('nn.relu')(x)",
                )
            return _adopted(result, values)

    def mark(self, result: Expr, output: int = 0, before: Span = EMPTY) -> None:
        """Marks a node as one of the edit's results, and adds the output marks of `before`. A node
        that existed before the edit is not changed.
        """
        if self.source in result.span.sources:
            own = replace(self.source, output=output)
            mark_results(result, Span([own]) | before)


def _adopted(result: Expr, values: tuple[Expr, ...]) -> Expr:
    """Returns the result with copies of constants created outside the edit, so they belong to
    it.
    """
    known: dict[int, Expr] = {v.id: v for v in values}
    stack = [result]
    while stack:
        node = stack[-1]
        below = () if isinstance(node, Function) else node.children
        missing = [c for c in below if c.id not in known]
        if node.id in known:
            stack.pop()
        elif missing:
            stack.extend(missing)
        else:
            known[stack.pop().id] = _own(node, known)
    return known[result.id]


def _own(node: Expr, known: Mapping[int, Expr]) -> Expr:
    match node:
        case Constant():
            if node.span:
                return node
            return Constant(node.data, name=node.name, layout=node.tensor.layout)
        case Function():
            return node
    return rebuild(node, [known[c.id] for c in node.children])


@dataclass(frozen=True)
class Piece:
    """A result built from other values; `output` selects one if the insertion has several."""

    insertion: Insertion
    inputs: tuple[Expr, ...]
    output: int | None = None


@dataclass
class Plan:
    """The changes: `edges` for (user, used) ids, `values` for what all users read, and `pieces` for
    results computed from other values.
    """

    edges: dict[tuple[int, int], Insertion] = field(default_factory=dict)
    values: dict[int, Insertion] = field(default_factory=dict)
    pieces: dict[int, Piece] = field(default_factory=dict)


class Surgeon:
    """Rebuilds functions by a plan. `became` maps the ids of old nodes to their rebuilt nodes,
    `read_as` to the nodes that their users read.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.became: dict[int, Expr] = {}
        self.read_as: dict[int, Expr] = {}
        self._built: dict[int, Expr] = {}
        self._edges: dict[tuple[str, int], Expr] = {}

    def module(self, module: Module) -> Module:
        """Returns the module after the edits. Types are checked as nodes are built.

        Errors: the operators' own, with the layer's name.
        """
        return module.with_functions({name: self._function(f) for name, f in module})

    def _function(self, function: Function) -> Function:
        found = self.became.get(function.id)
        if isinstance(found, Function):
            return found
        for param in function.params:
            self._place(param, param)
        first = [i for piece in self.plan.pieces.values() for i in piece.inputs]
        inside = {n.id for n in post_order(function.body)}
        for node in post_order([*(i for i in first if i.id in inside), function.body]):
            self._visit(node)
        with building(function.span):
            new = rebuild(function, [*function.params, self.read_as[function.body.id]])
        assert isinstance(new, Function)
        self.became[function.id] = self.read_as[function.id] = new
        return new

    def _visit(self, node: Expr) -> None:
        if node.id in self.became:
            return
        if isinstance(node, Function):
            self._function(node)
            return
        piece = self.plan.pieces.get(node.id)
        if piece is not None and node.id not in self.plan.values:
            # Not rebuilt first: its operands may have types by now that it does not take.
            self._replace(node, piece)
            return
        children = [self._child(node, c) for c in node.children]
        with building(node.span), locate(layer=", ".join(node.span.layers[:3])):
            new = rebuild(node, children)
        self._place(node, new)

    def _child(self, user: Expr, child: Expr) -> Expr:
        value = self.read_as[child.id]
        insertion = self.plan.edges.get((user.id, child.id))
        if insertion is None:
            return value
        key = (insertion.source.layer, child.id)
        if key not in self._edges:
            self._edges[key] = made = insertion.made(value)
            insertion.mark(made)
        return self._edges[key]

    def _place(self, node: Expr, new: Expr) -> None:
        self.became[node.id] = new
        self.read_as[node.id] = new
        after, piece = self.plan.values.get(node.id), self.plan.pieces.get(node.id)
        if after is not None:
            self.read_as[node.id] = made = after.made(new)
            after.mark(made)
        elif piece is not None:
            self._replace(node, piece)

    def _replace(self, node: Expr, piece: Piece) -> None:
        made = self._piece(piece)
        piece.insertion.mark(made, piece.output or 0, node.span)
        self.became[node.id] = self.read_as[node.id] = made

    def _piece(self, piece: Piece) -> Expr:
        """Returns a result computed from other values. An insertion with several results is built
        once.

        Errors: I053 if it has a different number of results.
        """
        key = id(piece.insertion)
        if key not in self._built:
            self._built[key] = piece.insertion.made(*(self.read_as[i.id] for i in piece.inputs))
        made = self._built[key]
        if piece.output is None:
            return made
        if not isinstance(made, Tuple) or piece.output >= len(made.fields):
            raise InputError(
                "I053",
                f"{piece.insertion.source.layer}: the function returned {made.type}",
                hint="return a Tuple with as many values as the layer has outputs",
            )
        return made.fields[piece.output]


def follow(nodes: frozenset[int], became: Mapping[int, Expr]) -> frozenset[int]:
    """Returns the ids of the rebuilt nodes."""
    return frozenset(became[n].id for n in nodes if n in became)
