"""Compilation of loop nests to LLVM functions.

Each top-level statement of a nest becomes an entry function with a grid (its parallel loop);
neighbors without a parallel loop share one. Register tiles become SSA values directly, carried
through loops by phi nodes, so that no LLVM pass is needed to keep them in registers.

The file is longer than others: all statements of a function share one builder and the registers
that its loops carry.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from functools import partial
from typing import TypeGuard

from clew.codegen.address import Bound, LoopScope, element_bytes
from clew.codegen.artifact import EntryPoint
from clew.codegen.builder import Builder, ModuleBuilder, Value
from clew.codegen.dot import emit_dot
from clew.codegen.grid import entry_point, phases_of
from clew.codegen.lanes import literal
from clew.codegen.math import arith
from clew.codegen.registers import Register, unfit_register
from clew.codegen.tiles import Tiles
from clew.codegen.values import Values
from clew.codegen.vectors import literal_mask
from clew.ir.dims import Dim, Facts, SymDim, at_least, at_most, ceil_div, exact_quotient
from clew.ir.types import is_float
from clew.loop.affine import Linear, Simplifier
from clew.loop.grid import first_of_grid
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
    before_lines,
    parallel_lines,
    reads,
    walk,
)
from clew.loop.printer import PrintedNest
from clew.machine.target import Target
from clew.support.dataclass import dataclass
from clew.support.errors import ScheduleError
from clew.te.expr import INDEX, Binary, Checked, Inlined, Load, Scalar, all_of, conjuncts
from clew.te.interpret import identity_of
from clew.te.walk import nodes

_CACHE_LINE_BYTES = 64
_LEAST_PAST_CACHES_BYTES = 16


@dataclass(frozen=True)
class EmittedKernel:
    """A kernel's functions: entry points in order, memory sizes, and the module's text. `sizes`
    names the sizes that a call brings; `needs` must be at least 0, so that no divisor is 0.
    """

    entries: tuple[EntryPoint, ...]
    scratch_bytes: Dim
    workspace_bytes: tuple[Dim, ...]
    llvm: str
    sizes: tuple[str, ...] = ()
    needs: tuple[SymDim, ...] = ()


def emit_kernel(
    nest: Nest,
    printed: PrintedNest,
    symbol: str,
    target: Target,
    *,
    debug: bool = True,
) -> EmittedKernel:
    """Returns the LLVM module of a scheduled nest.

    Functions follow the kernel ABI (`EntryPoint`). Debug lines refer to `printed`, the nest's own
    text. Without the matching features of the target, dot products and tiles are plain loops.

    Errors: S043 for a nest with a device's grid, and those of its statements.
    """
    grid = first_of_grid(nest)
    if grid:
        raise ScheduleError(
            "S043",
            f"{nest.name} cannot run on a CPU: {grid}",
            hint="make the loop parallel instead; blocks and threads are a device's",
        )
    module = ModuleBuilder(f"{symbol}.loops", target.triple, debug, target.features)
    layout = _Layout(nest)
    entries: list[EntryPoint] = []
    phases = phases_of(nest.body)
    for number, phase in enumerate(phases):
        name = symbol if len(phases) == 1 else f"{symbol}.{number}"
        module.add_function(_Function(nest, printed, layout, module, target).emit(name, phase))
        before = phases[number - 1] if number else None
        entries.append(entry_point(name, phase, layout.arguments, before, target.costs))
    workspace = tuple(b.size_bytes * b.used for b in layout.workspace)
    return EmittedKernel(
        tuple(entries),
        layout.scratch_bytes,
        workspace,
        module.text(),
        layout.sizes,
        tuple(layout.needs),
    )


class _Layout:
    """The locations of a nest's buffers: argument numbers and scratch offsets."""

    def __init__(self, nest: Nest) -> None:
        temporaries = nest.temporaries
        self.workspace = [b for b in temporaries if b.scope == "workspace"]
        self.arguments = {
            id(b): n for n, b in enumerate((*nest.inputs, *nest.outputs, *self.workspace))
        }
        self.scratch: dict[int, Dim] = {}
        offset: Dim = 0
        for buffer in temporaries:
            if buffer.scope == "scratch":
                self.scratch[id(buffer)] = offset
                lines = ceil_div(buffer.size_bytes, _CACHE_LINE_BYTES) * buffer.used
                offset = offset + lines * _CACHE_LINE_BYTES
        self.scratch_bytes = offset
        self.sizes = nest.sizes
        # Must be at least 0, so that no function divides by 0.
        self.needs: dict[SymDim, None] = {}


class _Function:
    """Emits one entry function."""

    def __init__(
        self,
        nest: Nest,
        printed: PrintedNest,
        layout: _Layout,
        module: ModuleBuilder,
        target: Target,
    ) -> None:
        self.nest = nest
        self.lines = printed.line_of
        self.layout = layout
        self.module = module
        self.extent_mask: Value | None = None
        self.masks_cheap = target.masked_memory
        self.b = Builder(module)
        self.v: Values
        self.tiles: Tiles
        self._facts: Facts = ()  # those of the loops around the current statement
        self.past_caches = False

    def emit(self, name: str, phase: Stmt) -> str:
        """Returns the function's text."""
        suffix = self.module.begin_debug_scope(name)
        self.b.line = self.lines.get(id(phase), 1)
        self._begin(phase)
        written = {
            id(s.buffer): s.buffer for s in walk(phase) if isinstance(s, Store) and s.nontemporal
        }
        if written and self.module.triple.startswith("x86_64"):
            past, ordinary = self.b.label("past"), self.b.label("ordinary")
            self.b.branch_if(self._starts_lines(list(written.values())), past, ordinary)
            self.b.start(past)
            self.past_caches = True
            self._begin(phase)
            self._body(phase)
            self.module.declare("llvm.x86.sse.sfence", "void", [])
            self.b.emit("call void @llvm.x86.sse.sfence()")  # before other threads are notified
            self.b.emit("ret void")
            self.b.start(ordinary)
            self.past_caches = False
            self._begin(phase)
        self._body(phase)
        self.b.emit("ret void")
        params = (
            "ptr noalias readonly %args, ptr noalias %scratch, "
            "i64 %begin, i64 %end, i64 %first, i64 %last"
        )
        return f"define void @{name}({params}) nounwind{suffix} {{\n{self.b.body()}\n}}"

    def _begin(self, phase: Stmt) -> None:
        self.v = Values(self.b, Simplifier(), self.lines, self.masks_cheap)
        self.v.sizes = self.layout.sizes
        self.v.needs = self.layout.needs
        self.v.first_size = len(self.layout.arguments)
        self.tiles = Tiles(self.b, self.v, self._around_tiles, self._where, self._statement)
        self._bind_buffers(phase)

    def _body(self, phase: Stmt) -> None:
        self._facts = ()
        if isinstance(phase, For) and phase.kind == "parallel":
            self._facts = phase.index.facts
        if isinstance(phase, For) and phase.size == 1 and parallel_lines(phase):
            self.v.bound[id(phase.index)] = Bound(const=0)
            self._piece(phase)
        elif isinstance(phase, For) and phase.kind == "parallel":
            self._part(phase, Value("%begin", INDEX), Value("%end", INDEX))
        else:
            self._statement(phase)
        self.tiles.release()
        self.v.checks.report(len(self.layout.arguments) + len(self.layout.sizes))
        # These are in reference cycles, which only a garbage collection would free.
        del self.v.checks, self.tiles

    def _starts_lines(self, buffers: list[Buffer]) -> Value:
        """Returns whether buffers start at cache lines; memory of the user may not."""
        b = self.b
        rest = literal(0, INDEX)
        for buffer in buffers:
            address = b.value(f"ptrtoint ptr {self.v.base(buffer)} to i64", INDEX)
            low = b.value(f"and i64 {address.text}, {_CACHE_LINE_BYTES - 1}", INDEX)
            rest = b.value(f"or i64 {rest.text}, {low.text}", INDEX)
        return arith.binary(b, "eq", rest, literal(0, INDEX))

    def _bind_buffers(self, phase: Stmt) -> None:
        used: dict[int, Buffer] = {}
        for stmt in walk(phase):
            if isinstance(stmt, (Store, Prefetch)):
                used[id(stmt.buffer)] = stmt.buffer
        for _, load in reads(phase):
            used[id(load.source)] = load.source
        with self.b.writing_to(self.v.scopes[0].place):
            for buffer in used.values():
                key = id(buffer.root)
                if key in self.layout.arguments:
                    slot = self.layout.arguments[key]
                    at = self.b.pointer(f"getelementptr i64, ptr %args, i64 {slot}")
                    self.v.bind_buffer(buffer, self.b.pointer(f"load ptr, ptr {at}, align 8"))
                elif key in self.layout.scratch:
                    offset = self.v.dim_value(self.layout.scratch[key])
                    at = self.b.pointer(f"getelementptr i8, ptr %scratch, i64 {offset.text}")
                    self.v.bind_buffer(buffer, at)

    # --- statements ---

    def _statement(self, stmt: Stmt) -> None:
        before = self.b.line
        self.b.line = self.lines.get(id(stmt), before)
        self.v.forget_statement()
        match stmt:
            case Block():
                for child in stmt.stmts:
                    self._statement(child)
            case For():
                self._for(stmt)
            case If():
                self._if(stmt)
            case Store():
                self._store(stmt)
            case Prefetch():
                self._prefetch(stmt)
            case TileProduct():
                if self.tiles.fits(stmt):
                    self.tiles.emit(stmt)
                else:
                    self._statement(stmt.body)
        self.b.line = before

    def _for(self, loop: For) -> None:
        around = self._facts
        # The facts of a loop hold inside of it: they do not tell whether it runs.
        runs = at_least(loop.size, 1, around)
        self._facts = tuple(dict.fromkeys((*around, *loop.index.facts)))
        self._emit_for(loop, runs)
        self._facts = around

    def _emit_for(self, loop: For, runs: bool) -> None:
        """Emits a loop; `runs` says whether it certainly runs at least once."""
        if loop.size == 0:
            return
        if loop.kind == "vector":
            self._vector(loop)
        elif loop.kind == "dot" and self._dot(loop):
            pass
        elif loop.size == 1 or loop.kind in ("unroll", "dot"):
            for n in range(loop.extent):
                self.v.bound[id(loop.index)] = Bound(const=n)
                self._statement(loop.body)
            del self.v.bound[id(loop.index)]
        elif runs and self._until(loop):
            pass
        elif runs:
            self._serial(loop, literal(0, INDEX), self.v.dim_value(loop.size))
        else:
            self._maybe(loop, literal(0, INDEX), self.v.dim_value(loop.size))

    def _until(self, loop: For) -> bool:
        """Emits a loop over `if index < end: ...` as one that stops there, if the end is the same
        for all iterations and known before them. Returns whether it is.
        """
        body = loop.body
        if loop.kind != "serial" or not isinstance(body, If):
            return False
        written = {id(s.buffer.root) for s in walk(body) if isinstance(s, Store)}
        ends: list[Scalar] = []
        while isinstance(body, If):
            found, rest = list[Scalar](), list[Scalar]()
            for cond in conjuncts(body.cond):
                if _is_end(cond, loop, written):
                    found.append(cond.b)
                else:
                    rest.append(cond)
            ends += found
            if rest:  # an end below another condition may only be read if it holds
                body = If(all_of(*rest), body.body) if found else body
                break
            body = body.body
        if not ends:
            return False
        stop = self.v.dim_value(loop.size)
        for end in ends:
            stop = arith.binary(self.b, "min", self.v.statement(end), stop)
        self._maybe(loop.with_body(body), literal(0, INDEX), stop)
        return True

    def _maybe(self, loop: For, begin: Value, end: Value) -> None:
        """Emits a loop that may run no iterations; register tiles keep their values then. The
        variable of a loop that runs at most once is a number.
        """
        v, b = self.v, self.b
        run, done, before_block = b.label("run"), b.label("done"), b.block
        b.branch_if(arith.binary(b, "lt", begin, end), run, done)
        b.start(run)
        before = dict(v.registers)
        with v.isolated():
            if at_most(loop.size, 1):
                v.bound[id(loop.index)] = Bound(const=0)
                self._statement(loop.body)
                del v.bound[id(loop.index)]
            else:
                self._serial(loop, begin, end)
        self.tiles.forget()
        self._join(before, before_block, done)

    def _part(self, loop: For, begin: Value, end: Value) -> None:
        """Emits a range of a parallel loop that may be empty."""
        body = partial(self._piece, loop) if parallel_lines(loop) else None
        run, done = self.b.label("run"), self.b.label("done")
        self.b.branch_if(arith.binary(self.b, "lt", begin, end), run, done)
        self.b.start(run)
        with self.v.isolated():
            self._serial(loop, begin, end, body)
        self.tiles.forget()
        self.b.branch(done)
        self.b.start(done)

    def _piece(self, loop: For) -> None:
        """Emits a piece: the statements before its lines, and the requested lines."""
        for stmt in before_lines(loop):
            self._statement(stmt)
        self._lines(parallel_lines(loop))

    def _lines(self, copies: list[For]) -> None:
        """Emits the requested lines of a piece: `%first` to `%last`, counted over all copies of
        their loop.
        """
        before = self.b.line
        start: Dim = 0
        if len(copies) == 1:  # a request is never empty
            self.b.line = self.lines.get(id(copies[0]), before)
            self._serial(copies[0], Value("%first", INDEX), Value("%last", INDEX))
            self.b.line = before
            return
        for loop in copies:
            self.b.line = self.lines.get(id(loop), before)
            begin, end = self._range(start, loop.size)
            self._part(loop, begin, end)
            start = start + loop.size
        self.b.line = before

    def _range(self, start: Dim, extent: Dim) -> tuple[Value, Value]:
        """Returns the requested iterations of a copy that begins with line `start`."""
        with self.b.writing_to(self.v.scopes[0].place):
            found = []
            for bound in ("%first", "%last"):
                first, count = self.v.dim_value(start), self.v.dim_value(extent)
                here = arith.binary(self.b, "sub", Value(bound, INDEX), first)
                here = arith.binary(self.b, "max", here, literal(0, INDEX))
                found.append(arith.binary(self.b, "min", here, count))
        return found[0], found[1]

    def _around_tiles(self, loop: For, body: Callable[[], None]) -> None:
        self._serial(loop, literal(0, INDEX), literal(loop.extent, INDEX), body)

    def _serial(
        self, loop: For, start: Value, stop: Value, body: Callable[[], None] | None = None
    ) -> None:
        """Emits a loop that runs at least once; register tiles that change inside become phi nodes.

        `body` replaces the emission of the loop's own body.
        """
        b, v = self.b, self.v
        leave = self.tiles.enter_loop(loop.body)
        carried = self._carried(loop.body)
        before = dict(v.registers)
        head, exit_ = b.label("loop"), b.label("exit")
        entered_from = b.block
        b.branch(head)
        b.start(head)
        phis = b.section()
        index = Value(b.name("i"), INDEX)
        names = {key: Value(b.name("r"), r.dtype, r.lanes) for key, r in carried.items()}
        v.registers.update(names)
        v.scopes.append(LoopScope(b.section()))
        v.bound[id(loop.index)] = Bound(value=index, depth=len(v.scopes) - 1)
        v.loads = {}
        line = b.line
        if body is None:
            self._statement(loop.body)
        else:
            body()
        b.line = line
        following = b.value(f"add i64 {index.text}, 1", INDEX)
        again = arith.binary(b, "lt", following, stop)
        latch = b.block
        b.branch_if(again, head, exit_)
        with b.writing_to(phis):
            b.emit(
                f"{index.text} = phi i64 [ {start.text}, %{entered_from} ], "
                f"[ {following.text}, %{latch} ]"
            )
            for key, name in names.items():
                first, last = carried[key], v.registers[key]
                b.emit(
                    f"{name.text} = phi {name.type} [ {first.text}, %{entered_from} ], "
                    f"[ {last.text}, %{latch} ]"
                )
        v.registers = {key: v.registers[key] if key in carried else before[key] for key in before}
        del v.bound[id(loop.index)]
        v.scopes.pop()
        v.loads = {}
        b.start(exit_)
        leave()

    def _carried(self, body: Stmt) -> dict[Register, Value]:
        """Returns the live registers that a loop body may change."""
        changed = {
            id(s.buffer)
            for s in walk(body)
            if isinstance(s, Store) and s.buffer.scope == "register"
        }
        return {key: value for key, value in self.v.registers.items() if key[0] in changed}

    def _vector(self, loop: For) -> None:
        v = self.v
        assert v.lane_index is None, f"vector loop {loop.name} is inside another"
        lanes = 1 << (loop.extent - 1).bit_length()
        if lanes == 1:
            v.bound[id(loop.index)] = Bound(const=0)
            self._statement(loop.body)
            del v.bound[id(loop.index)]
            return
        v.lane_index, v.lanes = loop.index, lanes
        v.bound[id(loop.index)] = Bound(lanes=lanes, depth=len(v.scopes) - 1)
        if lanes != loop.extent:
            self.extent_mask = literal_mask([n < loop.extent for n in range(lanes)])
            with v.masked(self.extent_mask):
                self._statement(loop.body)
            self.extent_mask = None
        else:
            self._statement(loop.body)
        del v.bound[id(loop.index)]
        v.lane_index, v.lanes = None, 1

    def _dot(self, loop: For) -> bool:
        """Emits a step of a sum of products as one instruction, if the target has one."""
        v, store = self.v, loop.body
        if not isinstance(store, Store) or v.lane_index is None:
            return False
        form = v.flat(store, store.buffer, store.indices)
        if not form.depends_on(v.lane_index):
            return False
        if store.buffer.scope != "register":
            new = emit_dot(v, loop, store, self._current(store))
            if new is not None:
                v.write(store.buffer, v.place(store.buffer, form), new)
            return new is not None
        key, lanes = v.register_of(store.buffer, form)
        old = v.registers.get(key)
        if old is None or old.lanes != lanes:
            return False
        new = emit_dot(v, loop, store, old)
        if new is None:
            return False
        v.registers[key] = new if v.mask is None else arith.select(self.b, v.mask, new, old)
        return True

    def _if(self, stmt: If) -> None:
        multiplies = any(isinstance(s, TileProduct) for s in walk(stmt.body))

        def body() -> None:
            self._statement(stmt.body)
            if multiplies:
                self.tiles.forget()

        self._where(stmt.cond, body)

    def _where(self, condition: Scalar, body: Callable[[], None]) -> None:
        """Emits a body under a condition."""
        v, b = self.v, self.b
        known = v.lanes_where(condition, v.lanes)
        if known is not None and all(k is known[0] for k in known):
            if known[0]:
                body()
            return
        cond = v.statement(condition) if known is None else literal_mask(known)
        if cond.lanes > 1:
            with v.masked(cond):
                body()
            return
        then, join, before_block = b.label("if"), b.label("join"), b.block
        b.branch_if(cond, then, join)
        b.start(then)
        before = dict(v.registers)
        with v.isolated():
            body()
        self._join(before, before_block, join)

    def _join(self, before: dict[Register, Value], before_block: str, join: str) -> None:
        """Continues at a label that is also reached from an earlier block; registers that changed
        since then become phi nodes.
        """
        v, b = self.v, self.b
        after, last = v.registers, b.block
        b.branch(join)
        b.start(join)
        v.registers = dict(before)
        for key, old in before.items():
            new = after[key]
            if new.text != old.text:
                v.registers[key] = b.value(
                    f"phi {old.type} [ {new.text}, %{last} ], [ {old.text}, %{before_block} ]",
                    old.dtype,
                    old.lanes,
                )
        v.loads = {}

    def _store(self, stmt: Store) -> None:
        v = self.v
        form = v.flat(stmt, stmt.buffer, stmt.indices)
        lane = v.lane_index
        if stmt.combiner and lane is not None and not form.depends_on(lane):
            self._reduce_lanes(stmt)
            return
        if stmt.buffer.scope == "register":
            key, lanes = v.register_of(stmt.buffer, form)
            old = v.claim_register(stmt.buffer, key, lanes)
            value = self._combined(stmt, old)
            v.check_lanes(stmt.buffer, value, lanes)
            new = v.broadcast(value, lanes)
            # Lanes beyond the loop's extent are never read, so their contents do not matter.
            if v.mask not in (None, self.extent_mask) and old is not None and lanes > 1:
                assert v.mask is not None
                new = arith.select(self.b, v.mask, new, old)
            v.registers[key] = new
            return
        old = self._current(stmt) if stmt.combiner else None
        value = self._combined(stmt, old)
        place = v.place(stmt.buffer, form)
        past = self.past_caches and stmt.nontemporal and self._whole_vectors(stmt, form)
        v.write(stmt.buffer, place, value, nontemporal=past)

    def _whole_vectors(self, stmt: Store, form: Linear) -> bool:
        """Whether a store of vectors is aligned to their size whenever its buffer is."""
        v = self.v
        const, size = form.const, element_bytes(stmt.buffer.dtype)
        if not _LEAST_PAST_CACHES_BYTES <= v.lanes * size <= _CACHE_LINE_BYTES:
            return False
        for atom, coefficient in form.terms:
            number = v.constant_of(atom)
            if number is not None:
                const = const + coefficient * number
            elif atom is not v.lane_index and exact_quotient(coefficient, v.lanes) is None:
                return False
        return exact_quotient(const, v.lanes) is not None

    def _current(self, stmt: Store) -> Value:
        v = self.v
        place = v.place(stmt.buffer, v.flat(stmt, stmt.buffer, stmt.indices))
        return v.read(stmt.buffer, place, v.lanes if place.step or place.lane_parts else 1)

    def _combined(self, stmt: Store, old: Value | None) -> Value:
        """Returns the value that a store writes: its value, or the old value combined with it."""
        v = self.v
        if not stmt.combiner:
            return v.statement(stmt.value)
        if old is None:
            raise unfit_register(stmt.buffer, "before it is set")
        product = _product(stmt.value) if stmt.combiner == "sum" and is_float(old.dtype) else None
        if product is not None and old.dtype in ("f32", "f64"):
            product = _product(v.begin(stmt.value))
            assert product is not None
            a, b = v.value(product.a), v.value(product.b)
            lanes = max(a.lanes, b.lanes, old.lanes)
            return arith.fma(self.b, *v.widen([a, b, old], lanes))
        value = v.statement(stmt.value)
        value, old = v.widen([value, old], max(value.lanes, old.lanes))
        return combine(self.b, stmt.combiner, old, value)

    def _reduce_lanes(self, stmt: Store) -> None:
        """Emits a reduction along the lanes of the surrounding vector loop."""
        v, b = self.v, self.b
        value = v.broadcast(v.statement(stmt.value), v.lanes)
        if v.mask is not None:
            start = literal(identity_of(stmt.combiner, value.dtype), value.dtype, v.lanes)
            value = arith.select(b, v.mask, value, start)
        total = arith.reduce(b, stmt.combiner, value)
        form = v.flat(stmt, stmt.buffer, stmt.indices)
        lane, lanes, mask = v.lane_index, v.lanes, v.mask
        v.lane_index, v.lanes, v.mask = None, 1, None
        if stmt.buffer.scope == "register":
            key, _ = v.register_of(stmt.buffer, form)
            old = v.registers.get(key)
            if old is None or old.lanes != 1:
                raise unfit_register(stmt.buffer, "in one lane and set in many")
            v.registers[key] = combine(b, stmt.combiner, old, total)
        else:
            place = v.place(stmt.buffer, form)
            old = v.read(stmt.buffer, place, 1)
            v.write(stmt.buffer, place, combine(b, stmt.combiner, old, total))
        v.lane_index, v.lanes, v.mask = lane, lanes, mask

    def _prefetch(self, stmt: Prefetch) -> None:
        v = self.v
        place = v.place(stmt.buffer, v.flat(stmt, stmt.buffer, stmt.indices))
        pointer = v.pointer_at(stmt.buffer, place)
        self.module.declare("llvm.prefetch.p0", "void", ["ptr", "i32", "i32", "i32"])
        # Into the second-level cache: a panel may be larger than the first-level cache.
        self.b.emit(f"call void @llvm.prefetch.p0(ptr {pointer}, i32 0, i32 2, i32 1)")


_OPERATOR = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "and": "and", "or": "or"}


def combine(b: Builder, combiner: str, old: Value, value: Value) -> Value:
    """Returns a reduction's next value."""
    return arith.binary(b, _OPERATOR[combiner], old, value)


def _product(value: Scalar) -> Binary | None:
    while isinstance(value, Inlined):
        value = value.value
    return value if isinstance(value, Binary) and value.op == "mul" else None


def _is_end(cond: Scalar, loop: For, written: Set[int]) -> TypeGuard[Binary]:
    """Whether a condition is that a loop's variable is below a value which is the same in all
    iterations, and may be computed before them. `written` has the ids of the buffers that the loop
    writes.
    """
    if not isinstance(cond, Binary) or cond.op != "lt" or cond.a is not loop.index:
        return False
    return not any(
        node is loop.index
        or isinstance(node, Checked)
        or (isinstance(node, Load) and id(node.source.root) in written)
        for node in nodes(cond.b)
    )
