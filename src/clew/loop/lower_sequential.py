"""Lowers stages that visit positions one after another (`te.sequential`) to loops.

Schedules keep the structure of these loops; they only distribute rows over threads and vectorize.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Final

from clew.cost.policy.ordering import (
    CHAINS_TOGETHER,
    COMPARED_TOGETHER,
    DIGIT_BITS,
    FEW_DIGIT_BITS,
    FEW_WANTED,
    LONG_DIGIT_BITS,
    LONG_ROW,
    MOST_RANKED,
    PART_OF_LOOP,
    RANKED_TOGETHER,
)
from clew.ir.dims import Dim, ceil_div, product, typical
from clew.loop.affine import Simplifier, contains
from clew.loop.ir import Buffer, For, If, Scope, Stmt, Store, block, nested
from clew.te.expr import (
    INDEX,
    Imm,
    Index,
    Load,
    Scalar,
    Sequential,
    all_of,
    as_scalar,
    binary,
    cast,
    conjuncts,
    minimum,
    select,
    size,
)
from clew.te.interpret import identity_of
from clew.te.long_sums import accumulator
from clew.te.roles import IN_ORDER
from clew.te.sequential import Collect, Follow, Greedy, Scan, Scatter, Sort
from clew.te.tensor import Tensor
from clew.te.walk import substitute

_MOST_I32: Final = (1 << 31) - 1
_ONLY: Final = (Imm(0, INDEX),)

OnBuffers = Callable[[Scalar, dict[int, Scalar]], Scalar]
"""Returns an expression that loads from buffers, with axes (by id) replaced."""


def lower_sequential(
    stage: Tensor, buffer: Buffer, on_buffers: OnBuffers, *, starts: bool = True
) -> list[Stmt]:
    """Returns the loops of a sequential stage that writes `buffer`. Without `starts`, it is a
    scatter, and the buffer already holds the elements that it starts from.
    """
    body = stage.body
    assert isinstance(body, Sequential)
    visited = body.visits(stage.axes)
    is_apart = isinstance(body, Scatter) and body.apart
    in_order = set() if is_apart else set(map(id, body.over))
    axes = {
        id(a): Index(f"{stage.name}.{a.name}", a.extent, IN_ORDER if id(a) in in_order else a.role)
        for a in visited
    }

    def value(expr: Scalar) -> Scalar:
        return on_buffers(expr, dict(axes))

    match body:
        case Collect():
            return _collect(stage, body, buffer, [axes[id(a)] for a in visited], value)
        case Scatter():
            begin = _start(stage, body, buffer, on_buffers) if starts else []
            return begin + _updates(stage, body, buffer, axes, on_buffers)
        case Scan():
            return _scan(stage, body, buffer, axes, on_buffers)
        case Sort():
            return _sort(stage, body, buffer, [axes[id(a)] for a in visited], value)
        case Greedy():
            return _greedy(stage, body, buffer, axes, on_buffers)
        case Follow():
            return _follow(stage, body, buffer, axes, on_buffers)
    raise AssertionError(body)


def _collect(
    stage: Tensor,
    body: Collect,
    buffer: Buffer,
    axes: Sequence[Index],
    value: Callable[[Scalar], Scalar],
) -> list[Stmt]:
    """Stores every value but counts only the wanted ones, so that no branch depends on data."""
    name = stage.name
    found = _register(f"{name}.found")
    at = Load(found, _ONLY)
    step = block(
        Store(buffer, (at,), value(body.value), name),
        Store(found, _ONLY, cast(INDEX, value(body.where)), name, "sum"),
    )
    count = stage.shape[0]
    loops = nested(axes, If(at < size(count), step))
    part = Index(f"{name}.rest.part", ceil_div(count, PART_OF_LOOP), IN_ORDER)
    one = Index(f"{name}.rest", PART_OF_LOOP, IN_ORDER)
    place, nothing = part * PART_OF_LOOP + one, Imm(0, stage.dtype)
    rest = If((at <= place) & (place < size(count)), Store(buffer, (place,), nothing, name))
    ends = nested([part], If(at < (part + 1) * PART_OF_LOOP, nested([one], rest)))
    steps = [ends] if any(a.extent == 0 for a in axes) else [loops, ends]
    return [Store(found, _ONLY, Imm(0, INDEX), name), *steps]


def _start(stage: Tensor, body: Scatter, buffer: Buffer, on_buffers: OnBuffers) -> list[Stmt]:
    """Returns the loops that store the elements that a scatter starts from."""
    name = stage.name
    every = [Index(f"{name}@start.{a.name}", a.extent, a.role) for a in stage.axes]
    at = dict(zip(map(id, stage.axes), every, strict=True))
    start = Store(buffer, tuple(every), on_buffers(body.start, dict(at)), f"{name}@start")
    return [nested(every, start)]


def _updates(
    stage: Tensor, body: Scatter, buffer: Buffer, axes: dict[int, Index], on_buffers: OnBuffers
) -> list[Stmt]:
    """Returns the loops that apply the updates of a scatter."""
    name = stage.name
    if any(a.extent == 0 for a in axes.values()):
        return []
    shared = [place is axis for place, axis in zip(body.places, stage.axes, strict=True)]
    lead = shared.index(False) if False in shared else len(shared)
    outer = [axes[id(a)] for a in stage.axes[:lead]]
    inner = [
        axes[id(a)] for a, is_shared in zip(stage.axes[lead:], shared[lead:], strict=True)
        if is_shared
    ]  # fmt: skip
    places = tuple(on_buffers(place, dict(axes)) for place in body.places)
    update: Stmt = Store(buffer, places, on_buffers(body.value, dict(axes)), name, body.combiner)
    where = on_buffers(body.where, dict(axes))
    if not isinstance(where, Imm):
        update = If(where, update)
    return [nested([*outer, *(axes[id(a)] for a in body.over), *inner], update)]


def _scan(
    stage: Tensor, body: Scan, buffer: Buffer, axes: dict[int, Index], on_buffers: OnBuffers
) -> list[Stmt]:
    """The total is a register, or scratch with one total for each element of the inner axes. It is
    in a wide dtype, so that rounding errors do not grow with the number of positions.
    """
    name, (scanned,) = stage.name, body.over
    number = next(n for n, a in enumerate(stage.axes) if a is scanned)
    own = [axes[id(a)] for a in stage.axes]
    outer, along, inner = own[:number], own[number], own[number + 1 :]
    scope: Scope = "scratch" if inner else "register"
    wide = accumulator(body.combiner, stage.dtype)
    total = Buffer(f"{name}.total", tuple(a.extent for a in inner) or (1,), wide, scope)
    at: tuple[Scalar, ...] = tuple(inner) or _ONLY
    position: Scalar = size(along.extent - 1) - along if body.reverse else along
    value = on_buffers(body.value, {**axes, id(scanned): position})
    steps: list[Stmt] = [
        Store(total, at, cast(wide, value), name, body.combiner),
        Store(buffer, (*outer, position, *inner), cast(stage.dtype, Load(total, at)), name),
    ]
    if body.exclusive:
        steps.reverse()
    start = Imm(identity_of(body.combiner, wide), wide)
    row = [nested(inner, Store(total, at, start, name)), nested([along, *inner], block(*steps))]
    return [nested(outer, block(*row))] if outer else row


def _sort(
    stage: Tensor,
    body: Sort,
    buffer: Buffer,
    axes: Sequence[Index],
    value: Callable[[Scalar], Scalar],
) -> list[Stmt]:
    """A radix sort that starts with the least significant digit: each pass moves elements to their
    places by one digit, and keeps the order of elements with equal digits. If few elements take
    part, they are compared with each other instead.
    """
    count = len(stage.axes) - 1
    rows, over = axes[:count], axes[count:]
    sorting = _Sorting(stage, body, buffer, rows, over, value)
    passes = [*sorting.counters(), *map(sorting.moves, range(sorting.passes))]
    steps = [*sorting.begin(), *sorting.by_number(passes)]
    return [nested(rows, block(*steps))] if rows else steps


class _Sorting:
    """The loops that sort one row."""

    def __init__(
        self,
        stage: Tensor,
        body: Sort,
        buffer: Buffer,
        rows: Sequence[Index],
        over: Sequence[Index],
        value: Callable[[Scalar], Scalar],
    ) -> None:
        self.name = name = stage.name
        self.buffer, self.rows, self.over = buffer, tuple(rows), over
        self.wanted = stage.shape[-1]
        self.total = total = product(tuple(a.extent for a in over))
        self.key, self.where = value(body.key), value(body.where)
        self.all_take_part = isinstance(self.where, Imm)
        self.digit_bits = self._best_digit_bits()
        self.digits = 1 << self.digit_bits
        dtype = body.key.dtype
        self.passes = -(-(64 if dtype == "u64" else 32) // self.digit_bits)
        place = "i32" if isinstance(total, int) and total <= _MOST_I32 else INDEX
        self.ends = Buffer(f"{name}.ends", (self.passes, self.digits), INDEX, "scratch")
        room = total
        if not (self.all_take_part and isinstance(total, int)):  # for whole parts, and to be ranked
            room = ceil_div(total, MOST_RANKED) * MOST_RANKED
        filled = room + RANKED_TOGETHER
        self.keys = [Buffer(f"{name}.keys{n}", (filled,), dtype, "scratch") for n in (0, 1)]
        self.places = [Buffer(f"{name}.places{n}", (room,), place, "scratch") for n in (0, 1)]
        self.found, self.place, self.sum = (
            _register(f"{name}.{what}") for what in ("found", "place", "sum")
        )
        self.last = stage.axes[-1]
        self.rank = Buffer(f"{name}.rank", (MOST_RANKED,), "i32", "scratch")
        self.ranks = Buffer(f"{name}.ranks", (RANKED_TOGETHER,), "i32", "register")

    def _best_digit_bits(self) -> int:
        """Returns the bits of a digit: wider digits take fewer passes but more counters."""
        if self.all_take_part:
            return LONG_DIGIT_BITS if typical(self.total) >= LONG_ROW else DIGIT_BITS
        return FEW_DIGIT_BITS if typical(self.wanted) <= FEW_WANTED else DIGIT_BITS

    def put(self, to: Buffer, at: Sequence[Scalar], what: Scalar, combiner: str = "") -> Stmt:
        """Returns a store of this stage."""
        return Store(to, tuple(at), what, self.name, combiner)

    def begin(self) -> list[Stmt]:
        """Returns the loops that store the keys of all elements that take part."""
        if self.all_take_part:
            (axis,) = self.over
            each = Index(axis.name, axis.extent)  # in any order
            key = substitute(self.key, {id(axis): each})
            return [nested([each], self.put(self.keys[0], [each], key))]
        at = Load(self.found, _ONLY)
        position: Scalar = Imm(0, INDEX)
        for axis in self.over:
            position = position * size(axis.extent) + axis
        # The next element overwrites one that takes no part, so that no branch depends on data.
        conditions = conjuncts(self.where)
        last = [c for c in conditions if contains(c, self.over[-1])]
        step: Stmt = block(
            self.put(self.keys[0], [at], self.key),
            self.put(self.places[0], [at], cast(self.places[0].dtype, position)),
            self.put(self.found, _ONLY, cast(INDEX, all_of(*last)), "sum"),
        )
        step = nested(self.over[-1:], step)
        outer = [c for c in conditions if not any(c is other for other in last)]
        if outer:
            step = If(all_of(*outer), step)
        return [self.put(self.found, _ONLY, Imm(0, INDEX)), nested(self.over[:-1], step)]

    @property
    def taking_part(self) -> Scalar:
        """How many elements take part."""
        return size(self.total) if self.all_take_part else Load(self.found, _ONLY)

    def by_number(self, passes: Sequence[Stmt]) -> Sequence[Stmt]:
        """Returns the steps that sort the elements that take part. If there are few, they are
        compared with each other.
        """
        if self.all_take_part and isinstance(self.total, int):
            return [self.ranked()] if self.total <= MOST_RANKED else passes
        number = self.taking_part
        is_few, is_many = number <= MOST_RANKED, number > MOST_RANKED
        return [If(is_few, self.ranked()), If(is_many, block(*passes))]

    def ranked(self) -> Stmt:
        """Returns the loop that stores each element at its rank: the number of elements before
        it.
        """
        found, keys, dtype = self.taking_part, self.keys[0], self.ranks.dtype
        total, wanted = (
            min(n, MOST_RANKED) if isinstance(n, int) else MOST_RANKED
            for n in (self.total, self.wanted)
        )
        part, others = (
            Index(f"{self.name}.{what}.part", -(-total // RANKED_TOGETHER), IN_ORDER)
            for what in ("ranked", "others")
        )
        after, start, copied = (
            Index(f"{self.name}.{what}", RANKED_TOGETHER)
            for what in ("after", "rank.start", "rank.copied")
        )
        first = part * RANKED_TOGETHER

        def counts(what: str, precedes: Callable[[Scalar, Scalar, Scalar], Scalar]) -> Stmt:
            """Counts, for each key of the part, the keys of another part that precede it."""
            other = Index(f"{self.name}.{what}.other", RANKED_TOGETHER, IN_ORDER)
            lane = Index(f"{self.name}.{what}", RANKED_TOGETHER)
            its_key = Load(keys, (others * RANKED_TOGETHER + other,))
            its_place, place = cast(dtype, other), cast(dtype, lane)
            holds = precedes(its_key, Load(keys, (first + lane,)), its_place < place)
            return nested([other, lane], self.put(self.ranks, [lane], cast(dtype, holds), "sum"))

        both = block(
            If(others < part, counts("before", lambda its, key, _: its <= key)),
            If(
                others.equal(part),
                counts(
                    "beside", lambda its, key, is_first: (its < key) | (its.equal(key) & is_first)
                ),
            ),
            If(others > part, counts("behind", lambda its, key, _: its < key)),
        )
        ranks = block(
            nested([start], self.put(self.ranks, [start], Imm(0, dtype))),
            nested([others], If(others * RANKED_TOGETHER < found, both)),
            nested([copied], self.put(self.rank, [first + copied], Load(self.ranks, (copied,)))),
        )
        # No branch depends on a rank: all places are put in order before the wanted ones are read.
        one = Index(f"{self.name}.ranked", total, IN_ORDER)
        n = Index(f"{self.name}.{self.last.name}", wanted)
        here = one if self.all_take_part else Load(self.places[0], (one,))
        ordered, rank = self.places[1], cast(INDEX, Load(self.rank, (one,)))
        store = self.put(ordered, [rank], cast(ordered.dtype, here))
        result = self.put(self.buffer, [*self.rows, n], cast(INDEX, Load(ordered, (n,))))
        return block(
            # Keys after the last one, which complete a part, precede no other key.
            nested([after], self.put(keys, [found + after], _highest(keys.dtype))),
            nested([part], If(first < found, ranks)),
            nested([one], If(one < found, store)),
            nested([n], If(all_of(n < found, n < size(self.wanted)), result)),
        )

    def each(self, what: str, body: Callable[[Scalar], Stmt]) -> Stmt:
        """Returns a loop over the elements that take part, by number."""
        if self.all_take_part:
            axis = Index(f"{self.name}.{what}", self.total, IN_ORDER)
            return nested([axis], body(axis))
        part = Index(f"{self.name}.{what}.part", ceil_div(self.total, PART_OF_LOOP), IN_ORDER)
        one = Index(f"{self.name}.{what}", PART_OF_LOOP, IN_ORDER)
        found, start = Load(self.found, _ONLY), part * PART_OF_LOOP
        inner = nested([one], If(start + one < found, body(start + one)))
        return nested([part], If(start < found, inner))

    def digit(self, key: Scalar, number: int) -> Scalar:
        """Returns one of a key's digits."""
        if number:
            key = binary("shr", key, as_scalar(number * self.digit_bits, key.dtype))
        return cast(INDEX, binary("and", key, as_scalar(self.digits - 1, key.dtype)))

    def counters(self) -> list[Stmt]:
        """Returns the loops that count digits for all passes at once, and then replace each count
        by the sum of the counts before it: the place of the first element with that digit.
        """
        which = Index(f"{self.name}.pass", self.passes)
        mark = Index(f"{self.name}.digit", self.digits)
        zeros = nested([which, mark], self.put(self.ends, [which, mark], Imm(0, INDEX)))

        def count(element: Scalar) -> Stmt:
            key = Load(self.keys[0], (element,))
            passes = range(self.passes)
            at = [(Imm(n, INDEX), self.digit(key, n)) for n in passes]
            return block(*(self.put(self.ends, place, Imm(1, INDEX), "sum") for place in at))

        which = Index(f"{self.name}.pass.sum", self.passes)
        mark = Index(f"{self.name}.digit.sum", self.digits, IN_ORDER)
        first = block(
            self.put(self.place, _ONLY, Load(self.sum, _ONLY)),
            self.put(self.sum, _ONLY, Load(self.ends, (which, mark)), "sum"),
            self.put(self.ends, [which, mark], Load(self.place, _ONLY)),
        )
        start = self.put(self.sum, _ONLY, Imm(0, INDEX))
        return [
            zeros,
            self.each("counted", count),
            nested([which], block(start, nested([mark], first))),
        ]

    def moves(self, number: int) -> Stmt:
        """Returns the loop of one pass, which moves elements; the last pass writes the result."""
        source, target = number % 2, 1 - number % 2

        def move(element: Scalar) -> Stmt:
            key = Load(self.keys[source], (element,))
            first = number == 0 and self.all_take_part
            here = element if first else Load(self.places[source], (element,))
            at = (Imm(number, INDEX), self.digit(key, number))
            # Every place is valid, but is clamped anyway, because it is computed from data.
            limit = minimum(Load(self.ends, at), size(self.total) - 1)
            place = Load(self.place, _ONLY)
            steps = [self.put(self.place, _ONLY, limit)]
            steps.append(self.put(self.ends, at, Imm(1, INDEX), "sum"))
            if number < self.passes - 1:
                steps.append(self.put(self.keys[target], [place], key))
                moved = cast(self.places[target].dtype, here)
                steps.append(self.put(self.places[target], [place], moved))
            else:
                last = self.put(self.buffer, [*self.rows, place], cast(INDEX, here))
                is_wanted = place < size(self.wanted)
                steps.append(last if self.wanted == self.total else If(is_wanted, last))
            return block(*steps)

        return self.each(f"element{number}", move)


def _follow(
    stage: Tensor, body: Follow, buffer: Buffer, axes: dict[int, Index], on_buffers: OnBuffers
) -> list[Stmt]:
    """Follows several chains at once, those of neighbors along an axis, until all have ended. A
    chain that has ended keeps its place, so that no branch depends on a single chain.
    """
    name, number = stage.name, _along(stage.shape)
    axis, extent = axes[id(stage.axes[number])], stage.shape[number]
    parts = ceil_div(extent, CHAINS_TOGETHER)
    chains = (
        -(-extent // parts)
        if isinstance(extent, int) and isinstance(parts, int)
        else CHAINS_TOGETHER
    )
    ragged = not isinstance(extent, int) or extent % chains != 0
    part = Index(f"{axis.name}.part", ceil_div(extent, chains), axis.role)
    own = [axes[id(a)] for a in stage.axes]
    before, after = own[:number], own[number + 1 :]
    places, following = (
        Buffer(f"{name}.{what}", (chains,), INDEX, "register") for what in ("places", "following")
    )

    def each(what: str, steps: Callable[[Index, Scalar], Stmt]) -> Stmt:
        chain = Index(f"{name}.{what}", chains)
        return For(chain, "unroll", steps(chain, part * chains + chain))

    def value(expr: Scalar, here: Scalar, place: Scalar) -> Scalar:
        inside = minimum(here, size(extent - 1)) if ragged else here
        return on_buffers(expr, {**axes, id(stage.axes[number]): inside, id(body.over[1]): place})

    def first(chain: Index, here: Scalar) -> Stmt:
        return Store(places, (chain,), value(body.start, here, chain), name)

    def advance(chain: Index, here: Scalar) -> Stmt:
        place = Load(places, (chain,))
        kept = select(place < 0, place, Load(following, (chain,)))
        return block(
            Store(following, (chain,), value(body.following, here, place), name),
            Store(places, (chain,), kept, name),
        )

    def last(chain: Index, here: Scalar) -> Stmt:
        found = value(body.found, here, Load(places, (chain,)))
        store = Store(buffer, (*before, here, *after), found, name)
        return If(here < size(extent), store) if ragged else store

    # Its sign is set if all chains have ended.
    each_place: list[Scalar] = [Load(places, (Imm(n, INDEX),)) for n in range(chains)]
    all_places = reduce(partial(binary, "and"), each_place)
    total = body.over[0].extent
    group = Index(f"{name}.{body.over[0].name}.part", ceil_div(total, PART_OF_LOOP), IN_ORDER)
    one = Index(
        f"{name}.{body.over[0].name}",
        min(total, PART_OF_LOOP) if isinstance(total, int) else PART_OF_LOOP,
        IN_ORDER,
    )
    goes_on = all_of(group * PART_OF_LOOP + one < size(total), all_places >= 0)
    steps = nested([group], If(all_places >= 0, nested([one], If(goes_on, each("chain", advance)))))
    return [nested([*before, part, *after], block(each("first", first), steps, each("last", last)))]


def _along(shape: Sequence[Dim]) -> int:
    """Returns the first axis with enough elements for several chains, or the longest axis."""
    extents = list(map(typical, shape))
    return next(
        (n for n, e in enumerate(extents) if e >= CHAINS_TOGETHER), extents.index(max(extents))
    )


def _greedy(
    stage: Tensor, body: Greedy, buffer: Buffer, axes: dict[int, Index], on_buffers: OnBuffers
) -> list[Stmt]:
    """The loops of a greedy selection. When a candidate is kept, all that comparisons read of it is
    stored in scratch, so that vectors compare a candidate with several kept ones.
    """
    rows = [axes[id(a)] for a in stage.axes[:-1]]
    selection = _Selection(stage, body, buffer, axes, on_buffers)
    steps = [selection.fill()]
    if body.over[0].extent != 0:
        steps += [*selection.begin(), selection.visits()]
    return [nested(rows, block(*steps))] if rows else steps


class _Selection:
    """The loops of a greedy selection in one row."""

    def __init__(
        self,
        stage: Tensor,
        body: Greedy,
        buffer: Buffer,
        axes: dict[int, Index],
        on_buffers: OnBuffers,
    ) -> None:
        self.name, self.buffer, self.body = stage.name, buffer, body
        self.axes, self.on_buffers = axes, on_buffers
        self.rows = tuple(axes[id(a)] for a in stage.axes[:-1])
        self.last, self.most = stage.axes[-1], stage.shape[-1]
        self.total = body.over[0].extent
        self.found, self.count, self.limit = (
            _register(f"{self.name}.{what}") for what in ("found", "count", "limit")
        )
        self.kept = Load(self.found, _ONLY)
        self.clashes = Buffer(f"{self.name}.clashes", (1,), "bool", "register")
        self.clash = Load(self.clashes, _ONLY)
        self.structures = Simplifier()  # numbers parts of equal structure

    def put(self, to: Buffer, at: Sequence[Scalar], what: Scalar, combiner: str = "") -> Stmt:
        """Returns a store of this stage."""
        return Store(to, tuple(at), what, self.name, combiner)

    def fill(self) -> Stmt:
        """Returns the loop that sets the whole row to -1."""
        place = Index(f"{self.name}.{self.last.name}", self.most)
        return nested([place], self.put(self.buffer, (*self.rows, place), self.nothing))

    @property
    def nothing(self) -> Scalar:
        """The value after the last kept candidate."""
        return Imm(-1, self.buffer.dtype)

    def begin(self) -> list[Stmt]:
        """Returns the steps before the first candidate."""
        bounds = [
            (self.count, self.body.count, self.total),
            (self.limit, self.body.most, self.most),
        ]
        return [
            self.put(self.found, _ONLY, Imm(0, INDEX)),
            *(
                self.put(register, _ONLY, minimum(self.on_buffers(value, dict(self.axes)), size(d)))
                for register, value, d in bounds
            ),
        ]

    def visits(self) -> Stmt:
        """Returns the loop over candidates."""
        part = Index(f"{self.name}.part", ceil_div(self.total, PART_OF_LOOP), IN_ORDER)
        one = Index(f"{self.name}.{self.body.over[0].name}", PART_OF_LOOP, IN_ORDER)
        place = part * PART_OF_LOOP + one
        visit = If(self.goes_on(place), self.visit(place))
        return nested([part], If(self.goes_on(part * PART_OF_LOOP), nested([one], visit)))

    def goes_on(self, place: Scalar) -> Scalar:
        """Returns whether there is a candidate at a place, and room to keep another one."""
        left = self.kept < Load(self.limit, _ONLY)
        return all_of(place < size(self.total), place < Load(self.count, _ONLY), left)

    def visit(self, place: Scalar) -> Stmt:
        """Returns the steps for one candidate: comparisons with kept ones until one clashes, then
        stores. If one clashed, the next candidate overwrites these, so they need no branch.
        """
        values: dict[int, Scalar] = {}
        groups = Index(f"{self.name}.kept.part", ceil_div(self.most, PART_OF_LOOP), IN_ORDER)
        blocks = Index(f"{self.name}.kept.block", PART_OF_LOOP // COMPARED_TOGETHER, IN_ORDER)
        slot = Index(f"{self.name}.kept", COMPARED_TOGETHER)
        first = groups * PART_OF_LOOP + blocks * COMPARED_TOGETHER
        at = {**self.axes, **dict.fromkeys(map(id, self.body.over), place)}
        known, own = self.own_parts(at, slot, values)
        stored = self.stored_parts(at, known, first + slot, groups.extent * PART_OF_LOOP, values)
        compare = self.put(self.clashes, _ONLY, substitute(self.body.clash, values), "or")
        inner = nested([slot], If(first + slot < self.kept, compare))
        inner = nested([blocks], If(all_of(first < self.kept, ~self.clash), inner))
        value = select(self.clash, self.nothing, self.on_buffers(self.body.value, dict(at)))
        return block(
            *own,
            self.put(self.clashes, _ONLY, Imm(False, "bool")),
            nested([groups], If(all_of(groups * PART_OF_LOOP < self.kept, ~self.clash), inner)),
            *stored,
            self.put(self.buffer, (*self.rows, self.kept), value),
            self.put(self.found, _ONLY, cast(INDEX, ~self.clash), "sum"),
        )

    def own_parts(
        self, at: dict[int, Scalar], slot: Index, values: dict[int, Scalar]
    ) -> tuple[dict[int, Scalar], list[Stmt]]:
        """Returns the parts of a comparison that do not depend on the kept candidate, by their
        structure, and the steps that compute them, once as a scalar and once in every lane. Adds
        the latter to `values`.
        """
        numbers: dict[int, Scalar] = {}
        known: dict[int, Scalar] = {}
        steps: list[Stmt] = []
        copies: list[Stmt] = []
        lane = Index(f"{self.name}.lane", COMPARED_TOGETHER)
        fixed, _ = self.body.parts()
        for number, part in enumerate(fixed):
            register = Buffer(f"{self.name}.own{number}", (1,), part.dtype, "register")
            steps.append(self.put(register, _ONLY, self.on_buffers(part, {**at, **numbers})))
            value = numbers[id(part)] = Load(register, _ONLY)
            known[self.structures.number(part)] = value
            copy = Buffer(
                f"{self.name}.own{number}.lanes", (COMPARED_TOGETHER,), part.dtype, "register"
            )
            copies.append(self.put(copy, [lane], value))
            values[id(part)] = Load(copy, (slot,))
        if copies:
            steps.append(nested([lane], block(*copies)))
        return known, steps

    def stored_parts(
        self,
        at: dict[int, Scalar],
        known: dict[int, Scalar],
        place: Scalar,
        room: Dim,
        values: dict[int, Scalar],
    ) -> list[Stmt]:
        """Returns the stores of the parts that depend only on the kept candidate, and adds their
        values at `place` among the kept ones to `values`.
        """
        steps: list[Stmt] = []
        candidate, other = self.body.over
        _, stored = self.body.parts()
        for number, part in enumerate(stored):
            scratch = Buffer(f"{self.name}.stored{number}", (room,), part.dtype, "scratch")
            same = self.structures.number(substitute(part, {id(other): candidate}))
            value = known[same] if same in known else self.on_buffers(part, dict(at))
            steps.append(self.put(scratch, [self.kept], value))
            values[id(part)] = Load(scratch, (place,))
        return steps


def _register(name: str) -> Buffer:
    return Buffer(name, (1,), INDEX, "register")


def _highest(dtype: str) -> Imm:
    return Imm((1 << (64 if dtype == "u64" else 32)) - 1, dtype)
