"""Operators in forms that ONNX's node tests leave out: old versions, symbolic sizes, more
operands.
"""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from clew.frontends.onnx import load
from clew.frontends.onnx.registry import find, supported
from clew.ir.expr import While
from clew.ir.interpret import interpret
from clew.ir.visit import post_order

F32 = TensorProto.FLOAT
DRAW = np.random.default_rng(7)


def agrees(op, feeds, *, opset=21, shapes=None, initializers=None, count=1, **attributes):
    """Builds a model of one node, interprets it, compares with ONNX Runtime; returns the module."""
    initializers = initializers or {}
    shapes = shapes or {}
    names = list(attributes.pop("order", [*feeds, *initializers]))
    inputs = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(v.dtype), shapes.get(name, v.shape)
        )
        for name, v in feeds.items()
    ]
    results = [f"y{n}" for n in range(count)]
    outputs = [helper.make_tensor_value_info(name, F32, None) for name in results]
    tensors = [numpy_helper.from_array(np.asarray(v), name) for name, v in initializers.items()]
    node = helper.make_node(op, names, results, **attributes)
    graph = helper.make_graph([node], "g", inputs, outputs, tensors)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    module = load(made)
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    found = interpret(module, feeds)
    for name, want in zip(results, session.run(None, feeds), strict=True):
        assert found[name].shape == want.shape
        assert found[name].dtype == want.dtype
        np.testing.assert_allclose(found[name], want, rtol=1e-4, atol=1e-5)
    return module


def draw(*shape):
    return DRAW.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
def test_softmax_counted_all_axes_from_its_own_on(op):
    agrees(op, {"x": draw(2, 3, 4)}, opset=11, axis=1)
    agrees(op, {"x": draw(2, 3, 4)}, opset=13, axis=1)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("stride", [1, 2])
def test_automatic_padding(auto_pad, stride):
    options = {"auto_pad": auto_pad, "strides": [stride, stride]}
    agrees("Conv", {"x": draw(1, 2, 7, 6)}, initializers={"w": draw(4, 2, 3, 2)}, **options)
    agrees("MaxPool", {"x": draw(1, 2, 7, 6)}, kernel_shape=[3, 2], **options)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_convolution_of_any_rank(rank):
    size = (5, 6, 7)[:rank]
    weights = {"w": draw(4, 2, *(3,) * rank), "b": draw(4)}
    agrees("Conv", {"x": draw(2, 4, *size)}, initializers=weights, group=2, pads=[1] * 2 * rank)


@pytest.mark.parametrize(
    "options", [{}, {"transA": 1}, {"transB": 1}, {"alpha": 0.5, "beta": 2.0}, {"beta": 0.0}]
)
def test_gemm(options):
    a = draw(5, 3) if options.get("transA") else draw(3, 5)
    b = draw(4, 5) if options.get("transB") else draw(5, 4)
    agrees("Gemm", {"a": a}, initializers={"b": b, "c": draw(4)}, **options)
    agrees("Gemm", {"a": a}, initializers={"b": b}, **options)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)]),
        ("bhqk,bkhd->bqhd", [(2, 3, 4, 6), (2, 6, 3, 5)]),
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
        ("...i,ij->...j", [(2, 3, 4), (4, 5)]),
        ("ij,ij->", [(2, 3), (2, 3)]),
        ("i,j", [(2,), (3,)]),
        ("abc->cb", [(2, 3, 4)]),
    ],
)
def test_einsum(equation, shapes):
    feeds = {f"x{n}": draw(*shape) for n, shape in enumerate(shapes)}
    agrees("Einsum", feeds, equation=equation)


def test_slice_of_symbolic_sizes():
    x = draw(4, 9)
    for begin, end, step in ((1, -1, 1), (-3, 2**31, 1), (0, 2**63 - 1, 2), (2, 100, 1)):
        bounds = {"begin": [begin], "end": [end], "axes": [1], "steps": [step]}
        values = {name: np.array(value, np.int64) for name, value in bounds.items()}
        agrees("Slice", {"x": x}, initializers=values, shapes={"x": ("n", 9)})


def test_split_without_sizes():
    agrees("Split", {"x": draw(7, 2)}, opset=18, count=3, num_outputs=3, axis=0)
    agrees("Split", {"x": draw(6, 2)}, opset=11, count=3, axis=0)
    agrees("Split", {"x": draw(6, 2)}, opset=11, count=2, axis=0, split=[2, 4])


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_upsample_of_symbolic_sizes(mode):
    scales = {"scales": np.array([1, 1, 2, 2], np.float32)}
    shapes = {"x": (1, 2, "h", "w")}
    agrees(
        "Upsample", {"x": draw(1, 2, 3, 4)}, opset=9, initializers=scales, shapes=shapes, mode=mode
    )


def test_resize_to_sizes():
    values = {"sizes": np.array([1, 2, 5, 8], np.int64)}
    order = ["x", "", "", "sizes"]
    agrees("Resize", {"x": draw(1, 2, 3, 4)}, initializers=values, order=order, mode="cubic")


@pytest.mark.parametrize("exponent", [np.float32(2), np.int64(3), np.float64(0.5)])
def test_power_keeps_the_dtype_of_its_base(exponent):
    agrees("Pow", {"x": np.abs(draw(2, 3))}, initializers={"e": exponent})


def test_clip_by_attributes():
    agrees("Clip", {"x": draw(2, 3)}, opset=7, min=-0.5, max=0.5)
    agrees("Clip", {"x": draw(2, 3)}, opset=7, min=-0.5)


def recurrent(op, gates, hidden, directions):
    return {
        "w": draw(directions, gates * hidden, 3) * 0.5,
        "r": draw(directions, gates * hidden, hidden) * 0.5,
        "b": draw(directions, 2 * gates * hidden) * 0.5,
    }


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(
    ("op", "gates", "options"),
    [("LSTM", 4, {}), ("GRU", 3, {}), ("GRU", 3, {"linear_before_reset": 1}), ("RNN", 1, {})],
)
def test_recurrent_networks_of_symbolic_length(op, gates, options, direction):
    hidden, directions = 5, 1 + (direction == "bidirectional")
    weights = recurrent(op, gates, hidden, directions)
    count = 3 if op == "LSTM" else 2
    for length in (1, 6):
        module = agrees(
            op,
            {"x": draw(length, 2, 3)},
            shapes={"x": ("length", 2, 3)},
            initializers=weights,
            count=count,
            direction=direction,
            hidden_size=hidden,
            **options,
        )
    assert len([n for n in post_order(module.main) if isinstance(n, While)]) == directions


def test_versions_choose_their_converter():
    assert find("", "Clip", 6) is not find("", "Clip", 13)
    assert find("", "Clip", 11) is find("", "Clip", 13)
    assert find("", "TopK", 1) is not find("", "TopK", 10)
    assert find("", "Unheard", 1) is None
    assert find("other", "Clip", 13) is None
    assert ("", "Conv") in set(supported())
