"""Fourier transforms, windows and mel weights."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto

from .one_node import agrees, draw, fails, run


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(
    "attributes", [{}, {"inverse": 1}, {"onesided": 1}, {"inverse": 1, "onesided": 1}]
)
def test_dft(parts, attributes):
    if attributes == {"inverse": 1} and parts == 1:
        parts = 2
    agrees("DFT", {"x": draw(2, 10, 3, parts)}, opset=17, axis=1, **attributes)
    inputs = {"x": draw(2, 10, 3, parts, dtype="f8"), "n": np.array(7), "axis": np.array(-3)}
    agrees("DFT", inputs, opset=20, **attributes)
    agrees("DFT", inputs, opset=20, known=("n", "axis"), **attributes)


@pytest.mark.parametrize("size", [600, 997, 1024])
def test_long_transforms_are_made_of_short_ones(size):
    x = draw(2, size, 2, dtype="f8")
    agrees("DFT", {"x": x}, opset=20, rtol=1e-9, atol=1e-9)
    agrees("DFT", {"x": x}, opset=20, rtol=1e-9, atol=1e-9, inverse=1)
    found = run("DFT", {"x": draw(2, size, 2)}, opset=20)[2][0]
    assert found.dtype == np.float32


def test_dft_of_narrow_floats_is_computed_in_f32():
    for dtype in (np.float16, ml_dtypes.bfloat16):
        close = 2 * float(ml_dtypes.finfo(dtype).eps)
        agrees("DFT", {"x": draw(2, 6, 1, dtype=dtype)}, opset=20, rtol=close, atol=close)


@pytest.mark.parametrize(("axis", "code"), [(2, "M012"), (-1, "M012"), (7, "M012")])
def test_dft_along_no_signal(axis, code):
    inputs = {"x": draw(2, 6, 2), "n": None, "axis": np.array(axis)}
    fails(code, "DFT", inputs, opset=20, known=("axis",))


@pytest.mark.parametrize("known", [(), ("n",)])
@pytest.mark.parametrize("size", [0, -3])
def test_dft_of_no_length(size, known):
    fails("T107", "DFT", {"x": draw(2, 6, 2), "n": np.array(size)}, opset=20, known=known)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("window", [False, True])
def test_stft(parts, window):
    inputs = {
        "x": draw(2, 40, parts),
        "step": np.array(5),
        "window": draw(16) if window else None,
        "length": np.array(16, "i4"),
    }
    agrees("STFT", inputs, opset=17, onesided=2 - parts)
    agrees("STFT", inputs, opset=17, onesided=2 - parts, known=("step", "length"))


@pytest.mark.parametrize("size", [0, 1, 10])
@pytest.mark.parametrize("op", ["HannWindow", "HammingWindow", "BlackmanWindow"])
def test_windows(op, size):
    for dtype in (TensorProto.DOUBLE, TensorProto.FLOAT, TensorProto.INT32):
        options = {"opset": 17, "output_datatype": dtype, "periodic": 1}
        agrees(op, {"n": np.array(size)}, known=("n",), rtol=1e-3, **options)


def test_mel_weights():
    inputs = {
        "bins": np.array(40),
        "length": np.array(512),
        "rate": np.array(16000),
        "lower": np.array(20, "f4"),
        "upper": np.array(7600, "f4"),
    }
    agrees("MelWeightMatrix", inputs, opset=17, known=tuple(inputs))
    agrees("MelWeightMatrix", inputs, opset=17)
    wrong = {**inputs, "upper": np.array(9000, "f4")}
    fails("T107", "MelWeightMatrix", wrong, opset=17, known=tuple(inputs))
