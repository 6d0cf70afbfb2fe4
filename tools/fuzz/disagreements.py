"""Where ONNX Runtime or ONNX's reference is known to disagree with the standard's text.

One entry each: which engine, when (a narrow predicate on a node and the values it reads), why, and
where the standard says so. Results of an engine are left aside in a case that has such a node, and
only where they differ. `UNDEFINED` is what the standard leaves open: there nothing is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper

from fuzz.case import Case

_TEXT: Final = "https://onnx.ai/onnx/operators/onnx__{}.html"


@dataclass(frozen=True)
class Site:
    """A node, the element types of its operands, and those operands that are known."""

    node: NodeProto
    dtypes: tuple[int, ...]
    ranks: tuple[int | None, ...]
    arrays: Mapping[str, Any]
    opset: int

    def attribute(self, name: str, default: Any = None) -> Any:
        """Returns an attribute's value."""
        for attribute in self.node.attribute:
            if attribute.name == name:
                return helper.get_attribute_value(attribute)
        return default

    def is_a(self, *ops: str) -> bool:
        """Whether the node is of one of these operators."""
        return self.node.op_type in ops


@dataclass(frozen=True)
class Disagreement:
    """What an engine does otherwise."""

    engine: str
    when: Callable[[Site], bool]
    reason: str
    text: str


KNOWN: Final[tuple[Disagreement, ...]] = ()


def excuse(engine: str, case: Case) -> str:
    """Returns why an engine's results do not count in a case, nothing where they do."""
    return next(
        (d.reason for s in sites(case) for d in KNOWN if d.engine == engine and d.when(s)), ""
    )


def sites(case: Case) -> list[Site]:
    """Returns the nodes of a case, those of bodies too."""
    types = _types(case.for_others())
    arrays = {
        **case.feeds,
        **{t.name: onnx.numpy_helper.to_array(t) for t in case.model.graph.initializer},
    }
    opset = next(o.version for o in case.model.opset_import if not o.domain)
    found: list[Site] = []

    def walk(nodes: Any) -> None:
        for node in nodes:
            kinds = [types.get(n, (0, None)) for n in node.input]
            found.append(
                Site(node, tuple(k for k, _ in kinds), tuple(r for _, r in kinds), arrays, opset)
            )
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    walk(attribute.g.node)

    walk(case.model.graph.node)
    for function in case.model.functions:
        walk(function.node)
    return found


def _types(model: ModelProto) -> dict[str, tuple[int, int | None]]:
    try:
        graph = onnx.shape_inference.infer_shapes(model).graph
    except Exception:
        graph = model.graph
    found: dict[str, tuple[int, int | None]] = {
        t.name: (t.data_type, len(t.dims)) for t in graph.initializer
    }
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        rank = len(tensor.shape.dim) if tensor.HasField("shape") else None
        found[value.name] = (tensor.elem_type, rank)
    return found


assert np.bool_
assert TensorProto.FLOAT == 1
