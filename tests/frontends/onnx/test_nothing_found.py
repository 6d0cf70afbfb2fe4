"""Operators on values that the data may leave empty, against ONNX Runtime: a mask picks rows of a
table, and each operator is run on none, one, some and all of them by one compiled model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

import clew
from clew.runtime.guard import GuardSide
from clew.support.errors import ClewError

Array = np.ndarray[Any, Any]
ROWS, COLUMNS = 6, 4
_node = helper.make_node


def _constants() -> dict[str, Array]:
    """Returns what cases may read besides `found: f32[n, 4]`, `places: i64[n]`, `count: i64[1]`."""
    rng = np.random.default_rng(3)
    numbers = {
        "w45": rng.standard_normal((4, 5)), "row": rng.standard_normal(4),
        "column": rng.standard_normal((6, 1)), "one": 1.0, "half": 0.5, "two_scales": [2.0, 1.0],
        "filters": rng.standard_normal((3, 1, 2)), "low_high": [0.0, 1.0],
        "image": rng.standard_normal((1, 2, 5, 5)), "wgru": rng.standard_normal((1, 9, 4)),
        "rgru": rng.standard_normal((1, 9, 3)), "wide_row": rng.standard_normal((1, 4)),
    }  # fmt: skip
    whole = {
        "axis0": [0], "axis1": [1], "axes01": [0, 1], "minus1": [-1], "zero": [0], "four": [4],
        "shape_n22": [-1, 2, 2], "shape_flat": [-1], "shape_14": [1, 4], "scalar0": 0, "scalar1": 1,
        "scalar_depth": 6, "pads": [1, 0, 2, 0], "pads_1": [0, 1, 0, 1], "big": [9], "two": [2],
        "most": [10], "twice": [2, 1], "both": [1, 3], "minus_big": [-9], "shape_keep": [0, 4],
    }  # fmt: skip
    found = {name: np.asarray(v, np.float32) for name, v in numbers.items()}
    return found | {name: np.asarray(v, np.int64) for name, v in whole.items()}


CONSTANTS = _constants()


def _unary(name: str, **attrs: Any) -> list[NodeProto]:
    return [_node(name, ["found"], ["y"], **attrs)]


def _call(
    name: str, *inputs: str, outputs: Sequence[str] = ("y",), **attrs: Any
) -> list[NodeProto]:
    return [_node(name, list(inputs), list(outputs), **attrs)]


def _then(*steps: list[NodeProto]) -> list[NodeProto]:
    return [n for nodes in steps for n in nodes]


def _loop(trips: str, body: Sequence[NodeProto], *, scan: bool = True) -> list[NodeProto]:
    """A loop over `state: f32[4]` with `iteration`, whose body gives `next` and `out`."""
    graph = helper.make_graph(
        [_node("Identity", ["go"], ["going"]), *body],
        "body",
        [
            helper.make_tensor_value_info("iteration", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, [4]),
        ],
        [
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, [4]),
            *([helper.make_tensor_value_info("out", TensorProto.FLOAT, [4])] if scan else []),
        ],
    )
    return [
        _node("Squeeze", [trips], ["trips"]),
        _node("Loop", ["trips", "", "row"], ["last", "y"] if scan else ["y"], body=graph),
    ]


def _scan(reverse: bool = False) -> list[NodeProto]:
    graph = helper.make_graph(
        [_node("Add", ["state", "line"], ["next"]), _node("Identity", ["next"], ["out"])],
        "body",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in ("state", "line")],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in ("next", "out")],
    )
    attrs: dict[str, Any] = {"scan_input_directions": [1]} if reverse else {}
    return [
        _node("Scan", ["row", "found"], ["y", "z"], num_scan_inputs=1, body=graph, **attrs),
    ]


def _if_any() -> list[NodeProto]:
    """Nothing found: the row; otherwise the largest of the rows."""

    def branch(name: str, *nodes: NodeProto) -> Any:
        out = helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, None)
        return helper.make_graph(list(nodes), name, [], [out])

    return [
        _node("Equal", ["count", "zero"], ["is_none"]),
        _node("Squeeze", ["is_none"], ["is_none_s"]),
        _node(
            "If", ["is_none_s"], ["y"],
            then_branch=branch("a", _node("Neg", ["row"], ["a_y"])),
            else_branch=branch("b", _node("ReduceMax", ["found", "axis0"], ["b_y"], keepdims=0)),
        ),
    ]  # fmt: skip


_BOXES = _then(
    _call("Abs", "found", outputs=["sides"]),
    _call("Unsqueeze", "sides", "axis0", outputs=["boxes"]),
    _call("ReduceSum", "found", "axis1", outputs=["sums"], keepdims=0),
    _call("Unsqueeze", "sums", "axes01", outputs=["scores"]),
)

CASES: dict[str, list[NodeProto]] = {
    **{name: _unary(name) for name in ("Relu", "Sigmoid", "Identity")},
    **{
        f"{name} over {axes}": _call(name, "found", axes, keepdims=keep)
        for name, axes, keep in (
            ("ReduceSum", "axis0", 1), ("ReduceMax", "axis0", 0), ("ReduceMin", "axes01", 0),
            ("ReduceProd", "axis0", 0), ("ReduceL1", "axes01", 0), ("ReduceL2", "axis1", 1),
            ("ReduceLogSumExp", "axis0", 1), ("ReduceSumSquare", "axis1", 0),
        )
    },
    "ReduceMean": _call("ReduceMean", "found", "axis1"),
    "ArgMax of rows": _call("ArgMax", "found", axis=1),
    "Softmax": _unary("Softmax", axis=1),
    "Softmax over found": _unary("Softmax", axis=0),
    "LogSoftmax": _unary("LogSoftmax", axis=0),
    "LayerNormalization": _call("LayerNormalization", "found", "row"),
    "InstanceNormalization": _then(
        _call("Reshape", "found", "shape_n22", outputs=["s"]),
        _call("InstanceNormalization", "s", "low_high", "low_high"),
    ),
    "MatMul": _call("MatMul", "found", "w45"),
    "MatMul of nothing": _then(
        _call("Transpose", "found", outputs=["t"]), _call("MatMul", "t", "found")
    ),
    "MatMul twice": _then(
        _call("MatMul", "found", "w45", outputs=["a"]),
        _call("Transpose", "a", outputs=["b"]),
        _call("MatMul", "a", "b", outputs=["c"]),
        _call("Softmax", "c", outputs=["d"], axis=-1),
        _call("MatMul", "d", "found"),
    ),
    "attention with found keys": _then(
        _call("Transpose", "found", outputs=["t"]),
        _call("MatMul", "wide_row", "t", outputs=["c"]),
        _call("Softmax", "c", outputs=["d"], axis=-1),
        _call("MatMul", "d", "found"),
    ),
    "Gemm": _call("Gemm", "found", "w45"),
    "Einsum": _call("Einsum", "found", "found", equation="ij,ik->jk"),
    "Conv": _then(
        _call("Unsqueeze", "found", "axis1", outputs=["s"]),
        _call("Conv", "s", "filters", pads=[1, 1]),
    ),
    "ConvTranspose": _then(
        _call("Unsqueeze", "found", "axis1", outputs=["s"]),
        _call("ConvTranspose", "s", "filters_t", strides=[2]),
    ),
    "MaxPool": _then(
        _call("Unsqueeze", "found", "axis1", outputs=["s"]),
        _call("MaxPool", "s", kernel_shape=[2]),
    ),
    "AveragePool": _then(
        _call("Unsqueeze", "found", "axis1", outputs=["s"]),
        _call("AveragePool", "s", kernel_shape=[2], pads=[1, 0]),
    ),
    "GlobalAveragePool": _then(
        _call("Unsqueeze", "found", "axis1", outputs=["s"]), _call("GlobalAveragePool", "s")
    ),
    "Resize": _then(
        _call("Reshape", "found", "shape_n22", outputs=["s"]),
        _call("Resize", "s", "", "up", mode="linear"),
    ),
    "Gather": _call("Gather", "table", "places"),
    "Gather of columns": _call("Gather", "found", "scalar1", axis=1),
    "Gather twice": _then(
        _call("NonZero", "found", outputs=["nz"]),
        _call("Split", "nz", outputs=["r", "c"], axis=0, num_outputs=2),
        _call("Squeeze", "r", "axis0", outputs=["rows"]),
        _call("Gather", "found", "rows"),
    ),
    "GatherElements": _then(
        _call("ArgMax", "found", outputs=["m"], axis=1),
        _call("GatherElements", "found", "m", axis=1),
    ),
    "GatherND": _then(
        _call("Unsqueeze", "places", "axis1", outputs=["p"]), _call("GatherND", "table", "p")
    ),
    "GatherND of found": _then(
        _call("NonZero", "found", outputs=["nz"]),
        _call("Transpose", "nz", outputs=["p"]),
        _call("GatherND", "found", "p"),
    ),
    "ScatterND": _then(
        _call("Unsqueeze", "places", "axis1", outputs=["p"]),
        _call("ScatterND", "table", "p", "found"),
    ),
    "ScatterND into found": _then(
        _call("NonZero", "found", outputs=["nz"]),
        _call("Transpose", "nz", outputs=["p"]),
        _call("GatherND", "found", "p", outputs=["v"]),
        _call("Neg", "v", outputs=["u"]),
        _call("ScatterND", "found", "p", "u"),
    ),
    "ScatterElements": _then(
        _call("ArgMax", "found", outputs=["m"], axis=1),
        _call("Neg", "m", outputs=["low"]),
        _call("ReduceSum", "found", "axis1", outputs=["s"]),
        _call("ScatterElements", "found", "low", "s", axis=1, reduction="add"),
    ),
    "ScatterElements of none": _then(
        _call("Unsqueeze", "places", "axis1", outputs=["p"]),
        _call("ReduceSum", "found", "axis1", outputs=["s"]),
        _call("ScatterElements", "table", "p", "s", axis=0),
    ),
    "TopK": _then(
        _call("ReduceSum", "found", "axis1", outputs=["s"], keepdims=0),
        _call("Min", "count", "two", outputs=["k"]),
        _call("TopK", "s", "k", outputs=["y", "z"]),
    ),
    "TopK of all": _then(
        _call("ReduceSum", "found", "axis1", outputs=["s"], keepdims=0),
        _call("TopK", "s", "count", outputs=["v", "z"]),
        _call("Gather", "found", "z"),
    ),
    "Slice": _call("Slice", "found", "zero", "two", "axis0"),
    "Slice to the count": _call("Slice", "table", "zero", "count", "axis0"),
    "Slice from the count": _call("Slice", "table", "count", "most", "axis0"),
    "Slice backwards": _call("Slice", "found", "minus1", "minus_big", "axis0", "minus1"),
    "Concat": _call("Concat", "found", "table", "found", axis=0),
    "Concat of columns": _call("Concat", "found", "found", axis=1),
    "Split": _then(_call("Split", "found", outputs=["a", "y"], axis=1, num_outputs=2)),
    "Unique": _then(
        _call("Unique", "found", outputs=["y", "first", "inverse", "counts"]),
        _call("Add", "counts", "two", outputs=["z"]),
    ),
    "Unique rows": _call("Unique", "found", axis=0),
    "NonZero": _then(_call("NonZero", "found", outputs=["p"]), _call("Neg", "p")),
    "Compress": _then(
        _call("ReduceSum", "found", "axis1", outputs=["s"], keepdims=0),
        _call("Greater", "s", "one", outputs=["large"]),
        _call("Compress", "found", "large", outputs=["c"], axis=0),
        _call("MatMul", "c", "w45"),
    ),
    "Where": _then(
        _call("Greater", "found", "half", outputs=["large"]),
        _call("Where", "large", "found", "row"),
    ),
    "Add": _call("Add", "found", "row"),
    "Range": _then(
        _call("Squeeze", "count", outputs=["n"]), _call("Range", "scalar0", "n", "scalar1")
    ),
    "Tile": _call("Tile", "found", "twice"),
    "Tile by the count": _then(
        _call("Concat", "count", "two", outputs=["times"], axis=0), _call("Tile", "table", "times")
    ),
    "Expand": _then(
        _call("Concat", "count", "four", outputs=["s"], axis=0), _call("Expand", "row", "s")
    ),
    "ConstantOfShape": _call("ConstantOfShape", "count"),
    "EyeLike": _call("EyeLike", "found"),
    "Pad": _call("Pad", "found", "pads"),
    "Pad by reflection": _call("Pad", "found", "pads_1", mode="reflect"),
    "CumSum": _call("CumSum", "found", "scalar0"),
    "OneHot": _call("OneHot", "places", "scalar_depth", "low_high"),
    "OneHot of the count": _then(
        _call("Squeeze", "count", outputs=["n"]), _call("OneHot", "both", "n", "low_high")
    ),
    "Reshape": _call("Reshape", "found", "shape_n22"),
    "Reshape flat": _call("Reshape", "found", "shape_flat"),
    "Flatten": _unary("Flatten"),
    "Transpose": _unary("Transpose"),
    "Trilu": _unary("Trilu"),
    "Shape": _unary("Shape"),
    "Size": _unary("Size"),
    "Cast": _unary("Cast", to=TensorProto.INT32),
    "Clip": _call("Clip", "found", "half", "one"),
    "Hardmax": _unary("Hardmax"),
    "DepthToSpace": _then(
        _call("Reshape", "found", "shape_n411", outputs=["s"]),
        _call("DepthToSpace", "s", blocksize=2),
    ),
    "ReverseSequence": _then(
        _call("Add", "places", "scalar1", outputs=["p"]),
        _call("Min", "p", "four", outputs=["lengths"]),
        _call("ReverseSequence", "found", "lengths", time_axis=1, batch_axis=0),
    ),
    "NonMaxSuppression": _then(
        _BOXES, _call("NonMaxSuppression", "boxes", "scores", "most", "half"),
    ),
    "NonMaxSuppression that finds nothing": _then(
        _BOXES,
        _call("NonMaxSuppression", "boxes", "scores", "most", "half", "hundred", outputs=["s"]),
        _call("Gather", "s", "two", outputs=["k"], axis=1),
        _call("Squeeze", "k", "axis1", outputs=["kept"]),
        _call("Gather", "found", "kept"),
    ),
    "detections of a model": _then(
        _BOXES,
        _call("NonMaxSuppression", "boxes", "scores", "most", "half", "half", outputs=["s"]),
        _call("Gather", "s", "two", outputs=["k"], axis=1),
        _call("Squeeze", "k", "axis1", outputs=["kept"]),
        _call("Slice", "kept", "zero", "two", "axis0", outputs=["first"]),
        _call("Gather", "found", "first", outputs=["b"], axis=0),
        _call("Gather", "sums", "first", outputs=["z"], axis=0),
        _call("MatMul", "b", "w45"),
    ),
    "RoiAlign": _then(
        _call("Abs", "found", outputs=["rois"]),
        _call("Sub", "places", "places", outputs=["zeros"]),
        _call("RoiAlign", "image", "rois", "zeros", output_height=2, output_width=2),
    ),
    "MaxRoiPool": _then(
        _call("Pad", "found", "pads_left", outputs=["r"]),
        _call("Abs", "r", outputs=["rois"]),
        _call("MaxRoiPool", "image", "rois", pooled_shape=[2, 2]),
    ),
    "GRU over found": _then(
        _call("Unsqueeze", "found", "axis1", outputs=["s"]),
        _call("GRU", "s", "wgru", "rgru", outputs=["y", "z"], hidden_size=3),
    ),
    "GRU of found": _then(
        _call("Unsqueeze", "found", "axis0", outputs=["s"]),
        _call("GRU", "s", "wgru", "rgru", outputs=["y", "z"], hidden_size=3),
    ),
    "Loop": _loop("count", [
        _node("Add", ["state", "row"], ["next"]), _node("Neg", ["next"], ["out"])
    ]),
    "Loop over found": _loop("count", [
        _node("Gather", ["found", "iteration"], ["line"]),
        _node("Add", ["state", "line"], ["next"]), _node("Mul", ["next", "line"], ["out"]),
    ]),
    "Loop without a stack": _loop("count", [_node("Add", ["state", "row"], ["next"])], scan=False),
    "Scan": _scan(),
    "Scan backwards": _scan(reverse=True),
    "If": _if_any(),
    "SplitToSequence": _then(
        _call("SplitToSequence", "found", outputs=["q"], axis=0),
        _call("SequenceLength", "q"),
    ),
    "ConcatFromSequence": _then(
        _call("SequenceConstruct", "found", "table", "found", outputs=["q"]),
        _call("ConcatFromSequence", "q", axis=0),
    ),
    "SequenceAt": _then(
        _call("SequenceConstruct", "table", "found", outputs=["q"]),
        _call("SequenceAt", "q", "scalar1", outputs=["a"]),
        _call("Relu", "a"),
    ),
    "QuantizeLinear": _call("QuantizeLinear", "found", "half"),
    "Mod": _call("Mod", "places", "two"),
    "Equal": _call("Equal", "places", "two"),
    "GatherElements of rows": _then(
        _call("Unsqueeze", "places", "axis1", outputs=["p"]),
        _call("GatherElements", "table", "p", axis=0),
    ),
    "Det": _then(_call("Reshape", "found", "shape_n22", outputs=["s"]), _call("Det", "s")),
    "GridSample": _then(
        _call("Reshape", "found", "shape_1n22", outputs=["g"]), _call("GridSample", "image", "g")
    ),
}  # fmt: skip
CONSTANTS |= {
    "filters_t": np.ones((1, 2, 3), np.float32), "up": np.asarray([1, 1, 2], np.float32),
    "hundred": np.asarray([100], np.float32), "shape_n411": np.asarray([-1, 4, 1, 1]),
    "shape_1n22": np.asarray([1, -1, 2, 2]), "pads_left": np.asarray([0, 1, 0, 0]),
    "table": np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS) - 11,
}  # fmt: skip


def model_of(nodes: Sequence[NodeProto]) -> bytes:
    """Returns a model that picks rows, then runs the nodes, which give `y` (and `z`)."""
    pick = [
        _node("Compress", ["x", "mask"], ["found"], axis=0),
        _node("NonZero", ["mask"], ["nonzero"]),
        _node("Squeeze", ["nonzero", "axis0"], ["places"]),
        _node("Shape", ["places"], ["count"]),
    ]
    made = {name for n in nodes for name in n.output}
    results = [name for name in ("y", "z") if name in made]
    inner = [
        g for n in nodes for a in n.attribute for g in [a.g] if a.name.endswith(("body", "branch"))
    ]
    read = {name for n in (*nodes, *pick, *(m for g in inner for m in g.node)) for name in n.input}
    graph = helper.make_graph(
        [*pick, *nodes],
        "nothing_found",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [ROWS, COLUMNS]),
            helper.make_tensor_value_info("mask", TensorProto.BOOL, [ROWS]),
        ],
        [helper.make_empty_tensor_value_info(name) for name in results],
        [numpy_helper.from_array(v, k) for k, v in CONSTANTS.items() if k in read],
    )
    opset = [helper.make_opsetid("", 20)]
    return helper.make_model(graph, opset_imports=opset, ir_version=9).SerializeToString()


MASKS = ([0] * 6, [0, 0, 1, 0, 0, 0], [1] * 6, [0] * 6)
# What ONNX Runtime refuses for nothing found, or ends its process at: the shapes of `y` and `z`.
ALONE = {
    "OneHot of the count": [(2, 0)],
    "GRU over found": [(0, 1, 1, 3), (1, 1, 3)],
    "GRU of found": [(1, 1, 0, 3), (1, 0, 3)],
    "Scan": [(4,), (0, 4)],
    "Scan backwards": [(4,), (0, 4)],
}


@pytest.mark.parametrize("number", range(len(CASES)), ids=list(CASES))
def test_nothing_one_and_everything_found(number: int) -> None:
    name = list(CASES)[number]
    raw = model_of(CASES[name])
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(raw, options)
    side = list(GuardSide)[number % 2]
    compiled = clew.compile(
        raw, opt_level=3 * (number % 3 > 0), threads=1, diagnostics=clew.Diagnostics(guard=side)
    )
    rng = np.random.default_rng(number)
    for mask in MASKS:
        x = (rng.integers(-8, 9, (ROWS, COLUMNS)) / 4).astype(np.float32)
        feed = {"x": x, "mask": np.asarray(mask, bool)}
        found = list(compiled.run(feed).values())
        if name in ALONE and not any(mask):
            assert [f.shape for f in found] == ALONE[name]
            continue
        for got, wanted in zip(found, session.run(None, feed), strict=True):
            assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype), mask
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("side", list(GuardSide))
def test_a_result_that_becomes_empty_in_a_run_is_not_written(side: GuardSide) -> None:
    """Its loops run no iteration, though facts inside of them say that its sizes are at least 1."""
    model = model_of(CASES["Slice from the count"])
    compiled = clew.compile(model, threads=1, diagnostics=clew.Diagnostics(guard=side))
    for mask in MASKS:
        feed = {"x": np.zeros((ROWS, COLUMNS), np.float32), "mask": np.asarray(mask, bool)}
        np.testing.assert_array_equal(compiled.run(feed)["y"], CONSTANTS["table"][sum(mask) :])


def test_no_index_of_nothing() -> None:
    """ONNX Runtime refuses as well, and says nothing of where."""
    compiled = clew.compile(model_of(_call("ArgMax", "found", axis=0)), threads=1)
    x = np.arange(24, dtype=np.float32).reshape(ROWS, COLUMNS)
    with pytest.raises(ClewError) as caught:
        compiled(x, np.zeros(6, bool))
    assert caught.value.code == "T170"
    assert "argmax: axis 0 of [0, 4] has no elements" in caught.value.message
    assert caught.value.layer == "ArgMax_4"
    np.testing.assert_array_equal(compiled(x, np.ones(6, bool)), [[5] * 4])


def test_no_rows_of_an_empty_table() -> None:
    """An index into nothing is wrong; no index is not."""
    nodes = _call("Gather", "found", "both", axis=0)
    compiled = clew.compile(model_of(nodes), threads=1)
    with pytest.raises(ClewError, match="gather: the indexed axis has no elements") as caught:
        compiled(np.ones((ROWS, COLUMNS), np.float32), np.zeros(6, bool))
    assert (caught.value.code, caught.value.layer) == ("T110", "Gather_4")
