"""The executor's nodes: the steps of a run, in order, and the place of each value in memory.

They are the nodes of the last stage's graph outside kernels: inputs, constants, kernels, views,
host steps, branches and loops. Tuples and bindings are not nodes; their contents are referenced
directly.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from clew.backends.cpu.kernel_stages import operator_calls
from clew.build.result import Build, KernelUse
from clew.correlate.graph_json import KERNEL
from clew.ir.dims import Dim
from clew.ir.expr import (
    Call,
    Constant,
    Expr,
    Function,
    If,
    Let,
    Tuple,
    TupleGetItem,
    Var,
    While,
)
from clew.ir.types import TensorType, TupleType, Type, leaves, memory_bytes
from clew.ir.visit import post_order
from clew.passes.fusion.views import part_offsets, view_offsets
from clew.runtime.plan import BufferKind, BufferRef
from clew.runtime.program import RunHost

INPUT: Final = "input"
PARAM: Final = "param"
VIEW: Final = "view"
JOIN: Final = "join"
HOST: Final = "host"
DEFERRED: Final = "deferred"
REGION: Final = "region"
IF: Final = "if"
WHILE: Final = "while"


class Entry(NamedTuple):
    """One value: the result `output` of the node at position `node` of its graph."""

    node: int
    output: int


class Storage(NamedTuple):
    """The place of a value: `kind` and `number` identify a buffer of a segment, `offset` is in
    bytes.

    `segment` is -1 if the value belongs to none.
    """

    kind: str
    segment: int = -1
    number: int = 0
    offset: int = 0

    @property
    def buffer(self) -> tuple[str, int, int]:
        """The key of the buffer, equal for values in the same memory."""
        return self.kind, self.segment, self.number

    def at(self, further: int) -> Storage:
        """Returns the place at a further offset in bytes."""
        return self._replace(offset=self.offset + further)


@dataclass(eq=False)
class Node:
    """A node: its kind (`op`), its operands, and the types and places of its results.

    `operators` are the graph's calls that it executes; `graphs` those of its branches or loop.
    """

    op: str
    name: str
    expr: Expr
    inputs: list[Entry] = field(default_factory=list)
    types: list[Type] = field(default_factory=list)
    storage: list[Storage] = field(default_factory=list)
    operators: list[Call] = field(default_factory=list)
    use: KernelUse | None = None
    graphs: dict[str, Graph] = field(default_factory=dict)


@dataclass(eq=False)
class Graph:
    """The nodes of a function in execution order, and its results (`heads`).

    `parent` is the name of the branch or loop that runs it, `role` its role there (`then`, `else`,
    `cond`, `body`).
    """

    nodes: list[Node] = field(default_factory=list)
    heads: list[Entry] = field(default_factory=list)
    parent: str = ""
    role: str = ""


def executor_graphs(build: Build) -> list[Graph]:
    """Returns the graph of the model, then those of its branches and loops."""
    reader = _Reader(build)
    graphs = [reader.graph(build.stages[-1].module.main)]
    for graph in graphs:  # grows: graphs of inner branches follow their parents
        for node in graph.nodes:
            graphs.extend(node.graphs.values())
    return graphs


class _Reader:
    """State shared by the graphs of one build: names, kernel uses, and the calls that run on the
    host.
    """

    def __init__(self, build: Build) -> None:
        self.build = build
        self.uses: dict[int, deque[KernelUse]] = {}
        for use in build.uses:
            self.uses.setdefault(use.call.id, deque()).append(use)
        programs = build.program.walk()
        hosts = [i for p in programs for i in p.instructions if isinstance(i, RunHost)]
        self.hosted = {h.node for h in hosts}
        self._taken = {use.name: 1 for use in build.uses}
        self._places = itertools.count()

    def graph(self, function: Function, parent: str = "", role: str = "") -> Graph:
        return _GraphReader(self, function, parent, role).graph

    def unique(self, name: str) -> str:
        count = self._taken.get(name, 0)
        self._taken[name] = count + 1
        return name if not count else self.unique(f"{name}_{count}")

    def place(self, kind: str) -> Storage:
        """Returns a separate place, distinct from all others."""
        return Storage(kind, number=next(self._places))

    def on_host(self, type_: Type) -> list[Storage]:
        """Returns the places of values computed on the host: separate arrays."""
        return [self.place("host") for _ in leaves(type_)]

    def next_use(self, call: Call) -> KernelUse:
        """Returns the next use of a kernel in order: a function in two branches has two uses."""
        uses = self.uses[call.id]
        return uses.popleft() if len(uses) > 1 else uses[0]

    def arena(self, use: KernelUse, ref: BufferRef) -> Storage:
        """Returns the place of a reference in a plan."""
        offset = ref.offset_bytes
        if ref.kind is BufferKind.ARENA:
            plan = self.build.segments[use.segment].plan
            offset += plan.arena_buffers[ref.index].offset_bytes
        return Storage(ref.kind.value, use.segment, ref.index, offset)


class _GraphReader:
    def __init__(self, reader: _Reader, function: Function, parent: str, role: str) -> None:
        self._reader = reader
        self.graph = Graph(parent=parent, role=role)
        self._entries: dict[int, tuple[Entry, ...]] = {}
        for position, param in enumerate(function.params):
            flat = leaves(param.type)
            outer = [Storage(INPUT, number=position)] * len(flat)
            places = [reader.place("argument") for _ in flat] if parent else outer
            self._add(INPUT, param.name, param, [], places)
        for expr in post_order(function.body):
            self._collect(expr)
        self.graph.heads = list(self._entries[function.body.id])

    def _add(
        self,
        op: str,
        name: str,
        expr: Expr,
        inputs: Iterable[Expr],
        storage: Sequence[Storage],
        operators: Sequence[Call] = (),
    ) -> Node:
        made = Node(
            op,
            name if op == KERNEL else self._reader.unique(name),
            expr,
            [e for i in inputs for e in self._entries[i.id]],
            leaves(self._reader.build.type_at(expr.type)),
            list(storage),
            list(operators),
        )
        position = len(self.graph.nodes)
        self._entries[expr.id] = tuple(Entry(position, n) for n in range(len(made.types)))
        self.graph.nodes.append(made)
        return made

    def _collect(self, expr: Expr) -> None:
        match expr:
            case Constant():
                self._add(PARAM, parameter_name(expr), expr, [], [self._reader.place("constant")])
            case Tuple():
                self._entries[expr.id] = tuple(e for f in expr.fields for e in self._of(f))
            case TupleGetItem():
                self._entries[expr.id] = self._field(expr)
            case Let():
                self._entries[expr.var.id] = self._of(expr.value)
                self._entries[expr.id] = self._of(expr.body)
            case Call(op=Function() as function) if expr.id in self._reader.uses:
                self._kernel(expr, function)
            case Call(op=Function() as function):
                calls = operator_calls(function)
                self._add(
                    REGION if function.backend else DEFERRED,
                    expr.title,
                    expr,
                    expr.args,
                    self._reader.on_host(expr.type),
                    calls,
                )
            case Call() if expr.id in self._reader.hosted:
                self._add(
                    HOST, _short(expr), expr, expr.args, self._reader.on_host(expr.type), [expr]
                )
            case Call() if (offsets := view_offsets(expr)) is not None:
                self._view(expr, offsets)
            case Call() if (offsets := part_offsets(expr)) is not None:
                self._join(expr, offsets)
            case Call():
                self._add(
                    HOST, _short(expr), expr, expr.args, self._reader.on_host(expr.type), [expr]
                )
            case If():
                inputs = (expr.cond, *expr.args)
                node = self._add(IF, "if", expr, inputs, self._reader.on_host(expr.type))
                self._nest(node, {"then": expr.then, "else": expr.orelse})
            case While():
                node = self._add(WHILE, "while", expr, expr.init, self._reader.on_host(expr.type))
                self._nest(node, self._parts(expr))
            case Var() | Function():
                pass

    def _of(self, expr: Expr) -> tuple[Entry, ...]:
        return self._entries[expr.id]

    def _field(self, expr: TupleGetItem) -> tuple[Entry, ...]:
        assert isinstance(expr.value.type, TupleType)
        start = sum(len(leaves(t)) for t in expr.value.type.fields[: expr.index])
        return self._of(expr.value)[start : start + len(leaves(expr.type))]

    def _storage(self, entry: Entry) -> Storage:
        return self.graph.nodes[entry.node].storage[entry.output]

    def _nest(self, node: Node, functions: dict[str, Function]) -> None:
        for name, function in functions.items():
            node.graphs[name] = self._reader.graph(function, node.name, name)

    def _parts(self, loop: While) -> dict[str, Function]:
        """Returns the functions a loop runs, without the condition if native code counts the
        iterations.
        """
        kernels = [n for n in post_order(loop.cond.body) if _is_kernel(n)]
        trips = None if loop.trips is None else self._reader.build.known(loop.trips)
        known = trips is not None or bool(kernels)
        counted = known and not any(n.id in self._reader.uses for n in kernels)
        return {"body": loop.body} if counted else {"cond": loop.cond, "body": loop.body}

    def _kernel(self, call: Call, function: Function) -> None:
        """Adds a kernel, with the places of its operands from its step in the plan."""
        reader = self._reader
        use = reader.next_use(call)
        step = reader.build.segments[use.segment].plan.steps[use.step]
        reads = [e for a in call.args for e in self._of(a)]
        writes = len(leaves(call.type))
        places = [reader.arena(use, ref) for ref in step.args]
        results = places[len(reads) : len(reads) + writes]
        node = self._add(KERNEL, use.name, call, call.args, results, operator_calls(function))
        node.use = use
        for entry, place in zip(reads, places, strict=False):
            source = self.graph.nodes[entry.node]
            if source.op == PARAM and source.storage[entry.output].segment < 0:
                source.storage[entry.output] = place

    def _view(self, call: Call, offsets: Sequence[Dim]) -> None:
        (source,) = self._of(call.args[0])
        place, settled = self._storage(source), self._reader.build.settled
        size = _element_bytes(call.args[0].type)
        places = [place.at(settled(offset) * size) for offset in offsets]
        self._add(VIEW, _short(call), call, call.args, places, [call])

    def _join(self, call: Call, offsets: Sequence[Dim]) -> None:
        """Adds a concatenation whose parts are computed in place: it begins at the first."""
        first = self._storage(self._of(call.args[0])[0])
        place = first.at(-self._reader.build.settled(offsets[0]) * _element_bytes(call.type))
        self._add(JOIN, _short(call), call, call.args, [place], [call])


def _is_kernel(node: Expr) -> bool:
    return isinstance(node, Call) and isinstance(node.op, Function)


def parameter_name(constant: Constant) -> str:
    """Returns a constant's name in the user's model, else the names of its sources, else
    `constant`.
    """
    made_of = next((s.layer for s in constant.span.sources if s.kind == "parameter"), "")
    return constant.name or made_of or "constant"


def _short(call: Call) -> str:
    return call.title.rpartition(".")[2]


def _element_bytes(type_: Type) -> int:
    assert isinstance(type_, TensorType)
    return memory_bytes(type_.dtype)
