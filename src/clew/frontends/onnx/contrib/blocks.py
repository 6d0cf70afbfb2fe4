"""ONNX Runtime's operators on weights of a few bits, packed into bytes and scaled in blocks."""

from __future__ import annotations

import numpy as np

from clew.frontends.building import call, cast, reshaped, scalar
from clew.frontends.lowering.attention import part
from clew.frontends.onnx.contrib.schemas import MICROSOFT
from clew.frontends.onnx.layer import Layer
from clew.frontends.onnx.registry import Result, converter
from clew.ir.expr import Constant, Expr
from clew.ir.types import STORAGE, is_float, to_numpy
from clew.ops.common import differ

_PACKED = {2: "u2", 4: "u4", 8: "u8"}


def unpacked(layer: Layer, x: Expr, bits: int) -> Expr:
    """Returns the numbers packed into bytes along the last axis, the lowest bits first: in a dtype
    of that width if they are constant, else as bytes.
    """
    if bits not in _PACKED:
        raise layer.unsupported(f"with numbers of {bits} bits")
    if x.tensor.dtype != "u8":
        raise layer.wrong(f"has numbers packed as {x.tensor.dtype}")
    count = 8 // bits
    if count == 1:
        return x
    shape = (*x.tensor.shape[:-1], x.tensor.shape[-1] * count)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    if isinstance(x, Constant):
        pieces = (x.data[..., None] >> shifts) & np.uint8((1 << bits) - 1)
        dtype = to_numpy(_PACKED[bits])
        data = pieces.reshape((*x.data.shape[:-1], -1)).view(dtype)
        return Constant(data, name=x.name, span=x.span)
    column = reshaped(x, (*x.tensor.shape, 1))
    moved = call("right_shift", column, Constant(shifts))
    return reshaped(call("bitwise_and", moved, scalar((1 << bits) - 1, "u8")), shape)


def scaled_blocks(
    layer: Layer,
    codes: Expr,
    scales: Expr,
    zeros: Expr | None,
    *,
    axis: int,
    block: int,
    middle: int = 0,
) -> Expr:
    """Returns `(codes - zero) * scale` in the scales' dtype; each block along an axis has a scale
    and a zero point, which is `middle` if they are omitted.
    """
    if block < 1:
        raise layer.wrong(f"has a block_size of {block}")
    dtype, size = scales.tensor.dtype, codes.tensor.shape[axis]
    wide = "f64" if dtype == "f64" else "f32"
    if isinstance(size, int):
        block = max(1, min(block, size))

    if zeros is None and middle:
        zeros = scalar(middle, codes.tensor.dtype)
    if zeros is None or not is_float(zeros.tensor.dtype):
        points = () if zeros is None else (cast(zeros, codes.tensor.dtype),)
        return call("dequantize", codes, scales, *points, axis=axis, block=block)

    def spread(x: Expr) -> Expr:
        return call("repeat", x, axis=axis, repeats=block, size=size)

    value = call("subtract", cast(codes, wide), spread(cast(zeros, wide)))
    return cast(call("multiply", value, spread(cast(scales, wide))), dtype)


@converter("MatMulNBits", domain=MICROSOFT)
def matmul_nbits(layer: Layer) -> Result:
    """A product with a matrix [N, K] of a few bits per number, in blocks along K."""
    x, weight, scales = (layer.input(n) for n in range(3))
    if layer.optional(4) is not None:
        raise layer.unsupported("with an order of the features (g_idx)")
    if layer.integer("weight_prepacked"):
        raise layer.unsupported("with a weight in the order of one GPU")
    bits, block = layer.integer("bits"), layer.integer("block_size")
    outer, depth = layer.integer("N"), layer.integer("K")
    if bits not in _PACKED:
        raise layer.unsupported(f"with numbers of {bits} bits")
    if block < 1 or depth < 1 or outer < 1 or differ(x.tensor.shape[-1], depth):
        raise layer.wrong(f"has K={depth}, N={outer}, block_size={block} for {x.type}")
    blocks = -(-depth // block)
    weight = _matrix(layer, weight, (outer, blocks * block * bits // 8), "a weight")
    codes = _first(unpacked(layer, weight, bits), depth)
    zeros = layer.optional(3)
    if zeros is not None and not is_float(zeros.tensor.dtype):
        packed = _matrix(layer, zeros, (outer, -(-blocks * bits // 8)), "zero points")
        zeros = _first(unpacked(layer, packed, bits), blocks)
    elif zeros is not None:
        zeros = _matrix(layer, zeros, (outer, blocks), "zero points")
    scales = _matrix(layer, scales, (outer, blocks), "scales")
    middle = 1 << (bits - 1)
    matrix = scaled_blocks(layer, codes, scales, zeros, axis=1, block=block, middle=middle)
    result = call("nn.dense", x, cast(matrix, x.tensor.dtype), weight_layout="NK")
    bias = layer.optional(5)
    return result if bias is None else call("add", result, bias)


def _first(x: Expr, count: int) -> Expr:
    """Returns the first columns of a matrix; of a constant, as a constant."""
    if isinstance(x, Constant) and count < x.data.shape[1]:
        return Constant(np.ascontiguousarray(x.data[:, :count]), name=x.name, span=x.span)
    return part(x, 1, 0, count)


def _matrix(layer: Layer, x: Expr, shape: tuple[int, ...], what: str) -> Expr:
    """Returns a parameter in its shape; a file may store it flat. Errors: M012."""
    size = int(np.prod(shape))
    if not x.tensor.is_static or x.tensor.size != size:
        raise layer.wrong(f"has {what} of type {x.type}, expected {list(shape)}")
    return reshaped(x, shape)


@converter("GatherBlockQuantized", domain=MICROSOFT)
def gather_block_quantized(layer: Layer) -> Result:
    """Slices of a quantized tensor by index, dequantized."""
    data, indices, scales = (layer.input(n) for n in range(3))
    zeros = layer.optional(3)
    rank = data.tensor.rank
    axis = layer.positive(layer.integer("gather_axis"), rank)
    along = layer.positive(layer.integer("quantize_axis"), rank)
    block, bits = layer.integer("block_size"), layer.integer("bits")
    middle = 0
    if data.tensor.dtype == "u8":
        middle = 1 << (bits - 1) if bits in _PACKED else 0
        data = unpacked(layer, data, bits)
        if zeros is not None:
            count = scales.tensor.shape[-1]
            zeros = part(unpacked(layer, zeros, bits), rank - 1, 0, count)
    elif data.tensor.dtype not in STORAGE:
        raise layer.wrong(f"has data of {data.tensor.dtype}")
    if not block:
        block = data.tensor.shape[along]  # type: ignore[assignment]
    if axis == along:
        whole = scaled_blocks(layer, data, scales, zeros, axis=along, block=block, middle=middle)
        return call("gather", whole, indices, axis=axis)
    codes, scales = (call("gather", x, indices, axis=axis) for x in (data, scales))
    if zeros is not None:
        zeros = call("gather", zeros, indices, axis=axis)
    moved = along + (indices.tensor.rank - 1 if along > axis else 0)
    return scaled_blocks(layer, codes, scales, zeros, axis=moved, block=block, middle=middle)
