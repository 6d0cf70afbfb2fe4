"""Decides which inputs of a kernel can share their memory with an output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from clew.loop.affine import Linear, Simplifier
from clew.loop.ir import Buffer, For, Nest, Store, reads, walk
from clew.loop.needs import guarded_stores
from clew.te.expr import INDEX, Binary, Imm, Load, Scalar, binary, conjuncts, size
from clew.te.walk import nodes


def in_place_pairs(nest: Nest) -> tuple[tuple[int, int], ...]:
    """Returns pairs of an input and an output, by position, that may use the same memory.

    They have the same size and dtype. The input is read only where an element of that output is
    written, at the same position, and nothing reads the output or accumulates into it. In any order
    of the loops, an element is thus read before it is overwritten, and by the same thread.
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
    found: list[tuple[int, int]] = []
    for target, output in enumerate(nest.outputs):
        if id(output) in spoiled:
            continue
        for source, given in enumerate(nest.inputs):
            if given.dtype != output.dtype or given.size_bytes != output.size_bytes:
                continue
            uses = [(stmt, load) for stmt, load in loads if load.source.root is given]
            if uses and all(
                isinstance(stmt, Store)
                and stmt.buffer.root is output
                and not _in_indices(stmt, load)
                and _flat(load.source, load.indices, simplifier)
                == _flat(stmt.buffer, stmt.indices, simplifier)
                for stmt, load in uses
            ):
                found.append((source, target))
    return tuple(found)


def _repeats(store: Store, guards: Sequence[Scalar], simplifier: Simplifier) -> bool:
    """Whether a store may write a position twice: its index is the smaller of two positions of
    loops, and no guard skips the positions of the previous tile (the tail `once` of `split`).
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
    return any(number(least) not in kept for i in store.indices for least in _limits(i))


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


def _flat(buffer: Buffer, indices: Sequence[Scalar], simplifier: Simplifier) -> Linear:
    total: Scalar = Imm(0, INDEX)
    for index, stride in zip(indices, buffer.strides, strict=True):
        total = binary("add", total, binary("mul", index, size(stride)))
    return simplifier.flatten(simplifier.linear(total))
