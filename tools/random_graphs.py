"""Random graphs over clew's operators, for tests: each layer has its own source."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from clew.ir.expr import Constant, Expr, Function, Tuple, Var, mark_results
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.ops.registry import get_op
from clew.trace.lineage import building
from clew.trace.span import Source, Span

Array = np.ndarray[Any, Any]
_SIZES = (1, 2, 3, 7, 8, 9, 16, 17, 33)
_MOST_ELEMENTS = 20_000
_UNARY = ("nn.relu", "sigmoid", "tanh", "abs", "negative", "nn.gelu", "nn.silu", "nn.hard_swish")


class Graph:
    """Grows a graph one operator at a time; operators that do not fit the available shapes are left
    out.
    """

    def __init__(self, seed: int, makers: Sequence[Maker] = ()) -> None:
        self.makers = (*MAKERS, *makers)
        self.random = random.Random(seed)
        self.rng = np.random.default_rng(seed)
        self.params: list[Var] = []
        self.arrays: dict[str, Array] = {}
        rank = self.random.choice([1, 2, 2, 3, 4, 4])
        self.values: list[Expr] = [self.input([self.size() for _ in range(rank)])]

    def size(self) -> int:
        """Returns a size."""
        return self.random.choice(_SIZES)

    def input(self, shape: list[int]) -> Var:
        """Returns a new input."""
        name = f"x{len(self.params)}"
        with building(Span([Source(name, kind="input")])):
            var = Var(name, TensorType(tuple(shape), "f32"))
        self.params.append(var)
        self.arrays[var.name] = self.rng.standard_normal(shape).astype(np.float32)
        return var

    def weight(self, *shape: int) -> Expr:
        """Returns a constant, or now and then an input."""
        if self.random.random() < 0.3:
            return self.input(list(shape))
        return Constant((self.rng.standard_normal(shape) * 0.3).astype(np.float32))

    def grow(self) -> None:
        """Adds an operator on one of the last values."""
        x = self.random.choice(self.values[-3:])
        assert isinstance(x.type, TensorType)
        maker = self.random.choice(self.makers)
        source = Source(f"layer{len(self.values)}", maker.__name__.strip("_"))
        with building(Span([source])):
            made = maker(self, x, x.type.concrete)
        if made is None or made in self.values:
            return
        assert isinstance(made.type, TensorType)
        if 0 < np.prod(made.type.concrete) <= _MOST_ELEMENTS:
            mark_results(made, Span([replace(source, output=0)]))
            self.values.append(made)

    def like(self, x: Expr) -> Expr:
        """Returns a value of the same shape, perhaps `x` itself."""
        return self.random.choice([v for v in self.values if v.type == x.type])

    def module(self) -> Module:
        """Returns the module; its outputs are the last value and some before it."""
        others = self.values[:-1]
        outputs = [self.values[-1], *self.random.sample(others, min(len(others), 1))]
        names = tuple(f"y{n}" for n in range(len(outputs)))
        return Module({"main": Function(self.params, Tuple(outputs), {"outputs": names})})


def close(found: Array, wanted: Array) -> None:
    """Asserts that a result is close to the expected one."""
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    scale = max(1.0, float(np.abs(wanted).max()))
    np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-5 * scale)


Shape = tuple[int, ...]
Maker = Callable[[Graph, Expr, Shape], Expr | None]


def _unary(g: Graph, x: Expr, shape: Shape) -> Expr:
    return get_op(g.random.choice(_UNARY))(x)


def _same_shape(g: Graph, x: Expr, shape: Shape) -> Expr:
    name = g.random.choice(["add", "multiply", "subtract", "maximum"])
    return get_op(name)(x, g.like(x))


def _broadcast(g: Graph, x: Expr, shape: Shape) -> Expr:
    sizes = [s if g.random.random() < 0.5 else 1 for s in shape]
    return get_op(g.random.choice(["add", "multiply"]))(
        x, g.weight(*sizes[g.random.randint(0, len(sizes)) :])
    )


def _reduction(g: Graph, x: Expr, shape: Shape) -> Expr | None:
    if not shape:
        return None
    axes = tuple(sorted(g.random.sample(range(len(shape)), g.random.randint(1, len(shape)))))
    name = g.random.choice(["sum", "max", "mean", "min", "logsumexp"])
    return get_op(name)(x, axes=axes, keepdims=g.random.random() < 0.6)


def _normalized(g: Graph, x: Expr, shape: Shape) -> Expr | None:
    if not shape:
        return None
    if g.random.random() < 0.5:
        return get_op("nn.softmax")(x, axis=g.random.randrange(len(shape)))
    scale, bias = g.weight(shape[-1]), g.weight(shape[-1])
    return get_op("nn.layer_norm")(x, scale, bias, axis=-1)


def _product(g: Graph, x: Expr, shape: Shape) -> Expr | None:
    if len(shape) < 2:
        return None
    if g.random.random() < 0.5:
        return get_op("nn.matmul")(x, g.weight(shape[-1], g.size()))
    return get_op("nn.dense")(x, g.weight(g.size(), shape[-1]))


def _convolution(g: Graph, x: Expr, shape: Shape) -> Expr | None:
    if len(shape) != 4:
        return None
    if g.random.random() < 0.3:
        weight = g.weight(shape[1], 1, 3, 3)
        return get_op("nn.conv2d")(x, weight, padding=(1, 1, 1, 1), groups=shape[1])
    kernel = g.random.choice([k for k in (1, 3) if k <= min(shape[2:])])
    stride, pad = g.random.choice([1, 2]), g.random.choice([0, kernel // 2])
    weight = g.weight(g.size(), shape[1], kernel, kernel)
    return get_op("nn.conv2d")(x, weight, padding=(pad,) * 4, strides=(stride, stride))


def _pool(g: Graph, x: Expr, shape: Shape) -> Expr | None:
    if len(shape) != 4:
        return None
    name = g.random.choice(["nn.max_pool2d", "nn.avg_pool2d"])
    return get_op(name)(x, kernel=(2, 2), strides=(2, 1), padding=(1, 0, 0, 1))


def _moved(g: Graph, x: Expr, shape: Shape) -> Expr | None:
    if not shape:
        return None
    axes = g.random.sample(range(len(shape)), len(shape))
    axis = axes[0]
    begin = g.random.randrange(shape[axis])
    choices: list[Callable[[], Expr]] = [
        lambda: get_op("transpose")(x, axes=axes),
        lambda: get_op("concatenate")(x, g.like(x), axis=axis),
        lambda: get_op("pad")(x, pads=[g.random.randint(0, 2) for _ in range(2 * len(shape))]),
        lambda: get_op("reshape")(x, shape=(shape[0], int(np.prod(shape[1:])))),
        lambda: get_op("slice")(x, begin=(begin,), end=(shape[axis],), axes=(axis,)),
    ]
    return g.random.choice(choices)()


def _chosen(g: Graph, x: Expr, shape: Shape) -> Expr:
    zero = Constant(np.float32(0))
    return get_op("where")(get_op("greater")(x, zero), x, g.like(x))


MAKERS: tuple[Maker, ...] = (
    _unary, _unary, _same_shape, _broadcast, _reduction, _normalized, _product, _convolution,
    _pool, _moved, _moved, _chosen,
)  # fmt: skip
