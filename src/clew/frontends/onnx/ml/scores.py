"""Shared parts of the classifiers and regressors of `ai.onnx.ml`: inputs as floats, transforms of
scores, labels.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from clew.frontends.building import call, cast, reshaped, scalar
from clew.frontends.onnx.layer import Layer
from clew.ir.expr import Constant, Expr
from clew.ir.types import to_numpy

DOMAIN: Final = "ai.onnx.ml"
TRANSFORMS: Final = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


def rows(layer: Layer, x: Expr) -> Expr:
    """Returns an input as a matrix with one case per row."""
    if x.tensor.rank == 1:
        return reshaped(x, (1, *x.tensor.shape))
    if x.tensor.rank != 2:
        raise layer.wrong(f"takes [N, C], got {x.tensor}")
    return x


def real_rows(layer: Layer) -> Expr:
    """Returns the first input as a matrix of floats: f64 if it is f64, else f32."""
    x = rows(layer, layer.input(0))
    return x if x.tensor.dtype == "f64" else cast(x, "f32")


def features(layer: Layer, x: Expr) -> int:
    """Returns the number of columns."""
    count = x.tensor.shape[1]
    if not isinstance(count, int):
        raise layer.unsupported(f"with {count} features", hint="give fixed input shapes")
    return count


def floats(layer: Layer, name: str, dtype: str) -> Constant:
    """Returns a list of floats as a constant."""
    return Constant(np.array(layer.reals(name), to_numpy(dtype)))


def linear(layer: Layer, x: Expr, weights: np.ndarray, intercepts: Expr | None) -> Expr:
    """Returns `x[N, C] @ weights[E, C]^T + intercepts[E]`."""
    transposed = Constant(np.ascontiguousarray(weights.T, to_numpy(x.tensor.dtype)))
    product = call("nn.matmul", x, transposed)
    return product if intercepts is None else call("add", product, intercepts)


def coefficients(layer: Layer, count: int, features: int) -> np.ndarray:
    """Returns the attribute of that name as a matrix.

    Errors: M012 for a wrong number of coefficients.
    """
    given = np.array(layer.reals("coefficients"), np.float32)
    if given.size != count * features:
        raise layer.wrong(
            f"has {given.size} coefficients, expected {count} times {features} features"
        )
    return given.reshape(count, features)


def transform_of(layer: Layer) -> str:
    """Returns the attribute `post_transform`.

    Errors: M012 for one that ONNX does not define.
    """
    name = layer.text("post_transform", "NONE") or "NONE"
    if name not in TRANSFORMS:
        raise layer.wrong(f"has post_transform {name[:40]!r}, expected {', '.join(TRANSFORMS)}")
    return name


def transformed(scores: Expr, name: str) -> Expr:
    """Returns scores `[N, E]` after a transform of `TRANSFORMS`."""
    match name:
        case "SOFTMAX":
            return call("nn.softmax", scores, axis=1)
        case "LOGISTIC":
            return call("sigmoid", scores)
        case "SOFTMAX_ZERO":
            return _softmax_zero(scores)
        case "PROBIT":
            return _probit(scores)
    return scores


def _softmax_zero(scores: Expr) -> Expr:
    """Softmax in which scores of 0 stay 0 (in ONNX Runtime and onnx's reference: below 1e-7). If
    all are 0, all become one half.
    """
    dtype = scores.tensor.dtype
    largest = call("max", scores, axes=(1,), keepdims=True)
    zero = call("less_equal", call("abs", scores), scalar(1e-7, dtype))
    small = call("multiply", scores, call("exp", call("negative", largest)))
    powers = call("where", zero, small, call("exp", call("subtract", scores, largest)))
    total = call("sum", powers, axes=(1,), keepdims=True)
    empty = call("equal", total, scalar(0, dtype))
    shared = call("divide", powers, call("where", empty, scalar(1, dtype), total))
    return call("where", empty, scalar(0.5, dtype), shared)


def _probit(scores: Expr) -> Expr:
    """`sqrt(2) erfinv(2 x - 1)`, with the approximation of ONNX Runtime and onnx's reference.

    Source: Winitzki, "A handy approximation for the error function and its inverse", 2008.
    """
    dtype = scores.tensor.dtype

    def number(value: float) -> Constant:
        return scalar(value, dtype)

    x = call("subtract", call("multiply", scores, number(2.0)), number(1.0))
    product = call("multiply", call("subtract", number(1.0), x), call("add", number(1.0), x))
    log = call("log", product)
    a = call("add", number(2 / (math.pi * 0.147)), call("multiply", log, number(0.5)))
    b = call("multiply", log, number(1 / 0.147))
    root = call("sqrt", call("subtract", call("multiply", a, a), b))
    size = call("sqrt", call("subtract", root, a))
    signed = call("where", call("less", x, number(0.0)), call("negative", size), size)
    return call("multiply", signed, number(math.sqrt(2)))


class Labels:
    """The classes of a classifier: strings or integers."""

    def __init__(self, layer: Layer, integers: str) -> None:
        texts, numbers = layer.texts("classlabels_strings"), layer.integers(integers)
        if texts and numbers:
            raise layer.wrong("has both text and integers as class labels")
        self.values = np.array(texts, to_numpy("str")) if texts else np.array(numbers, np.int64)
        self.count = len(self.values)

    def at(self, places: Expr) -> Expr:
        """Returns the labels at positions `i64[N]`; the positions themselves if there are no
        labels.
        """
        if not self.count:
            return places
        return call("gather", Constant(self.values), places, axis=0)

    def by(self, condition: Expr, one: int, other: int) -> Expr:
        """Returns for each of `bool[N]` the label at one of two positions."""
        dtype = "i64"
        places = call("where", condition, scalar(one, dtype), scalar(other, dtype))
        return self.at(places)


def largest(scores: Expr) -> Expr:
    """Returns the position of the first largest score of each row, `i64[N]`."""
    return call("argmax", scores, axis=1, keepdims=False, select_last=False)


def column(scores: Expr, n: int) -> Expr:
    """Returns a column as `[N]`."""
    return call("gather", scores, Constant(np.int64(n)), axis=1)


def opposed(scores: Expr, *, complement: bool) -> Expr:
    """Returns scores `[N, 1]` with those of the other class before them: `1 - s`, or `-s`."""
    one = scalar(1, scores.tensor.dtype)
    other = call("subtract", one, scores) if complement else call("negative", scores)
    return call("concatenate", other, scores, axis=1)
