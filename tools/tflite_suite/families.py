"""How operators are drawn: those on elements, on images, products, reductions and movement."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from clew.frontends.tflite.file.schema import DTYPES
from tflite_suite.cases import (
    PLAIN,
    QUANTIZED,
    Case,
    Draw,
    Operand,
    Quantum,
    constant,
    family,
)

_PLAIN: Final = ("f32", "f32", "i32", "i64")
_ALL: Final = ("f32", "i8", "u8", "i16", "i32", "i64", "bool")


def _number(dtype: str) -> int:
    return DTYPES.index(dtype)


# --- elements -------------------------------------------------------------------------------------

_POSITIVE: Final = ("LOG", "RSQRT", "SQRT")
_SAME_SCALE: Final = ("CEIL", "FLOOR", "ROUND", "NEG", "SIGN", "SQUARE", "ZEROS_LIKE", "ABS")


@family(
    "ABS", "CEIL", "COS", "ELU", "EXP", "FLOOR", "HARD_SWISH", "LOG", "NEG", "RELU", "RELU6",
    "RELU_N1_TO_1", "RELU_0_TO_1", "ROUND", "RSQRT", "SIN", "SQRT", "SQUARE", "ZEROS_LIKE", "SIGN",
)  # fmt: skip
def unary(draw: Draw, op: str) -> Case:
    """Draws a case."""
    dtype = draw.one("f32", "f32", "i8", "u8", "i16", "i32", "i64")
    low = 0.1 if op in _POSITIVE else -4
    x = draw.tensor(draw.shape(), dtype, low=low)
    if op in _POSITIVE and dtype in QUANTIZED:
        zero = int(np.iinfo(x.value.dtype).min) if op == "RSQRT" else x.quantum.zero[0]
        x = Operand(np.maximum(x.value, zero + 1), False, Quantum(x.quantum.scale, (zero,)))
    result = draw.result(dtype)
    if op == "ABS" and dtype == "i16":
        result = (dtype, Quantum(result[1].scale, (0,)))
    return Case(op, [x], [result], version=2 if dtype in QUANTIZED else 1)


@family("LOGISTIC", "TANH", "LOG_SOFTMAX", "SOFTMAX")
def bounded(draw: Draw, op: str) -> Case:
    """Draws a case."""
    dtype = draw.one("f32", "i8", "u8", "i16")
    least = 1 if "SOFTMAX" in op else 0
    shape = draw.shape(least, 4 if "SOFTMAX" in op else 6, high=7)
    spans = {"LOGISTIC": (1 / 256, 0), "SOFTMAX": (1 / 256, 0), "TANH": (1 / 128, 1),
             "LOG_SOFTMAX": (16 / 256, 255)}  # fmt: skip
    scale, middle = spans[op]
    quantum, zero = PLAIN, {0: 0, 1: 128, 255: 255}[middle]
    if dtype == "i8":
        quantum = Quantum((scale,), (zero - 128,))
    elif dtype == "u8":
        quantum = Quantum((scale,), (zero,))
    elif dtype == "i16":
        quantum = Quantum((1 / 32768,), (0,))
    x = draw.tensor(shape, dtype, low=-8, high=8)
    if dtype == "i16" and draw.flag():
        x = Operand(x.value, False, Quantum((draw.one(1 / 4096, 1 / 2048, 1 / 8192),), (0,)))
    options = (
        ("SoftmaxOptions", {"beta": draw.one(1.0, 1.0, 0.5, 2.0)}) if op == "SOFTMAX" else None
    )
    return Case(op, [x], [(dtype, quantum)], options, version=2)


@family("LEAKY_RELU")
def leaky_relu(draw: Draw, op: str) -> Case:
    """Draws a case."""
    dtype = draw.one("f32", *QUANTIZED)
    options = ("LeakyReluOptions", {"alpha": float(np.float32(draw.rng.uniform(-1, 1.5)))})
    x = draw.tensor(draw.shape(), dtype)
    return Case(op, [x], [draw.result(dtype)], options, version=2)


@family("GELU")
def gelu(draw: Draw, op: str) -> Case:
    """Draws a case."""
    dtype = draw.one("f32", "i8", "u8")
    options = ("GeluOptions", {"approximate": draw.flag()})
    return Case(op, [draw.tensor(draw.shape(), dtype)], [draw.result(dtype)], options, version=2,
                tolerance=1e-4)  # fmt: skip


@family("PRELU")
def prelu(draw: Draw, op: str) -> Case:
    """Draws a case."""
    dtype = draw.one("f32", "i8", "u8")
    shape = draw.shape(1, 4)
    slope = tuple(draw.one(1, size) for size in shape)
    slopes = draw.tensor(slope, dtype, low=-1, high=1, constant=draw.flag())
    return Case(op, [draw.tensor(shape, dtype), slopes], [draw.result(dtype)])


def _pair(draw: Draw, most: int = 6) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns two shapes that broadcast."""
    shape = draw.shape(0, most)
    if draw.flag():
        return shape, shape
    one, two = (
        tuple(size if draw.whole(0, 2) else 1 for size in shape)[draw.whole(0, len(shape)) :]
        for _ in range(2)
    )
    return (shape, two) if draw.flag() else (one, shape)


_ARITHMETIC: Final = {"ADD": "AddOptions", "SUB": "SubOptions", "MUL": "MulOptions",
                      "DIV": "DivOptions"}  # fmt: skip


@family(*_ARITHMETIC)
def arithmetic(draw: Draw, op: str) -> Case:
    """Draws a case."""
    dtype = draw.one("f32", "i8", "i8", "u8", "i16", "i32", "i64")
    a, b = _pair(draw, 6)
    given: dict[str, Any] = {"activation": draw.whole(0, 3)}
    if op in ("ADD", "SUB") and dtype == "i16":
        given["pot_scale_int16"] = draw.flag()
    operands = [draw.tensor(a, dtype, low=-4), draw.tensor(b, dtype, constant=draw.flag())]
    if op == "DIV":
        operands[1] = draw.tensor(b, dtype, low=1, high=5)
        if dtype in QUANTIZED:
            quantum = operands[1].quantum
            value = operands[1].value
            zero = quantum.zero[0]
            operands[1] = Operand(np.where(value == zero, zero + 1, value).astype(value.dtype),
                                  False, quantum)  # fmt: skip
    span = {"ADD": 14, "SUB": 14, "MUL": 30, "DIV": 8}[op]
    result = draw.result(dtype, span)
    if given.get("pot_scale_int16"):
        operands = [Operand(o.value, o.constant, Quantum((2.0 ** -draw.whole(11, 13),), (0,)))
                    for o in operands]  # fmt: skip
        top = max(o.quantum.scale[0] for o in operands)
        result = ("i16", Quantum((top * draw.one(1, 2),), (0,)))
    return Case(op, operands, [result], (_ARITHMETIC[op], given), version=2)


_COMPARED: Final = ("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL")


@family(*_COMPARED)
def comparison(draw: Draw, op: str) -> Case:
    """Draws a case."""
    dtype = draw.one("f32", "i8", "u8", "i16", "i32", "i64", "bool")
    a, b = _pair(draw)
    operands = [draw.tensor(a, dtype), draw.tensor(b, dtype)]
    return Case(op, operands, [("bool", PLAIN)], version=2)


@family("MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE", "POW", "FLOOR_DIV", "FLOOR_MOD", "ATAN2",
        "BITWISE_XOR", "RIGHT_SHIFT", "LOGICAL_AND", "LOGICAL_OR")  # fmt: skip
def pairs(draw: Draw, op: str) -> Case:
    """Draws a case."""
    dtype = draw.one(*_ALL, "u32", "u16", "f64")
    if op.startswith("LOGICAL"):
        dtype = "bool"
    a, b = _pair(draw)
    if op == "ATAN2":
        b = a  # LiteRT does not broadcast them, and reads beyond the smaller one
    low = 1 if op in ("POW", "FLOOR_DIV", "FLOOR_MOD") else 0 if op == "RIGHT_SHIFT" else -4
    if op in ("POW", "FLOOR_DIV", "FLOOR_MOD", "BITWISE_XOR", "RIGHT_SHIFT"):
        operands = [Operand(draw.values(a, dtype, -4 if op != "POW" else 1)),
                    Operand(draw.values(b, dtype, low))]  # fmt: skip
        return Case(op, operands, [(dtype, PLAIN)], version=2)
    quantum = draw.quantum(dtype) if dtype in QUANTIZED else PLAIN
    same = op in ("MAXIMUM", "MINIMUM")
    operands = [draw.tensor(s, dtype, quantum=quantum if same else None) for s in (a, b)]
    result = (dtype, quantum) if same else draw.result(dtype, 50)
    return Case(op, operands, [result], version=2)


@family("LOGICAL_NOT")
def logical_not(draw: Draw, op: str) -> Case:
    """Draws a case."""
    return Case(op, [draw.tensor(draw.shape(), "bool")], [("bool", PLAIN)])


@family("ADD_N")
def add_n(draw: Draw, op: str) -> Case:
    """Draws a case."""
    dtype, shape = draw.one("f32", "i32"), draw.shape()
    return Case(op, [draw.tensor(shape, dtype) for _ in range(draw.whole(1, 4))], [(dtype, PLAIN)])


@family("CAST")
def cast(draw: Draw, op: str) -> Case:
    """Draws a case."""
    a, b = (draw.one("f32", "i8", "u8", "i16", "u16", "i32", "i64", "bool", "f64", "f16", "u32")
            for _ in range(2))  # fmt: skip
    low = 0 if b[0] == "u" or a[0] == "u" else -4
    x = Operand(draw.values(draw.shape(), a, low))
    options = ("CastOptions", {"in_data_type": _number(a), "out_data_type": _number(b)})
    return Case(op, [x], [(b, PLAIN)], options, version=6)


@family("QUANTIZE")
def quantize(draw: Draw, op: str) -> Case:
    """Draws a case."""
    a, b = draw.one("f32", "i8", "u8", "i16", "i32"), draw.one("i8", "u8", "i16", "i32")
    shape = draw.shape()
    x = draw.tensor(shape, a)
    if a == "i32":
        x = Operand(draw.values(shape, a, -40000, 40000), False, Quantum((0.0003,), (0,)))
    result = (b, Quantum((0.0005,), (0,))) if b == "i32" else draw.result(b)
    if a == "f32" and len(shape) > 1 and b != "i32" and draw.flag():
        count = shape[-1]
        scales = tuple(float(np.float32(draw.rng.uniform(0.01, 0.05))) for _ in range(count))
        result = (b, Quantum(scales, (0,) * count, len(shape) - 1))
    return Case(op, [x], [result], version=3)


@family("DEQUANTIZE")
def dequantize(draw: Draw, op: str) -> Case:
    """Draws a case."""
    dtype, shape = draw.one("i8", "u8", "i16", "f16"), draw.shape()
    x = draw.tensor(shape, dtype)
    if dtype == "i8" and shape and draw.flag():
        axis = draw.whole(0, len(shape) - 1)
        scales = tuple(float(np.float32(draw.rng.uniform(0.01, 0.05))) for _ in range(shape[axis]))
        x = Operand(x.value, False, Quantum(scales, (0,) * shape[axis], axis))
    return Case(op, [x], [("f32", PLAIN)], version=5)


@family("FAKE_QUANT")
def fake_quant(draw: Draw, op: str) -> Case:
    """Draws a case."""
    given = {
        "min": float(-draw.whole(0, 3)), "max": float(draw.whole(1, 4)),
        "num_bits": draw.one(8, 4, 16), "narrow_range": False,
    }  # fmt: skip
    return Case(op, [draw.tensor(draw.shape(), "f32")], [("f32", PLAIN)],
                ("FakeQuantOptions", given), version=2)  # fmt: skip


@family("BUCKETIZE")
def bucketize(draw: Draw, op: str) -> Case:
    """Draws a case."""
    bounds = sorted(map(float, draw.values((draw.whole(0, 5),), "f32").round(1)))
    x = draw.tensor(draw.shape(), draw.one("f32", "f64", "i32", "i64"))
    return Case(op, [x], [("i32", PLAIN)], ("BucketizeOptions", {"boundaries": bounds}))


@family("BITCAST")
def bitcast(draw: Draw, op: str) -> Case:
    """Draws a case."""
    kinds = ("f32", "i32", "u32"), ("i16", "u16", "f16"), ("i64", "f64"), ("i8", "u8")
    a, b = (draw.one(*pair) for pair in [draw.one(*kinds)] * 2)
    shape = draw.shape()
    if not draw.whole(0, 3):
        a, b, shape = draw.one(("i32", "i16", shape), ("i16", "i32", (*shape, 2)),
                               ("u8", "f32", (*shape, 4)))  # fmt: skip
    return Case(op, [Operand(draw.values(shape, a))], [(b, PLAIN)], ("BitcastOptions", {}))


@family("SELECT", "SELECT_V2")
def select(draw: Draw, op: str) -> Case:
    """Draws a case."""
    dtype = draw.one(*_ALL)
    quantum = draw.quantum(dtype) if dtype in QUANTIZED else PLAIN
    a, b = _pair(draw, 5)
    if not draw.whole(0, 4) or op == "SELECT":
        a = b = (2, *draw.shape(0, 3))
        condition = b[:1] if draw.flag() and b else b
    else:
        condition = tuple(size if draw.flag() else 1 for size in (a if len(a) > len(b) else b))
    operands = [draw.tensor(condition, "bool"),
                *(draw.tensor(s, dtype, quantum=quantum) for s in (a, b))]  # fmt: skip
    return Case(op, operands, [(dtype, quantum)], version=3)


# --- reductions -----------------------------------------------------------------------------------


@family("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD", "REDUCE_ANY", "REDUCE_ALL")
def reduction(draw: Draw, op: str) -> Case:
    """Draws a case."""
    dtype = draw.one("f32", "f32", "i8", "u8", "i16", "i32", "i64")
    if op in ("REDUCE_ANY", "REDUCE_ALL"):
        dtype = "bool"
    shape = draw.shape(0, 5)
    rank = len(shape)
    axes = [draw.whole(-rank, rank - 1) for _ in range(draw.whole(0, min(rank, 3)))]
    if op == "SUM" and dtype in ("i8", "i16"):
        dtype = "u8"
    x = draw.tensor(shape, dtype)
    # LiteRT's sums of signed codes, and of one scale, read memory that nothing has written.
    same = op in ("REDUCE_MAX", "REDUCE_MIN") or (op == "MEAN" and draw.flag())
    result = (dtype, x.quantum) if same else draw.result(dtype, 8 if op == "MEAN" else 20)
    options = ("ReducerOptions", {"keep_dims": draw.flag()})
    return Case(op, [x, constant(axes)], [result], options, version=2)


@family("ARG_MAX", "ARG_MIN")
def extremum(draw: Draw, op: str) -> Case:
    """Draws a case."""
    dtype, shape = draw.one("f32", "i8", "u8", "i32", "bool"), draw.shape(1, 6)
    kind = draw.one("i32", "i64")
    options = (f"{op.title().replace('_', '')}Options", {"output_type": _number(kind)})
    axis = constant(draw.whole(-len(shape), len(shape) - 1))
    return Case(op, [draw.tensor(shape, dtype), axis], [(kind, PLAIN)], options, version=2)


@family("CUMSUM")
def cumsum(draw: Draw, op: str) -> Case:
    """Draws a case."""
    dtype, shape = draw.one("f32", "i32", "i64"), draw.shape(1, 6)
    options = ("CumsumOptions", {"exclusive": draw.flag(), "reverse": draw.flag()})
    axis = constant(draw.whole(-len(shape), len(shape) - 1))
    return Case(op, [draw.tensor(shape, dtype), axis], [(dtype, PLAIN)], options)


@family("TOPK_V2")
def top_k(draw: Draw, op: str) -> Case:
    """Draws a case."""
    dtype, shape = draw.one("f32", "i8", "u8", "i32", "i64", "i16"), draw.shape(1, 4, 7)
    x = draw.tensor(shape, dtype)
    count = constant(draw.whole(1, shape[-1]))
    kind = draw.one("i32", "i32", "i16")
    return Case(op, [x, count], [(dtype, x.quantum), (kind, PLAIN)], version=3)


@family("L2_NORMALIZATION")
def l2_normalization(draw: Draw, op: str) -> Case:
    """Draws a case."""
    dtype = draw.one("f32", "u8", "i8")
    x = draw.tensor(draw.shape(1, 4, 6), dtype)
    result = (dtype, PLAIN)
    if dtype != "f32":
        result = (dtype, Quantum((1 / 128,), (128 if dtype == "u8" else 0,)))
    return Case(op, [x], [result], ("L2NormOptions", {}), version=2)


@family("SEGMENT_SUM", "UNSORTED_SEGMENT_SUM", "UNSORTED_SEGMENT_PROD", "UNSORTED_SEGMENT_MAX",
        "UNSORTED_SEGMENT_MIN")  # fmt: skip
def segments(draw: Draw, op: str) -> Case:
    """Draws a case."""
    dtype, shape = draw.one("f32", "i32"), draw.shape(1, 4)
    x = draw.tensor(shape, dtype)
    if op == "SEGMENT_SUM":
        steps = draw.values(shape[:1], "i32", 0, 1)
        steps[0] = 0
        numbers = np.cumsum(steps)
        return Case(op, [x, constant(numbers)], [(dtype, PLAIN)])
    inner = draw.whole(1, len(shape))
    numbers = draw.values(shape[:inner], "i32", -1, 3)
    return Case(op, [x, Operand(numbers, draw.flag()), constant(4)], [(dtype, PLAIN)])


# --- products -------------------------------------------------------------------------------------


_HYBRID: Final = "hybrid"  # floats times codes


def _types(draw: Draw, *dtypes: str) -> tuple[str, str]:
    """Returns the types of data and weights."""
    dtype = draw.one(*dtypes, _HYBRID)
    return ("f32", "i8") if dtype == _HYBRID else (dtype, "i8" if dtype == "i16" else dtype)


def _weight(
    draw: Draw, shape: tuple[int, ...], axis: int, dtype: str, *, single: bool = True
) -> Operand:
    """Returns weights: codes per channel, or of one scale if a `single` one is allowed."""
    if dtype == "f32":
        return draw.tensor(shape, dtype, low=-1, high=1, constant=True)
    if dtype == "u8":
        return draw.tensor(shape, dtype, low=-1, high=1, constant=True)
    value = draw.rng.integers(-127, 128, shape, np.int8)
    count = shape[axis] if draw.flag() or not single else 1
    scales = tuple(float(np.float32(draw.rng.uniform(0.002, 0.012))) for _ in range(count))
    return Operand(value, True, Quantum(scales, (0,) * count, axis if count > 1 else 0))


def _bias(
    draw: Draw, count: int, x: Operand, weight: Operand, *, needed: bool = False
) -> Operand | None:
    if not needed and not draw.whole(0, 3):
        return None
    if x.value.dtype == np.float32:
        return draw.tensor((count,), "f32", constant=True)
    scales = tuple(float(np.float32(x.quantum.scale[0] * s)) for s in weight.quantum.scale)
    kind = np.int64 if x.value.dtype == np.int16 else np.int32
    value = (draw.rng.uniform(-2, 2, count) / np.asarray(scales)).astype(kind)
    return Operand(value, True, Quantum(scales, (0,) * len(scales), 0))


def _product(draw: Draw, depth: int, dtype: str) -> tuple[str, Quantum]:
    return draw.result(dtype, 6 * depth**0.5)


@family("FULLY_CONNECTED")
def fully_connected(draw: Draw, op: str) -> Case:
    """Draws a case."""
    dtype, kind = _types(draw, "f32", "i8", "i8", "u8", "i16")
    depth, out = draw.whole(1, 40), draw.whole(1, 9)
    keep = draw.flag()
    x = draw.tensor((*draw.shape(1, 3), depth), dtype)
    weight = _weight(draw, (out, depth), 0, kind)
    given = {"activation": draw.whole(0, 3), "keep_num_dims": keep}
    if dtype != kind == "i8":
        given["asymmetric_quantize_inputs"] = draw.flag()
    operands = [x, weight, _bias(draw, out, x, weight)]
    return Case(op, operands, [_product(draw, depth, dtype)], ("FullyConnectedOptions", given),
                version=7 if dtype == "i16" else 9)  # fmt: skip


@family("BATCH_MATMUL")
def batch_matmul(draw: Draw, op: str) -> Case:
    """Draws a case."""
    dtype, kind = _types(draw, "f32", "i8", "i16")
    rows, depth, columns = draw.whole(1, 6), draw.whole(1, 20), draw.whole(1, 6)
    hybrid = dtype == "f32" and kind == "i8"
    # LiteRT's kernel for floats and codes mixes up the scales of several axes of batches.
    outer = draw.shape(0, 1 if hybrid else 3, 3)
    turn = draw.flag(), draw.flag()
    a = (depth, rows) if turn[0] else (rows, depth)
    b = (columns, depth) if turn[1] else (depth, columns)
    other = tuple(size if draw.flag() else 1 for size in outer)
    given = {"adj_x": turn[0], "adj_y": turn[1]}
    right = draw.tensor((*other, *b), dtype)
    if hybrid:
        scale = float(np.float32(draw.rng.uniform(0.002, 0.012)))
        codes = draw.rng.integers(-127, 128, (*other, *b), np.int8)
        right = Operand(codes, True, Quantum((scale,), (0,)))
        given["asymmetric_quantize_inputs"] = draw.flag()
    operands = [draw.tensor((*outer, *a), dtype), right]
    options = ("BatchMatMulOptions", given)
    return Case(op, operands, [_product(draw, 4 * depth, dtype)], options, version=4)


@family("CONV_2D", "DEPTHWISE_CONV_2D")
def conv_2d(draw: Draw, op: str) -> Case:
    """Draws a case."""
    dtype, kind = _types(draw, "f32", "i8", "i8", "u8", "i16")
    inner, out, spans = draw.whole(1, 9), draw.whole(1, 9), (draw.whole(1, 4), draw.whole(1, 4))
    given: dict[str, Any] = {
        "padding": draw.whole(0, 1), "stride_h": draw.whole(1, 2), "stride_w": draw.whole(1, 2),
        "activation": draw.whole(0, 3), "dilation_h": draw.whole(1, 2),
        "dilation_w": draw.whole(1, 2),
    }  # fmt: skip
    if op == "CONV_2D":
        groups = draw.one(1, 1, 1, 2)
        image, weights = inner * groups, (out * groups, *spans, inner)
        axis, count, depth = 0, out * groups, inner * spans[0] * spans[1]
    else:
        image, multiplier, groups = inner, draw.whole(1, 3), inner
        given["depth_multiplier"] = multiplier
        weights, axis, count = (1, *spans, inner * multiplier), 3, inner * multiplier
        depth = spans[0] * spans[1]
    x = draw.tensor((draw.whole(1, 2), draw.whole(8, 10), draw.whole(8, 10), image), dtype)
    # LiteRT's kernels by channel read a scale of each one, even if the file has a single scale.
    single = dtype != "f32" or (op == "CONV_2D" and groups == 1)
    weight = _weight(draw, weights, axis, kind, single=single)
    operands = [x, weight, _bias(draw, count, x, weight, needed=op != "CONV_2D")]
    options = ("Conv2DOptions" if op == "CONV_2D" else "DepthwiseConv2DOptions", given)
    return Case(op, operands, [_product(draw, depth, dtype)], options, version=6)


@family("TRANSPOSE_CONV")
def transpose_conv(draw: Draw, op: str) -> Case:
    """Draws a case."""
    dtype, kind = _types(draw, "f32", "i8", "u8", "i16")
    inner, out, span, stride = (
        draw.whole(1, 5),
        draw.whole(1, 5),
        draw.whole(1, 4),
        draw.whole(1, 3),
    )
    padding = draw.whole(0, 1)
    sides = draw.whole(2, 5), draw.whole(2, 5)
    least = [(n - 1) * stride + (1 if padding == 0 else span) for n in sides]
    wanted = [n + draw.whole(0, stride - 1) for n in least]
    given = {
        "padding": padding,
        "stride_h": stride,
        "stride_w": stride,
        "activation": draw.whole(0, 3),
    }
    x = draw.tensor((draw.whole(1, 2), *sides, inner), dtype)
    weight = _weight(draw, (out, span, span, inner), 0, kind, single=dtype != "f32")
    shape = constant([x.value.shape[0], *wanted, out])
    operands = [shape, weight, x, _bias(draw, out, x, weight)]
    return Case(op, operands, [_product(draw, inner * 2, dtype)],
                ("TransposeConvOptions", given), version=5)  # fmt: skip


@family("CONV_3D", "CONV_3D_TRANSPOSE")
def conv_3d(draw: Draw, op: str) -> Case:
    """Draws a case."""
    inner, out = draw.whole(1, 3), draw.whole(1, 3)
    spans = tuple(draw.whole(1, 2) for _ in range(3))
    padding, strides = draw.whole(0, 1), tuple(draw.whole(1, 2) for _ in range(3))
    given: dict[str, Any] = {"padding": padding, "activation": draw.whole(0, 3)}
    given |= {f"stride_{axis}": n for axis, n in zip("dhw", strides, strict=True)}
    sides = tuple(draw.whole(3, 5) for _ in range(3))
    x = draw.tensor((draw.whole(1, 2), *sides, inner), "f32")
    if op == "CONV_3D":
        given |= {f"dilation_{axis}": draw.whole(1, 2) for axis in "dhw"}
        weight = draw.tensor((*spans, inner, out), "f32")
        operands: list[Operand | None] = [x, weight]
    else:
        weight = draw.tensor((*spans, out, inner), "f32")
        wanted = [(n - 1) * s + (1 if padding == 0 else k)
                  for n, s, k in zip(sides, strides, spans, strict=True)]  # fmt: skip
        operands = [constant([x.value.shape[0], *wanted, out]), weight, x]
    if draw.flag():
        operands.append(draw.tensor((out,), "f32"))
    return Case(op, operands, [("f32", PLAIN)], ("Conv3DOptions", given))


# --- images ---------------------------------------------------------------------------------------


@family("MAX_POOL_2D", "AVERAGE_POOL_2D", "L2_POOL_2D")
def pool(draw: Draw, op: str) -> Case:
    """Draws a case."""
    dtype = "f32" if op == "L2_POOL_2D" else draw.one("f32", "i8", "u8", "i16")
    given = {
        "padding": draw.whole(0, 1), "stride_h": draw.whole(1, 3), "stride_w": draw.whole(1, 3),
        "filter_height": draw.whole(1, 4), "filter_width": draw.whole(1, 4),
        "activation": draw.whole(0, 3),
    }  # fmt: skip
    x = draw.tensor((draw.whole(1, 2), draw.whole(4, 7), draw.whole(4, 7), draw.whole(1, 9)), dtype)
    return Case(op, [x], [(dtype, x.quantum)], ("Pool2DOptions", given), version=2)


@family("LOCAL_RESPONSE_NORMALIZATION")
def normalization(draw: Draw, op: str) -> Case:
    """Draws a case."""
    given = {"radius": draw.whole(0, 3), "bias": 1.0, "alpha": draw.one(0.5, 1.0), "beta": 0.5}
    x = draw.tensor((2, 3, 2, draw.whole(1, 9)), "f32")
    return Case(op, [x], [("f32", PLAIN)], ("LocalResponseNormalizationOptions", given))


@family("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR")
def resize(draw: Draw, op: str) -> Case:
    """Draws a case."""
    dtype = draw.one("f32", "i8", "u8", "i16")
    corners, centers = draw.one((0, 0), (1, 0), (0, 1))
    kind = "ResizeBilinearOptions" if op == "RESIZE_BILINEAR" else "ResizeNearestNeighborOptions"
    x = draw.tensor((draw.whole(1, 2), draw.whole(2, 6), draw.whole(2, 6), draw.whole(1, 5)), dtype)
    options = (kind, {"align_corners": bool(corners), "half_pixel_centers": bool(centers)})
    size = constant([draw.whole(1, 9), draw.whole(1, 9)])
    return Case(op, [x, size], [(dtype, x.quantum)], options, version=4)


@family("DEPTH_TO_SPACE", "SPACE_TO_DEPTH")
def depth(draw: Draw, op: str) -> Case:
    """Draws a case."""
    dtype, block = draw.one("f32", "i8", "u8", "i32", "i64"), draw.whole(1, 3)
    sides, channels = (draw.whole(1, 3), draw.whole(1, 3)), draw.whole(1, 3)
    shape = (*sides, channels * block**2)
    if op == "SPACE_TO_DEPTH":
        shape = (sides[0] * block, sides[1] * block, channels)
    kind = "DepthToSpaceOptions" if op == "DEPTH_TO_SPACE" else "SpaceToDepthOptions"
    x = draw.tensor((draw.whole(1, 2), *shape), dtype)
    return Case(op, [x], [(dtype, x.quantum)], (kind, {"block_size": block}), version=2)


@family("SPACE_TO_BATCH_ND", "BATCH_TO_SPACE_ND")
def batches(draw: Draw, op: str) -> Case:
    """Draws a case."""
    dtype, spatial = draw.one("f32", "i8", "u8", "i16", "i32", "i64"), draw.whole(1, 2)
    blocks = [draw.whole(1, 3) for _ in range(spatial)]
    inner = (draw.whole(1, 3),)
    batch, sides, ends = draw.whole(1, 2), [], []
    for block in blocks:
        first, last = draw.whole(0, 2), draw.whole(0, 2)
        if op == "SPACE_TO_BATCH_ND":
            sides.append(block * draw.whole(3, 4) - first - last)
            sides[-1] += block * 2 if sides[-1] < 1 else 0
        else:
            sides.append(draw.whole(5, 6))
        ends.append([first, last])
    if op == "BATCH_TO_SPACE_ND":
        batch *= int(np.prod(blocks))
    x = draw.tensor((batch, *sides, *inner), dtype)
    operands = [x, constant(blocks), constant(ends)]
    return Case(op, operands, [(dtype, x.quantum)], version=4)


@family("DILATE")
def dilate(draw: Draw, op: str) -> Case:
    """Draws a case."""
    dtype, shape = draw.one("f32", "i32", "i64", "i8"), draw.shape(1, 5)
    steps = constant([draw.whole(1, 3) for _ in shape])
    x, value = Operand(draw.values(shape, dtype)), constant(draw.whole(0, 3), dtype)
    return Case(op, [x, steps, value], [(dtype, PLAIN)], ("DilateOptions", {}))


@family("REDUCE_WINDOW")
def reduce_window(draw: Draw, op: str) -> Case:
    """Draws a case."""
    kind, shape = draw.whole(1, 6), draw.shape(1, 4, 6)
    dtype = "bool" if kind > 4 else draw.one("f32", "i32", "i64", "i8")
    sizes = [draw.whole(1, size) for size in shape]
    gaps = [draw.whole(1, max((size - 1) // max(w - 1, 1), 1))
            for size, w in zip(shape, sizes, strict=True)]  # fmt: skip
    strides = [draw.whole(1, 2) for _ in shape]
    operands = [Operand(draw.values(shape, dtype)), constant(1, dtype),
                *(constant(each, "i64") for each in (sizes, strides, gaps))]  # fmt: skip
    return Case(op, operands, [(dtype, PLAIN)], ("ReduceWindowOptions", {"reduce_function": kind}))
