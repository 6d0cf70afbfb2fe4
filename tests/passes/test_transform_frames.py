"""Convolutions whose weights are Fourier bases: which are found, values, and layers of kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import clew
from clew.passes.convolution.transform_frames import TransformFrames

LENGTH = 64


def basis(window: Any, *, length: int = LENGTH) -> np.ndarray:
    angles = 2 * np.pi / length * (np.outer(np.arange(length // 2 + 1), np.arange(length)) % length)
    waves = np.concatenate([np.cos(angles), -np.sin(angles)])
    return (waves * window).astype("f4")[:, None]


def spectra(kit: Any, weight: np.ndarray, **attrs: Any) -> Any:
    x = kit.var("x", 2, weight.shape[1], 300)
    return kit.module([x], kit.layer("nn.conv1d", x, kit.const(weight), **attrs))


def is_taken(kit: Any, weight: np.ndarray, **attrs: Any) -> bool:
    after = kit.apply(spectra(kit, weight, **attrs), TransformFrames())
    return "dft" in kit.op_names(after)


@pytest.mark.parametrize("window", [np.ones, np.hanning, np.blackman, np.hamming])
@pytest.mark.parametrize("attrs", [{"strides": [16]}, {"strides": [7], "padding": [5, 3]}])
def test_values_are_kept(kit: Any, window: Any, attrs: Any) -> None:
    rng = np.random.default_rng(0)
    weight = basis(window(LENGTH))
    signs = rng.choice([-1, 1], len(weight)).astype("f4")
    signs[0] = 1  # the window
    weight = (weight * signs[:, None, None])[rng.permutation(len(weight))][:50]
    given = spectra(kit, np.concatenate([basis(window(LENGTH))[:1], weight]), **attrs)
    after = kit.apply(given, TransformFrames())
    assert "dft" in kit.op_names(after)
    assert "nn.conv1d" not in kit.op_names(after)
    x = {"x": kit.random(2, 1, 300)}
    for a, b in zip(kit.interpret(given, x), kit.interpret(after, x), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-5)


def test_kernels_belong_to_the_layer(kit: Any) -> None:
    given = spectra(kit, basis(np.hanning(LENGTH)), strides=[16])
    model = clew.compile(given, threads=1)
    assert any("fourier" in kernel.ops for kernel in model.kernels)
    (layer,) = {layer for kernel in model.kernels for layer in kernel.layers}
    assert "conv1d" in layer
    x = {"x": kit.random(2, 1, 300)}
    (found,), (expected,) = model.run(x).values(), kit.interpret(given, x)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)


def test_other_weights_stay(kit: Any) -> None:
    weight = basis(np.hanning(LENGTH))
    assert is_taken(kit, weight)
    for row, place in ((0, 9), (3, 5), (33, 20), (40, 63)):
        wrong = weight.copy()
        wrong[row, 0, place] += 1e-5
        assert not is_taken(kit, wrong)
    for number in (np.nan, np.inf):
        wrong = weight.copy()
        wrong[2, 0, 2] = number
        assert not is_taken(kit, wrong)
    scaled = weight * np.linspace(1, 2, len(weight), dtype="f4")[:, None, None]
    assert not is_taken(kit, scaled)
    assert not is_taken(kit, np.zeros_like(weight))
    assert not is_taken(kit, np.random.default_rng(0).standard_normal(weight.shape).astype("f4"))


def test_other_convolutions_stay(kit: Any) -> None:
    weight = basis(np.hanning(LENGTH))
    assert not is_taken(kit, weight, dilation=[2])
    assert not is_taken(kit, np.concatenate([weight, weight], 1))
    assert not is_taken(kit, weight[:20])  # few filters
    assert not is_taken(kit, basis(np.ones(62), length=62))  # a product is as fast
