"""Counts a model's floating-point operations from its ONNX graph."""

import math
from pathlib import Path

import onnx
from onnx import helper

Shape = tuple[int, ...]


def model_flops(path: Path) -> int:
    """Returns the FLOPs of one run: two for each multiply-add of Conv, Gemm and MatMul.

    As usual, other operators do not count, so the rate of a model with many cheap operators is low.
    Shapes must be static.
    """
    model = onnx.shape_inference.infer_shapes(onnx.load(path), strict_mode=True)
    shapes = _shapes(model.graph)
    return sum(_node_flops(node, shapes) for node in model.graph.node)


def _shapes(graph: onnx.GraphProto) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        dims = value.type.tensor_type.shape.dim
        if all(dim.HasField("dim_value") for dim in dims):
            shapes[value.name] = tuple(dim.dim_value for dim in dims)
    return shapes


def _node_flops(node: onnx.NodeProto, shapes: dict[str, Shape]) -> int:
    """Returns the FLOPs of one node: 2 · elements of the result · length of the inner product."""
    if node.op_type not in {"Conv", "Gemm", "MatMul"}:
        return 0
    unknown = [name for name in (*node.input[:2], *node.output) if name not in shapes]
    assert not unknown, f"{node.op_type} {node.name}: no static shape for {', '.join(unknown)}"
    left, right = (shapes[name] for name in node.input[:2])
    if node.op_type == "Conv":
        inner = math.prod(right[1:])
    elif node.op_type == "Gemm":
        transposed = {a.name: helper.get_attribute_value(a) for a in node.attribute}.get(
            "transA", 0
        )
        inner = left[0 if transposed else 1]
    else:
        inner = left[-1]
    return 2 * math.prod(shapes[node.output[0]]) * inner
