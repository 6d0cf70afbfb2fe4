"""Writes ONNX models, node by node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray
from onnx import ModelProto, helper, numpy_helper

_OPSET: Final = 20
_IR_VERSION: Final = 10


class GraphWriter:
    """Collects the inputs, constants and nodes of a graph. Strings name the values."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._inputs: list[Any] = []
        self._held: list[Any] = []
        self._nodes: list[Any] = []

    @property
    def constants(self) -> int:
        """The number of constants."""
        return len(self._held)

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return len(self._nodes)

    def input(self, name: str, shape: Sequence[int], dtype: DTypeLike) -> None:
        """Adds an input."""
        self._inputs.append(_info(name, shape, dtype))

    def constant(self, name: str, value: NDArray[Any]) -> None:
        """Adds a constant."""
        self._held.append(numpy_helper.from_array(value, name))

    def node(
        self, op: str, name: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any
    ) -> None:
        """Adds a node."""
        made = helper.make_node(op, list(inputs), list(outputs), name=name, **attributes)
        self._nodes.append(made)

    def model(self, outputs: Mapping[str, Sequence[int]]) -> ModelProto:
        """Returns the model. `outputs` has the shapes of its results (f32) by their names."""
        results = [_info(name, shape, np.float32) for name, shape in outputs.items()]
        graph = helper.make_graph(self._nodes, self._name, self._inputs, results, self._held)
        opsets = [helper.make_opsetid("", _OPSET)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION)


def _info(name: str, shape: Sequence[int], dtype: DTypeLike) -> Any:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return helper.make_tensor_value_info(name, kind, list(shape))
