"""Further division of kernels whose outermost loops have fewer parts than a machine has cores."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from clew.cost.policy.threads import PARTS_FOR_THREADS
from clew.ir.dims import Dim, at_least, typical
from clew.loop import bounds
from clew.loop.affine import Linear, Simplifier, contains
from clew.loop.ir import (
    Block,
    Buffer,
    For,
    If,
    Stmt,
    Store,
    TileProduct,
    parallel_lines,
    reads,
    statements,
    walk,
)
from clew.loop.phase_cost import cost_fs, ns_of
from clew.loop.schedule import Schedule
from clew.machine.costs import Costs
from clew.support.errors import ScheduleError
from clew.te import roles
from clew.te.expr import INDEX, Imm, Index, Scalar, binary, size

_OWN = ("register", "scratch")


def share_work(schedule: Schedule, costs: Costs) -> None:
    """Makes loops parallel until each phase has `PARTS_FOR_THREADS` parts, or as many as are worth
    claiming: an outermost loop, then the loops that are the entire body of a parallel one.

    A loop is divided only if its iterations provably write different elements, and read none that
    another iteration writes. Results do not depend on the number of threads, since the loops stay
    the same.
    """
    for name in dict.fromkeys(s.name for s in schedule.nest.body.stmts if isinstance(s, For)):
        while _lacks_parts(schedule, name, costs) and _divide(schedule, name, costs):
            pass


def _phases(schedule: Schedule, name: str) -> list[For]:
    """Returns the outermost loops of a name; there are several if the loop was peeled."""
    return [s for s in schedule.nest.body.stmts if isinstance(s, For) and s.name == name]


def _lacks_parts(schedule: Schedule, name: str, costs: Costs) -> bool:
    phases = _phases(schedule, name)
    if any(loop.kind not in ("serial", "parallel") for loop in phases):
        return False
    worth = int(sum(ns_of(cost_fs(loop, costs)) for loop in phases) / costs.least_chunk)
    parts = 0
    for loop in phases:
        lines = sum(typical(line.size) for line in parallel_lines(loop)) or 1
        parts += typical(loop.size) * lines if loop.kind == "parallel" else 1
    return parts < min(worth, PARTS_FOR_THREADS)


def _divide(schedule: Schedule, name: str, costs: Costs) -> bool:
    """Makes one more loop parallel. Returns whether one was found."""
    phases = _phases(schedule, name)
    if any(loop.kind == "serial" for loop in phases):
        return _try(schedule, phases, lambda: schedule.parallel(name))
    lines = [line for loop in phases for line in parallel_lines(loop)]
    if not lines:
        inner = [s for loop in phases for s in statements(loop.body)]
        loops = [s for s in inner if isinstance(s, For) and s.kind == "serial"]
        if len(loops) < len(inner) or len({loop.name for loop in loops}) != 1:
            return False
        return _try(schedule, loops, lambda: schedule.parallel(loops[0].name))
    inside = [line.body for line in lines]
    deeper = [s for s in inside if isinstance(s, For) and s.kind == "serial"]
    if len(deeper) < len(inside) or len({loop.name for loop in deeper}) != 1:
        return False
    name, run = deeper[0].name, 1
    if any(line.size != 1 for line in lines):
        run = _run_worth_claiming(deeper, costs)
    if not run:
        return False

    def step() -> None:
        outer = schedule.split(name, run)[0] if run > 1 else name
        schedule.fuse(lines[0].name, outer)

    return _try(schedule, deeper, step)


def _run_worth_claiming(loops: Sequence[For], costs: Costs) -> int:
    """Returns the number of iterations of these loops that are worth claiming together; 0 if none
    divides all of them. In a fused loop, positions cost a division, which is noticeable in short
    iterations.
    """
    shortest = min(ns_of(cost_fs(loop.body, costs)) for loop in loops)
    if shortest >= costs.least_chunk:
        return 1
    if shortest <= 0 or not all(isinstance(loop.size, int) for loop in loops):
        return 0
    extent = math.gcd(*(loop.extent for loop in loops))
    least = math.ceil(costs.least_chunk / shortest)
    return next((n for n in range(least, extent) if extent % n == 0), 0)


def _try(schedule: Schedule, loops: Sequence[For], step: Callable[[], object]) -> bool:
    """Takes a step that makes loops parallel, if their iterations are independent."""
    if not all(_is_independent(loop) for loop in loops):
        return False
    before = len(schedule.steps)
    try:
        step()
    except ScheduleError:
        while len(schedule.steps) > before:
            schedule.undo()
        return False
    return True


def _is_independent(loop: For) -> bool:
    """Whether no iteration of a loop uses an element that another one writes."""
    if loop.size == 1:
        return True
    if loop.index.repeats or loop.index.role == roles.IN_ORDER:
        return False
    if not _has_own_memory(loop.body, loop.index, set()):
        return False
    simplifier = Simplifier()
    inner = {s.index for s in walk(loop.body) if isinstance(s, For)}
    written = {s.buffer.root for s in walk(loop.body) if isinstance(s, Store)}
    for root in written:
        if root.scope in _OWN:
            continue
        accesses = list(_accesses(loop.body, root))
        if not _are_apart(accesses, loop.index, inner, simplifier):
            return False
    return True


def _has_own_memory(stmt: Stmt, index: Index, filled: set[Buffer]) -> bool:
    """Whether a statement reads only those parts of a thread's memory that it filled before, at
    places that are the same in all iterations of the loop over `index`. Adds the buffers that it
    fills in each iteration to `filled`.
    """
    match stmt:
        case Block():
            return all(_has_own_memory(inner, index, filled) for inner in stmt.stmts)
        case If() if contains(stmt.cond, index):
            return _has_own_memory(stmt.body, index, set(filled))
        case For() | If() | TileProduct():
            return _has_own_memory(stmt.body, index, filled)
        case Store():
            root = stmt.buffer.root
            read = [(load.source.root, load.indices) for load in stmt.loads]
            read += [(root, ())] if stmt.combiner else []
            if any(b.scope in _OWN and b not in filled for b, _ in read):
                return False
            places = [places for b, places in read if b.scope in _OWN]
            if root.scope in _OWN:
                filled.add(root)
                places.append(stmt.indices)
            return not any(contains(place, index) for indices in places for place in indices)
    return True


def _accesses(body: Stmt, root: Buffer) -> Iterator[tuple[Buffer, Sequence[Scalar]]]:
    """Yields the positions at which statements write or read a buffer."""
    for stmt in walk(body):
        if isinstance(stmt, Store) and stmt.buffer.root is root:
            yield stmt.buffer, stmt.indices
    for _, load in reads(body):
        if load.source.root is root:
            yield load.source, load.indices


def _are_apart(
    accesses: Sequence[tuple[Buffer, Sequence[Scalar]]],
    index: Index,
    inner: set[Index],
    simplifier: Simplifier,
) -> bool:
    """Whether different iterations access different elements: along one axis, or in the order of
    memory, each iteration has a range of its own.
    """
    if len({buffer.shape for buffer, _ in accesses}) != 1:
        return False
    axes = zip(*(indices for _, indices in accesses), strict=True)
    if any(
        _have_ranges([simplifier.linear(i) for i in axis], index, inner, simplifier)
        for axis in axes
    ):
        return True
    flat = [simplifier.flatten(simplifier.linear(_position(*access))) for access in accesses]
    return _have_ranges(flat, index, inner, simplifier)


def _position(buffer: Buffer, indices: Sequence[Scalar]) -> Scalar:
    total: Scalar = Imm(0, INDEX)
    for index, stride in zip(indices, buffer.strides, strict=True):
        total = binary("add", total, binary("mul", index, size(stride)))
    return total


def _have_ranges(
    forms: Sequence[Linear], index: Index, inner: set[Index], simplifier: Simplifier
) -> bool:
    """Whether all positions are `part * index`, plus the same terms of outer loops, plus numbers
    that differ by less than `part`.
    """
    part, starts = forms[0].coefficient(index), set[frozenset[tuple[int, Dim]]]()
    lows, highs = list[bounds.Bound](), list[bounds.Bound]()
    for form in forms:
        rest = form.without(index)
        if form.coefficient(index) != part or rest.depends_on(index):
            return False
        inside = tuple(term for term in rest.terms if not inner.isdisjoint(term[0].variables))
        starts.add(frozenset((id(atom), n) for atom, n in rest.terms if (atom, n) not in inside))
        low, high = simplifier.range_of(Linear(inside, rest.const))
        lows.append(low)
        highs.append(high)
    facts = simplifier.facts(forms[0])
    return len(starts) == 1 and all(
        at_least(bounds.difference(part, bounds.difference(high, low)), 1, facts)
        for low in dict.fromkeys(lows)
        for high in dict.fromkeys(highs)
    )
