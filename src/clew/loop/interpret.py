"""Runs a loop nest with numpy, element by element: what every schedule of it must still compute.

Parallel, vector and unrolled loops run one iteration after another, but what makes those kinds of
loop wrong is asserted: that iterations of a parallel loop stay out of each other's elements, and
that nothing is read before it is set. An index outside of its buffer is an assertion too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from clew.ir.types import to_numpy
from clew.loop.ir import Block, Buffer, For, If, Nest, Prefetch, Stmt, Store, TileProduct
from clew.te.expr import INDEX, Binary, Checked, Imm, Index, Inlined, Load, Scalar, Select
from clew.te.interpret import COMBINE, apply

Array: TypeAlias = "np.ndarray[Any, Any]"
Element: TypeAlias = tuple[int, int]


def interpret(nest: Nest, inputs: Sequence[Array]) -> list[Array]:
    """Returns the outputs of a nest for its inputs, which may have another shape of the same size.

    Asserts that every access lies in its buffer, that what is read has been set, and that
    iterations of a parallel loop do not write what another one reads or writes.
    """
    run = _Run()
    for buffer, array in zip(nest.inputs, inputs, strict=True):
        assert array.size == math.prod(buffer.shape), f"{buffer} is given {array.shape}"
        run.memory[id(buffer)] = _Memory(array.reshape(buffer.shape), np.ones(buffer.shape, bool))
    with np.errstate(all="ignore"):
        run.statement(nest.body)
    for buffer in nest.outputs:
        assert run.of(buffer).is_set.all(), f"{buffer} is not set everywhere"
    return [run.of(b).values for b in nest.outputs]


@dataclass
class _Memory:
    """A buffer's elements, and which of them have been set."""

    values: Array
    is_set: Array


@dataclass
class _Touched:
    """Elements of shared memory that iterations of a parallel loop have used, and which one did."""

    iteration: int = -1
    written: dict[Element, int] = field(default_factory=dict)
    read: dict[Element, int] = field(default_factory=dict)


class _Run:
    def __init__(self) -> None:
        self.memory: dict[int, _Memory] = {}
        self.private: dict[int, Buffer] = {}
        self.loops: dict[int, int] = {}
        self.names: dict[int, str] = {}
        self.touched: _Touched | None = None
        self.stmt: Stmt | None = None
        self.memo: dict[int, Any] = {}

    def of(self, buffer: Buffer) -> _Memory:
        """Returns a buffer's memory, nothing of it set at first."""
        found = self.memory.get(id(buffer))
        if found is None and buffer.memory is not None:
            whole = self.of(buffer.memory)
            views = whole.values.reshape(buffer.shape), whole.is_set.reshape(buffer.shape)
            found = self.memory[id(buffer)] = _Memory(*views)
        if found is None:
            values = np.zeros(buffer.shape, to_numpy(buffer.dtype))
            found = self.memory[id(buffer)] = _Memory(values, np.zeros(buffer.shape, bool))
            if buffer.scope in ("scratch", "register"):
                self.private[id(buffer)] = buffer
        return found

    # --- statements ---

    def statement(self, stmt: Stmt) -> None:
        """Runs a statement."""
        match stmt:
            case Block():
                for child in stmt.stmts:
                    self.statement(child)
            case For():
                self._for(stmt)
            case If():
                self._begin(stmt)
                if self.value(stmt.cond):
                    self.statement(stmt.body)
            case Store():
                self._store(stmt)
            case TileProduct():
                self.statement(stmt.body)
            case Prefetch():
                pass  # a hint: any address will do

    def _begin(self, stmt: Stmt) -> None:
        self.stmt, self.memo = stmt, {}

    def _for(self, loop: For) -> None:
        outermost = loop.kind == "parallel" and self.touched is None
        if outermost:
            self.touched = _Touched()
        self.names[id(loop.index)] = loop.name
        for n in range(loop.extent):
            self.loops[id(loop.index)] = n
            if loop.kind == "parallel" and self.touched is not None:
                self.touched.iteration += 1
                for buffer in self.private.values():  # each thread has its own
                    self.of(buffer).is_set[...] = False
            self.statement(loop.body)
        self.loops.pop(id(loop.index), None)
        if outermost:
            self.touched = None

    def _store(self, stmt: Store) -> None:
        self._begin(stmt)
        at = self._element(stmt.buffer, stmt.indices)
        value = self.value(stmt.value)
        memory = self.of(stmt.buffer)
        if stmt.combiner:
            old = self._read(stmt.buffer, at)
            value = np.asarray(COMBINE[stmt.combiner](old, value), memory.values.dtype)
        memory.values[at] = value
        memory.is_set[at] = True
        if self.touched is not None and id(stmt.buffer) not in self.private:
            key, now = _element(stmt.buffer, at), self.touched.iteration
            other = self.touched.written.setdefault(key, now)
            assert other == now, self._say(f"writes {stmt.buffer.name}{list(at)} again")
            other = self.touched.read.get(key, now)
            assert other == now, self._say(f"writes {stmt.buffer.name}{list(at)}, read before")

    # --- values ---

    def value(self, expr: Scalar) -> Any:
        """Returns an expression's value. The branch of a select that is not taken is not run."""
        match expr:
            case Imm():
                return expr.value if expr.dtype == INDEX else apply(expr, [])
            case Index():
                return self._index(expr)
            case Inlined():
                return self.value(expr.value)
        found = self.memo.get(id(expr))
        if found is None:
            found = self.memo[id(expr)] = self._compute(expr)
        return found

    def _index(self, index: Index) -> int:
        value = self.loops.get(id(index))
        if value is None:
            assert index.extent == 1, self._say(f"uses loop variable {index.name} out of its loop")
            return 0
        return value

    def _compute(self, expr: Scalar) -> Any:
        match expr:
            case Select():
                return self.value(expr.a if self.value(expr.cond) else expr.b)
            case Load():
                return self._read(expr.source, self._element(expr.source, expr.indices))
            case Binary(op="and", dtype="bool"):
                return self.value(expr.a) and self.value(expr.b)
            case Checked():
                return self._checked(expr)
        args = [self.value(c) for c in expr.children]
        if expr.children[0].dtype == INDEX:
            args = [np.asarray(a, np.int64) for a in args]
        return apply(expr, args)[()]

    def _checked(self, expr: Checked) -> int:
        """Errors: I320 for an index out of range."""
        index, places = int(self.value(expr.value)), expr.places
        if not places.low <= index < places.count:
            raise places.error(index)
        return index + places.count if index < 0 else index

    def _element(self, buffer: Buffer, indices: Sequence[Scalar]) -> tuple[int, ...]:
        at = tuple(int(self.value(i)) for i in indices)
        inside = all(0 <= i < n for i, n in zip(at, buffer.shape, strict=True))
        assert inside, self._say(f"accesses {buffer} at {list(at)}")
        return at

    def _read(self, buffer: Buffer, at: tuple[int, ...]) -> Any:
        memory = self.of(buffer)
        assert memory.is_set[at], self._say(f"reads {buffer.name}{list(at)} before it is set")
        if self.touched is not None and id(buffer) not in self.private:
            key, now = _element(buffer, at), self.touched.iteration
            self.touched.read[key] = now
            other = self.touched.written.get(key, now)
            assert other == now, self._say(f"reads {buffer.name}{list(at)}, written elsewhere")
        return memory.values[at]

    def _say(self, what: str) -> str:
        values = ", ".join(f"{self.names[i]}={n}" for i, n in self.loops.items())
        match self.stmt:
            case Store() as store:
                place = f"{store.buffer.name}[{', '.join(map(str, store.indices))}]"
                text = f"{place} = {store.value}"
            case If() as guard:
                text = f"if {guard.cond}"
            case _:
                text = ""
        return f"{what} in `{text}` at {values}"


def _element(buffer: Buffer, at: tuple[int, ...]) -> Element:
    """Returns what is the same for all views of an element."""
    return id(buffer.root), sum(i * step for i, step in zip(at, buffer.strides, strict=True))
