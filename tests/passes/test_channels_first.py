"""Images with their channels last between convolutions: where transposes are left, and values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from clew.passes.convolution.channels_first import ChannelsFirst

FIRST, LAST = (0, 3, 1, 2), (0, 2, 3, 1)


def conv(kit: Any, x: Any, channels: int, seed: int) -> Any:
    """Returns a convolution of an image with its channels last, as files of TensorFlow have it."""
    weight = kit.random(channels, x.tensor.shape[-1], 3, 3, seed=seed) / np.float32(5)
    turned = kit.layer("transpose", x, axes=FIRST)
    y = kit.layer("nn.conv2d", turned, kit.const(weight), padding=(1, 1, 1, 1))
    return kit.layer("transpose", y, axes=LAST)


def transposes(kit: Any, module: Any) -> int:
    return int(kit.op_names(kit.apply(module, ChannelsFirst())).count("transpose"))


def bias(kit: Any, y: Any) -> Any:
    return kit.layer("add", y, kit.const(kit.random(y.tensor.shape[-1], seed=9)))


def chained(kit: Any) -> Any:
    """Bias, activation with a slope, padding of channels, a residual sum, a product of images."""
    x = kit.var("x", 2, 6, 5, 4)
    y = kit.layer("nn.relu", bias(kit, conv(kit, x, 8, 1)))
    slope = kit.const(kit.random(1, 1, 8, seed=4))
    y = kit.layer("nn.prelu", conv(kit, y, 8, 2), slope)
    y = kit.layer("pad", y, pads=(0, 1, 0, 0, 0, 2, 1, 4))
    z = conv(kit, y, 12, 3)
    y = kit.layer("add", z, y)
    y = kit.layer("multiply", y, kit.const(kit.random(1, 1, 6, 1, seed=5)))
    return kit.module([x], conv(kit, y, 4, 6))


def test_no_transpose_is_left_between_convolutions(kit: Any) -> None:
    assert transposes(kit, chained(kit)) == 2


def test_concatenations_follow(kit: Any) -> None:
    x = kit.var("x", 1, 6, 5, 4)
    a, b = conv(kit, x, 8, 1), conv(kit, x, 4, 2)
    y = kit.layer("concatenate", a, b, axis=-1)
    assert transposes(kit, kit.module([x], conv(kit, y, 4, 3))) == 3


def test_a_mean_over_pixels_needs_no_transpose(kit: Any) -> None:
    x = kit.var("x", 2, 6, 5, 4)
    y = kit.layer("nn.relu", conv(kit, x, 8, 1))
    pooled = kit.layer("mean", y, axes=(1, 2), keepdims=False)
    assert transposes(kit, kit.module([x], pooled)) == 1
    half = kit.layer("mean", y, axes=(1,), keepdims=False)
    assert transposes(kit, kit.module([x], half)) == 2


@pytest.mark.parametrize("op", ["reshape", "nn.softmax"])
def test_other_operators_get_their_layout(kit: Any, op: str) -> None:
    x = kit.var("x", 2, 6, 5, 4)
    y = kit.layer("nn.relu", conv(kit, x, 8, 1))
    attrs = {"shape": (2, 240)} if op == "reshape" else {"axis": -1}
    assert transposes(kit, kit.module([x], kit.layer(op, y, **attrs))) == 2


def test_nothing_begins_without_a_transpose(kit: Any) -> None:
    x = kit.var("x", 2, 6, 5, 4)
    given = kit.module([x], kit.layer("nn.relu", x))
    assert kit.apply(given, ChannelsFirst()) is given


@pytest.mark.parametrize("n", range(5))
def test_values_are_kept(kit: Any, n: int) -> None:
    x = kit.var("x", 2, 6, 5, 4)
    y = bias(kit, conv(kit, x, 8, 1))
    results = [
        lambda: chained(kit),
        lambda: kit.module([x], kit.layer("mean", y, axes=(1, 2), keepdims=False)),
        lambda: kit.module([x], kit.layer("concatenate", y, y, axis=-1)),
        lambda: kit.module([x], kit.layer("concatenate", y, y, axis=1)),
        lambda: kit.module([x], kit.layer("reshape", y, shape=(12, 40))),
    ]
    given = results[n]()
    kit.same(given, kit.apply(given, ChannelsFirst()))


@pytest.mark.parametrize("layout", ["NK", "KN"])
def test_a_dense_layer_over_all_elements_needs_no_transpose(kit: Any, layout: str) -> None:
    x = kit.var("x", 2, 6, 5, 4)
    y = kit.layer("nn.relu", conv(kit, x, 8, 1))
    shape = (7, 240) if layout == "NK" else (240, 7)
    weight = kit.const(kit.random(*shape, seed=2) / np.float32(8))
    flat = kit.layer("reshape", y, shape=(2, 240))
    dense = kit.layer("nn.dense", flat, weight, weight_layout=layout)
    assert transposes(kit, kit.module([x], dense)) == 1
    apart = kit.layer("reshape", y, shape=(4, 120))  # a row has half of an image
    weight = kit.const(kit.random(7, 120, seed=2))
    assert transposes(kit, kit.module([x], kit.layer("nn.dense", apart, weight))) == 2
