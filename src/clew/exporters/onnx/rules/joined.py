"""Layers with their biases, and quantized layers from integers to integers."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from clew.exporters.onnx.joins import Join, Site, called, joins
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


def _dtypes_fit(product: Call, last: Call) -> bool:
    """Whether the integers are of 8 bits, those of data and result alike, and the result has one
    zero point, which ONNX Runtime requires of quantized layers.
    """
    data, weight = (a.tensor.dtype for a in product.args)
    if data not in _BYTES or weight not in _BYTES:
        return False
    one = all(a.tensor.size == 1 for a in last.args[_first_point(last) :])
    return one and data == last.attrs.dtype and (data == "u8" or weight == "i8")


def _first_point(call: Call) -> int:
    """Returns the position of the zero point among a call's arguments."""
    return 3 if call.op_name == "fake_quantize" else 2


@joins("requantize", "fake_quantize")
def quantized_conv(call: Call) -> Join | None:
    """A convolution of bytes, with or without bias, and its requantization."""
    found = _with_sums(call.args[0], *_CONVS)
    if found is None:
        return None
    conv, bias, inner = found
    scale = call.args[1]
    fits = isinstance(scale, Constant) and (scale.tensor.size == 1 or _per_channel(scale, conv))
    fits = fits and (bias is None or _per_channel(bias, conv))
    if not fits or not _dtypes_fit(conv, call):
        return None

    def write(site: Site) -> str:
        layer = _Quantized(site, call, conv)
        w, channels = layer.product, conv.tensor.concrete[1]
        operands = [layer.data(0), layer.weight(w.inputs[1], axis=0, count=channels)]
        if bias is not None:
            operands.append(layer.bias(bias, channels))
        return layer.finished(w.emit("Conv", *operands, **window_of_conv(w)))

    return Join(inner, write)


@joins("requantize", "fake_quantize")
def quantized_dense(call: Call) -> Join | None:
    """A matrix product of bytes and its requantization. A constant that is added to the sums is
    written as a zero point of the data if it is the share of one, else as the bias of a `Gemm`.
    """
    found = _with_sums(call.args[0], "nn.dense")
    if found is None or found[0].args[0].tensor.rank < 2:
        return None
    dense, bias, inner = found
    scale, columns = call.args[1], dense.tensor.concrete[-1]
    fits = isinstance(scale, Constant) and _per_column(scale, columns)
    if bias is not None:
        fits = fits and bias.tensor.size == columns and _per_column(bias, columns)
    if not fits or not _dtypes_fit(dense, call):
        return None
    point = 0 if bias is None else _data_point(dense, bias)

    def write(site: Site) -> str:
        layer = _Quantized(site, call, dense)
        w, shape = layer.product, dense.args[0].tensor.concrete
        matrix = w.inputs[1]
        if dense.attrs.weight_layout == "NK":
            matrix = w.transposed(matrix, (1, 0))
        weight = layer.weight(matrix, axis=1, count=columns)
        if bias is None or point is not None:
            return layer.finished(w.emit("MatMul", layer.data(point or 0), weight))
        flat = () if len(shape) == 2 else (-1, shape[-1])
        made = w.emit("Gemm", layer.data(0, flat), weight, layer.bias(bias, columns))
        return layer.finished(made, () if len(shape) == 2 else dense.tensor.concrete)

    return Join(inner, write)


class _Quantized:
    """A product of integers and its requantization, written as a product of dequantized operands,
    which engines compute on integers. The weight has the steps of the sums; data and result have
    steps of 1.
    """

    def __init__(self, site: Site, call: Call, product: Call) -> None:
        self.site, self.call = site, call
        self.last, self.product = site.at(call), site.at(product)
        self.one = self.last.constant(np.float32(1))

    def data(self, point: int, shape: tuple[int, ...] = ()) -> str:
        """Returns the data less a zero point, in a shape if one is given."""
        w = self.product
        x = w.emit("Reshape", w.inputs[0], w.integers(*shape)) if shape else w.inputs[0]
        zero = w.constant(np.asarray(point), w.types[0].dtype)
        return w.emit("DequantizeLinear", x, self.one, zero, dtype="f32")

    def weight(self, name: str, *, axis: int, count: int) -> str:
        """Returns the weight, whose columns or filters are on an axis."""
        return self._scaled(name, self.product.types[1].dtype, axis, count)

    def bias(self, value: Constant, count: int) -> str:
        """Returns the term added to the sums."""
        vector = self.product.reshaped(self.site.name(value), (count,))
        return self._scaled(vector, "i32", 0, count)

    def _scaled(self, name: str, dtype: str, axis: int, count: int) -> str:
        w, scale = self.last, self.call.args[1].tensor
        shape = () if scale.size == 1 else (count,)
        step = w.inputs[1] if scale.concrete == shape else w.reshaped(w.inputs[1], shape)
        zero = w.constant(np.zeros(shape), dtype)
        along = axis if shape else None
        return w.emit("DequantizeLinear", name, step, zero, dtype="f32", axis=along)

    def finished(self, result: str, shape: tuple[int, ...] = ()) -> str:
        """Returns the quantized result, in a shape if one is given; that of `fake_quantize` in
        floats.
        """
        w, first = self.last, _first_point(self.call)
        if len(w.inputs) > first:
            zero = w.reshaped(w.inputs[first], ()) if w.types[first].rank else w.inputs[first]
        else:
            zero = w.constant(np.asarray(0), self.call.attrs.dtype)
        made = w.emit("QuantizeLinear", result, self.one, zero)
        if shape:
            made = w.emit("Reshape", made, w.integers(*shape))
        if self.call.op_name == "requantize":
            return made
        return dequantized(w, made, scale=2, first=3)


def _per_column(value: Expr, columns: int) -> bool:
    """Whether a value is one number, or a vector of the columns of a matrix."""
    shape = value.tensor.concrete
    return value.tensor.size == 1 or shape == (*(1,) * (len(shape) - 1), columns)


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
