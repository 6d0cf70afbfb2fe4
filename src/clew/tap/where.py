"""The places of layers' values at the last stage: in memory, inside a kernel, or nowhere.

A value is in memory if a node outside kernels has it: the result of a kernel or host step, an
input, or a part of one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, Final

from clew.backends.cpu.kernel_stages import operator_calls
from clew.build.result import Build
from clew.ir.expr import Call, Constant, Expr, Function, If, While
from clew.ir.types import TensorType
from clew.ir.visit import inner_functions, post_order
from clew.trace.fates import Fate, FateKind, fate_of
from clew.trace.links import LinkKind
from clew.trace.trace import Trace
from clew.trace.values import LayerValue, layer_values

_MOST_NAMED: Final = 3
# The maximum number of nodes searched for nearby values in memory.
_FARTHEST: Final = 2000


class State(Enum):
    """The state of a layer's value."""

    MEMORY = "memory"
    """It is in memory in every run."""
    FUSED = "fused"
    """It is computed inside a kernel, which does not write it to memory."""
    GONE = "gone"
    """No node has it at the last stage."""
    IDLE = "idle"
    """It is in a branch or loop that did not run."""


@dataclass(frozen=True)
class Refusal:
    """Why a layer's value cannot be read, and which values nearby can.

    `kernel` is the kernel or region that contains the value, or that its work went into, and
    `backend` the region's backend; `pass_name` is the pass that eliminated it. `before` are the
    nearest layers it is computed from whose values are in memory (including inputs of the model),
    `after` the nearest computed from it.
    """

    layer: str
    output: int
    state: State
    reason: str
    kernel: str = ""
    pass_name: str = ""
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    backend: str = ""

    def __str__(self) -> str:
        return f"{self.layer}: {self.reason}{self.nearest}"

    @property
    def nearest(self) -> str:
        """The nearest values in memory, as the end of a sentence."""
        sides = (("before", self.before), ("after", self.after))
        named = [f"{side} it {', '.join(names)}" for side, names in sides if names]
        return f"; in memory are {' and '.join(named)}" if named else ""


class Whereabouts:
    """The place of each result of each layer of a build."""

    def __init__(self, build: Build, trace: Trace) -> None:
        self.build = build
        self.trace = trace

    @property
    def main(self) -> Function:
        """The main function of the last stage."""
        found: Function = self.build.stages[-1].module.main
        return found

    @cached_property
    def values(self) -> dict[tuple[str, int], LayerValue]:
        """Every result of a layer, by the layer's name and the result's number."""
        return {(v.layer, v.output): v for v in layer_values(self.trace)}

    @cached_property
    def outputs(self) -> dict[str, list[int]]:
        """The numbers of each layer's results; none for layers without results."""
        found: dict[str, list[int]] = {layer: [] for layer in self.trace.layers}
        for layer, output in self.values:
            found.setdefault(layer, []).append(output)
        return {layer: sorted(numbers) for layer, numbers in found.items()}

    @cached_property
    def _outside(self) -> set[int]:
        """Ids of the nodes of the last stage outside kernels."""
        pending = [self.build.stages[-1].module.main]
        found = {p.id for p in pending[0].params}
        while pending:
            for node in post_order(pending.pop().body):
                found.add(node.id)
                if not isinstance(node, Call):
                    pending.extend(inner_functions(node))
        return found

    def node_of(self, value: LayerValue) -> int | None:
        """Returns the node of the last stage that has a value in memory, or None."""
        nodes = self.trace.nodes(self.trace.last)
        held = [ref.node for ref in value.last]
        inside = [n for n in held if n not in self._outside and isinstance(nodes[n], Constant)]
        return next((n for n in held if n in self._outside), inside[0] if inside else None)

    def state(self, value: LayerValue) -> State:
        """Returns the state of a value."""
        if self.node_of(value) is not None:
            return State.MEMORY
        return State.FUSED if value.last else State.GONE

    def refusal(self, layer: str, output: int = 0) -> Refusal:
        """Returns the reason why a value is not in memory. Asserts that it is not."""
        value = self.values.get((layer, output))
        if value is None:
            fate = fate_of(self.trace, layer)
            return Refusal(layer, output, State.GONE, _ended(fate), pass_name=fate.pass_name)
        before, after = self._nearest(value)
        if value.last:
            kernel, reason, backend = self._inside(value)
            return Refusal(layer, output, State.FUSED, reason, kernel, "", before, after, backend)
        kernel, reason = self._gone(value)
        assert value.gone is not None
        by = self.trace.stages[value.gone].name
        return Refusal(layer, output, State.GONE, reason, kernel, by, before, after)

    def logical_shape(self, value: LayerValue) -> tuple[int, ...] | None:
        """Returns the shape of a layer's value in this build; None if it is known only during the
        run.
        """
        target: Any = self.build.type_at(self.trace.nodes(0)[value.first.node].type)
        held, stage = {value.first.node}, 0
        while held:
            nodes = self.trace.nodes(stage)
            for type_ in (self.build.type_at(nodes[n].type) for n in held):
                match type_:
                    case TensorType(is_static=True, layout=target.layout):
                        return type_.concrete
            if stage == self.trace.last:
                break
            stage += 1
            held = self._following(held, stage)
        return None

    def _following(self, held: Iterable[int], stage: int) -> set[int]:
        """Returns the nodes of a stage with the values of nodes of the previous stage."""
        if not self.trace.stages[stage].changed:
            return set(held)
        links = self.trace.links(stage)
        found = (link for old in held for link in links.forward(old))
        return {link.new for link in found if link.kind is not LinkKind.DERIVED}

    # --- reasons ---

    def _inside(self, value: LayerValue) -> tuple[str, str, str]:
        """Returns the kernel or region that contains a value, the value's use there, and the
        region's backend, if it is one.
        """
        node = next(ref.node for ref in value.last if ref.node in self._kernel_of)
        name, function = self._kernel_of[node]
        readers = [c for c in operator_calls(function) if any(a.id == node for a in c.args)]
        named = " and ".join(dict.fromkeys(map(_named, readers)))
        how = f", where {named} reads it" if named else ""
        place = f"region {name} on {function.backend}" if function.backend else f"kernel {name}"
        return name, f"it stays inside the {place}{how}", function.backend

    @cached_property
    def kernels(self) -> dict[int, tuple[str, Function]]:
        """Names and functions of kernels by their calls, including kernels with sizes known only
        during the run.
        """
        names = {use.call.id: use.name for use in self.build.uses}
        found = {}
        for node in self.trace.nodes(self.trace.last).values():
            if isinstance(node, Call) and isinstance(node.op, Function) and node.op.is_primitive:
                found[node.id] = names.get(node.id, node.title), node.op
        return found

    @cached_property
    def _kernel_of(self) -> dict[int, tuple[str, Function]]:
        """The kernel of each node inside kernels."""
        return {n.id: k for k in self.kernels.values() for n in post_order(k[1])}

    def _gone(self, value: LayerValue) -> tuple[str, str]:
        """Returns the kernel that a lost value's work is in, and the pass that lost it."""
        assert value.gone is not None
        trace = self.trace
        pass_name = trace.stages[value.gone].name
        nodes = trace.layer_nodes(trace.last).get(value.layer, ())
        kernels = list(dict.fromkeys(k.name for k in trace.kernels_of(nodes)))
        kernel = kernels[0] if kernels else ""
        into = self._successors(value)
        where = f" ({', '.join(kernels[:_MOST_NAMED])})" if kernels else ""
        if into:
            return kernel, f"{pass_name} computes {into} instead{where}, and not this value"
        fate = fate_of(trace, value.layer)
        if fate.kind in (FateKind.KERNEL, FateKind.REGION, FateKind.KEPT):
            return kernel, f"no node has it since {pass_name}{where}"
        return kernel, _ended(fate)

    def _successors(self, value: LayerValue) -> str:
        """Returns the nodes built for those that had a value, at the stage that lost it."""
        assert value.gone is not None
        trace, stage = self.trace, value.gone
        links, new = trace.links(stage), trace.nodes(stage)
        found: dict[str, None] = {}
        for node in self._holders(value, stage - 1):
            for link in links.forward(node):
                successor = new[link.new]
                if link.kind is LinkKind.DERIVED and isinstance(successor, Call):
                    found[successor.title] = None
        names = list(found)
        more = ", ..." if len(names) > _MOST_NAMED else ""
        return ", ".join(names[:_MOST_NAMED]) + more

    def _holders(self, value: LayerValue, stage: int) -> Iterable[int]:
        """Returns the nodes that have a value at a stage."""
        held = {value.first.node}
        for following in range(1, stage + 1):
            held = self._following(held, following)
        return held

    # --- neighbors ---

    @cached_property
    def _readable(self) -> dict[int, str]:
        """For nodes of the first stage whose values are in memory, the names of their layers."""
        last = self.trace.nodes(self.trace.last)
        found: dict[int, str] = {}
        for value in self.values.values():
            node = self.node_of(value)
            if node is not None and not isinstance(last[node], Constant):
                found.setdefault(value.first.node, value.layer)
        for node in self.build.stages[0].module.main.params:
            found[node.id] = f"the input {node.name}"
        return found

    @cached_property
    def _edges(self) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
        """For each node of the first stage, its operands and its users."""
        reads: dict[int, list[int]] = {}
        for node in self.trace.nodes(0).values():
            if isinstance(node, Expr) and not isinstance(node, (Function, Constant)):
                used = [c for c in node.children if not isinstance(c, Function)]
                reads.setdefault(node.id, []).extend(c.id for c in [*used, *_results(node)])
                for param, given in _arguments(node):
                    reads.setdefault(param.id, []).append(given.id)
        read_by: dict[int, list[int]] = {}
        for user, used_ids in reads.items():
            for used_id in used_ids:
                read_by.setdefault(used_id, []).append(user)
        return reads, read_by

    def _nearest(self, value: LayerValue) -> tuple[tuple[str, ...], tuple[str, ...]]:
        reads, read_by = self._edges
        start = value.first.node
        return (
            self._named(self._reached(start, reads)),
            self._named(self._reached(start, read_by)),
        )

    def _reached(self, start: int, edges: Mapping[int, list[int]]) -> Iterator[int]:
        """Yields the readable nodes first met on each path from a node, the nearest first."""
        seen, ring = {start}, [start]
        while ring and len(seen) < _FARTHEST:
            following = []
            for node in ring:
                for other in edges.get(node, ()):
                    if other in seen:
                        continue
                    seen.add(other)
                    if other in self._readable:
                        yield other
                    else:
                        following.append(other)
            ring = following

    def _named(self, nodes: Iterator[int]) -> tuple[str, ...]:
        names: dict[str, None] = {}
        for node in nodes:
            names[self._readable[node]] = None
            if len(names) == _MOST_NAMED:
                break
        return tuple(names)


def _ended(fate: Fate) -> str:
    """Returns a layer's fate as a clause."""
    standing = (
        *(FateKind.KERNEL, FateKind.REGION, FateKind.KEPT),
        *(FateKind.VIEW, FateKind.JOINED),
    )
    return f"it {fate}" if fate.kind in standing else f"it was {fate}"


def _results(node: Expr) -> list[Expr]:
    """Returns the results of the functions in a branch or loop."""
    match node:
        case If():
            return [node.then.body, node.orelse.body]
        case While():
            return [node.body.body]
    return []


def _arguments(node: Expr) -> list[tuple[Expr, Expr]]:
    """Returns the parameters of branches and loops, each with its initial value."""
    match node:
        case If():
            return [*_pairs(node.then, node.args), *_pairs(node.orelse, node.args)]
        case While():
            return [*_pairs(node.cond, node.init), *_pairs(node.body, node.init)]
    return []


def _pairs(function: Function, given: Sequence[Expr]) -> Iterator[tuple[Expr, Expr]]:
    """Yields the parameters with their values; for a loop, the initial ones."""
    return zip(function.params[-len(given) :] if given else (), given, strict=True)


def _named(call: Call) -> str:
    layers = ", ".join(call.layers[:2])
    return f"{call.title} ({layers})" if layers else call.title
