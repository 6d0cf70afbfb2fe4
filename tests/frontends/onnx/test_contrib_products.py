"""ONNX Runtime's fused products, convolutions and activations, against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

from .one_node import agrees, compiled, draw, fails, model, run

MS = "com.microsoft"
X, W, B = draw(2, 4, 7, 9), draw(6, 4, 3, 3), draw(6)


@pytest.mark.parametrize(
    ("activation", "parameters"),
    [
        ("", None),
        ("Relu", None),
        ("Tanh", None),
        ("Sigmoid", None),
        ("LeakyRelu", [0.3]),
        ("Clip", [-0.4, 0.6]),
        ("HardSigmoid", [0.3, 0.4]),
        ("HardSwish", None),
    ],
)
def test_fused_conv(activation, parameters):
    options = {"activation_params": parameters} if parameters else {}
    options.update({"activation": activation} if activation else {})
    inputs = {"x": X, "w": W, "b": B}
    agrees(
        "FusedConv",
        inputs,
        by="ort",
        domain=MS,
        native=False,
        pads=[1] * 4,
        known=("w", "b"),
        **options,
    )


@pytest.mark.parametrize("bias", [B, None])
def test_fused_conv_and_sum(bias):
    inputs = {"x": X, "w": W, "b": bias, "z": draw(2, 6, 4, 5)}
    options = {"pads": [1, 1, 1, 1], "strides": [2, 2], "activation": "Relu"}
    agrees("FusedConv", inputs, by="ort", domain=MS, native=False, known=("w",), **options)
    one = model("FusedConv", inputs, domain=MS, known=("w",), **options)
    (kernel,) = [k for k in compiled(one).kernels if "nn.relu" in k.ops]
    assert any(op.startswith("nn.conv2d") for op in kernel.ops)


@pytest.mark.parametrize(
    ("activation", "options"),
    [
        ("Relu", {}),
        ("LeakyRelu", {"activation_alpha": 0.2, "alpha": 0.5}),
        ("Elu", {"activation_alpha": 0.7, "transA": 1, "beta": 0.5}),
        ("HardSigmoid", {"activation_alpha": 0.2, "activation_beta": 0.4, "transB": 1}),
        ("Tanh", {}),
        ("Softplus", {}),
    ],
)
def test_fused_gemm(activation, options):
    a = draw(*((6, 5) if options.get("transA") else (5, 6)))
    b = draw(*((7, 6) if options.get("transB") else (6, 7)))
    inputs = {"a": a, "b": b, "c": draw(7)}
    agrees("FusedGemm", inputs, by="ort", domain=MS, native=False, activation=activation, **options)


@pytest.mark.parametrize(
    ("a", "b", "options"),
    [
        ((5, 6), (6, 7), {}),
        ((6, 5), (7, 6), {"transA": 1, "transB": 1, "alpha": 0.25}),
        ((2, 3, 5, 6), (2, 3, 7, 6), {"transB": 1, "alpha": -0.5}),
        ((2, 5, 6), (7, 6), {"transB": 1}),
        ((5, 2, 3, 6), (2, 3, 6, 7), {"transBatchA": 1}),
        ((6, 2, 5), (7, 2, 6), {"transA": 1, "transB": 1, "transBatchA": 1, "transBatchB": 1}),
    ],
)
def test_fused_matmul(a, b, options):
    inputs = {"a": draw(*a), "b": draw(*b)}
    known = ("b",) if len(b) == 2 else ()
    agrees("FusedMatMul", inputs, by="ort", domain=MS, native=False, known=known, **options)
    if not any("Batch" in name for name in options):
        agrees("TransposeMatMul", inputs, by="ort", domain=MS, native=False, known=known, **options)


def test_fused_matmul_of_vectors():
    inputs = {"a": draw(6), "b": draw(6, 7)}
    agrees("FusedMatMul", inputs, by="ort", domain=MS, native=False, transA=1)


def test_matmul_and_activation():
    """ONNX Runtime has a kernel for it on GPUs only."""
    inputs = {"a": draw(5, 6), "b": draw(7, 6)}
    product = 0.5 * inputs["a"] @ inputs["b"].T
    options = {"domain": MS, "alpha": 0.5, "transB": 1}
    for activation, wanted in (
        ("Relu", np.maximum(product, 0)),
        ("Softmax", np.exp(product) / np.exp(product).sum(-1, keepdims=True)),
    ):
        found = run("FusedMatMulActivation", inputs, activation=activation, **options)[2][0]
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_wrong_activations():
    inputs = {"x": X, "w": W}
    fails("U005", "FusedConv", inputs, domain=MS, activation="Swoosh")
    fails("M012", "FusedConv", inputs, domain=MS, activation="Relu", activation_params=[1.0])


# --- elementwise ----------------------------------------------------------------------------------

A, V = draw(2, 5, 8), draw(8)


@pytest.mark.parametrize(
    ("op", "inputs", "options"),
    [
        ("Gelu", {"x": A}, {}),
        ("BiasGelu", {"x": A, "b": V}, {}),
        ("FastGelu", {"x": A}, {}),
        ("FastGelu", {"x": A, "b": V}, {}),
        ("QuickGelu", {"x": A}, {}),
        ("QuickGelu", {"x": A}, {"alpha": 0.7}),
    ],
)
def test_activations(op, inputs, options):
    agrees(op, inputs, by="ort", domain=MS, native=False, **options)


@pytest.mark.parametrize(
    ("bias", "axis", "inner"),
    [((1, 4, 5), 2, 0), ((2, 1, 5), 2, 1), ((2, 5), 2, 1), ((4, 5), 1, 0)],
)
def test_bias_softmax(bias, axis, inner):
    """ONNX Runtime has it on GPUs only."""
    x, b = draw(2, 4, 5), draw(*bias)
    total = x.astype("f8") + (b[:, None] if bias == (2, 5) else b)
    axes = tuple(range(axis, 3))
    power = np.exp(total - total.max(axes, keepdims=True))
    options = {"axis": axis, "is_inner_broadcast": inner}
    found = run("BiasSoftmax", {"x": x, "b": b}, domain=MS, native=False, **options)[2][0]
    np.testing.assert_allclose(found, power / power.sum(axes, keepdims=True), rtol=1e-5, atol=1e-6)


def test_split_and_bias():
    """ONNX Runtime has them on GPUs only."""
    x, b, skip = draw(2, 5, 8), draw(8), draw(2, 5, 8)
    added = run("BiasAdd", {"x": x, "b": b, "s": skip}, domain=MS, native=False)[2][0]
    np.testing.assert_allclose(added, x + b + skip, rtol=1e-5, atol=1e-6)
    gate = run("Gelu", {"x": (x + b)[..., 4:]}, domain=MS, native=False)[2][0]
    found = run("BiasSplitGelu", {"x": x, "b": b}, domain=MS, native=False)[2][0]
    np.testing.assert_allclose(found, (x + b)[..., :4] * gate, rtol=1e-4, atol=1e-5)
    inputs = {"x": x, "b": b, "skip": skip, "ratio": np.float32(0.4), "training": np.array(False)}
    found = run("BiasDropout", inputs, domain=MS, native=False, known=("training",))[2][0]
    np.testing.assert_allclose(found, x + b + skip, rtol=1e-5, atol=1e-6)
