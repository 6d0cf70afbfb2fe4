"""Layers that behave differently in training: batch normalization and dropout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from clew.frontends.building import call, cast, filled, reshaped, scalar
from clew.frontends.onnx.layer import Layer
from clew.frontends.onnx.registry import Result, converter
from clew.ir.expr import Constant, Expr
from clew.ir.types import to_numpy
from clew.ops.common import accumulator

# The most elements of a mask drawn at import.
_MOST_DRAWN: Final = 1 << 16


@converter("BatchNormalization")
def batch_norm(layer: Layer) -> Result:
    """With stored statistics or, in training, those of the batch.

    Before version 14 the layer is in training mode if the model uses more than one output: the
    standard names these cases so, whatever `is_test` says. Its last two outputs were for a
    gradient.
    """
    x, dtype = layer.input(0), layer.type(0).dtype
    if layer.rank() == 1:
        x = reshaped(x, (*x.tensor.shape, 1))  # one channel
    wide = _statistics_dtype(layer)
    given = [cast(layer.input(n), wide) for n in range(1, 5)]
    rank = x.tensor.rank
    modern = "training_mode" in layer.schema.attributes
    training = layer.flag("training_mode") if modern else any(map(layer.wants, range(1, 5)))
    epsilon = layer.real("epsilon")
    by_element = "spatial" in layer.schema.attributes and not layer.flag("spatial")
    shape = layer.type(0).shape
    if not training:
        data = cast(x, wide)
        if by_element:
            return cast(_normalized(data, given, epsilon), dtype)
        inferred = call("nn.batch_norm", data, *given, epsilon=epsilon)
        return cast(reshaped(inferred, shape), dtype)
    wide = accumulator(wide)
    data = cast(x, wide)
    result: Expr
    scale, bias, mean, var = (cast(g, wide) for g in given)
    axes = tuple(n for n in range(rank) if n == 0 or (n > 1 and not by_element))
    own_mean, own_var = _moments(data, axes)
    if by_element:
        result = _normalized(data, [scale, bias, own_mean, own_var], epsilon)
    else:
        result = call("nn.batch_norm", data, scale, bias, own_mean, own_var, epsilon=epsilon)
    result = reshaped(result, shape)
    momentum = layer.real("momentum")
    kept = [
        cast(_mixed(old, new, momentum), layer.type(n).dtype)
        for n, (old, new) in enumerate([(mean, own_mean), (var, own_var)], 3)
    ]
    if modern:
        return [cast(result, dtype), *kept]
    return [cast(result, dtype), *kept, cast(own_mean, dtype), cast(own_var, dtype)]


def _statistics_dtype(layer: Layer) -> str:
    """Returns the dtype of the computation: that of all inputs, or a wide one if they differ."""
    dtypes = {layer.type(n).dtype for n in range(5)}
    if len(dtypes) == 1:
        return dtypes.pop()
    return "f64" if "f64" in dtypes else "f32"


def _moments(x: Expr, axes: Sequence[int]) -> tuple[Expr, Expr]:
    """Returns mean and variance over axes, which are dropped."""
    axes = tuple(axes)
    mean = call("mean", x, axes=axes, keepdims=True)
    centered = call("subtract", x, mean)
    var = call("mean", call("multiply", centered, centered), axes=axes, keepdims=False)
    kept = tuple(d for n, d in enumerate(mean.tensor.shape) if n not in axes)
    return reshaped(mean, kept), var


def _mixed(old: Expr, new: Expr, momentum: float) -> Expr:
    dtype = old.tensor.dtype
    before = call("multiply", old, scalar(momentum, dtype))
    return call("add", before, call("multiply", new, scalar(1 - momentum, dtype)))


def _normalized(x: Expr, given: Sequence[Expr], epsilon: float) -> Expr:
    """Returns `x` normalized with scale, bias, mean and variance of each element of an image, which
    broadcast along the batch.
    """
    scale, bias, mean, var = given
    spread = call("sqrt", call("add", var, scalar(epsilon, x.tensor.dtype)))
    value = call("divide", call("subtract", x, mean), spread)
    return call("add", call("multiply", value, scale), bias)


@converter("Dropout")
def dropout(layer: Layer) -> Result:
    """Passes its input on or, in training, sets random elements to zero and scales the rest.

    In versions 1 and 6 `is_test=0` selects training; from 12 on an input does, which may be known
    only at run time; in between there is no training. The mask is all true if nothing is dropped;
    before version 10 it has the data's dtype. With a `seed` each run drops the same elements, else
    different ones.
    """
    x, dtype, shape = layer.input(0), layer.type(0).dtype, layer.type(0).shape
    mask_dtype = "bool" if layer.version >= 10 else dtype
    training: Expr | None = None
    always = "is_test" in layer.schema.attributes and not layer.flag("is_test")
    ratio: Expr | None = None
    if layer.version >= 12:
        ratio = layer.optional(1)
        if layer.optional(2) is not None:
            known = layer.known_one(2)
            always = bool(known)
            training = None if known is not None else layer.input(2)
        if layer.known_one(1) == 0:
            always, training = False, None
    elif "ratio" in layer.schema.attributes:
        ratio = scalar(layer.real("ratio"), "f32")
    if not always and training is None:
        if not layer.wants(1):
            return x
        return [x, filled(to_numpy(mask_dtype).type(1), mask_dtype, shape)]
    known = layer.known_one(1) if layer.version >= 12 else layer.real("ratio")
    if known is not None and not 0 <= known < 1:
        raise layer.wrong(f"has a ratio of {known}, expected one in [0, 1)")
    if ratio is None:
        ratio = scalar(0.5, "f32")
    wide = accumulator(dtype)
    drawn = _drawn(layer)
    real = drawn.tensor.dtype
    chance = reshaped(cast(ratio, real), ())
    kept: Expr = call("greater_equal", drawn, chance)
    if training is not None:
        off = call("logical_not", reshaped(training, ()))
        kept = call("logical_or", kept, off)
        chance = call("where", off, scalar(0.0, real), chance)
    factor = call("divide", scalar(1.0, real), call("subtract", scalar(1.0, real), chance))
    scaled = call("multiply", cast(x, wide), cast(factor, wide))
    result = call("where", kept, scaled, scalar(0.0, wide))
    return [cast(result, dtype), cast(kept, mask_dtype)]


def _drawn(layer: Layer) -> Expr:
    """Returns uniform random numbers in [0, 1), one per element.

    With a seed, tensors of a fixed and moderate size have the numbers that ONNX's reference draws
    (NumPy's Mersenne Twister), as parameters; kernels generate the others.
    """
    type_ = layer.type(0)
    if not layer.has("seed"):
        key = call("random_key", seed=None)
        return call("random_uniform", key, shape=type_.shape, dtype="f32")
    seed = layer.integer("seed")
    if type_.is_static and math.prod(type_.concrete) <= _MOST_DRAWN:
        generator = np.random.RandomState(seed % (1 << 32))
        return Constant(np.asarray(generator.uniform(0, 1, type_.concrete)))
    key = call("random_key", seed=float(seed))
    return call("random_uniform", key, shape=type_.shape, dtype="f32")
