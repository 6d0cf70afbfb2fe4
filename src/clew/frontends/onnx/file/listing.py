"""A model file as readable data: its layers in the file's order, with attributes and subgraphs.

Nothing is imported and no parameter is read. The message is read as `load` reads it, with the same
checks, and layers are named as in an import.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    NodeProto,
    SparseTensorProto,
    TensorProto,
    TypeProto,
)

from clew.frontends.listing import Body, Line, Listing, Value
from clew.frontends.names import UniqueNames, display
from clew.frontends.onnx.file.loader import read
from clew.frontends.onnx.file.order import in_order
from clew.frontends.onnx.file.survey import (
    FunctionKey,
    Survey,
    function_key,
    functions_of,
    own_domain,
    subgraphs,
)
from clew.frontends.onnx.file.tensors import dtype_of
from clew.support.budgets import current
from clew.support.errors import UnsupportedError

_MOST_SHOWN: Final = 16
_MOST_TEXT: Final = 4096
# The attribute in which torch's exporters record the modules around a node, from the model to the
# node itself.
_SCOPES: Final = "pkg.torch.onnx.name_scopes"
_NAMESPACE: Final = "namespace"
_QUOTED: Final = re.compile(r"'([^'\\]*)'|\"([^\"\\]*)\"")


def list_model(
    source: str | os.PathLike[str] | bytes, layers: Mapping[str, str] | None = None
) -> Listing:
    """Returns the layers of an ONNX model. `layers` are the imported layers with their operator
    types, which determine the taken branches.

    Errors: those of reading a model (M...); the file is not trusted, as in `load`.
    """
    budgets = current()
    model = read(source, budgets).model
    versions = {own_domain(entry.domain): entry.version for entry in model.opset_import}
    functions = functions_of(model)
    Survey(functions, budgets).check(model, versions)
    lister = _Lister(functions, layers)
    main = lister.graph("", model.graph, "", "", {})
    opsets = ", ".join(f"{display(d) or 'ai.onnx'} {v}" for d, v in versions.items())
    made = " ".join(filter(None, (model.producer_name, model.producer_version)))
    about = f"ONNX IR version {model.ir_version}, operators {opsets}"
    return Listing(about + (f", made by {display(made)}" if made else ""), main)


class _Lister:
    def __init__(
        self, functions: Mapping[FunctionKey, FunctionProto], layers: Mapping[str, str] | None
    ) -> None:
        self._functions = functions
        self._layers = layers
        self._names = UniqueNames()

    def graph(
        self, title: str, graph: GraphProto, key: str, prefix: str, outer: Mapping[str, str]
    ) -> Body:
        """Returns a graph. `key` and `prefix` are those of the importer's scopes, `outer` the types
        of parameters in outer graphs.
        """
        own = [Value(t.name, _tensor_type(t)) for t in graph.initializer]
        own += [Value(s.values.name, _sparse_type(s)) for s in graph.sparse_initializer]
        held = {value.name: value.type for value in own}
        known = {**outer, **held} if held else outer
        inputs = [Value(v.name, _type(v.type)) for v in graph.input if v.name not in held]
        outputs = [Value(v.name, _type(v.type)) for v in graph.output]
        defined = held.keys() | {value.name for value in inputs}
        lines = self._lines(graph.node, defined, key, prefix, known)
        return Body(title, inputs, outputs, own, lines)

    def _lines(
        self,
        nodes: Sequence[NodeProto],
        defined: Iterable[str],
        key: str,
        prefix: str,
        known: Mapping[str, str],
    ) -> list[Line]:
        ordered = in_order(nodes, set(defined))
        return [self._line(node, index, key, prefix, known) for index, node in ordered]

    def _line(
        self, node: NodeProto, index: int, key: str, prefix: str, known: Mapping[str, str]
    ) -> Line:
        name = self._names.claim(_wanted(node, index, key, prefix))
        line = Line(
            name,
            node.op_type if not own_domain(node.domain) else f"{node.domain}.{node.op_type}",
            tuple(node.input),
            tuple(node.output),
            tuple((a.name, _attribute(a)) for a in node.attribute if not _holds_graphs(a)),
            {n: known[n] for n in node.input if n in known},
            _path(node),
        )
        # The importer reads branches in this order, regardless of the order in the file.
        for title, graph in sorted(subgraphs(node), key=lambda held: held[0] == "else_branch"):
            line.bodies.append(self._inner(node, title, graph, name, prefix, known))
        function = self._functions.get(function_key(node))
        if function is not None:
            line.bodies.append(self._function(function, name))
        return line

    def _inner(
        self,
        node: NodeProto,
        title: str,
        graph: GraphProto,
        name: str,
        prefix: str,
        known: Mapping[str, str],
    ) -> Body:
        key = f"{name}/{title}"
        if node.op_type == "If" and not self._is_imported(graph, key, prefix):
            # Its layers have no names: they were not imported.
            body = _Lister(self._functions, None).graph(title, graph, key, prefix, known)
            body.imported = False
            return body
        return self.graph(title, graph, key, prefix, known)

    def _is_imported(self, graph: GraphProto, key: str, prefix: str) -> bool:
        """Whether the branch was imported: its layers are the next ones."""
        if self._layers is None or not graph.node:
            return True
        node = graph.node[0]
        name = self._names.next(_wanted(node, 0, key, prefix))
        return self._layers.get(name) == str(node.op_type)

    def _function(self, function: FunctionProto, name: str) -> Body:
        inputs = [Value(n) for n in function.input]
        outputs = [Value(n) for n in function.output]
        lines = self._lines(function.node, function.input, name, f"{name}/", {})
        return Body(function.name, inputs, outputs, [], lines)


def _wanted(node: NodeProto, index: int, key: str, prefix: str) -> str:
    """Returns the name that the importer requests for a layer (`Importer._layer_name`)."""
    own = node.name or f"{node.op_type}_{index}"
    unnamed = "" if node.name or not key else f"{key}/"
    return f"{prefix}{own}" if prefix else f"{unnamed}{own}"


def _path(node: NodeProto) -> tuple[str, ...]:
    """Returns the modules around a node that its exporter recorded, outermost first; each name is
    relative to the previous one.
    """
    noted = {
        entry.key: entry.value
        for entry in node.metadata_props
        if entry.key in (_SCOPES, _NAMESPACE) and len(entry.value) <= _MOST_TEXT
    }
    if _SCOPES in noted:
        names = [a or b for a, b in _QUOTED.findall(noted[_SCOPES])]
    else:
        names = [part.partition(":")[0] for part in noted.get(_NAMESPACE, "").split("/")]
    found: list[str] = []
    before = ""
    for name in names[:-1]:  # the last is the node itself
        own = name.removeprefix(f"{before}.") if before else name
        if own and name != before:
            found.append(own)
            before = name
    return tuple(found)


def _type(proto: TypeProto) -> str:
    kind = proto.WhichOneof("value")
    if kind != "tensor_type":
        return (kind or "").removesuffix("_type")
    tensor = proto.tensor_type
    dtype = _dtype(tensor.elem_type)
    if not tensor.HasField("shape"):
        return dtype
    dims = (str(d.dim_value) if d.HasField("dim_value") else d.dim_param or "?"
            for d in tensor.shape.dim)  # fmt: skip
    return f"{dtype}[{', '.join(dims)}]"


def _tensor_type(tensor: TensorProto) -> str:
    return f"{_dtype(tensor.data_type)}[{', '.join(map(str, tensor.dims))}]"


def _sparse_type(sparse: SparseTensorProto) -> str:
    dims = ", ".join(map(str, sparse.dims))
    return f"sparse {_dtype(sparse.values.data_type)}[{dims}]"


def _dtype(number: int) -> str:
    try:
        return dtype_of(number, "")
    except UnsupportedError:
        return "?"


def _holds_graphs(attribute: AttributeProto) -> bool:
    return bool(attribute.HasField("g") or attribute.graphs)


def _attribute(attribute: AttributeProto) -> str:
    """Returns an attribute's value as text, shortened if it is long."""
    if attribute.ref_attr_name:
        return f"the function's {attribute.ref_attr_name}"
    match attribute.type:
        case AttributeProto.FLOAT:
            return _number(attribute.f)
        case AttributeProto.INT:
            return str(attribute.i)
        case AttributeProto.STRING:
            return repr(attribute.s.decode(errors="replace"))
        case AttributeProto.FLOATS:
            return _list([_number(v) for v in attribute.floats[:_MOST_SHOWN]], attribute.floats)
        case AttributeProto.INTS:
            return _list([str(v) for v in attribute.ints[:_MOST_SHOWN]], attribute.ints)
        case AttributeProto.STRINGS:
            shown = [repr(v.decode(errors="replace")) for v in attribute.strings[:_MOST_SHOWN]]
            return _list(shown, attribute.strings)
        case AttributeProto.TENSOR:
            return _tensor(attribute.t)
    return str(AttributeProto.AttributeType.Name(attribute.type)).lower()


def _number(value: float) -> str:
    return f"{value:.7g}"


def _list(shown: Sequence[str], whole: Sequence[object]) -> str:
    more = f", ... {len(whole)} in all" if len(whole) > len(shown) else ""
    return f"[{', '.join(shown)}{more}]"


def _tensor(tensor: TensorProto) -> str:
    """Returns a tensor's type, and its elements if it is small and stored in the message."""
    type_ = _tensor_type(tensor)
    size = 1
    for dim in tensor.dims:
        size *= dim
    if not 0 < size <= _MOST_SHOWN or tensor.data_location == TensorProto.EXTERNAL:
        return type_
    for values in (tensor.int64_data, tensor.float_data, tensor.int32_data, tensor.double_data):
        if len(values) == size:
            return f"{type_} {_list([f'{v:.7g}' for v in values], values)}"
    return type_
