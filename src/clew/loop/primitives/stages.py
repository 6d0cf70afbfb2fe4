"""Primitives on stages: inline, compute_at, cache_write, set_scope, and rfactor for reductions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from clew.ir.dims import Dim, Facts, SymDim, at_least, exact_quotient
from clew.loop.affine import Linear, Simplifier, contains
from clew.loop.bounds import Bound, below_all, negated
from clew.loop.grid import check_grid
from clew.loop.ir import (
    Block,
    Buffer,
    For,
    If,
    Nest,
    Scope,
    Stmt,
    Store,
    TileProduct,
    block,
    buffer_loads,
    inside,
    loops,
    nested,
    reads,
    stores_in,
    transform,
    update_expressions,
    walk,
)
from clew.loop.primitives.common import (
    canonical_store,
    primitive,
    rewrite_loops,
    stage_statements,
)
from clew.support.dataclass import dataclass
from clew.support.errors import ScheduleError
from clew.te.expr import (
    INDEX,
    Binary,
    Imm,
    Index,
    Inlined,
    Load,
    Scalar,
    all_of,
    any_of,
    binary,
    size,
)
from clew.te.interpret import identity_of
from clew.te.walk import map_loads, nodes, substitute


def _untouched(nest: Nest, stage: str) -> list[tuple[list[For], Store]]:
    """Returns the loops and store of each of a stage's nests, which no primitive has changed yet.

    Errors: S002, S020.
    """
    found = [canonical_store(s) for s in stage_statements(nest, stage)]
    parts = [s for s in nest.body.stmts if stage in inside(s).stages]
    stores = [s for p in parts for s in walk(p) if isinstance(s, Store) and s.stage == stage]
    if any(f is None for f in found) or len(stores) != len(found):
        raise ScheduleError(
            "S020",
            f"loops of stage {stage!r} have already been changed",
            hint="inline or move a stage before its loops are split or reordered",
        )
    return [f for f in found if f is not None]


@primitive
def inline(nest: Nest, simplifier: Simplifier, *, stage: str) -> Nest:
    """Computes a stage in place wherever it is read; its loops are removed.

    Errors: S002, S020; S021 for a reduction; S022 for an output of the kernel.
    """
    nests = _untouched(nest, stage)
    _, store = nests[0]
    if len(nests) > 1 or store.combiner:
        raise ScheduleError("S021", f"stage {stage!r} is a reduction, which cannot be inlined")
    if store.buffer.scope == "output":
        raise ScheduleError("S022", f"stage {stage!r} is an output of {nest.name}")
    axes = {id(i): n for n, i in enumerate(store.indices)}
    made: dict[tuple[object, ...], Scalar] = {}

    def expand(expr: Scalar) -> Scalar:
        def change(load: Load, new: Sequence[Scalar]) -> Scalar | None:
            if load.source is not store.buffer:
                return None
            indices = [simplifier.simplify(i) for i in new]
            key = tuple(simplifier.number(i) for i in indices)
            if key not in made:
                values = {i: indices[n] for i, n in axes.items()}
                made[key] = Inlined(stage, substitute(store.value, values))
            return made[key]

        return map_loads(expr, change)

    own = {id(s) for s in stage_statements(nest, stage)}
    read = store.buffer
    stmts = [update_expressions(s, expand, read) for s in nest.body.stmts if id(s) not in own]
    return nest.with_body(block(*stmts))


@dataclass(frozen=True)
class _Region:
    """The part of an axis that a loop body reads: `start + [0, extent)`, each position at most
    `cap` if that is set: later ones repeat it.
    """

    start: Scalar
    extent: Dim
    cap: Scalar | None = None

    def position(self, offset: Scalar) -> Scalar:
        """Returns the position on the axis of an element of the part."""
        place = binary("add", self.start, offset)
        return place if self.cap is None else binary("min", place, self.cap)

    def offset(self, position: Scalar, simplifier: Simplifier) -> Scalar:
        """Returns the element of the part for a position that the loop body reads."""
        if self.cap is not None:
            position = _uncapped(position, simplifier)[simplifier.number(self.cap)][0]
        form = simplifier.linear(binary("sub", position, self.start))
        return simplifier.rebuild(simplifier.flatten(form))


@primitive
def compute_at(
    nest: Nest,
    simplifier: Simplifier,
    *,
    stage: str,
    loop: str,
    scope: Scope = "scratch",
    align: int = 1,
    beyond: bool = False,
) -> Nest:
    """Computes, inside each iteration of `loop`, only the part of `stage` that the iteration reads.

    The part is derived from the reads; its buffer shrinks to that size and moves to `scope`. The
    stage's loops keep their names, now inside `loop`. Along the last axis, the part begins and ends
    at multiples of `align`, so that the stage's vectors stay aligned for its readers.

    A part may extend beyond the end of the stage, where guards skip its elements. With `beyond`,
    these elements are computed without guards if all their loads lie inside the loaded buffers.
    Nothing uses their values.

    Errors: S001, S002, S020; S022 for an output; S023 if the stage is read outside the loop; S017
    for shared memory outside block loops.
    """
    nests = _untouched(nest, stage)
    buffer = nests[0][1].buffer
    if buffer.scope == "output":
        raise ScheduleError(
            "S022", f"stage {stage!r} is an output of {nest.name}", hint="cache_write it first"
        )
    own = {id(s) for s in stage_statements(nest, stage)}
    rest = nest.with_body(block(*(s for s in nest.body.stmts if id(s) not in own)))
    known = _facts_inside(rest.body, loop)

    def rewrite(found: For) -> Stmt:
        found_loads = [load for _, load in reads(found.body) if load.source is buffer]
        if not found_loads:
            return found
        inner = {id(n.index): n.index for n in loops(found.body)}
        region = [
            _region([load.indices[axis] for load in found_loads], inner, extent, simplifier)
            for axis, extent in enumerate(buffer.shape)
        ]
        if region:
            region[-1] = _aligned(region[-1], align, buffer.shape[-1], simplifier)
        local = Buffer(
            buffer.name, tuple(r.extent for r in region), buffer.dtype, scope, role=buffer.role
        )
        facts = known.get(id(found), ())
        produced = [
            _produce(loops_, store, local, region, facts, simplifier, beyond=beyond)
            for loops_, store in nests
        ]
        body = update_expressions(
            found.body, lambda e: _move_loads(e, buffer, local, region, simplifier), buffer
        )
        return found.with_body(block(*produced, body))

    new = rewrite_loops(rest, loop, rewrite)
    outside = next((s for s, load in reads(new.body) if load.source is buffer), None)
    if outside is not None:
        where = outside.stage if isinstance(outside, Store) else "a guard"
        raise ScheduleError("S023", f"stage {stage!r} is read outside loop {loop}, by {where}")
    if scope == "shared":
        check_grid(new)
    return new


def _region(
    indices: Sequence[Scalar], inner: dict[int, Index], extent: Dim, simplifier: Simplifier
) -> _Region:
    """Returns the range of a set of index expressions over the inner loops; the whole axis if
    unknown.
    """
    whole = _Region(Imm(0, INDEX), extent)
    capped = [_uncapped(index, simplifier, inner) for index in indices]
    for number, (_, cap) in sorted(capped[0].items(), reverse=True):
        shared = all(number in other for other in capped)
        if shared and not any(contains(cap, i) for i in inner.values()):
            part = _region([own[number][0] for own in capped], inner, extent, simplifier)
            if part.cap is None and isinstance(part.extent, int):
                return replace(part, cap=cap)
    # A term of no loop, as in a last tile of one iteration, belongs to the offset if all indices
    # have it, and otherwise to the range.
    bounds = _extremes(indices, inner, simplifier, constants_move=False)
    bounds = bounds or _extremes(indices, inner, simplifier, constants_move=True)
    if bounds is None:
        return whole
    offset, low, high = bounds
    size = high - low + 1
    if at_least(size - extent):
        return whole
    return _Region(simplifier.rebuild(Linear(offset.terms, low)), size)


def _extremes(
    indices: Sequence[Scalar],
    inner: dict[int, Index],
    simplifier: Simplifier,
    *,
    constants_move: bool,
) -> tuple[Linear, Dim, Dim] | None:
    """Returns the offset that indices share, and the least and most that the inner loops add."""
    own = frozenset(inner.values())

    def is_moving(atom: Scalar) -> bool:
        constant = constants_move and _only_of(atom, {})
        return constant or not own.isdisjoint(atom.variables)

    offset: Linear | None = None
    ranges: list[tuple[Bound, Bound, Facts]] = []
    for index in indices:
        form = simplifier.flatten(simplifier.linear(index))
        outer = Linear(tuple(t for t in form.terms if not is_moving(t[0])), 0)
        moving = Linear(tuple(t for t in form.terms if is_moving(t[0])), form.const)
        if not all(_only_of(a, inner) for a, _ in moving.terms):
            return None
        if offset is None:
            offset = outer
        elif set(offset.terms) != set(outer.terms):
            return None
        ranges.append((*simplifier.range_of(moving), simplifier.facts(form)))
    low = below_all([(least, facts) for least, _, facts in ranges])
    high = negated(below_all([(negated(most), facts) for _, most, facts in ranges]))
    if offset is None or isinstance(low, float) or isinstance(high, float):
        return None
    return offset, low, high


def _uncapped(
    index: Scalar, simplifier: Simplifier, inner: dict[int, Index] | None = None
) -> dict[int, tuple[Scalar, Scalar]]:
    """Returns an index of the form `c + min(a, b)` as `c + a` and its cap `c + b`, for each such
    minimum, by the number of the cap. With `inner`, a is over some of these loops.
    """
    form = simplifier.flatten(simplifier.linear(index))
    found: dict[int, tuple[Scalar, Scalar]] = {}
    for atom, coefficient in form.terms:
        if coefficient == 1 and isinstance(atom, Binary) and atom.op == "min":
            if inner is not None and not any(contains(atom.a, i) for i in inner.values()):
                continue
            rest = Linear(tuple(t for t in form.terms if t[0] is not atom), form.const)
            around = simplifier.rebuild(rest)
            a, b = (simplifier.simplify(binary("add", around, x)) for x in (atom.a, atom.b))
            found[simplifier.number(b)] = a, b
    return found


def _aligned(part: _Region, align: int, extent: Dim, simplifier: Simplifier) -> _Region:
    """Returns a part that contains the given one and begins and ends at multiples of `align`."""
    form = simplifier.linear(part.start)
    plain = isinstance(form.const, int) and isinstance(part.extent, int)
    if not plain or part.cap is not None:
        return part
    over = form.const % align
    if any(exact_quotient(coefficient, align) is None for _, coefficient in form.terms):
        return part
    size = -(-(part.extent + over) // align) * align
    if at_least(size - extent):
        return _Region(Imm(0, INDEX), extent)
    return _Region(simplifier.rebuild(Linear(form.terms, form.const - over)), size)


def _only_of(expr: Scalar, inner: dict[int, Index]) -> bool:
    """Whether an expression consists only of inner loops and literals."""
    return all(
        id(node) in inner if isinstance(node, Index) else not isinstance(node, Load)
        for node in nodes(expr)
    )


def _facts_inside(stmt: Stmt, name: str) -> dict[int, Facts]:
    """Returns the facts that hold inside each loop of that name and inside each loop around one, by
    the loop's id.
    """
    found: dict[int, Facts] = {}
    pending: list[tuple[Stmt, Facts]] = [(stmt, ())]
    while pending:
        node, facts = pending.pop()
        if name not in inside(node).names:
            continue
        match node:
            case For():
                found[id(node)] = facts = (*facts, *node.index.facts)
                pending.append((node.body, facts))
            case If() | TileProduct():
                pending.append((node.body, facts))
            case Block():
                pending += [(s, facts) for s in node.stmts]
    return found


def _produce(
    around: list[For],
    store: Store,
    local: Buffer,
    region: list[_Region],
    facts: Facts,
    simplifier: Simplifier,
    *,
    beyond: bool,
) -> Stmt:
    """Returns the stage's nest over a region, guarded where the region may exceed the tensor at
    sizes for which `facts` hold. With `beyond`, guards at the end of the tensor are omitted if no
    load needs them.
    """
    values: dict[int, Scalar] = {}
    indices: list[Scalar] = []
    guards: list[tuple[Scalar, Index | None]] = []  # with the axis's loop if at its end
    fresh: dict[int, Index] = {}
    for index, part, extent in zip(store.indices, region, store.buffer.shape, strict=True):
        assert isinstance(index, Index)
        new = index.part(index.name, part.extent)
        fresh[id(index)] = new
        position = simplifier.simplify(part.position(new))
        values[id(index)] = position
        indices.append(new)
        if not simplifier.never_above(position, extent - 1, facts):
            guards.append((binary("lt", position, size(extent)), new))
        if not simplifier.never_below(position, 0, facts):
            guards.append((binary("ge", position, Imm(0, INDEX)), None))
    value = simplifier.simplify(substitute(store.value, values))
    ends = [new for _, new in guards if new is not None]
    if beyond and _loads_inside(value, ends, facts, simplifier):
        guards = [(cond, new) for cond, new in guards if new is None]
    body: Stmt = Store(local, tuple(indices), value, store.stage, store.combiner)
    if guards:
        body = If(all_of(*(cond for cond, _ in guards)), body)
    for loop in reversed(around):
        body = For(fresh.get(id(loop.index), loop.index), loop.kind, body)
    return body


def _loads_inside(
    value: Scalar, ends: Sequence[Index], facts: Facts, simplifier: Simplifier
) -> bool:
    """Whether the loads of an expression lie inside their buffers at all iterations of the loops
    `ends`, given that they do at the iterations before the end of the tensor.
    """
    return all(
        simplifier.never_below(index, 0, facts) and simplifier.never_above(index, extent - 1, facts)
        for load in buffer_loads(value)
        for index, extent in zip(load.indices, load.source.shape, strict=True)
        if any(contains(index, end) for end in ends)
    )


def _move_loads(
    expr: Scalar, buffer: Buffer, local: Buffer, region: list[_Region], simplifier: Simplifier
) -> Scalar:
    def change(load: Load, indices: Sequence[Scalar]) -> Scalar | None:
        if load.source is not buffer:
            return None
        moved = [part.offset(i, simplifier) for i, part in zip(indices, region, strict=True)]
        return Load(local, moved)

    return map_loads(expr, change)


@primitive
def cache_write(nest: Nest, simplifier: Simplifier, *, stage: str) -> Nest:
    """Computes a stage in a separate buffer; a new stage `<stage>@out` copies it out.

    Both can then be moved with `compute_at`: a register tile of a reduction, and the memory that it
    is written to (an output keeps its place). Errors: S002, S020; S024 if the stage already has
    such a copy.
    """
    nests = _untouched(nest, stage)
    buffer, name = nests[0][1].buffer, f"{stage}@out"
    if name in nest.body.inside.stages:
        raise ScheduleError("S024", f"stage {stage!r} of {nest.name} is already copied out")
    own = {id(s) for s in stage_statements(nest, stage)}
    temporary = Buffer(
        f"{buffer.name}.acc", buffer.shape, buffer.dtype, "workspace", role=buffer.role
    )

    def redirect(stmt: Stmt) -> Stmt | None:
        if isinstance(stmt, Store) and stmt.buffer is buffer:
            return replace(stmt, buffer=temporary)
        return None

    axes = [
        Index(f"{name}.{i.name.rsplit('.', 1)[-1]}", i.extent, i.role)
        for i in nests[0][1].indices
        if isinstance(i, Index)
    ]
    copy: Stmt = Store(buffer, tuple(axes), Load(temporary, axes), name)
    for axis in reversed(axes):
        copy = For(axis, "serial", copy)
    stmts: list[Stmt] = []
    last = max(n for n, s in enumerate(nest.body.stmts) if id(s) in own)
    for position, stmt in enumerate(nest.body.stmts):
        stmts.append(transform(stmt, redirect) if id(stmt) in own else stmt)
        if position == last:
            stmts.append(copy)
    return nest.with_body(block(*stmts))


@primitive
def rfactor(nest: Nest, simplifier: Simplifier, *, stage: str, lanes: tuple[str, ...]) -> Nest:
    """Splits a reduction over the innermost loops `lanes` into that many partial results.

    Partial results are in registers; a loop `<stage>.rf` combines them at the end. To reduce along
    vectors, vectorize the last of `lanes` and `<stage>.rf<n>`. If the stage reduces a number of
    elements that only a run knows, the main part and the remainder have the same partial results.
    Loops over results between the reduction loop and `lanes`, such as those of a register tile, get
    partial results for each; loops of the same names set and combine these. Guards of the reduction
    stay, but no guard may depend on such a loop.

    Errors: S001; S025 if a loop of `lanes` is not a reduction loop of the stage.
    """
    for name in lanes:
        rewrite_loops(nest, name, lambda found: found)
    body = _rfactor_in(nest.body, stage, lanes)
    if body is nest.body:
        raise ScheduleError(
            "S025", f"loops {', '.join(lanes)} do not reduce stage {stage!r} side by side"
        )
    return nest.with_body(body)


def _rfactor_in(stmt: Stmt, stage: str, lanes: tuple[str, ...]) -> Stmt:
    """Returns the statement with each outermost reduction loop of the stage split."""
    if isinstance(stmt, For):
        stores = stores_in(stmt.body)
        ours = [s for s in stores if s.stage == stage and s.combiner]
        if not ours:
            return stmt
        reduces = not any(contains(i, stmt.index) for i in ours[0].indices)
        if len(stores) == 1 and reduces:
            return _factored((stmt,), lanes) or stmt
        body = _rfactor_in(stmt.body, stage, lanes)
        return stmt.with_body(body)
    if isinstance(stmt, If):
        body = _rfactor_in(stmt.body, stage, lanes)
        return stmt if body is stmt.body else replace(stmt, body=body)
    stmts = getattr(stmt, "stmts", None)
    if stmts is None:
        return stmt
    together = _factored(stmts, lanes) if _has_free_copies(stmts, stage) else None
    if together is not None:
        return together
    new = [_rfactor_in(s, stage, lanes) for s in stmts]
    return stmt if all(a is b for a, b in zip(new, stmts, strict=True)) else block(*new)


def _has_free_copies(stmts: Sequence[Stmt], stage: str) -> bool:
    """Whether statements are copies of one reduction loop of a stage, of which one has a free
    size.
    """
    copies = [s for s in stmts if isinstance(s, For)]
    if not stmts or len(copies) < len(stmts) or len({loop.name for loop in copies}) > 1:
        return False
    stores = [s for loop in copies for s in walk(loop.body) if isinstance(s, Store)]
    return any(isinstance(loop.size, SymDim) for loop in copies) and all(
        s.stage == stage
        and s.combiner
        and not any(contains(i, loop.index) for loop in copies for i in s.indices)
        for s in stores
    )


def _factored(copies: Sequence[Stmt], lanes: tuple[str, ...]) -> Stmt | None:
    """Returns copies of a reduction loop with their partial results; None if the loops `lanes` are
    not inside, or not reduction loops.
    """
    # Copies of one loop (main part, peeled remainder) share a partial result if their extents are
    # equal; a shorter remainder uses the first of its lanes.
    inside = [loop for copy in copies for loop in loops(copy)]
    store = next(s for copy in copies for s in walk(copy) if isinstance(s, Store))
    found = {name: [n for n in inside if n.name == name] for name in lanes}
    # Results computed side by side inside the reduction, such as a tile, have partial results each.
    tile = [n.index for n in inside if any(contains(i, n.index) for i in store.indices)]
    guards = [s.cond for copy in copies for s in walk(copy) if isinstance(s, If)]
    guarded = any(contains(cond, index) for cond in guards for index in tile)
    if (tile and (guarded or len(copies) > 1)) or not all(found.values()):
        return None  # the result is written once, after all of these loops, without their guards
    if any(n.index in tile for loops_of_lane in found.values() for n in loops_of_lane):
        return None
    extents = [max(n.extent for n in found[name]) for name in lanes]
    shape = (*(i.extent for i in tile), *extents)
    partial = Buffer(f"{store.buffer.name}.rf", shape, store.buffer.dtype, "register")
    identity = Imm(identity_of(store.combiner, store.buffer.dtype), store.buffer.dtype)

    def over(*, final: bool) -> Stmt:
        axes = [Index(f"{store.stage}.rf{n}", e) for n, e in enumerate(extents)]
        own = [Index(i.name, i.extent, i.role) for i in tile]
        if not final:
            each = (*own, *axes)
            return nested(each, Store(partial, each, identity, store.stage))
        # Reductions across lanes come last, because they take many steps.
        first = (*own, *(Imm(0, INDEX) for _ in axes[1:]), axes[-1])
        places = {id(i): new for i, new in zip(tile, own, strict=True)}
        indices = tuple(substitute(i, places) for i in store.indices)
        gathered = replace(store, indices=indices, value=Load(partial, first))
        if len(axes) == 1:
            return nested((*own, *axes), gathered)
        others = [Index(a.name, a.extent) for a in axes]
        apart = any_of(*(binary("ne", a, Imm(0, INDEX)) for a in others[:-1]))
        beside = Store(partial, (*first[:-1], others[-1]), Load(partial, (*own, *others)),
                       store.stage, store.combiner)  # fmt: skip
        folded = block(nested(others, If(apart, beside)), nested(axes[-1:], gathered))
        return nested(own, folded)

    def descend(stmt: Stmt) -> Stmt:
        if isinstance(stmt, For):
            around.append(stmt)
            new: Stmt = replace(stmt, body=descend(stmt.body))
            around.pop()
            return new
        if isinstance(stmt, If):
            return replace(stmt, body=descend(stmt.body))
        if isinstance(stmt, Store):
            by_name = {n.name: n.index for n in around}
            at = (*tile, *(by_name[name] for name in lanes))
            return replace(stmt, buffer=partial, indices=at)
        return block(*(descend(s) for s in getattr(stmt, "stmts", ())))

    around: list[For] = []
    return block(over(final=False), *map(descend, copies), over(final=True))
