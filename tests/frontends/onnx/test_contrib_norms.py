"""ONNX Runtime's normalizations, each with every option, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from .one_node import agrees, draw, fails, run

MS = "com.microsoft"
H = 24


def _skip(*options: str, shape: tuple[int, ...] = (2, 5, H)) -> dict[str, Any]:
    inputs: dict[str, Any] = {"x": draw(2, 5, H), "skip": draw(*shape), "gamma": draw(H)}
    inputs["beta"] = draw(H) if "beta" in options else None
    inputs["bias"] = draw(H) if "bias" in options else None
    return inputs


SKIPS = {
    "plain": _skip(),
    "beta": _skip("beta"),
    "bias": _skip("beta", "bias"),
    "bias, no beta": _skip("bias"),
    "skip of one row": _skip("beta", shape=(1, 5, H)),
    "skip without a batch": _skip("beta", "bias", shape=(5, H)),
}


@pytest.mark.parametrize("case", SKIPS)
def test_skip_layer_norm(case):
    agrees("SkipLayerNormalization", SKIPS[case], by="ort", domain=MS, native=False, epsilon=1e-3)


@pytest.mark.parametrize("case", ["plain", "bias, no beta", "skip without a batch"])
def test_skip_simplified_layer_norm(case):
    inputs = {n: a for n, a in SKIPS[case].items() if n != "beta"}
    agrees(
        "SkipSimplifiedLayerNormalization", inputs, by="ort", domain=MS, native=False, epsilon=1e-3
    )


@pytest.mark.parametrize("op", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
def test_the_sum_is_a_result(op):
    inputs = {"x": draw(2, 5, H), "skip": draw(2, 5, H), "gamma": draw(H)}
    agrees(op, inputs, by="ort", domain=MS, native=False, results=("y", "", "", "sum"))
    two_axes = {"x": draw(7, H), "skip": draw(7, H), "gamma": draw(H)}
    agrees(op, two_axes, by="ort", domain=MS, native=False, results=("y", "", "", "sum"))


@pytest.mark.parametrize("axis", [-1, 1])
def test_simplified_layer_norm(axis):
    scale = draw(*((H,) if axis == -1 else (5, H)))
    inputs = {"x": draw(2, 5, H), "scale": scale}
    agrees(
        "SimplifiedLayerNormalization",
        inputs,
        by="ort",
        opset=17,
        native=False,
        axis=axis,
        epsilon=1e-4,
    )
    agrees(
        "SimplifiedLayerNormalization", inputs, by="ort", opset=17, native=False, axis=axis, count=2
    )


def test_simplified_layer_norm_in_f16():
    inputs = {"x": draw(2, 5, H, dtype="f2"), "scale": draw(H, dtype="f2")}
    agrees(
        "SimplifiedLayerNormalization",
        inputs,
        by="ort",
        opset=17,
        native=False,
        rtol=2e-3,
        atol=2e-3,
    )


def _words(*options: str) -> dict[str, Any]:
    rng = np.random.default_rng(3)

    def ids(most: int, rows: int = 2) -> Any:
        return rng.integers(0, most, (rows, 6)).astype("i4")

    return {
        "words": ids(20),
        "segments": ids(2) if "segments" in options else None,
        "word table": draw(20, H),
        "position table": draw(9, H),
        "segment table": draw(2, H) if "segments" in options else None,
        "gamma": draw(H),
        "beta": draw(H),
        "mask": (ids(3) > 0).astype("i4") if "mask" in options else None,
        "places": ids(9, 1 if "one" in options else 2) if "places" in options else None,
    }


@pytest.mark.parametrize(
    "options",
    [(), ("segments",), ("segments", "mask"), ("mask", "places"), ("segments", "places", "one")],
    ids=" ".join,
)
def test_embed_layer_norm(options):
    agrees(
        "EmbedLayerNormalization",
        _words(*options),
        by="ort",
        domain=MS,
        native=False,
        results=("y", "lengths", "sum"),
        epsilon=1e-5,
    )


def test_wrong_norms():
    inputs = _skip(shape=(3, 2, 5, H))
    fails("M012", "SkipLayerNormalization", inputs, domain=MS)
    fails("M012", "EmbedLayerNormalization", {**_words(), "words": np.zeros(3, "i4")}, domain=MS)


# --- groups: ONNX Runtime has no kernel for CPUs, so these are held against numpy -----------------


def _grouped(x, gamma, beta, groups, epsilon, activation):
    """Returns GroupNorm of images with channels last."""
    n, c = x.shape[0], x.shape[-1]
    parts = x.astype("f8").reshape(n, -1, groups, c // groups)
    parts = parts - parts.mean((1, 3), keepdims=True)
    parts /= np.sqrt((parts**2).mean((1, 3), keepdims=True) + epsilon)
    y = parts.reshape(x.shape) * gamma + beta
    return y / (1 + np.exp(-y)) if activation else y


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("activation", [0, 1])
def test_group_norm(last, activation):
    x, gamma, beta = draw(2, 4, 3, 8), draw(8), draw(8)
    wanted = _grouped(x, gamma, beta, 4, 1e-3, activation)
    given = x if last else np.ascontiguousarray(np.moveaxis(x, -1, 1))
    inputs = {"x": given, "gamma": gamma, "beta": beta}
    options = {"groups": 4, "channels_last": last, "activation": activation, "epsilon": 1e-3}
    _, _, (y,) = run("GroupNorm", inputs, domain=MS, native=False, **options)
    np.testing.assert_allclose(y if last else np.moveaxis(y, 1, -1), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(2, 4, 3, 8), (2, 1, 1, 8), (2, 8)])
def test_skip_group_norm(shape):
    x, gamma, beta, skip, bias = draw(2, 4, 3, 8), draw(8), draw(8), draw(*shape), draw(8)
    total = x + (skip.reshape(2, 1, 1, 8) if len(shape) == 2 else skip) + bias
    inputs = {"x": x, "gamma": gamma, "beta": beta, "skip": skip, "bias": bias}
    options = {"groups": 2, "activation": 0, "epsilon": 1e-5}
    _, _, (y, s) = run("SkipGroupNorm", inputs, domain=MS, native=False, count=2, **options)
    np.testing.assert_allclose(s, total, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(y, _grouped(total, gamma, beta, 2, 1e-5, 0), rtol=1e-4, atol=1e-5)
