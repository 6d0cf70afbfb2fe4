"""The operators that are drawn on numbers: floats, integers and truth values.

Each entry draws operands and options, and adds one operator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from fuzz.graph import Unfit
from fuzz.tflite.drawing import Drawing, Value

Entry = Callable[[Drawing], Any]
ENTRIES: Final[list[Entry]] = []

_UNARY: Final = (
    "ABS", "CEIL", "COS", "ELU", "EXP", "FLOOR", "HARD_SWISH", "LOGISTIC", "NEG", "RELU", "RELU6",
    "RELU_N1_TO_1", "RELU_0_TO_1", "ROUND", "SIN", "SQUARE", "TANH", "ZEROS_LIKE", "SIGN",
    "LOG_SOFTMAX",
)  # fmt: skip
_ARITHMETIC: Final = {
    "ADD": "AddOptions", "MUL": "MulOptions", "SUB": "SubOptions", "DIV": "DivOptions",
}  # fmt: skip
_COMPARISONS: Final = (
    "EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL",
)  # fmt: skip
_MOVED: Final = ("f32", "f32", "f32", "i32", "i64")


def entry(weight: int = 1) -> Callable[[Entry], Entry]:
    """Decorator: enters an operator, `weight` times as likely as others."""

    def enter(make: Entry) -> Entry:
        ENTRIES.extend([make] * weight)
        return make

    return enter


# --- elements -------------------------------------------------------------------------------------


@entry(6)
def unary(g: Drawing) -> None:
    """A function of each element."""
    op = g.choices.pick(_UNARY)
    g.add(op, [g.operand(low=1 if op == "LOG_SOFTMAX" else 0)])


@entry(1)
def of_positive(g: Drawing) -> None:
    """A function of positive numbers, which are made positive."""
    (x,) = g.add("ABS", [g.operand()])
    (x,) = g.add("ADD", [x, g.number(0.25, "f32")], given=("AddOptions", {}))
    g.add(g.choices.pick(("LOG", "SQRT", "RSQRT")), [x])


@entry(6)
def arithmetic(g: Drawing) -> None:
    """Two tensors, with an activation."""
    op = g.choices.pick(tuple(_ARITHMETIC))
    x = g.operand(("f32", "f32", "f32", "i32"))
    y = g.partner(x, bounds=(1, 4), constant=True) if op == "DIV" else g.partner(x)
    activation = g.choices.pick((0, 0, 1, 2, 3))
    g.add(op, [x, y], (x.dtype,), (_ARITHMETIC[op], {"activation": activation}))


@entry(3)
def pairs(g: Drawing) -> None:
    """Two tensors."""
    op = g.choices.pick(
        ("MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE", "FLOOR_DIV", "FLOOR_MOD", "POW", "ATAN2")
    )
    x = g.operand(("f32",) if op in ("POW", "ATAN2") else ("f32", "i32"))
    if op == "POW":
        x = g.add("ABS", [x])[0]
    divides = op in ("FLOOR_DIV", "FLOOR_MOD")
    if op == "ATAN2":  # LiteRT does not broadcast them, and reads beyond the smaller one
        y = g.leaf(x.shape, x.dtype)
    else:
        y = g.partner(x, bounds=(1, 4), constant=True) if divides else g.partner(x)
    g.add(op, [x, y], (x.dtype,))


@entry(2)
def compared(g: Drawing) -> None:
    """Truth values of pairs."""
    op = g.choices.pick(_COMPARISONS)  # whether floats are equal depends on their rounding
    x = g.operand(("i32", "i64") if op in ("EQUAL", "NOT_EQUAL") else ("f32", "i32", "i64"))
    g.add(op, [x, g.partner(x)], ("bool",))


@entry(1)
def logical(g: Drawing) -> None:
    """Truth values of truth values."""
    x = g.operand(("bool",))
    if g.choices.one_in(3):
        g.add("LOGICAL_NOT", [x], ("bool",))
    else:
        g.add(g.choices.pick(("LOGICAL_AND", "LOGICAL_OR")), [x, g.partner(x)], ("bool",))


@entry(2)
def select(g: Drawing) -> None:
    """Elements of either of two tensors."""
    x = g.operand(("f32", "i32"), low=1)
    if np.prod(x.shape) == 1:
        raise Unfit  # LiteRT drops all axes of a single element
    same = [v for v in g.values if v.shape == x.shape and v.dtype == "bool"]
    kept = bool(same) and g.choices.one_in(2)
    condition = g.choices.pick(same) if kept else g.leaf(x.shape, "bool")
    if g.choices.one_in(3) and x.rank:
        condition = g.leaf(x.shape[:1], "bool")
        g.add("SELECT", [condition, x, g.leaf(x.shape, x.dtype)], (x.dtype,))
    else:
        g.add("SELECT_V2", [condition, x, g.partner(x)], (x.dtype,))


@entry(2)
def cast(g: Drawing) -> None:
    """Another type."""
    x = g.operand(("f32", "i32", "i64", "bool"))
    wanted = g.choices.pick(("f32", "i32", "i64", "bool"))
    g.add("CAST", [x], (wanted,))


@entry(2)
def slopes(g: Drawing) -> None:
    """Activations with a parameter."""
    match g.choices.integer(0, 2):
        case 0:
            g.add("LEAKY_RELU", [g.operand()], given=("LeakyReluOptions", {"alpha": 0.3}))
        case 1:
            approximate = bool(g.choices.integer(0, 1))
            g.add("GELU", [g.operand()], given=("GeluOptions", {"approximate": approximate}))
        case _:
            x = g.operand(low=1)
            g.add("PRELU", [x, g.leaf((*(1,) * (x.rank - 2), *x.shape[-1:]), constant=True)])


@entry(1)
def add_n(g: Drawing) -> None:
    """A sum of tensors of one shape."""
    x = g.operand()
    g.add("ADD_N", [x, *(g.leaf(x.shape) for _ in range(g.choices.integer(1, 3)))])


# --- shapes ---------------------------------------------------------------------------------------


@entry(3)
def reshape(g: Drawing) -> None:
    """The same elements in another shape."""
    x = g.operand(_MOVED)
    sizes = list(x.shape)
    if len(sizes) > 1 and g.choices.integer(0, 2):
        at = g.choices.integer(0, len(sizes) - 2)
        sizes[at : at + 2] = [sizes[at] * sizes[at + 1]]
    else:
        at = g.choices.integer(0, max(len(sizes) - 1, 0))
        whole = sizes[at] if sizes else 1
        part = g.choices.pick([d for d in (1, 2, 4, 8) if whole % d == 0])
        sizes[at : at + 1] = [part, whole // part]
    if g.choices.one_in(2):
        sizes[g.choices.integer(0, len(sizes) - 1)] = -1
    if g.choices.one_in(3):
        g.add("RESHAPE", [x], (x.dtype,), ("ReshapeOptions", {"new_shape": sizes}))
    else:
        g.add("RESHAPE", [x, g.ints(sizes)], (x.dtype,))


@entry(1)
def axes_of_one(g: Drawing) -> None:
    """An axis of size 1 more or less."""
    x = g.operand(_MOVED)
    if g.choices.one_in(2):
        axis = g.axis(x.rank + 1)
        g.add("EXPAND_DIMS", [x, g.ints([axis])], (x.dtype,))
    else:
        ones = [axis for axis, size in enumerate(x.shape) if size == 1]
        dims = g.choices.some(ones, 0, len(ones))
        g.add("SQUEEZE", [x], (x.dtype,), ("SqueezeOptions", {"squeeze_dims": dims}))


@entry(3)
def transpose(g: Drawing) -> None:
    """The axes in another order."""
    x = g.operand(_MOVED, low=1, high=6)  # LiteRT does not write what has no axes
    g.add("TRANSPOSE", [x, g.ints(g.choices.order(x.rank))], (x.dtype,))


@entry(2)
def pad(g: Drawing) -> None:
    """Elements around a tensor."""
    x = g.operand(("f32", "f32", "i32"), low=1)
    way = g.choices.integer(0, 3)
    most = 2 if way < 2 else max(min(min(x.shape) - 1, 2), 0)
    numbers = [g.choices.integer(0, most) for _ in range(2 * x.rank)]
    pads = g.given(np.array(numbers, np.int32).reshape(-1, 2), "i32", True)
    if way == 0:
        g.add("PAD", [x, pads], (x.dtype,))
    elif way == 1:
        g.add("PADV2", [x, pads, g.number(2, x.dtype)], (x.dtype,))
    else:
        mode = g.choices.integer(0, 1)
        g.add("MIRROR_PAD", [x, pads], (x.dtype,), ("MirrorPadOptions", {"mode": mode}))


@entry(3)
def concatenation(g: Drawing) -> None:
    """Tensors one after the other."""
    x = g.operand(_MOVED, low=1)
    axis = g.axis(x.rank)
    parts = [x]
    for _ in range(g.choices.integer(1, 3)):
        shape = list(x.shape)
        shape[axis] = g.choices.integer(1, 4)
        parts.append(x if g.choices.one_in(3) else g.leaf(shape, x.dtype))
    # LiteRT accepts no activation here.
    g.add("CONCATENATION", parts, (x.dtype,), ("ConcatenationOptions", {"axis": axis}))


@entry(1)
def pack(g: Drawing) -> None:
    """Tensors along a new axis."""
    x = g.operand(_MOVED, high=4)
    parts = [x, *(g.partner(x) for _ in range(g.choices.integer(0, 2)))]
    if any(p.shape != x.shape for p in parts):
        raise Unfit
    given = {"axis": g.axis(x.rank + 1), "values_count": len(parts)}
    g.add("PACK", parts, (x.dtype,), ("PackOptions", given))


@entry(1)
def unpack(g: Drawing) -> None:
    """The parts along an axis."""
    x = g.operand(_MOVED, low=1)
    axis = g.axis(x.rank)
    count = x.shape[axis]
    if count > 5:
        raise Unfit
    g.add("UNPACK", [x], (x.dtype,) * count, ("UnpackOptions", {"axis": axis, "num": count}))


@entry(2)
def split(g: Drawing) -> None:
    """Parts of equal or given sizes."""
    x = g.operand(_MOVED, low=1)
    axis = g.axis(x.rank)
    size = x.shape[axis]
    if g.choices.one_in(2):
        count = g.choices.pick([d for d in (1, 2, 3, 4) if size % d == 0])
        given: Any = ("SplitOptions", {"num_splits": count})
        g.add("SPLIT", [g.number(axis, "i32"), x], (x.dtype,) * count, given)
        return
    first = g.choices.integer(1, size)
    sizes = [first, size - first] if size > first else [first]
    if g.choices.one_in(2):
        sizes[-1] = -1
    operands = [x, g.ints(sizes), g.number(axis, "i32")]
    g.add(
        "SPLIT_V", operands, (x.dtype,) * len(sizes), ("SplitVOptions", {"num_splits": len(sizes)})
    )


@entry(2)
def slice_(g: Drawing) -> None:
    """A box of a tensor."""
    x = g.operand(_MOVED, low=1)
    begin = [g.choices.integer(0, size - 1) for size in x.shape]
    sizes = [g.choices.integer(1, s - b) for b, s in zip(begin, x.shape, strict=True)]
    sizes = [-1 if g.choices.one_in(4) else s for s in sizes]
    dtype = g.choices.pick(("i32", "i64"))
    g.add("SLICE", [x, g.ints(begin, dtype), g.ints(sizes, dtype)], (x.dtype,))


@entry(4)
def strided_slice(g: Drawing) -> None:
    """NumPy's slices with all masks."""
    x = g.operand(_MOVED, low=1)
    count = g.choices.integer(1, x.rank)
    begin, end, steps = [], [], []
    for size in x.shape[:count]:
        begin.append(g.choices.integer(-size - 1, size))
        end.append(g.choices.integer(-size - 1, size + 1))
        steps.append(g.choices.pick((1, 1, 2, -1, -2, 3)))
    masks = {
        f"{name}_mask": g.choices.integer(0, (1 << count) - 1) if g.choices.one_in(2) else 0
        for name in ("begin", "end")
    }
    if g.choices.one_in(4):
        masks["ellipsis_mask"] = 1 << g.choices.integer(0, count - 1)
    if g.choices.one_in(4):
        masks["new_axis_mask"] = 1 << g.choices.integer(0, count - 1)
    if g.choices.one_in(3) and len(masks) == 2:
        at = g.choices.integer(0, count - 1)
        masks["shrink_axis_mask"] = 1 << at
        begin[at] = g.choices.integer(-x.shape[at], x.shape[at] - 1)
        end[at], steps[at] = begin[at] + 1, 1
    bounds = [g.ints(each) for each in (begin, end, steps)]
    g.add("STRIDED_SLICE", [x, *bounds], (x.dtype,), ("StridedSliceOptions", masks))


@entry(1)
def repeated(g: Drawing) -> None:
    """A tensor several times."""
    x = g.operand(_MOVED, high=4)
    if g.choices.one_in(2) and x.rank:
        g.add("TILE", [x, g.ints([g.choices.integer(1, 2) for _ in x.shape])], (x.dtype,))
    else:
        shape = [g.choices.integer(1, 3) if s == 1 else s for s in x.shape]
        g.add("BROADCAST_TO", [x, g.ints([2, *shape][g.choices.integer(0, 1) :])], (x.dtype,))


@entry(1)
def reverse(g: Drawing) -> None:
    """Some axes backwards."""
    x = g.operand(_MOVED, low=1)
    g.add("REVERSE_V2", [x, g.ints([g.axis(x.rank)])], (x.dtype,))


@entry(1)
def facts(g: Drawing) -> None:
    """The shape, the rank, and tensors of constants."""
    x = g.operand(_MOVED)
    match g.choices.integer(0, 3):
        case 0:
            g.add("SHAPE", [x], ("i32",), ("ShapeOptions", {"out_type": 2}))
        case 1:
            g.add("RANK", [x], ("i32",))
        case 2:
            g.add("FILL", [g.ints(g.shape(1, 3)), g.number(2, "f32")])
        case _:
            dtype = g.choices.pick(("i32", "f32"))
            bounds = [g.number(n, dtype) for n in (1, g.choices.integer(2, 20), 3)]
            g.add("RANGE", bounds, (dtype,))


# --- selection ------------------------------------------------------------------------------------


@entry(2)
def gather(g: Drawing) -> None:
    """Elements by index."""
    x = g.operand(_MOVED, low=1)
    dtype = g.choices.pick(("i32", "i64"))
    if g.choices.one_in(3):
        depth = g.choices.integer(1, x.rank)
        rows = [[g.choices.integer(0, s - 1) for s in x.shape[:depth]] for _ in range(3)]
        g.add("GATHER_ND", [x, g.given(np.array(rows, np.int32), "i32")], (x.dtype,))
        return
    axis = g.axis(x.rank)
    places = g.leaf(g.shape(0, 2), dtype, (0, x.shape[axis] - 1))
    g.add("GATHER", [x, places], (x.dtype,), ("GatherOptions", {"axis": axis}))


@entry(1)
def chosen(g: Drawing) -> None:
    """The largest elements, and vectors with a single one."""
    if g.choices.one_in(2):
        places = g.leaf(g.shape(0, 3), "i32", (-1, 5))
        axis = g.choices.integer(-1, places.rank)
        values = [g.number(n, "f32") for n in (2.5, -1)]
        depth = g.number(g.choices.integer(1, 6), "i32")
        g.add("ONE_HOT", [places, depth, *values], given=("OneHotOptions", {"axis": axis}))
        return
    x = g.operand(low=1)
    g.add("TOPK_V2", [x, g.number(g.choices.integer(1, x.shape[-1]), "i32")], ("f32", "i32"))


@entry(1)
def positions(g: Drawing) -> None:
    """Places of extrema."""
    x = g.operand(("f32", "i32"), low=1)
    op = g.choices.pick(("ARG_MAX", "ARG_MIN"))
    kind = "ArgMaxOptions" if op == "ARG_MAX" else "ArgMinOptions"
    dtype = g.choices.pick(("i64", "i32"))
    number = 4 if dtype == "i64" else 2
    g.add(op, [x, g.number(g.axis(x.rank), "i32")], (dtype,), (kind, {"output_type": number}))


# --- sums and products ----------------------------------------------------------------------------


@entry(3)
def reduced(g: Drawing) -> None:
    """Reductions over some axes."""
    op = g.choices.pick(("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD"))
    x = g.operand(("f32", "f32", "i32") if op != "MEAN" else ("f32",), low=1)
    axes = g.choices.some(range(x.rank), 1, x.rank)
    axes = [a - x.rank if g.choices.one_in(3) else a for a in axes]
    given = ("ReducerOptions", {"keep_dims": bool(g.choices.integer(0, 1))})
    g.add(op, [x, g.ints(axes)], (x.dtype,), given)


@entry(1)
def truth(g: Drawing) -> None:
    """Reductions of truth values."""
    x = g.operand(("bool",), low=1)
    given = ("ReducerOptions", {"keep_dims": bool(g.choices.integer(0, 1))})
    axes = g.ints([g.axis(x.rank)])
    g.add(g.choices.pick(("REDUCE_ANY", "REDUCE_ALL")), [x, axes], ("bool",), given)


@entry(1)
def running_sum(g: Drawing) -> None:
    """Sums so far."""
    x = g.operand(("f32", "i32"), low=1)
    given = {name: bool(g.choices.integer(0, 1)) for name in ("exclusive", "reverse")}
    g.add("CUMSUM", [x, g.number(g.axis(x.rank), "i32")], (x.dtype,), ("CumsumOptions", given))


@entry(2)
def along_rows(g: Drawing) -> None:
    """Softmax and lengths."""
    x = g.operand(low=1)
    if g.choices.one_in(3):
        g.add("L2_NORMALIZATION", [x], given=("L2NormOptions", {}))
    else:
        g.add("SOFTMAX", [x], given=("SoftmaxOptions", {"beta": g.choices.pick((1.0, 0.5, 2.0))}))


@entry(3)
def fully_connected(g: Drawing) -> None:
    """Rows times weights."""
    x = g.operand(low=1)
    out = g.choices.pick(g.sizes)
    weight = g.leaf((out, x.shape[-1]), constant=not g.choices.one_in(5))
    bias = None if g.choices.one_in(3) else g.leaf((out,), constant=True)
    given = {"activation": g.choices.pick((0, 1, 3)), "keep_num_dims": g.choices.one_in(2)}
    g.add("FULLY_CONNECTED", [x, weight, bias], given=("FullyConnectedOptions", given))


@entry(2)
def batch_matmul(g: Drawing) -> None:
    """Products of matrices."""
    a = g.operand(low=2, high=4)
    adjoint = {"adj_x": g.choices.one_in(3), "adj_y": g.choices.one_in(3)}
    inner = a.shape[-2] if adjoint["adj_x"] else a.shape[-1]
    sizes = (
        [g.choices.pick(g.sizes), inner] if adjoint["adj_y"] else [inner, g.choices.pick(g.sizes)]
    )
    batch = [s if g.choices.integer(0, 2) else 1 for s in a.shape[:-2]]
    g.add("BATCH_MATMUL", [a, g.leaf([*batch, *sizes])], given=("BatchMatMulOptions", adjoint))


def window(g: Drawing, x: Value, kernel: tuple[int, int]) -> dict[str, Any]:
    """Returns options of a window. Errors: Unfit if it has no place in the image."""
    padding = g.choices.integer(0, 1)
    dilation = [1, 1] if g.choices.integer(0, 2) else [g.choices.integer(1, 2) for _ in range(2)]
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    if padding and any(s > size for s, size in zip(spans, x.shape[1:3], strict=True)):
        raise Unfit
    return {
        "padding": padding,
        "stride_h": g.choices.integer(1, 2), "stride_w": g.choices.integer(1, 3),
        "dilation_h": dilation[0], "dilation_w": dilation[1],
        "activation": g.choices.pick((0, 1, 3)),
    }  # fmt: skip


def image(g: Drawing) -> Value:
    """Returns an image, mostly one that is there."""
    fitting = [v for v in reversed(g.values) if v.rank == 4 and v.dtype == "f32" and not v.scale]
    if fitting and not g.choices.one_in(3):
        return g.choices.pick(fitting[:4])
    shape = (g.choices.integer(1, 2), *(g.choices.integer(1, 9) for _ in range(2)))
    return g.leaf((*shape, g.choices.pick((1, 2, 3, 4, 8))), constant=False)


def kernel_of(g: Drawing) -> tuple[int, int]:
    """Returns the sizes of a window."""
    return g.choices.integer(1, 3), g.choices.integer(1, 3)


@entry(4)
def conv_2d(g: Drawing) -> None:
    """Convolutions, some in groups."""
    x, kernel = image(g), kernel_of(g)
    given = window(g, x, kernel)
    channels = x.shape[-1]
    groups = 2 if channels % 2 == 0 and g.choices.one_in(4) else 1
    out = g.choices.pick((1, 2, 3, 4, 8, 16))
    out = out * 2 if groups == 2 and out % 2 else out
    weight = g.leaf((out, *kernel, channels // groups), constant=True)
    bias = None if g.choices.one_in(3) else g.leaf((out,), constant=True)
    g.add("CONV_2D", [x, weight, bias], given=("Conv2DOptions", given))


@entry(3)
def depthwise_conv_2d(g: Drawing) -> None:
    """Convolutions of single channels."""
    x, kernel = image(g), kernel_of(g)
    many = g.choices.pick((1, 1, 2, 3))
    given = {**window(g, x, kernel), "depth_multiplier": many}
    out = x.shape[-1] * many
    weight = g.leaf((1, *kernel, out), constant=True)
    bias = None if g.choices.one_in(3) else g.leaf((out,), constant=True)
    g.add("DEPTHWISE_CONV_2D", [x, weight, bias], given=("DepthwiseConv2DOptions", given))


@entry(2)
def transpose_conv(g: Drawing) -> None:
    """Gradients of convolutions."""
    x, kernel = image(g), kernel_of(g)
    padding, out = g.choices.integer(0, 1), g.choices.pick((1, 2, 3, 4, 8))
    strides = g.choices.integer(1, 2), g.choices.integer(1, 2)
    if padding == 0:
        sizes = [size * s for size, s in zip(x.shape[1:3], strides, strict=True)]
    else:
        sizes = [
            size * s + max(k - s, 0)
            for size, s, k in zip(x.shape[1:3], strides, kernel, strict=True)
        ]
    shape = g.ints([x.shape[0], *sizes, out])
    weight = g.leaf((out, *kernel, x.shape[-1]), constant=True)
    bias = g.leaf((out,), constant=True) if g.choices.one_in(2) else None
    given = {"padding": padding, "stride_h": strides[0], "stride_w": strides[1]}
    operands = [shape, weight, x, *([bias] if bias else [])]
    version = 3 if bias else 1
    g.add("TRANSPOSE_CONV", operands, given=("TransposeConvOptions", given), version=version)


@entry(3)
def pooled(g: Drawing) -> None:
    """Windows of images."""
    x, kernel = image(g), kernel_of(g)
    given = window(g, x, kernel)
    del given["dilation_h"], given["dilation_w"]
    given |= {"filter_height": kernel[0], "filter_width": kernel[1]}
    op = g.choices.pick(("MAX_POOL_2D", "AVERAGE_POOL_2D"))
    if given["padding"] and any(k > s for k, s in zip(kernel, x.shape[1:3], strict=True)):
        raise Unfit
    g.add(op, [x], given=("Pool2DOptions", given))


@entry(2)
def resized(g: Drawing) -> None:
    """Images in other sizes, and blocks of images."""
    x = image(g)
    way = g.choices.integer(0, 3)
    if way < 2:
        sizes = g.ints([g.choices.integer(1, 12), g.choices.integer(1, 12)])
        place = g.choices.integer(0, 2)
        given = {"align_corners": place == 1, "half_pixel_centers": place == 2}
        name = ("Bilinear", "NearestNeighbor")[way]
        op = ("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR")[way]
        g.add(op, [x, sizes], given=(f"Resize{name}Options", given), version=3)
        return
    op = ("SPACE_TO_DEPTH", "DEPTH_TO_SPACE")[way - 2]
    kind = ("SpaceToDepthOptions", "DepthToSpaceOptions")[way - 2]
    divided = x.shape[1:3] if way == 2 else [x.shape[-1] // 2]
    if any(size % 2 for size in divided) or (way == 3 and x.shape[-1] % 4):
        raise Unfit
    g.add(op, [x], given=(kind, {"block_size": 2}))
