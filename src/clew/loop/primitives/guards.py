"""Primitives on conditions: skip work, and remove or add conditions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from clew.ir.dims import Dim, Facts, SymDim, at_least, ceil_div, dim_max, dim_min, typical
from clew.loop.affine import Linear, Simplifier, contains, divisor, is_clamp
from clew.loop.ir import (
    Block,
    For,
    If,
    Nest,
    Stmt,
    Store,
    block,
    expressions,
    map_expressions,
    single,
    transform,
    walk,
)
from clew.loop.primitives.common import (
    check_positive,
    facts_of,
    primitive,
    replace_index,
    rewrite_loops,
)
from clew.support.errors import ScheduleError
from clew.te.expr import (
    COMPARISONS,
    INDEX,
    Binary,
    Cast,
    Imm,
    Index,
    Inlined,
    Load,
    Scalar,
    Select,
    all_of,
    binary,
    conjuncts,
    select,
    size,
    unary,
)
from clew.te.interpret import identity_of
from clew.te.walk import nodes, over, post_order, substitute

# A range of iterations without conditions is worth its code if it has more of them than others.
_WORTHWHILE: Final = 3


@primitive
def skip_padding(nest: Nest, simplifier: Simplifier, *, stage: str, lanes: str = "") -> Nest:
    """`s += select(c, x, 0) * w` becomes `if c: s += x * w`, and `s max= select(c, x, -inf)`
    becomes `if c: s max= x`: iterations that contribute nothing are skipped. Parts of `c` move
    outward as far as possible.

    A product with zero is skipped, which is equivalent unless `w` is not finite. Conditions that
    depend on the loop `lanes` stay: loading zeros in some lanes costs nothing.

    Errors: S026 if the stage reduces no such values.
    """
    found = False

    def visit(stmt: Stmt) -> Stmt | None:
        nonlocal found
        if isinstance(stmt, Store) and stmt.stage == stage and stmt.combiner:
            padding = padding_of(stmt)
            if padding is None:
                return None
            found = True
            conds = conjuncts(padding.cond)
            kept = [c for c in conds if _depends(c, lanes)]
            x = select(all_of(*kept), padding.a, padding.b)
            body: Stmt = replace(stmt, value=substitute(stmt.value, {id(padding): x}))
            for cond in conds:
                if cond not in kept:
                    body = If(cond, body)
            return body
        if isinstance(stmt, For) and isinstance(stmt.body, If):
            return _raised(stmt)
        return None

    body = transform(nest.body, visit)
    if not found:
        raise ScheduleError(
            "S026",
            f"stage {stage!r} of {nest.name} reduces no padding",
            hint="inline the padding into it first",
        )
    return nest.with_body(body)


def padding_of(store: Store) -> Select | None:
    """Returns the `select(c, x, neutral)` that a reduction combines, or that is a factor of a sum's
    product; None if there is none.
    """
    sums = store.combiner == "sum"
    value = _bare(store.value, casts=sums)
    if isinstance(value, Select) and isinstance(value.b, Imm):
        return value if value.b.value == identity_of(store.combiner, value.dtype) else None
    if not sums or not isinstance(value, Binary) or value.op != "mul":
        return None
    for side in (_bare(value.a, casts=True), _bare(value.b, casts=True)):
        if isinstance(side, Select) and isinstance(side.b, Imm) and side.b.value == 0:
            return side
    return None


def _bare(value: Scalar, *, casts: bool) -> Scalar:
    """Returns the value inside inlined stages and, with `casts`, conversions (zero stays zero)."""
    while isinstance(value, Inlined) or (casts and isinstance(value, Cast)):
        value = value.value if isinstance(value, Inlined) else value.a
    return value


def _depends(cond: Scalar, loop: str) -> bool:
    return any(isinstance(n, Index) and n.name == loop for n in nodes(cond))


def _raised(loop: For) -> Stmt:
    """Returns a loop with guards that do not depend on it moved around it."""
    inside: list[Scalar] = []
    outside: list[Scalar] = []
    body: Stmt = loop.body
    while isinstance(body, If):
        (inside if contains(body.cond, loop.index) else outside).append(body.cond)
        body = body.body
    for cond in reversed(inside):
        body = If(cond, body)
    result: Stmt = replace(loop, body=body)
    for cond in reversed(outside):
        result = If(cond, result)
    return result


@primitive
def widen(nest: Nest, simplifier: Simplifier, *, loop: str, by: int) -> Nest:
    """`for i in n: s` becomes `for i in n + by: if i < n: s`.

    If the loop is then fused with the loop around it, the fused loop runs over positions with a
    pitch of n + `by`: for example, over the pixels of lines that are stored with `by` zeros between
    them.

    Errors: S001, S004; S006 for a loop that is no longer serial.
    """
    check_positive("by", by)

    def rewrite(found: For) -> Stmt:
        if found.kind != "serial":
            raise ScheduleError("S006", f"loop {loop} is already {found.kind}", hint="widen first")
        index = found.index.part(found.name, found.size + by)
        cond = binary("lt", index, size(found.size))
        return For(index, found.kind, If(cond, replace_index(found.body, found.index, index)))

    return rewrite_loops(nest, loop, rewrite)


@primitive
def share_guards(nest: Nest, simplifier: Simplifier, *, loop: str) -> Nest:
    """Moves guards below `loop` outward as far as possible, and merges neighbors with equal guards.

    ```
    for i in n: { for j: if c(i): s;  for k: if c(i): t }      becomes
    for i in n: if c(i): { for j: s;  for k: t }
    ```

    Errors: S001.
    """

    def visit(stmt: Stmt) -> Stmt | None:
        if isinstance(stmt, For) and isinstance(stmt.body, If):
            return _raised(stmt)
        return _shared(stmt, simplifier) if isinstance(stmt, Block) else None

    def rewrite(found: For) -> Stmt:
        return replace(found, body=transform(found.body, visit))

    return rewrite_loops(nest, loop, rewrite)


def _shared(stmt: Block, simplifier: Simplifier) -> Stmt | None:
    """Returns a block within the conditions that all of its statements share; None if there are
    none.
    """
    peeled: list[tuple[dict[object, Scalar], Stmt]] = []
    for inner in stmt.stmts:
        conds: dict[object, Scalar] = {}
        body = inner
        while isinstance(body, If):
            conds.update((_same(c, simplifier), c) for c in conjuncts(body.cond))
            body = body.body
        peeled.append((conds, body))
    common = {
        key: cond
        for key, cond in (peeled[0][0] if peeled else {}).items()
        if all(key in conds for conds, _ in peeled)
    }
    if not common:
        return None
    bodies: list[Stmt] = []
    for conds, body in peeled:
        for key, cond in reversed(conds.items()):
            if key not in common:
                body = If(cond, body)
        bodies.append(body)
    result: Stmt = block(*bodies)
    for cond in common.values():
        result = If(cond, result)
    return result


def _same(cond: Scalar, simplifier: Simplifier) -> object:
    """Returns a key that is equal for comparisons of the same positions, and different for
    others.
    """
    if not isinstance(cond, Binary) or cond.op not in COMPARISONS or _compares_values(cond):
        return id(cond)
    difference = simplifier.linear(binary("sub", cond.a, cond.b))
    if any(isinstance(part, Load) for atom, _ in difference.terms for part in nodes(atom)):
        return id(cond)
    terms = frozenset((id(atom), c) for atom, c in difference.terms)
    return cond.op, terms, difference.const


@primitive
def partition(nest: Nest, simplifier: Simplifier, *, loop: str, clamps: bool = False) -> Nest:
    """Splits a loop into the iterations before, in and after the range in which every condition on
    it holds for all iterations of inner loops; the middle part needs no condition.

    ```
    for i in n: if 1 <= i < n - 1: s      becomes
    for i in 1: if ...: s; for i in n - 2: s; for i in 1: if ...: s
    ```

    With `clamps`, each `min` and `max` of positions is a condition, too: that its value is the
    operand that it has in the middle of the loop.

    A loop without such a range stays unchanged; so does one of a size that only a run knows, if the
    range has few iterations at typical sizes. At such a size, the parts before and after the range
    may overlap; where selects have conditions, the overlap becomes another part.

    Errors: S001; S006 for a loop that is vectorized or parallel.
    """

    def rewrite(found: For) -> Stmt:
        if found.kind in ("vector", "parallel"):
            raise ScheduleError(
                "S006", f"loop {loop} is already {found.kind}", hint="partition it first"
            )
        if isinstance(found.size, SymDim):
            return _by_size(found, simplifier, clamps=clamps)
        first, last = _decided(found, simplifier, clamps=clamps)
        if first > last or (first == 0 and last == found.extent - 1):
            return found
        pieces = [(0, first), (first, last + 1), (last + 1, found.extent)]
        return single([_part(found, *p, simplifier) for p in pieces if p[0] < p[1]])

    return rewrite_loops(nest, loop, rewrite)


@primitive
def check_whole(nest: Nest, simplifier: Simplifier, *, loop: str) -> Nest:
    """Checks once in each iteration of a loop whether all conditions below it hold, for all
    iterations of inner loops. If so, nothing inside is checked.

    ```
    for i in n: for j in 6: s(select(4 * i + j < m, x, 0))      becomes
    for i in n: { if 4 * i + 5 < m: for j in 6: s(x);
                  if not 4 * i + 5 < m: for j in 6: s(select(4 * i + j < m, x, 0)) }
    ```

    A loop without such conditions stays unchanged.

    Errors: S001.
    """

    def rewrite(found: For) -> Stmt:
        inner = [s.index for s in walk(found.body) if isinstance(s, For)]
        tightest: dict[object, Linear] = {}
        decided: set[int] = set()
        guards, selects = _positions_compared(found.body)
        for cond in (*guards, *selects):
            margin = _least_margin(cond, inner, simplifier)
            if margin is None or not margin.terms:
                continue
            decided.add(id(cond))
            key = frozenset((id(atom), coefficient) for atom, coefficient in margin.terms)
            known = tightest.get(key)
            if known is None or at_least(known.const - margin.const, 0):
                tightest[key] = margin
            elif not at_least(margin.const - known.const, 0):
                return found  # sizes decide which is the tightest
        if not tightest:
            return found
        whole = all_of(*(binary("ge", simplifier.rebuild(m), 0) for m in tightest.values()))
        free = _without_conditions(found.body, decided)
        return replace(found, body=block(If(whole, free), If(unary("not", whole), found.body)))

    return rewrite_loops(nest, loop, rewrite)


def _least_margin(cond: Scalar, inner: Sequence[Index], simplifier: Simplifier) -> Linear | None:
    """Returns a form that is at least 0 if and only if a condition holds in all iterations of inner
    loops; None if there is no such form.
    """
    if not isinstance(cond, Binary) or cond.op not in ("lt", "le", "gt", "ge"):
        return None
    a, b = (cond.a, cond.b) if cond.op in ("ge", "gt") else (cond.b, cond.a)
    margin = simplifier.linear(binary("sub", a, b))
    low: Dim = margin.const - int(cond.op in ("gt", "lt"))
    outer: list[tuple[Scalar, Dim]] = []
    for atom, coefficient in margin.terms:
        if isinstance(atom, Index) and atom in inner:
            if not isinstance(coefficient, int):
                return None
            low = low + min(coefficient, 0) * (atom.extent - 1)
        elif any(contains(atom, index) for index in inner):
            return None
        else:
            outer.append((atom, coefficient))
    return Linear(tuple(outer), low)


def _without_conditions(body: Stmt, decided: Collection[int]) -> Stmt:
    """Returns a copy of a statement in which conditions that hold are not checked."""

    def left(cond: Scalar) -> Scalar:
        return all_of(*(c for c in conjuncts(cond) if id(c) not in decided))

    def rewritten(expr: Scalar) -> Scalar:
        chosen = {
            id(node): select(left(node.cond), node.a, node.b)
            for node in nodes(expr)
            if isinstance(node, Select) and any(id(c) in decided for c in conjuncts(node.cond))
        }
        return substitute(expr, chosen)

    def visit(stmt: Stmt) -> Stmt | None:
        if not isinstance(stmt, If):
            return None
        rest = left(stmt.cond)
        return stmt.body if isinstance(rest, Imm) else replace(stmt, cond=rest)

    return map_expressions(transform(body, visit), rewritten)


def _part(loop: For, start: int, stop: int, simplifier: Simplifier) -> For:
    return _piece(loop, start, stop - start, simplifier)


def _piece(loop: For, start: Dim, extent: Dim, simplifier: Simplifier, facts: Facts = ()) -> For:
    index = loop.index.part(loop.name, extent, facts)
    # A part that has at most one iteration is at a fixed position.
    at: Scalar = size(start) if at_least(1 - extent) else binary("add", index, size(start))
    value = simplifier.simplify(at)
    return For(index, loop.kind, replace_index(loop.body, loop.index, value))


def _by_size(loop: For, simplifier: Simplifier, *, clamps: bool) -> Stmt:
    """Returns the pieces of a loop of a free size. Each may have no iterations at some sizes."""
    first: Dim = 0
    stop: Dim = loop.size
    guards, selects = _conditions(loop.body, loop.index)
    margins = _margins(loop, (*guards, *selects), simplifier, clamps=clamps)
    if margins is None:
        return loop
    for step, needed in margins:
        if step > 0:
            first = dim_max(first, ceil_div(needed, step))
        else:
            stop = dim_min(stop, (-1 * needed) // -step + 1)
    between = dim_max(stop - first, 0)
    if typical(between) < _WORTHWHILE:
        return loop
    before = dim_min(loop.size, first)  # in this order, a bound in numbers is found
    runs = stop - first - between  # is 0 if the middle part has iterations
    middle = _piece(loop, first, between, simplifier, facts_of(runs))
    if not selects or first == 0 or stop == loop.size:
        end = first + between  # the last part has iterations only if `first` is less than the size
        rest = loop.size - before - between
        pieces = [_piece(loop, 0, before, simplifier), middle, _piece(loop, end, rest, simplifier)]
        return single([piece for piece in pieces if piece.size != 0])
    # Selects are evaluated for each element, so the outer parts keep only the conditions that may
    # fail there, unless they overlap.
    whole = dim_max(stop, 0)
    left, right = dim_min(first, whole), dim_max(before, whole)
    pieces = [
        _piece(loop, 0, left, simplifier, facts_of(stop - left)),
        _piece(loop, left, before - left, simplifier),
        middle,
        _piece(loop, right, loop.size - right, simplifier, facts_of(right - first)),
    ]
    return single([piece for piece in pieces if piece.size != 0])


def _decided(loop: For, simplifier: Simplifier, *, clamps: bool) -> tuple[int, int]:
    """Returns the first and last iteration in which all conditions on the loop variable hold,
    except those that never hold; an empty range if that is unknown.
    """
    first, last = 0, loop.extent - 1
    guards, selects = _conditions(loop.body, loop.index)
    conds = [c for c in (*guards, *selects) if not _never_holds(c, simplifier)]
    margins = _margins(loop, conds, simplifier, clamps=clamps)
    if margins is None:
        return 1, 0
    for step, needed in margins:
        if not isinstance(needed, int):
            return 1, 0
        if step > 0:
            first = max(first, -(-needed // step))
        else:
            last = min(last, needed // step)
    return first, last


def _margins(
    loop: For, conds: Sequence[Scalar], simplifier: Simplifier, *, clamps: bool
) -> list[tuple[int, Dim]] | None:
    """Returns the margin of each condition on a loop variable; None if one has no bound. Clamps
    that have none stay.
    """
    found = [_margin(cond, loop.index, simplifier) for cond in conds]
    if None in found:
        return None
    return [m for m in found if m] + (_clamps(loop, simplifier) if clamps else [])


def _clamps(loop: For, simplifier: Simplifier) -> list[tuple[int, Dim]]:
    """Returns a margin for each `min` and `max` of positions that depends on a loop: where it has
    the same operand as in the middle of the loop. Inner ones are replaced by their operands.
    """
    found: list[tuple[int, Dim]] = []
    images: dict[int, Scalar] = {}
    for stmt in walk(loop.body):
        for expr in expressions(stmt):
            for node in post_order(expr, images):
                new = over(node, tuple([images[id(c)] for c in node.children]))
                images[id(node)] = new
                if not isinstance(new, Binary) or not is_clamp(new):
                    continue
                if not contains(new, loop.index):
                    continue
                sides = (new.a, new.b) if new.op == "max" else (new.b, new.a)
                for above, below, kept in ((*sides, new.a), (*reversed(sides), new.b)):
                    margin = _margin(binary("ge", above, below), loop.index, simplifier)
                    if margin and _holds_in_the_middle(loop, *margin):
                        found.append(margin)
                        images[id(node)] = kept
                        break
    return found


def _holds_in_the_middle(loop: For, step: int, needed: Dim) -> bool:
    # One dimension, so that both sides are evaluated at the same sizes.
    return typical(step * (loop.size // 2) - needed) > 1


def _conditions(body: Stmt, index: Index) -> tuple[list[Scalar], list[Scalar]]:
    """Returns the comparisons below a loop that depend on its variable: those in guards, and those
    that are only in selects.
    """
    guards, selects = _positions_compared(body)
    return [c for c in guards if contains(c, index)], [c for c in selects if contains(c, index)]


def _positions_compared(body: Stmt) -> tuple[list[Scalar], list[Scalar]]:
    """Returns the comparisons of positions in a statement: those in guards, and those that are only
    in selects.
    """
    guards: dict[int, Scalar] = {}
    selects: dict[int, Scalar] = {}
    seen: set[int] = set()
    stack: list[Scalar] = []
    for stmt in walk(body):
        if isinstance(stmt, If):
            guards.update((id(c), c) for c in conjuncts(stmt.cond))
        stack.extend(expressions(stmt))
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, Select):
            selects.update((id(c), c) for c in conjuncts(node.cond) if id(c) not in guards)
        stack.extend(node.children)
    # Comparisons of values, rather than positions, are evaluated everywhere.
    kept = [[c for c in found.values() if not _compares_values(c)] for found in (guards, selects)]
    return kept[0], kept[1]


def _compares_values(cond: Scalar) -> bool:
    return isinstance(cond, Binary) and cond.op in COMPARISONS and cond.a.dtype != INDEX


def _never_holds(cond: Scalar, simplifier: Simplifier) -> bool:
    """Whether a condition holds in no iteration of any loop."""
    if not isinstance(cond, Binary) or cond.op not in ("lt", "le", "gt", "ge"):
        return False
    a, b = (cond.a, cond.b) if cond.op in ("ge", "gt") else (cond.b, cond.a)
    _, high = simplifier.bounds(binary("sub", a, b))
    return isinstance(high, int) and high < int(cond.op in ("gt", "lt"))


def _margin(cond: Scalar, index: Index, simplifier: Simplifier) -> tuple[int, Dim] | None:
    """Returns a factor other than 0 and a bound: the condition certainly holds where the factor
    times the loop variable is at least the bound. None if there is no such bound.
    """
    if not isinstance(cond, Binary) or cond.op not in ("lt", "le", "gt", "ge"):
        return None
    a, b = (cond.a, cond.b) if cond.op in ("ge", "gt") else (cond.b, cond.a)
    margin = simplifier.linear(binary("sub", a, b))
    margin = replace(margin, const=margin.const - int(cond.op in ("gt", "lt")))  # at least 0
    margin = _without_quotient(margin, simplifier)
    step = margin.coefficient(index)
    rest = margin.without(index)
    if not step or rest.depends_on(index) or not isinstance(step, int):
        return None
    low, _ = simplifier.range_of(rest)
    if not isinstance(low, (int, SymDim)):
        return None
    return step, -1 * low


def _without_quotient(margin: Linear, simplifier: Simplifier) -> Linear:
    """Returns a form that is at least 0 where `margin` is; of `a // n + k`, or of `k - a // n`, one
    without the quotient.
    """
    if len(margin.terms) != 1:
        return margin
    ((atom, sign),) = margin.terms
    by = divisor(atom, "floordiv")
    if not isinstance(by, int) or not isinstance(sign, int) or abs(sign) != 1:
        return margin
    assert isinstance(atom, Binary)
    form = simplifier.linear(atom.a)
    rest = margin.const * by + (by - 1 if sign < 0 else 0)
    terms = tuple((a, sign * c) for a, c in form.terms)
    return _without_quotient(Linear(terms, rest + sign * form.const), simplifier)
