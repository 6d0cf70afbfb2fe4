"""Loops whose sizes change with the iterations, as segments, and the numbers of their iterations.

A state that grows (the keys and values of a decoder, a list of tokens) has another size in each
iteration, and so have the values computed from it. The instruction `Repeat` runs any such loop:
Python runs each part of the body at the sizes of the iteration. Where the body consists of kernels
for all sizes, and each size grows by the same number in each iteration, the loop is also built as
one sequence of native steps, a `LoopBody`, which `NativeLoop` runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from clew.codegen.artifact import EntryPoint
from clew.ir.dim_code import DimArrays, DimLists
from clew.ir.dims import Dim, SymDim
from clew.machine.costs import FS_PER_NS
from clew.runtime.context import Constants
from clew.runtime.grid import lines_of, phases
from clew.runtime.layout import Layout
from clew.runtime.plan import BufferKind
from clew.runtime.references import References
from clew.runtime.segment import readable
from clew.runtime.segment_template import SegmentTemplate
from clew.support.arrays import number_dtype
from clew.support.dataclass import dataclass
from clew.support.lazy import cached_property

Shape = tuple[tuple[int, ...], "np.dtype[Any]"]
_KEPT_SHAPES = 1024


class Growth(NamedTuple):
    """A size of a loop: the state and the axis that have it, and by how much it grows in each
    iteration. Without an axis, the state is the size, an `i64[]`.
    """

    name: str
    state: int
    axis: int | None
    step: int


@dataclass(frozen=True)
class LoopBody:
    """A loop as a segment whose sizes change with its iterations.

    The segment's first loop is this one. Its inputs are states before the first iteration, whose
    numbers are in `inputs`; their shapes are those before any iteration. Its outputs are two
    buffers for each state in `moving`, but one for those also in `appended`, then one for each
    stacked value. `rows` is the place of its `ROW`, whose arguments are the buffers of the
    iteration's number, of the next, and of each of `shapes`. All of `needs` must be at least 0.
    `origins` says for each step whether it is one of the condition, which instruction of that
    program or of the body has it, and its number there. `limit` is the state that iterations are
    counted to, if nothing else ends the loop.
    """

    segment: SegmentTemplate
    inputs: tuple[int, ...]
    moving: tuple[int, ...]
    rows: int
    shapes: tuple[tuple[Dim, ...], ...]
    growth: tuple[Growth, ...]
    needs: tuple[SymDim, ...]
    origins: tuple[tuple[bool, int, int], ...]
    limit: int | None = None
    appended: frozenset[int] = frozenset()

    @property
    def _dims(self) -> Iterator[Dim]:
        """All dimensions of the loop."""
        segment = self.segment
        for step in segment.steps:
            yield from step.code.sizes
            yield step.code.scratch_bytes
            for entry in step.code.entries:
                yield entry.grid
                yield from (count for count, _ in entry.lines)
        for spec in (*segment.inputs, *segment.outputs):
            yield from spec.shape
        yield from (ref.sized_bytes for entry in segment.entries for ref in entry.args)
        yield from (size for shape in self.shapes for size in shape)
        yield from (*segment.arena_bytes, *segment.copied.values(), *self.needs)

    @property
    def names(self) -> set[str]:
        """The sizes that it has, besides those of the model."""
        found = {name for dim in self._dims if isinstance(dim, SymDim) for name in dim.symbols}
        return {name for name in found if name.startswith("?")}

    @property
    def divides_by_sizes(self) -> bool:
        """Whether some dimension is a quotient whose divisor is no number."""
        dims = [dim for dim in self._dims if isinstance(dim, SymDim)]
        atoms = {atom for dim in dims for monomial, _ in dim.terms for atom, _ in monomial}
        while atoms:
            if any(a.op in ("//", "%") and isinstance(a.args[1], SymDim) for a in atoms):
                return True
            inner = (arg for atom in atoms for arg in atom.args if isinstance(arg, SymDim))
            atoms = {a for dim in inner for monomial, _ in dim.terms for a, _ in monomial}
        return False

    @property
    def stacks(self) -> int:
        """The number of stacked values."""
        return len(self.segment.loops[0].rows_bytes)

    @cached_property
    def ends(self) -> list[tuple[int, int]]:
        """`outputs_of` each state in `moving`."""
        return [self.outputs_of(number) for number in range(len(self.moving))]

    def outputs_of(self, number: int) -> tuple[int, int]:
        """Returns the outputs that the state `moving[number]` is in after an odd and an even number
        of iterations.
        """
        before = self.moving[:number]
        first = 2 * number - sum(state in self.appended for state in before)
        return first, first + (self.moving[number] not in self.appended)


class LoopNumbers:
    """The numbers of a loop's iterations, and what its runs at all sizes have in common."""

    def __init__(self, body: LoopBody, threads: int) -> None:
        """Asserts that the steps use existing buffers."""
        segment = body.segment
        self.body = body
        self.threads = threads
        self.constants = Constants([readable(constant) for constant in segment.constants])
        self.layout = Layout(segment.entries, len(segment.inputs))
        self.phases = [p for step in segment.steps for p in phases(step.code.entries)]
        self.entries: list[EntryPoint] = [entry for phase in self.phases for entry in phase]
        self._dtypes = [number_dtype(spec.dtype) for spec in segment.inputs]
        self._shapes: dict[tuple[int, ...], list[Shape]] = {}
        counts = {
            BufferKind.INPUT: len(segment.inputs),
            BufferKind.OUTPUT: len(segment.outputs),
            BufferKind.CONSTANT: len(segment.constants),
            BufferKind.ARENA: len(segment.arena_bytes),
            BufferKind.MOVING: sum(loop.moving for loop in segment.loops),
        }
        self._references = References(segment.entries, counts)
        self._references.check(BufferKind.CONSTANT, [c.nbytes for c in segment.constants])

    @cached_property
    def _lists(self) -> dict[str, list[Dim]]:
        segment, entries = self.body.segment, self.entries
        return {
            "sizes": [size for step in segment.steps for size in step.code.sizes],
            "grids": [entry.grid for entry in entries],
            "lines": [lines_of(entry) for entry in entries],
            "costs": [entry.cost_fs or round(entry.cost * FS_PER_NS) for entry in entries],
            "scratch": [step.code.scratch_bytes for step in segment.steps],
            "arena": list(segment.arena_bytes),
            "distances": [sized.ref.sized_bytes for sized in self.layout.sized],
            "shapes": [size for shape in self.body.shapes for size in shape],
            "copied": list(segment.copied.values()),
            "inputs": [size for spec in segment.inputs for size in spec.shape],
            "outputs": [_bytes_of(spec.shape, spec.dtype) for spec in segment.outputs],
            "rows": [size for spec in segment.outputs for size in spec.shape],
            "needs": list(self.body.needs),
        }

    @cached_property
    def _many(self) -> Callable[[Mapping[str, Any], int], np.ndarray]:
        return DimArrays([dim for dims in self._lists.values() for dim in dims]).at

    @cached_property
    def _one(self) -> Callable[[Mapping[str, int]], list[list[int]]]:
        return DimLists(*self._lists.values()).at

    @cached_property
    def _shapes_of(self) -> Callable[[Mapping[str, int]], list[list[int]]]:
        return DimLists(*(spec.shape for spec in self.body.segment.inputs)).at

    def by_name(self, sizes: Mapping[str, int], begin: Sequence[int], count: int) -> dict[str, Any]:
        """Returns the sizes of the model and, in so many iterations, those of the loop."""
        turns = np.arange(count, dtype=np.int64)
        grown = {
            growth.name: size + growth.step * turns if growth.step else size
            for growth, size in zip(self.body.growth, begin, strict=True)
        }
        return {**sizes, **grown}

    def shapes(self, sizes: Mapping[str, int], begin: tuple[int, ...]) -> list[Shape]:
        """Returns the shape and dtype of each input at sizes of the model and of the loop."""
        key = (*sizes.values(), *begin)
        found = self._shapes.get(key)
        if found is None:
            names = (growth.name for growth in self.body.growth)
            values = self._shapes_of({**sizes, **dict(zip(names, begin, strict=True))})
            found = list(zip(map(tuple, values), self._dtypes, strict=True))
            if len(self._shapes) >= _KEPT_SHAPES:
                self._shapes.clear()
            self._shapes[key] = found
        return found

    def columns(
        self, sizes: Mapping[str, int], begin: Sequence[int], count: int
    ) -> dict[str, np.ndarray] | None:
        """Returns numbers of so many iterations, i64[numbers, count] by kind; None if some do not
        fit in 64 bits, or have a divisor of 0.
        """
        by_name = self.by_name(sizes, begin, count)
        values = self._many(by_name, count)
        for turn in (0, count - 1):
            now = {n: int(v[turn]) if isinstance(v, np.ndarray) else v for n, v in by_name.items()}
            try:
                exact = self._one(now)
            except ZeroDivisionError:
                return None
            if [number for numbers in exact for number in numbers] != values[:, turn].tolist():
                return None
        found, begins = dict[str, np.ndarray](), 0
        for name, dims in self._lists.items():
            found[name] = values[begins : begins + len(dims)]
            begins += len(dims)
        return found

    def check(self, columns: Mapping[str, np.ndarray], turn: int) -> None:
        """Asserts that the steps of an iteration stay inside the arena's buffers."""
        arena, distances = (columns[name][:, turn].tolist() for name in ("arena", "distances"))
        self._references.check(BufferKind.ARENA, arena, distances)


def _bytes_of(shape: Sequence[Dim], dtype: str) -> Dim:
    total: Dim = number_dtype(dtype).itemsize
    for size in shape:
        total = total * size
    return total
