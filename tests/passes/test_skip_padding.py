"""Convolutions without products of padding: which, and that they give what they gave."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import clew
from clew.ir.dims import SymDim, value_at
from clew.ir.expr import Call
from clew.ir.visit import post_order
from clew.passes.convolution.skip_padding import SkipPadding
from clew.pipelines import pipeline
from clew.runtime.guard import GuardSide

ALWAYS = SkipPadding(min_gain=0.0)


def network(kit: Any, shape: tuple[int, ...], channels: int, *window: int, **attrs: Any) -> Any:
    x = kit.var("x", *shape)
    weight = kit.random(channels, shape[1] // attrs.get("groups", 1), *window, seed=3)
    op = f"nn.conv{len(window)}d"
    y = kit.layer(op, x, kit.const(weight / np.float32(9)), **attrs)
    return kit.module([x], kit.layer("nn.relu", y))


def dilated(rate: int) -> dict[str, Any]:
    return {"padding": (rate,) * 4, "dilation": (rate,) * 2}


@pytest.mark.parametrize(
    ("size", "attrs", "convs", "taps"),
    [
        ((28, 28), dilated(36), 1, (1, 1)),
        ((28, 28), dilated(24), 9, (1, 1)),
        ((28, 28), dilated(2), 1, (3, 3)),
        ((56, 56), dilated(1), 1, (3, 3)),
        ((28, 56), {"padding": (36, 1, 36, 1), "dilation": (36, 1)}, 1, (1, 3)),
        ((28, 56), {"padding": (20, 1, 20, 1), "dilation": (20, 1)}, 3, (1, 3)),
    ],
)
def test_which_convolutions(
    kit: Any, size: tuple[int, int], attrs: Any, convs: int, taps: tuple[int, int]
) -> None:
    given = network(kit, (1, 256, *size), 64, 3, 3, **attrs)
    after = kit.apply(given, SkipPadding())
    assert kit.op_names(after).count("nn.conv2d") == convs
    assert (after is given) is (taps == (3, 3))
    calls = (n for n in post_order(after.main) if isinstance(n, Call))
    windows = {n.args[1].tensor.shape[2:] for n in calls if n.op_name == "nn.conv2d"}
    assert windows == {taps}


CASES: list[tuple[tuple[int, ...], int, tuple[int, ...], dict[str, Any]]] = [
    ((1, 16, 7, 9), 8, (3, 3), {"padding": (5, 6, 4, 3), "dilation": (4, 5)}),
    ((2, 8, 6, 5), 21, (3, 3), {"padding": (4, 4, 4, 4), "dilation": (4, 4), "strides": (2, 3)}),
    ((1, 8, 3, 3), 8, (5, 4), {"padding": (9, 2, 0, 8), "dilation": (2, 3), "strides": (1, 2)}),
    ((1, 8, 2, 2), 8, (3, 3), {"padding": (1, 1, 1, 1), "strides": (2, 2)}),
    ((2, 16, 1, 1), 16, (3, 3), {"padding": (1, 1, 1, 1)}),
    ((1, 16, 5, 5), 16, (3, 3), {"padding": (6, 6, 6, 6), "dilation": (6, 6), "groups": 16}),
    ((1, 8, 2, 9), 8, (2, 1), {"padding": (4, 0, 0, 0), "strides": (3, 1)}),
    ((1, 8, 5), 8, (3,), {"padding": (7, 7), "dilation": (7,)}),
    ((1, 8, 2, 6, 6), 8, (3, 3, 3), {"padding": (2, 1, 1, 2, 1, 1), "dilation": (2, 1, 1)}),
    ((1, 8, 4, 4), 8, (3, 3), {"padding": (20, 0, 0, 0), "dilation": (1, 1)}),
]


@pytest.mark.parametrize("options", [SkipPadding(), ALWAYS], ids=["worth it", "always"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_are_kept(kit: Any, case: Any, options: SkipPadding) -> None:
    shape, channels, window, attrs = case
    given = network(kit, shape, channels, *window, **attrs)
    kit.same(given, kit.apply(given, options))


@pytest.mark.parametrize("n", range(len(CASES)))
def test_native_code(kit: Any, n: int) -> None:
    shape, channels, window, attrs = CASES[n]
    given = network(kit, shape, channels, *window, **attrs)
    x = kit.random(*shape, seed=7)
    passes = [ALWAYS if p.name == "SkipPadding" else p for p in pipeline()]
    compiled = clew.compile(
        given, passes=passes, threads=1, diagnostics=clew.Diagnostics(guard=list(GuardSide)[n % 2])
    )
    (expected,) = kit.interpret(given, {"x": x})
    (found,) = compiled.run({"x": x}).values()
    np.testing.assert_allclose(expected, found, rtol=1e-4, atol=1e-4)
    assert compiled.trace.verify({"x": x}).ok


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_weights_that_are_not_finite_meet_padding(kit: Any, bad: float) -> None:
    """Their products with zeros are NaN."""
    x = kit.var("x", 1, 4, 5, 5)
    weight = kit.random(8, 4, 3, 3)
    weight[2, 1, 0, 0] = bad
    given = kit.module([x], kit.layer("nn.conv2d", x, kit.const(weight), **dilated(7)))
    assert kit.apply(given, SkipPadding()) is given


def test_a_window_that_meets_no_pixel(kit: Any) -> None:
    """All of its places are padding, or pixels between its taps."""
    given = network(kit, (1, 8, 1, 5), 8, 2, 1, padding=(2, 0, 2, 0), dilation=(4, 1))
    assert kit.apply(given, SkipPadding()) is given


LONG: list[tuple[tuple[int, ...], int, tuple[int, ...], dict[str, Any]]] = [
    ((1, 16, 0), 16, (64,), {"padding": (32, 32), "groups": 4}),
    ((2, 16, 0), 8, (9,), {"padding": (3, 7)}),
    ((1, 8, 0), 16, (8,), {"padding": (20, 20), "dilation": (5,)}),
    ((1, 16, 1, 0), 16, (1, 31), {"padding": (0, 15, 0, 15), "groups": 2}),
]


@pytest.mark.parametrize("case", LONG, ids=str)
def test_free_sizes(kit: Any, case: Any) -> None:
    """One build sums the taps that meet a pixel at the size of the call."""
    shape, channels, window, attrs = case
    free = (*shape[:-1], SymDim.symbol("w"))
    given = network(kit, free, channels, *window, **attrs)
    after = kit.apply(given, SkipPadding())
    (conv,) = (n for n in post_order(after.main) if isinstance(n, Call) and "conv" in n.op_name)
    (taps,) = (n for n in conv.attrs.live[len(window) :] if isinstance(n, SymDim))
    compiled = clew.compile(
        given,
        threads=1,
        diagnostics=clew.Diagnostics(guard=GuardSide.END),
        sizes=clew.Sizes(specialize=False),
    )
    counts = []
    for size in (1, 2, 3, 7, 20, 31, 33, 70, 200):
        x = kit.random(*shape[:-1], size, seed=size)
        (expected,) = kit.interpret(given, {"x": x})
        (found,) = compiled.run({"x": x}).values()
        np.testing.assert_allclose(expected, found, rtol=1e-4, atol=1e-4)
        counts.append(value_at(taps, {"w": size}))
    assert compiled.builds_made == 1
    assert counts == sorted(counts)
    assert counts[0] < counts[-1] == window[-1]


def test_taps_are_those_that_meet_a_pixel(kit: Any) -> None:
    """No live tap is left out, and none is kept that meets only padding."""
    given = network(kit, (1, 4, SymDim.symbol("w")), 4, 9, padding=(12, 5), dilation=(2,))
    after = kit.apply(given, SkipPadding())
    (conv,) = (n for n in post_order(after.main) if isinstance(n, Call) and "conv" in n.op_name)
    first, count = conv.attrs.live
    for size in range(1, 40):
        places = size + 12 + 5 - 16
        live = [
            tap
            for tap in range(9)
            if any(0 <= place + 2 * tap - 12 < size for place in range(places))
        ]
        if not live:
            continue
        at = {"w": size}
        # Between two taps that meet pixels, one may fall beyond a single pixel.
        assert value_at(first, at) <= live[0]
        assert value_at(first, at) + value_at(count, at) == live[-1] + 1


@pytest.mark.parametrize(("taps", "groups"), [(3, 1), (31, 4)])
def test_short_and_depthwise_windows_of_free_sizes_stay(kit: Any, taps: int, groups: int) -> None:
    shape = (1, 4, SymDim.symbol("w"))
    given = network(kit, shape, 4, taps, padding=(taps // 2,) * 2, groups=groups)
    assert kit.apply(given, SkipPadding()) is given


@pytest.mark.parametrize("size", [3, SymDim.symbol("w")], ids=["known", "free"])
def test_live_taps_that_are_given_stay(kit: Any, size: Any) -> None:
    given = network(kit, (1, 4, size), 4, 9, padding=(4, 4), live=(1, 7))
    assert kit.apply(given, SkipPadding()) is given
