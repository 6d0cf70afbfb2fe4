"""Primitives on loops: split, fuse, reorder, and loop kinds."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Final

from clew.ir.dims import (
    Dim,
    Facts,
    SymDim,
    at_least,
    ceil_div,
    dim_max,
    dim_min,
    exact_quotient,
    product,
)
from clew.loop.affine import Simplifier
from clew.loop.ir import (
    For,
    If,
    Nest,
    Stmt,
    Store,
    before_lines,
    block,
    loops,
    parallel_lines,
    reads,
    single,
    statements,
    walk,
)
from clew.loop.primitives.common import (
    check_positive,
    facts_of,
    perfect_chain,
    primitive,
    replace_index,
    rewrite_loops,
    wrap,
)
from clew.support.errors import ScheduleError
from clew.te.expr import Index, Scalar, binary, size
from clew.te.roles import IN_ORDER

TAILS = ("peel", "balance", "once", "guard", "shrink", "exact", "overlap", "clamp", "shift")
_AT_ONCE: Final = ("shrink", "exact", "overlap", "clamp", "shift")
"""Tails that divide a loop of any number of iterations in one way."""
MOST_LANES: Final = 64
"""Lanes of the longest vector."""


@primitive
def split(
    nest: Nest,
    simplifier: Simplifier,
    *,
    loop: str,
    factor: int,
    tail: str = "peel",
    inside: int = 0,
    rest: int = 0,
) -> Nest:
    """`for i in n` becomes `for i.o in n/factor: for i.i in factor`.

    If `factor` does not divide n, `peel` runs the remainder as a second nest with loops of the same
    names; `balance` and `once` use ceil(n / factor) tiles whose sizes differ by at most one;
    `guard` rounds up and skips iterations beyond n. `shrink` has tiles of half and of a quarter
    of the size: the remainder is one or two of them, the last of which is moved back so that it
    ends at n and skips the iterations that have run. `exact` has smaller tiles of many sizes
    instead, which takes more code but no guard: a matrix unit computes whole tiles. `overlap`
    moves the last whole tile back in this way; a loop shorter than a tile computes its last
    iteration several times and stores it once. `clamp` moves the last tile, of the whole or
    half the size, back so that it ends at n; some iterations are thus computed twice. For n
    below half the factor, it uses one smaller tile that repeats the last iteration. `shift` is
    `clamp` with tiles of an eighth of the size, or of one iteration, in its place, which are moved
    back likewise: it has no guards.

    If n is known only at run time, `peel` runs the remainder as one guarded tile, or as guarded
    tiles of `rest` iterations: whole vectors of it that are beyond n then do not run. `balance`
    uses ceil(n / factor) tiles of one size, which is computed at run time, and moves the last tile
    back so that it ends at n; it repeats some iterations of the previous tile. `once` uses the same
    tiles, but a guard skips these iterations, so that each iteration runs once.

    `inside` limits the split to those copies of the loop whose inner loops, except the innermost
    one, have at most that many iterations in total.

    Errors: S001, S004; S005 for an unknown tail; S006 for a loop already vectorized or parallel;
    S071 for iterations that cannot be computed twice.
    """
    check_positive("factor", factor)
    if tail not in TAILS:
        raise ScheduleError("S005", f"tail is {tail!r}", hint=f"use one of {', '.join(TAILS)}")

    def rewrite(found: For) -> Stmt:
        if found.kind in ("vector", "parallel", "dot", "block", "thread"):
            raise ScheduleError("S006", f"loop {loop} is already {found.kind}", hint="split first")
        if inside and not at_least(inside - _iterations_inside(found)):
            return found
        if isinstance(found.size, SymDim) or tail in (
            "shrink",
            "exact",
            "overlap",
            "clamp",
            "shift",
        ):
            return single(_split_size(found, factor, tail, simplifier, rest))
        extent = found.extent
        if tail == "guard" and extent % factor and extent > factor:
            return _guarded(found, 0, -(-extent // factor), factor, simplifier)
        if tail in ("balance", "once") and extent % factor:
            tiles = -(-extent // factor)
            size, larger = divmod(extent, tiles)
            start = larger * (size + 1)
            pieces = [(0, larger, size + 1), (start, tiles - larger, size)]
        else:
            whole = extent // factor
            pieces = [(0, whole, factor), (whole * factor, 1, extent % factor)]
        return single([_piece(found, *p, simplifier) for p in pieces if p[1] and p[2]])

    return rewrite_loops(nest, loop, rewrite)


def _iterations_inside(loop: For) -> Dim:
    """Returns the iterations of the loops inside, except the innermost one."""
    *outer, _ = (inner.size for inner in loops(loop.body))
    return product(tuple(outer))


def _split_size(
    loop: For, factor: int, tail: str, simplifier: Simplifier, rest: int = 0
) -> list[For]:
    """Returns the parts of a loop whose number of iterations may be known only in a run."""
    extent = loop.size
    whole = extent // factor
    if exact_quotient(extent, factor) is not None:
        return [_piece(loop, 0, whole, factor, simplifier)]
    if tail == "guard":
        return [_guarded(loop, 0, ceil_div(extent, factor), factor, simplifier)]
    if tail == "shrink":
        return _shrinking(loop, factor, simplifier)
    if tail == "exact":
        return _exact(loop, factor, simplifier)
    if tail == "overlap":
        return [_ending(loop, 0, ceil_div(extent, factor), factor, simplifier)]
    if tail == "clamp":
        return _clamped(loop, factor, simplifier)
    if tail == "shift":
        return _shifting(loop, factor, simplifier)
    if tail in ("balance", "once"):
        return [_evened(loop, factor, simplifier, once=tail == "once")]
    tiles = ceil_div(extent, factor) - whole
    if rest:
        tiles = ceil_div(extent - whole * factor, rest)
    return [
        _piece(loop, 0, whole, factor, simplifier),
        _guarded(loop, whole * factor, tiles, rest or factor, simplifier),
    ]


def _shrinking(loop: For, factor: int, simplifier: Simplifier) -> list[For]:
    """Returns whole tiles, and tiles of half and of a quarter of the size for the remainder, of
    which at most two run. A remainder above half a tile begins with a tile of half the size, and a
    loop shorter than one tile with the larger one that it fits. The smaller tile that the rest fits
    follows, moved back so that it ends at the last iteration.
    """
    sizes = list(dict.fromkeys(max(-(-factor // n), 1) for n in (2, 4)))
    sizes = [n for n in sizes if n < factor and (n > 1 or factor == 2)]
    whole = loop.size // factor
    start, rest = whole * factor, loop.size - whole * factor
    short = 1 - _reaches(whole, 1)
    found = [_inside(loop, 0, whole, factor, simplifier)]
    first: dict[int, Dim] = {}
    for larger, size_ in pairwise((factor, *sizes)):
        begins = _reaches(rest, size_)
        first[size_] = begins if larger == factor else short * (begins - _reaches(rest, larger))
    last = rest - sum((size_ * count for size_, count in first.items()), 0)
    for size_, smaller in zip(sizes, [*sizes[1:], 0], strict=True):
        ends = _reaches(last, smaller + 1) - _reaches(last, size_ + 1) if size_ > 1 else 0
        own = start + sum((n * count for n, count in first.items() if n != size_), 0)
        made = _ending if size_ > 1 else _inside
        found.append(made(loop, own, first[size_] + ends, size_, simplifier))
    return [tile for tile in found if tile.size != 0]


def _exact(loop: For, factor: int, simplifier: Simplifier) -> list[For]:
    """Returns whole tiles, and smaller tiles of each size up to a little more than half a tile, of
    which at most two run. A remainder of such a size is one tile, and a larger one is two. A small
    one is merged with the last whole tile, if there is one, and divided evenly into two tiles.
    """
    whole = loop.size // factor
    rest, several = loop.size - whole * factor, _reaches(whole, 1)
    longest = min(factor // 2 + 2, factor - 1)
    small = 2 * longest - factor  # the largest remainder merged with a whole tile
    shared = several * (_reaches(rest, 1) - _reaches(rest, small + 1)) if small > 0 else 0
    # For each number of iterations: 1 if two tiles of about half of it run them, else 0.
    halved: dict[int, Dim] = {n: _equals(rest, n) for n in range(longest + 1, factor)}
    halved.update((factor + n, several * _equals(rest, n)) for n in range(1, small + 1))
    tiles = whole - shared
    found = [_inside(loop, 0, tiles, factor, simplifier)]
    for size_ in range(longest, 0, -1):
        alone = _equals(rest, size_)
        if size_ <= small:
            alone = alone - several * alone
        larger, even, smaller = (halved.get(2 * size_ + off, 0) for off in (-1, 0, 1))
        start = tiles * factor + smaller * (size_ + 1)
        count = alone + 2 * even + larger + smaller
        if count != 0:
            found.append(_inside(loop, start, count, size_, simplifier))
    return found


def _equals(dim: Dim, value: int) -> Dim:
    """Returns 1 if a dimension is `value`, which is at least 1, else 0."""
    return _reaches(dim, value) - _reaches(dim, value + 1)


def _inside(loop: For, start: Dim, tiles: Dim, factor: int, simplifier: Simplifier) -> For:
    """Returns tiles from `start` on that lie inside the loop at all sizes, although that may be
    hard to prove.
    """
    facts = facts_of(start, loop.size - start - tiles * factor)
    return _piece(loop, start, tiles, factor, simplifier, facts)


def _ending(loop: For, start: Dim, tiles: Dim, factor: int, simplifier: Simplifier) -> For:
    """Returns tiles from `start` on, of which the last is moved back so that it ends at the last
    iteration. A guard skips iterations that have run, and those beyond the end of a loop shorter
    than a tile, in whose place values of the last one are computed.
    """
    fits = at_least(loop.size, factor)
    end = loop.size - factor if fits else dim_max(loop.size - factor, 0)
    # A loop that runs a tile has an iteration.
    facts = facts_of(end, start, loop.size - 1)
    outer = loop.index.part(f"{loop.name}.o", tiles, facts)
    inner = loop.index.part(f"{loop.name}.i", factor)
    own = binary("add", binary("mul", outer, factor), size(start))
    place = binary("add", binary("min", own, size(end)), inner)
    cond = binary("ge", place, own)
    if not fits:
        cond = binary("and", cond, binary("lt", place, size(loop.size)))
        place = binary("min", place, size(loop.size - 1))
    body = replace_index(loop.body, loop.index, simplifier.simplify(place))
    return For(outer, loop.kind, For(inner, loop.kind, If(simplifier.simplify(cond), body)))


def _reaches(dim: Dim, least: int) -> Dim:
    """Returns 1 if a dimension is at least `least`, else 0."""
    return 1 if at_least(dim, least) else dim_min(dim // least, 1)


def _clamped(loop: For, factor: int, simplifier: Simplifier) -> list[For]:
    """Returns tiles of which the last is moved back so that it ends at the last iteration. They are
    whole tiles; the last has half the size if the remainder fits it, and so do all tiles of a loop
    shorter than one tile. A loop shorter than half a tile is one tile, the smallest that it fits,
    which repeats the last iteration.
    """
    found, halves = _moved(loop, factor, simplifier)
    half = max(factor // 2, 1)
    few = factor // 8 if factor >= 16 else 0
    above = halves
    for size_, smaller in ((half, few), (few, 0)):
        reached = _reaches(loop.size, smaller + 1)
        found.append(_repeating(loop, reached - above, max(size_, 1), simplifier))
        above = reached
    return [tile for tile in found if tile.size != 0]


def _shifting(loop: For, factor: int, simplifier: Simplifier) -> list[For]:
    """Returns the tiles of `_clamped`, but in a loop shorter than half a tile, small tiles of which
    the last is moved back likewise, so that no tile has a guard: an eighth of the size, or one.
    """
    found, above = _moved(loop, factor, simplifier)
    for size_ in dict.fromkeys((max(factor // 8, 1), 1)):
        reached = _reaches(loop.size, size_)
        tiles = (reached - above) * ceil_div(loop.size, size_)
        found.append(_shifted(loop, 0, tiles, size_, simplifier))
        above = reached
    return [tile for tile in found if tile.size != 0]


def _moved(loop: For, factor: int, simplifier: Simplifier) -> tuple[list[For], Dim]:
    """Returns tiles of which the last is moved back so that it ends at the last iteration, and
    whether the loop is long enough for one of half the size (1 or 0).
    """
    _check_repeatable(loop)
    half = max(factor // 2, 1)
    whole = loop.size // factor
    rest, several, halves = (
        loop.size - whole * factor,
        _reaches(whole, 1),
        _reaches(loop.size, half),
    )
    more = _reaches(rest, half + 1) if half + 1 < factor else 0
    of_half = several * (_reaches(rest, 1) - more) + (halves - several) * ceil_div(loop.size, half)
    found = [
        _shifted(loop, 0, whole + several * more, factor, simplifier),
        _shifted(loop, whole * factor, of_half, half, simplifier),
    ]
    return found, halves


def _shifted(loop: For, start: Dim, tiles: Dim, factor: int, simplifier: Simplifier) -> For:
    """Returns tiles from `start` on, none of which goes beyond the last iteration."""
    last = loop.size - factor
    outer = loop.index.part(f"{loop.name}.o", tiles, facts_of(last, start), repeats=True)
    inner = loop.index.part(f"{loop.name}.i", factor)
    begin = binary("add", binary("mul", outer, factor), size(start))
    value = simplifier.simplify(binary("add", binary("min", begin, size(last)), inner))
    return For(outer, loop.kind, For(inner, loop.kind, replace_index(loop.body, loop.index, value)))


def _repeating(loop: For, tiles: Dim, factor: int, simplifier: Simplifier) -> For:
    """Returns tiles whose iterations beyond the last one repeat it."""
    outer = loop.index.part(f"{loop.name}.o", tiles, facts_of(loop.size - 1), repeats=True)
    inner = loop.index.part(f"{loop.name}.i", factor)
    value = simplifier.simplify(binary("min", inner, size(loop.size - 1)))
    body = replace_index(loop.body, loop.index, value)
    return For(outer, loop.kind, For(inner, loop.kind, body))


def _evened(loop: For, factor: int, simplifier: Simplifier, *, once: bool) -> For:
    """Returns a loop over as few tiles of equal size as possible. The last tile ends at the last
    iteration and may overlap the previous tile; with `once`, it skips the iterations in both.
    """
    if not once:
        _check_repeatable(loop)
    tiles = ceil_div(loop.size, factor)
    tile = (loop.size + tiles - 1) // tiles
    facts = facts_of(loop.size - tile, tile - 1)
    outer = loop.index.part(f"{loop.name}.o", tiles, facts, repeats=not once)
    inner = loop.index.part(f"{loop.name}.i", tile, facts, repeats=not once)
    own = binary("mul", outer, size(tile))
    start = binary("min", own, size(loop.size - tile))
    value = simplifier.simplify(binary("add", start, inner))
    body = replace_index(loop.body, loop.index, value)
    if once:
        body = If(binary("ge", value, own), body)
    return For(outer, loop.kind, For(inner, loop.kind, body))


def _check_repeatable(loop: For) -> None:
    """Checks that an iteration may run twice with the same results.

    Errors: S071.
    """
    if loop.index.role == IN_ORDER:
        raise ScheduleError(
            "S071",
            f"iterations of {loop.name} cannot run twice",
            hint="use tail='peel', 'guard' or 'once'",
        )
    for stmt in walk(loop.body):
        if not isinstance(stmt, Store):
            continue
        own = any(load.source.root is stmt.buffer.root for _, load in reads(stmt))
        if stmt.combiner or own:
            raise ScheduleError(
                "S071",
                f"iterations of {loop.name} cannot run twice: {stmt.stage} changes what it reads",
                hint="use tail='peel', 'guard' or 'once', or split before the stage moves inside",
            )


def _guarded(loop: For, start: Dim, tiles: Dim, factor: int, simplifier: Simplifier) -> For:
    """Returns tiles that skip iterations beyond the loop's."""
    piece = _piece(loop, start, tiles, factor, simplifier)
    inner = piece.body
    assert isinstance(inner, For)
    index = _position(start, piece.index, factor, inner.index)
    cond = simplifier.simplify(binary("lt", index, size(loop.size)))
    return replace(piece, body=replace(inner, body=If(cond, inner.body)))


def _position(start: Dim, outer: Index, factor: int, inner: Index) -> Scalar:
    return binary("add", binary("add", binary("mul", outer, factor), inner), size(start))


def _piece(
    loop: For, start: Dim, tiles: Dim, factor: int, simplifier: Simplifier, facts: Facts = ()
) -> For:
    outer = loop.index.part(f"{loop.name}.o", tiles, facts)
    inner = Index(f"{loop.name}.i", factor, loop.index.role_of_parts)
    value = simplifier.simplify(_position(start, outer, factor, inner))
    body = replace_index(loop.body, loop.index, value)
    return For(outer, loop.kind, For(inner, loop.kind, body))


@primitive
def fuse(nest: Nest, simplifier: Simplifier, *, outer: str, inner: str) -> Nest:
    """`for a in m: for b in n` becomes one loop `a+b` over m*n.

    Errors: S001; S003 if `inner` is not directly in `outer`.
    """

    def rewrite(found: For) -> Stmt:
        body = found.body
        if not isinstance(body, For) or body.name != inner:
            raise ScheduleError("S003", f"loop {inner} is not directly inside {outer}")
        name = f"{outer}+{inner.rsplit('.', 1)[-1]}"
        runs = facts_of(found.size - 1, body.size - 1)
        index = found.index.merged(body.index, name, found.size * body.size, facts=runs)
        inside = size(body.size)
        high = simplifier.simplify(binary("floordiv", index, inside))
        low = simplifier.simplify(binary("mod", index, inside))
        replaced = replace_index(replace_index(body.body, body.index, low), found.index, high)
        return replace(found, index=index, body=replaced)

    return rewrite_loops(nest, outer, rewrite)


@primitive
def reorder(nest: Nest, simplifier: Simplifier, *, order: tuple[str, ...]) -> Nest:
    """Puts directly nested loops in the given order, outermost first; other loops keep their place.

    A nest that has only some of the loops (a reduction's initialization) orders those.

    Errors: S001, S003.
    """
    wanted = set(order)
    heads = _heads(nest, wanted)
    for name in order:
        rewrite_loops(nest, name, lambda found: found)
    complete = False

    def rewrite(found: For) -> Stmt:
        nonlocal complete
        if id(found) not in heads:
            return found
        here = {loop.name for loop in loops(found)} & wanted
        complete = complete or here == wanted
        chain, guards, body = perfect_chain(found, here)
        by_name = {loop.name: loop for loop in chain}
        places = [n for n, loop in enumerate(chain) if loop.name in here]
        new = list(chain)
        for place, name in zip(places, (n for n in order if n in here), strict=True):
            new[place] = by_name[name]
        before, after = ([x.name for x in c if x.index.role == IN_ORDER] for c in (chain, new))
        if before != after:
            raise ScheduleError(
                "S003",
                f"{', '.join(before)} must stay in this order",
                hint="their iterations write to data-dependent positions",
            )
        return wrap(new, guards, body)

    for name in sorted({loop.name for loop in loops(nest.body) if id(loop) in heads}):
        nest = rewrite_loops(nest, name, rewrite)
    if not complete:
        raise ScheduleError("S003", f"no nest has all of the loops {', '.join(order)}")
    return nest


def _heads(nest: Nest, wanted: set[str]) -> set[int]:
    """Returns the loops of the set that are not inside another loop of it."""
    heads: set[int] = set()
    stack: list[tuple[Stmt, bool]] = [(nest.body, False)]
    while stack:
        stmt, inside = stack.pop()
        if isinstance(stmt, For):
            if stmt.name in wanted and not inside:
                heads.add(id(stmt))
            stack.append((stmt.body, inside or stmt.name in wanted))
        elif isinstance(stmt, If):
            stack.append((stmt.body, inside))
        else:
            stack.extend((s, inside) for s in getattr(stmt, "stmts", ()))
    return heads


@primitive
def vectorize(nest: Nest, simplifier: Simplifier, *, loop: str) -> Nest:
    """Executes a loop's iterations as the lanes of vectors.

    Errors: S001; S007 for a loop that contains loops or has more than 64 iterations.
    """

    def rewrite(found: For) -> Stmt:
        inside = [loop for loop in loops(found.body) if loop.kind != "dot"]
        if not at_least(MOST_LANES - found.size) or inside:
            raise ScheduleError(
                "S007",
                f"loop {loop} over {found.size} cannot be vectorized",
                hint="split it by the vector width, then vectorize the innermost loop",
            )
        return replace(found, kind="vector", axis="")

    return rewrite_loops(nest, loop, rewrite)


@primitive
def unroll(nest: Nest, simplifier: Simplifier, *, loop: str, guarded: bool = True) -> Nest:
    """Unrolls a loop completely. With `guarded=False`, copies of the loop that contain conditions
    which only a run decides, such as those at the edges of an image, remain loops.

    Errors: S001.
    """

    def rewrite(found: For) -> For:
        if not guarded:
            guards = (s for s in walk(found.body) if isinstance(s, If))
            if any(simplifier.decide(guard.cond) is None for guard in guards):
                return found
        return replace(found, kind="unroll", axis="")

    return rewrite_loops(nest, loop, rewrite)


@primitive
def parallel(nest: Nest, simplifier: Simplifier, *, loop: str, repeat: bool = False) -> Nest:
    """Distributes an outermost loop over threads, or a loop that is the entire body of a parallel
    loop: threads then share a 2-D grid.

    With `repeat`, other statements may come before the inner loop if they write only to scratch.
    Each thread that executes a part of the inner loop repeats them.

    Errors: S001; S008 if the loop is neither; S009 if iterations write the same element.
    """
    top = [s for s in nest.body.stmts if isinstance(s, For)]
    inside = [n for s in top if s.kind == "parallel" for n in statements(s.body)]
    outermost = any(isinstance(s, For) and s.name == loop for s in (*top, *inside))
    new = rewrite_loops(nest, loop, lambda found: replace(found, kind="parallel", axis=""))
    repeating = [s for s in new.body.stmts if before_lines(s)]
    if not outermost or (
        not repeat and any(line.name == loop for s in repeating for line in parallel_lines(s))
    ):
        raise ScheduleError("S008", f"loop {loop} is not an outermost loop of {nest.name}")
    return new


@primitive
def hoist(nest: Nest, simplifier: Simplifier, *, loop: str) -> Nest:
    """Joins the copies of an outermost loop that peeling created to one loop, with their bodies in
    sequence.

    Errors: S001; S010 if the copies differ in extent.
    """
    copies = [s for s in nest.body.stmts if isinstance(s, For) and s.name == loop]
    rewrite_loops(nest, loop, lambda found: found)
    if len({c.size for c in copies}) != 1:
        raise ScheduleError("S010", f"copies of loop {loop} differ in extent")
    first = copies[0]
    bodies = [replace_index(c.body, c.index, first.index) for c in copies]
    merged = replace(first, body=single(bodies))
    stmts = [merged if s is first else s for s in nest.body.stmts if s is first or s not in copies]
    return nest.with_body(block(*stmts))
