"""ONNX Runtime's quantized operators, each with every option, against ONNX Runtime."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from clew.frontends.onnx import load
from clew.machine.target import target_of
from clew.passes.manager import PassManager
from clew.passes.precision.narrow_integers import NarrowIntegers

from .one_node import RNG, agrees, draw, fails, model, run

MS = "com.microsoft"


def f(value: float) -> Any:
    return np.array(value, "f4")


def q(*shape: int, dtype: str = "u1") -> Any:
    """Bytes with a sign are of 7 bits: ONNX Runtime's products of others saturate on some CPUs."""
    info = np.iinfo(dtype)
    half = 1 + (dtype == "i1")
    return RNG.integers(info.min // half, (info.max + 1) // half, shape).astype(dtype)


def near(op, inputs, *, steps=1, share=0.05, **options):
    """Results are within a step of ONNX Runtime's, and few differ."""
    options = {"native": False, **options}
    made, feeds, found = run(op, inputs, domain=MS, **options)
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    for got, want in zip(found, session.run(None, feeds), strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        off = np.abs(got.astype("i4") - want.astype("i4"))
        assert off.max() <= steps
        assert (off > 0).sum() <= max(3, share * off.size)


def pair(dtype: str, other: tuple[int, ...] = (5, 8)) -> dict[str, Any]:
    return {
        "a": q(2, 5, 8, dtype=dtype), "as": f(0.0213), "az": np.array(3, dtype),
        "b": q(*other, dtype=dtype), "bs": f(0.0317), "bz": np.array(7, dtype),
        "cs": f(0.0429), "cz": np.array(11, dtype),
    }  # fmt: skip


@pytest.mark.parametrize("op", ["QLinearAdd", "QLinearMul"])
@pytest.mark.parametrize(
    "inputs", [pair("u1"), pair("i1"), pair("i1", (2, 1, 1))], ids=["u8", "i8", "broadcast"]
)
def test_two_operands(op, inputs):
    near(op, inputs)


def one(
    dtype: str = "u1", shape: tuple[int, ...] = (2, 5, 8), zeros: bool = True
) -> dict[str, Any]:
    zero = (lambda v: np.array(v, dtype)) if zeros else (lambda v: None)
    return {"x": q(*shape, dtype=dtype), "xs": f(0.03), "xz": zero(9), "ys": f(0.01), "yz": zero(4)}


@pytest.mark.parametrize(
    ("op", "options"),
    [
        ("QLinearSigmoid", {}),
        ("QLinearLeakyRelu", {"alpha": 0.2}),
        ("QLinearSoftmax", {"axis": -1, "attrs": {"opset": 13}}),
        ("QLinearSoftmax", {"axis": 1, "attrs": {"opset": 13}}),
        ("QLinearSoftmax", {"axis": 1, "attrs": {"opset": 12}}),
    ],
)
@pytest.mark.parametrize("dtype", ["u1", "i1"])
def test_one_operand(op, options, dtype):
    known = ("xs", "xz", "ys", "yz")
    near(op, one(dtype), known=known, **options)


def test_zero_points_left_out():
    near("QLinearSigmoid", one(zeros=False), known=("xs", "ys"))


IMAGE = (2, 6, 7, 5)


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("dtype", ["u1", "i1"])
def test_pool_all(last, dtype):
    near("QLinearGlobalAveragePool", one(dtype, IMAGE), channels_last=last)


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_shape": [2, 3]},
        {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]},
        {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1},
        {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1},
        {"kernel_shape": [2, 2], "channels_last": 1, "auto_pad": "SAME_UPPER"},
    ],
)
def test_pool(options):
    near("QLinearAveragePool", one("u1", IMAGE), **options)


@pytest.mark.parametrize("keep", [0, 1])
def test_mean(keep):
    """ONNX Runtime has no kernel for it."""
    inputs = one("u1")
    wanted = ((inputs["x"].astype("f8") - 9) * 0.03).mean((0, 2), keepdims=bool(keep))
    (found,) = run(
        "QLinearReduceMean", inputs, domain=MS, native=False, axes=[0, -1], keepdims=keep
    )[2]
    np.testing.assert_array_equal(found, np.clip(np.rint(wanted / 0.01) + 4, 0, 255))


@pytest.mark.parametrize("dtype", ["u1", "i1"])
def test_concat(dtype):
    inputs = {"ys": f(0.02), "yz": np.array(5, dtype)}
    for n, width in enumerate((3, 1, 4)):
        inputs |= {f"x{n}": q(2, width, dtype=dtype), f"s{n}": f(0.01 * (n + 1))}
        inputs[f"z{n}"] = np.array(n, dtype)
    known = tuple(n for n in inputs if n[0] != "x")
    near("QLinearConcat", inputs, known=known, axis=1)


def test_where():
    inputs = {"c": RNG.random((2, 5, 8)) < 0.5}
    for n in "ab":
        inputs |= {n: q(2, 5, 8), f"{n}s": f(0.02), f"{n}z": np.array(3, "u1")}
    near("QLinearWhere", {**inputs, "ys": f(0.03), "yz": np.array(8, "u1")})


@pytest.mark.parametrize("last", [0, 1])
def test_conv(last):
    inputs = {
        "x": q(2, 6, 7, 4), "xs": f(0.02), "xz": np.array(9, "u1"),
        "w": q(3, 4 if last else 6, 3, 3, dtype="i1"), "ws": draw(3) ** 2 + f(0.01),
        "wz": np.zeros(3, "i1"), "ys": f(0.5), "yz": np.array(100, "u1"),
        "b": RNG.integers(-500, 500, 3).astype("i4"),
    }  # fmt: skip
    known = tuple(n for n in inputs if n != "x")
    near("QLinearConv", inputs, known=known, channels_last=last, pads=[1] * 4, strides=[2, 1])


# --- products -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["u1", "i1"])
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_dynamic_matmul(dtype, columns, bias):
    shape = (7,) if columns else ()
    inputs = {
        "a": draw(2, 5, 16), "b": q(16, 7, dtype=dtype),
        "s": np.asarray(RNG.uniform(0.01, 0.05, shape), "f4"), "z": q(*shape, dtype=dtype),
        "bias": draw(7) if bias else None,
    }  # fmt: skip
    options = {"by": "ort", "domain": MS, "native": False, "rtol": 1e-4, "atol": 1e-3}
    agrees("DynamicQuantizeMatMul", inputs, known=("b", "s", "z"), **options)
    scales = {"as": f(0.02), "bs": inputs["s"], "az": np.array(9, "u1"), "bz": inputs["z"]}
    exact = {"a": q(5, 16), "b": inputs["b"], **scales, "bias": inputs["bias"]}
    agrees("MatMulIntegerToFloat", exact, **options)


def test_dynamic_matmul_of_zeros():
    inputs = {"a": np.zeros((3, 4), "f4"), "b": q(4, 5), "s": f(0.1), "z": None, "bias": draw(5)}
    agrees("DynamicQuantizeMatMul", inputs, by="ort", domain=MS, native=False)


@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("floats", [False, True])
def test_gemm(turned, columns, bias, floats):
    shape = (7,) if columns else ()
    inputs = {
        "a": q(*((16, 5) if turned else (5, 16))), "as": f(0.02), "az": np.array(120, "u1"),
        "b": q(*((7, 16) if turned else (16, 7)), dtype="i1"),
        "bs": np.asarray(RNG.uniform(0.01, 0.05, shape), "f4"), "bz": np.zeros(shape, "i1"),
        "c": RNG.integers(-900, 900, 7).astype("i4") if bias else None,
        "ys": None if floats else f(0.3), "yz": None if floats else np.array(100, "u1"),
    }  # fmt: skip
    options = {"transA": turned, "transB": turned, "alpha": 0.7}
    if floats:
        agrees("QGemm", inputs, by="ort", domain=MS, native=False, atol=1e-3, **options)
    else:
        near("QGemm", inputs, **options)


def test_matmul_of_16_bits():
    inputs = {"a": q(3, 4, dtype="i2") // 8, "b": q(4, 5, dtype="i2") // 8}
    agrees("MatMulInteger16", inputs, by="ort", domain=MS, native=False)


@pytest.mark.parametrize(
    ("weight", "columns", "options"),
    [("i1", False, {}), ("u1", True, {"unidirectional": 1}), ("i1", True, {"scale": 0.3})],
)
@pytest.mark.parametrize("past", [0, 3])
def test_attention(weight, columns, options, past):
    shape = (48,) if columns else (1,)
    inputs = {
        "x": q(2, 5, 12), "w": q(12, 48, dtype=weight), "b": draw(48), "xs": np.array([0.01], "f4"),
        "ws": np.asarray(RNG.uniform(0.005, 0.01, shape), "f4"),
        "mask": np.array([4 + past, 2 + past], "i4"), "xz": np.array([128], "u1"),
        "wz": np.full(shape, 0 if weight == "i1" else 128, weight),
        "past": draw(2, 2, 2, past, 8) if past else None,
    }  # fmt: skip
    more = {"results": ("y", "present")} if past else {}
    agrees("QAttention", inputs, by="ort", domain=MS, native=False, num_heads=2, **more, **options)


@pytest.mark.parametrize(
    ("dtype", "columns", "options"),
    [
        ("i1", False, {}),
        ("u1", False, {"direction": "reverse"}),
        ("i1", True, {"direction": "bidirectional"}),
        ("i1", False, {"lengths": True, "peephole": True}),
        ("i1", False, {"states": True, "input_forget": 1, "clip": 2.0}),
    ],
)
def test_lstm(dtype, columns, options):
    d, hidden, size, batch = 2 if "bi" in options.get("direction", "") else 1, 6, 5, 2
    options = dict(options)
    lengths, peephole, states = (options.pop(n, False) for n in ("lengths", "peephole", "states"))
    shape = (d, 4 * hidden) if columns else (d,)
    scale = lambda: np.asarray(RNG.uniform(0.002, 0.006, shape), "f4")  # noqa: E731
    zero = np.zeros(shape, dtype) if dtype == "i1" else np.full(shape, 128, dtype)
    inputs = {
        "x": draw(4, batch, size), "w": q(d, size, 4 * hidden, dtype=dtype),
        "r": q(d, hidden, 4 * hidden, dtype=dtype), "b": draw(d, 8 * hidden),
        "lengths": np.array([4, 2], "i4") if lengths else None,
        "h": draw(d, batch, hidden) if states else None,
        "c": draw(d, batch, hidden) if states else None,
        "p": draw(d, 3 * hidden) if peephole else None,
        "ws": scale(), "wz": zero, "rs": scale(), "rz": zero,
    }  # fmt: skip
    known = ("w", "r", "ws", "wz", "rs", "rz")
    # A state near the border between two steps may fall to either side: a step is 0.003.
    results = {
        "by": "ort",
        "domain": MS,
        "native": False,
        "count": 3,
        "known": known,
        "hidden_size": hidden,
    }
    agrees("DynamicQuantizeLSTM", inputs, rtol=0, atol=6e-3, **results, **options)


def test_constant_weights_of_an_lstm_are_multiplied_as_bytes():
    """Those of the inputs, and those that the loop over time reads."""
    inputs = {
        "x": draw(3, 2, 8), "w": q(1, 8, 16, dtype="i1"), "r": q(1, 4, 16, dtype="i1"),
        "b": None, "lengths": None, "h": None, "c": None, "p": None,
        "ws": f([0.01]), "wz": np.zeros(1, "i1"), "rs": f([0.01]), "rz": np.zeros(1, "i1"),
    }  # fmt: skip
    known = ("w", "r", "ws", "wz", "rs", "rz")
    made = model("DynamicQuantizeLSTM", inputs, known=known, domain=MS, hidden_size=4)
    target = target_of("cpu-avx512")
    target = replace(target, features=f"{target.features},+avx512vnni")
    text = str(PassManager([NarrowIntegers()], target=target).run(load(made)))
    assert text.count("= nn.dense(") == 2
    assert "nn.matmul" not in text


def test_wrong_parameters():
    fails("M012", "QLinearSigmoid", {**one(), "xs": draw(8)}, domain=MS)
    fails("M012", "QLinearSigmoid", {**one(), "yz": np.array(4)}, domain=MS)
    x, s, z = q(2, 2), f(0.1), np.array(3, "u1")
    product = {"a": x, "as": s, "az": z, "b": x, "bs": s, "bz": z, "ys": s, "yz": np.array(4)}
    fails("M012", "QLinearMatMul", product)
    fails(
        "M012", "QLinearConcat", {"ys": f(1), "yz": np.array(0, "u1"), "x": q(3)}, domain=MS, axis=0
    )
