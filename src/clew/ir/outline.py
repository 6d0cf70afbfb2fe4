"""Outlining: replaces sets of nodes by calls of new functions.

A set may have several results and may be spread over the graph, but no path may leave it and
return: the call would depend on itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from clew.ir.expr import Call, Expr, Function, Tuple, TupleGetItem, Var
from clew.ir.rewrite import Rewriter, building_for, rebuild, replaces
from clew.ir.visit import post_order
from clew.support.dataclass import dataclass


@dataclass(eq=False)
class Piece:
    """Nodes that become one function, with its attributes (or a callable that computes them from
    the function). `members` are in the order of the graph. `outputs` are the results; if none are
    given, the members used outside.
    """

    members: tuple[Expr, ...]
    attrs: Mapping[str, Any] | Callable[[Function], Mapping[str, Any]] = field(default_factory=dict)
    outputs: tuple[Expr, ...] = ()

    @property
    def ids(self) -> frozenset[int]:
        """Ids of the members."""
        return frozenset(m.id for m in self.members)


def whole(function: Function, nodes: Iterable[Expr]) -> Piece:
    """Returns a piece of a function's body: the nodes, and their fields if they are tuples."""
    ids = {n.id for n in nodes}
    members = []
    for node in post_order(function.body):
        inner = isinstance(node, TupleGetItem) and node.value.id in ids
        if node.id in ids or inner:
            ids.add(node.id)
            members.append(node)
    return Piece(tuple(members))


def schedulable(function: Function, pieces: Sequence[Piece]) -> list[Expr] | None:
    """Returns the nodes of a function's body in an order that keeps each piece together, uses after
    their operands; None if there is no such order because a piece depends on itself.
    """
    piece_of = {id_: piece for piece in pieces for id_ in piece.ids}
    order: list[Expr] = []
    begun: set[int] = set()
    done: set[int] = set()
    # A node or a piece; on its second visit, all its operands are in order.
    stack: list[tuple[Expr | Piece, bool]] = [(function.body, False)]
    while stack:
        item, ready = stack.pop()
        unit: Expr | Piece = item
        if isinstance(item, Expr):
            unit = piece_of.get(item.id, item)
        key = id(unit)
        if ready:
            done.add(key)
            order.extend(unit.members if isinstance(unit, Piece) else (unit,))
            continue
        if key in done:
            continue
        if key in begun:
            return None  # one of its uses is still waiting for it
        begun.add(key)
        stack.append((unit, True))
        nodes = unit.members if isinstance(unit, Piece) else (unit,)
        own = unit.ids if isinstance(unit, Piece) else frozenset()
        used = [c for n in nodes if not isinstance(n, Function) for c in n.children]
        for child in reversed(used):
            if child.id not in own and id(piece_of.get(child.id, child)) not in done:
                stack.append((child, False))
    return order


def returns_to(function: Function, piece: Piece) -> list[Expr] | None:
    """Returns a path on which values leave a piece and return to it, or None if there is none.

    The first and the last node of the path are members.
    """
    ids, came_from = piece.ids, dict[int, Expr]()
    for node in post_order(function.body):
        if node.id in ids:
            path = next(([came_from[c.id], c] for c in node.children if c.id in came_from), None)
            if path is not None:
                while path[0].id in came_from:
                    path.insert(0, came_from[path[0].id])
                return [*path, node]
        elif not isinstance(node, Function):
            for child in node.children:
                if child.id in ids or child.id in came_from:
                    came_from[node.id] = child
                    break
    return None


class Outliner(Rewriter):
    """Rewrites one function: each piece becomes a call of a function. All pieces together must be
    `schedulable`. `stays` selects the arguments of a member that are kept inside (constants);
    `inner` rewrites functions that are called or are branches.
    """

    def __init__(
        self,
        pieces: Sequence[Piece],
        stays: Callable[[Expr, Expr], bool] = lambda argument, user: False,
        inner: Callable[[Function], Function] = lambda function: function,
    ) -> None:
        super().__init__()
        self._pieces = pieces
        self._stays = stays
        self._inner = inner
        self._entered = False
        self._piece_of = {id_: piece for piece in pieces for id_ in piece.ids}
        shared = sum(len(piece.members) for piece in pieces) - len(self._piece_of)
        assert not shared, f"{shared} nodes are in several pieces"
        self._last = {piece.members[-1].id: piece for piece in pieces}
        self._outputs: dict[int, Sequence[Expr]] = {}
        self._parameters: dict[int, Parameters] = {}

    def rewrite_function(self, function: Function) -> Function:
        if self._entered:
            return self._inner(function)
        self._entered = True
        return super().rewrite_function(function)

    def order(self, function: Function) -> Sequence[Expr]:
        found = schedulable(function, self._pieces)
        assert found is not None, "pieces depend on each other"
        return found

    def enter(self, function: Function) -> None:
        read_outside: set[int] = {function.body.id}
        for node in post_order(function.body):
            piece = self._piece_of.get(node.id)
            for child in node.children:
                if piece is None or self._piece_of.get(child.id) is not piece:
                    read_outside.add(child.id)
        for piece in self._pieces:
            found = piece.outputs or [m for m in piece.members if m.id in read_outside]
            self._outputs[id(piece)] = found or [piece.members[-1]]
            self._parameters[id(piece)] = Parameters()

    def rebuilt(self, node: Expr, children: Sequence[Expr]) -> Expr:
        piece = self._piece_of.get(node.id)
        if piece is None:
            return super().rebuilt(node, children)
        parameters = self._parameters[id(piece)]
        inside: list[Expr] = []
        for old, new in zip(node.children, children, strict=True):
            own = self._piece_of.get(old.id) is piece or isinstance(old, Function)
            inside.append(new if own or self._stays(new, node) else parameters.of(new))
        return rebuild(node, inside)

    def dispatch(self, old: Expr, new: Expr) -> Expr:
        return new if old.id in self._piece_of else super().dispatch(old, new)

    def _visit(self, node: Expr) -> Expr:
        known = node.id in self.memo
        new = super()._visit(node)
        piece = self._last.get(node.id)
        if piece is not None and not known:
            self._close(piece)
        return self.memo[node.id] if piece is not None else new

    def _close(self, piece: Piece) -> None:
        """Makes the call once all members are rebuilt, and maps the outputs to its results."""
        outputs, parameters = self._outputs[id(piece)], self._parameters[id(piece)]
        results = [self.memo[o.id] for o in outputs]
        first = {o.id for o in outputs}
        with building_for(*outputs, *(m for m in piece.members if m.id not in first)):
            body = results[0] if len(results) == 1 else Tuple(results)
            attrs = piece.attrs
            if callable(attrs):
                attrs = attrs(Function(parameters.variables, body))
            function = Function(parameters.variables, body, attrs)
            call = Call(function, parameters.arguments)
        for number, output in enumerate(outputs):
            value: Expr = call
            if len(outputs) > 1:
                with building_for(output):
                    value = TupleGetItem(call, number)
            replaces(output, value)
            self.memo[output.id] = value


class Parameters:
    """A function's parameters in order of first use, with the expressions they stand for."""

    def __init__(self) -> None:
        self.variables: list[Var] = []
        self.arguments: list[Expr] = []
        self._found: dict[int, Var] = {}

    def of(self, argument: Expr) -> Var:
        """Returns the parameter for an argument, created on first use."""
        found = self._found.get(argument.id)
        if found is None:
            found = Var(f"p{len(self.variables)}", argument.type)
            self._found[argument.id] = found
            self.variables.append(found)
            self.arguments.append(argument)
        return found
