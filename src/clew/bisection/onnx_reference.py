"""What ONNX Runtime makes of a model, layer by layer, and single layers cut out of its file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import GraphProto, ModelProto, NodeProto, helper
from onnx.external_data_helper import load_external_data_for_model
from onnx.helper import np_dtype_to_tensor_dtype

from clew.support.errors import Hint, InputError
from clew.support.files import read_bytes, reason_of

_MOST_BYTES: Final = (1 << 31) - (1 << 20)


@dataclass(frozen=True)
class Layers:
    """A model's file, and the names of its layers' outputs by clew's name of the layer."""

    model: ModelProto
    outputs: Mapping[str, tuple[str, ...]]

    def values(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns ONNX Runtime's values of all outputs of all layers by their names in the file.

        Errors: I173.
        """
        wanted = [n for names in self.outputs.values() for n in names if n]
        exposed = ModelProto()
        exposed.CopyFrom(self.model)
        known = {o.name for o in exposed.graph.output}
        for name in dict.fromkeys(wanted):
            if name not in known:
                exposed.graph.output.append(onnx.ValueInfoProto(name=name))
        return run(exposed, inputs)

    def node(self, layer: str) -> NodeProto | None:
        """Returns the node of a layer of the main graph."""
        names = self.outputs.get(layer)
        if not names:
            return None
        return next((n for n in self.model.graph.node if tuple(n.output) == names), None)

    def alone(self, layer: str, values: Mapping[str, Any]) -> tuple[bytes, dict[str, Any]] | None:
        """Returns a model of one layer and its inputs, with `values` of what it reads; None for
        layers inside functions and branches.
        """
        node = self.node(layer)
        if node is None:
            return None
        held = {t.name: t for t in self.model.graph.initializer}
        reads = dict.fromkeys([*node.input, *_free_names(node)])
        given = {n: values[n] for n in reads if n and n not in held and n in values}
        if any(n and n not in held and n not in given for n in reads):
            return None
        graph = helper.make_graph(
            [node],
            "one_layer",
            [
                helper.make_tensor_value_info(
                    n, np_dtype_to_tensor_dtype(np.asarray(v).dtype), np.shape(v)
                )
                for n, v in given.items()
            ],
            [
                helper.make_tensor_value_info(
                    n, np_dtype_to_tensor_dtype(np.asarray(values[n]).dtype), np.shape(values[n])
                )
                for n in node.output
                if n and n in values
            ],
            [held[n] for n in reads if n in held],
        )
        model = helper.make_model(
            graph, opset_imports=self.model.opset_import, functions=self.model.functions
        )
        model.ir_version = self.model.ir_version
        return model.SerializeToString(), given


def read(path: Path, outputs: Mapping[str, tuple[str, ...]]) -> Layers:
    """Returns the file of a model that clew has loaded with its weights, for ONNX Runtime.

    Errors: I173 where it cannot be read any more.
    """
    try:
        model = ModelProto.FromString(read_bytes(path))
        # The import has seen to it that these are plain files beside the model.
        load_external_data_for_model(model, str(path.parent))
    except (OSError, ValueError, DecodeError) as error:
        raise InputError("I173", f"{str(path)!r} cannot be read: {reason_of(error)}") from None
    return Layers(model, outputs)


def run(
    model: ModelProto | Path, inputs: Mapping[str, Any], *, plain: bool = True
) -> dict[str, Any]:
    """Returns ONNX Runtime's outputs by name; with `plain` it rewrites nothing.

    Errors: I173 where it is not installed or refuses the model.
    """
    try:
        import onnxruntime  # noqa: PLC0415
    except ImportError:
        raise InputError(
            "I173", "ONNX Runtime is not installed", hint="pip install onnxruntime"
        ) from None
    onnxruntime.set_default_logger_severity(4)
    options = onnxruntime.SessionOptions()
    if plain:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        source: Any = str(model) if isinstance(model, Path) else _bytes(model)
        session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        taken = {i.name for i in session.get_inputs()}
        values = session.run(None, {n: v for n, v in inputs.items() if n in taken})
    except InputError:
        raise
    except Exception as error:  # its exceptions have no common base but Exception
        raise InputError("I173", f"ONNX Runtime refuses the model: {error}") from None
    return {o.name: v for o, v in zip(session.get_outputs(), values, strict=True)}


def _bytes(model: ModelProto) -> bytes:
    if model.ByteSize() > _MOST_BYTES:
        raise InputError(
            "I173",
            "the model is too large to be handed to ONNX Runtime layer by layer",
            hint=Hint(
                "compare with a file of layers' values: reference='values.npz'",
                cli="compare with a file of layers' values: --against values.npz",
            ),
        )
    data: bytes = model.SerializeToString()
    return data


def _free_names(node: NodeProto) -> list[str]:
    """Returns the names that a node's branches and loops read from the graph around them."""
    found: list[str] = []
    for attribute in node.attribute:
        graphs: Sequence[GraphProto] = [attribute.g] if attribute.HasField("g") else []
        for graph in [*graphs, *attribute.graphs]:
            own = {i.name for i in graph.input} | {t.name for t in graph.initializer}
            for inner in graph.node:
                found += [n for n in (*inner.input, *_free_names(inner)) if n and n not in own]
                own |= set(inner.output)
            found += [o.name for o in graph.output if o.name not in own]
    return found
