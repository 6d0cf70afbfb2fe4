"""Runs a loop nest with numpy, element by element: what every schedule of it must still compute.

Parallel, vector and unrolled loops run one iteration after another, but what makes those kinds of
loop wrong is asserted: that iterations of a parallel loop stay out of each other's elements, and
that nothing is read before it is set. An index outside of its buffer is an assertion too.

Each statement becomes a Python function once, which then runs for every element; `scalar_code.py`
does the same for the expressions in it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeAlias

import numpy as np

from clew.ir.types import to_numpy
from clew.loop.ir import Block, Buffer, For, If, Nest, Prefetch, Stmt, Store, TileProduct
from clew.loop.scalar_code import COMBINE, Code, Expressions
from clew.te.expr import Load, Scalar

Array: TypeAlias = "np.ndarray[Any, Any]"
Step: TypeAlias = "Callable[[], object]"


def interpret(nest: Nest, inputs: Sequence[Array]) -> list[Array]:
    """Returns the outputs of a nest for its inputs, which may have another shape of the same size.

    Asserts that every access lies in its buffer, that what is read has been set, and that
    iterations of a parallel loop do not write what another one reads or writes.
    """
    run = _Run()
    for buffer, array in zip(nest.inputs, inputs, strict=True):
        assert array.size == prod(buffer.shape), f"{buffer} is given {array.shape}"
        run.memory[id(buffer)] = _Memory(array.reshape(-1), bytearray(b"\1" * array.size))
    step = run.statement(nest.body, _Place())
    with np.errstate(all="ignore"):
        step()
    for buffer in nest.outputs:
        assert 0 not in run.of(buffer).is_set, f"{buffer} is not set everywhere"
    return [run.of(b).values.reshape(b.shape) for b in nest.outputs]


class _Memory:
    """The elements of a buffer and its views, one after another, and which of them have been set.

    `written` and `read` are elements that iterations of a parallel loop have used, and which did.
    """

    def __init__(self, values: Array, is_set: bytearray, private: bool = False) -> None:
        self.values = values
        self.is_set = is_set
        self.private = private
        self.written: dict[int, int] = {}
        self.read: dict[int, int] = {}


@dataclass(frozen=True)
class _Place:
    """Where a statement is: the loops around it, with the number that each is at."""

    loops: tuple[tuple[For, list[int]], ...] = ()
    stmt: Stmt | None = None
    parallel: bool = False

    def say(self, what: str) -> str:
        """Returns what is wrong, in which statement and iteration."""
        values = ", ".join(f"{loop.name}={at[0]}" for loop, at in self.loops)
        match self.stmt:
            case Store() as store:
                place = f"{store.buffer.name}[{', '.join(map(str, store.indices))}]"
                text = f"{place} = {store.value}"
            case If() as guard:
                text = f"if {guard.cond}"
            case _:
                text = ""
        return f"{what} in `{text}` at {values}"


class _Run:
    def __init__(self) -> None:
        self.memory: dict[int, _Memory] = {}
        self.iteration = [-1]  # of the outermost parallel loop and those in it

    def of(self, buffer: Buffer) -> _Memory:
        """Returns a buffer's memory, nothing of it set at first."""
        if buffer.memory is not None:
            return self.of(buffer.memory)
        found = self.memory.get(id(buffer))
        if found is None:
            size, private = prod(buffer.shape), buffer.scope in ("scratch", "register")
            values = np.zeros(size, to_numpy(buffer.dtype))
            found = self.memory[id(buffer)] = _Memory(values, bytearray(size), private)
        return found

    # --- statements ---

    def statement(self, stmt: Stmt, place: _Place) -> Step:
        """Returns what runs a statement."""
        match stmt:
            case Block():
                return _one_after_another([self.statement(s, place) for s in stmt.stmts])
            case For():
                return self._for(stmt, place)
            case If():
                return self._if(stmt, place)
            case Store():
                return self._store(stmt, replace(place, stmt=stmt))
            case TileProduct():
                return self.statement(stmt.body, place)
            case Prefetch():
                return _nothing  # a hint: any address will do

    def _for(self, loop: For, place: _Place) -> Step:
        at, extent = [0], loop.extent
        parallel = loop.kind == "parallel"
        inside = replace(
            place, loops=(*place.loops, (loop, at)), parallel=place.parallel or parallel
        )
        body = self.statement(loop.body, inside)
        outermost, memory, iteration = not place.parallel, self.memory, self.iteration

        def serial() -> None:
            for n in range(extent):
                at[0] = n
                body()

        def in_parallel() -> None:
            if outermost:
                iteration[0] = -1
                for each in memory.values():
                    each.written, each.read = {}, {}
            private = [m for m in memory.values() if m.private]
            for n in range(extent):
                at[0] = n
                iteration[0] += 1
                for each in private:  # each thread has its own
                    each.is_set[:] = bytes(len(each.is_set))
                body()

        return in_parallel if parallel else serial

    def _if(self, stmt: If, place: _Place) -> Step:
        body, inside = self.statement(stmt.body, place), replace(place, stmt=stmt)
        code = self._expressions(inside, stmt.cond)
        holds, start = code.of(stmt.cond), code.start

        def run() -> None:
            start()
            if holds():
                body()

        return run

    def _expressions(self, place: _Place, *roots: Scalar) -> Expressions:
        def load(node: Load, indices: Sequence[Code]) -> Code:
            return self._load(node.source, indices, place)

        at = {id(loop.index): at for loop, at in place.loops}
        return Expressions(roots, at, load, place.say)

    def _store(self, stmt: Store, place: _Place) -> Step:
        code = self._expressions(place, *stmt.indices, stmt.value)
        element = _element(stmt.buffer, [code.of(i) for i in stmt.indices], place)
        value, start = code.of(stmt.value), code.start
        memory, name = self.of(stmt.buffer), stmt.buffer.name
        values, is_set = memory.values, memory.is_set
        combine = COMBINE[stmt.combiner] if stmt.combiner else None
        old_at = self._read(stmt.buffer, place)
        iteration, shared = self.iteration, place.parallel and not memory.private

        def run() -> None:
            start()
            at = element()
            new = value()
            values[at] = new if combine is None else combine(old_at(at), new)
            is_set[at] = 1
            if shared:
                now = iteration[0]
                if memory.written.setdefault(at, now) != now:
                    raise AssertionError(
                        place.say(f"writes {name}{_indices(stmt.buffer, at)} again")
                    )
                if memory.read.get(at, now) != now:
                    what = f"writes {name}{_indices(stmt.buffer, at)}, read before"
                    raise AssertionError(place.say(what))

        return run

    # --- elements ---

    def _load(self, buffer: Buffer, indices: Sequence[Code], place: _Place) -> Code:
        element, read = _element(buffer, indices, place), self._read(buffer, place)
        return lambda: read(element())

    def _read(self, buffer: Buffer, place: _Place) -> Callable[[int], Any]:
        memory, name, iteration = self.of(buffer), buffer.name, self.iteration
        values, is_set = memory.values, memory.is_set

        def read(at: int) -> Any:
            if not is_set[at]:
                what = f"reads {name}{_indices(buffer, at)} before it is set"
                raise AssertionError(place.say(what))
            return values[at]

        def read_shared(at: int) -> Any:
            now = iteration[0]
            found = read(at)
            memory.read[at] = now
            if memory.written.get(at, now) != now:
                what = f"reads {name}{_indices(buffer, at)}, written elsewhere"
                raise AssertionError(place.say(what))
            return found

        return read_shared if place.parallel and not memory.private else read


def _nothing() -> None:
    pass


def _one_after_another(steps: Sequence[Step]) -> Step:
    if len(steps) == 1:
        return steps[0]

    def run() -> None:
        for step in steps:
            step()

    return run


def _element(buffer: Buffer, indices: Sequence[Code], place: _Place) -> Callable[[], int]:
    """Returns what tells where an element lies, and asserts that it is one of the buffer's."""
    axes = list(zip(indices, buffer.shape, buffer.strides, strict=True))

    def outside() -> AssertionError:
        at = [int(index()) for index in indices]
        return AssertionError(place.say(f"accesses {buffer} at {at}"))

    def of_one() -> int:
        at = int(first())
        if not 0 <= at < extent:
            raise outside()
        return at

    def of_any() -> int:
        at = 0
        for index, count, step in axes:
            i = int(index())
            if not 0 <= i < count:
                raise outside()
            at += i * step
        return at

    if len(axes) == 1:
        ((first, extent, _),) = axes
        return of_one
    return of_any


def _indices(buffer: Buffer, at: int) -> list[int]:
    return [at // step % extent for step, extent in zip(buffer.strides, buffer.shape, strict=True)]
