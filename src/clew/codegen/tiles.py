"""Products of tiles on a matrix unit (Intel AMX): tiles configured, zeroed, multiplied, stored.

Sums stay in tiles from zeros to the last step and are stored once. The current configuration of the
tiles is known throughout a function: it is loaded before the outermost loop that needs no other,
and released at the function's end.

Source: Intel Architecture Instruction Set Extensions Programming Reference, chapter 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Final

from clew.codegen.address import Bound, Place, element_bytes
from clew.codegen.builder import Builder, llvm_type
from clew.codegen.values import Values
from clew.ir.types import bits
from clew.loop.ir import Block, Buffer, For, Prefetch, Stmt, TileProduct, walk
from clew.loop.products import (
    Tile,
    TileForm,
    TilePlan,
    ZeroForm,
    places_of,
    plan_tiles,
    tile_form,
    zero_form,
)
from clew.machine.units import TILE_ROW_BYTES, TILE_ROWS, TILES
from clew.support.dataclass import dataclass
from clew.te.expr import Index, Scalar

_CONFIG_BYTES: Final = 64
_ROW_BYTES_AT: Final = 16
_ROWS_AT: Final = 48


class Tiles:
    """Emits the tile products of one function. `serial` emits a loop around a given body, `where` a
    body under a condition, and `aside` a statement between products.
    """

    def __init__(
        self,
        builder: Builder,
        values: Values,
        serial: Callable[[For, Callable[[], None]], None],
        where: Callable[[Scalar, Callable[[], None]], None],
        aside: Callable[[Stmt], None],
    ) -> None:
        self._b = builder
        self._v = values
        self._serial = serial
        self._where = where
        self._aside = aside
        self._loaded: str | None = None
        # Statements to interleave, and their number after each product.
        self._waiting: list[_Piece] = []
        self._each = 0
        # By tile, the address of its current operand.
        self._holds: dict[int, tuple[str, int]] = {}
        self._used = False
        self._plans: dict[int, tuple[TileForm, TilePlan]] = {}
        self._cleared: dict[int, ZeroForm | None] = {}

    def fits(self, stmt: TileProduct) -> bool:
        """Whether the target has a matrix unit for the product's operands."""
        if self._zeros(stmt) is not None:
            return self._b.module.instructions.has_tiles
        form, _ = self._plan(stmt)
        return bool(self._function(form))

    def _function(self, form: TileForm) -> str:
        return self._b.module.instructions.tile_product(form.left.dtype, form.right.dtype)

    def enter_loop(self, body: Stmt) -> Callable[[], None]:
        """Loads the configuration of a loop's tile products if they share one; returns a function
        to call after the loop.
        """
        products = [
            s
            for s in walk(body)
            if isinstance(s, TileProduct) and self._zeros(s) is None and self.fits(s)
        ]
        wanted = {_configuration(self._plan(p)[1]) for p in products}
        if len(wanted) == 1:
            self._load(next(iter(wanted)))
        elif wanted:
            self._loaded = None

        def leave() -> None:
            if len(wanted) > 1:
                self._loaded = None

        return leave

    def forget(self) -> None:
        """Marks the configuration as unknown from here on."""
        self._loaded = None

    def release(self) -> None:
        """Releases the tiles at the end of a function."""
        if self._used:
            self._call("llvm.x86.tilerelease")

    def emit(self, stmt: TileProduct) -> None:
        """Emits a product, including the store of its sums."""
        zeros = self._zeros(stmt)
        if zeros is not None:
            self._clear(zeros)
            return
        form, plan = self._plan(stmt)
        self._load(_configuration(plan))
        self._holds = {}
        if form.from_zeros:
            for n in range(len(plan.sums)):
                self._call("llvm.x86.tilezero", n)
        else:
            self._move_sums("llvm.x86.tileloadd64", form, plan)
        self._under(form.condition(None), lambda: self._around(form, plan, form.around))
        self._move_sums("llvm.x86.tilestored64", form, plan)
        self._v.forget(form.sums.buffer)

    def _move_sums(self, instruction: str, form: TileForm, plan: TilePlan) -> None:
        size = element_bytes(form.sums.buffer.dtype)
        for n, tile in enumerate(plan.sums):
            place = self._place(tile, form, form.sums.buffer, form.sums.indices, form.sums)
            at = self._v.pointer_at(form.sums.buffer, place)
            self._move(instruction, n, at, form.sum_step * size)

    def _zeros(self, stmt: TileProduct) -> ZeroForm | None:
        if id(stmt) not in self._cleared:
            self._cleared[id(stmt)] = zero_form(stmt, self._v.simplifier)
        return self._cleared[id(stmt)]

    def _clear(self, form: ZeroForm) -> None:
        """Emits zero vectors, one per row of a tile."""
        store = form.zeros
        type_ = llvm_type(store.buffer.dtype, form.columns.extent)
        size = element_bytes(store.buffer.dtype)
        for block in places_of((*form.blocks, form.rows)):
            places = (*block, (form.columns.index, 0))
            place = self._place_of(places, store.buffer, store.indices, store)
            at = self._v.pointer_at(store.buffer, place)
            self._b.emit(f"store {type_} zeroinitializer, ptr {at}, align {size}")
        self._v.forget(store.buffer)

    def _plan(self, stmt: TileProduct) -> tuple[TileForm, TilePlan]:
        found = self._plans.get(id(stmt))
        if found is None:
            form = tile_form(stmt, self._v.simplifier)
            found = self._plans[id(stmt)] = form, plan_tiles(form)
        return found

    def _under(self, condition: Scalar | None, emit: Callable[[], None]) -> None:
        """Emits steps, under a condition if there is one."""
        if condition is None:
            emit()
            return
        self._holds = {}  # a skipped step loads no tiles
        self._where(condition, emit)
        self._holds = {}

    def _around(self, form: TileForm, plan: TilePlan, around: tuple[For, ...]) -> None:
        """Emits the reduction loops outside the tiles, and a step in the innermost."""
        if not around:
            self._step(form, plan)
            return
        loop = around[0]
        if loop.extent == 1 or loop.kind == "unroll":
            for n in range(loop.extent):
                self._v.bound[id(loop.index)] = Bound(const=n)
                self._in_loop(form, plan, around)
            del self._v.bound[id(loop.index)]
        elif loop.extent:
            self._serial(loop, lambda: self._in_new_loop(form, plan, around))

    def _in_new_loop(self, form: TileForm, plan: TilePlan, around: tuple[For, ...]) -> None:
        self._holds = {}  # the contents of tiles change from step to step
        self._in_loop(form, plan, around)
        self._holds = {}

    def _in_loop(self, form: TileForm, plan: TilePlan, around: tuple[For, ...]) -> None:
        # Interleaved with products rather than all at once, which would delay loads.
        inner = math.prod(n.extent for n in around[1:] if n.kind == "unroll" or n.extent == 1)
        pieces = _mixed([p for s in form.aside(around[0]) for p in _pieces_of(s)])
        if any(n.kind != "unroll" and n.extent > 1 for n in around[1:]):
            for piece in pieces:
                self._emit_piece(piece)
        elif pieces:
            self._waiting += pieces
            self._each = -(-len(self._waiting) // max(1, inner * len(plan.operands)))
        self._under(form.condition(around[0]), lambda: self._around(form, plan, around[1:]))

    def _step(self, form: TileForm, plan: TilePlan) -> None:
        size = bits(form.left.dtype) // 8
        first_left = len(plan.sums)
        first_right = first_left + len(plan.lefts)
        product = self._function(form)
        for n, (left, right) in enumerate(plan.operands):
            for load, tile, number, step in (
                (form.left, plan.lefts[left], first_left + left, form.left_step),
                (form.right, plan.rights[right], first_right + right, form.right_step),
            ):
                place = self._place(tile, form, load.source, load.indices, load)
                here = place.pointer, place.offset
                if self._holds.get(number) != here:
                    at = self._v.pointer_at(load.source, place)
                    self._move("llvm.x86.tileloadd64", number, at, step * size)
                    self._holds[number] = here
            self._call(product, n, first_left + left, first_right + right)
            for piece in self._waiting[: self._each]:
                self._emit_piece(piece)
            del self._waiting[: self._each]

    def _emit_piece(self, piece: _Piece) -> None:
        bound = self._v.bound
        bound.update({id(index): Bound(const=n) for index, n in piece.places})
        self._aside(piece.stmt)
        for index, _ in piece.places:
            del bound[id(index)]

    def _place(
        self,
        tile: Tile,
        form: TileForm,
        buffer: Buffer,
        indices: tuple[Scalar, ...],
        owner: object,
    ) -> Place:
        here = tuple((loop.index, 0) for loop in (form.rows, form.columns, form.depth))
        return self._place_of((*here, *tile.places), buffer, indices, owner)

    def _place_of(
        self,
        places: tuple[tuple[Index, int], ...],
        buffer: Buffer,
        indices: tuple[Scalar, ...],
        owner: object,
    ) -> Place:
        v = self._v
        before = dict(v.bound)
        v.bound.update({id(index): Bound(const=n) for index, n in places})
        place = v.place(buffer, v.flat(owner, buffer, indices))
        v.bound.clear()
        v.bound.update(before)
        return place

    def _load(self, configuration: str) -> None:
        if self._loaded != configuration:
            name = self._b.module.constant("tiles", configuration)
            self._b.module.declare("llvm.x86.ldtilecfg", "void", ["ptr"])
            self._b.emit(f"call void @llvm.x86.ldtilecfg(ptr {name})")
            self._loaded, self._used = configuration, True

    def _move(self, name: str, tile: int, pointer: str, step_bytes: int) -> None:
        self._b.module.declare(name, "void", ["i8", "ptr", "i64"])
        self._b.emit(f"call void @{name}(i8 {tile}, ptr {pointer}, i64 {step_bytes})")

    def _call(self, name: str, *tiles: int) -> None:
        self._b.module.declare(name, "void", ["i8"] * len(tiles))
        self._b.emit(f"call void @{name}({', '.join(f'i8 {t}' for t in tiles)})")


@dataclass(frozen=True)
class _Piece:
    """A statement to interleave with products, with its position in the unrolled loops around
    it.
    """

    places: tuple[tuple[Index, int], ...]
    stmt: Stmt


def _pieces_of(stmt: Stmt, places: tuple[tuple[Index, int], ...] = ()) -> Iterator[_Piece]:
    """Yields the statements that can be interleaved with products."""
    if isinstance(stmt, Block):
        for child in stmt.stmts:
            yield from _pieces_of(child, places)
    elif isinstance(stmt, For) and (stmt.kind == "unroll" or stmt.extent == 1):
        for n in range(stmt.extent):
            yield from _pieces_of(stmt.body, (*places, (stmt.index, n)))
    else:
        yield _Piece(places, stmt)


def _mixed(pieces: list[_Piece]) -> list[_Piece]:
    """Returns the pieces with prefetches evenly distributed among the others."""
    requests = [p for p in pieces if isinstance(p.stmt, Prefetch)]
    others = [p for p in pieces if not isinstance(p.stmt, Prefetch)]
    placed = [(n / len(some), p) for some in (requests, others) for n, p in enumerate(some)]
    return [piece for _, piece in sorted(placed, key=lambda p: p[0])]


def _configuration(plan: TilePlan) -> str:
    """Returns the configuration of the unit's tiles as an LLVM constant. Tiles that the plan leaves
    unused get the largest size: products of whole tiles then share a configuration, however many
    tiles they use.
    """
    data = bytearray(_CONFIG_BYTES)
    data[0] = 1  # the palette of eight tiles
    for n in range(TILES):
        data[_ROW_BYTES_AT + 2 * n] = TILE_ROW_BYTES
        data[_ROWS_AT + n] = TILE_ROWS
    for n, tile in enumerate((*plan.sums, *plan.lefts, *plan.rights)):
        data[_ROW_BYTES_AT + 2 * n] = tile.row_bytes
        data[_ROWS_AT + n] = tile.rows
    text = "".join(f"\\{byte:02X}" for byte in data)
    return f'[{_CONFIG_BYTES} x i8] c"{text}"'
