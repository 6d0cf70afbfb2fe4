"""Random numbers. With a seed, every run draws the same numbers; without one, each draws new
ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from clew.frontends.building import call, cast
from clew.frontends.limits import checked_size
from clew.frontends.lowering.drawing import drawn_classes
from clew.frontends.onnx.file.tensors import dtype_of
from clew.frontends.onnx.layer import Layer
from clew.frontends.onnx.registry import Result, converter
from clew.ir.dims import Dim
from clew.ir.expr import Expr
from clew.ir.types import is_float


def random_key(layer: Layer) -> Expr:
    """Returns the key that a layer draws its numbers from."""
    return call("random_key", seed=layer.real("seed") if layer.has("seed") else None)


def _dtype(layer: Layer, default: str = "") -> str:
    given = bool(default) and not layer.has("dtype")
    dtype = default if given else dtype_of(layer.integer("dtype"), "the result")
    if not is_float(dtype):
        raise layer.wrong(f"draws numbers of the type {dtype}")
    return dtype


def _uniform(layer: Layer, shape: Sequence[Dim], dtype: str) -> Expr:
    bounds = {name: layer.real(name) for name in ("low", "high")}
    return call("random_uniform", random_key(layer), shape=tuple(shape), dtype=dtype, **bounds)


def _normal(layer: Layer, shape: Sequence[Dim], dtype: str) -> Expr:
    moments = {name: layer.real(name) for name in ("mean", "scale")}
    return call("random_normal", random_key(layer), shape=tuple(shape), dtype=dtype, **moments)


def _shape(layer: Layer, dtype: str) -> tuple[int, ...]:
    shape: tuple[int, ...] = layer.integers("shape")
    if any(size < 0 for size in shape):
        raise layer.wrong(f"has the shape {list(shape)}")
    checked_size(shape, dtype, layer.builder.budgets, "the result")
    return shape


@converter("RandomUniform")
def random_uniform(layer: Layer) -> Result:
    """Of a given shape, evenly from `[low, high)`."""
    dtype = _dtype(layer)
    return _uniform(layer, _shape(layer, dtype), dtype)


@converter("RandomNormal")
def random_normal(layer: Layer) -> Result:
    """Of a given shape, from the normal distribution."""
    dtype = _dtype(layer)
    return _normal(layer, _shape(layer, dtype), dtype)


@converter("RandomUniformLike")
def random_uniform_like(layer: Layer) -> Result:
    """Of the input's shape, evenly from `[low, high)`."""
    return _uniform(layer, layer.type(0).shape, _dtype(layer, layer.type(0).dtype))


@converter("RandomNormalLike")
def random_normal_like(layer: Layer) -> Result:
    """Of the input's shape, from the normal distribution."""
    return _normal(layer, layer.type(0).shape, _dtype(layer, layer.type(0).dtype))


def _drawn(layer: Layer, shape: Sequence[Dim], dtype: str) -> Expr:
    return call("random_uniform", random_key(layer), shape=tuple(shape), dtype=dtype)


@converter("Bernoulli")
def bernoulli(layer: Layer) -> Result:
    """1 with the probability in the input, else 0."""
    type_ = layer.type(0)
    dtype = dtype_of(layer.integer("dtype"), "the result") if layer.has("dtype") else type_.dtype
    wide = "f64" if type_.dtype == "f64" else "f32"
    drawn = _drawn(layer, type_.shape, wide)
    return cast(call("less", drawn, cast(layer.input(0), wide)), dtype)


@converter("Multinomial")
def multinomial(layer: Layer) -> Result:
    """Indices in each row, with probabilities whose logarithms the input holds up to a constant."""
    type_, count = layer.type(0), layer.integer("sample_size")
    if type_.rank != 2:
        raise layer.wrong(f"takes 2 axes, got {type_}")
    if count < 0:
        raise layer.wrong(f"draws {count} samples")
    rows, classes = type_.shape
    if classes == 0:
        raise layer.wrong(f"draws from no classes: {type_}")
    dtype = dtype_of(layer.integer("dtype"), "the result")
    checked_size(
        [d for d in (rows, count) if isinstance(d, int)],
        dtype,
        layer.builder.budgets,
        "the result",
    )
    return cast(drawn_classes(layer.input(0), count, random_key(layer)), dtype)
