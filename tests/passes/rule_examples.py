"""Examples of each rule, over two inputs that hold all pairs of special values (`variables`)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numpy as np
from special_values import call, special, splat

from clew.ir.expr import Constant, Expr, TupleGetItem
from clew.ir.types import to_numpy
from clew.support.text_arrays import TEXT

Build: TypeAlias = Callable[[Expr, Expr], Expr]


def row(like: Expr, seed: int = 3) -> Constant:
    """Returns one number for each column."""
    count = like.tensor.concrete[-1]
    numbers = np.random.default_rng(seed).integers(1, 4, count)
    return Constant(numbers.astype(to_numpy(like.tensor.dtype)))


def _chain(*steps: tuple[str, dict[str, Any]]) -> Build:
    def build(x: Expr, z: Expr) -> Expr:
        for name, attrs in steps:
            x = call(name, x, **attrs)
        return x

    return build


def _bits(x: Expr) -> Expr:
    """Returns finite numbers that a run computes."""
    return call("cast", call("less", x, splat(1, x)), dtype=x.tensor.dtype)


def _size(x: Expr) -> int:
    return x.tensor.concrete[0]


def flat(x: Expr) -> Expr:
    return call("reshape", x, shape=(_size(x) ** 2,))


def _split_apart(x: Expr, rest: int) -> Expr:
    """Splits two lines into their elements, the last few of which stay together."""
    size = _size(x) ** 2
    lines = call("broadcast_to", flat(x), shape=(2, size))
    return call("split", lines, axis=1, sizes=(1,) * (size - rest) + (rest,) * bool(rest))


def _one_hot_of_texts(x: Expr, z: Expr) -> Expr:
    keys = np.array(["1.0", "-1.0", "NaN", "1", "-1"], TEXT)
    tables = Constant(keys), Constant(np.array([0, 1, 2, 0, 7])), Constant(np.array(3))
    numbers = call("text.lookup", call("text.from_number", x), *tables)
    column = call("reshape", numbers, shape=(*x.tensor.concrete, 1))
    return call("cast", call("equal", column, Constant(np.arange(4))), dtype=x.tensor.dtype)


def _erf(x: Expr, z: Expr) -> Expr:
    inner = call("erf", call("divide", x, splat(math.sqrt(2), x)))
    return call("multiply", call("multiply", x, call("add", inner, splat(1, x))), splat(0.5, x))


def _tanh(x: Expr, z: Expr) -> Expr:
    cube = call("multiply", call("multiply", call("multiply", x, x), x), splat(0.044715, x))
    inner = call("multiply", call("add", x, cube), splat(math.sqrt(2 / math.pi), x))
    factor = call("add", call("tanh", inner), splat(1, x))
    return call("multiply", call("multiply", x, factor), splat(0.5, x))


def hard_swish(x: Expr, z: Expr) -> Expr:
    up = call("clip", call("add", x, splat(3, x)), min=0.0, max=6.0)
    return call("divide", call("multiply", x, up), splat(6, x))


def _softmax(x: Expr, z: Expr) -> Expr:
    shifted = call("subtract", x, call("max", x, axes=(1,), keepdims=True))
    power = call("exp", shifted)
    return call("divide", power, call("sum", power, axes=(1,), keepdims=True))


def _centered(x: Expr) -> tuple[Expr, Expr]:
    centered = call("subtract", x, call("mean", x, axes=(1,), keepdims=True))
    square = call("multiply", centered, centered)
    return centered, call("mean", square, axes=(1,), keepdims=True)


def _normal(x: Expr, z: Expr) -> Expr:
    centered, variance = _centered(x)
    deviation = call("sqrt", call("add", variance, splat(0.5, x)))
    return call("multiply", call("divide", centered, deviation), row(x))


def _with_beta(x: Expr, z: Expr) -> Expr:
    return call("add", call("nn.layer_norm", x, row(x), axis=-1, epsilon=0.5), row(x, 4))


def _rms(x: Expr, z: Expr) -> Expr:
    square = call("mean", call("multiply", x, x), axes=(1,), keepdims=True)
    deviation = call("sqrt", call("add", square, splat(0.5, x)))
    return call("multiply", call("divide", x, deviation), row(x))


def _channels(x: Expr, count: int = 4) -> Expr:
    """Returns images of four channels made of an input: `[1, 4, 2, 3]`."""
    part = call("slice", x, begin=(0, 0), end=(count, 6), axes=(0, 1))
    return call("reshape", part, shape=(1, count, 2, 3))


def _of_channels(x: Expr, *values: float) -> Constant:
    kind = to_numpy(x.tensor.dtype)
    return Constant(np.array(values).astype(kind).reshape(1, -1, 1, 1))


def _vector(x: Expr, *values: float) -> Constant:
    return Constant(np.array(values).astype(to_numpy(x.tensor.dtype)))


def _grouped(x: Expr) -> Expr:
    groups = call("reshape", _channels(x), shape=(1, 2, 12))
    norm = call("nn.instance_norm", groups, _vector(x, 1, 1), _vector(x, 0, 0), epsilon=0.5)
    return call("reshape", norm, shape=(1, 4, 2, 3))


def _group_norm(x: Expr, gamma: tuple[float, ...]) -> Expr:
    zeros = _vector(x, 0, 0, 0, 0)
    return call("nn.group_norm", _channels(x), _vector(x, *gamma), zeros, groups=2, epsilon=0.5)


def _matrix(x: Expr, units: int = 3) -> Constant:
    numbers = np.random.default_rng(5).integers(1, 4, (_size(x), units))
    return Constant(numbers.astype(to_numpy(x.tensor.dtype)))


def _dense(x: Expr) -> Expr:
    return call("nn.dense", x, _matrix(x), weight_layout="KN")


def _surrounded(x: Expr, axes: tuple[int, ...] = (), zero: int = 0) -> Expr:
    """A convolution of an image with zeros around it, whose channels `axes` put first; or with a
    zero point around it, which is subtracted.
    """
    size, side = _size(x), 1 if axes else 2
    shape = (1, size, size, 1) if axes else (1, 1, size, size)
    pads = [0, 0, 0, 0, 0, 0, 0, 0]
    pads[side : side + 2], pads[side + 4 : side + 6] = (1, 2), (0, 3)
    image = call("pad", call("reshape", x, shape=shape), pads=tuple(pads), value=zero)
    image = call("transpose", image, axes=axes) if axes else image
    if zero:
        image = call("subtract", call("cast", image, dtype="i32"), Constant(np.int32(zero)))
        image = call("cast", image, dtype=x.tensor.dtype)
    weight = np.arange(-4, 5).astype(to_numpy(x.tensor.dtype)).reshape(1, 1, 3, 3)
    return call("nn.conv2d", image, Constant(weight), padding=(1, 0, 0, 1))


def _scatter(x: Expr, z: Expr) -> Expr:
    places = np.stack(np.meshgrid([1, 2], range(_size(x)), indexing="ij"), -1)
    updates = call("slice", z, begin=(0,), end=(2,), axes=(0,))
    return call("scatter_nd", x, Constant(places), updates)


def _selected(x: Expr, z: Expr) -> Expr:
    part = call("reshape", call("slice", x, begin=(3,), end=(4,), axes=(0,)), shape=(_size(x),))
    return call("slice", part, begin=(2,), end=(5,), axes=(0,))


def _swap(x: Expr, z: Expr) -> Expr:
    n = _size(x)
    merged = call("reshape", call("reshape", x, shape=(1, 1, n, n)), shape=(1, n, n))
    return call("reshape", call("transpose", merged, axes=(0, 2, 1)), shape=(1, 1, n, n))


def _positions(x: Expr, z: Expr) -> Expr:
    places = call("arange", start=0, stop=_size(x), step=1, dtype="i64")
    return call("where", call("less", places, Constant(np.int64(0))), x, z)


def _truth(x: Expr, z: Expr) -> Expr:
    return call("logical_and", call("less", x, z), Constant(np.array(True)))


EXAMPLES: Final[dict[str, list[Build]]] = {
    "neutral_factor": [
        lambda x, z: call("multiply", x, splat(1, x)),
        lambda x, z: call("divide", x, splat(1, x, whole=True)),
        lambda x, z: call("power", x, splat(1, x)),
    ],
    "plus_zero": [lambda x, z: call("add", splat(-0.0, x), x)],
    "minus_zero": [lambda x, z: call("subtract", x, splat(0, x))],
    "zero_of_unread_sign": [
        lambda x, z: call("nn.softmax", call("add", x, splat(0, x)), axis=1),
        lambda x, z: call("nn.log_softmax", call("add", x, splat(0, x)), axis=1),
        *(
            lambda x, z, name=name, c=c: call(name, call("add", x, splat(c, x)))
            for name in ("exp", "sigmoid", "abs", "cos", "cosh")
            for c in (0, 1)
        ),
    ],
    "same_type_again": [lambda x, z: call("cast", x, dtype=x.tensor.dtype)],
    "nothing_repeated": [lambda x, z: call("broadcast_to", x, shape=x.tensor.shape)],
    "nothing_added_or_left_out": [lambda x, z: call("pad", x, pads=(0, 0, 0, 0))],
    "transpose_that_moves_nothing": [
        lambda x, z: call("transpose", call("reshape", x, shape=(1, _size(x) ** 2)), axes=(1, 0))
    ],
    "reduction_of_single_elements": [
        lambda x, z, name=name: call(
            name, call("reshape", x, shape=(_size(x), 1, _size(x))), axes=(1,), keepdims=False
        )
        for name in ("sum", "max", "min")
    ],
    "reshape_of_reshape": [
        lambda x, z: call("reshape", flat(x), shape=(1, 1, _size(x) ** 2)),
    ],
    "transpose_of_transpose": [_chain(*[("transpose", {"axes": (1, 0)})] * 2)],
    "swap_between_reshapes": [_swap],
    "slice_of_slice": [
        _chain(
            ("slice", {"begin": (1,), "end": (9,), "axes": (0,)}),
            ("slice", {"begin": (2,), "end": (5,), "axes": (0,)}),
        )
    ],
    "slice_of_selected": [_selected],
    "clip_of_clip": [
        _chain(("clip", {"min": a, "max": b}), ("clip", {"min": c, "max": d}))
        for a, b, c, d in (
            (0.0, 6.0, -0.0, 3.0),
            (-0.0, 6.0, 0.0, 3.0),
            (-1.0, 0.0, -0.0, 2.0),
            (-1.0, -0.0, -3.0, 0.0),
            (None, 2.0, 0.0, None),
            (0.0, math.inf, -math.inf, 1.0),
        )
    ],
    "relu_of_relu": [_chain(*[("nn.relu", {})] * 2)],
    "negative_of_negative": [_chain(*[("negative", {})] * 2)],
    "cast_of_cast": [
        _chain(("cast", {"dtype": wide}), ("cast", {"dtype": to}))
        for wide in ("f32", "f64", "i32", "i64", "i16", "u16")
        for to in ("f16", "bf16", "f32", "f64", "i8", "u8", "i32", "u32", "i64", "bool")
    ],
    "divide_by_power_of_two": [
        lambda x, z, c=c: call("divide", x, splat(c, x)) for c in (2, -4, 0.5, 1024, 2.0**-10, 3)
    ],
    "simple_power": [
        lambda x, z: call("power", x, splat(2, x)),
        lambda x, z: call("power", x, splat(-1, x)),
        lambda x, z: call("power", call("multiply", x, x), splat(0.5, x)),
        lambda x, z: call("power", call("maximum", x, splat(1e-3, x)), splat(0.5, x)),
    ],
    "inverse_root": [
        lambda x, z: call("power", call("add", call("abs", x), splat(1e-3, x)), splat(-0.5, x))
    ],
    "one_over": [lambda x, z: call("divide", splat(1, x), x)],
    "reciprocal_of_root": [_chain(("sqrt", {}), ("reciprocal", {}))],
    "one_of_the_sizes": [
        lambda x, z: call("slice", call("shape_of", x), begin=(1,), end=(2,), axes=(0,))
    ],
    "size_of_an_axis": [
        lambda x, z: call("gather", call("shape_of", x), Constant(np.int64(1)), axis=0)
    ],
    "where_of_constant": [
        lambda x, z, c=c: call("where", Constant(np.array(c)), x, z) for c in (True, False)
    ],
    "known_comparison": [_positions],
    "neutral_condition": [_truth],
    "gelu": [_erf],
    "gelu_by_tanh": [_tanh],
    "silu": [lambda x, z: call("multiply", x, call("sigmoid", x))],
    "hard_swish": [hard_swish],
    "mish": [lambda x, z: call("multiply", x, call("tanh", call("nn.softplus", x)))],
    "softmax": [_softmax],
    "layer_norm": [_normal],
    "layer_norm_beta": [_with_beta],
    "rms_norm": [_rms],
    "group_norm": [lambda x, z: _grouped(x)],
    "group_norm_gamma": [
        lambda x, z: call("multiply", _group_norm(x, (1, 1, 1, 1)), _of_channels(x, 1, 2, 3, 1))
    ],
    "group_norm_beta": [
        lambda x, z: call("add", _group_norm(x, (1, 2, 3, 1)), _of_channels(x, 1, 2, 3, 1))
    ],
    "matmul_with_constant_matrix": [lambda x, z: call("nn.matmul", x, _matrix(x))],
    "matmul_with_turned_matrix": [
        lambda x, z: call("nn.matmul", x, call("transpose", _bits(z), axes=(1, 0)))
    ],
    "constant_second": [
        *(
            lambda x, z, name=name: call(name, row(x), x)
            for name in ("add", "multiply", "equal", "not_equal")
        ),
        *(
            lambda x, z, name=name, c=c: call(name, splat(c, x), x)
            for name in ("maximum", "minimum", "add")
            for c in (0.0, -0.0, 1.0)
        ),
    ],
    "subtract_constant": [
        *(lambda x, z, c=c: call("subtract", x, splat(c, x)) for c in (0.0, -0.0, 3.0)),
        lambda x, z: call("subtract", x, Constant(special(x.tensor.dtype))),
    ],
    "mean_over_image": [lambda x, z: call("mean", _channels(x), axes=(2, 3))],
    "zeros_around_an_image": [
        lambda x, z: _surrounded(x),
        lambda x, z: _surrounded(x, (0, 3, 1, 2)),
        lambda x, z: _surrounded(x, (0, 3, 1, 2), zero=3),
    ],
    "rows_of_texts": [_one_hot_of_texts],
    "max_pool_of_long_windows": [
        lambda x, z: call(
            "nn.max_pool2d",
            call("reshape", x, shape=(1, 1, *x.tensor.shape)),
            kernel=(7, 7), strides=(1, 1), padding=(3, 3, 3, 3),
        )
    ],
    "part_of_split": [
        lambda x, z: TupleGetItem(call("split", x, axis=1, sizes=(2, _size(x) - 2)), 1)
    ],
    "split_into_many": [
        lambda x, z, rest=rest: TupleGetItem(_split_apart(x, rest), 1) for rest in (0, 3)
    ],
    "reshape_of_dense": [
        lambda x, z: call(
            "reshape", call("add", _dense(x), _vector(x, 1, 2, 3)), shape=(1, _size(x), 3)
        )
    ],
    "scatter_to_a_box": [_scatter],
    "identity": [_chain(("identity", {}))],
    "scale_after": [lambda x, z: call("multiply", _dense(x), _vector(x, 1, 2, 3))],
    "scale_after_bias": [
        lambda x, z: call(
            "multiply", call("add", _dense(x), _vector(x, 3, 2, 1)), _vector(x, 1, 2, 3)
        )
    ],
    "merge_biases": [
        lambda x, z: call("add", call("add", _dense(x), _vector(x, 3, 2, 1)), _vector(x, 1, 2, 3))
    ],
    "scale_before": [lambda x, z: _dense(call("multiply", x, row(x)))],
    "scale_of_scale": [lambda x, z: call("multiply", call("multiply", x, row(x)), row(x, 4))],
    "scale_of_shifted": [
        lambda x, z: call(
            "multiply", call("add", call("multiply", x, row(x)), row(x, 5)), row(x, 4)
        )
    ],
    "merge_shifts": [
        lambda x, z: call("add", call("add", call("multiply", x, row(x)), row(x, 5)), row(x, 4))
    ],
}  # fmt: skip
