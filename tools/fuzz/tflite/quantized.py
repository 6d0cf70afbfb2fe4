"""The operators that are drawn on quantized codes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from fuzz.graph import Unfit
from fuzz.tflite.drawing import Drawing, Value
from fuzz.tflite.operators import Entry, kernel_of, window

ENTRIES: Final[list[Entry]] = []
_CODES: Final = ("i8", "i8", "u8")
_FIXED: Final = {
    ("LOGISTIC", "i8"): (1 / 256, -128), ("LOGISTIC", "u8"): (1 / 256, 0),
    ("TANH", "i8"): (1 / 128, 0), ("TANH", "u8"): (1 / 128, 128),
    ("SOFTMAX", "i8"): (1 / 256, -128), ("SOFTMAX", "u8"): (1 / 256, 0),
    ("L2_NORMALIZATION", "i8"): (1 / 128, 0), ("L2_NORMALIZATION", "u8"): (1 / 128, 128),
}  # fmt: skip
"""The parameters that LiteRT expects of results."""


def entry(weight: int = 1) -> Callable[[Entry], Entry]:
    """Decorator: enters an operator, `weight` times as likely as others."""

    def enter(make: Entry) -> Entry:
        ENTRIES.extend([make] * weight)
        return make

    return enter


def scales(g: Drawing, dtype: str) -> dict[str, Any]:
    """Returns drawn parameters of codes."""
    low, high = (-30, 30) if dtype == "i8" else (98, 158)
    zero = 0 if dtype == "i16" else g.choices.integer(low, high)
    return {"scale": [g.choices.pick((0.05, 0.02, 0.1, 0.037))], "zero": [zero]}


def leaf(g: Drawing, shape: Sequence[int], dtype: str, **more: Any) -> Value:
    """Returns new codes."""
    ends = {"i8": (-128, 127), "u8": (0, 255), "i16": (-32000, 32000)}[dtype]
    return g.leaf(shape, dtype, ends, **{"constant": False, **scales(g, dtype), **more})


def operand(g: Drawing, dtypes: Sequence[str] = _CODES, low: int = 0, high: int = 4) -> Value:
    """Returns codes: mostly those that are there."""
    fitting = [
        v for v in reversed(g.values)
        if v.scale and v.dtype in dtypes and low <= v.rank <= high
    ]  # fmt: skip
    if fitting and not g.choices.one_in(4):
        return g.choices.pick(fitting[:4])
    return leaf(g, g.shape(low, high), g.choices.pick(dtypes))


def image(g: Drawing) -> Value:
    """Returns an image of codes."""
    fitting = [v for v in reversed(g.values) if v.scale and v.rank == 4 and v.dtype != "i16"]
    if fitting and not g.choices.one_in(3):
        return g.choices.pick(fitting[:4])
    sizes = [g.choices.integer(1, 9) for _ in range(2)]
    return leaf(g, (1, *sizes, g.choices.pick((1, 2, 3, 4, 8))), g.choices.pick(_CODES))


def weights(g: Drawing, x: Value, shape: Sequence[int], axis: int) -> Value:
    """Returns codes of weights: symmetric, per channel or of one scale."""
    if x.dtype == "u8":
        return g.leaf(shape, "u8", (1, 255), True, scale=[0.013], zero=[128])
    count = shape[axis] if g.choices.one_in(2) else 1
    rng = np.random.default_rng(g.choices.integer(0, 1000))
    found = g.leaf(shape, "i8", (-127, 127), True, scale=rng.uniform(0.005, 0.02, count), axis=axis)
    return found


def bias(g: Drawing, x: Value, weight: Value, count: int) -> Value | None:
    """Returns a bias of 32-bit codes."""
    if g.choices.one_in(3):
        return None
    scale = g.graph.scales(weight.tensor).astype(np.float32) * np.float32(x.scale)
    return g.leaf((count,), "i32", (-2000, 2000), True, scale=scale)


@entry(2)
def borders(g: Drawing) -> None:
    """Codes of numbers, numbers of codes, and codes of codes."""
    dtype = g.choices.pick(_CODES)
    match g.choices.integer(0, 2):
        case 0:
            g.add("QUANTIZE", [g.operand()], (dtype,), version=1, **scales(g, dtype))
        case 1:
            x = operand(g)
            g.add("DEQUANTIZE", [x], version=2)
        case _:
            x = operand(g)
            g.add("QUANTIZE", [x], (x.dtype,), version=2, **scales(g, x.dtype))


@entry(4)
def arithmetic(g: Drawing) -> None:
    """Two tensors of codes."""
    op, kind = g.choices.pick((("ADD", "AddOptions"), ("MUL", "MulOptions"), ("SUB", "SubOptions")))
    x = operand(g)
    shape = [s if g.choices.integer(0, 2) else 1 for s in x.shape]
    y = leaf(g, shape[g.choices.integer(0, len(shape)) :], x.dtype, constant=None)
    given = (kind, {"activation": g.choices.pick((0, 0, 1, 3))})
    g.add(op, [x, y], (x.dtype,), given, 2, **scales(g, x.dtype))


@entry(2)
def unary(g: Drawing) -> None:
    """A function of each code."""
    op = g.choices.pick(
        ("RELU", "RELU6", "LOGISTIC", "TANH", "LEAKY_RELU", "HARD_SWISH", "ABS", "SOFTMAX")
    )
    x = operand(g, low=1)
    like = scales(g, x.dtype)
    if (op, x.dtype) in _FIXED:
        scale, zero = _FIXED[op, x.dtype]
        like = {"scale": [scale], "zero": [zero]}
    given: Any = {
        "LEAKY_RELU": ("LeakyReluOptions", {"alpha": 0.2}),
        "SOFTMAX": ("SoftmaxOptions", {"beta": 1}),
    }.get(op)  # fmt: skip
    g.add(op, [x], (x.dtype,), given, 2 if op != "HARD_SWISH" else 1, **like)


@entry(2)
def moved(g: Drawing) -> None:
    """Operators that keep codes."""
    x = operand(g, low=1)
    like, dtypes = x.like, (x.dtype,)
    match g.choices.integer(0, 5):
        case 0:
            g.add("TRANSPOSE", [x, g.ints(g.choices.order(x.rank))], dtypes, version=2, **like)
        case 1:
            g.add("RESHAPE", [x, g.ints([-1])], dtypes, **like)
        case 2:
            pads = np.array([g.choices.integer(0, 2) for _ in range(2 * x.rank)], np.int32)
            pads = pads.reshape(-1, 2)
            g.add("PAD", [x, g.given(pads, "i32", True)], dtypes, version=2, **like)
        case 3:
            axis = g.axis(x.rank)
            places = g.leaf((3,), "i32", (0, x.shape[axis] - 1))
            g.add("GATHER", [x, places], dtypes, ("GatherOptions", {"axis": axis}), 2, **like)
        case 4:
            other = leaf(g, x.shape, x.dtype, **like)
            g.add(g.choices.pick(("MAXIMUM", "MINIMUM")), [x, other], dtypes, version=2, **like)
        case _:
            axis = g.axis(x.rank)
            other = leaf(g, x.shape, x.dtype, **like)
            given: Any = ("ConcatenationOptions", {"axis": axis})
            g.add("CONCATENATION", [x, other], dtypes, given, 2, **like)


@entry(1)
def reduced(g: Drawing) -> None:
    """Means and extrema."""
    x = operand(g, low=1)
    op = g.choices.pick(("MEAN", "REDUCE_MAX", "REDUCE_MIN"))  # SUM loses its zero point
    axes = g.ints(g.choices.some(range(x.rank), 1, x.rank))
    given = ("ReducerOptions", {"keep_dims": bool(g.choices.integer(0, 1))})
    like = scales(g, x.dtype) if op == "MEAN" else x.like
    g.add(op, [x, axes], (x.dtype,), given, 2, **like)


@entry(3)
def fully_connected(g: Drawing) -> None:
    """Rows times weights."""
    x = operand(g, low=1)
    out = g.choices.pick(g.sizes)
    weight = weights(g, x, (out, x.shape[-1]), 0)
    given = ("FullyConnectedOptions", {"activation": g.choices.pick((0, 1, 3))})
    operands = [x, weight, bias(g, x, weight, out)]
    like = {**scales(g, x.dtype), "scale": [0.3]}
    g.add("FULLY_CONNECTED", operands, (x.dtype,), given, 4, **like)


@entry(4)
def convolutions(g: Drawing) -> None:
    """Convolutions of all channels or of single ones."""
    x, kernel = image(g), kernel_of(g)
    given, like = window(g, x, kernel), {**scales(g, x.dtype), "scale": [0.3]}
    if g.choices.one_in(2):
        out = x.shape[-1] * g.choices.pick((1, 1, 2))
        given["depth_multiplier"] = out // x.shape[-1]
        weight = weights(g, x, (1, *kernel, out), 3)
        op, kind = "DEPTHWISE_CONV_2D", "DepthwiseConv2DOptions"
    else:
        out = g.choices.pick((1, 2, 3, 4, 8, 16))
        weight = weights(g, x, (out, *kernel, x.shape[-1]), 0)
        op, kind = "CONV_2D", "Conv2DOptions"
    g.add(op, [x, weight, bias(g, x, weight, out)], (x.dtype,), (kind, given), 3, **like)


@entry(2)
def windows(g: Drawing) -> None:
    """Pools and resized images."""
    x, kernel = image(g), kernel_of(g)
    if g.choices.one_in(3):
        sizes = g.ints([g.choices.integer(1, 12), g.choices.integer(1, 12)])
        place = g.choices.integer(0, 2)
        given: Any = {"align_corners": place == 1, "half_pixel_centers": place == 2}
        name = g.choices.pick(("Bilinear", "NearestNeighbor"))
        op = "RESIZE_BILINEAR" if name == "Bilinear" else "RESIZE_NEAREST_NEIGHBOR"
        g.add(op, [x, sizes], (x.dtype,), (f"Resize{name}Options", given), 3, **x.like)
        return
    given = window(g, x, kernel)
    if given["padding"] and any(k > s for k, s in zip(kernel, x.shape[1:3], strict=True)):
        raise Unfit
    del given["dilation_h"], given["dilation_w"]
    given |= {"filter_height": kernel[0], "filter_width": kernel[1]}
    op = g.choices.pick(("MAX_POOL_2D", "AVERAGE_POOL_2D"))
    g.add(op, [x], (x.dtype,), ("Pool2DOptions", given), 2, **x.like)


@entry(1)
def floats_times_codes(g: Drawing) -> None:
    """Floats times weights of codes. They are new ones, because each call rounds them to codes, in
    which a difference of an ulp could become a step.
    """
    if g.choices.one_in(2):
        x = g.leaf((g.choices.pick(g.sizes), g.choices.pick(g.sizes)), constant=False)
        out, given = g.choices.pick(g.sizes), {"asymmetric_quantize_inputs": g.choices.one_in(2)}
        operands = [x, _signed(g, (out, x.shape[-1]), 0, single=True)]
        g.add("FULLY_CONNECTED", operands, given=("FullyConnectedOptions", given), version=9)
        return
    kernel, channels = kernel_of(g), g.choices.pick((1, 2, 3, 4, 8))
    sizes = [g.choices.integer(1, 9) for _ in range(2)]
    x = g.leaf((g.choices.integer(1, 2), *sizes, channels), constant=False)
    options = window(g, x, kernel)
    if g.choices.one_in(2):
        options["depth_multiplier"] = 1
        weight = _signed(g, (1, *kernel, channels), 3, single=False)
        bias_ = g.leaf((channels,), constant=True)
        kind: Any = ("DepthwiseConv2DOptions", options)
        g.add("DEPTHWISE_CONV_2D", [x, weight, bias_], given=kind, version=6)
    else:
        weight = _signed(g, (4, *kernel, channels), 0, single=True)
        g.add("CONV_2D", [x, weight], given=("Conv2DOptions", options), version=5)


def _signed(g: Drawing, shape: Sequence[int], axis: int, *, single: bool) -> Value:
    """Returns `i8` weights with scales per channel, or one where LiteRT reads a `single` one."""
    count = 1 if single and g.choices.one_in(2) else shape[axis]
    rng = np.random.default_rng(g.choices.integer(0, 1000))
    given = rng.uniform(0.005, 0.02, count)
    return g.leaf(shape, "i8", (-127, 127), True, scale=given, axis=axis)
