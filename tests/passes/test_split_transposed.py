from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import clew
from clew.ir.dims import SymDim
from clew.ir.module import Module
from clew.machine.target import target_of
from clew.passes.base import PassContext
from clew.passes.convolution.fold_scale_axis import FoldScaleAxis
from clew.passes.convolution.split_transposed import SplitTransposed


def network(
    kit: Any, data: tuple[Any, ...], weight: tuple[int, ...], *, given: bool = False, **attrs: Any
) -> Module:
    """A transposed convolution; with `given`, its weight is an input."""
    x, spatial = kit.var("x", *data), len(data) - 2
    held = kit.var("w", *weight) if given else kit.const(kit.random(*weight))
    made = kit.layer(f"nn.conv{spatial}d_transpose", x, held, **attrs)
    return kit.module([x, held] if given else [x], made)  # type: ignore[no-any-return]


def split(kit: Any, module: Module) -> list[str]:
    after = kit.apply(module, SplitTransposed())
    kit.same(module, after)
    return kit.op_names(after)  # type: ignore[no-any-return]


@pytest.mark.parametrize("size", [(5, 4), (1, 3), (2, 7)])
@pytest.mark.parametrize("window", [(1, 1), (2, 2), (3, 4), (5, 3)])
@pytest.mark.parametrize("strides", [(1, 1), (2, 2), (3, 1)])
@pytest.mark.parametrize("given", [False, True])
def test_sizes(kit: Any, size: Any, window: Any, strides: Any, given: bool) -> None:
    inner = 12 if given else 3
    module = network(kit, (2, inner, *size), (inner, 4, *window), given=given, strides=strides)
    names = split(kit, module)
    assert "nn.conv2d_transpose" not in names
    few = size == (1, 3)  # pixels of two images, half as many as channels
    assert ("nn.matmul" if given and few and strides != (1, 1) else "nn.conv2d") in names


@pytest.mark.parametrize(
    "attrs",
    [
        {"padding": (1, 1, 1, 1)},
        {"padding": (0, 2, 3, 1)},
        {"padding": (0, 0, 5, 5), "strides": (2, 2)},
        {"padding": (2, 2, 2, 2), "strides": (2, 2)},
        {"padding": (1, 1, 1, 1), "strides": (2, 2), "output_padding": (1, 1)},
        {"padding": (3, 0, 1, 2), "strides": (3, 2), "output_padding": (2, 0)},
        {"strides": (4, 5), "output_padding": (3, 4)},
        {"groups": 3},
        {"groups": 3, "strides": (2, 3), "padding": (1, 0, 2, 1)},
        {"groups": 3, "strides": (4, 4), "padding": (1, 0, 2, 1)},
    ],
    ids=str,
)
@pytest.mark.parametrize(("given", "inner"), [(False, 6), (True, 6), (True, 180)])
def test_options(kit: Any, attrs: dict[str, Any], given: bool, inner: int) -> None:
    """180 channels are twice as many as pixels, in each of three groups."""
    module = network(kit, (1, inner, 6, 5), (inner, 2, 3, 4), given=given, **attrs)
    assert "nn.conv2d_transpose" not in split(kit, module)


@pytest.mark.parametrize(("size", "window"), [((6, 5), (2, 2)), ((1, 1), (4, 4))])
def test_as_many_images_as_a_run_has(kit: Any, size: Any, window: Any) -> None:
    batch = SymDim.symbol("n")
    module = network(kit, (batch, 3, *size), (3, 4, *window), strides=(2, 2))
    assert "nn.conv2d_transpose" not in split(kit, module)


@pytest.mark.parametrize("spatial", [1, 2, 3])
@pytest.mark.parametrize(
    ("window", "attrs"),
    [
        (2, {"strides": 2}),
        (1, {"strides": 2}),
        (3, {"strides": 2, "padding": 1, "output_padding": 1}),
        (4, {"strides": 2, "padding": 1}),
        (8, {"strides": 4, "padding": 2}),
        (5, {"strides": 3, "padding": 0, "output_padding": 2}),
        (3, {"strides": 1, "padding": 1}),
    ],
    ids=str,
)
def test_images_of_any_size(kit: Any, spatial: int, window: int, attrs: dict[str, int]) -> None:
    sizes = tuple(SymDim.symbol(name) for name in "dhw"[-spatial:])
    each = {
        name: (value,) * (2 * spatial if name == "padding" else spatial)
        for name, value in attrs.items()
    }
    module = network(kit, (2, 3, *sizes), (3, 4, *(window,) * spatial), **each)
    assert f"nn.conv{spatial}d_transpose" not in split(kit, module)


@pytest.mark.parametrize("spatial", [1, 3])
def test_other_ranks(kit: Any, spatial: int) -> None:
    size, window = (5, 3, 4)[:spatial], (4, 2, 3)[:spatial]
    module = network(kit, (1, 3, *size), (3, 2, *window), strides=(2,) * spatial)
    assert f"nn.conv{spatial}d" in split(kit, module)


@pytest.mark.parametrize("attrs", [{}, {"padding": (1, 0, 0, 2)}, {"output_padding": (1, 0)}])
def test_an_image_of_one_pixel_is_a_row(kit: Any, attrs: dict[str, Any]) -> None:
    module = network(kit, (3, 5, 1, 1), (5, 4, 4, 4), strides=(2, 2), **attrs)
    names = split(kit, module)
    assert "nn.dense" in names
    assert "nn.conv2d" not in names


@pytest.mark.parametrize(
    ("weight", "count"),
    [((4, 3, 4, 4), 1), ((4, 16, 3, 3), 4), ((4, 3, 5, 5), 1), ((4, 3, 1, 1), 1)],
)
def test_one_convolution_where_few_taps_are_zeros(kit: Any, weight: Any, count: int) -> None:
    names = split(kit, network(kit, (1, 4, 6, 6), weight, strides=(2, 2)))
    assert names.count("nn.conv2d") == count


@pytest.mark.parametrize(("outer", "given", "names"), [
    (3, False, ["nn.conv2d"]), (16, False, 4 * ["nn.conv2d"]), (16, True, 4 * ["nn.conv2d"]),
    (3, True, ["nn.matmul"]),
])  # fmt: skip
def test_few_channels_share_vectors(kit: Any, outer: int, given: bool, names: list[str]) -> None:
    """The places of 3 channels fill one vector of 16; multiplied as they lie, the taps fill two."""
    module = network(kit, (1, 128, 9, 9), (128, outer, 3, 3), given=given, strides=(2, 2))
    after = SplitTransposed().run(module, PassContext(target=target_of("cpu-avx512")))
    kit.same(module, after)
    assert [n for n in kit.op_names(after) if n in ("nn.conv2d", "nn.matmul")] == names


@pytest.mark.parametrize("batch", [1, 2])
def test_results_of_places_are_written_side_by_side(kit: Any, batch: int) -> None:
    """Their concatenation is a view, so that one kernel puts all of them in order."""
    module = network(kit, (batch, 32, 9, 9), (32, 32, 3, 3), strides=(2, 2))
    kernels = clew.compile(module, target="cpu-avx512").kernels
    assert not any("concatenate" in kernel.name for kernel in kernels)


def test_results_that_padding_crops_at_some_sizes_are_left_alone(kit: Any) -> None:
    """A layer of height 2 has no results."""
    h = SymDim.symbol("h")
    module = network(kit, (1, 3, h, 5), (3, 4, 1, 1), padding=(1, 1, 1, 1))
    assert kit.apply(module, SplitTransposed()) is module


def test_images_that_were_reduced_before(kit: Any) -> None:
    """A pooled image may be empty, and then its results are, too."""
    halves = (SymDim.symbol("h") - 2) // 2 + 1
    module = network(kit, (1, 3, halves, 5), (3, 4, 2, 2), strides=(2, 2))
    assert "nn.conv2d" in kit.op_names(kit.apply(module, SplitTransposed()))


def test_others_are_left_alone(kit: Any) -> None:
    dilated = network(kit, (1, 3, 5, 5), (3, 4, 3, 3), dilation=(2, 1))
    nothing = network(kit, (1, 3, 5, 5), (3, 0, 2, 2))
    for module in (dilated, nothing):
        assert kit.apply(module, SplitTransposed()) is module


def test_strides_of_many_places_are_left_alone(kit: Any) -> None:
    """Each place would be a convolution; nearly all of them are cropped."""
    attrs = {"strides": (2, 1 << 24), "output_padding": (0, 6 - 3 * (1 << 24))}
    module = network(kit, (1, 2, 4, 4), (2, 3, 2, 2), **attrs)
    after = kit.apply(module, SplitTransposed())
    assert after is module
    x = kit.random(1, 2, 4, 4)
    (found,) = clew.compile(module, threads=1).run(x).values()
    assert found.shape == (1, 3, 8, 8)
    assert found[..., :2].any()
    assert not found[..., 2:].any()


def test_a_scale_moves_into_the_weight(kit: Any) -> None:
    x = kit.var("x", 1, 3, 5, 5)
    made = kit.layer("nn.conv2d_transpose", x, kit.const(kit.random(3, 4, 2, 2)), strides=(2, 2))
    scale = kit.const(kit.random(1, 4, 1, 1) + np.float32(2))
    module = kit.module([x], kit.layer("multiply", made, scale))
    after = kit.apply(module, FoldScaleAxis(), SplitTransposed())
    kit.same(module, after)
    assert "multiply" not in kit.op_names(after)
