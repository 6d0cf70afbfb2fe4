"""Operators of TFLite files, compared with LiteRT on drawn values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest

import clew
from clew.frontends.tflite.loader import load
from clew.ir.interpret import interpret
from clew.ir.types import from_numpy, integer_limits, to_numpy
from tflite_files import Graph

from .litert import draw, litert

Options = tuple[str, Mapping[str, Any]]


@dataclass(frozen=True)
class One:
    """One operator. `constants` are the operands in the file; the others are inputs."""

    op: str
    values: Sequence[np.ndarray]
    results: Sequence[tuple[Sequence[int], str]]
    given: Options | None = None
    constants: Sequence[int] = ()
    version: int = 1


def compared(*cases: One, tolerance: float = 2e-6) -> None:
    """Compiles a file with all operators, and compares the results with LiteRT's."""
    graph, outputs = Graph(), []
    feed: dict[str, np.ndarray] = {}
    for number, case in enumerate(cases):
        operands = []
        for n, value in enumerate(case.values):
            name = f"x{number}_{n}"
            if n in case.constants:
                operands.append(graph.constant(value))
            else:
                feed[name] = value
                operands.append(graph.input(name, value.shape, from_numpy(value.dtype)))
        named = [(f"y{number}_{n}", *result) for n, result in enumerate(case.results)]
        outputs += graph.operator(case.op, operands, named, case.given, case.version)
    data = graph.file(outputs)
    expected = litert(data, feed)
    found = clew.compile(load(data), threads=1).run(feed)
    assert len(found) == len(expected)
    for (name, ours), theirs in zip(found.items(), expected, strict=True):
        what = f"{name}: {cases[int(name[1:].split('_')[0])]}"
        assert ours.shape == theirs.shape, what
        assert ours.dtype == theirs.dtype, what
        if ours.dtype.kind == "f":
            scale = max(float(np.abs(theirs[np.isfinite(theirs)]).max(initial=0)), 1e-3)
            np.testing.assert_allclose(
                ours, theirs, rtol=tolerance, atol=tolerance * scale, err_msg=what
            )
        else:
            np.testing.assert_array_equal(ours, theirs, err_msg=what)


UNARY = (
    "ABS", "CEIL", "COS", "ELU", "EXP", "FLOOR", "HARD_SWISH", "LOGISTIC", "NEG", "RELU", "RELU6",
    "RELU_N1_TO_1", "RELU_0_TO_1", "ROUND", "SIN", "SQUARE", "TANH", "ZEROS_LIKE", "SIGN",
    "LOG_SOFTMAX",
)  # fmt: skip


@pytest.mark.parametrize("shape", [(7,), (2, 3, 5), (1, 1)])
def test_elements(shape: tuple[int, ...]) -> None:
    x, positive = draw(len(shape), *shape), draw(1, *shape, low=0.1)
    cases = [One(op, [x], [(shape, "f32")]) for op in UNARY]
    cases += [One(op, [positive], [(shape, "f32")]) for op in ("LOG", "RSQRT", "SQRT")]
    compared(*cases)


ARITHMETIC = {"ADD": "AddOptions", "SUB": "SubOptions", "MUL": "MulOptions", "DIV": "DivOptions"}
COMPARISONS = ("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL")


def test_pairs() -> None:
    a, b = draw(1, 2, 3, 5), draw(2, 3, 1, low=0.5)
    cases = [
        One(op, [a, b], [((2, 3, 5), "f32")], (kind, {"activation": activation}))
        for (op, kind), activation in product(ARITHMETIC.items(), range(4))
    ]
    for dtype in ("f32", "i32"):
        a, b = draw(1, 4, 3, dtype=dtype, low=1, high=9), draw(2, 3, dtype=dtype, low=1, high=4)
        cases += [
            One(op, [a, b], [((4, 3), dtype)])
            for op in ("MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE", "POW")
        ]
    for dtype in ("f32", "i32", "i64"):
        a, b = (draw(n, 5, 4, dtype=dtype, low=-2, high=2) for n in (1, 2))
        b[0] = a[0]
        cases += [One(op, [a, b], [((5, 4), "bool")]) for op in COMPARISONS]
    a, b = (draw(n, 9, dtype="bool") for n in (1, 2))
    cases += [One(op, [a, b], [((9,), "bool")]) for op in ("LOGICAL_AND", "LOGICAL_OR")]
    compared(*cases)


def test_quotients_round_down() -> None:
    kinds = [("FLOOR_DIV", "f32"), ("FLOOR_DIV", "i32")]
    kinds += [("FLOOR_MOD", dtype) for dtype in ("f32", "i32", "i64")]
    numbers = [7, -7, 7, -7, 0, 6], [2, 2, -2, -2, 3, 3]
    compared(
        *(
            One(op, [np.array(each, to_numpy(dtype)) for each in numbers], [((6,), dtype)])
            for op, dtype in kinds
        )
    )


def test_casts_of_floats_saturate() -> None:
    x = np.float32([np.nan, np.inf, -np.inf, 3e9, -3e9, 1e19, -1e19, 300, -300, -1.5, 2.7])
    dtypes = ("i8", "u8", "i16", "i32", "u32", "i64")
    compared(*(One("CAST", [x], [(x.shape, dtype)]) for dtype in dtypes))


def test_reductions() -> None:
    x, cases = draw(3, 2, 3, 4), []
    for op in ("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD"):
        for axes, keep in (([1], False), ([0, -1], True), ([2, 2], False)):
            shape = x.sum(tuple({a % 3 for a in axes}), keepdims=keep).shape
            given = ("ReducerOptions", {"keep_dims": keep})
            cases.append(One(op, [x, np.int32(axes)], [(shape, "f32")], given, [1]))
    compared(*cases)


@pytest.mark.parametrize("padding", [0, 1])
def test_convolutions(padding: int) -> None:
    cases = []
    for size, (stride, dilation) in product((7, 8), ((1, 1), (2, 1), (1, 2))):
        span = 2 * dilation + 1
        sides = [
            -(-n // stride) if padding == 0 else -(-(n - span + 1) // stride)
            for n in (size, size + 1)
        ]
        given = {
            "padding": padding, "stride_w": stride, "stride_h": stride, "dilation_w": dilation,
            "dilation_h": dilation, "activation": 3,
        }  # fmt: skip
        image = draw(1, 2, size, size + 1, 6)
        operands = [image, draw(2, 4, 3, 3, 6), draw(3, 4)]
        result = [((2, *sides, 4), "f32")]
        cases.append(One("CONV_2D", operands, result, ("Conv2DOptions", given), [1, 2]))
        operands = [image, draw(4, 1, 3, 3, 12), draw(5, 12)]
        deep = ("DepthwiseConv2DOptions", {**given, "depth_multiplier": 2})
        result = [((2, *sides, 12), "f32")]
        cases.append(One("DEPTHWISE_CONV_2D", operands, result, deep, [1, 2]))
    compared(*cases, tolerance=1e-5)


def test_convolutions_in_groups() -> None:
    given = ("Conv2DOptions", {"padding": 0, "stride_w": 1, "stride_h": 1})
    operands = [draw(1, 1, 5, 6, 6), draw(2, 4, 3, 3, 3), draw(3, 4)]
    result = [((1, 5, 6, 4), "f32")]
    compared(One("CONV_2D", operands, result, given, [1, 2], version=6), tolerance=1e-5)


def test_transposed_convolutions() -> None:
    cases = []
    for padding, (kernel, stride) in product((0, 1), ((3, 2), (2, 2), (4, 3), (3, 1))):
        sides = [n * stride if padding == 0 else (n - 1) * stride + kernel for n in (5, 4)]
        shape = np.int32([1, *sides, 6])
        given = {"padding": padding, "stride_w": stride, "stride_h": stride}
        operands = [shape, draw(2, 6, kernel, kernel, 3), draw(1, 1, 5, 4, 3)]
        result = [(shape, "f32")]
        options = ("TransposeConvOptions", given)
        cases.append(One("TRANSPOSE_CONV", operands, result, options, [0, 1]))
    compared(*cases, tolerance=1e-5)


def test_pooling() -> None:
    cases = []
    for op, padding, (window, stride) in product(
        ("MAX_POOL_2D", "AVERAGE_POOL_2D"), (0, 1), ((2, 2), (3, 2), (3, 1))
    ):
        sides = [-(-n // stride) if padding == 0 else (n - window) // stride + 1 for n in (7, 6)]
        given = {
            "padding": padding, "stride_w": stride, "stride_h": stride, "filter_width": window,
            "filter_height": window,
        }  # fmt: skip
        result = [((1, *sides, 5), "f32")]
        cases.append(One(op, [draw(1, 1, 7, 6, 5)], result, ("Pool2DOptions", given)))
    compared(*cases)


def test_resizing() -> None:
    cases = []
    kinds = {
        "RESIZE_BILINEAR": "ResizeBilinearOptions",
        "RESIZE_NEAREST_NEIGHBOR": "ResizeNearestNeighborOptions",
    }
    for (op, kind), (corners, centers), size in product(
        kinds.items(), ((0, 0), (1, 0), (0, 1)), ((8, 11), (3, 2), (1, 1))
    ):
        given = (kind, {"align_corners": bool(corners), "half_pixel_centers": bool(centers)})
        operands = [draw(1, 1, 5, 4, 3), np.int32(size)]
        cases.append(One(op, operands, [((1, *size, 3), "f32")], given, [1], version=3))
    compared(*cases, tolerance=1e-5)


def test_products() -> None:
    operands = [draw(1, 2, 3, 8), draw(2, 5, 8), draw(3, 5)]
    cases = [
        One(
            "FULLY_CONNECTED", operands, [(shape, "f32")],
            ("FullyConnectedOptions", {"keep_num_dims": keep, "activation": 1}), [1, 2], 5,
        )
        for keep, shape in ((False, (6, 5)), (True, (2, 3, 5)))
    ]  # fmt: skip
    for left, right in product((False, True), (False, True)):
        a = draw(1, 2, 5, 4) if left else draw(1, 2, 4, 5)
        b = draw(2, 2, 3, 5) if right else draw(2, 2, 5, 3)
        given = ("BatchMatMulOptions", {"adj_x": left, "adj_y": right})
        cases.append(One("BATCH_MATMUL", [a, b], [((2, 4, 3), "f32")], given))
    compared(*cases, tolerance=1e-5)


SLICES: list[tuple[list[int], list[int], list[int], dict[str, int]]] = [
    ([0, 1, 0], [2, 3, 4], [1, 1, 2], {}),
    ([-1, 0, 3], [-3, 3, -5], [-1, 2, -1], {}),
    ([0, 1, 0], [0, 2, 0], [1, 1, 1], {"begin_mask": 5, "end_mask": 5}),
    ([1, 0], [2, 0], [1, 1], {"shrink_axis_mask": 1, "ellipsis_mask": 2}),
    ([0, -1], [0, 0], [1, 1], {"ellipsis_mask": 1, "shrink_axis_mask": 2}),
    ([0, 0, 1], [0, 0, 3], [1, 1, 1], {"new_axis_mask": 1, "begin_mask": 2, "end_mask": 2}),
    ([0, 0, 3], [0, 0, 0], [1, 1, -2], {"begin_mask": 3, "end_mask": 7}),
]


def test_strided_slices() -> None:
    x, cases = draw(1, 2, 3, 4), []
    for begin, end, steps, masks in SLICES:
        index: list[Any] = []
        for n, (a, b, step) in enumerate(zip(begin, end, steps, strict=True)):
            bits = {name for name, mask in masks.items() if mask >> n & 1}
            if "ellipsis_mask" in bits:
                index.append(...)
            elif "new_axis_mask" in bits:
                index.append(None)
            elif "shrink_axis_mask" in bits:
                index.append(a)
            else:
                first, last = None if "begin_mask" in bits else a, None if "end_mask" in bits else b
                index.append(slice(first, last, step))
        operands = [x, *(np.int32(each) for each in (begin, end, steps))]
        result = [(x[tuple(index)].shape, "f32")]
        given = ("StridedSliceOptions", masks)
        cases.append(One("STRIDED_SLICE", operands, result, given, [1, 2, 3], 4))
    compared(*cases)


def test_movement() -> None:
    x, same = draw(1, 2, 3, 4), [((2, 3, 4), "f32")]
    pads = np.int32([[0, 1], [2, 0], [1, 1]])
    compared(
        One("RESHAPE", [x, np.int32([4, -1])], [((4, 6), "f32")], constants=[1]),
        One("TRANSPOSE", [x, np.int32([2, 0, 1])], [((4, 2, 3), "f32")], constants=[1]),
        One("PAD", [x, pads], [((3, 5, 6), "f32")], constants=[1]),
        One("EXPAND_DIMS", [x, np.int32(-1)], [((2, 3, 4, 1), "f32")], constants=[1]),
        One(
            "PACK", [x, x + 1], [((2, 2, 3, 4), "f32")],
            ("PackOptions", {"values_count": 2, "axis": 1}),
        ),
        One("TILE", [x, np.int32([1, 2, 3])], [((2, 6, 12), "f32")], constants=[1]),
        One("REVERSE_V2", [x, np.int32([1])], same, constants=[1]),
        One(
            "BROADCAST_TO", [x, np.int32([5, 2, 3, 4])], [((5, 2, 3, 4), "f32")], constants=[1],
            version=2,
        ),
        One("FILL", [np.int32([3, 2]), np.float32(2.5)], [((3, 2), "f32")], constants=[0]),
        One("SHAPE", [x], [((3,), "i32")], ("ShapeOptions", {"out_type": 2})),
        One(
            "SLICE", [x, np.int32([0, 1, 1]), np.int32([2, -1, 2])], [((2, 2, 2), "f32")],
            constants=[1, 2],
        ),
        One("SQUEEZE", [x[:1]], [((3, 4), "f32")], ("SqueezeOptions", {"squeeze_dims": [0]})),
        One(
            "CONCATENATION", [x, x * 2], [((2, 6, 4), "f32")],
            ("ConcatenationOptions", {"axis": 1}),
        ),
        One(
            "SPLIT", [np.int32(2), x], [((2, 3, 2), "f32")] * 2,
            ("SplitOptions", {"num_splits": 2}), [0],
        ),
        One(
            "SPLIT_V", [x, np.int32([1, -1]), np.int32(2)],
            [((2, 3, 1), "f32"), ((2, 3, 3), "f32")], ("SplitVOptions", {"num_splits": 2}), [1, 2],
        ),
        One("UNPACK", [x], [((2, 4), "f32")] * 3, ("UnpackOptions", {"num": 3, "axis": 1})),
        One("SELECT_V2", [x > 0, x, -x], same),
        One("CAST", [x], [((2, 3, 4), "i32")], ("CastOptions", {"out_data_type": 2})),
        *(
            One(
                "MIRROR_PAD", [x[0], np.int32([[1, 0], [2, 1]])], [((4, 7), "f32")],
                ("MirrorPadOptions", {"mode": mode}), [1],
            )
            for mode in (0, 1)
        ),
        One(
            "DEPTH_TO_SPACE", [draw(1, 1, 2, 3, 8)], [((1, 4, 6, 2), "f32")],
            ("DepthToSpaceOptions", {"block_size": 2}),
        ),
        One(
            "SPACE_TO_DEPTH", [draw(1, 1, 4, 6, 2)], [((1, 2, 3, 8), "f32")],
            ("SpaceToDepthOptions", {"block_size": 2}),
        ),
    )  # fmt: skip


def test_selection() -> None:
    x, same = draw(1, 2, 3, 4), [((2, 3, 4), "f32")]
    compared(
        One("GATHER", [x, np.int32([2, 0])], [((2, 2, 4), "f32")], ("GatherOptions", {"axis": 1})),
        One("GATHER_ND", [x, np.int32([[0, 2], [1, 1]])], [((2, 4), "f32")]),
        One("TOPK_V2", [x, np.int32(2)], [((2, 3, 2), "f32"), ((2, 3, 2), "i32")], constants=[1]),
        One("CUMSUM", [x, np.int32(1)], same, ("CumsumOptions", {}), [1]),
        One("ARG_MAX", [x, np.int32(1)], [((2, 4), "i64")], ("ArgMaxOptions", {"output_type": 4}),
            [1]),
        One("SOFTMAX", [x], same, ("SoftmaxOptions", {"beta": 2.0})),
        One("PRELU", [x, draw(4, 4)], same, constants=[1]),
        One("LEAKY_RELU", [x], same, ("LeakyReluOptions", {"alpha": 0.3})),
        One("L2_NORMALIZATION", [x], same, ("L2NormOptions", {})),
        One(
            "ONE_HOT", [np.int32([2, 0, 1]), np.int32(4), np.float32(5), np.float32(-1)],
            [((3, 4), "f32")], ("OneHotOptions", {"axis": -1}), [1, 2, 3],
        ),
    )  # fmt: skip


def test_further_operators() -> None:
    x, same = draw(1, 2, 3, 4), [((2, 3, 4), "f32")]
    truth, whole = draw(2, 2, 3, dtype="bool"), draw(3, 2, 3, dtype="i32", low=0, high=90)
    pads = np.int32([[0, 1], [2, 0]])
    compared(
        One("LOGICAL_NOT", [truth], [((2, 3), "bool")]),
        One("BITWISE_XOR", [whole, whole[::-1].copy()], [((2, 3), "i32")]),
        One("RIGHT_SHIFT", [whole, whole % 5], [((2, 3), "i32")]),
        One("ADD_N", [x, x * 2, -x * 3], same),
        One("GELU", [x], same, ("GeluOptions", {"approximate": True}), version=1),
        One("RANK", [x], [((), "i32")]),
        One("PADV2", [x[0], pads, np.float32(7)], [((4, 6), "f32")], constants=[1, 2]),
        One("RANGE", [np.int32(2), np.int32(11), np.int32(3)], [((3,), "i32")], None, [0, 1, 2]),
        One("SELECT", [truth[:, 0].copy(), x, -x], same),
        One("ARG_MIN", [x, np.int32(2)], [((2, 3), "i32")], ("ArgMinOptions", {"output_type": 2}),
            [1]),
        *(
            One(op, [truth, np.int32([1])], [((2,), "bool")], ("ReducerOptions", {}), [1])
            for op in ("REDUCE_ANY", "REDUCE_ALL")
        ),
    )  # fmt: skip


def test_free_sizes() -> None:
    graph = Graph()
    x = graph.input("x", (-1, 4), "f32")
    weight = graph.constant(draw(2, 3, 4))
    (y,) = graph.operator(
        "FULLY_CONNECTED", [x, weight, -1], [("y", (-1, 3), "f32")], ("FullyConnectedOptions", {})
    )
    data = graph.file([y])
    model = clew.compile(load(data), threads=1)
    for rows in (1, 2, 7):
        feed = {"x": draw(rows, rows, 4)}
        np.testing.assert_allclose(model.run(feed)["y"], litert(data, feed)[0], rtol=1e-5)


@pytest.mark.parametrize("dtype", ["i8", "u8", "i16"])
@pytest.mark.parametrize("op", ["FULLY_CONNECTED", "MEAN"])
def test_ties_of_codes_are_rounded_as_in_litert(op: str, dtype: str) -> None:
    """With these scales, many results are halfway between codes."""
    rng, graph = np.random.default_rng(1), Graph()
    low, high = integer_limits(dtype)
    zero = 0 if dtype == "i16" else (low + high + 1) // 2 + 28
    feed = {"x": rng.integers(low, high + 1, (300, 12), to_numpy(dtype))}
    x = graph.input("x", (300, 12), dtype, scale=[0.3], zero=[zero])
    if op == "MEAN":
        inputs, shape, options = [x, graph.constant(np.int32([1]))], (300,), None
    else:
        kind, middle = ("u8", 128) if dtype == "u8" else ("i8", 0)
        codes = rng.integers(-9 + middle, 9 + middle, (7, 12), to_numpy(kind))
        inputs = [x, graph.constant(codes, scale=[0.013], zero=[middle])]
        shape, options = (300, 7), ("FullyConnectedOptions", {})
    scale = 0.2 if op == "MEAN" else 0.3
    version = 2 if op == "MEAN" else 7 if dtype == "i16" else 4
    result = [("y", shape, dtype)]
    y = graph.operator(op, inputs, result, options, version, scale=[scale], zero=[zero])
    data = graph.file(y)
    (wanted,) = litert(data, feed)
    np.testing.assert_array_equal(interpret(load(data), feed)["y"], wanted)


@pytest.mark.parametrize("dtype", ["i8", "u8"])
def test_quotients_of_codes_are_those_of_litert(dtype: str) -> None:
    """All pairs of codes. LiteRT shifts quotients of less than half a step too far."""
    low, high = integer_limits(dtype)
    codes = np.arange(low, high + 1)
    rng = np.random.default_rng(2)
    for scales in ((0.3, 0.02, 0.11), (0.02, 0.3, 0.0007), (0.05, 0.05, 0.9)):
        zeros = rng.integers(low, high + 1, 3)
        quanta = [{"scale": [s], "zero": [int(z)]} for s, z in zip(scales, zeros, strict=True)]
        divisors = codes[codes != zeros[1]]
        values = codes.reshape(-1, 1), divisors.reshape(1, -1)
        feed = {name: v.astype(to_numpy(dtype)) for name, v in zip("ab", values, strict=True)}
        graph = Graph()
        operands = [
            graph.input(name, value.shape, dtype, **quantum)
            for (name, value), quantum in zip(feed.items(), quanta, strict=False)
        ]
        options = ("DivOptions", {"activation": 1})
        shape = (len(codes), len(divisors))
        data = graph.file(
            graph.operator("DIV", operands, [("y", shape, dtype)], options, 2, **quanta[2])
        )
        (wanted,) = litert(data, feed)
        real = (values[0] - zeros[0]) / (values[1] - zeros[1]) * scales[0] / scales[1] / scales[2]
        defined = np.abs(real) >= 0.5
        found = interpret(load(data), feed)["y"]
        np.testing.assert_array_equal(found[defined], wanted[defined])
        assert (found[~defined] == max(zeros[2], found.min())).all()
