"""A primitive that computes a stage for the next iteration during the current one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from clew.ir.types import memory_bytes
from clew.loop.affine import Simplifier
from clew.loop.ir import (
    Buffer,
    For,
    If,
    Nest,
    Prefetch,
    Stmt,
    Store,
    block,
    buffer_loads,
    map_expressions,
    number,
    reads,
    stores_in,
    transform,
    walk,
)
from clew.loop.primitives.common import primitive, rewrite_loops
from clew.loop.primitives.prefetch import (
    CACHE_LINE_BYTES,
    Step,
    check_lines,
    insert_shares,
    iterations,
)
from clew.support.dataclass import dataclass
from clew.support.errors import ScheduleError
from clew.te.expr import INDEX, Imm, Index, Load, Scalar, binary
from clew.te.walk import substitute


@primitive
def overlap(
    nest: Nest,
    simplifier: Simplifier,
    *,
    stage: str,
    ahead: str,
    at: str,
    lines: int = 0,
    distance: int = 0,
) -> Nest:
    """Computes a stage in loop `ahead` one iteration early, alternating between two buffers.

    Before: `for a: { for i: s[i] = ...; for p: use s }`
    After:  `for i: s[0, i] = ...  (of a = 0)`
            `for a: for p: { a share of s[(a + 1) % 2, i] = ... (of a + 1); use s[a % 2] }`

    Each iteration of `at`, a loop inside `ahead`, does an equal share of the work; the last
    iteration of `ahead` repeats its own. With `lines`, an iteration also prefetches that many cache
    lines of each operand, `distance` bytes beyond those that it reads.

    Errors: S001; S012 if `at` is not always executed inside `ahead`; S032 if the stage is not in
    scratch, is not one loop nest at the start of `ahead`, is read outside of `ahead`, or reads
    anything but inputs; S033 for more than 1024 `lines`.
    """
    check_lines(lines)

    def rewrite(found: For) -> Stmt:
        own, *rest = block(found.body).stmts
        stores = stores_in(own)
        buffers = {id(s.buffer): s.buffer for s in stores if s.stage == stage}
        outer, loop = _first_loop(own)
        if len(buffers) != 1 or len({id(s.buffer) for s in stores}) != 1 or loop is None:
            raise ScheduleError("S032", f"stage {stage!r} is not first in loop {ahead}")
        (buffer,) = buffers.values()
        steps = number(iterations(block(*rest), at), f"loops around {at}")
        later = [s for s in walk(block(*rest)) if isinstance(s, Store) and s.buffer is buffer]
        if buffer.scope != "scratch" or any(s.combiner for s in (*stores, *later)):
            raise ScheduleError("S032", f"stage {stage!r} is a reduction or not in scratch")
        if later:
            raise ScheduleError("S032", f"stage {stage!r} is not one loop nest in loop {ahead}")
        if _loads(nest.body, buffer) != _loads(found, buffer):
            raise ScheduleError("S032", f"stage {stage!r} is read outside of loop {ahead}")
        if not steps or any(isinstance(s, If) and iterations(s, at) for s in walk(found.body)):
            raise ScheduleError("S012", f"loop {at} is not inside loop {ahead}")
        written = {id(s.buffer.root) for s in walk(nest.body) if isinstance(s, Store)}
        if any(id(x.source.root) in written for _, x in reads(own)):
            raise ScheduleError("S032", f"stage {stage!r} reads values that this kernel computes")
        twice = _Twice(buffer, Buffer(buffer.name, (2, *buffer.shape), buffer.dtype, "scratch"))
        following = binary("add", found.index, Imm(1, INDEX))
        turn = binary("mod", following, Imm(2, INDEX))
        next_ = binary("min", following, Imm(found.extent - 1, INDEX))
        work = _Work(found.index, outer, loop, twice, simplifier)
        share = _Share(work, next_, following, turn, steps, lines, distance)
        body = twice.read(block(*rest), binary("mod", found.index, Imm(2, INDEX)))
        body = insert_shares(body, at, Step(), share, simplifier)
        first = work.of(Imm(0, INDEX), Imm(0, INDEX), own)
        return block(first, replace(found, body=body))

    return rewrite_loops(nest, ahead, rewrite)


def _first_loop(stmt: Stmt) -> tuple[list[Index], For | None]:
    """Returns the outermost loop with several iterations, and the indices of the loops around it,
    which have one iteration each and contain nothing else. None if there is no such loop.
    """
    outer: list[Index] = []
    while isinstance(stmt, For):
        if stmt.extent > 1:
            return outer, stmt
        outer.append(stmt.index)
        inside = block(stmt.body).stmts
        if stmt.extent != 1 or len(inside) != 1:
            break
        (stmt,) = inside
    return [], None


def _loads(stmt: Stmt, buffer: Buffer) -> int:
    """Returns how many times statements read a buffer."""
    return sum(load.source is buffer for _, load in reads(stmt))


@dataclass(frozen=True)
class _Twice:
    """A buffer, and a buffer that holds it for two iterations."""

    once: Buffer
    both: Buffer

    def read(self, stmt: Stmt, turn: Scalar) -> Stmt:
        """Returns the statement reading the buffer of one turn."""

        def move(expr: Scalar) -> Scalar:
            found: dict[int, Scalar] = {
                id(x): Load(self.both, (turn, *x.indices))
                for x in buffer_loads(expr)
                if x.source is self.once
            }
            return substitute(expr, found) if found else expr

        return map_expressions(stmt, move)

    def write(self, stmt: Stmt, turn: Scalar) -> Stmt:
        """Returns the statement writing the buffer of one turn."""

        def visit(node: Stmt) -> Stmt | None:
            if not isinstance(node, Store):
                return None
            return replace(node, buffer=self.both, indices=(turn, *node.indices))

        return transform(stmt, visit)


@dataclass(frozen=True)
class _Work:
    """The statements that compute the stage for an iteration: a loop with several iterations,
    inside loops with one iteration each, whose indices are `outer`.
    """

    ahead: Index
    outer: Sequence[Index]
    loop: For
    twice: _Twice
    simplifier: Simplifier

    def of(self, iteration: Scalar, turn: Scalar, stmt: Stmt) -> Stmt:
        """Returns a part of the work for an iteration."""
        return self.twice.write(self.substituted(stmt, {id(self.ahead): iteration}), turn)

    def substituted(self, stmt: Stmt, values: dict[int, Scalar]) -> Stmt:
        """Returns a statement with loop variables replaced."""
        return map_expressions(stmt, lambda e: self.simplifier.simplify(substitute(e, values)))


@dataclass(frozen=True)
class _Share:
    """The share of each of `steps` steps in the work for the next iteration."""

    work: _Work
    next: Scalar
    following: Scalar
    turn: Scalar
    steps: int
    lines: int
    distance: int

    def of(self, step: Step, body: Stmt, simplifier: Simplifier) -> list[Stmt]:
        """Returns the statements of one step."""
        loop = self.work.loop
        each = math.ceil(loop.extent / self.steps)
        start = binary("mul", step.number, Imm(each, INDEX))
        if not simplifier.never_above(start, loop.extent - each):
            start = binary("min", start, Imm(loop.extent - each, INDEX))
        part = loop.index.part(loop.name, each)
        values: dict[int, Scalar] = {id(index): Imm(0, INDEX) for index in self.work.outer}
        values[id(loop.index)] = binary("add", start, part)
        here = self.work.substituted(loop.body, values)
        made = self.work.of(self.next, self.turn, For(part, "unroll", here))
        return [*self._requests(start), made]

    def _requests(self, start: Scalar) -> list[Stmt]:
        """Returns prefetches of the memory that a later share reads."""
        if not self.lines:
            return []
        body = self.work.loop.body
        inner = [*self.work.outer, *(n.index for n in walk(body) if isinstance(n, For))]
        values: dict[int, Scalar] = {id(i): Imm(0, INDEX) for i in inner}
        values |= {id(self.work.loop.index): start, id(self.work.ahead): self.following}
        made: list[Stmt] = []
        for store in walk(body):
            if not isinstance(store, Store):
                continue
            for load in {id(x.source): x for x in buffer_loads(store.value)}.values():
                source = load.source
                width = memory_bytes(source.dtype)
                *outer, last = (substitute(i, values) for i in load.indices)
                for n in range(self.lines):
                    # Counted from the last axis, past its end if needed: any address is valid for a
                    # prefetch.
                    at = (self.distance + n * CACHE_LINE_BYTES) // width
                    index = binary("add", last, Imm(at, INDEX))
                    made.append(Prefetch(source, (*outer, index), store.stage))
        return made
