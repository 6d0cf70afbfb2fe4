"""Index checks: the kernel's treatment of indices out of range, and their report to the run.

Each check is one comparison without a branch, and keeps a failing index in a register. At its end,
a function tests these registers and writes a failure to the step's record
(`artifact.RECORD_BYTES`). The first of several threads writes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from clew.codegen.builder import Builder, Value, llvm_type
from clew.codegen.lanes import literal
from clew.codegen.math import arith
from clew.ir.dims import Dim
from clew.te.expr import INDEX, Checked


class Fault(NamedTuple):
    """An index after a check, counted from the front, and whether it is out of range."""

    check: Checked
    place: Value
    outside: Value


class Checks:
    """The checks of one function. `start` is a position in its text before all of them, and
    `dim_value` returns the value of a dimension.
    """

    def __init__(
        self, builder: Builder, start: list[str], dim_value: Callable[[Dim], Value]
    ) -> None:
        self.b = builder
        self._start = start
        self._dim_value = dim_value
        self._found: dict[tuple[int, int], tuple[Checked, str, int]] = {}

    def look(self, check: Checked, index: Value) -> Fault:
        """Returns the index counted from the front, and whether it is out of range."""
        b, lanes = self.b, index.lanes
        count, zero = self._count(check, lanes), literal(0, INDEX, lanes)
        if check.places.from_end:
            behind = arith.binary(b, "add", index, count)
            negative = arith.binary(b, "lt", index, zero)
            index = arith.select(b, negative, behind, index)
        return Fault(check, index, self._outside(check, index))

    def _outside(self, check: Checked, index: Value) -> Value:
        count = self._count(check, index.lanes)
        text = f"icmp uge {index.typed}, {count.text}"
        return self.b.value(text, "bool", index.lanes)

    def _count(self, check: Checked, lanes: int) -> Value:
        """Returns the number of places, in all lanes."""
        count = check.places.count
        if isinstance(count, int):
            return literal(count, INDEX, lanes)
        one = self._dim_value(count)
        return one if lanes == 1 else self.b.splat(one, lanes)

    def again(self, check: Checked, index: Value) -> Fault:
        """Returns whether an index that is already counted from the front is out of range."""
        return Fault(check, index, self._outside(check, index))

    def held(self, fault: Fault) -> Value:
        """Returns the index to read at: 0 for an index out of range."""
        zero = literal(0, INDEX, fault.place.lanes)
        return arith.select(self.b, fault.outside, zero, fault.place)

    def note(self, fault: Fault) -> None:
        """Keeps the index if it is out of range."""
        type_ = llvm_type(INDEX, fault.place.lanes)
        key = fault.check.site, fault.place.lanes
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = fault.check, self.b.alloca(type_), self.b.line
            with self.b.writing_to(self._start):
                self.b.emit(f"store {type_} zeroinitializer, ptr {found[1]}, align 64")
        before = self.b.value(f"load {type_}, ptr {found[1]}, align 64", *fault.place[1:])
        now = arith.select(self.b, fault.outside, fault.place, before)
        self.b.emit(f"store {now.typed}, ptr {found[1]}, align 64")

    def report(self, slot: int) -> None:
        """Writes a kept index to the record that argument `slot` points to."""
        b, before = self.b, self.b.line
        for (_, lanes), (check, kept, line) in self._found.items():
            b.line = line
            worst = b.value(f"load {llvm_type(INDEX, lanes)}, ptr {kept}, align 64", INDEX, lanes)
            if lanes > 1:  # as unsigned numbers, failing indices exceed all others
                worst = b.call(f"llvm.vector.reduce.umax.v{lanes}i64", [worst], INDEX)
            bad, write, done = b.label("outside"), b.label("write"), b.label("inside")
            b.branch_if(self._outside(check, worst), bad, done)
            b.start(bad)
            at = b.pointer(f"getelementptr i64, ptr %args, i64 {slot}")
            record = b.pointer(f"load ptr, ptr {at}, align 8")
            swap = b.name()
            b.emit(
                f"{swap} = cmpxchg ptr {record}, i64 0, i64 {check.site + 1} monotonic monotonic, "
                "align 8"
            )
            first = b.value(f"extractvalue {{ i64, i1 }} {swap}, 1", "bool")
            b.branch_if(first, write, done)
            b.start(write)
            index = b.pointer(f"getelementptr i8, ptr {record}, i64 8")
            b.emit(f"store i64 {worst.text}, ptr {index}, align 8")
            b.branch(done)
            b.start(done)
        b.line = before
