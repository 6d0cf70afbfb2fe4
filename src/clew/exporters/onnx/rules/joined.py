"""Layers with their biases, and quantized layers from integers to integers."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from clew.exporters.onnx.joins import Join, Site, called, joins
from clew.exporters.onnx.registry import Writing
from clew.exporters.onnx.rules.convolution import conv_of, conv_transpose_of, window_of_conv
from clew.exporters.onnx.rules.quantization import dequantized
from clew.ir.expr import Call, Constant, Expr
from clew.ir.types import integer_limits, is_float

_CONVS: Final = ("nn.conv1d", "nn.conv2d", "nn.conv3d")
_TRANSPOSED: Final = ("nn.conv1d_transpose", "nn.conv2d_transpose", "nn.conv3d_transpose")
_BYTES: Final = ("i8", "u8")


def _per_channel(value: Expr, result: Call) -> bool:
    """Whether a value has one element for each channel of a convolution."""
    shape, full = value.tensor.concrete, result.tensor.concrete
    if len(shape) > len(full):
        return False
    wide = (*(1,) * (len(full) - len(shape)), *shape)
    return wide[1] == full[1] and all(n == 1 for a, n in enumerate(wide) if a != 1)


@joins("add")
def conv_with_bias(call: Call) -> Join | None:
    """A convolution and the addition of a value per channel: the operator's third input."""
    for conv, bias in (call.args, call.args[::-1]):
        found = called(conv, *_CONVS, *_TRANSPOSED)
        if found is None or not is_float(found.tensor.dtype) or not _per_channel(bias, found):
            continue
        if found.type != call.type:
            continue

        def write(site: Site, found: Call = found, bias: Expr = bias) -> str:
            w = site.at(found)
            vector = w.reshaped(site.name(bias), (found.tensor.concrete[1],))
            rule = conv_of if found.op_name in _CONVS else conv_transpose_of
            return rule(w, vector)

        return Join((found,), write)
    return None


def _with_sums(value: Expr, *names: str) -> tuple[Call, Constant | None, tuple[Call, ...]] | None:
    """Returns an integer product, a constant that is added to it, and the calls of both."""
    product = called(value, *names)
    if product is not None:
        return product, None, (product,)
    total = called(value, "add")
    if total is None:
        return None
    for a, b in (total.args, total.args[::-1]):
        product = called(a, *names)
        if product is not None and isinstance(b, Constant) and product.type == total.type:
            return product, b, (product, total)
    return None


def _dtypes_fit(product: Call, result: str) -> bool:
    """Whether the integers are of 8 bits, and those of the data and the result alike, which ONNX
    Runtime requires of both quantized operators.
    """
    data, weight = (a.tensor.dtype for a in product.args)
    if data not in _BYTES or weight not in _BYTES:
        return False
    return data == result and (data == "u8" or weight == "i8")


def _one_point(call: Call, first: int) -> bool:
    """Whether a call's zero point, from argument `first` on, is one number."""
    return all(a.tensor.size == 1 for a in call.args[first:])


def _finished(site: Site, call: Call, quantized: str) -> str:
    """Returns a quantized result; that of `fake_quantize` in floats."""
    if call.op_name == "requantize":
        return quantized
    return dequantized(site.at(call), quantized, scale=2, first=3)


def _steps(w: Writing, value: str, axis: int) -> str:
    """Returns a scale as a number or a vector along an axis."""
    one = w.call.args[1].tensor.size == 1
    return w.reshaped(value, () if one else (w.call.args[1].tensor.concrete[axis],))


def _operands(
    site: Site, call: Call, product: Call, data_point: int, axis: int
) -> list[str | None]:
    """Returns the inputs of `QLinearConv` and `QLinearMatMul`, whose steps are those of the sums:
    data and result have steps of 1.
    """
    w, p = site.at(call), site.at(product)
    zeros = 3 if call.op_name == "fake_quantize" else 2
    one = w.constant(np.float32(1))
    data, weight = (a.tensor.dtype for a in product.args)
    if len(call.args) > zeros:
        point = w.reshaped(w.inputs[zeros], ())
    else:
        point = w.constant(np.asarray(0), call.attrs.dtype)
    return [
        p.inputs[0],
        one,
        w.constant(np.asarray(data_point), data),
        p.inputs[1],
        _steps(w, w.inputs[1], axis),
        w.constant(np.asarray(0), weight),
        one,
        point,
    ]


@joins("requantize", "fake_quantize")
def quantized_conv(call: Call) -> Join | None:
    """A convolution of bytes, with or without bias, and its requantization: `QLinearConv`."""
    found = _with_sums(call.args[0], *_CONVS)
    if found is None:
        return None
    conv, bias, inner = found
    scale = call.args[1]
    fits = isinstance(scale, Constant) and (scale.tensor.size == 1 or _per_channel(scale, conv))
    if bias is not None:
        fits = fits and _per_channel(bias, conv)
    zeros = 3 if call.op_name == "fake_quantize" else 2
    if not fits or not _dtypes_fit(conv, call.attrs.dtype) or not _one_point(call, zeros):
        return None

    def write(site: Site) -> str:
        operands = _operands(site, call, conv, 0, scale.tensor.rank - conv.tensor.rank + 1)
        w = site.at(conv)
        if bias is not None:
            operands.append(w.reshaped(site.name(bias), (conv.tensor.concrete[1],)))
        made = w.emit("QLinearConv", *operands, **window_of_conv(w))
        return _finished(site, call, made)

    return Join(inner, write)


@joins("requantize", "fake_quantize")
def quantized_dense(call: Call) -> Join | None:
    """A matrix product of bytes and its requantization.

    `QLinearMatMul` takes no bias, but a zero point of the data, whose share of the sums is a
    constant that is added to them. With another bias it is a `Gemm` of dequantized operands, which
    engines compute on integers.
    """
    found = _with_sums(call.args[0], "nn.dense")
    if found is None or found[0].args[0].tensor.rank < 2:
        return None
    dense, bias, inner = found
    scale, columns = call.args[1], dense.tensor.concrete[-1]
    fits = isinstance(scale, Constant) and _per_column(scale, columns)
    if bias is not None:
        fits = fits and bias.tensor.size == columns and _per_column(bias, columns)
    zeros = 3 if call.op_name == "fake_quantize" else 2
    if not fits or not _dtypes_fit(dense, call.attrs.dtype) or not _one_point(call, zeros):
        return None
    point = 0 if bias is None else _data_point(dense, bias)

    def write(site: Site) -> str:
        operands = _operands(site, call, dense, point or 0, scale.tensor.rank - 1)
        w = site.at(dense)
        if point is not None:
            operands[3] = _by_columns(w, dense)
            return _finished(site, call, w.emit("QLinearMatMul", *operands))
        assert bias is not None
        return _finished(site, call, _biased(site, dense, bias, operands, scale.tensor.size != 1))

    return Join(inner, write)


def _per_column(value: Expr, columns: int) -> bool:
    """Whether a value is one number, or a vector of the columns of a matrix."""
    shape = value.tensor.concrete
    return value.tensor.size == 1 or shape == (*(1,) * (len(shape) - 1), columns)


def _by_columns(w: Writing, dense: Call) -> str:
    weight = w.inputs[1]
    return w.transposed(weight, (1, 0)) if dense.attrs.weight_layout == "NK" else weight


def _biased(
    site: Site, dense: Call, bias: Constant, operands: list[str | None], vector: bool
) -> str:
    """Returns a quantized product of matrices with a bias in units of its sums."""
    w = site.at(dense)
    data, one, zero, _, step, _, _, point = operands
    shape = dense.args[0].tensor.concrete
    assert data is not None
    assert step is not None
    if len(shape) > 2:
        data = w.emit("Reshape", data, w.integers(-1, shape[-1]))
    size = w.shape(1)[0 if dense.attrs.weight_layout == "NK" else 1] if vector else ()
    result = w.emit(
        "Gemm",
        w.emit("DequantizeLinear", data, one, zero, dtype="f32"),
        w.emit(
            "DequantizeLinear",
            _by_columns(w, dense),
            step,
            w.constant(np.zeros(size), w.types[1].dtype),
            dtype="f32",
            axis=1 if vector else None,
        ),
        w.emit(
            "DequantizeLinear",
            w.reshaped(site.name(bias), (bias.tensor.concrete[-1],)),
            step,
            w.constant(np.zeros(size), "i32"),
            dtype="f32",
            axis=0 if vector else None,
        ),
    )
    result = w.emit("QuantizeLinear", result, one, point)
    return (
        w.emit("Reshape", result, w.integers(*dense.tensor.concrete)) if len(shape) > 2 else result
    )


def _data_point(dense: Call, bias: Constant) -> int | None:
    """Returns the zero point of the data that a bias stands for: the negative of a column's sum of
    weights times the zero point. None if the bias is another one.
    """
    weight = dense.args[1]
    if not isinstance(weight, Constant) or dense.attrs.weight_layout not in ("NK", "KN"):
        return None
    axis = 1 if dense.attrs.weight_layout == "NK" else 0
    sums = weight.data.sum(axis, dtype=np.int64)
    if bias.tensor.size != sums.size or bias.tensor.concrete[-1:] != sums.shape:
        return None
    added: Any = bias.data.reshape(-1).astype(np.int64)
    most = int(np.abs(sums).argmax())
    if not sums[most]:
        return None
    point = -int(added[most]) // int(sums[most])
    low, high = integer_limits(dense.args[0].tensor.dtype)
    exact = low <= point <= high and np.array_equal(added, -point * sums)
    return point if exact else None
