"""How a phase may be shared among threads: pieces, lines, and what two of each read alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from clew.codegen.artifact import EntryPoint
from clew.codegen.cost import cost_ns
from clew.loop.ir import Buffer, For, Stmt, Store, parallel_lines, reads, walk
from clew.te.expr import Binary, Scalar


def entry_point(
    symbol: str, phase: Stmt, arguments: Mapping[int, int], before: Stmt | None
) -> EntryPoint:
    """Returns the entry point of a phase that follows another one, or None. `arguments` are the
    numbers of buffers by their identity.
    """
    cost = cost_ns(phase)
    if not isinstance(phase, For) or phase.kind != "parallel":
        return EntryPoint(symbol, 1, cost)
    lines = parallel_lines(phase)
    along_lines = _read_along({id(n.index) for n in lines}, phase)
    along_pieces = _read_along({id(phase.index)}, phase)
    given = {arguments[i]: b for i, b in _read(phase).items() if i in arguments}
    sizes = {n: b.size_bytes for n, b in sorted(given.items())}

    def only(along: set[int], across: set[int]) -> tuple[tuple[int, int], ...]:
        wanted = {arguments[i] for i in along - across if i in arguments}
        return tuple((n, size) for n, size in sizes.items() if n in wanted)

    return EntryPoint(
        symbol,
        phase.extent,
        cost,
        tuple((n.extent, cost_ns(n.body)) for n in lines),
        only(along_lines, along_pieces) if lines else (),
        only(along_pieces, along_lines) if lines else (),
        before is not None and _independent(before, phase),
    )


def _independent(before: Stmt, phase: For) -> bool:
    """Whether a phase goes on with the same loop, peeled, and uses nothing that it has written."""
    if not isinstance(before, For) or (before.name, before.kind) != (phase.name, phase.kind):
        return False
    return not any(
        _written(one).keys() & _read(other).keys()
        for one, other in ((before, phase), (phase, before))
    )


def _written(stmt: Stmt) -> dict[int, Buffer]:
    stores = (s for s in walk(stmt) if isinstance(s, Store))
    return _shared(s.buffer for s in stores)


def _read(stmt: Stmt) -> dict[int, Buffer]:
    return _shared(load.source for _, load in reads(stmt))


def _shared(buffers: Iterable[object]) -> dict[int, Buffer]:
    """Returns those of the buffers that threads share, by their identity."""
    return {
        id(b): b
        for b in buffers
        if isinstance(b, Buffer) and b.scope not in ("register", "scratch")
    }


def _read_along(variables: set[int], phase: For) -> set[int]:
    """Returns the buffers of which a loop's first half reads another part than its second half."""
    return {
        id(load.source)
        for _, load in reads(phase)
        if any(_walks(i, variables) for i in load.indices)
    }


def _walks(index: Scalar, variables: set[int]) -> bool:
    """Whether an index grows with a variable; the inner of two fused loops begins again."""
    if id(index) in variables:
        return True
    if isinstance(index, Binary) and index.op == "mod":
        return False
    return any(_walks(c, variables) for c in index.children)
