"""Sizes that are known only during the run (`?3`): which steps need them, and where they are known.

If the shapes of a step's arguments do not determine a size it needs, the step gets the size as an
additional argument, an `i64[]` read from a value that has it. Branches and loop bodies receive such
sizes from outside, as they do values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from clew.ir.dims import Dim, SymDim, is_unknown, substitute
from clew.ir.expr import Call, Expr, Function, GlobalVar, If, While
from clew.ir.rewrite import Rewriter
from clew.ir.types import TensorType, Type, leaves
from clew.ir.visit import free_vars, inner_functions, post_order

Sizes = frozenset[str]
_NONE: Sizes = frozenset()


def plain_size(dim: Dim) -> str | None:
    """Returns the name of a dimension that is a single unknown size."""
    if isinstance(dim, SymDim) and is_unknown(dim) and str(dim) in dim.symbols:
        return str(dim)
    return None


def sizes_told(types: Iterable[Type]) -> Sizes:
    """Returns the unknown sizes that shapes of values determine."""
    dims = (d for t in types for leaf in leaves(t) for d in getattr(leaf, "shape", ()))
    return frozenset(name for d in dims if (name := plain_size(d)) is not None)


def sizes_in(value: Any) -> Sizes:
    """Returns the unknown sizes in an attribute's value."""
    if isinstance(value, tuple):
        return _NONE.union(*map(sizes_in, value))
    if not isinstance(value, SymDim):
        return _NONE
    return frozenset(name for name in value.symbols if name.startswith("?"))


def sizes_needed(call: Call) -> Sizes:
    """Returns the unknown sizes to pass to a step between segments: a kernel binds those that its
    arguments' shapes determine, an operator binds none.
    """
    if isinstance(call.op, GlobalVar):
        return _NONE
    if not isinstance(call.op, Function):
        return _NONE.union(*map(sizes_in, call.attrs.values()))
    nodes = [n for n in post_order(call.op.body) if isinstance(n, Call)]
    found = _NONE.union(*(sizes_in(v) for n in nodes for v in n.attrs.values()))
    return found - sizes_told(p.type for p in call.op.params)


def free_sizes(function: Function) -> Sizes:
    """Returns the unknown sizes that a branch or loop body needs from outside."""
    nodes = post_order(function.body)
    needed = _NONE
    for node in nodes:
        if isinstance(node, Call):
            needed |= sizes_needed(node)
        else:
            for inner in inner_functions(node):
                needed |= free_sizes(inner)
    return needed - _told_by(function, nodes)


def _told_by(function: Function, nodes: Iterable[Expr]) -> Sizes:
    return sizes_told(n.type for n in (*function.params, *nodes) if isinstance(n.type, TensorType))


def settled(value: Any, sizes: Mapping[str, int]) -> Any:
    """Returns an attribute's value with unknown sizes replaced by numbers."""
    if isinstance(value, tuple):
        return tuple(settled(v, sizes) for v in value)
    return substitute(value, sizes) if isinstance(value, SymDim) else value


class Anchors(Rewriter):
    """Makes sizes known where they are used: if a call's attributes name a size that its arguments
    do not determine, the call reads an argument through the operator `sized`, together with a value
    that determines the size.

    `carriers` maps each size to such a value. Values outside a function are handled in the
    enclosing function.
    """

    def __init__(self, carriers: Mapping[str, Expr], sized: Any) -> None:
        super().__init__()
        self._carriers = carriers
        self._sized = sized
        self._here: list[frozenset[int]] = []

    def rewrite_function(self, function: Function) -> Function:
        self._here.append(frozenset(p.id for p in function.params))
        try:
            return super().rewrite_function(function)
        finally:
            self._here.pop()

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        if isinstance(new.op, (Function, GlobalVar)):
            return new
        needed = _NONE.union(*map(sizes_in, new.attrs.values())) if new.attrs else _NONE
        carriers = self._of(needed - sizes_told(a.type for a in new.args)) if needed else []
        if not carriers:
            return new
        if not new.args:
            whole: Expr = self._sized(*carriers, new)
            return whole
        return new.with_args([self._sized(*carriers, new.args[0]), *new.args[1:]])

    def rewrite_control(self, old: Expr, new: Expr) -> Expr:
        needed = _NONE.union(*map(free_sizes, inner_functions(new)))
        carriers = self._of(needed) if needed else []
        if not carriers:
            return new
        match new:
            case If():
                return If(self._sized(*carriers, new.cond), new.then, new.orelse, new.args)
            case While():
                init = [self._sized(*carriers, new.init[0]), *new.init[1:]]
                return While(new.cond, new.body, init, scans=new.scans, trips=new.trips)
        raise AssertionError(new)

    def _of(self, names: Sizes) -> list[Expr]:
        """Returns values of this function that determine sizes."""
        found = []
        for name in sorted(names):
            carrier = self._carriers.get(name)
            if carrier is None or any(v.id not in self._here[-1] for v in free_vars([carrier])):
                continue
            found.append(self._visited(carrier))
        return found
