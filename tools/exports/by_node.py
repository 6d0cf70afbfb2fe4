"""A model's nodes one by one, each on what ONNX Runtime computed before it: a sum that falls to the
other side of two steps does not reach the next node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, NodeProto, TensorProto, helper

from exports.comparing import difference, onnxruntime_session

Array = np.ndarray[Any, Any]
_WHOLE = ("u", "i")
_IN_BLOCKS = "com.microsoft.nchwc"
_GRAPHS = (AttributeProto.GRAPH, AttributeProto.GRAPHS)


def off_by_more(path: Path, feed: Mapping[str, Array], tolerance: float) -> list[str]:
    """Returns the nodes whose results differ from ONNX Runtime's by more than one for 8-bit
    integers, or by more than `tolerance` of the largest value: clew runs each node alone, on its
    inputs in ONNX Runtime.

    Nodes with subgraphs, nodes without tensors, and nodes that pass on images in blocks (which the
    node itself does not show) are left out.
    """
    import clew  # noqa: PLC0415 - tools start quicker without

    model = onnx.load(path)
    values = _values(model, path, feed)
    found = []
    for node, alone in _alone(model, values):
        given = {v.name: values[v.name] for v in alone.graph.input}
        ours = clew.compile(alone, threads=1).run(given)
        for name, value in ours.items():
            if not _is_near(value, values[name], tolerance):
                found.append(f"{node.op_type} {node.name or node.output[0]}")
    return found


def _is_near(ours: Array, theirs: Array, tolerance: float) -> bool:
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return False
    if ours.dtype.kind in _WHOLE and ours.dtype.itemsize == 1:
        return not ours.size or int(np.abs(ours.astype(int) - theirs.astype(int)).max()) <= 1
    return difference(ours, theirs) <= tolerance


def _values(model: onnx.ModelProto, path: Path, feed: Mapping[str, Array]) -> dict[str, Array]:
    """Returns all tensors of a run of ONNX Runtime without its optimizations."""
    told = onnx.ModelProto()
    told.CopyFrom(model)
    known = {o.name for o in told.graph.output}
    names = [n for node in told.graph.node for n in node.output if n and n not in known]
    told.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    file = path.with_suffix(".all.onnx")
    onnx.save(told, file)
    try:
        results = onnxruntime_session(file, optimized=False)(dict(feed))
    finally:
        file.unlink()
    outputs = [o.name for o in told.graph.output]
    return {**feed, **dict(zip(outputs, results, strict=True))}


def _alone(
    model: onnx.ModelProto, values: Mapping[str, Array]
) -> Iterator[tuple[NodeProto, onnx.ModelProto]]:
    """Yields nodes with a model of each."""
    weights = {t.name: t for t in model.graph.initializer}
    for node in model.graph.node:
        if node.domain == _IN_BLOCKS or any(a.type in _GRAPHS for a in node.attribute):
            continue
        read = dict.fromkeys(name for name in node.input if name)
        if not all(n in weights or isinstance(values.get(n), np.ndarray) for n in read):
            continue
        given = [_info(n, values[n]) for n in read if n not in weights]
        made = [_info(n, values[n]) for n in node.output if n]
        graph = helper.make_graph(
            [node], "node", given, made, [weights[n] for n in read if n in weights]
        )
        yield (
            node,
            helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version),
        )


def _info(name: str, value: Array) -> onnx.ValueInfoProto:
    kind = helper.np_dtype_to_tensor_dtype(value.dtype)
    assert kind != TensorProto.UNDEFINED
    return helper.make_tensor_value_info(name, kind, value.shape)
