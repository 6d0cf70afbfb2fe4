"""Functions behind nodes: functions of the model, and standard operators' own definitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnx import AttributeProto, FunctionProto, NodeProto

from clew.frontends.names import display
from clew.frontends.onnx.file.loader import opsets
from clew.frontends.onnx.file.survey import function_body, own_domain
from clew.frontends.onnx.layer import Layer
from clew.frontends.onnx.schemas import Schema
from clew.frontends.onnx.scope import Scope
from clew.frontends.onnx.value_types import type_proto
from clew.trace.span import Source


def function_scope(
    function: FunctionProto, name: str, attributes: Mapping[str, AttributeProto], scope: Scope
) -> Scope:
    """Returns the scope of a model's function, with its layers named `name/inner`."""
    given = {attribute.name: attribute for attribute in function.attribute_proto}
    return Scope(
        name,
        opsets(function.opset_import, f"function {display(function.name)!r}"),
        prefix=f"{name}/",
        attributes={**given, **attributes},
        functions=scope.functions,
        within=scope.within,
    )


def definition_scope(
    function: FunctionProto,
    source: Source,
    attributes: Mapping[str, AttributeProto],
    scope: Scope,
    layer: Layer,
) -> Scope:
    """Returns the scope of a standard operator's definition, whose nodes form one layer."""
    defaults = {
        name: attribute.default_value
        for name, attribute in layer.schema.attributes.items()
        if attribute.default_value.type
    }
    inner = opsets(function.opset_import, layer.op)
    return Scope(
        layer.name,
        {**scope.opsets, **inner},
        prefix=f"{layer.name}/",
        attributes={**defaults, **attributes},
        within=source,
    )


def definition_of(schema: Schema, node: NodeProto, layer: Layer) -> FunctionProto | None:
    """Returns a standard operator's definition, None if it has none.

    Errors: M012 for inputs that it has no definition for.
    """
    return function_body(schema) or _context_body(schema, node, layer)


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
    """Returns an attribute under the node's own name (a function may pass it under another
    name).
    """
    copy = AttributeProto()
    copy.CopyFrom(layer.given[name])
    copy.name = name
    return copy


def without_inputs(nodes: Sequence[NodeProto], missing: set[str]) -> Sequence[NodeProto]:
    """Returns a function's nodes, with omitted inputs replaced by `""`."""
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
