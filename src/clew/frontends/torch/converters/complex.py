"""Complex numbers, as pairs of real ones in an axis behind the others, and Fourier transforms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import torch

from clew.frontends.building import call, cast, constant, reshaped, scalar
from clew.frontends.torch.converters.movement import joined, sliced
from clew.frontends.torch.layer import Layer
from clew.frontends.torch.registry import Result, complex_converter, find
from clew.ir.dims import Dim, product
from clew.ir.expr import Expr


def parts(x: Expr) -> tuple[Expr, Expr]:
    """Returns the real and the imaginary part."""
    axis = x.tensor.rank - 1
    shape = x.tensor.shape[:-1]
    return tuple(reshaped(sliced(x, axis, n, n + 1), shape) for n in (0, 1))  # type: ignore[return-value]


def paired(real: Expr, imaginary: Expr) -> Expr:
    """Returns complex numbers of their parts."""
    shape = real.tensor.shape
    return joined([reshaped(p, (*shape, 1)) for p in (real, imaginary)], len(shape))


def _pair(layer: Layer, name: str) -> Expr:
    """Returns an operand as complex numbers of the result's dtype."""
    fake, dtype = layer.fake(name), layer.result().dtype
    if isinstance(fake, torch.Tensor) and fake.dtype.is_complex:
        return cast(layer.tensor(name), dtype)
    value = layer[name]
    if isinstance(value, complex):
        return (
            constant([value.real, value.imag])
            if dtype == "f64"
            else cast(constant([value.real, value.imag]), dtype)
        )
    real = layer.importer.as_dtype(value, dtype)
    return paired(real, call("multiply", real, scalar(0, dtype)))


def _conjugate(x: Expr) -> Expr:
    real, imaginary = parts(x)
    return paired(real, call("negative", imaginary))


# --- parts ----------------------------------------------------------------------------------------


@complex_converter("view_as_real", "view_as_complex", "clone", "alias", "detach", "lift_fresh_copy")
def same(layer: Layer) -> Result:
    """The same pairs."""
    return layer.tensor()


@complex_converter("resolve_conj", "resolve_neg", "_to_copy")
def resolved(layer: Layer) -> Result:
    """The same values, perhaps as wider numbers; real ones become complex."""
    return _pair(layer, "self") if layer.fakes[0].dtype.is_complex else _real_part(layer)


def _real_part(layer: Layer) -> Expr:
    return layer.to_result(parts(layer.tensor())[0])


@complex_converter("_conj", "_conj_physical", "conj_physical")
def conjugate(layer: Layer) -> Result:
    """The imaginary part negated."""
    return _conjugate(layer.tensor())


@complex_converter("complex")
def of_parts(layer: Layer) -> Result:
    """Complex numbers of their parts, which broadcast."""
    shape = layer.result().shape[:-1]
    return paired(*(_spread(layer.tensor(n), shape) for n in ("real", "imag")))


def _spread(x: Expr, shape: Sequence[Dim]) -> Expr:
    return x if x.tensor.shape == tuple(shape) else call("broadcast_to", x, shape=tuple(shape))


@complex_converter("polar")
def polar(layer: Layer) -> Result:
    """Complex numbers of their sizes and angles."""
    size, angle = layer.tensor("abs"), layer.tensor("angle")
    return paired(*(call("multiply", size, call(op, angle)) for op in ("cos", "sin")))


@complex_converter("abs")
def size(layer: Layer) -> Result:
    """The distance from zero, without overflow."""
    real, imaginary = (call("abs", p) for p in parts(layer.tensor()))
    dtype = real.tensor.dtype
    most, least = call("maximum", real, imaginary), call("minimum", real, imaginary)
    none = call("equal", most, scalar(0, dtype))
    ratio = call("divide", least, call("where", none, scalar(1, dtype), most))
    root = call("sqrt", call("add", call("multiply", ratio, ratio), scalar(1, dtype)))
    endless = call("isinf", most)
    return call("where", endless, most, call("multiply", most, root))


# --- arithmetic -----------------------------------------------------------------------------------


@complex_converter("neg")
def negative(layer: Layer) -> Result:
    """Both parts negated."""
    return call("negative", layer.tensor())


@complex_converter("add", "sub")
def add(layer: Layer) -> Result:
    """Part by part."""
    op = "add" if layer.op.startswith("add") else "subtract"
    other = _pair(layer, "other")
    alpha = layer.get("alpha", 1)
    if alpha != 1:
        other = call("multiply", other, scalar(layer.number("alpha"), other.tensor.dtype))
    return call(op, _pair(layer, "self"), other)


@complex_converter("mul")
def multiply(layer: Layer) -> Result:
    """Products of complex numbers; with a real one, part by part."""
    return reshaped(_product(*(_pair(layer, n) for n in ("self", "other"))), layer.result().shape)


def _product(*factors: Expr) -> Expr:
    # The operator takes vectors of numbers.
    rows = [x if x.tensor.rank > 1 else reshaped(x, (1, 2)) for x in factors]
    return call("complex_multiply", *rows)


@complex_converter("div")
def divide(layer: Layer) -> Result:
    """Quotients, by the conjugate."""
    if layer.get("rounding_mode") is not None:
        raise layer.unsupported("rounded quotients of complex numbers")
    above, below = _pair(layer, "self"), _pair(layer, "other")
    real, imaginary = parts(below)
    square = call("add", call("multiply", real, real), call("multiply", imaginary, imaginary))
    found = reshaped(_product(above, _conjugate(below)), layer.result().shape)
    return call("divide", found, reshaped(square, (*square.tensor.shape, 1)))


# --- movement -------------------------------------------------------------------------------------


@complex_converter(
    "view.default", "reshape", "_unsafe_view", "squeeze", "unsqueeze", "flatten", "unflatten",
    "_reshape_alias",
)  # fmt: skip
def view(layer: Layer) -> Result:
    """The same numbers in the shape that torch gives."""
    return reshaped(layer.tensor(), layer.result().shape)


@complex_converter("permute")
def permute(layer: Layer) -> Result:
    """Axes in another order."""
    x = layer.tensor()
    rank = x.tensor.rank - 1
    return call("transpose", x, axes=(*(a % rank for a in layer.integers("dims")), rank))


@complex_converter("transpose.int")
def transpose(layer: Layer) -> Result:
    """Two axes exchanged."""
    x = layer.tensor()
    axes = list(range(x.tensor.rank))
    first, second = (layer.axis(n, x.tensor.rank - 1) for n in ("dim0", "dim1"))
    axes[first], axes[second] = axes[second], axes[first]
    return call("transpose", x, axes=tuple(axes))


@complex_converter("expand")
def expand(layer: Layer) -> Result:
    """Axes of size 1 repeated."""
    return _spread(layer.tensor(), layer.result().shape)


@complex_converter("constant_pad_nd")
def constant_pad(layer: Layer) -> Result:
    """Zeros around the numbers."""
    x, given = layer.tensor(), layer.dims("pad")
    value = layer.get("value", 0)
    if value != 0:
        raise layer.unsupported(f"padding with {value}")
    rank = x.tensor.rank
    before: list[Dim] = [0] * rank
    after: list[Dim] = [0] * rank
    for n in range(len(given) // 2):
        before[rank - 2 - n], after[rank - 2 - n] = given[2 * n], given[2 * n + 1]
    return call("pad", x, pads=(*before, *after), mode="constant", value=0.0)


@complex_converter("slice", "select.int", "cat", "stack")
def along(layer: Layer) -> Result:
    """As of real numbers, with the axis counted from the front."""
    axis = layer.get("dim", 0)
    rank = layer.fakes[0].dim() + (1 if layer.op.startswith("select") else 0)
    plain = find(layer.node.target)
    assert plain is not None
    return plain(layer.with_arguments(dim=axis % rank))


# --- Fourier transforms ---------------------------------------------------------------------------

# How torch numbers the ways to scale a transform.
_BY_ROOT: Final = 1
_BY_SIZE: Final = 2


def _scaled(layer: Layer, x: Expr, sizes: Sequence[Dim], done: bool) -> Expr:
    """Returns a transform in the scale asked for; `done` says that it is divided by the size."""
    how = layer.integer("normalization")
    count = product(tuple(sizes))
    if not isinstance(count, int):
        raise layer.unsupported("a signal of free size")
    wanted = {_BY_ROOT: 1 / math.sqrt(count), _BY_SIZE: 1 / count}.get(how, 1.0) if count else 1.0
    factor = wanted * count if done else wanted
    return x if factor == 1 else call("multiply", x, scalar(factor, x.tensor.dtype))


def _axes(layer: Layer, rank: int) -> list[int]:
    return [a % rank for a in layer.integers("dim")]


@complex_converter("_fft_r2c")
def real_to_complex(layer: Layer) -> Result:
    """The spectrum of real signals; one-sided along the last of the axes."""
    x = layer.tensor()
    axes = _axes(layer, x.tensor.rank)
    sizes = [x.tensor.shape[a] for a in axes]
    found = reshaped(x, (*x.tensor.shape, 1))
    onesided = layer.flag("onesided")
    found = call("dft", found, axis=axes[-1], onesided=onesided)
    for axis in axes[:-1]:
        found = call("dft", found, axis=axis)
    return _scaled(layer, found, sizes, done=False)


@complex_converter("_fft_c2c")
def complex_to_complex(layer: Layer) -> Result:
    """The spectrum of complex signals, or its inverse."""
    x = layer.tensor()
    axes = _axes(layer, x.tensor.rank - 1)
    inverse = not layer.flag("forward")
    found = x
    for axis in axes:
        found = call("dft", found, axis=axis, inverse=inverse)
    return _scaled(layer, found, [x.tensor.shape[a] for a in axes], done=inverse)


@complex_converter("_fft_c2r")
def complex_to_real(layer: Layer) -> Result:
    """The real signal of a one-sided spectrum."""
    x = layer.tensor()
    axes, last = _axes(layer, x.tensor.rank - 1), layer.integer("last_dim_size")
    found = x
    for axis in axes[:-1]:
        found = call("dft", found, axis=axis, inverse=True)
    found = call("dft", found, axis=axes[-1], inverse=True, onesided=True, length=last)
    sizes = [*(x.tensor.shape[a] for a in axes[:-1]), last]
    return layer.shaped(_scaled(layer, found, sizes, done=True))
