"""ONNX Runtime's operators that are ONNX's by another name, or for a few models."""

from __future__ import annotations

import numpy as np
import pytest

from .one_node import RNG, agrees, draw, fails, run

MS = "com.microsoft"


@pytest.mark.parametrize(
    ("op", "inputs", "options"),
    [
        ("Trilu", {"x": draw(2, 4, 5)}, {}),
        ("Trilu", {"x": draw(4, 5), "k": np.array(-1)}, {"upper": 0}),
        ("GatherND", {"x": draw(4, 5, 3), "ids": np.array([[0, 1], [3, 2]])}, {}),
        ("Pad", {"x": draw(3, 4), "pads": np.array([1, 0, 2, 1])}, {}),
        ("Pad", {"x": draw(3, 4), "pads": np.array([1, 0, 2, 1]), "v": np.array([3], "f4")}, {}),
        ("Pad", {"x": draw(3, 4), "pads": np.array([[1, 0, 2, 1]])}, {"mode": "edge"}),
        ("Pad", {"x": draw(3, 4), "pads": np.array([1, -1, 2, 1])}, {"mode": "reflect"}),
        ("Range", {"a": np.array(2), "b": np.array(9), "d": np.array(3)}, {}),
        ("Range", {"a": np.array(2.5, "f4"), "b": np.array(7, "f4")}, {}),
        ("ExpandDims", {"x": draw(3, 4), "axis": np.array(1, "i4")}, {}),
        ("ExpandDims", {"x": draw(3, 4), "axis": np.array(-1, "i4")}, {}),
        ("CDist", {"a": draw(5, 7), "b": draw(4, 7)}, {}),
        ("CDist", {"a": draw(5, 7), "b": draw(4, 7)}, {"metric": "euclidean"}),
    ],
)
def test_as_onnx_runtime(op, inputs, options):
    known = tuple(n for n in inputs if n in ("k", "pads", "v", "a", "b", "d", "axis"))
    agrees(
        op,
        inputs,
        by="ort",
        domain=MS,
        native=False,
        known=() if op == "CDist" else known,
        **options,
    )


def test_unique():
    x = np.array([2, 1, 1, 3, 4, 3], "f4")
    agrees("Unique", {"x": x}, by="ort", domain=MS, native=False, count=3)


def test_inverse():
    agrees(
        "Inverse",
        {"x": draw(2, 3, 4, 4) + 3 * np.eye(4, dtype="f4")},
        by="ort",
        domain=MS,
        native=False,
    )
    agrees("Inverse", {"x": draw(3, 3, dtype="f8")}, by="ort", domain=MS, native=False)


@pytest.mark.parametrize("dtype", ["u1", "i1", "u2", "i2"])
@pytest.mark.parametrize("vector", [False, True])
def test_quantize_and_back(dtype, vector):
    shape = (4,) if vector else ()
    options = {"axis": 1} if vector else {}
    zero = RNG.integers(1, 9, shape).astype(dtype)
    scale = np.asarray(RNG.uniform(0.01, 0.04, shape), "f4")
    x = {"x": draw(3, 4), "s": scale, "z": zero}
    agrees("QuantizeLinear", x, by="ort", domain=MS, native=False, **options)
    codes = {**x, "x": RNG.integers(0, 99, (3, 4)).astype(dtype)}
    agrees("DequantizeLinear", codes, by="ort", domain=MS, native=False, **options)


@pytest.mark.parametrize(("shape", "count"), [((3, 8), 1), ((2, 4, 6), 2), ((3, 4, 6), 3)])
def test_transforms_of_reals(shape, count):
    """ONNX Runtime has them on GPUs only."""
    x, axes = draw(*shape), tuple(range(-count, 0))
    wanted = np.fft.rfftn(x, axes=axes)
    (found,) = run("Rfft", {"x": x}, domain=MS, native=False, signal_ndim=count)[2]
    np.testing.assert_allclose(found[..., 0] + 1j * found[..., 1], wanted, rtol=1e-4, atol=1e-4)
    (back,) = run("Irfft", {"x": found}, domain=MS, native=False, signal_ndim=count)[2]
    np.testing.assert_allclose(back, x, rtol=1e-4, atol=1e-5)


def test_wrong_ones():
    fails("M012", "Unique", {"x": draw(2, 3)}, domain=MS)
    fails("M012", "CDist", {"a": draw(2, 3), "b": draw(2, 4)}, domain=MS)
    fails("U005", "CDist", {"a": draw(2, 3), "b": draw(2, 3)}, domain=MS, metric="cosine")
    fails("M012", "Rfft", {"x": draw(2, 4)}, domain=MS, signal_ndim=3)
    fails("U005", "Rfft", {"x": draw(2, 4)}, domain=MS, normalized=1)
