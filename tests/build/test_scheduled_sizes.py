"""One build for all sizes of images and queries whose kernels have schedules of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from free_models import builds, close, compiled, drawn, made, reference
from onnx import helper

from clew.backends.compile_options import Diagnostics
from clew.runtime.guard import GuardSide

pytestmark = pytest.mark.usefixtures("shared_kernels")

Size = int | str
TARGETS = ("cpu", "cpu-avx2", "cpu-avx512")


def spread(cases: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Returns the cases on all targets: now on one of them, now on another; the rest is exhaustive,
    because each takes seconds to compile.
    """
    return [
        pytest.param(*case, target, marks=[pytest.mark.exhaustive] if (n + k) % 3 else [])
        for n, case in enumerate(cases)
        for k, target in enumerate(TARGETS)
    ]


def tiled(n: Size = "n", h: Size = "h", w: Size = "w", channels: int = 32) -> bytes:
    """A convolution that is computed by Winograd's method."""
    node = helper.make_node("Conv", ["x", "f"], ["y"], pads=[1, 1, 1, 1])
    weight = drawn(channels, channels, 3, 3) / (3 * channels**0.5)
    return made([node], {"x": [n, channels, h, w]}, ["y"], f=weight)


def bordered() -> bytes:
    """Windows whose borders move with the size of the image, and sums over images and lines."""
    pool = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    nodes = [
        helper.make_node("MaxPool", ["x"], ["largest"], strides=[2, 2], **pool),
        helper.make_node("AveragePool", ["x"], ["mean"], **pool),
        helper.make_node("AveragePool", ["x"], ["wide"], kernel_shape=[1, 5], pads=[0, 2, 0, 2],
                         strides=[1, 3], count_include_pad=1),
        helper.make_node("Conv", ["x", "w"], ["dilated"], pads=[2, 3, 2, 3], dilations=[2, 3]),
        helper.make_node("InstanceNormalization", ["x", "scale", "bias"], ["normal"]),
        helper.make_node("Softmax", ["x"], ["share"], axis=3),
        helper.make_node("ReduceMax", ["x", "axes"], ["most"], keepdims=0),
        helper.make_node("GlobalAveragePool", ["dilated"], ["total"]),
    ]  # fmt: skip
    outputs = ["largest", "mean", "wide", "dilated", "normal", "share", "most", "total"]
    return made(
        nodes, {"x": ["n", 32, "h", "width"]}, outputs, w=drawn(32, 32, 3, 3) / 17,
        scale=drawn(32), bias=drawn(32), axes=np.array([2, 3]),
    )  # fmt: skip


def attended() -> bytes:
    """Attention of one head with a free number of queries."""
    nodes = [
        helper.make_node("MatMul", ["q", "k"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "v"], ["y"]),
    ]
    return made(
        nodes, {"q": [1, 1, "n", 20], "k": [1, 1, 20, 40], "v": [1, 1, 40, 20]}, ["y"]
    )  # fmt: skip


def test_winograd_convolutions() -> None:
    data = tiled()
    model = compiled(data, cache=False)
    for n, h, w in ((1, 32, 32), (2, 7, 13), (1, 1, 1), (1, 65, 30)):
        feeds = {"x": drawn(n, 32, h, w)}
        close(model.run(feeds), reference(data, feeds))
    assert model.builds_made == 1


@pytest.mark.parametrize(
    ("sizes", "channels", "side", "target"),
    spread([
        (("n", 7, 7), 256, GuardSide.END),
        (("n", 14, 14), 256, GuardSide.START),
        (("n", 24, 24), 64, GuardSide.END),
        (("n", 56, 56), 64, GuardSide.START),
        (("n", 3, 101), 64, GuardSide.END),
        (("n", 55, 57), 32, GuardSide.END),
        (("n", "h", 56), 64, GuardSide.END),
        ((1, 56, "w"), 64, GuardSide.START),
        ((2, "h", 7), 256, GuardSide.END),
    ]),
)  # fmt: skip
def test_winograd_convolutions_with_some_free_sizes(
    sizes: tuple[Size, Size, Size],
    channels: int,
    side: GuardSide,
    target: str,
    runs_here: Callable[[Any], None],
) -> None:
    runs_here(target)
    data = tiled(*sizes, channels)
    model = compiled(data, threads=2, target=target, diagnostics=Diagnostics(guard=side))
    for free in ((1, 1, 1), (2, 56, 7), (5, 57, 56), (17, 3, 101), (3, 40, 33)):
        n, h, w = (at if isinstance(s, str) else s for s, at in zip(sizes, free, strict=True))
        feeds = {"x": drawn(n, channels, h, w)}
        close(model.run(feeds), reference(data, feeds))
    assert builds(model) == 1


@pytest.mark.parametrize(
    ("threads", "side", "target"), spread([(1, GuardSide.END), (2, GuardSide.START)])
)
def test_borders_of_images(
    threads: int, side: GuardSide, target: str, runs_here: Callable[[Any], None]
) -> None:
    runs_here(target)
    data = bordered()
    model = compiled(data, threads=threads, target=target, diagnostics=Diagnostics(guard=side))
    sizes = [(1, 1), (2, 3), (9, 7), (1, 31), (16, 16), (31, 33), (64, 17), (7, 97), (33, 130)]
    for n, (h, w) in enumerate(sizes, 1):
        feeds = {"x": drawn(1 + n % 2, 32, h, w)}
        close(model.run(feeds), reference(data, feeds))
    assert builds(model) == 1


@pytest.mark.parametrize("target", TARGETS)
def test_attention_of_one_head(target: str, runs_here: Callable[[Any], None]) -> None:
    runs_here(target)
    data = attended()
    model = compiled(data, threads=2, target=target, diagnostics=Diagnostics(guard=GuardSide.END))
    for n in (1, 2, 3, 7, 16, 40, 101):
        feeds = {"q": drawn(1, 1, n, 20), "k": drawn(1, 1, 20, 40), "v": drawn(1, 1, 40, 20)}
        close(model.run(feeds), reference(data, feeds))
    assert builds(model) == 1
