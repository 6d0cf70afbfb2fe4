"""From a model's message to graph IR: one layer at a time, each under its own source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray
from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto, TypeProto
from onnx import ValueInfoProto as ValueInfo

from clew.frontends.onnx.budgets import Budgets, over
from clew.frontends.onnx.kinds import check_kinds
from clew.frontends.onnx.late import inferred_type, is_unranked, late_layer, type_proto
from clew.frontends.onnx.layer import Layer
from clew.frontends.onnx.loader import Loaded, opsets
from clew.frontends.onnx.names import Symbols, UniqueNames, display
from clew.frontends.onnx.order import in_order
from clew.frontends.onnx.registry import call, find, takes_values
from clew.frontends.onnx.scope import Captures, Scope
from clew.frontends.onnx.slim import FilePart
from clew.frontends.onnx.survey import (
    Schema,
    Survey,
    function_body,
    function_key,
    functions_of,
    own_domain,
    schema_of,
)
from clew.frontends.onnx.tensors import (
    checked_size,
    dtype_of,
    sparse_to_array,
    to_constant,
)
from clew.ir.deferred import DeclaredInput
from clew.ir.dims import Dim, SymDim
from clew.ir.expr import Constant, Expr, Function, Tuple, Var, carry_marks
from clew.ir.late_sizes import Anchors, sizes_told
from clew.ir.module import Module
from clew.ir.types import (
    MapType,
    OptionalType,
    SequenceType,
    TensorType,
    TupleType,
    Type,
    bits,
    from_numpy,
)
from clew.ir.values import KnownValues
from clew.ir.visit import post_order
from clew.ops.registry import get_op
from clew.support.errors import InputError, ModelError, UnsupportedError, locate
from clew.trace.lineage import building
from clew.trace.span import Source, Span

FRONTEND: Final = "onnx"
Shapes: TypeAlias = "Mapping[str, Sequence[int | str]]"


@dataclass(frozen=True)
class NodeView:
    """What an annotator sees of a node: read-only."""

    name: str
    op_type: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, AttributeProto]
    doc: str
    metadata: Mapping[str, str]


Annotator: TypeAlias = "Callable[[Source, NodeView], Source]"


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
    ) -> None:
        self.model = loaded.model
        self.external = loaded.external
        self._raw = loaded.raw
        self.budgets = budgets
        self.known = KnownValues()
        self._annotate = annotate
        self._shapes = dict(inputs or {})
        self._constants = dict(constants or {})
        self._keep_constants = keep_constants
        self._unknown: list[Expr] = []
        self._unknown_here: list[Expr] = []
        self._undecided: list[Expr] = []
        self._params: list[Var] = []
        self._symbols = Symbols()
        self._layer_names = UniqueNames()
        self._names: dict[tuple[str, int], str] = {}
        self._layers: dict[Source, list[Expr]] = {}
        # Sizes of loops' states that change from turn to turn: by layer, as state and axis.
        self.changing_sizes: dict[str, set[tuple[int, int]]] = {}
        self._imported = 0
        # For a size that only a run tells, a value that has it.
        self._carriers: dict[str, Expr] = {}
        self._total_bytes = 0
        self._text_chars = 0
        self._top = Scope("", {})

    # --- the model ---

    def run(self) -> Module:
        """Returns the module."""
        versions = opsets(self.model.opset_import, "the model")
        functions = functions_of(self.model)
        Survey(functions, self.budgets).check(self.model, versions)
        graph = self.model.graph
        scope = self._top = Scope("", versions, functions=functions)
        self._initializers(graph, scope, self._raw)
        params = self._inputs(graph, scope)
        outputs = self._graph(graph, scope)
        names = tuple(value.name for value in graph.output)
        if len(set(names)) < len(names):
            raise ModelError("M010", "two outputs of the model have one name")
        body: Expr = Tuple(outputs, span=Span())
        if self._carriers:
            body = self._anchored(params, body)
        eliminated = self._eliminated(body)
        attrs: dict[str, Any] = {"outputs": names, "eliminated": eliminated}
        return Module({"main": Function(params, body, attrs, span=Span())})

    def _anchored(self, params: Sequence[Var], body: Expr) -> Expr:
        """Returns the body with all sizes that only a run tells known where they are used."""
        anchors = Anchors(self._carriers, get_op("sized"))
        return anchors.rewrite_function(Function(params, body, span=Span())).body

    def layer_name(self, index: int) -> str:
        """Returns the name of the layer that a node of the main graph has become."""
        return self._names["", index]

    def inner_layers(self) -> dict[str, str]:
        """Returns the names of layers in branches, loops and functions, with those of the main
        graph's nodes that they are part of.
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
        """Returns a value of the main graph that is known without a run; None where it is not."""
        found = self._top.values.get(name)
        value = None if found is None else self.known.get(found)
        return None if value is None or value.dtype == object else value

    def _eliminated(self, body: Expr) -> tuple[tuple[str, str, str], ...]:
        """Returns layers that no part of the graph serves: name, operator, and what became of
        them.
        """
        alive = {
            source.without_output()
            for node in post_order(body, into_functions=True)
            for source in node.span.sources
        }
        return tuple(
            (source.layer, source.op, self._fate(values))
            for source, values in self._layers.items()
            if source not in alive
        )

    def _inputs(self, graph: GraphProto, scope: Scope) -> list[Var]:
        params: list[Var] = []
        names = [value.name for value in graph.input]
        if len(set(names)) < len(names):
            raise ModelError("M010", "two inputs of the model have one name")
        wanted = [value for value in graph.input if value.name not in scope.values]
        unknown = (self._shapes.keys() | self._constants.keys()) - {v.name for v in wanted}
        if unknown:
            raise InputError(
                "I004",
                f"the model has no input {display(min(unknown))!r}",
                hint=f"it has {', '.join(display(v.name) for v in wanted) or 'none'}",
            )
        for value in wanted:
            source = Source(value.name, frontend=FRONTEND, kind="input")
            if value.name in self._constants:
                data = np.asarray(self._constants[value.name])
                self._check_constant(value, data)
                scope.values[value.name] = Constant(data, name=value.name, span=Span([source]))
                if not self._keep_constants:
                    continue
            type_ = self._input_type(value)
            var = Var(value.name, type_, span=Span([source]))
            scope.values.setdefault(value.name, var)
            params.append(var)
        self._params = params
        return params

    def declared_inputs(self) -> list[DeclaredInput]:
        """Returns the model's inputs as the file has them, with the shapes that were given."""
        graph = self.model.graph
        settled = {t.name for t in graph.initializer}
        settled |= {s.values.name for s in graph.sparse_initializer}
        return [self._declared(v) for v in graph.input if v.name not in settled]

    def _declared(self, value: ValueInfo) -> DeclaredInput:
        tensor = value.type.tensor_type
        if not value.type.HasField("tensor_type"):
            what = f"input {display(value.name)!r}"
            return DeclaredInput(value.name, None, None, self.value_type(value.type, what))
        dtype = dtype_of(tensor.elem_type, f"input {display(value.name)!r}")
        if value.name in self._shapes:
            return DeclaredInput(value.name, dtype, tuple(self._shapes[value.name]))
        if not tensor.HasField("shape"):
            return DeclaredInput(value.name, dtype, None)
        shape = [
            int(d.dim_value) if d.HasField("dim_value") else d.dim_param or f"{value.name}_{axis}"
            for axis, d in enumerate(tensor.shape.dim)
        ]
        return DeclaredInput(value.name, dtype, tuple(shape))

    def note_unknown(self, expr: Expr) -> None:
        """Notes that a converter asked for a value that is not known before the run."""
        self._unknown_here.append(expr)

    def note_undecided(self, condition: Expr) -> None:
        """Notes a condition of which only a run tells which of two unlike graphs it leads to."""
        self._undecided.append(condition)

    def left_open(self) -> tuple[str, ...]:
        """Returns the inputs that decide between unlike branches: flags, counts, axes."""
        leaves = {leaf.id for leaf in self.known.unknown_leaves(self._undecided)}
        return tuple(
            p.name
            for p in self._params
            if p.id in leaves and _is_vector(p.type) and p.tensor.dtype in ("bool", "i32", "i64")
        )

    def asked_in_vain(self) -> tuple[str, ...]:
        """Returns the inputs that values depend on which the last layer asked for and nobody knows;
        those that any layer asked for where it asked for none. Vectors and numbers only: tensors
        of a higher rank are data.
        """
        for asked in (self._unknown_here, self._unknown):
            leaves = {leaf.id for leaf in self.known.unknown_leaves(asked)}
            small = [p for p in self._params if p.id in leaves and _is_vector(p.type)]
            if small:
                return tuple(p.name for p in small)
        return ()

    def _check_constant(self, value: ValueInfo, data: NDArray[Any]) -> None:
        """Errors: I005 for a value of another type than the input's."""
        type_ = self._input_type(value) if value.type.tensor_type.HasField("shape") else None
        if not isinstance(type_, TensorType):
            return
        fits = data.ndim == type_.rank and all(
            not isinstance(d, int) or d == n for d, n in zip(type_.shape, data.shape, strict=False)
        )
        if not fits or from_numpy(data.dtype) != type_.dtype:
            raise InputError(
                "I005",
                f"the value for input {display(value.name)!r} is "
                f"{data.dtype}{list(data.shape)}, expected {type_}",
            )

    def _input_type(self, value: ValueInfo) -> Type:
        what = f"input {display(value.name)!r}"
        given = self._shapes.get(value.name)
        return self._type(value.type, what, value.name, given)

    def _type(
        self, proto: TypeProto, what: str, name: str, given: Sequence[int | str] | None = None
    ) -> Type:
        kind = proto.WhichOneof("value")
        if kind == "sequence_type":
            return SequenceType(self.value_type(proto.sequence_type.elem_type, what))
        if kind == "optional_type":
            return OptionalType(self.value_type(proto.optional_type.elem_type, what))
        if kind == "map_type":
            key = dtype_of(proto.map_type.key_type, f"the keys of {what}")
            return MapType(key, self.value_type(proto.map_type.value_type, what))
        if kind != "tensor_type":
            raise UnsupportedError("U004", f"{what} is a {kind or 'value without a type'}")
        dtype = dtype_of(proto.tensor_type.elem_type, what)
        if given is not None:
            shape: list[Dim] = [
                d if isinstance(d, int) else SymDim.symbol(self._symbols.named(d)) for d in given
            ]
        elif proto.tensor_type.HasField("shape"):
            shape = [
                self._dim(dim, f"{name}_{axis}")
                for axis, dim in enumerate(proto.tensor_type.shape.dim)
            ]
        else:
            raise UnsupportedError(
                "U006", f"{what} has no shape", hint=f"pass inputs={{{name!r}: [...]}}"
            )
        checked_size([d for d in shape if isinstance(d, int)], dtype, self.budgets, what)
        return TensorType(tuple(shape), dtype)

    def value_type(self, proto: TypeProto, what: str) -> Type:
        """Returns the type of a part of a value. Sizes that are no numbers may differ from part to
        part, so that their names say nothing.

        Errors: U004 for what no value can be.
        """
        if proto.WhichOneof("value") == "map_type":
            return self._type(proto, what, "")
        return inferred_type(proto, what)

    def _dim(self, dim: Any, fallback: str) -> Dim:
        if dim.HasField("dim_value"):
            return int(dim.dim_value)
        if dim.dim_param:
            return SymDim.symbol(self._symbols.named(dim.dim_param))
        return SymDim.symbol(self._symbols.fresh(fallback))

    def _initializers(
        self, graph: GraphProto, scope: Scope, parts: Mapping[int, FilePart] | None = None
    ) -> None:
        for position, tensor in enumerate(graph.initializer):
            with self._parameter(tensor.name, scope):
                part = parts.get(position) if parts else None
                constant = to_constant(tensor, self.external, self.budgets, part)
            scope.values[tensor.name] = constant
        for sparse in graph.sparse_initializer:
            name = sparse.values.name
            with self._parameter(name, scope):
                data = sparse_to_array(sparse, self.external, self.budgets)
                scope.values[name] = Constant(data, name=name)

    @contextmanager
    def _parameter(self, name: str, scope: Scope) -> Iterator[None]:
        """A constant built inside is the parameter of that name.

        Errors: M010 for a name that is taken.
        """
        if name in scope.values:
            raise ModelError("M010", f"two initialisers are named {display(name)!r}")
        with building(Span([Source(name, frontend=FRONTEND, kind="parameter")])):
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
                f"{what} {display(name)!r} is no input, no initialiser and no layer's output",
                hint="an initialiser is missing, or the file is damaged",
            )
        return found

    def _layer_name(self, node: NodeProto, index: int, scope: Scope) -> str:
        """Returns a node's name, unique in the model, and the same when a graph is read again."""
        key = (scope.key, index)
        if key not in self._names:
            own = node.name or f"{node.op_type}_{index}"
            unnamed = "" if node.name or not scope.key else f"{scope.key}/"
            wanted = f"{scope.prefix}{own}" if scope.prefix else f"{unnamed}{own}"
            self._text_chars += len(wanted)
            most = self.budgets.text_chars
            if self._text_chars > most:
                raise over("M030", "characters of names", self._text_chars, "text_chars", most)
            self._names[key] = self._layer_names.claim(wanted)
        return self._names[key]

    @property
    def imported(self) -> int:
        """How many nodes have been imported, those of graphs that were read again included."""
        return self._imported

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

    # --- layers ---

    def _node(self, node: NodeProto, name: str, scope: Scope) -> None:
        self._imported += 1
        if self._imported > self.budgets.nodes:
            what = "nodes of the model, each turn in which a body is read counted"
            raise over("M009", what, self._imported, "nodes", self.budgets.nodes)
        self._unknown += self._unknown_here
        self._unknown_here = []
        attributes = self._attributes(node, scope)
        source = scope.within or self._source(node, name, attributes)
        inputs = [self._lookup(n, scope, "input") if n else None for n in node.input]
        domain = own_domain(node.domain)
        with building(Span([source])):
            # What is built from here on has a larger id: it belongs to this layer.
            start = Var(name, TupleType(()))
            with _senseless(node):
                results = self._convert(node, name, source, domain, attributes, inputs, scope)
            self._results(node, source, start, results, scope)
        self._account(source, node, scope)

    def _source(
        self, node: NodeProto, name: str, attributes: Mapping[str, AttributeProto]
    ) -> Source:
        source = Source(name, node.op_type, FRONTEND)
        if self._annotate is None:
            return source
        view = NodeView(
            name,
            node.op_type,
            node.domain,
            tuple(node.input),
            tuple(node.output),
            attributes,
            node.doc_string,
            {entry.key: entry.value for entry in node.metadata_props},
        )
        edited = self._annotate(source, view)
        if not isinstance(edited, Source):
            raise InputError("I003", f"the annotator returned {edited!r}, expected a Source")
        return edited.without_output()

    def _attributes(self, node: NodeProto, scope: Scope) -> dict[str, AttributeProto]:
        """Returns a node's attributes, those it takes from the function around it resolved."""
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
            return self._function(function, name, attributes, inputs, scope, node.output)
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
            body = function_body(schema) or _context_body(schema, node, layer)
            if body is None:
                raise UnsupportedError("U001", f"{display(node.op_type)} is not supported")
            return self._definition(body, source, attributes, inputs, scope, layer)
        result = converter(layer)
        return [result] if isinstance(result, Expr) else list(result)

    def _function(
        self,
        function: FunctionProto,
        name: str,
        attributes: Mapping[str, AttributeProto],
        inputs: Sequence[Expr | None],
        scope: Scope,
        wanted: Sequence[str],
    ) -> list[Expr]:
        """Returns the outputs of a model's function, its layers named `name/inner`."""
        given = {attribute.name: attribute for attribute in function.attribute_proto}
        body = Scope(
            name,
            opsets(function.opset_import, f"function {display(function.name)!r}"),
            prefix=f"{name}/",
            attributes={**given, **attributes},
            functions=scope.functions,
            within=scope.within,
        )
        return self._body(function, body, inputs, wanted)

    def _definition(
        self,
        function: FunctionProto,
        source: Source,
        attributes: Mapping[str, AttributeProto],
        inputs: Sequence[Expr | None],
        scope: Scope,
        layer: Layer,
    ) -> list[Expr]:
        """Returns the outputs of a standard operator by its own definition: all one layer."""
        defaults = {
            name: attribute.default_value
            for name, attribute in layer.schema.attributes.items()
            if attribute.default_value.type
        }
        inner = opsets(function.opset_import, layer.op_type)
        body = Scope(
            layer.name,
            {**scope.opsets, **inner},
            prefix=f"{layer.name}/",
            attributes={**defaults, **attributes},
            within=source,
        )
        return self._body(function, body, inputs, layer.outputs)

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
        self._nodes(_without(function.node, set(missing)), body)
        count = next((n for n in range(len(wanted), 0, -1) if wanted[n - 1]), 0)
        return [
            self._lookup(name, body, "the function's output") if wanted[n] else unwanted
            for n, name in enumerate(function.output[:count])
        ]

    def _results(
        self, node: NodeProto, source: Source, start: Var, results: list[Expr], scope: Scope
    ) -> None:
        """Binds and marks a layer's results. A layer that passes a value on becomes an
        `identity`.
        """
        names = list(node.output)
        if len(results) < len(names) and any(names[len(results) :]):
            raise UnsupportedError(
                "U005", f"{node.op_type}: output {display(names[-1])!r} is not supported"
            )
        bound: set[int] = set()
        for index, (name, expr) in enumerate(zip(names, results, strict=False)):
            if not name:
                continue
            passed_on = expr.id < start.id or expr.id in bound
            if passed_on and isinstance(expr.type, TensorType):
                expr = call("identity", expr)
            self._check_size(expr.type, name)
            if scope.within is None:
                mark = Span([replace(source, output=index)])
                carry_marks(Var(name, expr.type, span=mark), expr)
            bound.add(expr.id)
            for size in sizes_told([expr.type]):
                self._carriers.setdefault(size, expr)
            if name in scope.values:
                raise ModelError("M010", f"value {display(name)!r} is defined twice")
            scope.values[name] = expr

    def _check_size(self, type_: Type, name: str) -> None:
        if isinstance(type_, TensorType) and type_.is_static:
            what = f"value {display(name)!r}"
            size = checked_size(type_.concrete, type_.dtype, self.budgets, what)
            self._total_bytes += size * bits(type_.dtype) // 8
            most = self.budgets.total_bytes
            if self._total_bytes > most:
                what = f"bytes of all values up to {display(name)!r}"
                raise over("M030", what, self._total_bytes, "total_bytes", most)

    def _account(self, source: Source, node: NodeProto, scope: Scope) -> None:
        """Notes a layer and its values, should it turn out that no node is left of it."""
        values = [scope.values[name] for name in node.output if name]
        self._layers[source] = [v for v in values if isinstance(v.type, TensorType)]

    def _fate(self, values: Sequence[Expr]) -> str:
        known = bool(values) and all(self.known.get(value) is not None for value in values)
        return "known at import" if known else "result not used"


def _is_vector(type_: Type) -> bool:
    return isinstance(type_, TensorType) and type_.rank <= 1


@contextmanager
def _senseless(node: NodeProto) -> Iterator[None]:
    """Gives arithmetic that fails on a layer's values a code: sizes of NaN, counts that no machine
    has. Converters say what is wrong where they can; this is for what nobody has thought of.

    Errors: M031.
    """
    try:
        yield
    except (ArithmeticError, ValueError, IndexError, MemoryError) as error:
        raise ModelError(
            "M031",
            f"{display(node.op_type)} makes no sense with these values: {display(str(error))}",
            hint="the model is invalid: export it again",
        ) from error


def _without(nodes: Sequence[NodeProto], missing: set[str]) -> Sequence[NodeProto]:
    """Returns a function's nodes with inputs that the caller leaves out replaced by `""`."""
    if not missing:
        return nodes
    changed = []
    for node in nodes:
        if any(name in missing for name in node.input):
            copy = NodeProto()
            copy.CopyFrom(node)
            copy.input[:] = ["" if name in missing else name for name in node.input]
            node = copy
        changed.append(node)
    return changed


def _context_body(schema: Schema, node: NodeProto, layer: Layer) -> FunctionProto | None:
    """Returns an operator's definition that depends on its attributes and input types."""
    if not schema.has_context_dependent_function:
        return None
    types = [
        b"" if expr is None else type_proto(expr.type).SerializeToString() for expr in layer.inputs
    ]
    own = NodeProto()
    own.CopyFrom(node)
    del own.attribute[:]
    own.attribute.extend(_named(name, layer) for name in layer.given)
    version = layer.scope.opsets.get(own_domain(node.domain), 0)
    known = [v for v in schema.context_dependent_function_opset_versions if v <= version]
    if not known:
        return None
    try:
        data = schema.get_context_dependent_function_with_opset_version(
            max(known), own.SerializeToString(), types
        )
    except Exception as error:  # onnx writes the definition as text, attributes and all
        raise layer.wrong(f"has no definition for these inputs: {str(error)[:80]!r}") from error
    return FunctionProto.FromString(data) if data else None


def _named(name: str, layer: Layer) -> AttributeProto:
    """Returns an attribute under the node's own name (a function may have passed it by another)."""
    copy = AttributeProto()
    copy.CopyFrom(layer.given[name])
    copy.name = name
    return copy
