"""Queries of a nest: its stages, their roles, and the strides of their accesses."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import field

from clew.cost.policy.sums import FEW_ROWS
from clew.cost.products import dots_gain
from clew.ir.dims import Dim, ceil_div, exact_quotient
from clew.loop.affine import Simplifier, contains
from clew.loop.ir import Buffer, For, If, Stmt, Store, buffer_loads, loops, reads, walk
from clew.loop.products import offset_of
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.support.dataclass import dataclass
from clew.support.errors import ScheduleError
from clew.support.walk import post_order
from clew.te.expr import (
    INDEX,
    Binary,
    Cast,
    Imm,
    Index,
    Intrinsic,
    Load,
    Scalar,
    Select,
    Size,
    Unary,
    binary,
)
from clew.te.long_sums import WIDE, is_product
from clew.te.roles import IN_ORDER
from clew.te.walk import nodes, substitute


def _distance(place: Scalar, own: set[int]) -> Scalar:
    """Returns the loop variable if a position is this variable plus a start, possibly wrapped
    around at the end of the axis; otherwise the position.
    """
    moved = place
    if isinstance(moved, Binary) and moved.op == "mod" and isinstance(moved.b, (Size, Imm)):
        moved = moved.a
    if not isinstance(moved, Binary) or moved.op != "add":
        return place
    for index, first in ((moved.a, moved.b), (moved.b, moved.a)):
        if id(index) in own and not any(id(node) in own for node in _outside_loads(first)):
            return index
    return place


def _outside_loads(value: Scalar) -> Sequence[Scalar]:
    """Returns the parts of a value that are not parts of addresses."""
    return post_order((value,), lambda node: () if isinstance(node, Load) else node.children)


@dataclass
class StageInfo:
    """A stage at the top of a nest: its loops, its store, and the stages that read it."""

    name: str
    loops: list[For]
    store: Store
    readers: list[str] = field(default_factory=list)
    is_continued: bool = False
    """Another stage continues writing its elements, as updates do."""

    @property
    def _spatial(self) -> set[int]:
        """The ids of the variables of spatial loops, each the position along an axis of the result,
        or its distance from the first position that is written.
        """
        own = {id(n.index) for n in self.loops}
        return {id(_distance(place, own)) for place in self.store.indices}

    @property
    def is_reduction(self) -> bool:
        """Whether the stage reduces."""
        return bool(self.store.combiner)

    @property
    def is_output(self) -> bool:
        """Whether the stage writes an output of the kernel, or elements that another stage
        completes.
        """
        return self.store.buffer.scope == "output" or self.is_continued

    @property
    def role(self) -> str:
        """The role of the stage in its operator (`te.roles`)."""
        return self.store.buffer.role

    @property
    def axis_roles(self) -> tuple[str, ...]:
        """Roles of the spatial loops in order."""
        kept = self._spatial
        return tuple(n.index.role for n in self.loops if id(n.index) in kept)

    @property
    def reduction_roles(self) -> tuple[str, ...]:
        """Roles of the reduction loops in order."""
        kept = self._spatial
        return tuple(n.index.role for n in self.loops if id(n.index) not in kept)

    def axis_of(self, role: str) -> str:
        """Returns the name of the only loop with a role."""
        (name,) = (n.name for n in self.loops if n.index.role == role)
        return name

    @property
    def axes(self) -> list[str]:
        """Names of the spatial loops in order."""
        kept = self._spatial
        return [n.name for n in self.loops if id(n.index) in kept]

    def axes_in(self, stage: str) -> list[str]:
        """Returns the names of the corresponding loops in another stage, such as a copy."""
        return [f"{stage}.{name.rsplit('.', 1)[-1]}" for name in self.axes]

    @property
    def reduction_axes(self) -> list[str]:
        """Names of the reduction loops in order."""
        kept = self._spatial
        return [n.name for n in self.loops if id(n.index) not in kept]

    @property
    def is_anchor(self) -> bool:
        """Whether the stage is a sum of products of two different tensors."""
        return self.store.combiner == "sum" and is_product(self.store.value)

    @property
    def divides(self) -> bool:
        """Whether the value contains a floating-point division."""
        return any(
            isinstance(node, Binary) and node.op == "div" and node.dtype != INDEX
            for node in nodes(self.store.value)
        )

    @property
    def operations(self) -> int:
        """The approximate number of operations in the value."""
        made = (Binary, Unary, Select, Cast, Intrinsic)
        return sum(isinstance(node, made) for node in nodes(self.store.value))

    @property
    def is_costly(self) -> bool:
        """Whether the value contains an intrinsic or a power, which are costly to compute twice."""
        return any(
            isinstance(node, Intrinsic) or (isinstance(node, Binary) and node.op == "pow")
            for node in nodes(self.store.value)
        )

    @property
    def lane_dtype(self) -> str:
        """The dtype by which the stage is divided into vectors: its own, or that of the numbers
        that it adds up in a wide one (`te.long_sums`).
        """
        value = self.store.value
        if self.is_reduction and self.store.buffer.dtype == WIDE and isinstance(value, Cast):
            return value.a.dtype
        return self.store.buffer.dtype

    @property
    def is_chain_of_floats(self) -> bool:
        """Whether each element is a long chain of instructions, all of them on `f32`."""
        dtypes = {load.dtype for _, load in reads(self.store)} | {self.store.buffer.dtype}
        return self.is_costly and dtypes == {"f32"}


def stage_infos(schedule: Schedule) -> dict[str, StageInfo]:
    """Returns the stages that have their own loops, in order. The entry of a reduction describes
    the nest that combines, not the one that initializes. Sequential stages have no entry
    (`sequential_stages`), but may be readers.
    """
    infos: dict[str, StageInfo] = {}
    owner: dict[int, str] = {}
    apart = sequential_stages(schedule)
    continued = {id(b) for written in apart.values() for b in written}
    for stmt in schedule.nest.body.stmts:
        around: list[For] = []
        inner: Stmt = stmt
        while isinstance(inner, For):
            around.append(inner)
            inner = inner.body
        if isinstance(inner, Store) and inner.stage not in apart:
            goes_on = id(inner.buffer) in continued
            infos[inner.stage] = StageInfo(inner.stage, around, inner, is_continued=goes_on)
            if not goes_on:
                owner[id(inner.buffer)] = inner.stage
    for stmt in schedule.nest.body.stmts:
        for node, load in reads(stmt):
            producer = owner.get(id(load.source))
            if producer is None:
                continue
            # A guard is a part of the stages whose work it guards.
            for reader in dict.fromkeys(s.stage for s in walk(node) if isinstance(s, Store)):
                if reader != producer and reader not in infos[producer].readers:
                    infos[producer].readers.append(reader)
    return infos


def sequential_stages(schedule: Schedule) -> dict[str, list[Buffer]]:
    """Returns the stages that visit positions in order (`te.sequential`), each with the buffers
    that it writes.
    """
    found: dict[str, list[Buffer]] = {}
    for loop in loops(schedule.nest.body):
        if loop.index.role == IN_ORDER:
            for store in walk(loop.body):
                if isinstance(store, Store):
                    found.setdefault(store.stage, []).append(store.buffer)
    return found


def flatten_axes(schedule: Schedule, *stages: str) -> int:
    """Fuses adjacent axes, such as the lines and pixels of an image, wherever all accesses allow
    it. Returns the number of schedule steps this took.
    """
    before, position = len(schedule.steps), 0
    while position + 1 < len(stage_infos(schedule)[stages[0]].axes):
        try:
            schedule.flatten(*dict.fromkeys(stages), first=position)
        except ScheduleError:
            position += 1
    return len(schedule.steps) - before


def stride(load: Load, index: Index, simplifier: Simplifier) -> Dim | None:
    """Returns the stride of a load along a loop, in elements; None if it is not constant."""
    return offset_stride(load.source, load.indices, index, simplifier)


def offset_stride(
    buffer: Buffer, indices: tuple[Scalar, ...], index: Index, simplifier: Simplifier
) -> Dim | None:
    """Returns the stride of an access along a loop, in elements; None if it is not constant."""
    form = offset_of(buffer, indices, simplifier)
    others = [a for a, _ in form.terms if a is not index]
    if any(simplifier.uses(a, index) for a in others):
        return None
    return form.coefficient(index)


def divides_by_sizes(schedule: Schedule, loop: str) -> bool:
    """Whether the variable of a loop, or of one of its copies, is divided by a size that only a run
    knows, in an address or elsewhere.
    """
    simplifier = Simplifier()
    return any(
        _divided(found, simplifier) for found in loops(schedule.nest.body) if found.name == loop
    )


def _divided(loop: For, simplifier: Simplifier) -> bool:
    """Whether the variable of a loop is divided by a size that only a run knows."""
    stack: list[Scalar] = []
    accesses = [(load.source, load.indices) for _, load in reads(loop.body)]
    for stmt in walk(loop.body):
        if isinstance(stmt, If):
            stack.append(stmt.cond)
        elif isinstance(stmt, Store):
            stack.append(stmt.value)
            accesses.append((stmt.buffer, stmt.indices))
    for buffer, indices in accesses:
        stack += [atom for atom, _ in offset_of(buffer, indices, simplifier).terms]
    seen: set[int] = set()
    while stack:
        node = stack.pop()
        if id(node) in seen or isinstance(node, Load):  # addresses of loads are in the stack
            continue
        seen.add(id(node))
        if (
            isinstance(node, Binary)
            and node.op in ("floordiv", "mod")
            and isinstance(node.b, Size)
            and simplifier.uses(node.a, loop.index)
        ):
            return True
        stack.extend(node.children)
    return False


def lane_stride(load: Load, index: Index, lanes: int, simplifier: Simplifier) -> Dim | None:
    """Returns the stride of a load from lane to lane, in elements, after a loop is split by
    `lanes`; None if it is not constant.

    A packed operand, indexed by `j // 32` and `j % 32`, is contiguous only within each 32.
    """
    inner = (within for i in load.indices for within in buffer_loads(i))
    if any(simplifier.uses(within, index) for within in inner):
        return None  # a gather: the address is itself loaded
    outer, lane = Index("o", ceil_div(index.extent, lanes)), Index("l", lanes)
    split = binary("add", binary("mul", outer, Imm(lanes, INDEX)), lane)
    indices = tuple(substitute(i, {id(index): split}) for i in load.indices)
    return offset_stride(load.source, indices, lane, simplifier)


def largest_load(info: StageInfo) -> Load | None:
    """Returns the load of the largest buffer that a stage reads."""
    found = [load for _, load in reads(info.store)]
    return max(found, key=lambda x: x.source.typical_bytes, default=None)


def axes_of_rows(info: StageInfo, sums: Collection[Buffer] = ()) -> list[For]:
    """Returns the axes of a product that the operand with its columns, the last axis, lacks: those
    of the rows that share a matrix. `sums` are no matrices: they were computed of the same rows.
    """
    by_name = {loop.name: loop for loop in info.loops}
    *axes, columns = (by_name[name] for name in info.axes)
    loads = [load for load in buffer_loads(info.store.value) if load.source not in sums]
    places = [load.indices for load in loads]
    of_matrix = [p for p in places if any(contains(place, columns.index) for place in p)]
    used = [place for indices in of_matrix for place in indices]
    return [axis for axis in axes if not any(contains(place, axis.index) for place in used)]


def sums_rows(info: StageInfo) -> bool:
    """Whether a stage is products of a few rows with rows of another matrix: lanes along the depth
    then read contiguous memory, and lanes along the columns would not.
    """
    one_sum = len(info.reduction_axes) == 1 and bool(info.axes) and info.is_anchor
    if not one_sum or math.prod(n.typical for n in axes_of_rows(info)) > FEW_ROWS:
        return False
    by_name, simplifier = {n.name: n.index for n in info.loops}, Simplifier()
    depth, column = by_name[info.reduction_axes[0]], by_name[info.axes[-1]]
    return all(
        stride(x, depth, simplifier) == 1 and stride(x, column, simplifier) != 1
        for x in buffer_loads(info.store.value)
    )


def multiplies_rows(info: StageInfo, target: Target) -> bool:
    """Whether a stage is products of rows with the rows of another matrix that are faster with
    lanes along the depth.
    """
    loads = list(buffer_loads(info.store.value))
    if len(info.reduction_axes) != 1 or len(info.axes) < 2 or len(loads) != 2:
        return False
    by_name, simplifier = {n.name: n for n in info.loops}, Simplifier()
    depth, column = by_name[info.reduction_axes[0]], by_name[info.axes[-1]]
    if not isinstance(depth.size, int) or {x.dtype for x in loads} != {info.store.buffer.dtype}:
        return False
    of_columns = [x for x in loads if any(simplifier.uses(i, column.index) for i in x.indices)]
    if len(of_columns) != 1 or any(stride(x, depth.index, simplifier) != 1 for x in loads):
        return False
    height = math.prod(n.typical for n in axes_of_rows(info))
    dtype = info.store.buffer.dtype
    return dots_gain(height, depth.size, column.typical, dtype, target)


def rows_together(info: StageInfo, axis: str) -> int:
    """Returns the number of neighbors along an axis that share an operand, such as the filters of a
    convolution group; 0 if all do.
    """
    row = next(n.index for n in info.loops if n.name == axis)
    for load in buffer_loads(info.store.value):
        for index in load.indices:
            for part in nodes(index):
                if not isinstance(part, Binary) or part.op != "floordiv" or part.a is not row:
                    continue
                by = part.b.value if isinstance(part.b, Imm) else 0
                if by and exact_quotient(row.extent, by) is not None:
                    return int(by)
    return 0


def walks_as_one(info: StageInfo, outer: str, inner: str) -> bool:
    """Whether two nested loops are equivalent to a single loop for every access."""
    simplifier = Simplifier()
    by_name = {n.name: n for n in info.loops}
    a, b = by_name[outer], by_name[inner]
    if b.size == 1:
        return True
    accesses = [(load.source, load.indices) for _, load in reads(info.store)]
    accesses.append((info.store.buffer, info.store.indices))
    for buffer, indices in accesses:
        over = offset_stride(buffer, indices, a.index, simplifier)
        under = offset_stride(buffer, indices, b.index, simplifier)
        if over is None or under is None or over != under * b.size:
            return False
    return not conditions_use(info, (a.index, b.index))


def conditions_use(info: StageInfo, indices: tuple[object, ...]) -> bool:
    """Whether a value depends on one of the loop variables other than through addresses."""
    wanted = {id(i) for i in indices}
    seen: set[int] = set()
    stack = [info.store.value]
    while stack:
        node = stack.pop()
        if id(node) in wanted:
            return True
        if id(node) not in seen and type(node).__name__ != "Load":
            seen.add(id(node))
            stack.extend(node.children)
    return False
