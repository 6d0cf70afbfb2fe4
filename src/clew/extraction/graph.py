"""A module's main function as layers, and modules cut from its nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from clew.extraction.layers import LayerGraph
from clew.ir.expr import Call, Constant, Expr, Function, GlobalVar, Let, Tuple, TupleGetItem, Var
from clew.ir.module import Module
from clew.ir.rewrite import rebuild
from clew.ir.size_names import names_in, plain_names
from clew.ir.types import TensorType, TupleType
from clew.ir.visit import inner_functions, post_order
from clew.support.errors import InputError
from clew.trace.lineage import building
from clew.trace.span import Source, Span

ValueNames: TypeAlias = Mapping[tuple[str, int], str]
"""The names in the model's file of layers' results (layer and number)."""


class ModuleGraph:
    """The nodes of a module's main function, grouped by layer. Values are identified by the nodes'
    ids.

    With `fixed_apart`, each part that reads them computes nodes that depend only on constants.
    `values` has the names of layers' results in the model's file, if any.

    Errors: I147 for a module that binds names with `let`.
    """

    def __init__(
        self, module: Module, *, fixed_apart: bool = True, values: ValueNames | None = None
    ) -> None:
        self.module = module
        self.values: ValueNames = values or {}
        main = module.main
        self.results: tuple[Expr, ...] = (
            main.body.fields if isinstance(main.body, Tuple) else (main.body,)
        )
        #: What computes something, in the order of the graph: no parameters, constants, functions.
        self.nodes: list[Expr] = [
            n for n in post_order(self.results) if not isinstance(n, (Var, Constant, Function))
        ]
        if any(isinstance(n, Let) for n in self.nodes):
            raise InputError(
                "I147",
                "the graph binds names with let, and cannot be cut",
                hint="write the values where they are used",
            )
        self.fixed = _fixed(self.nodes) if fixed_apart else frozenset[int]()
        self._unit_of: dict[int, int] = {}
        self._members: list[list[Expr]] = []
        self.layers = self._layer_graph()

    def _layer_graph(self) -> LayerGraph:
        names: list[str] = []
        aliases: dict[str, frozenset[int]] = {}
        inside: dict[str, str] = {}
        numbers: dict[str, int] = {}
        for node in self.nodes:
            unit = self._unit(node, names, numbers)
            self._unit_of[node.id] = unit
            self._members[unit].append(node)
            for layer in node.span.layers:
                aliases[layer] = aliases.get(layer, frozenset()) | {unit}
            for inner in inner_functions(node):
                for deeper in post_order(inner, into_functions=True):
                    inside.update(dict.fromkeys(deeper.span.layers, names[unit]))
        reads = [
            frozenset(
                self._unit_of[c.id]
                for node in nodes
                for c in used(node)
                if c.id in self._unit_of and self._unit_of[c.id] != unit
            )
            for unit, nodes in enumerate(self._members)
        ]
        fixed = {
            unit
            for unit, nodes in enumerate(self._members)
            if all(n.id in self.fixed for n in nodes)
        }
        gone = {layer: why for layer, _, why in self.module.main.attrs.get("eliminated", ())}
        return LayerGraph(names, reads, frozenset(fixed), aliases, inside, gone)

    def _unit(self, node: Expr, names: list[str], numbers: dict[str, int]) -> int:
        """Returns the number of a node's layer: the layer whose result it is, or the first it
        serves. A field of a tuple belongs with the tuple; a node that serves no layer is separate.
        """
        if isinstance(node, TupleGetItem) and node.value.id in self._unit_of:
            return self._unit_of[node.value.id]
        marked = [s.layer for s in node.span.sources if s.output is not None and s.kind != "fusion"]
        layers = marked or node.span.layers
        name = layers[0] if layers else ""
        number = numbers.get(name) if name else None
        if number is None:
            number = len(names)
            names.append(name)
            self._members.append([])
            if name:
                numbers[name] = number
        return number

    def nodes_of(self, units: Iterable[int]) -> list[Expr]:
        """Returns the nodes of layers, in the order of the graph."""
        wanted = set(units)
        return [n for n in self.nodes if self._unit_of[n.id] in wanted]

    def check_convex(self, nodes: Iterable[Expr]) -> None:
        """Checks that no values leave the nodes and return.

        Errors: I133.
        """
        members = {n.id for n in nodes}
        came_out: set[int] = set()
        for node in self.nodes:
            below = {c.id for c in used(node)}
            if node.id not in members:
                if below & (members | came_out):
                    came_out.add(node.id)
            elif below & came_out:
                names = [self.name_of(n) for n in self.nodes if n.id in below & came_out]
                raise InputError(
                    "I133",
                    f"values leave the part and return through {', '.join(names)}",
                    hint="include those, or split the part there",
                )

    def cut(self, nodes: Iterable[Expr], ends: Iterable[Expr] = ()) -> Cut:
        """Returns the part with these nodes: the values they read from outside, the values of them
        that others read, and the values of `ends`.

        Errors: I134 for a boundary value that is not a tensor.
        """
        members = {n.id for n in nodes} - self.fixed
        read_outside = {r.id for r in self.results}
        for node in self.nodes:
            if node.id not in members:
                read_outside.update(c.id for c in used(node))
        kept = {n.id for n in ends} & (members | self.fixed)
        inputs: dict[int, Expr] = {}
        outputs: list[Expr] = []
        for node in self.nodes:
            if node.id in members:
                for child in used(node):
                    outside = child.id not in members and child.id not in self.fixed
                    if outside and not isinstance(child, (Constant, Function)):
                        inputs[child.id] = child
            if node.id in kept or (node.id in members and node.id in read_outside):
                outputs.append(node)
        flat = [n for n in outputs if not isinstance(n.type, TupleType)]
        for value in (*inputs.values(), *flat):
            _check_tensor(value)
        return Cut(self, frozenset(members), tuple(inputs.values()), tuple(flat))

    def ends_of(self, units: Iterable[int]) -> list[Expr]:
        """Returns the results of layers: the nodes with output marks, or the last of each layer."""
        found: list[Expr] = []
        for unit in sorted(units):
            nodes = self._members[unit]
            marked = [n for n in nodes if any(s.output is not None for s in n.span.sources)]
            found += marked or nodes[-1:]
        return found

    def name_of(self, value: Expr) -> str:
        """Returns the name of a value; see `value_name`."""
        place = self._places.get(value.id)
        return value_name(value, self.values, "" if place is None else f"_{place}")

    @cached_property
    def _places(self) -> Mapping[int, int]:
        return {n.id: place for place, n in enumerate(self.nodes)}


@dataclass(frozen=True)
class Cut:
    """Nodes of a graph, with the outside values they read and their values that others read."""

    graph: ModuleGraph
    members: frozenset[int]
    inputs: tuple[Expr, ...]
    outputs: tuple[Expr, ...]

    @cached_property
    def layers(self) -> tuple[str, ...]:
        """The layers that the nodes serve, in the order of the graph."""
        own = (n for n in self.graph.nodes if n.id in self.members)
        return tuple(dict.fromkeys(layer for n in own for layer in n.span.layers))

    @property
    def carried(self) -> tuple[Expr, ...]:
        """Model inputs that the part takes only for their sizes: these name sizes that no other
        input has.
        """
        own = [n for n in self.graph.nodes if n.id in self.members]
        inner = [f for n in own for f in inner_functions(n)]
        nodes = (*self.inputs, *own, *post_order(inner, into_functions=True))
        return tuple(carriers(nodes, self.inputs, self.graph.module.main.params))

    @cached_property
    def module(self) -> Module:
        """The part as a module: parameters for `inputs` and `carried`, results for `outputs`."""
        graph, names = self.graph, Unique()
        made: dict[int, Expr] = {}
        params: list[Var] = []
        for value in (*self.inputs, *self.carried):
            name = names.of(graph.name_of(value))
            frontend = next((s.frontend for s in value.span.sources), "clew")
            span = Span([Source(name, frontend=frontend, kind="input")])
            params.append(Var(name, value.type, span=span))
            made[value.id] = params[-1]
        for node in graph.nodes:
            if node.id in self.members or node.id in graph.fixed:
                # Fixed nodes are rebuilt here if they are used.
                if node.id in graph.fixed:
                    made[node.id] = node
                    continue
                children = [made.get(c.id, c) for c in node.children]
                with building(node.span):
                    made[node.id] = rebuild(node, children)
        results = [made.get(o.id, o) for o in self.outputs]
        names = Unique()
        attrs = {"outputs": tuple(names.of(graph.name_of(o)) for o in self.outputs)}
        main = Function(params, Tuple(results, span=Span()), attrs, span=Span())
        return Module({"main": main, **_globals(graph.module, main)})


def carriers(nodes: Iterable[Expr], inputs: Iterable[Expr], params: Iterable[Var]) -> list[Var]:
    """Returns the model's parameters that a part of these nodes takes besides its inputs, since
    they name sizes that no other input has.
    """
    given = list(inputs)
    missing = names_in(nodes) - plain_names(i.type for i in given)
    found: list[Var] = []
    own = {i.id for i in given}
    for param in params:
        here = plain_names([param.type])
        if missing & here and param.id not in own:
            found.append(param)
            missing -= here
    return found


def value_name(value: Expr, values: ValueNames, ending: str = "") -> str:
    """Returns the name of a boundary value, the same in every form of a part: that of the input, of
    the result in the model's file, or of the layer, with a suffix `:n` for its outputs from the
    second on. `ending` distinguishes values without a layer.
    """
    if isinstance(value, Var):
        return value.name
    for source in value.span.sources:
        if source.output is not None and source.kind != "fusion":
            plain = f"{source.layer}:{source.output}" if source.output else source.layer
            return values.get((source.layer, source.output), plain)
    if isinstance(value, TupleGetItem):
        whole = value_name(value.value, values, ending)
        return f"{whole}:{value.index}" if value.index else whole
    layers = value.span.layers
    kind = value.op_name if isinstance(value, Call) else type(value).__name__.lower()
    if isinstance(value, Constant):
        return value.name or kind
    return f"{layers[0]}/{kind}" if layers else f"{kind}{ending}"


def used(node: Expr) -> Sequence[Expr]:
    """Returns the values that a node reads."""
    return [c for c in node.children if not isinstance(c, Function)]


def _fixed(nodes: Sequence[Expr]) -> frozenset[int]:
    """Returns the ids of nodes whose values depend only on constants and are not random."""
    found: set[int] = set()
    for node in nodes:
        below = used(node)
        chance = isinstance(node, Call) and not below and getattr(node.op, "host", False)
        if not chance and all(isinstance(c, Constant) or c.id in found for c in below):
            found.add(node.id)
    return frozenset(found)


def _check_tensor(value: Expr) -> None:
    if not isinstance(value.type, TensorType):
        raise InputError(
            "I134",
            f"a value of type {value.type} would cross the boundary of the part",
            hint="only tensors can: move the boundary to where it is built or unpacked",
            layer=", ".join(value.span.layers[:2]),
        )


def _globals(module: Module, main: Function) -> dict[str, Function]:
    """Returns the named functions called by `main`, directly or indirectly."""
    found: dict[str, Function] = {}
    pending = [main]
    while pending:
        for node in post_order(pending.pop(), into_functions=True):
            callee = node.op if isinstance(node, Call) else node
            if isinstance(callee, GlobalVar) and callee.name not in found:
                found[callee.name] = module.functions[callee.name]
                pending.append(found[callee.name])
    return found


class Unique:
    """Returns names, each only once."""

    def __init__(self) -> None:
        self._taken: dict[str, int] = {}

    def of(self, wanted: str) -> str:
        name = wanted
        while name in self._taken:
            self._taken[wanted] += 1
            name = f"{wanted}#{self._taken[wanted]}"
        self._taken[name] = 1
        return name
