"""Weights of a few bits in blocks, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from .one_node import RNG, agrees, draw, fails, run

MS = "com.microsoft"
N, K = 24, 40


def packed(bits: int, block: int, zeros: str = "", depth: int = K) -> dict[str, Any]:
    """Returns a weight of random numbers; zero points are packed, floats, or left out."""
    blocks = -(-depth // block)
    points = {
        "": None,
        "packed": RNG.integers(0, 256, (N, -(-blocks * bits // 8))).astype("u1"),
        "floats": RNG.uniform(0, 1 << bits, (N, blocks)).astype("f4"),
    }
    return {
        "w": RNG.integers(0, 256, (N, blocks, block * bits // 8)).astype("u1"),
        "s": RNG.uniform(0.01, 0.1, (N, blocks)).astype("f4"),
        "z": points[zeros],
    }


@pytest.mark.parametrize(
    ("bits", "zeros"),
    [(2, ""), (4, ""), (8, ""), (2, "packed"), (4, "packed"), (8, "packed"), (4, "floats")],
)
@pytest.mark.parametrize("block", [16, 32])
def test_matmul(bits, zeros, block):
    inputs = {"x": draw(3, 5, K), **packed(bits, block, zeros)}
    options = {"bits": bits, "block_size": block, "N": N, "K": K}
    known = ("w", "s", "z")
    agrees(
        "MatMulNBits", inputs, by="ort", domain=MS, native=False, known=known, atol=1e-4, **options
    )


@pytest.mark.parametrize("flat", [False, True])
def test_matmul_of_one_row_with_a_bias(flat):
    inputs = {"x": draw(1, K), **packed(4, 16, "packed"), "g": None, "bias": draw(N)}
    if flat:
        inputs |= {"s": inputs["s"].ravel(), "z": inputs["z"].ravel()}
    options = {"bits": 4, "block_size": 16, "N": N, "K": K, "known": ("w", "s", "z", "bias")}
    agrees("MatMulNBits", inputs, by="ort", domain=MS, native=False, atol=1e-4, **options)


@pytest.mark.parametrize("bits", [2, 4])
def test_a_weight_that_is_no_parameter(bits):
    inputs = {"x": draw(5, K), **packed(bits, 16, "packed")}
    options = {"bits": bits, "block_size": 16, "N": N, "K": K}
    agrees("MatMulNBits", inputs, by="ort", domain=MS, native=False, atol=1e-4, **options)


def test_matmul_of_halves():
    inputs = {"x": draw(5, K, dtype="f2"), **packed(4, 16, "packed")}
    inputs["s"] = inputs["s"].astype("f2")
    options = {"bits": 4, "block_size": 16, "N": N, "K": K, "known": ("w", "s", "z")}
    agrees(
        "MatMulNBits", inputs, by="ort", domain=MS, native=False, rtol=1e-2, atol=2e-2, **options
    )


def test_wrong_blocks():
    inputs = {"x": draw(5, K), **packed(4, 16)}
    options = {"domain": MS, "known": ("w", "s", "z"), "N": N, "K": K}
    fails("U005", "MatMulNBits", inputs, bits=3, block_size=16, **options)
    fails("U005", "MatMulNBits", inputs, block_size=16, weight_prepacked=1, **options)
    fails("M012", "MatMulNBits", inputs, block_size=0, **options)
    fails("M012", "MatMulNBits", inputs, block_size=32, **options)


# --- GatherBlockQuantized -------------------------------------------------------------------------


def codes(dtype: Any, *shape: int) -> Any:
    return RNG.integers(0, 16, shape).astype("u1").view(dtype)


@pytest.mark.parametrize("dtype", [ml_dtypes.int4, ml_dtypes.uint4])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(
    ("axis", "along", "scales"),
    [(0, 2, (6, 3, 2)), (1, 0, (1, 3, 32)), (2, 2, (6, 3, 2)), (-1, 1, (6, 1, 32))],
)
def test_gather(dtype, zeros, axis, along, scales):
    inputs = {
        "data": codes(dtype, 6, 3, 32),
        "ids": RNG.integers(-3, 3, (2, 2)).astype("i4"),
        "scales": draw(*scales),
        "zeros": codes(dtype, *scales) if zeros else None,
    }
    options = {"gather_axis": axis, "quantize_axis": along, "block_size": 16}
    known = ("data", "scales", "zeros")
    agrees(
        "GatherBlockQuantized", inputs, by="ort", domain=MS, native=False, known=known, **options
    )


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zeros", [False, True])
def test_gather_of_bytes(bits, zeros):
    inputs = {
        "data": RNG.integers(0, 256, (6, 48 * bits // 8)).astype("u1"),
        "ids": RNG.integers(-6, 6, (2, 4)),
        "scales": draw(6, 3),
        "zeros": RNG.integers(0, 256, (6, -(-3 * bits // 8))).astype("u1") if zeros else None,
    }
    options = {"gather_axis": 0, "quantize_axis": 1, "block_size": 16, "bits": bits}
    known = ("data", "scales", "zeros")
    agrees(
        "GatherBlockQuantized", inputs, by="ort", domain=MS, native=False, known=known, **options
    )


def test_a_block_larger_than_the_axis():
    inputs = {"data": codes(ml_dtypes.uint4, 6, 32), "ids": np.array([3]), "scales": draw(6, 1)}
    options = {"block_size": 1 << 62, "known": ("data", "scales")}
    found = run("GatherBlockQuantized", inputs, domain=MS, native=False, **options)[2][0]
    wanted = inputs["data"][3].astype("f4") * inputs["scales"][3]
    np.testing.assert_allclose(found[0], wanted, rtol=1e-6)
