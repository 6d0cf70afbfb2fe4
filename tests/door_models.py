"""Tiny models with every kind of value, and inputs for them, for `test_every_door.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
from onnx import TensorProto, helper, numpy_helper

from tflite_files import Graph

Feed = Mapping[str, Any]
_HEAD: Final = '<ir_version: 10, opset_import: ["" : 21, "ai.onnx.ml" : 3]>\n'
_F32: Final = np.float32


@dataclass(frozen=True)
class Case:
    """A model, an ONNX message or a TFLite file, and inputs of two calls, of different sizes where
    the model allows it.
    """

    model: Callable[[], onnx.ModelProto | bytes]
    feeds: tuple[Feed, ...]


def _text(graph: str, *feeds: Feed) -> Case:
    return Case(lambda: onnx.parser.parse_model(_HEAD + graph), feeds)


def _made(graph: onnx.GraphProto) -> onnx.ModelProto:
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _row(*numbers: float, dtype: Any = _F32) -> Any:
    return np.array(numbers, dtype)


def _ints(*numbers: int) -> Any:
    return np.array(numbers, np.int64)


def _words(*words: str) -> Any:
    return np.array(words, object)


def _tree() -> onnx.ModelProto:
    tree = {
        "nodes_treeids": [0] * 3, "nodes_nodeids": [0, 1, 2], "nodes_featureids": [0] * 3,
        "nodes_values": [0.5, 0, 0], "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0], "class_treeids": [0, 0],
        "class_nodeids": [1, 2], "class_ids": [0, 0], "class_weights": [0.2, 0.9],
    }  # fmt: skip
    labels = ["no", "yes"]
    nodes = [
        helper.make_node(
            "TreeEnsembleClassifier", ["x"], ["label", "score"], "tree", domain="ai.onnx.ml",
            classlabels_strings=labels, **tree,
        ),
        helper.make_node(
            "ZipMap", ["score"], ["named"], "zip", domain="ai.onnx.ml", classlabels_strings=labels
        ),
    ]  # fmt: skip
    of = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    maps = helper.make_sequence_type_proto(helper.make_map_type_proto(TensorProto.STRING, of))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])],
        [
            helper.make_tensor_value_info("label", TensorProto.STRING, ["n"]),
            helper.make_value_info("named", maps),
        ],
    )
    return _made(graph)


def _dictionary() -> onnx.ModelProto:
    node = helper.make_node(
        "DictVectorizer", ["x"], ["y"], "dict", domain="ai.onnx.ml",
        string_vocabulary=["a", "b", "c"],
    )  # fmt: skip
    of = helper.make_tensor_type_proto(TensorProto.FLOAT, [1])
    given = helper.make_value_info("x", helper.make_map_type_proto(TensorProto.STRING, of))
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3])
    graph = helper.make_graph([node], "g", [given], [out])
    return _made(graph)


def _int4() -> onnx.ModelProto:
    values = np.arange(-8, 8).reshape(4, 4).astype(ml_dtypes.int4)
    graph = helper.make_graph(
        [
            helper.make_node("DequantizeLinear", ["w", "s"], ["d"], "dequantize"),
            helper.make_node("MatMul", ["x", "d"], ["y"], "product"),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4])],
        [
            numpy_helper.from_array(values, "w"),
            numpy_helper.from_array(np.array(0.5, _F32), "s"),
        ],
    )
    return _made(graph)


def _images() -> bytes:
    """Images with their channels last."""
    graph = Graph()
    x = graph.input("x", (1, 6, 6, 3), "f32")
    weight = graph.constant(np.linspace(-1, 1, 108, dtype=_F32).reshape(4, 3, 3, 3), "w")
    bias = graph.constant(_row(0, 1, -1, 2), "b")
    window = {"padding": 0, "stride_w": 1, "stride_h": 1}
    y = graph.operator(
        "CONV_2D", [x, weight, bias], [("conv", (1, 6, 6, 4), "f32")],
        ("Conv2DOptions", {**window, "activation": 1}),
    )  # fmt: skip
    pool = {**window, "padding": 1, "filter_width": 2, "filter_height": 2}
    y = graph.operator("MAX_POOL_2D", y, [("pool", (1, 5, 5, 4), "f32")], ("Pool2DOptions", pool))
    halves = [(f"half{n}", (1, 5, 5, 2), "f32") for n in range(2)]
    axis = graph.constant(np.array(3, np.int32))
    y = graph.operator("SPLIT", [axis, *y], halves, ("SplitOptions", {"num_splits": 2}))
    return graph.file(y)


def _codes() -> bytes:
    """A product of 8-bit integers with a scale for each channel."""
    graph = Graph()
    x = graph.input("x", (2, 4), "i8", scale=[0.05], zero=[3])
    weight = graph.constant(
        np.arange(-6, 6, dtype=np.int8).reshape(3, 4), "w", scale=[0.1, 0.2, 0.3]
    )
    bias = graph.constant(np.int32([1, -2, 3]), "b", scale=[0.005, 0.01, 0.015])
    y = graph.operator(
        "FULLY_CONNECTED", [x, weight, bias], [("product", (2, 3), "i8")],
        ("FullyConnectedOptions", {}), scale=[0.1], zero=[-1],
    )  # fmt: skip
    return graph.file(y)


def _rows() -> bytes:
    """Rows of any number."""
    graph = Graph()
    x = graph.input("x", (-1, 4), "f32")
    weight = graph.constant(np.linspace(-1, 1, 12, dtype=_F32).reshape(3, 4), "w")
    y = graph.operator(
        "FULLY_CONNECTED", [x, weight], [("product", (-1, 3), "f32")], ("FullyConnectedOptions", {})
    )
    y = graph.operator("SOFTMAX", y, [("softmax", (-1, 3), "f32")], ("SoftmaxOptions", {"beta": 1}))
    return graph.file(y)


CASES: Final[Mapping[str, Case]] = {
    "plain": _text(
        """agraph (float[2,3] x) => (float[2,3] y) <float[3,3] w = {1,2,3,4,5,6,7,8,9}>
        { [product] p = MatMul (x, w) [relu] y = Relu (p) }""",
        {"x": np.ones((2, 3), _F32)},
    ),
    "no inputs": _text(
        "agraph () => (float[3] y) { [range] y = RandomNormal <shape = [3], seed = 1.0> () }", {}
    ),
    "no layers": _text("agraph (float[2] x) => (float[2] x) { }", {"x": _row(1, 2)}),
    "strings": _text(
        """agraph (string[2] x) => (string[1,2] y, string[2] z) <int64[1] a = {0}>
        { [unsqueeze] y = Unsqueeze (x, a) [concat] z = StringConcat (x, x) }""",
        {"x": _words("a", "bé")},
    ),
    "free strings": _text(
        """agraph (string[n] x) => (string[m] y, bool[n] same)
        { [normalize] y = StringNormalizer <case_change_action = "UPPER", stopwords = ["a"]> (x)
          [equal] same = Equal (x, x) }""",
        {"x": _words("a", "b")},
        {"x": _words("a", "b", "c", "")},
    ),
    "string labels, maps": Case(
        _tree,
        (
            {"x": np.array([[0.1, 0], [0.9, 0]], _F32)},
            {"x": np.array([[0.1, 0]], _F32)},
        ),
    ),
    "map input": Case(_dictionary, ({"x": {"a": _row(1), "c": _row(2)}}, {"x": {}})),
    "sequence input": _text(
        """agraph (seq(float[n]) x, int64 i) => (float[k] y, int64 count)
        { [at] e = SequenceAt (x, i) [relu] y = Relu (e) [length] count = SequenceLength (x) }""",
        {"x": [_row(-1, 2), _row(3, 4)], "i": np.int64(1)},
        {"x": [_row(-1, 2, 3)], "i": np.int64(0)},
    ),
    "sequence output": _text(
        """agraph (float[n,2] x) => (seq(float[1,2]) y)
        { [relu] r = Relu (x) [split] y = SplitToSequence <axis = 0> (r) }""",
        {"x": np.ones((2, 2), _F32)},
        {"x": np.ones((3, 2), _F32)},
    ),
    "optional input": _text(
        """agraph (optional(float[2]) x, float[2] z) => (float[2] y, bool has)
        { [has] has = OptionalHasElement (x)
          [if] y = If (has) <
            then_branch = t () => (float[2] a) { [get] e = OptionalGetElement (x)
              [add] a = Add (e, z) },
            else_branch = e () => (float[2] b) { [neg] b = Neg (z) }> }""",
        {"x": _row(1, 2), "z": _row(3, 4)},
        {"x": None, "z": _row(3, 4)},
    ),
    "optional output": _text(
        """agraph (float[2] x) => (optional(float[2]) y)
        { [relu] r = Relu (x) [some] y = Optional (r) }""",
        {"x": _row(1, -2)},
    ),
    "any rank": Case(lambda: _unranked("Relu"), ({"x": _row(1, -2)}, {"x": np.ones((2, 3), _F32)})),
    "inner rank unknown": _text(
        """agraph (float[n] x) => (float[k] y) <int64[2] s = {1,-1}>
        { [reshape] b = Reshape (x, s) [squeeze] q = Squeeze (b) [relu] y = Relu (q) }""",
        {"x": _row(1, 2)},
        {"x": _row(1, 2, 3, 4, 5)},
    ),
    "free sizes": _text(
        """agraph (float[n,4] x) => (float[n,4] y) <float[4,4] w =
            {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}>
        { [product] p = MatMul (x, w) [softmax] y = Softmax (p) }""",
        {"x": np.ones((2, 4), _F32)},
        {"x": np.ones((5, 4), _F32)},
    ),
    "deciding": _text(
        """agraph (float[12] x, int64[2] s) => (float[a,b] y)
        { [reshape] r = Reshape (x, s) [relu] y = Relu (r) }""",
        {"x": np.ones(12, _F32), "s": _ints(3, 4)},
        {"x": np.ones(12, _F32), "s": _ints(-1, 6)},
    ),
    "deciding axes": _text(
        """agraph (float[2,3] x, int64[k] a) => (float[i] y)
        { [relu] r = Relu (x) [sum] y = ReduceSum <keepdims = 0> (r, a) }""",
        {"x": np.ones((2, 3), _F32), "a": _ints(1)},
        {"x": np.ones((2, 3), _F32), "a": _ints(0)},
    ),
    "branch": _text(
        """agraph (float[3] x, bool c) => (float[3] y)
        { [if] y = If (c) <
            then_branch = t () => (float[3] a) { [exp] a = Exp (x) },
            else_branch = e () => (float[3] b) { [neg] b = Neg (x) }> }""",
        {"x": _row(1, 2, 3), "c": np.bool_(True)},
        {"x": _row(1, 2, 3), "c": np.bool_(False)},
    ),
    "loop": _text(
        """agraph (float[4] x, int64 n) => (float[4] y, float[k,4] s)
        { yes = Constant <value = bool {1}> ()
          [loop] y, s = Loop (n, yes, x) <body = inner
            (int64 i, bool c, float[4] u) => (bool c2, float[4] u2, float[4] r)
            { [go] c2 = Identity (c) [cos] u2 = Cos (u) [neg] r = Neg (u2) }> }""",
        {"x": np.ones(4, _F32), "n": np.int64(3)},
        {"x": np.ones(4, _F32), "n": np.int64(0)},
    ),
    "scan": _text(
        """agraph (float[2] h, float[n,2] x) => (float[2] last, float[n,2] all)
        { [scan] last, all = Scan <num_scan_inputs = 1, body = inner
            (float[2] s, float[2] e) => (float[2] s2, float[2] o)
            { [add] s2 = Add (s, e) [relu] o = Relu (s2) }> (h, x) }""",
        {"h": _row(0, 1), "x": np.ones((3, 2), _F32)},
        {"h": _row(0, 1), "x": np.ones((1, 2), _F32)},
    ),
    "late layers": _text(
        """agraph (float[6] x) => (float[m] y, float[m,1] z) <int64[1] one = {1}>
        { [nonzero] n = NonZero (x) [flat] f = Squeeze (n) [count] s = Shape (f)
          [gather] g = Gather (x, f) [column] t = Concat <axis = 0> (s, one)
          [reshape] z = Reshape (g, t) [relu] y = Relu (g) }""",
        {"x": _row(1, 0, -2, 0, 3, 0)},
        {"x": _row(1, 0, 0, 0, 0, 1)},
    ),
    "nothing found": _text(
        """agraph (float[6] x) => (int64[1,m] y, float[m] g) <int64[1] zero = {0}>
        { [nonzero] y = NonZero (x) [flat] f = Squeeze (y, zero) [gather] g = Gather (x, f) }""",
        {"x": _row(1, 0, -2, 0, 3, 0)},
        {"x": np.zeros(6, _F32)},
    ),
    "no elements": _text(
        """agraph (float[n,3] x) => (float[0,3] y, float[n,3] z) <int64[1] a = {0}>
        { [slice] y = Slice (x, a, a) [relu] z = Relu (x) }""",
        {"x": np.ones((2, 3), _F32)},
        {"x": np.ones((0, 3), _F32)},
    ),
    "f16": _text(
        """agraph (float16[2,4] x, float16[4,3] w) => (float16[2,3] y)
        { [product] p = MatMul (x, w) [tanh] y = Tanh (p) }""",
        {"x": np.ones((2, 4), np.float16), "w": np.ones((4, 3), np.float16)},
    ),
    "bf16": _text(
        """agraph (bfloat16[2,4] x, bfloat16[4,3] w) => (bfloat16[2,3] y)
        { [product] p = MatMul (x, w) [tanh] y = Tanh (p) }""",
        {"x": np.ones((2, 4), ml_dtypes.bfloat16), "w": np.ones((4, 3), ml_dtypes.bfloat16)},
    ),
    "float8": _text(
        """agraph (float8e4m3fn[4] x, float s) => (float[4] y)
        { [dequantize] d = DequantizeLinear (x, s) [relu] y = Relu (d) }""",
        {"x": np.ones(4, ml_dtypes.float8_e4m3fn), "s": _F32(0.5)},
    ),
    "int4 weights": Case(_int4, ({"x": np.ones((2, 4), _F32)},)),
    "int4 input": _text(
        """agraph (int4[4] x, float s) => (float[4] y)
        { [dequantize] y = DequantizeLinear (x, s) }""",
        {"x": np.array([1, -2, 3, -8], ml_dtypes.int4), "s": _F32(0.5)},
    ),
    "complex": _text(
        """agraph (complex64[2,2] x) => (complex64[4] y, complex64[2,2] z) <int64[1] s = {4}>
        { [reshape] y = Reshape (x, s) [transpose] z = Transpose (x) }""",
        {"x": np.array([[1 + 2j, 3], [4, 5j]], np.complex64)},
    ),
    "f64": _text(
        "agraph (double[2,2] x) => (double[2,2] y) { [product] y = MatMul (x, x) }",
        {"x": np.ones((2, 2))},
    ),
    "integers": _text(
        """agraph (uint8[3] x, int64[3] i, bool[3] b) => (int64[3] y, bool[3] z)
        { [cast] c = Cast <to = 7> (x) [add] y = Add (c, i) [not] z = Not (b) }""",
        {"x": _row(1, 2, 3, dtype=np.uint8), "i": _ints(4, 5, 6), "b": np.zeros(3, np.bool_)},
    ),
    "scalar": _text(
        "agraph (float x) => (float y) { [exp] y = Exp (x) }", {"x": np.array(2, _F32)}
    ),
    "same name twice": _text(
        """agraph (float[2] x) => (float[2] y)
        { [same] a = Exp (x) [same] y = Neg (a) }""",
        {"x": _row(1, 2)},
    ),
    "listed twice": Case(lambda: _listed_twice(), ({"x": _row(1, -2)},)),
    "tflite images": Case(
        _images, ({"x": np.linspace(-1, 1, 108, dtype=_F32).reshape(1, 6, 6, 3)},)
    ),
    "tflite codes": Case(_codes, ({"x": np.arange(-4, 4, dtype=np.int8).reshape(2, 4)},)),
    "tflite rows": Case(_rows, ({"x": np.ones((2, 4), _F32)}, {"x": np.ones((5, 4), _F32)})),
    "replaceable": Case(lambda: _replaceable(), ({"x": _row(1, -2)},)),
}


def _unranked(op: str) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], ["y"], op)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, None)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    return _made(graph)


def _listed_twice() -> onnx.ModelProto:
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    nodes = [helper.make_node("Exp", ["x"], ["y"], "exp")]
    graph = helper.make_graph(nodes, "g", [given], [out, given, out])
    return _made(graph)


def _replaceable() -> onnx.ModelProto:
    sizes = {"x": [2], "w": [1]}
    given = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in sizes.items()]
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    nodes = [helper.make_node("Mul", ["x", "w"], ["y"], "mul")]
    default = numpy_helper.from_array(np.array([4], _F32), "w")
    graph = helper.make_graph(nodes, "g", given, [out], [default])
    return _made(graph)
