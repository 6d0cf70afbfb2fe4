"""Division of a kernel into phases, and of a phase among threads: pieces, lines, and the data that
several threads read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from clew.codegen.address import element_bytes
from clew.codegen.artifact import Access, EntryPoint
from clew.ir.dims import Dim, SymDim, product, typical
from clew.loop.ir import (
    Block,
    Buffer,
    For,
    Stmt,
    Store,
    before_lines,
    block,
    parallel_lines,
    reads,
    walk,
)
from clew.loop.phase_cost import cost_fs, ns_of
from clew.machine.costs import Costs
from clew.te.expr import Binary, Scalar


def phases_of(body: Block) -> list[Stmt]:
    """Returns a nest's phases: each parallel loop alone, and the serial statements in between."""
    phases: list[Stmt] = []
    for stmt in body.stmts:
        if phases and not _is_parallel(stmt) and not _is_parallel(phases[-1]):
            phases[-1] = block(phases[-1], stmt)
        else:
            phases.append(stmt)
    return phases or [body]


def _is_parallel(stmt: Stmt) -> bool:
    return isinstance(stmt, For) and stmt.kind == "parallel"


def entry_point(
    symbol: str, phase: Stmt, arguments: Mapping[int, int], before: Stmt | None, costs: Costs
) -> EntryPoint:
    """Returns the entry point of a phase that follows `before` (None: the first phase). `arguments`
    are the numbers of buffers by their identity.
    """
    cost = cost_fs(phase, costs)
    cost_ns, sized = ns_of(cost), cost if isinstance(cost, SymDim) else None
    if not isinstance(phase, For) or phase.kind != "parallel":
        return EntryPoint(symbol, 1, cost_ns, cost_fs=sized)
    lines = parallel_lines(phase)
    repeated: Dim = 0
    for stmt in before_lines(phase):
        repeated = repeated + cost_fs(stmt, costs)
    along = {id(phase.index)}, {id(n.index) for n in lines}
    stores = [s for s in walk(phase) if isinstance(s, Store)]
    read = [(load.source, load.indices) for _, load in reads(phase)]
    return EntryPoint(
        symbol,
        phase.size,
        cost_ns,
        tuple((n.size, ns_of(cost_fs(n.body, costs))) for n in lines),
        _accesses(read, along, arguments),
        _accesses([(s.buffer, s.indices) for s in stores], along, arguments),
        before is not None and _independent(before, phase),
        sized,
        ns_of(repeated),
        repeated if isinstance(repeated, SymDim) else None,
    )


def _accesses(
    places: Iterable[tuple[object, Sequence[Scalar]]],
    along: tuple[set[int], set[int]],
    arguments: Mapping[int, int],
) -> tuple[Access, ...]:
    """Returns the accesses of pieces and lines, with loop variables `along`, to each argument."""
    found: dict[int, Access] = {}
    grows = [_Growth(variables) for variables in along]
    for buffer, indices in places:
        if not isinstance(buffer, Buffer) or id(buffer.root) not in arguments:
            continue
        pieces, lines = (_run(buffer, indices, growth) for growth in grows)
        number = arguments[id(buffer.root)]
        known = found.get(number)
        if known is not None:
            pieces = _longer(pieces, known.run_of_pieces)
            lines = _longer(lines, known.run_of_lines)
        found[number] = Access(number, buffer.size_bytes, pieces, lines)
    return tuple(found.values())


def _longer(a: Dim, b: Dim) -> Dim:
    return a if typical(a) >= typical(b) else b


def _run(buffer: Buffer, indices: Sequence[Scalar], growth: _Growth) -> Dim:
    """Returns the bytes within which a buffer's position grows with a variable; 0 if it never
    does.
    """
    for axis, index in enumerate(indices):
        if growth.of(index):
            inside = product(buffer.shape[axis:])
            return inside * element_bytes(buffer.dtype) if buffer.elements != 0 else 0
    return 0


def _independent(before: Stmt, phase: For) -> bool:
    """Whether a phase continues the same loop, peeled, and uses nothing that `before` has
    written.
    """
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
    combined = (s.buffer for s in walk(stmt) if isinstance(s, Store) and s.combiner)
    return _shared((*(load.source for _, load in reads(stmt)), *combined))


def _shared(buffers: Iterable[object]) -> dict[int, Buffer]:
    """Returns the buffers that threads share, by their identity."""
    return {
        id(b.root): b.root
        for b in buffers
        if isinstance(b, Buffer) and b.scope not in ("register", "scratch")
    }


class _Growth:
    """Decides which indices grow with variables; the inner of two fused loops starts over."""

    def __init__(self, variables: set[int]) -> None:
        self.variables = variables
        self.known: dict[int, bool] = {}

    def of(self, index: Scalar) -> bool:
        """Whether an index grows with the variables. It must stay alive; shared parts are tested
        once.
        """
        stack: list[tuple[Scalar, bool]] = [(index, False)]
        while stack:
            node, expanded = stack.pop()
            if id(node) in self.known:
                continue
            if id(node) in self.variables:
                self.known[id(node)] = True
            elif isinstance(node, Binary) and node.op == "mod":
                self.known[id(node)] = False
            elif not expanded:
                stack.append((node, True))
                stack.extend((c, False) for c in node.children)
            else:
                self.known[id(node)] = any(self.known[id(c)] for c in node.children)
        return self.known[id(index)]
