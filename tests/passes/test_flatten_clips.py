"""3-D convolutions as convolutions of images: what follows them, and that values are kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import clew
from clew.ir.dims import SymDim
from clew.passes.convolution.flatten_clips import FlattenClips
from clew.runtime.guard import GuardSide

# shape of the data, output channels, window, attributes
CASES: list[tuple[tuple[int, ...], int, tuple[int, int, int], dict[str, Any]]] = [
    ((1, 16, 5, 9, 7), 24, (1, 3, 3), {"padding": (0, 1, 1, 0, 1, 1)}),
    ((2, 16, 5, 9, 7), 16, (3, 1, 1), {"padding": (1, 0, 0, 1, 0, 0)}),
    ((1, 3, 6, 11, 13), 45, (3, 7, 7), {"padding": (1, 3, 3, 1, 3, 3), "strides": (1, 2, 2)}),
    ((1, 45, 4, 5, 6), 32, (3, 1, 1), {"padding": (1, 0, 0, 1, 0, 0), "strides": (2, 1, 1)}),
    ((3, 32, 1, 6, 6), 16, (3, 3, 3), {"padding": (1, 1, 1, 1, 1, 1)}),
    ((2, 8, 7, 5, 5), 8, (2, 3, 2), {"padding": (2, 0, 1, 0, 2, 0), "dilation": (2, 1, 2)}),
    ((1, 32, 4, 6, 6), 21, (1, 1, 1), {"strides": (2, 2, 2)}),
    ((2, 16, 3, 6, 5), 16, (1, 3, 3), {"padding": (0, 1, 1, 0, 1, 1), "groups": 16}),
    ((2, 16, 3, 6, 5), 16, (3, 3, 3), {"padding": (1, 1, 1, 1, 1, 1), "groups": 2}),
    ((2, 6, 3, 6, 5), 16, (3, 3, 3), {"padding": (1, 1, 1, 1, 1, 1), "groups": 2}),
    ((1, 6, 3, 6, 5), 9, (3, 3, 3), {"padding": (1, 1, 1, 1, 1, 1), "groups": 3}),
    ((1, 6, 3, 6, 5), 6, (3, 3, 3), {"padding": (1, 1, 1, 1, 1, 1), "groups": 6}),
    ((1, 6, 3, 6, 5), 1, (3, 1, 3), {}),
]


def network(kit: Any, shape: Any, channels: int, window: Any, attrs: Any) -> Any:
    """A convolution with a tail, one that takes its result, and a skip connection."""
    x = kit.var("x", *shape)
    weight = kit.random(channels, shape[1] // attrs.get("groups", 1), *window, seed=3)
    y = kit.layer("nn.conv3d", x, kit.const(weight / np.float32(9)), **attrs)
    y = kit.layer("nn.relu", kit.layer("add", y, kit.const(kit.random(channels, 1, 1, 1))))
    again = kit.const(kit.random(channels, channels, 1, 3, 1, seed=5) / np.float32(9))
    z = kit.layer("nn.conv3d", y, again, padding=(0, 1, 0, 0, 1, 0))
    return kit.module([x], kit.layer("add", z, y), kit.layer("mean", y, axes=(2, 3, 4)))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_are_kept(kit: Any, case: Any) -> None:
    given = network(kit, *case)
    after = kit.apply(given, FlattenClips())
    unfilled = case[3].get("groups", 1) in (3, 6)  # by three channels, and by one
    assert ("nn.conv3d" in kit.op_names(after)) is unfilled
    kit.same(given, after)


@pytest.mark.parametrize("n", range(len(CASES)))
def test_native_code(kit: Any, n: int) -> None:
    case, side = CASES[n], list(GuardSide)[n % 2]
    given = network(kit, *case)
    x = kit.random(*case[0], seed=7)
    compiled = clew.compile(given, threads=1, diagnostics=clew.Diagnostics(guard=side))
    found = compiled.run({"x": x})
    for a, b in zip(kit.interpret(given, {"x": x}), found.values(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    assert compiled.trace.verify({"x": x}).ok


def test_frames_stay_frames_from_layer_to_layer(kit: Any) -> None:
    x = kit.var("x", 1, 8, 4, 6, 6)
    weights = [kit.const(kit.random(8, 8, *window)) for window in ((1, 3, 3), (3, 1, 1))]
    y = kit.layer("nn.conv3d", x, weights[0], padding=(0, 1, 1, 0, 1, 1))
    y = kit.layer("multiply", y, kit.const(np.float32(2)))
    y = kit.layer("add", y, kit.const(kit.random(1, 8, 1, 1, 1)))
    pool = {"kernel": (1, 2, 2), "strides": (1, 2, 2), "padding": (0,) * 6, "dilation": (1, 1, 1)}
    y = kit.layer("nn.max_pool2d", y, layout="NCDHW", **pool)
    gate = kit.layer("nn.conv3d", kit.layer("nn.relu", y), weights[1], padding=(1, 0, 0, 1, 0, 0))
    y = kit.layer("concatenate", y, kit.layer("sigmoid", gate), axis=1)
    given = kit.module([x], y)
    after = kit.apply(given, FlattenClips())
    assert kit.op_names(after).count("transpose") == 2  # in and out
    kit.same(given, after)


def test_what_is_broadcast_along_frames_is_plain(kit: Any) -> None:
    """A gate for each clip, and one for each frame of all clips."""
    x = kit.var("x", 2, 8, 4, 6, 6)
    y = kit.layer("nn.conv3d", x, kit.const(kit.random(8, 8, 3, 1, 1)))
    for gate in (kit.var("clip", 2, 8, 1, 1, 1), kit.var("frame", 2, 1, 1)):
        given = kit.module([x, gate], kit.layer("nn.relu", kit.layer("multiply", y, gate)))
        kit.same(given, kit.apply(given, FlattenClips()))


def test_free_sizes_wait_for_the_run(kit: Any) -> None:
    x = kit.var("x", SymDim.symbol("batch"), 4, SymDim.symbol("frames"), 6, 6)
    weight = kit.const(kit.random(8, 4, 3, 3, 3))
    given = kit.module([x], kit.layer("nn.conv3d", x, weight, padding=(1,) * 6))
    assert kit.apply(given, FlattenClips()) is given
    compiled = clew.compile(given, threads=1)
    for size in ((1, 4, 1, 6, 6), (2, 4, 3, 6, 6)):
        data = kit.random(*size)
        (expected,) = kit.interpret(given, {"x": data})
        (found,) = compiled.run({"x": data}).values()
        np.testing.assert_allclose(expected, found, rtol=1e-4, atol=1e-4)
