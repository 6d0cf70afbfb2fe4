"""Observes a run of a build: operands and results of its kernels, and values of its nodes.

The program is unchanged: it has the arena, kernels and order of any other run. Each kernel runs in
a separate native call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from clew.build.result import Build, KernelUse
from clew.ir.dims import is_unknown
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
from clew.ir.types import TensorType, TupleType, Type, leaves, to_numpy
from clew.ir.visit import inner_functions, post_order
from clew.ops.registry import Op
from clew.passes.fusion.views import part_offsets, view_offsets
from clew.runtime.plan import Flow
from clew.runtime.program import NO_NODE, Instruction, RunRegion, RunSegment
from clew.runtime.segment import NativeSegment

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Ran:
    """One run of a kernel: copies of its operands before the run, and of its results.

    Tuples are flattened. In a loop, a kernel runs several times.
    """

    use: KernelUse
    operands: tuple[Array, ...]
    results: tuple[Array, ...]


def observe(
    build: Build,
    inputs: Sequence[Any],
    note: Callable[[Ran], None],
    *,
    only: Collection[int] | None = None,
) -> list[Any]:
    """Returns the outputs of a run. Calls `note` after each run of a kernel, in order.

    `inputs` are the checked inputs of the model. `only` holds the ids of the calls to observe (all
    by default). `note` may keep its argument.
    """
    return _observe(build, inputs, note, only, lambda node, value: None)


class Iterations(list[Any]):
    """The values of a node in a loop, in order: of all iterations, or of some and the last one.

    `places` holds the iterations' numbers, from 0; `total` is the number of iterations.
    """

    def __init__(self) -> None:
        self.places: list[int] = []
        self.total = 0

    def of(self, values: Iterable[Any]) -> Iterations:
        """Returns other values of the same iterations."""
        found = Iterations()
        found.extend(values)
        found.places, found.total = self.places, self.total
        return found

    def note(self, value: Any, wanted: Collection[int] | None) -> None:
        """Records the value of the next iteration. `wanted` holds the iterations to keep (all by
        default).
        """
        if wanted is not None and self.places and self.places[-1] not in wanted:
            self.pop()  # it was kept only as the last one
            self.places.pop()
        self.append(value)
        self.places.append(self.total)
        self.total += 1


def node_values(
    build: Build,
    inputs: Sequence[Any],
    wanted: Collection[int] | None = None,
    *,
    iterations: bool | Collection[int] = False,
) -> dict[int, Any]:
    """Returns the values of the last stage's nodes outside kernels in a run, by id.

    These are the values that exist in memory: inputs, results of kernels and host steps, and their
    parts. Nodes of branches and loops have their last value, if they ran. With `iterations`, nodes
    in loops have `Iterations`, of all iterations or of those in a collection. `wanted` are the ids
    of the nodes to return (all by default).
    """
    main = build.stages[-1].module.main
    reach = _Reach(main)
    asked = reach.nodes.keys() if wanted is None else wanted
    needed = reach.behind(asked)
    some = None if isinstance(iterations, bool) else iterations
    known = _Known(frozenset() if iterations is False else reach.in_loops, some)
    for param, value in zip(main.params, inputs, strict=True):
        known.put(param.id, value)

    def note(ran: Ran) -> None:
        known.put(ran.use.call.id, _packed(ran.use.call.type, iter(ran.results)))

    _observe(build, inputs, note, None if wanted is None else needed, known.put)
    values = known.values
    for node in needed:
        parts = reach.parts(node)
        found = reach.nodes.get(node)
        if isinstance(found, Constant):
            values[node] = found.data
        elif (
            found is not None
            and node not in values
            and parts
            and all(a.id in values for a in parts)
        ):
            values[node] = _value_of(found, [values[a.id] for a in parts], build)
    return {node: values[node] for node in asked if node in values}


class _Known:
    """Collects values of nodes during a run."""

    def __init__(self, in_loops: Collection[int], iterations: Collection[int] | None) -> None:
        self.values: dict[int, Any] = {}
        self._in_loops = in_loops
        self._iterations = iterations

    def put(self, node: int, value: Any) -> None:
        """Records a value: the latest one, or that of a loop's next iteration."""
        if node in self._in_loops:
            self.values.setdefault(node, Iterations()).note(value, self._iterations)
        else:
            self.values[node] = value


def _value_of(node: Expr, parts: Sequence[Any], build: Build) -> Any:
    """Returns `_value`, or its `Iterations` if parts have them."""
    several = [part for part in parts if isinstance(part, Iterations)]
    if not several:
        return _value(node, parts, build)
    fewest = min(several, key=len)  # a part computed in a branch may have fewer
    rows = ([p[n] if isinstance(p, Iterations) else p for p in parts] for n in range(len(fewest)))
    return fewest.of(_value(node, row, build) for row in rows)


class _Reach:
    """The nodes of a function outside kernels, and the nodes that share their memory."""

    def __init__(self, main: Function) -> None:
        self.in_loops: set[int] = set()
        self.nodes = {n.id: n for n in (*main.params, *_outside_kernels(main, self.in_loops))}
        self._bound = {n.var.id: n.value for n in self.nodes.values() if isinstance(n, Let)}

    def parts(self, node: int) -> Sequence[Expr]:
        """Returns the nodes whose memory makes up a node's value; none if the node owns its
        memory.
        """
        found = self.nodes.get(node)
        match found:
            case Var():
                return (self._bound[node],) if node in self._bound else ()
            case Let():
                return (found.body,)
            case Tuple():
                return found.fields
            case TupleGetItem():
                return (found.value,)
            case Call() if view_offsets(found) is not None or part_offsets(found) is not None:
                return found.args
        return ()

    def behind(self, asked: Collection[int]) -> list[int]:
        """Returns the given nodes and all their parts, each node after its parts."""
        order: list[int] = []
        done: set[int] = set()
        stack = [(n, False) for n in asked]
        while stack:
            node, expanded = stack.pop()
            if expanded:
                order.append(node)
            elif node not in done:
                done.add(node)
                stack.append((node, True))
                stack.extend((a.id, False) for a in self.parts(node))
        return order


def _outside_kernels(function: Function, in_loops: set[int]) -> Iterator[Expr]:
    """Yields the nodes of a function's body, then those of its branches and loops. Adds the ids of
    nodes in loops to `in_loops`.
    """
    pending = [(function, False)]
    while pending:
        part, looped = pending.pop()
        for node in post_order(part.body):
            if looped:
                in_loops.add(node.id)
            yield node
            if isinstance(node, (If, While)):
                inside = looped or isinstance(node, While)
                pending.extend((f, inside) for f in inner_functions(node))


def _value(node: Expr, parts: Sequence[Any], build: Build) -> Any:
    """Returns the value of a node without computation, from the values of its parts."""
    match node:
        case Tuple():
            return tuple(parts)
        case TupleGetItem():
            return parts[0][node.index]
        case Call(op=Op() as op):
            return op.run_reference(parts, build.attrs_at(node.attrs))
    return parts[0]


def _observe(
    build: Build,
    inputs: Sequence[Any],
    note: Callable[[Ran], None],
    only: Collection[int] | None,
    put: Callable[[int, Any], None],
) -> list[Any]:
    """Does the work of `observe`. Also passes the nodes and values of host steps, branches and
    loops to `put`.
    """
    uses = {(use.segment, use.step): use for use in build.uses}
    numbers = {id(s): n for n, s in enumerate(build.segments)}
    main = build.stages[-1].module.main
    types = {n.id: build.type_at(n.type) for n in post_order(main, into_functions=True)}

    def around(
        instruction: Instruction, given: Sequence[Any], run: Callable[[], Sequence[Any]]
    ) -> Sequence[Any]:
        if isinstance(instruction, RunSegment) and isinstance(instruction.segment, NativeSegment):
            segment = instruction.segment
            number = numbers.get(id(segment))
            if number is None:
                return run()

            def around_step(step: int, addresses: list[int], go: Callable[[], object]) -> None:
                use = uses[number, step]
                if only is not None and use.call.id not in only:
                    go()
                    return
                call = use.call
                reads = [t for a in call.args for t in leaves(build.type_at(a.type))]
                operands = tuple(map(_copied, reads, addresses))
                go()
                writes = leaves(build.type_at(call.type))
                results = tuple(map(_copied, writes, addresses[len(reads) :]))
                note(Ran(use, operands, results))

            def ended(place: int, addresses: list[int], rows: int) -> None:
                flow = segment.plan.order[place]
                if isinstance(flow, Flow) and flow.node in types:
                    type_ = types[flow.node]
                    parts = [_with_rows(part, rows) for part in leaves(type_)]
                    put(flow.node, _packed(type_, map(_copied, parts, addresses)))

            return segment.step_by_step(given, around_step, ended)
        results = run()
        if isinstance(instruction, RunRegion):
            space = instruction.function.space
            shown: Sequence[Any] = [space.to_host(buffer) for buffer in results]
        else:
            shown = results
        node = getattr(instruction, "node", NO_NODE)
        if node != NO_NODE and node in types:
            put(node, _packed(types[node], iter(shown)))
        return results

    return build.program.observed(inputs, around)


def _with_rows(type_: Type, rows: int) -> Type:
    """Returns the type of a result of a loop; a stack of unknown size gets this number of rows."""
    if isinstance(type_, TensorType) and type_.rank and is_unknown(type_.shape[0]):
        return type_.with_(shape=(rows, *type_.shape[1:]))
    return type_


def _copied(type_: Type, address: int) -> Array:
    assert isinstance(type_, TensorType)
    array = np.empty(type_.concrete, to_numpy(type_.dtype))
    ctypes.memmove(array.ctypes.data, address, array.nbytes)
    return array


def _packed(type_: Type, values: Iterator[Any]) -> Any:
    """Returns values in the tuple structure of a type."""
    if isinstance(type_, TupleType):
        return tuple(_packed(f, values) for f in type_.fields)
    return next(values)
