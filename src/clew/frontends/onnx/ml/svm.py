"""Support vector machines: kernels of cases and support vectors, weighted."""

from __future__ import annotations

from typing import Any

import numpy as np

from clew.frontends.building import call, cast, reshaped, scalar
from clew.frontends.onnx.layer import Layer
from clew.frontends.onnx.ml.scores import (
    DOMAIN,
    Labels,
    column,
    features,
    largest,
    opposed,
    real_rows,
    transform_of,
    transformed,
)
from clew.frontends.onnx.registry import Result, converter
from clew.ir.expr import Constant, Expr
from clew.ir.types import to_numpy

Array = np.ndarray[Any, Any]


def _constant(values: Array, dtype: str) -> Constant:
    return Constant(np.ascontiguousarray(values, to_numpy(dtype)))


def _kernels(layer: Layer, x: Expr, vectors: Array) -> Expr:
    """Returns the kernel of each case `x[N, F]` and support vector `[S, F]`, `[N, S]`."""
    dtype, kind = x.tensor.dtype, layer.text("kernel_type", "LINEAR")
    params = layer.reals("kernel_params") or (0.0, 0.0, 0.0)
    if len(params) != 3:
        raise layer.wrong(f"has {len(params)} kernel_params, expected gamma, coef0 and degree")
    gamma, coef0, degree = (scalar(v, dtype) for v in params)
    if kind == "RBF":
        count, width = vectors.shape
        cases = reshaped(x, (x.tensor.shape[0], 1, width))
        apart = call("subtract", cases, _constant(vectors.reshape(1, count, width), dtype))
        squares = call("sum_square", apart, axes=(2,), keepdims=False)
        return call("exp", call("negative", call("multiply", squares, gamma)))
    products = call("nn.matmul", x, _constant(vectors.T, dtype))
    if kind == "LINEAR":
        return products
    shifted = call("add", call("multiply", products, gamma), coef0)
    if kind == "POLY":
        return call("power", shifted, degree)
    if kind == "SIGMOID":
        return call("tanh", shifted)
    raise layer.wrong(f"has kernel_type {kind[:40]!r}, expected LINEAR, POLY, RBF or SIGMOID")


def _vectors(layer: Layer, count: int, width: int) -> Array:
    given = np.array(layer.reals("support_vectors"), np.float32)
    if given.size != count * width:
        raise layer.wrong(f"has {given.size} numbers for {count} support vectors of {width}")
    return given.reshape(count, width)


def _coefficients(layer: Layer, rows: int | None, columns: int) -> Array:
    given = np.array(layer.reals("coefficients"), np.float32)
    wanted = given.size // columns if rows is None and columns else rows or 0
    if not given.size or given.size != wanted * columns:
        raise layer.wrong(f"has {given.size} coefficients, expected rows of {columns}")
    return given.reshape(wanted, columns)


def _rho(layer: Layer, least: int) -> Array:
    given = np.array(layer.reals("rho"), np.float32)
    if given.size < least:
        raise layer.wrong(f"has {given.size} numbers in rho, expected {least}")
    return given


@converter("SVMRegressor", domain=DOMAIN)
def svm_regressor(layer: Layer) -> Result:
    """The weighted sum of kernels; with `one_class`, 1 if it is positive, else -1."""
    x = real_rows(layer)
    dtype, width, count = x.tensor.dtype, features(layer, x), layer.integer("n_supports")
    if count < 0:
        raise layer.wrong(f"has {count} support vectors")
    if count:
        x = _kernels(layer, x, _vectors(layer, count, width))
    weights = _coefficients(layer, 1, count or width)
    scores = call("nn.matmul", x, _constant(weights.T, dtype))
    scores = call("add", scores, scalar(_rho(layer, 1)[0], dtype))
    if layer.flag("one_class"):
        above = call("greater", scores, scalar(0, dtype))
        scores = call("where", above, scalar(1, dtype), scalar(-1, dtype))
    return cast(transformed(scores, transform_of(layer)), "f32")


@converter("SVMClassifier", domain=DOMAIN)
def svm_classifier(layer: Layer) -> Result:
    """The class that wins most pairs, and the scores of all pairs, or probabilities of classes.

    Without support vectors: the class with the best linear combination of features.
    """
    labels, x = Labels(layer, "classlabels_ints"), real_rows(layer)
    members = layer.integers("vectors_per_class")
    if any(n < 0 for n in members):
        raise layer.wrong("has a negative number of vectors_per_class")
    if sum(members):
        return _of_pairs(layer, labels, x, members)
    classes = max(labels.count, 1)
    weights = _coefficients(layer, classes, features(layer, x))
    scores = call("nn.matmul", x, _constant(weights.T, x.tensor.dtype))
    scores = call("add", scores, scalar(_rho(layer, 1)[0], x.tensor.dtype))
    if classes == 1:
        above = call("greater", column(scores, 0), scalar(0, x.tensor.dtype))
        label = cast(above, "i64")
    else:
        label = labels.at(largest(scores))
    return label, cast(transformed(scores, transform_of(layer)), "f32")


def _of_pairs(layer: Layer, labels: Labels, x: Expr, members: tuple[int, ...]) -> list[Expr]:
    classes, dtype, count = len(members), x.tensor.dtype, sum(members)
    if labels.count != classes or classes < 2:
        raise layer.wrong(f"has {labels.count} labels for {classes} classes of support vectors")
    kernels = _kernels(layer, x, _vectors(layer, count, features(layer, x)))
    weights = _coefficients(layer, classes - 1, count)
    starts = np.concatenate([[0], np.cumsum(members)])
    first, second = np.triu_indices(classes, 1)
    table = np.zeros((count, len(first)), np.float32)
    wins = np.zeros((2, len(first), classes), np.float32)
    for n, (i, j) in enumerate(zip(first.tolist(), second.tolist(), strict=True)):
        of_first, of_second = slice(*starts[i : i + 2]), slice(*starts[j : j + 2])
        table[of_first, n] = weights[j - 1, of_first]
        table[of_second, n] = weights[i, of_second]
        wins[0, n, i] = wins[1, n, j] = 1
    rho = _constant(_rho(layer, len(first))[: len(first)], dtype)
    scores: Expr = call("add", call("nn.matmul", kernels, _constant(table, dtype)), rho)
    won = cast(call("greater", scores, scalar(0, dtype)), "f32")
    votes = call("nn.matmul", won, Constant(wins[0] - wins[1]))
    label = labels.at(largest(call("add", votes, Constant(wins[1].sum(0)))))
    kind = transform_of(layer)
    if layer.reals("prob_a"):
        scores = _probabilities(layer, scores, classes)
    elif classes == 2:
        scores = opposed(scores, complement=False)
    return [label, cast(transformed(scores, kind), "f32")]


def _probabilities(layer: Layer, scores: Expr, classes: int) -> Expr:
    dtype, pairs = scores.tensor.dtype, classes * (classes - 1) // 2
    a, b = (np.array(layer.reals(name), np.float32) for name in ("prob_a", "prob_b"))
    if a.size != pairs or b.size != pairs:
        raise layer.wrong(f"has {a.size} prob_a and {b.size} prob_b for {pairs} pairs")
    values = call("add", call("multiply", scores, _constant(a, dtype)), _constant(b, dtype))
    first = call("sigmoid", call("negative", values))
    held = call("clip", first, min=1e-7, max=1 - 1e-7)
    return call("svm.coupled", held, classes=classes)
