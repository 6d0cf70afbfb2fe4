"""Decides which inputs of a kernel can share their memory with an output."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from clew.ir.dims import Dim, at_least
from clew.loop import bounds
from clew.loop.affine import Linear, Simplifier
from clew.loop.ir import Block, Buffer, For, If, Nest, Stmt, Store, TileProduct, reads, walk
from clew.loop.needs import guarded_stores
from clew.loop.products import offset_of
from clew.te.expr import Binary, Index, Load, Scalar, binary, conjuncts
from clew.te.walk import nodes


def in_place_pairs(nest: Nest) -> tuple[tuple[int, int], ...]:
    """Returns pairs of an input and an output, by position, that may use the same memory.

    They have the same size and dtype, and nothing reads the output or accumulates into it. In any
    order of the loops, an element of the input is read before it is overwritten, and by the same
    thread: it is read only where that of the output is written, or each iteration of the loops
    around both reads a part of the input before it writes the same part of the output, as
    normalizations do.
    """
    if any(isinstance(s, For) and s.index.repeats for s in walk(nest.body)):
        return ()  # a shifted tile reads some elements again after they were overwritten
    simplifier = Simplifier()
    guarded = list(guarded_stores(nest.body))
    if any(_repeats(store, guards, simplifier) for store, guards in guarded):
        return ()  # so does a tile that ends at a fixed size, and one that repeats its last row
    stores = [store for store, _ in guarded]
    loads = [(stmt, load) for stmt, load in reads(nest.body)]
    spoiled = {id(s.buffer.root) for s in stores if s.combiner}
    spoiled |= {id(load.source.root) for _, load in loads}
    around = dict(_loops_around(nest.body))
    found: list[tuple[int, int]] = []
    for target, output in enumerate(nest.outputs):
        if id(output) in spoiled:
            continue
        writes = [store for store in stores if store.buffer.root is output]
        for source, given in enumerate(nest.inputs):
            if given.dtype != output.dtype or given.size_bytes != output.size_bytes:
                continue
            uses = [(stmt, load) for stmt, load in loads if load.source.root is given]
            if uses and all(
                _is_replaced(stmt, load, output, simplifier)
                or all(_is_before(stmt, load, write, around, simplifier) for write in writes)
                for stmt, load in uses
            ):
                found.append((source, target))
    return tuple(found)


def _is_replaced(stmt: Stmt, load: Load, output: Buffer, simplifier: Simplifier) -> bool:
    """Whether a statement overwrites the element that it reads."""
    return (
        isinstance(stmt, Store)
        and stmt.buffer.root is output
        and not _in_indices(stmt, load)
        and offset_of(load.source, load.indices, simplifier)
        == offset_of(stmt.buffer, stmt.indices, simplifier)
    )


def _is_before(
    stmt: Stmt,
    load: Load,
    write: Store,
    around: Mapping[int, tuple[int, tuple[For, ...]]],
    simplifier: Simplifier,
) -> bool:
    """Whether a statement reads an element before `write` overwrites it, if all threads that share
    a loop around both take different iterations. Each iteration then works on its own part of the
    memory.
    """
    (reads_at, outer), (writes_at, other) = around[id(stmt)], around[id(write)]
    both = [a for a, b in zip(outer, other, strict=False) if a is b]
    apart = (*outer[len(both) :], *other[len(both) :])
    if not both or reads_at >= writes_at or any(loop.kind == "parallel" for loop in apart):
        return False
    read = offset_of(load.source, load.indices, simplifier)
    written = offset_of(write.buffer, write.indices, simplifier)
    for loop in both:
        if loop.size == 1:
            continue
        part = read.coefficient(loop.index)
        if written.coefficient(loop.index) != part:
            return False
        read, written = read.without(loop.index), written.without(loop.index)
        if not all(_is_within(rest, part, loop.index, simplifier) for rest in (read, written)):
            return False
    return True


def _is_within(rest: Linear, part: Dim, index: Index, simplifier: Simplifier) -> bool:
    """Whether positions do not depend on a loop and are from 0 to less than `part`."""
    if rest.depends_on(index):
        return False
    low, high = simplifier.range_of(rest)
    facts = simplifier.facts(rest)
    return at_least(low, 0, facts) and at_least(bounds.difference(part, high), 1, facts)


def _loops_around(body: Stmt) -> Iterator[tuple[int, tuple[int, tuple[For, ...]]]]:
    """Yields the id of each statement with its position in the text and the loops around it, the
    outermost first.
    """
    stack: list[tuple[Stmt, tuple[For, ...]]] = [(body, ())]
    for position in itertools.count():
        if not stack:
            return
        stmt, loops = stack.pop()
        yield id(stmt), (position, loops)
        match stmt:
            case For():
                stack.append((stmt.body, (*loops, stmt)))
            case If() | TileProduct():
                stack.append((stmt.body, loops))
            case Block():
                stack += [(s, loops) for s in reversed(stmt.stmts)]


def _repeats(store: Store, guards: Sequence[Scalar], simplifier: Simplifier) -> bool:
    """Whether a store may write a position twice: its index is the smaller of two positions of
    loops, and no guard skips the positions of the previous tile (the tail `once` of `split`), or
    those beyond the last one (`overlap`).
    """
    number = simplifier.number
    kept = {
        number(least)
        for guard in guards
        for c in conjuncts(guard)
        if isinstance(c, Binary) and c.op == "ge"
        for least in _limits(c.a)
        if number(c.b) in (number(least.a), number(least.b))  # the tile's start, not moved back
    }
    beyond = [c for guard in guards for c in conjuncts(guard)]
    kept |= {
        number(least)
        for i in store.indices
        for least in _limits(i)
        if any(_stays_below(least, c, simplifier) for c in beyond)
    }
    return any(number(least) not in kept for i in store.indices for least in _limits(i))


def _stays_below(least: Binary, guard: Scalar, simplifier: Simplifier) -> bool:
    """Whether a guard states that a limited position is below its limit."""
    if not isinstance(guard, Binary) or guard.op != "lt":
        return False
    within = binary("lt", least.a, binary("add", least.b, 1))
    return simplifier.number(simplifier.simplify(within)) == simplifier.number(guard)


def _limits(index: Scalar) -> Iterator[Binary]:
    """Yields the minima of loop positions in an index."""
    for node in nodes(index):
        if not isinstance(node, Binary) or node.op != "min":
            continue
        if not any(isinstance(inner, Load) for inner in nodes(node)):
            yield node


def _in_indices(stmt: Store, load: Scalar) -> bool:
    """Whether a load is part of an address, of the store or of another load."""
    stack: list[Scalar] = list(stmt.indices)
    seen: set[int] = set()
    pending: list[Scalar] = [stmt.value]
    while pending:
        node = pending.pop()
        if id(node) not in seen:
            seen.add(id(node))
            pending.extend(node.children)
            if hasattr(node, "indices"):
                stack.extend(node.indices)
    inside: set[int] = set()
    while stack:
        node = stack.pop()
        if node is load:
            return True
        if id(node) not in inside:
            inside.add(id(node))
            stack.extend(node.children)
    return False
