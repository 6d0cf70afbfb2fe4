"""Sums of products in the form of instructions: their operands and the layout of these in memory.

A dot product instruction adds the products of a *group* of neighbors to each lane: as many as fit
32 bits (2 of `bf16` or `i16`, 4 of 8-bit integers). A matrix unit reads tiles: of the left operand,
rows with contiguous depth; of the right operand, groups of rows by columns, the group innermost.
"""

from __future__ import annotations

from collections.abc import Iterator

from clew.ir.dims import ceil_div
from clew.ir.types import bits
from clew.loop.affine import Linear, Simplifier, contains
from clew.loop.ir import (
    Block,
    Buffer,
    For,
    If,
    Prefetch,
    Stmt,
    Store,
    TileProduct,
    stores_in,
    walk,
)
from clew.machine.units import TILE_ROW_BYTES, TILE_ROWS, TILES
from clew.support.dataclass import dataclass
from clew.support.errors import ScheduleError
from clew.te.expr import (
    INDEX,
    Binary,
    Cast,
    Imm,
    Index,
    Inlined,
    Load,
    Scalar,
    ShortFactor,
    all_of,
    binary,
    size,
)
from clew.te.walk import nodes, substitute

GROUP_BITS = 32
_SMALL = ("i8", "u8")


@dataclass(frozen=True)
class Product:
    """A store that adds `wide(a) * wide(b)`; `group` neighbors of each operand fit 32 bits, those
    of `i8` beside `i16` after they are widened.

    `pairs_fit` states that 16 bits hold the sum of any two products. `numbers` are the factors
    before they are widened: the loads `a` and `b`, or codes of a few bits that are unpacked from
    what these load.
    """

    a: Load
    b: Load
    wide: str
    numbers: tuple[Scalar, Scalar]
    pairs_fit: bool = False

    @property
    def group(self) -> int:
        """The number of elements of an operand that fit 32 bits."""
        return GROUP_BITS // max(bits(self.a.dtype), bits(self.b.dtype))


def product_of(store: Stmt) -> Product | None:
    """Returns the product of narrow operands that a store accumulates, or None."""
    if not isinstance(store, Store) or store.combiner != "sum":
        return None
    value = _plain(store.value)
    if not (isinstance(value, Binary) and value.op == "mul"):
        return None
    numbers = _narrow(value.a), _narrow(value.b)
    a, b = map(_unpacked_from, numbers)
    if a is None or b is None:
        return None
    floats = (a.dtype, b.dtype, value.dtype) == ("bf16", "bf16", "f32")
    pairs = value.dtype == "i32" and (
        a.dtype == b.dtype == "i16"
        or ({a.dtype, b.dtype} == {"i16", "i8"} and numbers == (a, b))  # no codes of a few bits
    )
    integers = a.dtype in _SMALL and b.dtype in _SMALL and value.dtype == "i32"
    fit = any(isinstance(_plain(x), ShortFactor) for x in value.children)
    if not (floats or pairs or integers):
        return None
    return Product(a, b, value.dtype, numbers, fit)


def _plain(value: Scalar) -> Scalar:
    while isinstance(value, Inlined):
        value = value.value
    return value


def _narrow(value: Scalar) -> Scalar:
    """Returns a factor before it is widened."""
    value = _plain(value)
    return _plain(value.a) if isinstance(value, Cast) else value


def _unpacked_from(number: Scalar) -> Load | None:
    """Returns the load of a factor or, for some bits of an integer, moved by shifts, that of the
    integer; None for others.
    """
    while isinstance(number, Binary) and number.op in ("shl", "shr", "and"):
        if any(isinstance(node, Load) for node in nodes(number.b)):
            return None
        number = _plain(number.a)
    return number if isinstance(number, Load) else None


def offset_of(buffer: Buffer, indices: tuple[Scalar, ...], simplifier: Simplifier) -> Linear:
    """Returns the offset in elements of an access."""
    total: Scalar = Imm(0, INDEX)
    for position, step in zip(indices, buffer.strides, strict=True):
        total = binary("add", total, binary("mul", position, size(step)))
    return simplifier.flatten(simplifier.linear(total))


def step_along(form: Linear, index: Index) -> int | None:
    """Returns the elements by which an offset moves with a loop variable; None if irregular, or if
    only a run knows it.
    """
    if any(atom is not index and contains(atom, index) for atom, _ in form.terms):
        return None
    step = form.coefficient(index)
    return step if isinstance(step, int) else None


@dataclass(frozen=True)
class TileForm:
    """The parts of a product of tiles that starts from zeros or from the sums in memory.

    `around` are the reduction loops outside the tiles, `blocks` the loops over adjacent tiles.
    Steps for which a condition does not hold are skipped.
    `left_step`, `right_step` and `sum_step` are the elements from one row of a tile to the next.
    """

    sums: Store
    left: Load
    right: Load
    around: tuple[For, ...]
    blocks: tuple[For, ...]
    rows: For
    columns: For
    depth: For
    left_step: int
    right_step: int
    sum_step: int
    group: int
    from_zeros: bool
    besides: dict[int, tuple[Stmt, ...]]
    conditions: dict[int, Scalar]

    def condition(self, loop: For | None) -> Scalar | None:
        """Returns the condition of a step of a loop around the tiles, or of all steps."""
        return self.conditions.get(id(loop))

    def aside(self, loop: For) -> tuple[Stmt, ...]:
        """Returns the work that a step of a loop around the tiles does for later steps: prefetches,
        and values that are computed ahead of their use.
        """
        return self.besides.get(id(loop), ())


def tile_form(stmt: TileProduct, simplifier: Simplifier) -> TileForm:
    """Returns the parts of a product of tiles.

    Errors: S029 if a matrix unit cannot execute the loops.
    """
    stmts = stmt.body.stmts if isinstance(stmt.body, Block) else (stmt.body,)
    stmts = tuple(s for s in stmts if not isinstance(s, Prefetch))
    if len(stmts) > 2:
        raise _unfit(stmt, "it does not consist of zeros and a sum")
    around, store, besides, conditions = _chain(stmts[-1])
    product = product_of(store)
    if product is None or not isinstance(store, Store):
        raise _unfit(stmt, "it is not a sum of products of bf16 or 8-bit integers")
    by_name = {loop.name: loop for loop in around}
    if len(by_name) != len(around) or not {stmt.rows, stmt.columns, stmt.depth} <= set(by_name):
        raise _unfit(stmt, "its loops are not directly nested")
    rows, columns, depth = (by_name[n] for n in (stmt.rows, stmt.columns, stmt.depth))
    spatial = [n for n in around if any(contains(i, n.index) for i in store.indices)]
    of_result = all(n in spatial or n.size == 1 for n in (rows, columns))
    if depth in spatial or not of_result:
        raise _unfit(stmt, "rows or columns are not axes of the result, or depth is one")
    if len(stmts) > 1 and not _clears(stmts[0], store, spatial):
        raise _unfit(stmt, "it does not start from zeros of the same elements")
    within = [depth.index, *(n.index for n in spatial)]
    if any(contains(cond, index) for cond in conditions.values() for index in within):
        raise _unfit(stmt, "a condition depends on the element of a tile")
    if conditions and any(stores_in(s) for some in besides.values() for s in some):
        raise _unfit(stmt, "a step that may be skipped computes values for later ones")
    blocks = tuple(n for n in spatial if n is not rows and n is not columns)
    outside = tuple(n for n in around if n not in spatial and n not in (rows, columns, depth))
    sums = offset_of(store.buffer, store.indices, simplifier)
    sum_step = step_along(sums, rows.index)
    if sum_step is None or not _moves_by(sums, columns, 1):
        raise _unfit(stmt, f"{store.buffer.name} is not stored in rows")
    for left, right in ((product.a, product.b), (product.b, product.a)):
        read = offset_of(left.source, left.indices, simplifier)
        packed = offset_of(right.source, right.indices, simplifier)
        left_step = step_along(read, rows.index)
        right_step = packed_step(right, depth.index, product.group, simplifier)
        by_rows = _moves_by(read, depth, 1) and step_along(read, columns.index) == 0
        by_groups = (
            _moves_by(packed, columns, product.group) and step_along(packed, rows.index) == 0
        )
        if by_rows and by_groups and left_step is not None and right_step is not None:
            break
    else:
        names = f"{product.a.source.name} and {product.b.source.name}"
        raise _unfit(stmt, f"{names} are not rows along {depth.name} and packed columns")
    if depth.extent % product.group or depth.extent * bits(product.a.dtype) > 8 * TILE_ROW_BYTES:
        raise _unfit(stmt, f"a depth of {depth.extent}")
    return TileForm(
        store, left, right, outside, blocks, rows, columns, depth,
        left_step, right_step, sum_step, product.group, len(stmts) > 1, besides, conditions,
    )  # fmt: skip


@dataclass(frozen=True)
class ZeroForm:
    """The parts of the zeros of adjacent tiles."""

    zeros: Store
    blocks: tuple[For, ...]
    rows: For
    columns: For


def zero_form(stmt: TileProduct, simplifier: Simplifier) -> ZeroForm | None:
    """Returns the parts of a product of tiles that only sets its sums to 0; None for any other."""
    around, store, _, conditions = _chain(stmt.body)
    by_name = {loop.name: loop for loop in around}
    if not isinstance(store, Store) or store.combiner or not _is_zero(store.value) or conditions:
        return None
    if len(by_name) != len(around) or not {stmt.rows, stmt.columns} <= set(by_name):
        return None
    rows, columns = by_name[stmt.rows], by_name[stmt.columns]
    if not _moves_by(offset_of(store.buffer, store.indices, simplifier), columns, 1):
        return None
    blocks = tuple(n for n in around if n is not rows and n is not columns)
    return ZeroForm(store, blocks, rows, columns)


def _clears(stmt: Stmt, sums: Store, spatial: list[For]) -> bool:
    """Whether a statement sets the elements of a sum to 0."""
    chain, zeros, _, conditions = _chain(stmt)
    return (
        isinstance(zeros, Store)
        and not conditions
        and not zeros.combiner
        and zeros.buffer is sums.buffer
        and _is_zero(zeros.value)
        and _sizes(chain) == _sizes(spatial)
    )


def _sizes(around: list[For]) -> list[int]:
    """Returns the extents of loops with more than one iteration; expressions omit the others."""
    return sorted(n.extent for n in around if n.extent > 1)


def _moves_by(form: Linear, loop: For, step: int) -> bool:
    """Whether an offset moves by `step` elements with a loop (a single iteration moves nothing)."""
    return loop.size == 1 or step_along(form, loop.index) == step


def packed_step(load: Load, depth: Index, group: int, simplifier: Simplifier) -> int | None:
    """Returns the elements from one group of depth to the next, if a group's are contiguous."""
    outer, inner = Index("g", ceil_div(depth.extent, group)), Index("e", group)
    place = binary("add", binary("mul", outer, Imm(group, INDEX)), inner)
    indices = tuple(simplifier.simplify(substitute(i, {id(depth): place})) for i in load.indices)
    form = offset_of(load.source, indices, simplifier)
    return step_along(form, outer) if step_along(form, inner) == 1 else None


def _chain(
    stmt: Stmt,
) -> tuple[list[For], Stmt, dict[int, tuple[Stmt, ...]], dict[int, Scalar]]:
    """Returns the loops around a statement, the statement, and by loop the work done for later
    steps and the condition of a step. A condition outside all loops has the key of None.
    """
    around: list[For] = []
    besides: dict[int, tuple[Stmt, ...]] = {}
    conditions: dict[int, Scalar] = {}
    while isinstance(stmt, (For, If)):
        if isinstance(stmt, If):
            key = id(around[-1] if around else None)
            conditions[key] = all_of(*([conditions[key]] if key in conditions else []), stmt.cond)
            stmt = stmt.body
            continue
        around.append(stmt)
        stmt = stmt.body
        if isinstance(stmt, Block) and stmt.stmts:
            *before, last = stmt.stmts
            own = {s.stage for s in walk(last) if isinstance(s, Store)}
            if all(_is_for_later(s, own) for s in before):
                besides[id(around[-1])] = tuple(before)
                stmt = last
    return around, stmt, besides, conditions


def _is_for_later(stmt: Stmt, own: set[str]) -> bool:
    """Whether a statement only prefetches, or computes another stage."""
    stores = stores_in(stmt)
    return all(s.stage not in own and not s.combiner for s in stores)


def _is_zero(value: Scalar) -> bool:
    value = _plain(value)
    return isinstance(value, Imm) and value.value == 0


def _unfit(stmt: TileProduct, why: str) -> ScheduleError:
    return ScheduleError(
        "S029",
        f"{stmt.rows} x {stmt.columns} x {stmt.depth} cannot be tiles of a matrix unit: {why}",
        hint="split depth by the unit's depth, move it innermost, and compute the stage in scratch",
    )


@dataclass(frozen=True)
class Tile:
    """A tile of an operand or of sums: the position of its first element, and its size."""

    places: tuple[tuple[Index, int], ...]
    rows: int
    row_bytes: int


@dataclass(frozen=True)
class TilePlan:
    """The tiles of a product; each sum refers to the tiles of its operands."""

    sums: tuple[Tile, ...]
    lefts: tuple[Tile, ...]
    rights: tuple[Tile, ...]
    operands: tuple[tuple[int, int], ...]


def plan_tiles(form: TileForm) -> TilePlan:
    """Returns the tiles of a product.

    Errors: S029 if they exceed the tiles of a matrix unit.
    """
    wide = bits(form.sums.buffer.dtype) // 8
    narrow = bits(form.left.dtype) // 8
    depth = form.depth.extent
    lefts: dict[tuple[tuple[Index, int], ...], Tile] = {}
    rights: dict[tuple[tuple[Index, int], ...], Tile] = {}
    sums: list[Tile] = []
    operands: list[tuple[int, int]] = []
    most_columns = TILE_ROW_BYTES // wide
    for block in places_of(form.blocks):
        for row, height in _pieces(form.rows.extent, TILE_ROWS):
            for column, width in _pieces(form.columns.extent, most_columns):
                at = ((form.rows.index, row), (form.columns.index, column))
                left = (*_used(form.left, block), at[0])
                right = (*_used(form.right, block), at[1])
                lefts.setdefault(left, Tile(left, height, depth * narrow))
                rights.setdefault(right, Tile(right, depth // form.group, width * wide))
                sums.append(Tile((*block, *at), height, width * wide))
                operands.append((list(lefts).index(left), list(rights).index(right)))
    if len(sums) + len(lefts) + len(rights) > TILES:
        raise ScheduleError(
            "S029",
            f"{len(sums)} sums of {len(lefts)} by {len(rights)} tiles exceed {TILES} tiles",
            hint="compute fewer rows or columns at a time",
        )
    return TilePlan(tuple(sums), tuple(lefts.values()), tuple(rights.values()), tuple(operands))


def places_of(blocks: tuple[For, ...]) -> Iterator[tuple[tuple[Index, int], ...]]:
    """Yields the loop positions of each tile."""
    if not blocks:
        yield ()
        return
    first, *rest = blocks
    for n in range(first.extent):
        for places in places_of(tuple(rest)):
            yield ((first.index, n), *places)


def _pieces(extent: int, most: int) -> list[tuple[int, int]]:
    return [(start, min(most, extent - start)) for start in range(0, extent, most)]


def _used(load: Load, places: tuple[tuple[Index, int], ...]) -> tuple[tuple[Index, int], ...]:
    """Returns the positions of the loops that an access depends on; 0 for the others."""
    return tuple(
        (index, n if any(contains(i, index) for i in load.indices) else 0) for index, n in places
    )
