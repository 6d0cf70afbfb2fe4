"""Models of one operator, for measuring single kernels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_OPSET = 23  # the first with RMSNormalization


@dataclass(frozen=True)
class OneOp:
    """A model `y = op(x, weights...)` and a value of x."""

    model: onnx.ModelProto
    x: np.ndarray


def one_op(
    op: str,
    x: np.ndarray,
    *weights: np.ndarray,
    relu: bool = False,
    inputs: Sequence[str] = (),
    more_outputs: Sequence[str] = (),
    attributes: Mapping[str, Any] | None = None,
) -> OneOp:
    """Returns the model; the weights are constants. `relu` adds a ReLU, which should be fused.

    `inputs` are the operator's inputs if they are not x and the weights w0, w1, ... in order;
    `more_outputs` are unused results.
    """
    names = [f"w{n}" for n in range(len(weights))]
    outputs = ["z" if relu else "y", *more_outputs]
    nodes = [helper.make_node(op, inputs or ["x", *names], outputs, name=op)]
    nodes[0].attribute.extend(helper.make_attribute(k, v) for k, v in (attributes or {}).items())
    if relu:
        nodes.append(helper.make_node("Relu", ["z"], ["y"], name="relu"))
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        nodes,
        "one",
        [helper.make_tensor_value_info("x", kind, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.UNDEFINED, None)],
        [numpy_helper.from_array(w, n) for w, n in zip(weights, names, strict=True)],
    )
    opsets = [helper.make_opsetid("", _OPSET)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    del model.graph.output[:]
    y = onnx.ValueInfoProto()
    y.name = "y"
    model.graph.output.append(y)
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    result = inferred.graph.output[0].type
    if not result.tensor_type.elem_type:  # shape inference skips functions
        result.CopyFrom(helper.make_tensor_type_proto(kind, x.shape))
    return OneOp(inferred, x)


def _normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def product(m: int, n: int, k: int) -> OneOp:
    """Returns f32[m, k] · constant f32[k, n]."""
    return one_op("MatMul", _normal(m, k), _normal(k, n, seed=1) / np.float32(k**0.5))


def integer_product(m: int, n: int, k: int) -> OneOp:
    """Returns u8[m, k] · constant i8[k, n], in i32."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 255, (m, k), np.uint8)
    return one_op("MatMulInteger", x, rng.integers(-127, 127, (k, n), np.int8))


def convolution(
    channels: int, filters: int, size: int, kernel: int, stride: int = 1, group: int = 1
) -> OneOp:
    """Returns a convolution of f32[1, channels, size, size] that pads to keep the size, with bias
    and ReLU.
    """
    inner = channels // group * kernel * kernel
    weight = _normal(filters, channels // group, kernel, kernel, seed=1) * np.float32(inner**-0.5)
    pad = kernel // 2
    attributes = {"strides": [stride] * 2, "pads": [pad] * 4, "group": group}
    x = _normal(1, channels, size, size)
    return one_op("Conv", x, weight, _normal(filters, seed=2), relu=True, attributes=attributes)


def quantized_convolution(
    channels: int, filters: int, size: int, kernel: int, stride: int = 1, group: int = 1
) -> OneOp:
    """Returns a convolution of u8[1, channels, size, size] with i8 weights that pads to keep the
    size, with bias and ReLU, quantized to u8 again: `DequantizeLinear`, `Conv`, `QuantizeLinear`.
    """
    rng = np.random.default_rng(0)
    inner = channels // group * kernel * kernel
    x = rng.integers(0, 256, (1, channels, size, size), np.uint8)
    # With 7 bits, engines that add pairs of products in 16 bits compute the same.
    weight = rng.integers(-64, 64, (filters, channels // group, kernel, kernel), np.int8)
    scales = (rng.random(filters, np.float32) + np.float32(0.5)) / np.float32(127 * inner**0.5)
    given, result = np.float32(1 / 64), np.float32(1 / 16)
    bias = rng.integers(-2000, 2000, filters, np.int32)
    held = {
        "x_scale": given,
        "x_zero": np.uint8(0),
        "weight": weight,
        "weight_scale": scales,
        "weight_zero": np.zeros(filters, np.int8),
        "bias": bias,
        "bias_scale": given * scales,
        "y_scale": result,
        "y_zero": np.uint8(0),
    }
    sizes: dict[str, Any] = {
        "strides": [stride] * 2, "pads": [kernel // 2] * 4, "group": group,
    }  # fmt: skip
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "x_scale", "x_zero"], ["xf"], name="x_wide"),
        helper.make_node(
            "DequantizeLinear", ["weight", "weight_scale", "weight_zero"], ["wf"], name="w", axis=0
        ),
        helper.make_node("DequantizeLinear", ["bias", "bias_scale"], ["bf"], name="b", axis=0),
        helper.make_node("Conv", ["xf", "wf", "bf"], ["z"], name="conv", **sizes),
        helper.make_node("Relu", ["z"], ["r"], name="relu"),
        helper.make_node("QuantizeLinear", ["r", "y_scale", "y_zero"], ["y"], name="y_narrow"),
    ]
    out = (size - 1) // stride + 1
    graph = helper.make_graph(
        nodes,
        "quantized",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, [1, filters, out, out])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in held.items()],
    )
    opsets = [helper.make_opsetid("", _OPSET)]
    return OneOp(helper.make_model(graph, opset_imports=opsets, ir_version=10), x)


def inverted_residual(
    channels: int, between: int, filters: int, size: int, stride: int = 1, clip: float = 6.0
) -> OneOp:
    """Returns a block of MobileNetV2: a 1x1 convolution to `between` channels (omitted if the image
    has that many), a depthwise 3x3, each with bias and clipped, and a 1x1 to `filters`.
    """
    layers = [(channels, between, 1, 1)] if between != channels else []
    layers += [(between, between, 3, between), (between, filters, 1, 1)]
    bounds = [numpy_helper.from_array(np.asarray(value, np.float32), name)
              for value, name in ((0, "low"), (clip, "high"))]  # fmt: skip
    nodes, given, held = [], "x", list(bounds)
    for n, (inner, outer, kernel, group) in enumerate(layers):
        depth = inner // group * kernel * kernel
        weight = _normal(outer, inner // group, kernel, kernel, seed=n) * np.float32(depth**-0.5)
        held.append(numpy_helper.from_array(weight, f"w{n}"))
        held.append(numpy_helper.from_array(_normal(outer, seed=n), f"b{n}"))
        last = n + 1 == len(layers)
        made = "y" if last else f"z{n}"
        steps = [stride if group > 1 else 1] * 2
        sizes: dict[str, Any] = {"strides": steps, "pads": [kernel // 2] * 4, "group": group}
        operands = [given, f"w{n}", f"b{n}"]
        nodes.append(helper.make_node("Conv", operands, [made], name=f"conv{n}", **sizes))
        given = made if last else f"c{n}"
        if not last:
            nodes.append(helper.make_node("Clip", [made, "low", "high"], [given], name=f"clip{n}"))
    x = _normal(1, channels, size, size)
    out = [1, filters, -(-size // stride), -(-size // stride)]
    graph = helper.make_graph(
        nodes,
        "block",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, out)],
        held,
    )
    opsets = [helper.make_opsetid("", _OPSET)]
    return OneOp(helper.make_model(graph, opset_imports=opsets, ir_version=10), x)


def transpose(rows: int, columns: int) -> OneOp:
    """Returns f32[rows, columns] transposed."""
    return one_op("Transpose", _normal(rows, columns), attributes={"perm": [1, 0]})


def softmax(rows: int, columns: int) -> OneOp:
    """Returns the softmax of rows."""
    return one_op("Softmax", _normal(rows, columns), attributes={"axis": -1})


def layer_norm(rows: int, columns: int) -> OneOp:
    """Returns rows normalized to mean 0 and standard deviation 1, scaled and shifted."""
    x, scale, shift = _normal(rows, columns), _normal(columns, seed=1), _normal(columns, seed=2)
    return one_op("LayerNormalization", x, scale, shift, attributes={"axis": -1})


def rms_norm(rows: int, columns: int) -> OneOp:
    """Returns rows divided by their root mean square, scaled."""
    x, scale = _normal(rows, columns), _normal(columns, seed=1)
    return one_op("RMSNormalization", x, scale, attributes={"axis": -1})


def permuted(*shape: int, order: Sequence[int]) -> OneOp:
    """Returns f32[*shape] with its axes in another order."""
    return one_op("Transpose", _normal(*shape), attributes={"perm": list(order)})


def gather(shape: Sequence[int], count: int, axis: int) -> OneOp:
    """Returns `count` slices of f32[*shape] along an axis, at random places."""
    places = np.random.default_rng(1).integers(0, shape[axis], count)
    return one_op("Gather", _normal(*shape), places, attributes={"axis": axis})


def concatenation(*shape: int, axis: int) -> OneOp:
    """Returns f32[*shape] and itself joined along an axis."""
    return one_op("Concat", _normal(*shape), inputs=("x", "x"), attributes={"axis": axis})


def top_k(rows: int, columns: int, k: int) -> OneOp:
    """Returns the largest k elements of each row."""
    x = _normal(rows, columns)
    return one_op("TopK", x, np.array([k]), more_outputs=("places",), attributes={"axis": -1})


def resize(channels: int, size: int, to: int, mode: str) -> OneOp:
    """Returns a square image in another size."""
    sizes = np.array([1, channels, to, to])
    names = ("x", "", "", "w0")
    x = _normal(1, channels, size, size)
    return one_op("Resize", x, sizes, inputs=names, attributes={"mode": mode})


def group_norm(batch: int, channels: int, size: int, groups: int) -> OneOp:
    """Returns images whose groups of channels are normalized, scaled and shifted."""
    x, scale, shift = (
        _normal(*s, seed=n)
        for n, s in enumerate(((batch, channels, size, size), (channels,), (channels,)))
    )
    return one_op("GroupNormalization", x, scale, shift, attributes={"num_groups": groups})


def rotary(heads: int, length: int, depth: int, *, interleaved: bool) -> OneOp:
    """Returns f32[1, heads, length, depth] with rotary embeddings."""
    turns = (_normal(1, length, depth // 2, seed=n) for n in (1, 2))
    x = _normal(1, heads, length, depth)
    return one_op("RotaryEmbedding", x, *turns, attributes={"interleaved": int(interleaved)})


def column_sums(rows: int, columns: int) -> OneOp:
    """Returns the sums of columns."""
    return one_op("ReduceSum", _normal(rows, columns), np.array([0]), attributes={"keepdims": 0})
