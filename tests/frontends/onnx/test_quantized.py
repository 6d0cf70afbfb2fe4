"""QuantizeLinear and DequantizeLinear: all dtypes, granularities, versions; behind guard pages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import clew
from clew.frontends.onnx import load
from clew.frontends.onnx.file.tensors import number_of
from clew.ir.types import STORAGE, bits, is_float, to_numpy
from clew.support.errors import ClewError

Array = np.ndarray[Any, Any]

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

DTYPES = (*(d for d in STORAGE if d != "f8e8m0fnu"), "i8", "u8", "i16", "u16")
OPSETS = {"f6e2m3fn": 28, "f6e3m2fn": 28, "i2": 25, "u2": 25, "f4e2m1fn": 23}
SHAPE, AXIS, BLOCK = (3, 10, 5), 1, 4
SCALES = {"tensor": (), "axis": (10,), "block": (3, 3, 5)}


def _model(
    nodes: list[Any], inputs: dict[str, Array], outputs: list[str], opset: int
) -> ModelProto:
    types = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in inputs.items()
    ]
    results = [helper.make_empty_tensor_value_info(name) for name in outputs]
    graph = helper.make_graph(nodes, "g", types, results)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=11)


def _run(model: ModelProto, inputs: dict[str, Array]) -> dict[str, Array]:
    compiled = clew.compile(
        load(model), threads=1, cache=False, diagnostics=clew.Diagnostics(guard=True)
    )
    return compiled.run(inputs)


def _codes(rng: np.random.Generator, dtype: str, shape: tuple[int, ...], limit: int = 16) -> Array:
    width = bits(dtype)
    raw = rng.integers(0, 1 << min(width, limit), shape)
    return raw.astype(np.uint16 if width > 8 else np.uint8).view(to_numpy(dtype))


def _equal(got: Array, wanted: Array) -> None:
    assert got.dtype == wanted.dtype
    np.testing.assert_array_equal(got.astype(np.float64), wanted.astype(np.float64))


@pytest.mark.parametrize("number", range(len(DTYPES)), ids=DTYPES)
@pytest.mark.parametrize("granularity", SCALES)
def test_as_the_reference(number: int, granularity: str) -> None:
    dtype, shape = DTYPES[number], SCALES[granularity]
    rng = np.random.default_rng(number)
    narrow = to_numpy(("f32", "f16", "bf16")[(number + len(granularity)) % 3])
    x = (rng.normal(size=SHAPE) * 40).astype(narrow)
    x.reshape(-1)[:2] = [-0.0, 0.5]
    if is_float(dtype):
        x.reshape(-1)[2:5] = [np.inf, -np.inf, np.nan]
        zero = np.zeros(shape, to_numpy(dtype))
    else:
        zero = _codes(rng, dtype, shape, 10)
    inputs = {
        "x": x,
        "scale": rng.uniform(0.05, 3, shape).astype(narrow),
        "zero": zero,
        "codes": _codes(rng, dtype, SHAPE),
    }
    how = {"axis": AXIS, **({"block_size": BLOCK} if granularity == "block" else {})}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], **how),
        helper.make_node("DequantizeLinear", ["codes", "scale", "zero"], ["d"], **how),
        helper.make_node("DequantizeLinear", ["codes", "scale"], ["plain"], **how),
    ]
    names = ["q", "d", "plain"]
    model = _model(nodes, inputs, names, OPSETS.get(dtype, 21))
    got = _run(model, inputs)
    for name, wanted in zip(names, ReferenceEvaluator(model).run(None, inputs), strict=True):
        _equal(got[name], wanted)


@pytest.mark.parametrize("opset", [10, 13, 19, 21, 23, 24, 25])
def test_versions(opset: int) -> None:
    rng = np.random.default_rng(opset)
    per_axis = opset >= 13
    shape = (5,) if per_axis else ()
    inputs = {
        "x": (rng.normal(size=(3, 5)) * 30).astype(np.float32),
        "scale": rng.uniform(0.1, 1, shape).astype(np.float32),
        "zero": rng.integers(0, 256, shape).astype(np.uint8),
        "sums": rng.integers(-(10**6), 10**6, (3, 5)).astype(np.int32),
        "one": np.asarray(np.float32(0.3)),
    }
    how = {"axis": -1} if per_axis else {}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], **how),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["d"], **how),
        helper.make_node("DequantizeLinear", ["sums", "one"], ["s"]),
        helper.make_node("QuantizeLinear", ["sums", "one"], ["u"]),
    ]
    got = _run(_model(nodes, inputs, ["q", "d", "s", "u"], opset), inputs)
    quotient = np.rint(inputs["x"] / inputs["scale"]) + inputs["zero"]
    _equal(got["q"], np.clip(quotient, 0, 255).astype(np.uint8))
    centered = got["q"].astype(np.int32) - inputs["zero"]
    _equal(got["d"], centered.astype(np.float32) * inputs["scale"])
    _equal(got["s"], inputs["sums"].astype(np.float32) * np.float32(0.3))
    exact = np.rint(inputs["sums"].astype(np.float32) / np.float32(0.3))
    _equal(got["u"], np.clip(exact, 0, 255).astype(np.uint8))


def test_what_is_no_number_or_too_large() -> None:
    """NaN becomes the lowest integer, as in ONNX Runtime; infinities the limits."""
    x = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 2.5, 3.5], np.float32)
    inputs = {"x": x, "scale": np.asarray(np.float32(1))}
    names = ["i8", "u8", "i4", "u2", "i16"]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale"], [n], output_dtype=number_of(n))
        for n in names
    ]
    got = _run(_model(nodes, inputs, names, 25), inputs)
    for name in names:
        width, signed = bits(name), name[0] == "i"
        low, high = -(1 << (width - 1)) * signed, (1 << (width - signed)) - 1
        wanted = np.clip([low, high, low, high, low, 2, 4], low, high)
        np.testing.assert_array_equal(got[name].astype(np.int64), wanted)


def test_precision_and_result() -> None:
    """The division has the precision asked for, else the scale's; the result is what is asked."""
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(7, 33)) * 50).astype(np.float16)
    scale = np.asarray(np.float16(0.7))
    codes = rng.integers(-128, 128, (7, 33)).astype(np.int8)
    exponent = np.array(2.0**-3).astype(to_numpy("f8e8m0fnu"))
    inputs = {"x": x, "scale": scale, "codes": codes, "exponent": exponent}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale"], ["half"]),
        helper.make_node("QuantizeLinear", ["x", "scale"], ["full"], precision=TensorProto.FLOAT),
        helper.make_node("QuantizeLinear", ["x", "exponent"], ["power"]),
        helper.make_node(
            "DequantizeLinear", ["codes", "exponent"], ["d"], output_dtype=TensorProto.BFLOAT16
        ),
    ]
    got = _run(_model(nodes, inputs, ["half", "full", "power", "d"], 25), inputs)
    half = np.rint((x / scale).astype(np.float32))
    full = np.rint(x.astype(np.float32) / np.float32(scale))
    assert (half != full).any()
    _equal(got["half"], np.clip(half, 0, 255).astype(np.uint8))
    _equal(got["full"], np.clip(full, 0, 255).astype(np.uint8))
    _equal(got["power"], np.clip(np.rint(x.astype(np.float32) * 8), 0, 255).astype(np.uint8))
    _equal(got["d"], (codes / np.float32(8)).astype(to_numpy("bf16")))


def test_without_saturation() -> None:
    x = np.array([1e6, -1e6, np.inf, 448, 464, 480, np.nan], np.float32)
    inputs = {"x": x, "scale": np.asarray(np.float32(1))}
    nodes, wanted = [], {}
    for dtype in ("f8e4m3fn", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz"):
        for saturate in (0, 1):
            name = f"{dtype}_{saturate}"
            nodes.append(
                helper.make_node(
                    "QuantizeLinear",
                    ["x", "scale"],
                    [name],
                    output_dtype=number_of(dtype),
                    saturate=saturate,
                )
            )
            largest = {"f8e4m3fn": 448, "f8e4m3fnuz": 240}.get(dtype, 57344)
            kept = np.clip(x, -largest, largest) if saturate else x
            wanted[name] = kept.astype(to_numpy(dtype))
    got = _run(_model(nodes, inputs, list(wanted), 25), inputs)
    for name, array in wanted.items():
        _equal(got[name], array)


@pytest.mark.parametrize(
    ("op", "shapes", "attributes", "what"),
    [
        ("QuantizeLinear", [(3, 10), (4,)], {}, "4 scales"),
        ("QuantizeLinear", [(3, 10), (3, 10)], {}, "scale or zero point of type"),
        ("QuantizeLinear", [(3, 10), (3, 4)], {"block_size": 4}, "blocks of 4"),
        ("QuantizeLinear", [(3, 10), (2, 3)], {"block_size": 4}, "blocks of 4"),
        ("QuantizeLinear", [(3, 10), (3, 3)], {"block_size": -4}, "block_size of -4"),
        ("QuantizeLinear", [(3, 10), (3, 3)], {"block_size": 4, "axis": 5}, "axis 5"),
        ("QuantizeLinear", [(3, 10), ()], {"output_dtype": TensorProto.FLOAT}, "quantize to f32"),
        ("QuantizeLinear", [(3, 10), ()], {"precision": TensorProto.INT8}, "divide in i8"),
        ("QuantizeLinear", [(3, 10), (), ()], {"output_dtype": TensorProto.INT8}, "zero point"),
        ("DequantizeLinear", [(3, 10), (), ()], {}, "zero point of u8"),
    ],
)
def test_wrong_layers(
    op: str, shapes: list[tuple[int, ...]], attributes: dict[str, int], what: str
) -> None:
    first = np.int8 if op == "DequantizeLinear" else np.float32
    dtypes = (first, np.float32, np.uint8)
    inputs = {
        name: np.ones(shape, dtype)
        for name, shape, dtype in zip("xsz", shapes, dtypes, strict=False)
    }
    model = _model([helper.make_node(op, list(inputs), ["y"], **attributes)], inputs, ["y"], 25)
    with pytest.raises(ClewError, match=what) as caught:
        load(model)
    assert caught.value.code == "M012"


def test_product_of_8_bit_floats() -> None:
    rng = np.random.default_rng(2)
    f8 = to_numpy("f8e4m3fn")
    a, b = (rng.normal(size=s).astype(f8) for s in ((3, 8), (8, 5)))
    one, zero = np.asarray(np.float32(1)), np.zeros((), f8)
    inputs = {"a": a, "sa": one, "za": zero, "b": b, "sb": one, "zb": zero, "s": one, "z": zero}
    model = _model([helper.make_node("QLinearMatMul", list(inputs), ["y"])], inputs, ["y"], 21)
    got = _run(model, inputs)["y"]
    exact = a.astype(np.float32) @ b.astype(np.float32)
    assert got.dtype == f8
    np.testing.assert_allclose(got.astype(np.float32), exact, rtol=0.07, atol=2.0**-9)


@pytest.mark.parametrize("dtype", ["i4", "u2", "f8e4m3fn", "f4e2m1fn", "f6e3m2fn"])
def test_weights_stored_narrow(dtype: str) -> None:
    """What is multiplied is what the reference dequantizes, for matrices and convolutions."""
    rng = np.random.default_rng(5)
    matrix, kernel = _codes(rng, dtype, (64, 48)), _codes(rng, dtype, (8, 3, 3, 3))
    if dtype == "f8e4m3fn":
        matrix, kernel = (np.where(np.isnan(a.astype("f4")), a.dtype.type(1), a)
                          for a in (matrix, kernel))  # fmt: skip
    scale = rng.uniform(0.01, 0.1, (2, 48)).astype(np.float32)
    channel = rng.uniform(0.01, 0.1, 8).astype(np.float32)
    inputs = {
        "x": rng.normal(size=(5, 64)).astype(np.float32),
        "image": rng.normal(size=(1, 3, 9, 11)).astype(np.float32),
    }
    node = helper.make_node
    nodes = [
        node("DequantizeLinear", ["matrix", "scale"], ["w"], axis=0, block_size=32),
        node("MatMul", ["x", "w"], ["product"]),
        node("DequantizeLinear", ["kernel", "channel"], ["k"], axis=0),
        node("Conv", ["image", "k"], ["features"]),
    ]
    model = _model(nodes, inputs, ["product", "features"], 28)
    stored = {"matrix": matrix, "scale": scale, "kernel": kernel, "channel": channel}
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in stored.items())
    got = _run(model, inputs)
    dense = matrix.astype(np.float32) * np.repeat(scale, 32, 0)
    np.testing.assert_allclose(got["product"], inputs["x"] @ dense, rtol=1e-4, atol=1e-4)
    taps = kernel.astype(np.float32) * channel[:, None, None, None]
    views = np.lib.stride_tricks.sliding_window_view(inputs["image"], (3, 3), axis=(2, 3))
    wanted = np.einsum("nchwij,ocij->nohw", views, taps)
    np.testing.assert_allclose(got["features"], wanted, rtol=1e-4, atol=1e-4)


def test_the_pool_of_a_dequantized_image() -> None:
    """With channels in blocks, the sum of products with the scale is no convolution."""
    rng = np.random.default_rng(0)
    weight = (rng.standard_normal((32, 32, 1, 1)) / 8).astype("f4")
    tensors = {"w": weight, "s": np.float32(0.1), "z": np.uint8(100)}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"]),
        helper.make_node("QuantizeLinear", ["a", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("GlobalAveragePool", ["d"], ["y"]),
    ]
    x = rng.standard_normal((1, 32, 6, 6)).astype("f4")
    model = _model(nodes, {"x": x}, ["y", "q"], 17)
    model.graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in tensors.items())
    found = clew.compile(load(model), threads=1, cache=False).run({"x": x})
    wanted = ((found["q"].astype("f8") - 100) * 0.1).mean((2, 3), keepdims=True)
    np.testing.assert_allclose(found["y"], wanted, rtol=1e-5, atol=1e-6)
