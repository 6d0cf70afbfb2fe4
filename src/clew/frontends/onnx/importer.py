"""From a model's message to graph IR: one layer at a time, each under its own source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

from numpy.typing import NDArray
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto

from clew.frontends.builder import GraphBuilder, Results, coded
from clew.frontends.deferred import RUN_TELLS, Shapes
from clew.frontends.faults import FAULTS
from clew.frontends.file_parts import FilePart
from clew.frontends.lowering.captures import Captures
from clew.frontends.names import UniqueNames, display
from clew.frontends.notes import notes_in
from clew.frontends.onnx.bodies import (
    definition_of,
    definition_scope,
    function_scope,
    without_inputs,
)
from clew.frontends.onnx.contrib.nchwc import channel_block
from clew.frontends.onnx.file.loader import Loaded, opsets
from clew.frontends.onnx.file.order import in_order
from clew.frontends.onnx.file.sources import FRONTEND, Annotator, layer_source
from clew.frontends.onnx.file.survey import (
    Survey,
    function_key,
    functions_of,
    own_domain,
    schema_of,
)
from clew.frontends.onnx.file.tensors import sparse_to_array, to_constant
from clew.frontends.onnx.inputs import Inputs
from clew.frontends.onnx.kinds import check_kinds
from clew.frontends.onnx.late import late_layer
from clew.frontends.onnx.layer import Layer
from clew.frontends.onnx.registry import find, takes_values
from clew.frontends.onnx.scope import Scope
from clew.ir.deferred import DeclaredInput
from clew.ir.expr import Constant, Expr, Tuple
from clew.ir.module import Module
from clew.ir.state import STATE, State, state_attribute
from clew.ir.types import (
    TensorType,
    Type,
    is_unranked,
)
from clew.ir.values import is_symbolic
from clew.support.budgets import Budgets
from clew.support.errors import ClewError, ModelError, UnsupportedError, locate
from clew.trace.notes import NOTES
from clew.trace.span import Source

_DEFAULTS_FROM: Final = 4  # in files of earlier IR versions, all initializers are inputs


def defaults_of(model: ModelProto) -> tuple[str, ...]:
    """Returns the inputs whose initializers are default values, which callers may replace."""
    if model.ir_version < _DEFAULTS_FROM:
        return ()
    given = {value.name for value in model.graph.input}
    return tuple(t.name for t in model.graph.initializer if t.name in given)


def _takes(type_: Type, default: TensorType) -> bool:
    """Whether an input of a type takes a default value."""
    return (
        isinstance(type_, TensorType)
        and type_.dtype == default.dtype
        and type_.rank == default.rank
        and all(
            d == n for d, n in zip(type_.shape, default.shape, strict=True) if isinstance(d, int)
        )
    )


class Importer:
    """Imports one model."""

    def __init__(
        self,
        loaded: Loaded,
        budgets: Budgets,
        *,
        annotate: Annotator | None = None,
        inputs: Shapes | None = None,
        constants: Mapping[str, NDArray[Any]] | None = None,
        keep_constants: bool = False,
        late: bool = False,
        without_ones: bool = False,
    ) -> None:
        self.model = loaded.model
        self.external = loaded.external
        self._raw = loaded.raw
        self.builder = GraphBuilder(FRONTEND, budgets, without_ones=without_ones)
        self._annotate = annotate
        # Whether layers that need values unknown before the run are imported when they run.
        self._late = late
        self.inputs = Inputs(
            self.model.graph,
            budgets,
            inputs or {},
            constants or {},
            keep_constants,
            defaults_of(self.model),
        )
        # The default values of inputs that are opened (`Inputs.opened`), by name.
        self._first: dict[str, Constant] = {}
        self._layer_names = UniqueNames()
        self._names: dict[tuple[str, int], str] = {}
        # Sizes of loop states that change between iterations: by layer, as state and axis.
        self.changing_sizes: dict[str, set[tuple[int, int]]] = {}
        self._top = Scope("", {})

    # --- the model ---

    def run(self) -> Module:
        """Returns the module."""
        versions = opsets(self.model.opset_import, "the model")
        functions = functions_of(self.model)
        Survey(functions, self.builder.budgets).check(self.model, versions)
        graph = self.model.graph
        scope = self._top = Scope("", versions, functions=functions)
        self._initializers(graph, scope, self._raw)
        params = self.inputs.bind(scope, self.builder)
        outputs = self._graph(graph, scope)
        attrs: dict[str, Any] = {}
        notes = notes_in(
            {p.key: p.value for p in reversed(self.model.metadata_props)}, self.builder.layer_names
        )
        if notes:
            attrs[NOTES] = tuple(map(tuple, notes))
        states = [
            State(p.name, "", self._first[p.name].data)
            for p in params
            if p.name in self._first and _takes(p.type, self._first[p.name].tensor)
        ]
        if states:
            attrs[STATE] = state_attribute(states)
        return self.builder.module(outputs, self.output_names, attrs)

    @property
    def output_names(self) -> list[str]:
        """Names of the model's outputs."""
        return [value.name for value in self.model.graph.output]

    def declared(self) -> list[DeclaredInput]:
        """Returns the model's inputs as declared in the file, with the given shapes."""
        return self.inputs.declared()

    def layer_name(self, index: int) -> str:
        """Returns the layer name of a node of the main graph."""
        return self._names["", index]

    def inner_layers(self) -> dict[str, str]:
        """Maps the names of layers in branches, loops and functions to those of the main graph's
        nodes that contain them.
        """
        top = {name for (key, _), name in self._names.items() if not key}
        found: dict[str, str] = {}
        for (key, _), name in self._names.items():
            owner = key
            while owner and owner not in top:
                owner = owner.rpartition("/")[0]
            if owner:
                found[name] = owner
        return found

    def settled(self, name: str) -> NDArray[Any] | None:
        """Returns a value of the main graph that is known without a run, else None."""
        found = self._top.values.get(name)
        value = None if found is None else self.builder.known.get(found)
        return None if value is None or is_symbolic(value) else value

    def _initializers(
        self, graph: GraphProto, scope: Scope, parts: Mapping[int, FilePart] | None = None
    ) -> None:
        for position, tensor in enumerate(graph.initializer):
            with self._parameter(tensor.name, scope):
                part = parts.get(position) if parts else None
                constant = to_constant(tensor, self.external, self.builder.budgets, part)
            if tensor.name not in self.inputs.replaced:
                scope.values[tensor.name] = constant
            elif tensor.name in self.inputs.opened:
                self._first[tensor.name] = constant
        for sparse in graph.sparse_initializer:
            name = sparse.values.name
            with self._parameter(name, scope):
                data = sparse_to_array(sparse, self.external, self.builder.budgets)
                scope.values[name] = Constant(data, name=name)

    @contextmanager
    def _parameter(self, name: str, scope: Scope) -> Iterator[None]:
        """Returns a parameter; an internal constant becomes the parameter of that name.

        Errors: M010 for a name that is taken.
        """
        if name in scope.values:
            raise ModelError("M010", f"two initializers are named {display(name)!r}")
        with self.builder.parameter(name):
            yield

    # --- graphs ---

    def _graph(self, graph: GraphProto, scope: Scope) -> list[Expr]:
        self._nodes(graph.node, scope)
        return [self._lookup(value.name, scope, "the graph's output") for value in graph.output]

    def _nodes(self, nodes: Sequence[NodeProto], scope: Scope) -> None:
        for index, node in in_order(nodes, scope.values):
            name = self._layer_name(node, index, scope)
            with locate(layer=display(name)):
                self._node(node, name, scope)

    def _lookup(self, name: str, scope: Scope, what: str) -> Expr:
        found = scope.lookup(name)
        if found is None:
            raise ModelError(
                "M004",
                f"{what} {display(name)!r} is not an input, an initializer or a layer's output",
                hint="an initializer is missing, or the file is damaged",
            )
        return found

    def _layer_name(self, node: NodeProto, index: int, scope: Scope) -> str:
        """Returns a node's name, unique in the model; a graph that is read again gets the same
        names.
        """
        key = (scope.key, index)
        if key not in self._names:
            own = node.name or f"{node.op_type}_{index}"
            unnamed = "" if node.name or not scope.key else f"{scope.key}/"
            wanted = f"{scope.prefix}{own}" if scope.prefix else f"{unnamed}{own}"
            self.builder.count_name(wanted)
            self._names[key] = self._layer_names.claim(wanted)
        return self._names[key]

    @cached_property
    def channel_block(self) -> int:
        """The number of channels in a block of the layout of `com.microsoft.nchwc`."""
        return channel_block(self.model.graph)

    def import_subgraph(
        self, layer: Layer, name: str, inputs: Sequence[Expr], captures: Captures | None
    ) -> list[Expr]:
        """Returns the outputs of a layer's graph attribute. See `Layer.subgraph`."""
        graph = layer.graph(name)
        if len(graph.input) != len(inputs):
            raise layer.wrong(f"{name} takes {len(graph.input)} inputs, got {len(inputs)}")
        outer = layer.scope
        scope = replace(
            outer,
            key=f"{layer.name}/{name}",
            parent=outer,
            captures=captures,
            values={},
        )
        self._initializers(graph, scope)
        for value, expr in zip(graph.input, inputs, strict=True):
            scope.values[value.name] = expr
        return self._graph(graph, scope)

    def stated_shape(self, name: str) -> tuple[str, ...] | None:
        """Returns the shape that the model declares for one of its outputs, each size as a string
        ("" for an unknown one); None without a declared shape.
        """
        for value in self.model.graph.output:
            if value.name == name and value.type.tensor_type.HasField("shape"):
                dims = value.type.tensor_type.shape.dim
                return tuple(d.dim_param or str(d.dim_value or "") for d in dims)
        return None

    # --- layers ---

    def _node(self, node: NodeProto, name: str, scope: Scope) -> None:
        self.builder.start_layer()
        attributes = self._attributes(node, scope)
        source = scope.within or layer_source(node, name, attributes, self._annotate)
        inputs = [self._lookup(n, scope, "input") if n else None for n in node.input]
        domain = own_domain(node.domain)
        with self.builder.layer(source, marked=scope.within is None) as results:
            try:
                with coded(node.op_type, FAULTS):
                    found = self._convert(node, name, source, domain, attributes, inputs, scope)
            except ClewError:
                self.builder.fail(inputs)
                raise
            self._results(node, found, results, scope)
        values = [scope.values[name] for name in node.output if name]
        self.builder.account(source, [v for v in values if isinstance(v.type, TensorType)])

    def _attributes(self, node: NodeProto, scope: Scope) -> dict[str, AttributeProto]:
        """Returns a node's attributes, with references to the surrounding function's attributes
        resolved.
        """
        found: dict[str, AttributeProto] = {}
        for attribute in node.attribute:
            if attribute.name in found:
                raise ModelError("M010", f"attribute {display(attribute.name)!r} is given twice")
            if not attribute.ref_attr_name:
                found[attribute.name] = attribute
            elif attribute.ref_attr_name in scope.attributes:
                found[attribute.name] = scope.attributes[attribute.ref_attr_name]
        return found

    def _convert(
        self,
        node: NodeProto,
        name: str,
        source: Source,
        domain: str,
        attributes: Mapping[str, AttributeProto],
        inputs: Sequence[Expr | None],
        scope: Scope,
    ) -> list[Expr]:
        function = scope.functions.get(function_key(node))
        if function is not None:
            body = function_scope(function, name, attributes, scope)
            return self._body(function, body, inputs, node.output)
        schema = schema_of(domain, node.op_type, scope.opsets.get(domain, 0))
        if schema is None:
            raise UnsupportedError("U001", f"{display(node.op_type)} is not supported")
        layer = Layer(name, node.op_type, schema, attributes, inputs, node.output, self, scope)
        if not takes_values(domain, node.op_type):
            if any(expr is not None and is_unranked(expr.type) for expr in inputs):
                return late_layer(layer, domain)
            check_kinds(layer)
        converter = find(domain, node.op_type, schema.since_version)
        if converter is None:
            definition = definition_of(schema, node, layer)
            if definition is None:
                raise UnsupportedError("U001", f"{display(node.op_type)} is not supported")
            body = definition_scope(definition, source, attributes, scope, layer)
            return self._body(definition, body, inputs, layer.outputs)
        try:
            result = converter(layer)
        except ClewError as error:
            if not self._waits(layer, error):
                raise
            return _late_or(error, layer, domain)
        return [result] if isinstance(result, Expr) else list(result)

    def _waits(self, layer: Layer, error: ClewError) -> bool:
        """Whether to defer a layer that failed to the run, because it needs a value or a size that
        no call provides.
        """
        return error.code in RUN_TELLS and (self._late or layer.waits)

    def _body(
        self,
        function: FunctionProto,
        body: Scope,
        inputs: Sequence[Expr | None],
        wanted: Sequence[str],
    ) -> list[Expr]:
        """Returns the outputs of a function that are `wanted`; it need not define the others."""
        unwanted = Tuple(())
        if len(inputs) > len(function.input):
            raise ModelError(
                "M012",
                f"function {display(function.name)!r} takes {len(function.input)} inputs, "
                f"got {len(inputs)}",
            )
        for parameter, expr in zip(function.input, inputs, strict=False):
            if expr is not None:
                body.values[parameter] = expr
        missing = list(function.input[len(inputs) :])
        missing += [p for p, e in zip(function.input, inputs, strict=False) if e is None]
        self._nodes(without_inputs(function.node, set(missing)), body)
        count = next((n for n in range(len(wanted), 0, -1) if wanted[n - 1]), 0)
        return [
            self._lookup(name, body, "the function's output") if wanted[n] else unwanted
            for n, name in enumerate(function.output[:count])
        ]

    def _results(
        self, node: NodeProto, found: Sequence[Expr], results: Results, scope: Scope
    ) -> None:
        """Binds a layer's results to their names."""
        names = list(node.output)
        if len(found) < len(names) and any(names[len(found) :]):
            raise UnsupportedError(
                "U005", f"{node.op_type}: output {display(names[-1])!r} is not supported"
            )
        for index, (name, expr) in enumerate(zip(names, found, strict=False)):
            if not name:
                continue
            value = results.bind(index, expr, name)
            if name in scope.values:
                raise ModelError("M010", f"value {display(name)!r} is defined twice")
            scope.values[name] = value


def _late_or(error: ClewError, layer: Layer, domain: str) -> list[Expr]:
    """Returns the results of a layer deferred to the run; raises the original error if even the
    types of the results are unknown before the run.
    """
    try:
        return late_layer(layer, domain)
    except UnsupportedError:
        raise error from None
