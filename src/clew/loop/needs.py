"""The sizes for which a nest stays inside its buffers.

A model's file may name a size that its operators limit: a slice of 512 positions up to `seq` is
valid for `seq` up to 512. Types do not state such limits, so each access is checked here. Limits
that do not hold for all sizes become conditions on them. A buffer that may be empty must have
elements, unless its accesses are proven to be inside: clamped and checked indices rely on an
element to read instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from clew.ir.dims import Dim, SymDim, at_least
from clew.loop.affine import Linear, Simplifier
from clew.loop.ir import Block, For, If, Nest, Stmt, Store, TileProduct
from clew.te.expr import (
    COMPARISONS,
    INDEX,
    Binary,
    Checked,
    Load,
    Scalar,
    Select,
    Unary,
    binary,
    size,
    unary,
)
from clew.te.walk import nodes


def needs_of(nest: Nest) -> tuple[SymDim, ...]:
    """Returns the dimensions that must be at least 0 for all accesses of a plain nest to be inside
    its buffers.

    An access in a branch whose condition tests its position is inside by that condition.
    """
    simplifier = Simplifier()
    found: dict[SymDim, None] = {}
    for store, around in guarded_stores(nest.body):
        tested = [simplifier.linear(side) for cond in around for side in _sides(cond)]
        for index, extent in zip(store.indices, store.buffer.shape, strict=True):
            for need in _needs(index, extent, tested, simplifier):
                found[need] = None
            for need in _of_empty(index, extent, around, simplifier):
                found[need] = None
        for load, conds in _guarded_loads(store.value, around):
            tested = [simplifier.linear(side) for cond in conds for side in _sides(cond)]
            for index, extent in zip(load.indices, load.source.shape, strict=True):
                for need in _needs(index, extent, tested, simplifier):
                    found[need] = None
                for need in _of_empty(index, extent, conds, simplifier):
                    found[need] = None
    return tuple(found)


def _of_empty(
    index: Scalar, extent: Dim, conds: Sequence[Scalar], simplifier: Simplifier
) -> Iterator[SymDim]:
    """Yields the need that an axis is not empty, unless the index is inside wherever it is
    evaluated.
    """
    if not isinstance(extent, SymDim) or at_least(extent, 1):
        return
    simple = simplifier.simplify(index)
    if any(isinstance(node, Checked) for node in nodes(simple)):
        holds = False  # an index out of range may become 0
    else:
        known = [fact for cond in conds for fact in _facts(cond, holds=True)]
        above = binary("sub", size(extent - 1), simple)
        holds = all(_is_nonnegative(side, known, simplifier) for side in (simple, above))
    need = extent - 1
    if not holds and isinstance(need, SymDim):
        yield need


def _is_nonnegative(expr: Scalar, known: Sequence[Scalar], simplifier: Simplifier) -> bool:
    """Whether an index expression is at least 0: by its bounds, or because it is no less than an
    expression known to be.
    """
    rest = (expr, *(binary("sub", expr, fact) for fact in known))
    return any(simplifier.never_below(one, 0) for one in rest)


def _facts(cond: Scalar, *, holds: bool) -> Iterator[Scalar]:
    """Yields index expressions that are at least 0 where a condition holds, or does not hold."""
    if isinstance(cond, Unary) and cond.op == "not":
        yield from _facts(cond.a, holds=not holds)
    if not isinstance(cond, Binary):
        return
    if cond.op == ("and" if holds else "or") and cond.dtype == "bool":
        yield from _facts(cond.a, holds=holds)
        yield from _facts(cond.b, holds=holds)
    elif cond.op in COMPARISONS and cond.a.dtype == INDEX:
        op = cond.op if holds else _INVERSE[cond.op]
        if op in ("lt", "le", "eq"):
            yield binary("sub", binary("sub", cond.b, cond.a), int(op == "lt"))
        if op in ("gt", "ge", "eq"):
            yield binary("sub", binary("sub", cond.a, cond.b), int(op == "gt"))


_INVERSE = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}


def _needs(
    index: Scalar, extent: Dim, tested: Sequence[Linear], simplifier: Simplifier
) -> Iterator[SymDim]:
    form = simplifier.linear(index)
    low, high = simplifier.range_of(form)
    if any(_same_but_constant(form, other) for other in tested):
        return
    facts = simplifier.facts(form)
    margins = (low, -1 if isinstance(high, float) else extent - 1 - high)
    for margin in margins:
        if isinstance(margin, SymDim) and not at_least(margin, 0, facts):
            yield margin


def _same_but_constant(a: Linear, b: Linear) -> bool:
    """Whether two forms differ by a constant at most."""
    terms = {id(atom): c for atom, c in a.terms}
    return bool(terms) and terms == {id(atom): c for atom, c in b.terms}


def _sides(cond: Scalar) -> Iterator[Scalar]:
    """Yields the operands of the comparisons of positions in a condition."""
    stack = [cond]
    while stack:
        node = stack.pop()
        if isinstance(node, Unary):
            stack.append(node.a)
        if not isinstance(node, Binary):
            continue
        if node.op in COMPARISONS and node.a.dtype == INDEX:
            yield from (node.a, node.b)
        elif node.dtype == "bool":
            stack += [node.a, node.b]


def guarded_stores(body: Stmt) -> Iterator[tuple[Store, tuple[Scalar, ...]]]:
    """Yields the stores in a statement, each with the conditions of the branches around it."""
    stack: list[tuple[Stmt, tuple[Scalar, ...]]] = [(body, ())]
    while stack:
        stmt, conds = stack.pop()
        match stmt:
            case Store():
                yield stmt, conds
            case If():
                stack.append((stmt.body, (*conds, stmt.cond)))
            case For() | TileProduct():
                stack.append((stmt.body, conds))
            case Block():
                stack += [(s, conds) for s in reversed(stmt.stmts)]


def _guarded_loads(
    value: Scalar, around: tuple[Scalar, ...]
) -> Iterator[tuple[Load, tuple[Scalar, ...]]]:
    """Yields the loads in an expression, each with the conditions of the branches around it."""
    stack: list[tuple[Scalar, tuple[Scalar, ...]]] = [(value, around)]
    seen: set[tuple[int, tuple[int, ...]]] = set()
    inverse: dict[int, Scalar] = {}  # by id of a condition; kept, since `seen` has ids
    while stack:
        node, conds = stack.pop()
        key = id(node), tuple(map(id, conds))
        if key in seen:
            continue
        seen.add(key)
        if isinstance(node, Load):
            yield node, conds
        if isinstance(node, Select):
            stack += [(node.cond, conds), (node.a, (*conds, node.cond))]
            fails = inverse.setdefault(id(node.cond), unary("not", node.cond))
            stack.append((node.b, (*conds, fails)))
        else:
            stack += [(child, conds) for child in node.children]
