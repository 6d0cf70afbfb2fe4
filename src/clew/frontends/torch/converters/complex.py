"""Complex numbers, as pairs of real ones in an axis behind the others, and Fourier transforms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from clew.frontends.building import call, cast, constant, reshaped, scalar
from clew.frontends.lowering.angles import angle_of
from clew.frontends.torch.converters.movement import (
    OTHER_PADS,
    PAD_MODES,
    joined,
    pads_of,
    sliced,
)
from clew.frontends.torch.converters.products import product_of
from clew.frontends.torch.layer import Layer
from clew.frontends.torch.registry import Result, complex_converter, find
from clew.frontends.torch.values import Value
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
    return _number(layer, layer[name], layer.fake(name))


def _number(layer: Layer, value: Value, fake: Any) -> Expr:
    dtype = layer.result().dtype
    if isinstance(fake, torch.Tensor) and fake.dtype.is_complex:
        return cast(value, dtype)
    if isinstance(value, complex):
        return (
            constant([value.real, value.imag])
            if dtype == "f64"
            else cast(constant([value.real, value.imag]), dtype)
        )
    real = layer.importer.as_dtype(value, dtype)
    return paired(real, call("multiply", real, scalar(0, dtype)))


def _as_real(layer: Layer, /, **changed: Value) -> Result:
    """Returns the result of the converter for real numbers, with changed arguments."""
    convert = find(layer.node.target)
    assert convert is not None
    return convert(layer.with_arguments(**changed))


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
    return _size(layer.tensor())


def _size(x: Expr) -> Expr:
    real, imaginary = (call("abs", p) for p in parts(x))
    dtype = real.tensor.dtype
    most, least = call("maximum", real, imaginary), call("minimum", real, imaginary)
    none = call("equal", most, scalar(0, dtype))
    ratio = call("divide", least, call("where", none, scalar(1, dtype), most))
    root = call("sqrt", call("add", call("multiply", ratio, ratio), scalar(1, dtype)))
    endless = call("isinf", most)
    return call("where", endless, most, call("multiply", most, root))


@complex_converter("angle")
def angle(layer: Layer) -> Result:
    """The angle from the positive real axis."""
    real, imaginary = parts(layer.tensor())
    return angle_of(imaginary, real)


@complex_converter(
    "full", "full_like", "new_full", "fill", "zeros", "zeros_like", "new_zeros", "ones",
    "ones_like", "new_ones", "empty", "empty_like", "new_empty", "empty_strided",
    "new_empty_strided", "empty_permuted", "scalar_tensor",
)  # fmt: skip
def full(layer: Layer) -> Result:
    """A tensor filled with one number; a real tensor if only the operand is complex."""
    name = next((n for n in ("fill_value", "value", "s") if n in layer.arguments), "")
    value = layer[name] if name else int("ones" in layer.op)
    if not layer.fakes[0].dtype.is_complex:
        return layer.filled(value)
    return _spread(_number(layer, value, None), layer.result().shape)


@complex_converter("copy")
def copy(layer: Layer) -> Result:
    """The elements of another tensor, which is broadcast."""
    return _spread(_pair(layer, "src"), layer.result().shape)


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
    found = reshaped(_product(above, _conjugate(below)), layer.result().shape)
    return _divided(found, _square(below))


@complex_converter("reciprocal")
def reciprocal(layer: Layer) -> Result:
    """The conjugate, divided by the square of the magnitude."""
    x = layer.tensor()
    return _divided(_conjugate(x), _square(x))


def _square(x: Expr) -> Expr:
    """Returns the squares of magnitudes."""
    return call("sum", call("multiply", x, x), axes=(x.tensor.rank - 1,), keepdims=False)


def _divided(x: Expr, by: Expr) -> Expr:
    """Returns complex numbers divided by real ones."""
    return call("divide", x, reshaped(by, (*by.tensor.shape, 1)))


@complex_converter("exp")
def exponential(layer: Layer) -> Result:
    """The magnitude is the exponential of the real part, and the angle is the imaginary part."""
    real, imaginary = parts(layer.tensor())
    size_ = call("exp", real)
    return paired(*(call("multiply", size_, call(op, imaginary)) for op in ("cos", "sin")))


@complex_converter("log")
def logarithm(layer: Layer) -> Result:
    """The logarithm of the magnitude, and the angle."""
    real, imaginary = parts(layer.tensor())
    return paired(call("log", _size(layer.tensor())), angle_of(imaginary, real))


@complex_converter("sum", "mean")
def total(layer: Layer) -> Result:
    """The sum or mean, part by part."""
    x, op = layer.tensor(), layer.op.partition(".")[0]
    rank = x.tensor.rank - 1
    given = layer.integers("dim") if layer.has("dim") else ()
    axes = tuple(sorted({a % max(rank, 1) for a in given})) or tuple(range(rank))
    found = call(op, x, axes=axes, keepdims=layer.flag("keepdim")) if rank else x
    return layer.shaped(found)


@complex_converter("linalg_vector_norm")
def vector_norm(layer: Layer) -> Result:
    """The norm of the magnitudes."""
    return _as_real(layer, self=_size(layer.tensor()))


@complex_converter("where.self")
def where(layer: Layer) -> Result:
    """Elements of one tensor where a condition holds, of the other elsewhere."""
    holds = layer.tensor("condition")
    holds = reshaped(holds, (*holds.tensor.shape, 1))
    return call("where", holds, _pair(layer, "self"), _pair(layer, "other"))


@complex_converter("masked_fill")
def masked_fill(layer: Layer) -> Result:
    """One number where a mask holds."""
    mask = layer.tensor("mask")
    mask = reshaped(mask, (*mask.tensor.shape, 1))
    return call("where", mask, _pair(layer, "value"), layer.tensor())


# --- products of matrices -------------------------------------------------------------------------


@complex_converter("mm", "bmm", "matmul", "mv", "dot")
def matmul(layer: Layer) -> Result:
    """The matrix product."""
    first, second = list(layer.arguments)[:2]
    return _matrix_product(layer, first, second)


@complex_converter("addmm", "baddbmm", "addmv")
def add_product(layer: Layer) -> Result:
    """A matrix product plus a tensor that is broadcast."""
    if layer.get("alpha", 1) != 1 or layer.get("beta", 1) != 1:
        raise layer.unsupported("factors of complex products")
    first, second = list(layer.arguments)[1:3]
    return call("add", _matrix_product(layer, first, second), _pair(layer, "self"))


def _matrix_product(layer: Layer, *names: str) -> Expr:
    (a, b), (c, d) = (parts(_pair(layer, name)) for name in names)
    real = call("subtract", product_of(a, c), product_of(b, d))
    return paired(real, call("add", product_of(a, d), product_of(b, c)))


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
    x, value = layer.tensor(), layer.get("value", 0)
    if value != 0:
        raise layer.unsupported(f"padding with {value}")
    before, after = pads_of(layer, x.tensor.rank - 1)
    return call("pad", x, pads=(*before, 0, *after, 0), mode="constant", value=0.0)


@complex_converter(*OTHER_PADS)
def other_pad(layer: Layer) -> Result:
    """Padding mirrored at the edges, or with the elements there."""
    x = layer.tensor()
    before, after = pads_of(layer, x.tensor.rank - 1)
    mode = PAD_MODES[layer.op.partition("_")[0]]
    return call("pad", x, pads=(*before, 0, *after, 0), mode=mode)


@complex_converter(
    "slice", "select.int", "unbind", "split_with_sizes", "split", "chunk", "index_select", "cumsum",
)  # fmt: skip
def along(layer: Layer) -> Result:
    """As of real numbers, with the axis counted from the front."""
    return _along(layer)


@complex_converter("cat", "concat", "stack")
def joined_along(layer: Layer) -> Result:
    """Tensors one after another, or along a new axis; real numbers become complex."""
    rank = layer.fakes[0].dim()
    fakes = layer.fake("tensors")
    parts_ = zip(layer["tensors"], fakes, strict=True)
    pairs = [_number(layer, x, fake) for x, fake in parts_ if fake.shape != (0,) or rank == 1]
    return _along(layer, tensors=pairs)


def _along(layer: Layer, **changed: Value) -> Result:
    axis, fake = layer.get("dim", 0), layer.fakes[0]
    rank = fake.dim() + layer.op.startswith(("select.int", "unbind"))
    return _as_real(layer, dim=axis % max(rank, 1), **changed)


@complex_converter("slice_scatter", "select_scatter")
def replaced(layer: Layer) -> Result:
    """Slices of an axis replaced; real numbers become complex."""
    return _along(layer, self=_pair(layer, "self"), src=_pair(layer, "src"))


@complex_converter("index.Tensor", "_unsafe_index")
def index(layer: Layer) -> Result:
    """Advanced indexing as in NumPy. The last axis, which holds the parts, is kept whole."""
    return _as_real(layer)


@complex_converter("index_put", "_unsafe_index_put")
def index_put(layer: Layer) -> Result:
    """Numbers written, or added, at places of advanced indexing."""
    return _as_real(layer, values=_pair(layer, "values"))


@complex_converter("flip")
def flip(layer: Layer) -> Result:
    """Axes reversed."""
    x = layer.tensor()
    axes = (
        tuple(a % (x.tensor.rank - 1) for a in layer.integers("dims")) if x.tensor.rank > 1 else ()
    )
    return call("flip", x, axes=axes) if axes else x


@complex_converter("roll")
def roll(layer: Layer) -> Result:
    """Elements shifted along axes, with wrap-around."""
    x = layer.tensor()
    if layer.has("dims") and layer.integers("dims"):
        rank = max(x.tensor.rank - 1, 1)
        return _as_real(layer, dims=[a % rank for a in layer.integers("dims")])
    rows = reshaped(x, (product(x.tensor.shape[:-1]), 2))
    found = _as_real(layer, self=rows, dims=[0])
    assert isinstance(found, Expr)
    return reshaped(found, x.tensor.shape)


@complex_converter("repeat", "tile")
def repeat(layer: Layer) -> Result:
    """The tensor repeated along axes, with new axes in front."""
    name = "repeats" if "repeats" in layer.arguments else "dims"
    return _as_real(layer, **{name: [*layer.dims(name), 1]})


# --- Fourier transforms ---------------------------------------------------------------------------

# How torch numbers the ways to scale a transform.
_BY_ROOT: Final = 1
_BY_SIZE: Final = 2


def _scaled(layer: Layer, x: Expr, sizes: Sequence[Dim], done: bool) -> Expr:
    """Returns a transform in the requested scale; `done`: whether it is divided by the size."""
    how, dtype = layer.integer("normalization"), x.tensor.dtype
    count = product(tuple(sizes))
    if count == 0:
        return x
    # The factor is this power of the size.
    power = {_BY_ROOT: -0.5, _BY_SIZE: -1.0}.get(how, 0.0) + done
    if power == 0 or count == 1:
        return x
    if isinstance(count, int):
        return call("multiply", x, scalar(float(count) ** power, dtype))
    size_ = layer.importer.scalar_of(count, "f64" if dtype == "f64" else "f32")
    root: Expr = size_ if abs(power) == 1 else call("sqrt", size_)
    return call("multiply" if power > 0 else "divide", x, cast(root, dtype))


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
    axes, last = _axes(layer, x.tensor.rank - 1), layer.dim("last_dim_size")
    found = x
    for axis in axes[:-1]:
        found = call("dft", found, axis=axis, inverse=True)
    found = call("dft", found, axis=axes[-1], inverse=True, onesided=True, length=last)
    sizes = [*(x.tensor.shape[a] for a in axes[:-1]), last]
    return layer.shaped(_scaled(layer, found, sizes, done=True))
