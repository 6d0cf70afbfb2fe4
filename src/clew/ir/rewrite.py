"""The rewriter, the base of every graph pass. It rebuilds bottom-up, shares unchanged parts, and
keeps provenance: every node built while node *n* is rewritten has *n* (and the rest of the match)
as its origin, and the map from old to new nodes gives the *same* links.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from clew.ir.dims import Dim, SymDim, is_unknown, substitute
from clew.ir.expr import (
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    If,
    Let,
    Tuple,
    TupleGetItem,
    Var,
    While,
    carry_marks,
    retype,
)
from clew.ir.module import Module
from clew.ir.types import TensorType, TupleType, Type, leaves, substitute_type, unknown_sizes
from clew.ir.visit import post_order
from clew.support.errors import ClewError
from clew.trace.lineage import Origins, context, note_same
from clew.trace.span import EMPTY


def rebuild(node: Expr, children: Sequence[Expr]) -> Expr:
    """Returns `node` with other children (in the order of `node.children`), or `node` itself if
    they are equal.
    """
    if all(a is b for a, b in zip(node.children, children, strict=True)):
        return node
    new = _over(node, children)
    keep_sizes(node.type, new)
    return new


def keep_sizes(old: Type, new: Expr) -> None:
    """Gives the new unknown sizes of a node the names in the type of the value it replaces, since
    attributes of other nodes use these names.
    """
    if new.type == old or isinstance(new, (Function, Var)):
        return
    fresh = unknown_sizes(new.type)
    if not fresh:
        return
    for child in new.children:
        fresh -= unknown_sizes(child.type)
    renamed: dict[str, Dim] = {}
    for was, now in _dims(old, new.type):
        name = str(now)
        if name in fresh and is_unknown(was) and isinstance(now, SymDim) and name in now.symbols:
            renamed.setdefault(name, was)
    if renamed:
        retype(new, substitute_type(new.type, renamed))


def settle_sizes(old: Type, new: Type, sizes: dict[str, Dim]) -> None:
    """Records the unknown sizes of a value that its new type determines."""
    for was, now in _dims(old, new):
        if was != now and is_unknown(was) and str(was) in was.symbols:  # type: ignore[union-attr]
            sizes.setdefault(str(was), now)


def _dims(old: Type, new: Type) -> Iterator[tuple[Dim, Dim]]:
    """Yields corresponding sizes in two types of a value, if the types have the same structure."""
    before, after = leaves(old), leaves(new)
    if len(before) != len(after):
        return
    for a, b in zip(before, after, strict=True):
        if not isinstance(a, TensorType) or not isinstance(b, TensorType):
            continue
        if a.rank == b.rank and a.layout == b.layout:
            yield from zip(a.shape, b.shape, strict=True)


def _over(node: Expr, children: Sequence[Expr]) -> Expr:
    match node:
        case Call(op=Function()):
            return Call(children[0], children[1:], node.attrs)  # type: ignore[arg-type]
        case Call():
            return node.with_args(children)
        case Tuple():
            return Tuple(children)
        case TupleGetItem():
            return TupleGetItem(children[0], node.index)
        case Function():
            *params, body = children
            return Function(params, body, node.attrs)  # type: ignore[arg-type]
        case Let():
            return Let(*children)  # type: ignore[arg-type]
        case If():
            cond, then, orelse, *args = children
            return If(cond, then, orelse, args)  # type: ignore[arg-type]
        case While():
            return _while(node, children, node.trips)
    raise AssertionError(f"{node} has no children")


def _while(node: While, children: Sequence[Expr], trips: Dim | None) -> While:
    cond, body, *init = children
    return While(cond, body, init, scans=node.scans, trips=trips)  # type: ignore[arg-type]


class building_for:
    """Makes everything built in the block be built for these nodes, without output marks.

    A context manager class, for speed: every node of every pass enters it.
    """

    __slots__ = ("_before", "_origins", "_span")

    def __init__(self, *nodes: Expr | Origins[Expr]) -> None:
        found = Origins.of(nodes) if len(nodes) != 1 or isinstance(nodes[0], Origins) else nodes[0]
        self._origins: Iterable[int] | None = None
        if found is None:
            self._span = EMPTY
        elif isinstance(found, Origins):
            self._span, self._origins = found.span, found
        else:
            self._span, self._origins = found.span.unmarked(), (found.id,)

    def __enter__(self) -> None:
        self._before = context.span, context.origins
        context.span, context.origins = self._span, self._origins

    def __exit__(self, kind: object, error: object, place: object) -> None:
        context.span, context.origins = self._before
        if isinstance(error, ClewError) and not error.layer:
            error.layer = ", ".join(self._span.layers[:3])


def layer_names(node: Expr) -> tuple[str, ...]:
    """Returns the names of the model's layers that a node serves."""
    return node.span.layers


def replaces(old: Expr, new: Expr) -> None:
    """Records that `new` computes the value of `old`. If `new` was built later, it takes over the
    output marks. A tuple with fields omitted has a different value.
    """
    if not _leaves_out(old.type, new.type):
        note_same(old.id, new.id)
    if new.id > old.id:
        carry_marks(old, new)


def _leaves_out(old: Type, new: Type) -> bool:
    return (
        isinstance(old, TupleType)
        and isinstance(new, TupleType)
        and len(old.fields) != len(new.fields)
    )


class Rewriter:
    """Rewrites functions bottom-up. A pass overrides `rewrite_call` (or another `rewrite_*`).

    The method gets the old node and `new`: the old node over rewritten children (the old node
    itself if none changed). It returns the replacement, which computes the same value (perhaps in
    another layout or dtype). `covers` extends the origin to more nodes of a match. Inner functions
    are rewritten if `enter_functions` is set; the attributes named in `of_function`, which `enter`
    sets, are restored afterwards. A pass that changes the type of values clears `rebuilds` and gets
    the old node as `new`, since old calls may not accept the new arguments.
    """

    enter_functions = True
    enter_primitive = False
    rebuilds = True
    of_function: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        self.memo: dict[int, Expr] = {}
        # Values found for sizes that were unknown before the run.
        self.sizes: dict[str, Dim] = {}

    def rewrite_module(self, module: Module) -> Module:
        """Returns the module with every function rewritten; the same module if nothing changed."""
        changed = {name: self.rewrite_function(function) for name, function in module}
        return module.with_functions(changed)

    def rewrite_function(self, function: Function) -> Function:
        """Returns the function rewritten; the same one if nothing changed."""
        if function.is_primitive and not self.enter_primitive:
            return function
        params = [self._visit(p) for p in function.params]
        around = {name: getattr(self, name) for name in self.of_function}
        self.enter(function)
        for node in self.order(function):
            self._visit(node)
        body = self.memo[function.body.id]
        with building_for(function):
            new = rebuild(function, [*params, body])
        new = self.leave(function, new)  # type: ignore[arg-type]
        for name, value in around.items():
            setattr(self, name, value)
        note_same(function.id, new.id)
        return new

    def order(self, function: Function) -> Sequence[Expr]:
        """Returns the nodes of a function's body, uses after their operands."""
        return post_order(function.body)

    def enter(self, function: Function) -> None:
        """Called before a function's body is rewritten, for per-function analysis."""

    def leave(self, function: Function, new: Function) -> Function:
        """Called after a function's body is rewritten; may change the function as a whole."""
        return new

    def _visit(self, node: Expr) -> Expr:
        found = self.memo.get(node.id)
        if found is not None:
            return found
        if isinstance(node, Function):
            new: Expr = self.rewrite_function(node) if self.enter_functions else node
            self.memo[node.id] = new
            return new
        with building_for(node):
            children = [self._visited(c) for c in node.children]
            rebuilt = self.rebuilt(node, children) if self.rebuilds else node
            new = self.dispatch(node, rebuilt)
        if new is not node:
            if self.is_same(node, new):
                replaces(node, new)
            if new.type != node.type:
                settle_sizes(node.type, new.type, self.sizes)
        self.memo[node.id] = new
        return new

    def is_same(self, old: Expr, new: Expr) -> bool:
        """Whether the replacement of a node has its value, perhaps in another layout or dtype."""
        return True

    def rebuilt(self, node: Expr, children: Sequence[Expr]) -> Expr:
        """Returns the node over rewritten children, before `dispatch`."""
        if self.sizes and isinstance(node, Call) and not isinstance(node.op, (Function, GlobalVar)):
            attrs = {k: v for k, v in node.attrs.items() if _names_any(v, self.sizes)}
            if attrs:
                settled = {k: _settled(v, self.sizes) for k, v in attrs.items()}
                new = Call(node.op, children, node.attrs.with_(**settled))
                keep_sizes(node.type, new)
                return new
        if self.sizes and isinstance(node, While) and _names_any(node.trips, self.sizes):
            return _while(node, children, _settled(node.trips, self.sizes))
        return rebuild(node, children)

    def _visited(self, child: Expr) -> Expr:
        found = self.memo.get(child.id)
        return found if found is not None else self._visit(child)

    def dispatch(self, old: Expr, new: Expr) -> Expr:
        """Returns the replacement of `old`, by kind of node."""
        match old:
            case Call():
                return self.rewrite_call(old, new)  # type: ignore[arg-type]
            case Constant():
                return self.rewrite_constant(old)
            case Var():
                return self.rewrite_var(old)
            case TupleGetItem():
                return self.rewrite_tuple_get_item(old, new)  # type: ignore[arg-type]
            case If() | While():
                return self.rewrite_control(old, new)
            case Tuple() | Let() | GlobalVar():
                return self.rewrite_other(old, new)
        raise AssertionError(old)

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        """Returns the replacement of a call."""
        return new

    def rewrite_constant(self, old: Constant) -> Expr:
        """Returns the replacement of a constant."""
        return old

    def rewrite_var(self, old: Var) -> Expr:
        """Returns the replacement of a variable; a parameter must stay a variable."""
        return old

    def rewrite_tuple_get_item(self, old: TupleGetItem, new: TupleGetItem) -> Expr:
        """Returns the replacement of a projection: the field itself if the tuple was just built."""
        return new.value.fields[new.index] if isinstance(new.value, Tuple) else new

    def rewrite_control(self, old: Expr, new: Expr) -> Expr:
        """Returns the replacement of an `If` or `While`."""
        return new

    def rewrite_other(self, old: Expr, new: Expr) -> Expr:
        """Returns the replacement of a tuple, let or global."""
        return new

    def covers(self, *nodes: Expr | Origins[Expr]) -> building_for:
        """Makes nodes built in the block belong to these nodes: a whole match, its root first."""
        return building_for(*nodes)


def _names_any(value: Any, sizes: Mapping[str, Dim]) -> bool:
    if isinstance(value, tuple):
        return any(_names_any(v, sizes) for v in value)
    return isinstance(value, SymDim) and any(name in sizes for name in value.symbols)


def _settled(value: Any, sizes: Mapping[str, Dim]) -> Any:
    if isinstance(value, tuple):
        return tuple(_settled(v, sizes) for v in value)
    return substitute(value, sizes) if isinstance(value, SymDim) else value
