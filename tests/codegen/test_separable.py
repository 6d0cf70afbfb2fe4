"""Depthwise convolutions with pointwise ones around them in one kernel, at uneven sizes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import clew
import clew.ops
from clew.ir.expr import Call, Constant, Expr, Function, Tuple, Var
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.loop.interpret import interpret
from clew.loop.lower import lower
from clew.machine.target import Target, host
from clew.ops.registry import get_op
from clew.passes.fusion.fuse_ops import FuseOps
from clew.runtime.guard import GuardSide
from clew.schedules import schedule_kernel
from clew.te.tensor import Tensor, placeholder

pytestmark = pytest.mark.usefixtures("shared_kernels")

Array = np.ndarray[Any, Any]
LANES = host().vector_lanes("f32")
LAYOUT = f"NCHW{LANES}c"


@dataclass(frozen=True)
class Block:
    """Sizes of an inverted residual block, channels in blocks; 0 for a convolution that is not
    there.
    """

    size: tuple[int, int]
    given: int
    between: int
    result: int
    taps: int = 3
    stride: int = 1
    batch: int = 1
    dilation: int = 1
    tail: bool = True

    @property
    def windows(self) -> int:
        """Blocks of channels that windows slide over."""
        return self.between or self.given


BLOCKS = [
    Block((12, 20), 1, 3, 2),
    Block((12, 20), 2, 0, 1),
    Block((12, 20), 2, 0, 3),
    Block((16, 9), 1, 2, 0),
    Block((16, 9), 1, 1, 0, stride=2),
    Block((13, 17), 1, 3, 1, stride=2),
    Block((13, 17), 1, 2, 2, taps=5),
    Block((7, 7), 3, 0, 2),
    Block((15, 14), 1, 2, 1, dilation=2),
    Block((23, 1), 1, 3, 1),
    Block((1, 5), 1, 2, 2),
    Block((17, 16), 1, 3, 2, batch=2, tail=False),
    Block((10, 30), 2, 0, 2, taps=7, tail=False),
]


def _weights(b: Block) -> list[Array]:
    """Weights and biases in order, as the convolutions take them."""
    rng = np.random.default_rng(0)
    found: list[Array] = []

    def add(*shape: int, depth: int) -> None:
        found.append((rng.standard_normal(shape) / np.sqrt(depth)).astype("f4"))

    def bias(blocks: int) -> None:
        if b.tail:
            add(1, blocks, 1, 1, LANES, depth=4)

    if b.between:
        add(b.between, b.given, 1, 1, LANES, LANES, depth=b.given * LANES)
        bias(b.between)
    add(b.windows, 1, b.taps, b.taps, LANES, depth=b.taps * b.taps)
    bias(b.windows)
    if b.result:
        add(b.result, b.windows, 1, 1, LANES, LANES, depth=b.windows * LANES)
        bias(b.result)
    return found


def _image(b: Block) -> Array:
    rng = np.random.default_rng(1)
    return rng.standard_normal((b.batch, b.given, *b.size, LANES)).astype("f4")


def _layers(b: Block, x: Expr, weights: list[Expr]) -> Expr:
    """The block on given operands: bias and clipping behind each but the last convolution."""
    pending = list(weights)
    dense = {"weight_layout": f"OIHW{LANES}i{LANES}o"}
    channels = b.windows * LANES
    windows = {
        "weight_layout": f"OIHW{LANES}o", "groups": channels, "channels": channels,
        "strides": (b.stride, b.stride), "padding": (b.taps // 2 * b.dilation,) * 4,
        "dilation": (b.dilation, b.dilation),
    }  # fmt: skip
    layers: list[dict[str, Any]] = [dense] if b.between else []
    layers += [windows, dense] if b.result else [windows]
    y = x
    for n, attrs in enumerate(layers):
        y = get_op("nn.conv2d")(y, pending.pop(0), data_layout=LAYOUT, out_layout=LAYOUT, **attrs)
        if b.tail:
            y = get_op("add")(y, pending.pop(0))
            y = get_op("clip")(y, min=-0.5, max=1.0) if n + 1 < len(layers) else y
    residual = b.tail and isinstance(y.type, TensorType) and y.type.shape == x.tensor.shape
    return get_op("add")(y, x) if residual else y


def _type(array: Array) -> TensorType:
    return TensorType(array.shape, "f32", LAYOUT if array.shape[0] == 1 else "")


def _kernel(b: Block) -> Function:
    """The block as one primitive function."""
    arrays = [_image(b), *_weights(b)]
    params = [Var(f"p{n}", _type(a)) for n, a in enumerate(arrays)]
    body = _layers(b, params[0], list(params[1:]))
    return Function(params, body, {"primitive": True, "name": "block"})


def _compile(b: Block, *, melted: bool, **options: Any) -> Any:
    image, weights = _image(b), [Constant(w) for w in _weights(b)]
    x = Var("x", TensorType(image.shape, "f32", LAYOUT))
    function = _kernel(b)
    whole = Call(function, [x, *weights]) if melted else _layers(b, x, list(weights))
    main = Function([x], Tuple([whole]), {"outputs": ("y",)})
    passes = [] if melted else [FuseOps(melt=False)]
    return clew.compile(Module({"main": main}), cache=False, passes=passes, **options)


@pytest.mark.parametrize("side", GuardSide)
@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_gives_the_bits_of_kernels_apart(block: Block, side: GuardSide) -> None:
    melted = _compile(block, melted=True, threads=2, diagnostics=clew.Diagnostics(guard=side))
    assert [k.rules for k in melted.kernels] == [("separable",)]
    apart = _compile(block, melted=False, threads=1)
    assert len(apart.kernels) > 1
    np.testing.assert_array_equal(melted(_image(block)), apart(_image(block)))


@pytest.mark.parametrize("block", [BLOCKS[0], BLOCKS[5], BLOCKS[10]], ids=str)
def test_any_number_of_threads_gives_the_same_bits(block: Block) -> None:
    first, *others = [_compile(block, melted=True, threads=n)(_image(block)) for n in (1, 2, 3)]
    for other in others:
        np.testing.assert_array_equal(first, other)


@pytest.mark.parametrize("l2_bytes", [32 << 10, 2 << 20])
@pytest.mark.parametrize("block", [BLOCKS[0], BLOCKS[5], BLOCKS[7]], ids=str)
def test_bands_are_read_within_what_is_set(block: Block, l2_bytes: int) -> None:
    """The interpreter asserts that nothing is read outside of a buffer, or before it is set."""
    small = replace(block, given=1, between=min(block.between, 2), result=1, size=(7, 6))
    arrays = [_image(small), *_weights(small)]
    inputs = [placeholder(a.shape, "f32", f"in{n}") for n, a in enumerate(arrays)]
    nest = lower("block", inputs, [_tensor(_kernel(small), inputs)])
    target: Target = replace(host(), l2_bytes=l2_bytes)
    plan = schedule_kernel(nest, target)
    schedule, rules = plan.schedule, plan.rules
    assert rules == ("separable",)
    (expected,) = interpret(nest, arrays)
    (found,) = interpret(schedule.finished(), arrays)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def _tensor(function: Function, inputs: list[Tensor]) -> Tensor:
    """A primitive function's body in tensor expressions."""
    values: dict[int, Tensor] = dict(zip((p.id for p in function.params), inputs, strict=True))

    def value(node: Expr) -> Tensor:
        if node.id not in values:
            assert isinstance(node, Call)
            made = node.op.compute(*map(value, node.args), **node.attrs)  # type: ignore[union-attr]
            values[node.id] = made
            named = made.name
            made.name = f"{named}_{len(values)}"
        return values[node.id]

    return value(function.body)
