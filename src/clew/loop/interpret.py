"""Interprets a loop nest element by element. Every schedule of a nest must compute these results.

Parallel, vector and unrolled loops run one iteration after another. Assertions check that no
iteration of a parallel loop uses an element that another one writes, that every element is set
before it is read, and that every index is inside its buffer. Only loops over tiles that overlap
(those with facts, see `split`) may write an element again, with an equal value.

A nest with sizes that a call brings is interpreted at given sizes (`loop.sizes.at_sizes`).

Block loops run like parallel loops. The threads of a block run one after another from barrier to
barrier; between two barriers, no thread may use an element that another one writes. Shared memory
is unset when a block begins.

Each statement is translated once to a Python function, which runs for every element.
`scalar_code.py` translates the expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any, Final, TypeAlias

import numpy as np

from clew.ir.types import to_numpy
from clew.loop.ir import (
    Barrier,
    Block,
    Buffer,
    For,
    If,
    Nest,
    Prefetch,
    Scope,
    Stmt,
    Store,
    TileProduct,
    walk,
)
from clew.loop.scalar_code import COMBINE, Code, Expressions
from clew.te.expr import Load, Scalar

Array: TypeAlias = "np.ndarray[Any, Any]"
Step: TypeAlias = "Callable[[], object]"
Run: TypeAlias = "Callable[[], Iterator[None]]"
"""Runs a statement with barriers; yields at each barrier."""


def interpret(nest: Nest, inputs: Sequence[Array]) -> list[Array]:
    """Returns the outputs of a nest for its inputs, which may have another shape of the same size.

    Asserts that every access is inside its buffer, that every element is set before it is read, and
    that no iteration of a parallel loop writes an element that another one reads or writes.
    """
    run = _Run()
    for buffer, array in zip(nest.inputs, inputs, strict=True):
        assert array.size == prod(buffer.shape), f"{buffer}: the input has shape {array.shape}"
        run.memory[id(buffer)] = _Memory(array.reshape(-1), bytearray(b"\1" * array.size))
    step = run.statement(nest.body, _Place())
    with np.errstate(all="ignore"):
        step()
    for buffer in nest.outputs:
        assert 0 not in run.of(buffer).is_set, f"{buffer} is not set everywhere"
    return [run.of(b).values.reshape(b.shape) for b in nest.outputs]


_PARALLEL: Final = ("parallel", "block")
# In the table of reading threads: several threads.
_SEVERAL: Final = -2
_ENDED: Final = object()


class _Memory:
    """The elements of a buffer and its views, flat, and flags for those that have been set.

    `written` and `read` map elements to the iteration of a parallel loop that used them.
    `of_threads` holds the same two maps for the threads of a block since the last barrier.
    """

    def __init__(self, values: Array, is_set: bytearray, scope: Scope = "input") -> None:
        self.values = values
        self.is_set = is_set
        self.private = scope in ("scratch", "register")
        self.shared = scope == "shared"
        self.written: dict[int, int] = {}
        self.read: dict[int, int] = {}
        self.of_threads: tuple[dict[int, int], dict[int, int]] = {}, {}

    def save(self) -> tuple[Array, bytearray]:
        """Returns a copy of the elements and their flags."""
        return self.values.copy(), bytearray(self.is_set)

    def restore(self, saved: tuple[Array, bytearray] | None) -> None:
        """Restores saved elements; with None, unsets all."""
        if saved is None:
            self.is_set[:] = bytes(len(self.is_set))
        else:
            self.values[:], self.is_set[:] = saved


@dataclass(frozen=True)
class _Place:
    """The place of a statement: the loops around it, each with its current iteration."""

    loops: tuple[tuple[For, list[int]], ...] = ()
    stmt: Stmt | None = None
    parallel: bool = False
    threads: bool = False

    @property
    def overlaps(self) -> bool:
        """Whether iterations of the parallel loops may compute an element again."""
        return any(loop.kind in _PARALLEL and loop.index.repeats for loop, _ in self.loops)

    def say(self, what: str) -> str:
        """Returns a message with the statement and the iteration."""
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
        self.iteration = [-1]  # of the outermost parallel loop, counting those inside it
        self.thread = [-1]  # of a block

    def of(self, buffer: Buffer) -> _Memory:
        """Returns a buffer's memory; creates it with no element set."""
        if buffer.memory is not None:
            return self.of(buffer.memory)
        found = self.memory.get(id(buffer))
        if found is None:
            size = prod(buffer.numbers)
            values = np.zeros(size, to_numpy(buffer.dtype))
            found = self.memory[id(buffer)] = _Memory(values, bytearray(size), buffer.scope)
        return found

    # --- statements ---

    def statement(self, stmt: Stmt, place: _Place) -> Step:
        """Returns the function that runs a statement."""
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
                return _nothing  # a hint, valid for any address
            case Barrier():
                raise AssertionError(place.say("a barrier outside thread loops"))

    def _for(self, loop: For, place: _Place) -> Step:
        if loop.kind == "thread" and not place.threads:
            return self._threads(loop, place)
        at, extent = [0], loop.extent
        parallel = loop.kind in _PARALLEL
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
            private = [m for m in memory.values() if m.private or m.shared]
            # Each thread, or block, has its own. Lines start with what their piece has set.
            before = [bytes(len(m.is_set)) if outermost else bytes(m.is_set) for m in private]
            for n in range(extent):
                at[0] = n
                iteration[0] += 1
                for each, is_set in zip(private, before, strict=True):
                    each.is_set[:] = is_set
                body()
            if not outermost:
                for each, is_set in zip(private, before, strict=True):
                    each.is_set[:] = is_set

        return in_parallel if parallel else serial

    # --- threads of a block ---

    def _threads(self, loop: For, place: _Place) -> Step:
        """Returns the function that runs perfectly nested thread loops: all threads from barrier to
        barrier.
        """
        chain: list[tuple[For, list[int]]] = [(loop, [0])]
        stmt = loop.body
        while isinstance(stmt, For) and stmt.kind == "thread":
            chain.append((stmt, [0]))
            stmt = stmt.body
        inside = replace(place, loops=(*place.loops, *chain), threads=True)
        body, memory, thread = self._run(stmt, inside), self.memory, self.thread
        places = list(product(*(range(each.extent) for each, _ in chain)))

        def run() -> None:
            private = [m for m in memory.values() if m.private]
            saved: dict[int, list[tuple[Array, bytearray]]] = {}
            left = {number: body() for number in range(len(places))}
            while left:
                for each in memory.values():
                    each.of_threads = {}, {}
                for number in list(left):
                    thread[0] = number
                    for (_, at), n in zip(chain, places[number], strict=True):
                        at[0] = n
                    for m, kept in zip(
                        private, saved.get(number, [None] * len(private)), strict=True
                    ):
                        m.restore(kept)
                    if next(left[number], _ENDED) is _ENDED:
                        del left[number]
                    else:
                        saved[number] = [m.save() for m in private]
                waiting = len(left)
                assert waiting in (0, len(places)), inside.say("threads miss a barrier")
            thread[0] = -1

        return run

    def _run(self, stmt: Stmt, place: _Place) -> Run:
        """Returns the function that runs a statement from barrier to barrier."""
        match stmt:
            case Barrier():
                return lambda: iter((None,))
            case Block() if _has_barrier(stmt):
                return _each_in_turn([self._run(s, place) for s in stmt.stmts])
            case For() if _has_barrier(stmt):
                return self._for_with_barriers(stmt, place)
            case If() if _has_barrier(stmt):
                return self._if_with_barriers(stmt, place)
        step = self.statement(stmt, place)

        def whole() -> Iterator[None]:
            step()
            yield from ()

        return whole

    def _for_with_barriers(self, loop: For, place: _Place) -> Run:
        at, extent = [0], loop.extent
        body = self._run(loop.body, replace(place, loops=(*place.loops, (loop, at))))

        def run() -> Iterator[None]:
            for n in range(extent):
                at[0] = n
                for _ in body():
                    yield
                    at[0] = n  # other threads have changed it since

        return run

    def _if_with_barriers(self, stmt: If, place: _Place) -> Run:
        body, inside = self._run(stmt.body, place), replace(place, stmt=stmt)
        code = self._expressions(inside, stmt.cond)
        holds, start = code.of(stmt.cond), code.start

        def run() -> Iterator[None]:
            start()
            if holds():
                yield from body()

        return run

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
        shared = shared and not memory.shared
        overlaps = shared and combine is None and place.overlaps
        of_threads = place.threads and not memory.private
        thread = self.thread

        def run() -> None:
            start()
            at = element()
            new = value()
            before = values[at] if overlaps else None
            values[at] = new if combine is None else combine(old_at(at), new)
            is_set[at] = 1
            if of_threads:
                written, read = memory.of_threads
                now = thread[0]
                if written.setdefault(at, now) != now or read.get(at, now) != now:
                    what = f"writes {name}{_indices(stmt.buffer, at)}, used by another thread"
                    raise AssertionError(place.say(f"{what} since the last barrier"))
            if shared:
                now = iteration[0]
                first = memory.written.setdefault(at, now) == now
                if not first and before is not None and values[at].tobytes() == before.tobytes():
                    memory.written[at] = now
                    return  # whoever read it has read this value
                if not first:
                    other = ", with another value" if overlaps else ""
                    raise AssertionError(
                        place.say(f"writes {name}{_indices(stmt.buffer, at)} again{other}")
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

        thread = self.thread

        def read_among_threads(at: int) -> Any:
            written, readers = memory.of_threads
            now = thread[0]
            if written.get(at, now) != now:
                what = f"reads {name}{_indices(buffer, at)}, written by another thread"
                raise AssertionError(place.say(f"{what} since the last barrier"))
            if readers.setdefault(at, now) != now:
                readers[at] = _SEVERAL
            return read(at) if memory.shared else read_shared(at)

        if memory.private or not place.parallel:
            return read
        if place.threads:
            return read_among_threads
        return read if memory.shared else read_shared


def _has_barrier(stmt: Stmt) -> bool:
    return any(isinstance(node, Barrier) for node in walk(stmt))


def _each_in_turn(runs: Sequence[Run]) -> Run:
    def run() -> Iterator[None]:
        for each in runs:
            yield from each()

    return run


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
    """Returns the function that computes the flat index of an element and asserts that it is inside
    the buffer.
    """
    axes = list(zip(indices, buffer.numbers, _strides(buffer), strict=True))

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
    return [
        at // step % extent for step, extent in zip(_strides(buffer), buffer.numbers, strict=True)
    ]


def _strides(buffer: Buffer) -> list[int]:
    shape = buffer.numbers
    return [prod(shape[axis + 1 :]) for axis in range(len(shape))]
