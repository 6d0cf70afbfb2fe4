"""Attention over pixels of images whose channels come first: no vector of values lies in memory."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

import clew

IMAGES = """<ir_version: 9, opset_import: ["" : 18]>
agraph (float[1, 2, D, N] q, float[1, 2, D, N] k, float[1, 2, D, N] v, float[1, 2, N, N] bias)
    => (float[1, 2, D, N] y) {
    rows = Transpose <perm = [0, 1, 3, 2]> (q)
    products = MatMul (rows, k)
    scores = Add (products, bias)
    weights = Softmax <axis = -1> (scores)
    values = Transpose <perm = [0, 1, 3, 2]> (v)
    sums = MatMul (weights, values)
    y = Transpose <perm = [0, 1, 3, 2]> (sums)
}"""


@pytest.mark.parametrize(("channels", "pixels"), [(32, 49), (5, 20), (16, 1), (1, 16)])
@pytest.mark.parametrize("threads", [1, 2])
def test_attention(channels: int, pixels: int, threads: int) -> None:
    text = IMAGES.replace("D", str(channels)).replace("N]", f"{pixels}]")
    text = text.replace(", N,", f", {pixels},")
    compiled = clew.compile(onnx.parser.parse_model(text), threads=threads)
    rng = np.random.default_rng(channels)
    q, k, v = rng.standard_normal((3, 1, 2, channels, pixels)).astype("f4")
    bias = rng.standard_normal((1, 2, pixels, pixels)).astype("f4")
    scores = np.einsum("bhdm,bhdn->bhmn", q, k) + bias
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    expected = np.einsum("bhmn,bhdn->bhdm", weights, v)
    np.testing.assert_allclose(compiled(q, k, v, bias), expected, rtol=1e-4, atol=1e-5)
    kernels = [k for k in compiled.kernels if "attention" in k.rules]
    assert len(kernels) == 1
    # What is multiplied with the weights is loaded in vectors, not gathered.
    if channels > 1 and pixels > 1:
        assert "workspace transpose" in str(kernels[0].loops)
