"""Random numbers. Each run draws new ones; they are not those that torch draws from a seed."""

from __future__ import annotations

import math
from collections.abc import Sequence

from clew.frontends.building import call, cast, fields, reshaped, scalar
from clew.frontends.torch.converters.movement import sliced
from clew.frontends.torch.layer import Layer
from clew.frontends.torch.registry import Result, converter
from clew.ir.dims import Dim
from clew.ir.expr import Expr
from clew.ir.types import is_float


def _uniform(shape: Sequence[Dim], dtype: str, low: float = 0.0, high: float = 1.0) -> Expr:
    key = call("random_key", seed=None)
    return call("random_uniform", key, shape=tuple(shape), dtype=dtype, low=low, high=high)


def _normal(shape: Sequence[Dim], dtype: str, mean: float = 0.0, scale: float = 1.0) -> Expr:
    key = call("random_key", seed=None)
    return call("random_normal", key, shape=tuple(shape), dtype=dtype, mean=mean, scale=scale)


def _drawn_in(dtype: str) -> str:
    """Returns the float dtype in which random numbers for a result are generated."""
    return dtype if dtype in ("f32", "f64") else "f32"


def _open(layer: Layer) -> tuple[Expr, str]:
    """Returns numbers from (0, 1] in the shape of the result, and their dtype."""
    wide = _drawn_in(layer.result().dtype)
    drawn = _uniform(layer.result().shape, wide)
    return call("subtract", scalar(1, wide), drawn), wide


@converter("rand", "rand_like")
def rand(layer: Layer) -> Result:
    """Evenly from [0, 1)."""
    return _uniform(layer.result().shape, layer.result().dtype)


@converter("randn", "randn_like")
def randn(layer: Layer) -> Result:
    """From the normal distribution."""
    return _normal(layer.result().shape, layer.result().dtype)


@converter("uniform")
def uniform(layer: Layer) -> Result:
    """Evenly from [from, to)."""
    wanted = layer.result()
    low, high = float(layer.number("from", 0.0)), float(layer.number("to", 1.0))
    return _uniform(wanted.shape, wanted.dtype, low, high)


@converter("randint", "randint_like")
def randint(layer: Layer) -> Result:
    """Whole numbers, evenly from [low, high)."""
    low, high = layer.integer("low", 0), layer.integer("high")
    if abs(low) > 1 << 53 or abs(high) > 1 << 53:
        raise layer.unsupported("bounds of more than 53 bits")
    drawn = _uniform(layer.result().shape, "f64", float(low), float(high))
    # Rounding may reach the upper bound.
    whole = call("minimum", cast(call("floor", drawn), "i64"), scalar(high - 1, "i64"))
    return layer.to_result(whole)


@converter("randperm")
def randperm(layer: Layer) -> Result:
    """The numbers below `n` in random order: that of random numbers."""
    count = layer.dim("n")
    if not isinstance(count, int):
        raise layer.unsupported("a free number of elements")
    if count == 0:
        return layer.filled(0)
    return layer.to_result(fields(call("top_k", _uniform((count,), "f64"), k=count), 2)[1])


@converter("bernoulli", "bernoulli.p", "bernoulli.Tensor")
def bernoulli(layer: Layer) -> Result:
    """1 with a probability, else 0."""
    if "p" in layer.arguments:
        given = layer["p"]
        chance = given if isinstance(given, Expr) else scalar(float(layer.number("p")), "f64")
    else:
        chance = layer.tensor()
    wide = "f64" if chance.tensor.dtype == "f64" else "f32"
    drawn = _uniform(layer.result().shape, wide)
    return layer.to_result(call("less", drawn, cast(chance, wide)))


@converter("normal", "normal_functional")
def normal(layer: Layer) -> Result:
    """From normal distributions with means and deviations: numbers or tensors."""
    wanted = layer.result()
    drawn = _normal(wanted.shape, wanted.dtype)
    scale = layer.importer.as_dtype(layer.get("std", 1.0), wanted.dtype)
    mean = layer.importer.as_dtype(layer.get("mean", 0.0), wanted.dtype)
    return call("add", call("multiply", drawn, scale), mean)


@converter("log_normal")
def log_normal(layer: Layer) -> Result:
    """Exponentials of numbers from a normal distribution."""
    wanted = layer.result()
    mean, scale = float(layer.number("mean", 1.0)), float(layer.number("std", 2.0))
    return call("exp", _normal(wanted.shape, wanted.dtype, mean, scale))


@converter("exponential")
def exponential(layer: Layer) -> Result:
    """From the exponential distribution: logarithms of even numbers."""
    drawn, wide = _open(layer)
    rate = scalar(-1 / float(layer.number("lambd", 1.0)), wide)
    return layer.to_result(call("multiply", call("log", drawn), rate))


@converter("geometric")
def geometric(layer: Layer) -> Result:
    """The number of trials up to the first success."""
    drawn, wide = _open(layer)
    miss = math.log1p(-float(layer.number("p")))
    trials = call("ceil", call("multiply", call("log", drawn), scalar(1 / miss, wide)))
    return layer.to_result(call("maximum", trials, scalar(1, wide)))


@converter("cauchy")
def cauchy(layer: Layer) -> Result:
    """From the Cauchy distribution: tangents of even angles."""
    wanted = layer.result()
    wide = _drawn_in(wanted.dtype)
    turn = _uniform(wanted.shape, wide, -math.pi / 2, math.pi / 2)
    scaled = call("multiply", call("tan", turn), scalar(layer.number("sigma", 1.0), wide))
    return layer.to_result(call("add", scaled, scalar(layer.number("median", 0.0), wide)))


@converter("native_dropout", "dropout")
def dropout(layer: Layer) -> Result:
    """The input itself outside of training; in training, elements kept by chance and scaled."""
    x = layer.tensor("input")
    several = len(layer.fakes) > 1
    chance = float(layer.number("p"))
    if layer.has("train") and not layer.flag("train"):
        return [x, layer.filled(True, 1)] if several else x
    drawn = _uniform(x.tensor.shape, "f32")
    kept = call("greater_equal", drawn, scalar(chance, "f32"))
    scale = 0.0 if chance == 1 else 1 / (1 - chance)
    dtype = x.tensor.dtype
    found = call("multiply", call("multiply", x, cast(kept, dtype)), scalar(scale, dtype))
    return [found, layer.to_result(kept, 1)] if several else found


@converter("multinomial")
def multinomial(layer: Layer) -> Result:
    """Places, by the weights of a row. Without replacement: the places of the largest weights
    over exponential numbers (Efraimidis and Spirakis, 2006).
    """
    x, count = layer.tensor(), layer.integer("num_samples")
    wide = _drawn_in(x.tensor.dtype)
    shape = x.tensor.shape
    classes = shape[-1]
    rows = cast(reshaped(x, (1, *shape)) if x.tensor.rank == 1 else x, wide)
    if not layer.flag("replacement"):
        drawn = call("subtract", scalar(1, wide), _uniform(rows.tensor.shape, wide))
        ratio = call("divide", rows, call("negative", call("log", drawn)))
        return layer.shaped(fields(call("top_k", ratio, k=count, axis=1), 2)[1])
    upto = call("cumsum", rows, axis=1)
    size = rows.tensor.shape[0]
    total = sliced(upto, 1, classes - 1, classes)
    drawn = call("multiply", _uniform((size, count), wide), total)
    passed = call(
        "less_equal", reshaped(upto, (size, 1, classes)), reshaped(drawn, (size, count, 1))
    )
    place = call("sum", cast(passed, "i64"), axes=(2,), keepdims=False)
    last = layer.importer.scalar_of(classes - 1, "i64")
    return layer.shaped(call("minimum", place, last))


@converter("rrelu_with_noise_functional", "rrelu_with_noise")
def rrelu(layer: Layer) -> Result:
    """Negative numbers times a slope: the mean of the bounds outside of training."""
    x = layer.tensor()
    low, high = float(layer.number("lower", 0.125)), float(layer.number("upper", 1 / 3))
    dtype = x.tensor.dtype
    assert is_float(dtype)
    if layer.flag("training"):
        slope: Expr = _uniform(x.tensor.shape, dtype, low, high)
    else:
        slope = scalar((low + high) / 2, dtype)
    positive = call("greater", x, scalar(0, dtype))
    found = call("where", positive, x, call("multiply", x, slope))
    return [found, layer.tensor("noise")] if len(layer.fakes) > 1 else found
