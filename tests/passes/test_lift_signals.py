"""1-D convolutions as convolutions of images: what follows them, and that values are kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import clew
from clew import te
from clew.ir.dims import SymDim
from clew.ir.expr import Call, If
from clew.ir.module import Module
from clew.ir.visit import free_vars, post_order
from clew.ops import registry
from clew.passes.convolution.lift_signals import LiftSignals
from clew.runtime.guard import GuardSide

LENGTHS = (1, 2, 15, 16, 17, 50)
N = SymDim.symbol("n")
TWOS = {"kernel": (2,), "strides": (2,), "padding": (1, 0), "dilation": (1,), "layout": "NCW"}

# channels of data and result, window, attributes
CASES: list[tuple[int, int, int, dict[str, Any]]] = [
    (16, 24, 3, {"padding": (1, 1)}),
    (3, 16, 7, {"padding": (3, 3), "strides": (2,)}),
    (32, 16, 3, {"padding": (4, 0), "dilation": (2,)}),
    (16, 1, 4, {"padding": (1, 2)}),
    (21, 45, 1, {"strides": (3,)}),
    (32, 32, 5, {"padding": (2, 2), "groups": 2}),
    (16, 16, 3, {"padding": (1, 1), "groups": 16}),
    (8, 16, 3, {"padding": (3, 2), "groups": 8, "strides": (2,), "dilation": (2,)}),
]


def conv(kit: Any, x: Any, channels: int, window: int = 3, **attrs: Any) -> Any:
    """A convolution with a constant weight; without attributes, it keeps the length."""
    attrs = attrs or {"padding": (window // 2, window // 2)}
    shape = channels, x.tensor.shape[1] // attrs.get("groups", 1), window
    weight = kit.random(*shape, seed=window) / np.float32(4)
    return kit.layer("nn.conv1d", x, kit.const(weight), **attrs)


def network(kit: Any, inputs: int, channels: int, window: int, attrs: Any) -> Any:
    """A convolution with a tail, one that takes its result, and a skip connection."""
    x = kit.var("x", 2, inputs, N)
    y = conv(kit, x, channels, window, **attrs)
    y = kit.layer("nn.relu", kit.layer("add", y, kit.const(kit.random(channels, 1))))
    z = kit.layer("add", conv(kit, y, channels), y)
    return kit.module([x], z, kit.layer("mean", y, axes=(2,)))


def lifted(kit: Any, *outputs: Any) -> Module:
    """The lifted module; it has the same outputs."""
    given = kit.module(free_vars(outputs), *outputs)
    after = kit.apply(given, LiftSignals())
    kit.same(given, after)
    return after


def images(module: Module) -> list[str]:
    """Names of the operators whose results are images, but for those that only make an image."""
    calls = [n for n in post_order(module.main, into_functions=True) if isinstance(n, Call)]
    return [c.op_name for c in calls if c.tensor.rank == 4 and c.op_name != "reshape"]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_are_kept(kit: Any, case: Any) -> None:
    given = network(kit, *case)
    after = kit.apply(given, LiftSignals())
    names = kit.op_names(after)
    assert (names.count("nn.conv1d"), names.count("nn.conv2d")) == (0, 2)
    assert names.count("reshape") == 4  # of the data, the bias, and for `mean` and the output
    for length in LENGTHS:
        x = {"x": kit.random(2, case[0], length)}
        for a, b in zip(kit.interpret(given, x), kit.interpret(after, x), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("n", range(len(CASES)))
def test_native_code(kit: Any, n: int) -> None:
    given = network(kit, *CASES[n])
    compiled = clew.compile(
        given, threads=1, diagnostics=clew.Diagnostics(guard=list(GuardSide)[n % 2])
    )
    for length in LENGTHS:
        x = {"x": kit.random(2, CASES[n][0], length, seed=length)}
        found = compiled.run(x).values()
        for a, b in zip(kit.interpret(given, x), found, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    assert compiled.builds_made == 1
    assert compiled.trace.verify(x).ok
    assert not {"nn.conv1d"} & set(kit.op_names(compiled.build.stages[-1].module))


# All sizes are 3, so an operand along the wrong axis changes no shape.
@pytest.mark.parametrize(
    "shape", [(3, 1), (1, 3, 1), (3, 1, 1), (3, 3, N), (1, N), (3, N), (N,), (1,), ()], ids=str
)
def test_broadcast_operands(kit: Any, shape: Any) -> None:
    operand = kit.var("operand", *shape)
    y = conv(kit, kit.var("x", 3, 3, N), 3)
    y = kit.layer("multiply", kit.layer("subtract", operand, y), operand)
    y = kit.layer("where", kit.layer("greater", operand, y), y, operand)
    after = lifted(kit, conv(kit, y, 3))
    assert images(after) == ["nn.conv2d", "subtract", "multiply", "greater", "where", "nn.conv2d"]


@pytest.mark.parametrize(("name", "count"), [("nn.batch_norm", 4), ("nn.instance_norm", 2)])
def test_operands_of_channels(kit: Any, name: str, count: int) -> None:
    """Operands of one axis need not be along the signal."""
    scales = [kit.const(np.abs(kit.random(3, seed=n)), f"scale{n}") for n in range(count)]
    y = kit.layer(name, conv(kit, kit.var("x", 3, 3, N), 3), *scales)
    assert images(lifted(kit, conv(kit, y, 3))) == ["nn.conv2d", name, "nn.conv2d"]


@pytest.mark.parametrize(("axis", "images_"), [(1, 1), (-2, 1), (2, 0), (-1, 0)])
def test_concatenations(kit: Any, axis: int, images_: int) -> None:
    """Those of channels are part of a chain; those of signals are not."""
    x, other = kit.var("x", 2, 4, N), kit.var("other", 2, 4, N)
    y = kit.layer("concatenate", conv(kit, x, 4), other, axis=axis)
    after = lifted(kit, conv(kit, y, 4))
    assert images(after) == ["nn.conv2d", *["concatenate"] * images_, "nn.conv2d"]


@pytest.mark.parametrize(
    ("name", "attrs"),
    [
        ("nn.max_pool2d", {}),
        ("nn.max_pool2d", {"kernel": (2,), "dilation": (2,), "padding": (0, 1), "strides": (1,)}),
        ("nn.avg_pool2d", {"ceil_mode": True}),
        ("nn.avg_pool2d", {"count_include_pad": True, "kernel": (3,), "padding": (1, 2)}),
    ],
    ids=str,
)
def test_pooling(kit: Any, name: str, attrs: Any) -> None:
    pooled = kit.layer(name, conv(kit, kit.var("x", 2, 4, 13), 4), **TWOS | attrs)
    after = lifted(kit, conv(kit, pooled, 4))
    assert kit.op_names(after) == ["reshape", "nn.conv2d", name, "nn.conv2d", "reshape"]


def test_chains_begin_with_convolutions(kit: Any) -> None:
    x = kit.var("x", 2, 4, N)
    pooled = kit.layer("nn.max_pool2d", kit.layer("nn.relu", x), **TWOS)
    given = kit.module([x], kit.layer("concatenate", pooled, pooled, axis=1))
    assert kit.apply(given, LiftSignals()) is given


def test_values_are_converted_once(kit: Any) -> None:
    """A value that is not lifted is added twice, and a lifted one is read outside of the chain."""
    x, other = kit.var("x", 2, 4, N), kit.layer("exp", kit.var("other", 2, 4, N))
    y = kit.layer("add", kit.layer("add", conv(kit, x, 4), other), x)
    z = kit.layer("multiply", y, other)
    outside = [kit.layer("nn.softmax", y, axis=axis) for axis in (1, -1)]
    after = lifted(kit, z, y, *outside, kit.layer("transpose", y, axes=(0, 2, 1)), other)
    assert images(after) == ["nn.conv2d", "add", "add", "multiply"]
    assert kit.op_names(after).count("reshape") == 4  # x and other, y and z


def test_weights_that_are_no_constants(kit: Any) -> None:
    """They become weights of images by a reshape; those of free size stay as they are."""
    x, weight = kit.var("x", 2, 4, N), kit.var("weight", 4, 4, 3)
    given = kit.module([x, weight], kit.layer("nn.relu", kit.layer("nn.conv1d", x, weight)))
    after = kit.apply(given, LiftSignals())
    assert images(after) == ["nn.conv2d", "nn.relu"]
    free = kit.var("weight", 4, 4, SymDim.symbol("window"))
    other = kit.module([x, free], kit.layer("nn.conv1d", x, free))
    assert kit.apply(other, LiftSignals()) is other
    compiled = clew.compile(given, threads=1)
    for length in (3, 17, 100):  # few pixels, or enough for weights to be packed in the run
        inputs = {"x": kit.random(2, 4, length), "weight": kit.random(4, 4, 3)}
        (found,) = compiled.run(inputs).values()
        np.testing.assert_allclose(*kit.interpret(given, inputs), found, rtol=1e-4, atol=1e-4)


def test_branches(kit: Any) -> None:
    """Functions take and return signals, even if their result is a convolution."""
    x, on, a, b = (kit.var(name, 2, 4, N) for name in ("x", "on", "a", "b"))
    then = kit.function([a], conv(kit, a, 4))
    orelse = kit.function([b], kit.layer("negative", b))
    cond = kit.layer("greater", kit.layer("max", on, axes=(0, 1, 2)), kit.const(np.float32(0)))
    y = conv(kit, x, 4)
    given = kit.module([x, on], conv(kit, If(cond, then, orelse, [y], span=x.span), 4))
    after = kit.apply(given, LiftSignals())
    assert kit.op_names(after).count("nn.conv2d") == 3
    for sign in (-1, 1):
        inputs = {"x": kit.random(2, 4, 5), "on": np.full((2, 4, 5), sign, np.float32)}
        (expected,), (found,) = kit.interpret(given, inputs), kit.interpret(after, inputs)
        np.testing.assert_allclose(expected, found, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "attrs"),
    [
        ("reshape", {"shape": (1, 5, 1)}),
        ("tile", {"repeats": (1, 3, 1)}),
        ("broadcast_to", {"shape": (4, 1, 5)}),
        ("nn.softmax", {"axis": 2}),
    ],
)
def test_shapes_and_axes_are_those_of_signals(kit: Any, name: str, attrs: Any) -> None:
    y = kit.layer(name, conv(kit, kit.var("x", 1, 1, 5), 1), **attrs)
    assert images(lifted(kit, conv(kit, y, 4))) == ["nn.conv2d", "nn.conv2d"]


@pytest.mark.parametrize(
    ("body", "shape"),
    [
        (lambda x, s: lambda *i: x[i] * s[i[2]], (3,)),
        (lambda x, s: lambda n, c, w: x[n, c, w] * s[c], (3,)),
        (lambda x, s: lambda *i: x[i] * s[i[0], i[1]], (3, 3)),
    ],
    ids=["along signals", "along channels", "along the batch"],
)
def test_a_user_s_operator_names_axes(
    kit: Any, body: Any, shape: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))

    @clew.register_op("user.scaled")
    def scaled(x: te.Tensor, s: te.Tensor) -> te.Tensor:
        """`x` times `s`, which has some of its axes."""
        return te.compute(x.shape, body(x, s), "scaled")

    y = conv(kit, kit.var("x", 3, 3, 3), 3)
    lifted(kit, conv(kit, kit.layer("user.scaled", y, kit.var("s", *shape)), 3))
