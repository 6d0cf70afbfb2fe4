"""A primitive that prefetches memory."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Protocol

from clew.ir.dims import Dim, ceil_div, dim_max, dim_min, product, symbols
from clew.ir.types import memory_bytes
from clew.loop.affine import Linear, Simplifier, contains
from clew.loop.ir import (
    Block,
    Buffer,
    For,
    If,
    Nest,
    Prefetch,
    Stmt,
    Store,
    TileProduct,
    block,
    inside,
    loops,
    number,
    reads,
    walk,
)
from clew.loop.primitives.common import primitive, replace_index, rewrite_loops
from clew.support.dataclass import dataclass
from clew.support.errors import ScheduleError
from clew.te.expr import INDEX, Binary, Imm, Index, Load, Scalar, binary, size
from clew.te.walk import nodes, substitute

CACHE_LINE_BYTES = 64
_MOST_LINES = 1024
_ZERO = Imm(0, INDEX)
_MOST_OF_SIZE = 32  # lines of a share sized at run time; caches cannot keep up with more
FEW_TILES = 4
"""Tiles that prefetch a range together if only a run knows how many there are."""


@primitive
def prefetch(
    nest: Nest,
    simplifier: Simplifier,
    *,
    buffer: str,
    ahead: str,
    at: str,
    tiles: str = "",
    distance: int = 1,
    of_size: bool = False,
) -> Nest:
    """Prefetches, during an iteration of `ahead`, the part of `buffer` that the next iteration
    reads, or the one `distance` iterations later.

    An iteration must read one contiguous range of memory, `buffer[ahead, ...]`, `buffer[ahead * 16
    + row, ...]` for 16 rows or, if loops around it determine outer axes, `buffer[i, ahead, ...]`.
    Each iteration of `at`, a loop inside `ahead`,
    prefetches an equal share of the cache lines; the last iteration of `ahead` repeats its own
    range. A tile that is moved back to end at the last row requests what would follow it unmoved.

    If only a run knows the number of iterations, a loop prefetches each share, which is capped at
    32 lines; the last share may extend beyond the range. In the loops of a matrix unit, each share
    is a fixed number of lines: the first 4 tiles prefetch the range, and the others repeat the last
    lines.

    If only a run knows which parts of the range are read, as in a convolution that skips taps in
    the padding, there are no shares: the first tile prefetches the lines at its own positions in
    the next range.

    With `tiles`, the loop over tiles around `at`, shares are fixed at all sizes: the first 4
    tiles prefetch the range, and all others repeat the last lines. Copies of this loop that have
    fewer iterations at typical sizes are for remainders. There, the only tile prefetches the whole
    range, in shares at its innermost loop, or the first two of several prefetch a half each. So do
    the tiles of a copy for fewer than 4 tiles, which is added. This is for tiles that each range
    meets once: a remainder that runs for every line of an image would prefetch the range every
    time.

    With `of_size`, the length of a range may depend on free sizes. Loops whose trip counts depend
    only on the same sizes read all of the range.

    Errors: S001; S011 if `buffer` is not read in contiguous ranges, one per iteration of `ahead`;
    S012 if `at` is not inside `ahead`; S033 for shares of more than 1024 lines.
    """
    placed = False

    def rewrite(found: For) -> Stmt:
        nonlocal placed
        load_of = [(s, x) for s, x in reads(found.body) if x.source.name == buffer]
        if not any(contains(i, found.index) for _, x in load_of for i in x.indices):
            return found  # a peeled remainder, whose position is a literal
        (*outer, panel), count = _panel([x for _, x in load_of], found, buffer, simplifier)
        steps = iterations(found.body, at)
        if not steps:
            raise ScheduleError("S012", f"loop {at} is not inside loop {ahead}")
        stmt, load = load_of[0]
        assert isinstance(stmt, Store)
        tiled = has_tiles(found.body)
        once = None if tiled else _steps_of_part(found.body, at, load, len(outer))
        if not of_size:
            for dim in load.source.shape[len(outer) + 1 :]:
                number(dim, f"an axis of {buffer}")

        following = _NextPanel(load.source, outer, stmt.stage, panel, count, distance)

        def share(steps: Dim) -> Share:
            return _Share(following, steps) if once is None else _SamePlace(following, once)

        body, skipped = found.body, frozenset[int]()
        if not isinstance(steps, int) and tiles:

            def half(steps: int, tile: Scalar, alone: Dim) -> Share:
                if once is not None:
                    return _SamePlace(following, once)
                return _Half(following, steps, tile, alone)

            body, skipped = _with_small_tiles(found.body, tiles, buffer, half, simplifier)
            steps = least_iterations(body, at, skipped) * FEW_TILES
        elif not isinstance(steps, int) and tiled:  # they contain no loops over lines
            steps = least_iterations(body, at) * FEW_TILES
        placed = True
        if steps:
            body = insert_shares(body, at, Step(), share(steps), simplifier, skipped)
        return replace(found, body=body)

    new = rewrite_loops(nest, ahead, rewrite)
    if not placed:
        raise ScheduleError("S011", f"loop {ahead} does not walk over {buffer}")
    return new


def _with_small_tiles(
    body: Stmt,
    tiles: str,
    buffer: str,
    share: Callable[[int, Scalar, Dim], Share],
    simplifier: Simplifier,
) -> tuple[Stmt, frozenset[int]]:
    """Returns a statement in which the first two tiles of the loops named `tiles` that have few
    iterations share the prefetch of the range, or the only one prefetches it, and the ids of these
    loops. A loop that usually has more iterations becomes two: one for few, and one for more.

    `share` receives the number of steps of a tile, the number of the tile, and 1 if there is no
    other tile, else 0.
    """
    done: set[int] = set()
    total = iterations(body, tiles)
    alone = 1 - dim_min(total // 2, 1)
    before: Dim = 0

    def few(loop: For) -> For:
        inner = [n for n in loops(loop.body) if n.kind == "serial" and _reads(n, buffer)]
        if not inner:
            return loop
        at = inner[-1].name
        tile = binary("add", size(before), loop.index)
        each = share(least_iterations(loop.body, at), tile, alone)
        small = replace(loop, body=insert_shares(loop.body, at, Step(), each, simplifier))
        done.add(id(small))
        return small

    def divided(stmt: For, times: int) -> Stmt:
        if times < FEW_TILES:
            return few(stmt)
        enough = dim_min(stmt.size // FEW_TILES, 1)
        return block(few(_times(stmt, 1 - enough)), _times(stmt, enough))

    def visit(stmt: Stmt, times: int) -> Stmt:
        nonlocal before
        match stmt:
            case For():
                times *= stmt.typical
                if stmt.name != tiles:
                    return replace(stmt, body=visit(stmt.body, times))
                found = divided(stmt, times)
                before = before + stmt.size
                return found
            case If():
                return replace(stmt, body=visit(stmt.body, times))
            case Block():
                return block(*(visit(child, times) for child in stmt.stmts))
        return stmt

    return visit(body, 1), frozenset(done)


def _times(loop: For, runs: Dim) -> For:
    """Returns a loop that runs only if `runs` is 1, not 0."""
    index = loop.index.part(loop.name, loop.size * runs)
    return replace(loop, index=index, body=replace_index(loop.body, loop.index, index))


def _reads(stmt: For, buffer: str) -> bool:
    return any(load.source.name == buffer for _, load in reads(stmt.body))


def _panel(
    loads: list[Load], loop: For, buffer: str, simplifier: Simplifier
) -> tuple[list[Scalar], int]:
    """Returns the position that an iteration of a loop reads, up to the axis that the loop walks,
    and the number of positions along this axis that it reads.
    """
    axes = {n for x in loads for n, i in enumerate(x.indices) if contains(i, loop.index)}
    axis = min(axes)
    shape = loads[0].source.shape
    places = [_unclamped(x.indices[axis], loop.index) for x in loads]
    forms = [simplifier.flatten(simplifier.linear(place)) for place in places]
    # Terms of loops around it may be added to the loop itself.
    inner = [n.index for n in loops(loop.body)]
    found = forms[0].coefficient(loop.index)
    count = found if isinstance(found, int) else 0
    step_by_step = all(
        f.coefficient(loop.index) == count
        and not any(contains(a, loop.index) for a, _ in f.terms if a is not loop.index)
        and (_reach(f, inner) < count if count > 1 else not any(f.depends_on(i) for i in inner))
        for f in forms
    )
    outer = [simplifier.simplify(i) for i in loads[0].indices[:axis]]
    fixed = all(
        all(dim == 1 for dim in shape[:axis])
        or (not any(contains(i, n) for n in inner) and simplifier.simplify(x.indices[a]) is i)
        for x in loads
        for a, i in enumerate(outer)
    )
    if count < 1 or axes != {axis} or not step_by_step or not fixed:
        raise ScheduleError(
            "S011",
            f"an iteration of {loop.name} does not read a contiguous range of {buffer}",
            hint="its first axis must be indexed by the loop itself, or by loops around it",
        )
    start = simplifier.rebuild(forms[0])
    if count > 1:
        start = simplifier.simplify(substitute(start, {id(i): _ZERO for i in inner}))
    return [*outer, start], count


def _unclamped(place: Scalar, index: Index) -> Scalar:
    """Returns a position without the limits that keep the last iterations of a loop inside."""
    values: dict[int, Scalar] = {}
    for node in nodes(place):
        if isinstance(node, Binary) and node.op == "min":
            moving = [x for x in node.children if contains(x, index)]
            if len(moving) == 1:
                values[id(node)] = moving[0]
    return substitute(place, values) if values else place


def _reach(form: Linear, inner: list[Index]) -> int:
    """Returns the largest value of the terms of a form whose loops are `inner`; a number beyond all
    ranges if it is unknown.
    """
    reach = 0
    for term, factor in form.terms:
        if not any(contains(term, i) for i in inner):
            continue
        extent = term.extent if isinstance(term, Index) else None
        if not isinstance(extent, int) or not isinstance(factor, int) or factor < 0:
            return sys.maxsize
        reach += factor * (extent - 1)
    return reach


def _steps_of_part(body: Stmt, at: str, load: Load, axis: int) -> Dim | None:
    """Returns the number of executions of the body of the loop `at` that together read each
    position once. A panel is the axes of `load` after `axis`. None unless only a run knows which
    parts of a panel are read.
    """
    path = _path(body, at)
    within = load.indices[axis + 1 :]
    steps = [n for n in path if any(contains(i, n.index) for i in within)]
    names = {s for d in load.source.shape[axis + 1 :] for s in symbols(d)}
    if all(symbols(n.size) <= names for n in steps):
        return None
    total: Dim = 1
    for loop in steps:
        total = total * loop.size
    return total


def _path(stmt: Stmt, at: str) -> list[For]:
    """Returns the first loop named `at`, after the loops around it; empty if there is none."""
    match stmt:
        case For():
            inner = [] if stmt.name == at else _path(stmt.body, at)
            return [stmt, *inner] if inner or stmt.name == at else []
        case If() | TileProduct():
            return _path(stmt.body, at)
        case Block():
            return next((found for child in stmt.stmts if (found := _path(child, at))), [])
    return []


class Share(Protocol):
    """Work that is added to each of some steps."""

    def of(self, step: Step, body: Stmt, simplifier: Simplifier) -> list[Stmt]:
        """Returns the statements to add to one step, whose own work is `body`."""


@dataclass(frozen=True)
class Step:
    """The number of a step: the sum of the number of its tile's first step (`tile`) and its number
    inside the tile (`inside`), which is less than `count`. Loops inside a tile have known trip
    counts.
    """

    tile: Scalar = _ZERO
    inside: Scalar = _ZERO
    count: int = 1

    @property
    def number(self) -> Scalar:
        """The number of the step."""
        return binary("add", self.tile, self.inside)

    def within(self, loop: For, each: Dim) -> Step:
        """Returns the step in the body of a loop whose iterations have `each` steps each."""
        passed = binary("mul", loop.index, size(each))
        if isinstance(loop.size, int) and isinstance(each, int):
            most = self.count + (loop.size - 1) * each
            return Step(self.tile, binary("add", self.inside, passed), most)
        return Step(binary("add", self.number, passed))

    def after(self, steps: Dim) -> Step:
        """Returns the step that is `steps` steps later."""
        if isinstance(steps, int):
            return Step(self.tile, binary("add", self.inside, size(steps)), self.count + steps)
        return Step(binary("add", self.number, size(steps)))


class _NextPanel:
    """Prefetches of the panel after `panel`; after the last panel, that panel is repeated."""

    def __init__(
        self,
        buffer: Buffer,
        outer: list[Scalar],
        stage: str,
        panel: Scalar,
        count: int,
        distance: int,
    ) -> None:
        self.buffer = buffer
        self.stage = stage
        last = size(dim_max(buffer.shape[len(outer)] - count, 0))
        following = binary("min", binary("add", panel, Imm(count * distance, INDEX)), last)
        self.position: list[Scalar] = [*outer, following]
        self.per_line = max(1, CACHE_LINE_BYTES // memory_bytes(buffer.dtype))
        elements = count * product(buffer.shape[len(outer) + 1 :])
        self.lines = ceil_div(elements, self.per_line)

    def prefetch(self, *rest: Scalar) -> Prefetch:
        """Returns the prefetch of a position in the panel."""
        return Prefetch(self.buffer, (*self.position, *rest), self.stage)

    def of_line(self, line: Scalar) -> Prefetch:
        """Returns the prefetch of a cache line of the panel."""
        inner = len(self.buffer.shape) - len(self.position)
        if not inner:  # a panel is one element
            return self.prefetch()
        place = binary("mul", line, Imm(self.per_line, INDEX))
        # The position within the panel counts from its start, over all of its axes.
        return self.prefetch(*[_ZERO] * (inner - 1), place)

    def lines_each(self, steps: int) -> int:
        """Returns the lines of each of `steps` equal shares. Errors: S033, S070."""
        each = -(-number(self.lines, f"a part of {self.buffer.name}") // max(steps, 1))
        check_lines(each)
        return each


class _Half:
    """The share of each of a tile's `steps` steps in the prefetch of the next panel: all of it by a
    tile that is alone, and one half each by the first two tiles of several. The others repeat the
    second half. Requests that a tile need not make repeat others, since a branch in each step would
    take longer.
    """

    def __init__(self, panel: _NextPanel, steps: int, tile: Scalar, alone: Dim) -> None:
        self.panel, self.steps, self.tile, self.alone = panel, steps, tile, alone
        self.each = panel.lines_each(steps)
        self.lines = number(panel.lines, "a part")

    def of(self, step: Step, body: Stmt, simplifier: Simplifier) -> list[Stmt]:
        """Returns the prefetches of one step."""
        half = -(-self.each // 2)
        stride = half + self.alone * (self.each - half)
        start = max(self.lines - self.steps * half, 0)  # of the second half
        second = binary("mul", binary("min", self.tile, Imm(1, INDEX)), Imm(start, INDEX))
        first = binary("add", second, binary("mul", step.number, size(stride)))
        if self.steps * self.each > self.lines:
            first = binary("min", first, Imm(max(self.lines - self.each, 0), INDEX))
        offsets = [n if n < half else n - half + self.alone * half for n in range(self.each)]
        return [self.panel.of_line(binary("add", first, size(n))) for n in offsets]


class _SamePlace:
    """Each of the first `steps` steps prefetches its own positions in the next panel."""

    def __init__(self, panel: _NextPanel, steps: Dim) -> None:
        self.panel, self.steps = panel, steps

    def of(self, step: Step, body: Stmt, simplifier: Simplifier) -> list[Stmt]:
        """Returns the prefetches of one step."""
        load = next(load for _, load in reads(body) if load.source.name == self.panel.buffer.name)
        within = load.indices[len(self.panel.position) :]
        inner = [n for n in loops(body) if any(contains(i, n.index) for i in within)]
        lines: list[Stmt] = []
        for values in itertools.product(*map(self._starts, inner)):
            known: dict[int, Scalar] = {
                id(n.index): Imm(value, INDEX) for n, value in zip(inner, values, strict=True)
            }
            place = (simplifier.simplify(substitute(i, known)) for i in within)
            lines.append(self.panel.prefetch(*place))
        check_lines(len(lines))
        first = binary("lt", simplifier.simplify(step.number), size(self.steps))
        return [If(first, block(*lines))]

    def _starts(self, loop: For) -> range:
        """Returns the iterations of a loop inside a step at which a cache line may begin."""
        assert isinstance(loop.size, int)
        return range(0, loop.size, self.panel.per_line if loop.kind == "vector" else 1)


class _Share:
    """The share of each of `steps` steps in the prefetch of the next panel."""

    def __init__(self, panel: _NextPanel, steps: Dim) -> None:
        self.panel, self.steps = panel, steps
        # The lines of a share; 0 if only a run knows the number of steps, and thus of lines.
        is_known = isinstance(steps, int) and isinstance(panel.lines, int)
        self.each = panel.lines_each(steps) if is_known else 0  # type: ignore[arg-type]

    def of(self, step: Step, body: Stmt, simplifier: Simplifier) -> list[Stmt]:
        """Returns the prefetches of one step."""
        all_lines = self.panel.lines
        if not isinstance(self.steps, int) or not isinstance(all_lines, int):
            return self._of_size(self.steps, step, simplifier)
        first = binary("mul", step.number, Imm(self.each, INDEX))
        if not simplifier.never_above(first, all_lines - self.each):
            first = binary("min", first, Imm(max(all_lines - self.each, 0), INDEX))
        lines = range(min(self.each, all_lines))
        return [self.panel.of_line(binary("add", first, Imm(n, INDEX))) for n in lines]

    def _of_size(self, steps: Dim, step: Step, simplifier: Simplifier) -> list[Stmt]:
        """Returns the statements of a step if the number of steps or lines is not constant."""
        each = dim_min((steps + (self.panel.lines - 1)) // dim_max(steps, 1), _MOST_OF_SIZE)
        start = binary("mul", step.tile, size(each))
        # Only the position of a tile is capped, so that its steps add a stride to a pointer.
        first = binary("min", start, size(dim_max(self.panel.lines - step.count * each, 0)))
        line = Index(f"{self.panel.stage}.line", each)
        place = binary("add", binary("add", first, binary("mul", step.inside, size(each))), line)
        share = For(line, "serial", self.panel.of_line(simplifier.simplify(place)))
        return [If(binary("lt", simplifier.simplify(start), size(self.panel.lines)), share)]


def check_lines(lines: int) -> None:
    """Rejects a share of so many cache lines that prefetching them would dominate.

    Errors: S033.
    """
    if lines > _MOST_LINES:
        raise ScheduleError(
            "S033",
            f"an iteration would prefetch {lines} cache lines; the limit is {_MOST_LINES}",
            hint="prefetch in a loop with more iterations",
        )


def iterations(stmt: Stmt, at: str, skipped: Collection[int] = ()) -> Dim:
    """Returns the number of executions of the body of a loop named `at` in a statement, without
    those in the loops whose ids are `skipped`.
    """
    if at not in inside(stmt).names:
        return 0
    match stmt:
        case For():
            if id(stmt) in skipped:
                return 0
            return stmt.size * (1 if stmt.name == at else iterations(stmt.body, at, skipped))
        case If() | TileProduct():
            return iterations(stmt.body, at, skipped)
        case Block():
            total: Dim = 0
            for inner in stmt.stmts:
                total = total + iterations(inner, at, skipped)
            return total
    return 0


def least_iterations(stmt: Stmt, at: str, skipped: Collection[int] = ()) -> int:
    """Returns a low estimate of `iterations`. A loop whose trip count only a run knows counts as
    one iteration. If such loops stand side by side, as for tiles of several sizes, only the one
    with the most executions counts, since the others may not run.
    """
    match stmt:
        case For():
            if id(stmt) in skipped:
                return 0
            each = 1 if stmt.name == at else least_iterations(stmt.body, at, skipped)
            return each * (stmt.size if isinstance(stmt.size, int) else 1)
        case If() | TileProduct():
            return least_iterations(stmt.body, at, skipped)
        case Block():
            found = [least_iterations(inner, at, skipped) for inner in stmt.stmts]
            known = all(isinstance(s.size, int) for s in stmt.stmts if isinstance(s, For))
            return sum(found) if known else max(found)
    return 0


def has_tiles(stmt: Stmt) -> bool:
    """Whether a matrix unit runs a part of a statement."""
    return any(isinstance(inner, TileProduct) for inner in walk(stmt))


def insert_shares(
    stmt: Stmt,
    at: str,
    step: Step,
    share: Share,
    simplifier: Simplifier,
    skipped: Collection[int] = (),
) -> Stmt:
    """Returns the statement with each step's share added, except in the loops whose ids are
    `skipped`; `step` is the number of its first step.
    """
    match stmt:
        case For():
            if id(stmt) in skipped:
                return stmt
            inner: Dim = 1 if stmt.name == at else iterations(stmt.body, at, skipped)
            if not inner:
                return stmt
            here = step.within(stmt, inner)
            if stmt.name == at:
                return replace(stmt, body=block(*share.of(here, stmt.body, simplifier), stmt.body))
            body = insert_shares(stmt.body, at, here, share, simplifier, skipped)
            return replace(stmt, body=body)
        case If() | TileProduct():
            body = insert_shares(stmt.body, at, step, share, simplifier, skipped)
            return replace(stmt, body=body)
        case Block():
            made: list[Stmt] = []
            for child in stmt.stmts:
                made.append(insert_shares(child, at, step, share, simplifier, skipped))
                step = step.after(iterations(child, at, skipped))
            return block(*made)
    return stmt
