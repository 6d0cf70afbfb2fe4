"""The loop IR in one page.

```
Nest  = name, inputs, outputs, body                 a kernel
Stmt  = For(index, kind, body)                      index runs from 0 to its extent
      | Block(stmts)
      | Store(buffer, indices, value, stage, combiner)
                                                    combiner "": buffer = value,
                                                    else buffer = combiner(buffer, value);
                                                    nontemporal: bypasses the caches
      | If(cond, body)
      | Prefetch(buffer, indices, stage)
      | TileProduct(rows, columns, depth, body)     body, computed by a matrix unit
      | Barrier()                                   waits for all threads of a block
kind  = serial | parallel | vector | unroll | dot   dot: one step of a sum of products, in a vector
      | block | thread                              a device's grid, along an axis x, y or z
```

Block loops are the outermost loops of a nest. Thread loops are nested directly in them, and each
thread runs the whole body of the innermost one (`check_grid`).

Sizes of buffers and numbers of iterations are dimensions (`ir.dims`): numbers, or polynomials of
sizes that a call brings (`Nest.sizes`). Code that needs numbers asks for `For.extent`.

Values are scalar expressions (`clew.te.expr`) whose loads name buffers. Statements are immutable; a
schedule primitive returns a new nest. `stage` names the te stage that a statement computes.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import field, replace
from operator import is_
from typing import Final, Literal, NamedTuple, TypeAlias

from clew.ir.dims import Dim, SymDim, product, typical
from clew.ir.types import memory_bytes
from clew.support.caches import bounded_cache
from clew.support.dataclass import dataclass
from clew.support.errors import ScheduleError
from clew.support.lazy import cached_property
from clew.support.shown import Brief
from clew.te.expr import Checked, Imm, Index, Load, Scalar, Size
from clew.te.roles import IN_ORDER

Kind: TypeAlias = Literal["serial", "parallel", "vector", "unroll", "dot", "block", "thread"]
Scope: TypeAlias = Literal["input", "output", "workspace", "scratch", "register", "shared"]
Axis: TypeAlias = Literal["", "x", "y", "z"]


@dataclass(frozen=True, eq=False)
class Buffer:
    """Memory of a kernel. `role` is the role of the stage that writes it (`te.roles`).

    Scopes: `input` and `output` are the kernel's arguments. `workspace` is shared by its threads,
    `scratch` belongs to one thread, and `shared` to the threads of one block. `register` is a tile
    that is never in memory: after unrolling, every index into it must be a literal, except for the
    vector lane. A buffer with `memory` set is another view of that buffer.

    `used` is 1 at sizes at which statements use the buffer, and 0 at others, at which it needs no
    memory.
    """

    name: str
    shape: tuple[Dim, ...]
    dtype: str
    scope: Scope
    memory: Buffer | None = None
    role: str = ""
    used: Dim = 1

    @property
    def root(self) -> Buffer:
        """The buffer that owns the memory."""
        return self if self.memory is None else self.memory

    @property
    def strides(self) -> tuple[Dim, ...]:
        """The stride of each axis, in elements."""
        steps: list[Dim] = []
        step: Dim = 1
        for extent in reversed(self.shape):
            steps.append(step)
            step *= extent
        return tuple(reversed(steps))

    @property
    def numbers(self) -> tuple[int, ...]:
        """The shape as numbers.

        Errors: S070 if a size is known only in a run.
        """
        return tuple(number(d, f"an axis of {self.name}") for d in self.shape)

    @property
    def typical_shape(self) -> tuple[int, ...]:
        """The shape at typical sizes, for decisions that only affect speed."""
        return tuple(map(typical, self.shape))

    @property
    def elements(self) -> Dim:
        """The number of elements."""
        return product(self.shape)

    @property
    def size_bytes(self) -> Dim:
        """The size in bytes (a `bool` takes one)."""
        return self.elements * memory_bytes(self.dtype)

    @property
    def typical_bytes(self) -> int:
        """The size in bytes at typical sizes."""
        return typical(self.size_bytes)

    def __repr__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}] {self.scope}"


@dataclass(frozen=True, eq=False, slots=True)
class For:
    """A loop over `index`. `axis` is the grid axis of a block or thread loop."""

    index: Index
    kind: Kind
    body: Stmt
    axis: Axis = ""
    _inside: Inside | None = field(default=None, init=False, repr=False)

    @property
    def inside(self) -> Inside:
        """The contents of the loop, itself included; computed once."""
        found = self._inside
        if found is None:
            index = self.index
            found = _in_loop(inside(self.body), index.name, self.kind, index.role == IN_ORDER)
            object.__setattr__(self, "_inside", found)
        return found

    def with_body(self, body: Stmt) -> For:
        """Returns the loop with another body."""
        return self if body is self.body else For(self.index, self.kind, body, self.axis)

    @property
    def name(self) -> str:
        """The loop's name: its stage and axis, such as `conv.oh`."""
        return self.index.name

    @property
    def size(self) -> Dim:
        """Number of iterations."""
        return self.index.extent

    @property
    def extent(self) -> int:
        """Number of iterations, where it must be a number.

        Errors: S070 if it is known only in a run.
        """
        return number(self.index.extent, f"loop {self.name}")

    @property
    def typical(self) -> int:
        """Number of iterations at typical sizes, for decisions that only affect speed."""
        return typical(self.index.extent)


@dataclass(frozen=True, eq=False, slots=True)
class Block:
    """A sequence of statements."""

    stmts: tuple[Stmt, ...]
    _inside: Inside | None = field(default=None, init=False, repr=False)

    @property
    def inside(self) -> Inside:
        """The contents of the statement; computed once."""
        found = self._inside
        if found is None:
            found = _in_all([inside(stmt) for stmt in self.stmts])
            object.__setattr__(self, "_inside", found)
        return found


@dataclass(frozen=True, eq=False)
class Store:
    """`buffer[indices] = value`, or `combiner(buffer[indices], value)`. A `nontemporal` store
    bypasses the caches where possible.
    """

    buffer: Buffer
    indices: tuple[Scalar, ...]
    value: Scalar
    stage: str
    combiner: str = ""
    nontemporal: bool = False

    @cached_property
    def loads(self) -> tuple[Load, ...]:
        """The loads of its indices and its value."""
        return _loads_of((*self.indices, self.value))

    @cached_property
    def inside(self) -> Inside:
        """The contents of the statement."""
        own = self.buffer.scope in _OWN
        followed = None if own else self.variables
        root = self.buffer.root
        filled = frozenset((root,)) if root.scope in _OWN else _NO_BUFFERS
        read = _own_memory_of(self.loads)
        stages = frozenset((self.stage,))
        return Inside(_NO_NAMES, _NO_KINDS, stages, True, followed, filled, read)

    def reads_from(self, buffer: Buffer) -> bool:
        """Whether it loads elements of a buffer."""
        return any(load.source is buffer for load in self.loads)

    @cached_property
    def variables(self) -> frozenset[Index]:
        """The loop variables on which its position depends, other than only through values that it
        reads. Each iteration of such a loop writes different elements.
        """
        stack, seen = list(self.indices), set[int]()
        found: list[Index] = []
        while stack:
            node = stack.pop()
            if id(node) in seen or isinstance(node, Load):
                continue
            seen.add(id(node))
            if isinstance(node, Index):
                found.append(node)
            stack.extend(node.children)
        return frozenset(found)


@dataclass(frozen=True, eq=False)
class If:
    """Runs `body` if `cond` holds."""

    cond: Scalar
    body: Stmt

    @cached_property
    def inside(self) -> Inside:
        """The contents of the statement."""
        found, read = inside(self.body), _own_memory_of(_loads_of((self.cond,)))
        return found if read <= found.read else found._replace(read=found.read | read)


@dataclass(frozen=True, eq=False)
class Prefetch:
    """Prefetches the cache line of an element."""

    buffer: Buffer
    indices: tuple[Scalar, ...]
    stage: str

    @cached_property
    def inside(self) -> Inside:
        """The contents of the statement."""
        return _NOTHING._replace(read=_own_memory_of(_loads_of(self.indices)))


@dataclass(frozen=True, eq=False)
class Barrier:
    """Holds each thread of a block until all have reached it; earlier writes are visible then."""


@dataclass(frozen=True, eq=False)
class TileProduct:
    """A sum of products, `body`, that a matrix unit computes: either from zeros with all steps, or
    further steps of a sum.

    `rows`, `columns` and `depth` name the loops within a tile. Of the loops outside them, reduction
    loops accumulate into the same tiles, and other loops enumerate tiles.
    """

    rows: str
    columns: str
    depth: str
    body: Stmt


Stmt: TypeAlias = For | Block | Store | If | Prefetch | TileProduct | Barrier


@dataclass(frozen=True, eq=False, repr=False)
class Nest(Brief):
    """A kernel's loops. `inputs` and `outputs` are its arguments in order."""

    name: str
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    body: Block

    def with_body(self, body: Stmt) -> Nest:
        """Returns the nest with another body."""
        return replace(self, body=body if isinstance(body, Block) else block(body))

    @property
    def temporaries(self) -> tuple[Buffer, ...]:
        """The buffers that are neither inputs nor outputs, in order of the first store. Last are
        those that nothing stores to, because the axis that they are computed over is empty.
        """
        known = {id(b) for b in (*self.inputs, *self.outputs)}
        found: dict[int, Buffer] = {}
        stored = (stmt.buffer for stmt in walk(self.body) if isinstance(stmt, Store))
        loaded = (load.source for _, load in reads(self.body))
        for buffer in (b for uses in (stored, loaded) for b in uses if isinstance(b, Buffer)):
            if id(buffer.root) not in known:
                found.setdefault(id(buffer.root), buffer.root)
        return tuple(found.values())

    @property
    def dims(self) -> list[SymDim]:
        """The symbolic dimensions of its loops, buffers and expressions, each once."""
        found: dict[SymDim, None] = {}

        def add(dims: Iterable[Dim]) -> None:
            found.update((d, None) for d in dims if isinstance(d, SymDim))

        for buffer in (*self.inputs, *self.outputs):
            add(buffer.shape)
        seen: set[int] = set()
        for stmt in walk(self.body):
            if isinstance(stmt, For):
                add((stmt.size,))
            elif isinstance(stmt, (Store, Prefetch)):
                add(stmt.buffer.shape)
            for expr in expressions(stmt):
                stack = [expr]
                while stack:
                    node = stack.pop()
                    if id(node) in seen:
                        continue
                    seen.add(id(node))
                    match node:
                        case Size():
                            add((node.dim,))
                        case Load():
                            add(node.source.shape)
                        case Checked():
                            add((node.places.count, node.places.size))
                    stack.extend(node.children)
        return list(found)

    @property
    def sizes(self) -> tuple[str, ...]:
        """Names of the sizes that a call brings, in order."""
        return tuple(sorted({name for dim in self.dims for name in dim.symbols}))


def number(dim: Dim, what: str) -> int:
    """Returns a dimension that must be a number.

    Errors: S070 if it is known only in a run.
    """
    if isinstance(dim, int):
        return dim
    raise ScheduleError(
        "S070",
        f"the size of {what} is {dim}, which only a run knows",
        hint="split the loop by a number; the rest of the schedule may use that number",
    )


def block(*stmts: Stmt) -> Block:
    """Returns the statements as one flat block."""
    flat: list[Stmt] = []
    for stmt in stmts:
        if isinstance(stmt, Block):
            flat.extend(stmt.stmts)
        else:
            flat.append(stmt)
    return Block(tuple(flat))


def nested(axes: Sequence[Index], inner: Stmt) -> Stmt:
    """Returns a statement inside serial loops over `axes`, outermost first."""
    for axis in reversed(axes):
        inner = For(axis, "serial", inner)
    return inner


def single(stmts: Sequence[Stmt]) -> Stmt:
    """Returns a sequence of statements as one: the only statement, or a block."""
    flat = block(*stmts)
    return flat.stmts[0] if len(flat.stmts) == 1 else flat


EMPTY: Final = Block(())


class Inside(NamedTuple):
    """The contents of a statement, itself included. It is computed once for each statement, since
    the nests of a schedule share most statements.
    """

    names: frozenset[str]
    """The names of loops."""
    kinds: frozenset[Kind]
    """The kinds of loops."""
    stages: frozenset[str]
    """The stages of stores."""
    is_sound: bool
    """Whether vector loops contain only dot loops, and iterations run in order where they must."""
    followed: frozenset[Index] | None
    """The loop variables on which the positions of all stores depend (`Store.variables`). Stores to
    registers and scratch memory do not count; None if there are no others.
    """
    filled: frozenset[Buffer]
    """The registers and scratch memory that it writes."""
    read: frozenset[Buffer]
    """The registers and scratch memory that it reads."""


_NO_NAMES: Final = frozenset[str]()
_NO_KINDS: Final = frozenset[Kind]()
_NO_BUFFERS: Final = frozenset[Buffer]()
_NOTHING: Final = Inside(_NO_NAMES, _NO_KINDS, _NO_NAMES, True, None, _NO_BUFFERS, _NO_BUFFERS)
# The scopes of memory of one thread.
_OWN: Final = ("register", "scratch")


def _own_memory_of(loads: Iterable[Load]) -> frozenset[Buffer]:
    """Returns the registers and scratch memory that are loaded from."""
    sources = (load.source.root for load in loads if isinstance(load.source, Buffer))
    found = [root for root in sources if root.scope in _OWN]
    return frozenset(found) if found else _NO_BUFFERS


@bounded_cache(1 << 21)
def _in_loop(below: Inside, name: str, kind: Kind, is_in_order: bool) -> Inside:
    """Returns the contents of a loop. Most loops are copies of others, and share the result."""
    in_place = kind != "vector" or below.kinds <= {"dot"}
    in_order = not is_in_order or kind in ("serial", "unroll")
    is_sound = below.is_sound and in_place and in_order
    names, kinds = below.names | {name}, below.kinds | {kind}
    return below._replace(names=names, kinds=kinds, is_sound=is_sound)


def _in_all(parts: Sequence[Inside]) -> Inside:
    """Returns what several statements contain."""
    if len(parts) == 1:
        return parts[0]
    followed = [part.followed for part in parts if part.followed is not None]
    return Inside(
        frozenset[str]().union(*[part.names for part in parts]),
        frozenset[Kind]().union(*[part.kinds for part in parts]),
        frozenset[str]().union(*[part.stages for part in parts]),
        all(part.is_sound for part in parts),
        followed[0].intersection(*followed[1:]) if followed else None,
        _NO_BUFFERS.union(*[part.filled for part in parts]),
        _NO_BUFFERS.union(*[part.read for part in parts]),
    )


def inside(stmt: Stmt) -> Inside:
    """Returns the contents of a statement, itself included."""
    if isinstance(stmt, TileProduct):
        return inside(stmt.body)
    return _NOTHING if isinstance(stmt, Barrier) else stmt.inside


def walk(stmt: Stmt) -> Iterator[Stmt]:
    """Yields a statement and all below it, in order."""
    stack: list[Stmt] = [stmt]
    while stack:
        node = stack.pop()
        yield node
        match node:
            case For() | If() | TileProduct():
                stack.append(node.body)
            case Block():
                stack.extend(reversed(node.stmts))


def stores_in(stmt: Stmt) -> list[Store]:
    """Returns all stores in a statement, in order."""
    return [s for s in walk(stmt) if isinstance(s, Store)]


def transform(stmt: Stmt, visit: Callable[[Stmt], Stmt | None]) -> Stmt:
    """Returns the statement rebuilt bottom-up; `visit` may replace each node (None keeps it)."""
    new = over_children(stmt, lambda child: transform(child, visit))
    replaced = visit(new)
    return new if replaced is None else replaced


def over_children(stmt: Stmt, change: Callable[[Stmt], Stmt]) -> Stmt:
    """Returns the statement with each statement directly in it changed; the statement itself if
    none changes.
    """
    if isinstance(stmt, For):
        return stmt.with_body(change(stmt.body))
    if isinstance(stmt, Block):
        stmts = [change(s) for s in stmt.stmts]
        same = all(map(is_, stmts, stmt.stmts))
        return stmt if same else block(*stmts)
    if isinstance(stmt, (If, TileProduct)):
        body = change(stmt.body)
        return stmt if body is stmt.body else replace(stmt, body=body)
    return stmt


def map_expressions(stmt: Stmt, rewrite: Callable[[Scalar], Scalar]) -> Stmt:
    """Returns the statement with every expression in it rewritten. All statements are new objects,
    so that the result may be placed beside the original.
    """
    return transform(stmt, lambda node: _rewritten(node, rewrite, anew=True))


def update_expressions(
    stmt: Stmt, rewrite: Callable[[Scalar], Scalar], reading: Buffer | None = None
) -> Stmt:
    """Returns the statement with every expression in it rewritten. The result must replace the
    original, because both share the statements whose expressions stay the same. With `reading`,
    stores that do not read this buffer are kept.
    """

    def visit(node: Stmt) -> Stmt | None:
        stays = reading is not None and isinstance(node, Store) and not node.reads_from(reading)
        return None if stays else _rewritten(node, rewrite, anew=False)

    return transform(stmt, visit)


def _rewritten(stmt: Stmt, rewrite: Callable[[Scalar], Scalar], *, anew: bool) -> Stmt | None:
    """Returns a statement with its own expressions rewritten, not those inside; None to keep it."""
    if isinstance(stmt, Store):
        indices, value = tuple([rewrite(i) for i in stmt.indices]), rewrite(stmt.value)
        if not anew and value is stmt.value and all(map(is_, indices, stmt.indices)):
            return None
        return Store(
            stmt.buffer, indices, value, stmt.stage, stmt.combiner, nontemporal=stmt.nontemporal
        )
    if isinstance(stmt, Prefetch):
        indices = tuple([rewrite(i) for i in stmt.indices])
        same = not anew and all(map(is_, indices, stmt.indices))
        return None if same else replace(stmt, indices=indices)
    if isinstance(stmt, If):
        cond = rewrite(stmt.cond)
        if isinstance(cond, Imm):
            return stmt.body if cond.value else EMPTY
        return None if cond is stmt.cond and not anew else If(cond, stmt.body)
    return None


def buffer_loads(expr: Scalar, without: Container[int] = ()) -> Iterator[Load]:
    """Yields the loads in an expression, shared ones once. `without` holds the ids of expressions
    to skip.
    """
    seen: set[Scalar] = set()
    stack = [expr]
    while stack:
        node = stack.pop()
        if node in seen or (without and id(node) in without):
            continue
        children = node.children
        if isinstance(node, Load):
            yield node
        elif not children:
            continue
        seen.add(node)
        stack += children


def expressions(stmt: Stmt) -> Iterator[Scalar]:
    """Yields the expressions of a statement, without those of nested statements."""
    match stmt:
        case Store():
            yield from stmt.indices
            yield stmt.value
        case Prefetch():
            yield from stmt.indices
        case If():
            yield stmt.cond


def reads(stmt: Stmt) -> Iterator[tuple[Stmt, Load]]:
    """Yields the loads in a statement, each with the statement that performs it."""
    for node in walk(stmt):
        if isinstance(node, Store):
            for load in node.loads:
                yield node, load
        elif isinstance(node, (If, Prefetch)):
            for load in _loads_of(expressions(node)):
                yield node, load


def _loads_of(exprs: Iterable[Scalar]) -> tuple[Load, ...]:
    return tuple(load for expr in exprs for load in buffer_loads(expr))


def statements(stmt: Stmt) -> tuple[Stmt, ...]:
    """Returns the statements of a block; any other statement as a tuple of one."""
    return stmt.stmts if isinstance(stmt, Block) else (stmt,)


def parallel_lines(stmt: Stmt) -> list[For]:
    """Returns the *lines* of a parallel loop: the parallel loops at the end of its body. There are
    several if one loop was peeled into copies. Each thread that executes some of the lines runs the
    statements before them first. If these write to memory that threads share, there are no lines.
    """
    return _divided(stmt)[1]


def before_lines(stmt: Stmt) -> list[Stmt]:
    """Returns the statements that come before the lines of a parallel loop."""
    return _divided(stmt)[0]


def _divided(stmt: Stmt) -> tuple[list[Stmt], list[For]]:
    """Returns the statements before the lines of a parallel loop, and the lines."""
    if not isinstance(stmt, For) or stmt.kind != "parallel":
        return [], []
    inside = statements(stmt.body)
    lines = [n for n in inside if isinstance(n, For) and n.kind == "parallel"]
    before = [*inside[: len(inside) - len(lines)]]
    at_end = all(a is b for a, b in zip(inside[len(before) :], lines, strict=True))
    if not at_end or len({n.name for n in lines}) != 1:
        return [], []
    stores = (s for b in before for s in walk(b) if isinstance(s, Store))
    own = all(store.buffer.scope in ("scratch", "register") for store in stores)
    return (before, lines) if own else ([], [])


def loops(stmt: Stmt) -> Iterator[For]:
    """Yields the loops below a statement, outermost first."""
    stack: list[Stmt] = [stmt]
    while stack:
        node = stack.pop()
        match node:
            case For():
                yield node
                stack.append(node.body)
            case If() | TileProduct():
                stack.append(node.body)
            case Block() if node.inside.names:
                stack.extend(s for s in reversed(node.stmts) if not isinstance(s, Store))
