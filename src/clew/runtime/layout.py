"""The part of the driver's tables that is the same at all sizes of a segment's buffers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np

from clew.codegen.driver import driver as native
from clew.runtime.grid import phases
from clew.runtime.plan import BufferKind, BufferRef, Flow, Step
from clew.support.dataclass import dataclass

_Rows: TypeAlias = "list[tuple[int, int, int]]"


class SymbolTable(Protocol):
    """The addresses of compiled functions."""

    def address(self, symbol: str) -> int:
        """Returns the address of a function."""
        ...


@dataclass(frozen=True)
class SizedRef:
    """An argument of an entry whose position depends on sizes."""

    entry: int
    number: int
    ref: BufferRef


class Layout:
    """The places of a segment's arguments and steps in the driver's tables.

    Each of its entries, a step or control flow, has a range of *slots* in the table of arguments:
    its arguments, then the sizes that its kernel takes, then the address of the record of its
    checks. Each phase of a kernel is a *driver step*, and so is each step of control flow. A
    `Context` adds the addresses of the tables and buffers to the offsets here.
    """

    def __init__(self, entries: Sequence[Step | Flow], n_inputs: int) -> None:
        """`entries` may be those of a plan or of a template, which differ in numbers only."""
        self.entries = tuple(entries)
        self.n_inputs = n_inputs
        # By step: its position among the entries.
        self.places = [place for place, e in enumerate(self.entries) if isinstance(e, Step)]
        grouped = [[] if isinstance(e, Flow) else phases(e.code.entries) for e in self.entries]
        counts = [
            1 if isinstance(e, Flow) else len(own)
            for e, own in zip(self.entries, grouped, strict=True)
        ]
        # By entry: its first driver step, and its first slot; then the end of the last.
        self.starts = [0, *itertools.accumulate(counts)]
        self.first_args = [0, *itertools.accumulate(map(_n_slots, self.entries))]
        symbols = [entry.symbol for own in grouped for phase in own for entry in phase]
        self.symbols = tuple(dict.fromkeys(symbols))
        self._functions: tuple[SymbolTable, np.ndarray] | None = None
        self._lay_out_references()
        self._lay_out_steps()

    @property
    def n_steps(self) -> int:
        """The number of driver steps."""
        return self.starts[-1]

    @property
    def n_records(self) -> int:
        """The number of steps that check indices."""
        return len(self.record_slots)

    def functions(self, library: SymbolTable) -> np.ndarray:
        """Returns the addresses of the functions of `symbols`, i64[n]."""
        if self._functions is None or self._functions[0] is not library:
            addresses = [library.address(symbol) for symbol in self.symbols]
            self._functions = library, np.array(addresses, np.int64)
        return self._functions[1]

    def _lay_out_references(self) -> None:
        constants: _Rows = []
        arena: _Rows = []
        patches: _Rows = []
        # References whose position depends on sizes: their entry and number there.
        self.sized: list[SizedRef] = []
        # Slots of arena buffers, and rows of `patches`, each with a number in `sized`.
        self.sized_slots: list[tuple[int, int]] = []
        self.sized_patches: list[tuple[int, int]] = []
        # References to moving buffers, by slot, each with a number in `sized` or -1.
        self.moved: list[tuple[int, BufferRef, int]] = []
        # By entry: the arguments that differ in each call, as number and row of `patches`.
        self.bases: dict[int, list[tuple[int, int]]] = {}
        for place, entry in enumerate(self.entries):
            for number, ref in enumerate(entry.args):
                slot, offset = self.first_args[place] + number, ref.offset_bytes
                sized = -1 if isinstance(ref.sized_bytes, int) else len(self.sized)
                if sized >= 0:
                    self.sized.append(SizedRef(place, number, ref))
                if ref.kind is BufferKind.CONSTANT:
                    constants.append((slot, ref.index, offset))
                elif ref.kind is BufferKind.ARENA:
                    arena.append((slot, ref.index, offset))
                    if sized >= 0:
                        self.sized_slots.append((slot, sized))
                elif ref.kind is BufferKind.MOVING:
                    self.moved.append((slot, ref, sized))
                else:
                    output = ref.kind is BufferKind.OUTPUT
                    base = ref.index + self.n_inputs * output
                    self.bases.setdefault(place, []).append((number, len(patches)))
                    if sized >= 0:
                        self.sized_patches.append((len(patches), sized))
                    patches.append((slot, base, offset))
        # Columns: slots, numbers of the buffers, offsets in bytes.
        self.constants, self.arena = _table(constants).T, _table(arena).T
        # Rows: address in the table of arguments, base, offset in bytes.
        self.patches = _table(patches) * (8, 1, 1)

    def _lay_out_steps(self) -> None:
        sizes: list[int] = []
        # By driver step: the number of its step; -1 for control flow.
        self.step_of = np.full(self.n_steps, -1, np.int64)
        records: list[int] = []
        # By step that checks indices, in order: the number of its record.
        self.record_of: dict[int, int] = {}
        self.steps = np.zeros((self.n_steps, native.STEP_BYTES // 8), np.int64)
        numbers = itertools.count()
        for place, entry in enumerate(self.entries):
            rows = slice(self.starts[place], self.starts[place + 1])
            first, end = self.first_args[place : place + 2]
            self.steps[rows, native.STEP_ARGS // 8] = 8 * first
            if isinstance(entry, Flow):
                self.steps[rows, native.STEP_KIND // 8] = entry.kind.value
                self.steps[rows, native.STEP_TARGET // 8] = self.starts[entry.target]
                continue
            number = next(numbers)
            self.step_of[rows] = number
            if entry.code.checks:
                self.record_of[number] = len(records)
                records.append(end - 1)
            sizes += range(first + len(entry.args), end - bool(entry.code.checks))
        self.size_slots, self.record_slots = np.array(sizes, np.int64), np.array(records, np.int64)


def _n_slots(entry: Step | Flow) -> int:
    if isinstance(entry, Flow):
        return len(entry.args)
    code = entry.code
    n_sizes = len(code.sizes) + len(code.size_values)  # a kernel has one or the other
    return len(entry.args) + n_sizes + bool(code.checks)


def _table(rows: _Rows) -> np.ndarray:
    return np.array(rows, np.int64).reshape(-1, 3)
