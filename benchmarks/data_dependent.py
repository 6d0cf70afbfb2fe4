"""Measures drawn models of control flow, data-dependent shapes and visits in order beside ONNX
Runtime, after comparing their values.

    python benchmarks/data_dependent.py --count 40 --seed 1
    python benchmarks/data_dependent.py --kinds scan,sort --count 20
    python benchmarks/data_dependent.py --count 300 --only-values

Kinds: `select` (NonZero, Compress, Unique and masks), `boxes` (NonMaxSuppression), `scan` (CumSum,
reversed slices), `sort` (TopK, ArgMax), `grow` (loops whose states grow, also nested), `sequence`
(sequences and optionals), `lists` (sequences that loops read and change), `trees` (forests on few
rows), `maps` (ZipMap). Sizes, dtypes, axes and the place in a model are drawn. Times are those of
the calling thread, so other processes disturb them less.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final

import numpy as np
import onnx
import onnxruntime
import typer
from onnx import TensorProto, helper, numpy_helper
from rich.table import Table

import clew
from forest import forest
from harness.report import circumstances, console, progress

Array = np.ndarray
Feeds = dict[str, Array]
_VALUES: Final = 3  # inputs that calls take turns with
_TURN_NS: Final = 4_000_000


@dataclass(frozen=True)
class Drawn:
    """A model and values of its inputs."""

    name: str
    model: onnx.ModelProto
    feeds: list[Feeds]


class Draw:
    """Builds models of drawn sizes."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def one(self, *choices: Any) -> Any:
        """Returns one of some choices."""
        return choices[self.rng.integers(len(choices))]

    def size(self, most: int) -> int:
        """Returns a size up to `most`; short ones are as likely as long ones."""
        return int(np.exp(self.rng.uniform(0, np.log(most))))

    def array(self, dtype: str, *shape: int, is_odd: bool = False) -> Array:
        """Returns values with ties; with `is_odd`, floats also have NaN and infinities at times."""
        if dtype == "bool":
            return np.asarray(self.rng.random(shape) < self.one(0.02, 0.5, 0.98))
        values = self.rng.standard_normal(shape) * self.one(1, 3, 100)
        if dtype.startswith("f"):
            few = self.rng.random(shape) < (self.one(0, 0, 0.05) if is_odd else 0)
            values = np.where(few, self.rng.choice([np.nan, np.inf, -np.inf, -0.0], shape), values)
        return np.asarray(values.astype(dtype))

    def shape(self, rank: int, most: int) -> list[int]:
        """Returns a shape of up to `most` elements."""
        shape = []
        for left in range(rank, 0, -1):
            shape.append(self.size(most) if left == 1 else self.size(max(int(most**0.5), 1)))
            most = max(most // shape[-1], 1)
        self.rng.shuffle(shape)
        return shape


def model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[int, list[Any]]],
    outputs: dict[str, int | None],
    held: dict[str, Array] | None = None,
    opset: int = 18,
) -> onnx.ModelProto:
    """Returns a model; outputs without a dtype have inferred types."""
    made = helper.make_graph(
        nodes,
        "drawn",
        [helper.make_tensor_value_info(n, k, s) for n, (k, s) in inputs.items()],
        [
            helper.make_tensor_value_info(n, k or TensorProto.FLOAT, None)
            for n, k in outputs.items()
        ],
        [numpy_helper.from_array(v, n) for n, v in (held or {}).items()],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(made, opset_imports=imports, ir_version=9)


def _kind(dtype: str) -> int:
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def _ints(*values: int) -> Array:
    return np.array(values, np.int64)


def select(draw: Draw) -> Drawn:
    """NonZero, Compress, Unique, masks; alone or between elementwise operators."""
    op = draw.one("NonZero", "Compress", "Unique", "mask", "where")
    shape = draw.shape(draw.one(1, 2, 3), draw.one(64, 4096, 300_000))
    dtype = draw.one("f4", "f4", "i8", "i4") if op != "Unique" else draw.one("f4", "i8")
    free = draw.one(False, False, True)
    kind = _kind(dtype)
    middle = draw.one(False, True) and dtype == "f4"
    held: dict[str, Array] = {}
    nodes = [helper.make_node("Neg", ["x"], ["x1"])] if middle else []
    x = "x1" if middle else "x"
    out, out_kind = "y", kind
    name = f"{op} {dtype}{shape}"
    if op == "NonZero":
        nodes.append(helper.make_node("NonZero", [x], ["y"]))
        out_kind = TensorProto.INT64
        middle = False
    elif op == "Compress":
        axis = draw.one(None, *range(len(shape)))
        name += f" axis={axis}"
        length = int(np.prod(shape)) if axis is None else shape[axis]
        extra = {} if axis is None else {"axis": axis}
        nodes.append(helper.make_node("Compress", [x, "c"], ["y"], **extra))
    elif op == "Unique":
        some = draw.one(1, 1, 4)
        ordered = draw.one(0, 1)
        name += f" sorted={ordered} outputs={some}"
        outs = ["y", "first", "inverse", "counts"][:some]
        nodes.append(helper.make_node("Unique", [x], outs, sorted=ordered))
    elif op == "mask":  # torch's x[x > t]
        held["t"] = np.array(draw.one(-1, 0, 2), dtype)
        nodes += [
            helper.make_node("Greater", [x, "t"], ["m"]),
            helper.make_node("NonZero", ["m"], ["n"]),
            helper.make_node("Transpose", ["n"], ["nt"], perm=[1, 0]),
            helper.make_node("GatherND", [x, "nt"], ["y"]),
        ]
    else:  # rows whose score passes
        shape = [max(shape[0], 1), draw.size(64)]
        name = f"rows {dtype}{shape}"
        held["t"] = np.array(draw.one(-1, 0, 2), dtype)
        held["a"] = _ints(1)
        nodes += [
            helper.make_node("ReduceMax", [x, "a"], ["best"], keepdims=0),
            helper.make_node("Greater", ["best", "t"], ["m"]),
            helper.make_node("NonZero", ["m"], ["n"]),
            helper.make_node("Squeeze", ["n", "zero"], ["rows"]),
            helper.make_node("Gather", [x, "rows"], ["y"], axis=0),
        ]
        held["zero"] = _ints(0)
    if middle:
        nodes += [
            helper.make_node("Mul", ["y", "y"], ["y1"]),
            helper.make_node("Neg", ["y1"], ["y2"]),
        ]
        out = "y2"
        name += " middle"
    name += " free" if free else ""
    stated: list[Any] = [f"d{n}" for n in range(len(shape))] if free else shape
    inputs = {"x": (kind, stated)}
    outputs: dict[str, int | None] = {out: out_kind}
    if op == "Unique":
        outputs |= dict.fromkeys(("first", "inverse", "counts")[: some - 1], TensorProto.INT64)
    feeds = []
    for _ in range(_VALUES):
        # ONNX Runtime drops NaN in Unique, and its largest elements ignore NaN.
        value = draw.array(dtype, *shape, is_odd=op in ("NonZero", "Compress", "mask"))
        if op == "NonZero":
            value = np.where(draw.rng.random(shape) < draw.one(0.05, 0.5, 1), value, 0)
            value = value.astype(dtype)
        feed = {"x": value}
        if op == "Compress":
            inputs["c"] = (TensorProto.BOOL, ["c"] if free else [length])
            feed["c"] = draw.array("bool", length)
        feeds.append(feed)
    return Drawn(name, model(nodes, inputs, outputs, held), feeds)


def boxes(draw: Draw) -> Drawn:
    """NonMaxSuppression, alone or as a detector's head."""
    count, classes = draw.size(3000), draw.one(1, 1, 4, 20)
    most = draw.one(5, 100, 300)
    head = draw.one(False, True)
    held = {
        "most": _ints(most),
        "iou": np.array([0.5], "f4"),
        "score": np.array([draw.one(0.0, 0.3, 0.9)], "f4"),
    }
    nodes = [helper.make_node("NonMaxSuppression", ["b", "s", "most", "iou", "score"], ["y"])]
    outputs: dict[str, int | None] = {"y": TensorProto.INT64}
    if head:
        held |= {"two": _ints(2), "flat": _ints(0), "col": _ints(1)}
        nodes += [
            helper.make_node("Gather", ["y", "two"], ["r"], axis=1),
            helper.make_node("Squeeze", ["r", "col"], ["r1"]),
            helper.make_node("Squeeze", ["b", "flat"], ["b1"]),
            helper.make_node("Gather", ["b1", "r1"], ["kept"], axis=0),
            helper.make_node("Mul", ["kept", "iou"], ["z"]),
        ]
        outputs = {"z": TensorProto.FLOAT}
    feeds = []
    for _ in range(_VALUES):
        at = draw.rng.random((1, count, 2)) * 10
        b = np.concatenate([at, at + draw.rng.random((1, count, 2)) * 3], -1).astype("f4")
        feeds.append({"b": b, "s": draw.rng.random((1, classes, count)).astype("f4")})
    inputs: dict[str, tuple[int, list[Any]]] = {
        "b": (TensorProto.FLOAT, [1, count, 4]),
        "s": (TensorProto.FLOAT, [1, classes, count]),
    }
    name = f"NMS {count}x{classes} most={most}{' head' if head else ''}"
    return Drawn(name, model(nodes, inputs, outputs, held), feeds)


def scan(draw: Draw) -> Drawn:
    """CumSum along any axis, and slices that reverse an axis."""
    op = draw.one("CumSum", "CumSum", "reverse")
    shape = draw.shape(draw.one(1, 2, 3), draw.one(256, 20_000, 1_000_000))
    axis = int(draw.rng.integers(-len(shape), len(shape)))
    dtype = draw.one("f4", "f4", "f4", "i8", "i4", "f8")
    held = {"axis": np.array(axis, np.int64)}
    if op == "CumSum":
        exclusive, reverse = draw.one(0, 0, 1), draw.one(0, 1)
        nodes = [
            helper.make_node("CumSum", ["x", "axis"], ["y"], exclusive=exclusive, reverse=reverse)
        ]
        name = f"CumSum {dtype}{shape} axis={axis} ex={exclusive} rev={reverse}"
    else:
        held = {
            "start": _ints(-1), "end": _ints(-(1 << 62)), "axes": _ints(axis), "step": _ints(-1),
        }  # fmt: skip
        nodes = [helper.make_node("Slice", ["x", "start", "end", "axes", "step"], ["y"])]
        name = f"reverse {dtype}{shape} axis={axis}"
    kind = _kind(dtype)
    feeds = [{"x": draw.array(dtype, *shape, is_odd=True)} for _ in range(_VALUES)]
    return Drawn(name, model(nodes, {"x": (kind, shape)}, {"y": kind}, held), feeds)


def sort(draw: Draw) -> Drawn:
    """TopK and ArgMax of short and long rows."""
    op = draw.one("TopK", "TopK", "TopK", "ArgMax")
    shape = draw.shape(draw.one(1, 2, 2, 3), draw.one(500, 10_000, 200_000))
    axis = int(draw.rng.integers(-len(shape), len(shape)))
    dtype = draw.one("f4", "f4", "f4", "i8", "i4")
    kind = _kind(dtype)
    held: dict[str, Array] = {}
    outputs: dict[str, int | None] = {"y": kind, "i": TensorProto.INT64}
    if op == "TopK":
        size = shape[axis]
        k = draw.one(1, draw.size(size), draw.size(size), size)
        held = {"k": _ints(k)}
        largest = draw.one(0, 1)
        nodes = [helper.make_node("TopK", ["x", "k"], ["y", "i"], axis=axis, largest=largest)]
        name = f"TopK {dtype}{shape} axis={axis} k={k} largest={largest}"
    else:
        last = draw.one(0, 1)
        nodes = [helper.make_node("ArgMax", ["x"], ["i"], axis=axis, select_last_index=last)]
        name = f"ArgMax {dtype}{shape} axis={axis} last={last}"
        del outputs["y"]
    feeds = [{"x": draw.array(dtype, *shape)} for _ in range(_VALUES)]
    return Drawn(name, model(nodes, {"x": (kind, shape)}, outputs, held), feeds)


def _growing(body_of: str, width: int, axis: int, work: str) -> onnx.GraphProto:
    """Returns a body that appends a row to a state and reads it whole."""
    value = helper.make_tensor_value_info
    shape: list[Any] = [None, width] if axis == 0 else [width, None]
    row = ["row"] if axis == 0 else ["rowt"]
    nodes = [helper.make_node("Concat", ["grown", row[0]], ["grown1"], axis=axis)]
    if axis:
        nodes.insert(0, helper.make_node("Transpose", ["row"], ["rowt"], perm=[1, 0]))
    if work == "softmax":
        nodes += [
            helper.make_node("ReduceMean", ["grown1"], ["mean"], axes=[axis], keepdims=1),
            helper.make_node("Softmax", ["mean"], ["soft"], axis=1 - axis),
            helper.make_node("Reshape", ["soft", f"{body_of}one_row"], ["row1"]),
        ]
    else:
        nodes += [
            helper.make_node("ReduceMean", ["grown1"], ["mean"], axes=[axis], keepdims=1),
            helper.make_node("Tanh", ["mean"], ["tanh"]),
            helper.make_node("Reshape", ["tanh", f"{body_of}one_row"], ["row1"]),
        ]
    nodes.append(helper.make_node("Identity", ["go"], ["go1"]))
    held = [numpy_helper.from_array(_ints(1, width), f"{body_of}one_row")]
    f = TensorProto.FLOAT
    return helper.make_graph(
        nodes,
        "body",
        [
            value("n", TensorProto.INT64, []), value("go", TensorProto.BOOL, []),
            value("row", f, [1, width]), value("grown", f, shape),
        ],
        [
            value("go1", TensorProto.BOOL, []), value("row1", f, [1, width]),
            value("grown1", f, shape),
        ],
        held,
    )  # fmt: skip


def grow(draw: Draw) -> Drawn:
    """Loops whose states grow: of few or many iterations, alone, or inside another loop."""
    trips, width = draw.one(1, 2, 3, 5, 8, 16, 60), draw.one(4, 16, 64)
    axis, work = draw.one(0, 0, 1), draw.one("softmax", "tanh")
    nested = draw.one(False, False, True)
    f = TensorProto.FLOAT
    shape: list[Any] = ["past", width] if axis == 0 else [width, "past"]
    start = [1, width] if axis == 0 else [width, 1]
    held = {"go": np.array(True)}
    body = _growing("b_", width, axis, work)
    loop = helper.make_node("Loop", ["trips", "go", "row", "grown"], ["a", "b"], body=body)
    inputs: dict[str, tuple[int, list[Any]]]
    inputs = {"row": (f, [1, width]), "grown": (f, shape), "trips": (TensorProto.INT64, [])}
    outputs: dict[str, int | None] = {"a": f, "b": f}
    if nested:
        value = helper.make_tensor_value_info
        inner = helper.make_node("Loop", ["trips", "go", "orow", "grown"], ["oa", "ob"], body=body)
        outer = helper.make_graph(
            [
                inner,
                helper.make_node("ReduceMean", ["ob"], ["ored"], axes=[axis], keepdims=1),
                helper.make_node("Reshape", ["ored", "b_one_row2"], ["orow1"]),
                helper.make_node("Add", ["orow1", "oa"], ["orow2"]),
                helper.make_node("Identity", ["ogo"], ["ogo1"]),
            ],
            "outer",
            [value("m", TensorProto.INT64, []), value("ogo", TensorProto.BOOL, []),
             value("orow", f, [1, width])],
            [value("ogo1", TensorProto.BOOL, []), value("orow2", f, [1, width])],
            [numpy_helper.from_array(_ints(1, width), "b_one_row2")],
        )  # fmt: skip
        held["outer_trips"] = np.array(draw.one(2, 5, 10), np.int64)
        loop = helper.make_node("Loop", ["outer_trips", "go", "row"], ["a"], body=outer)
        outputs = {"a": f}
    feeds = [
        {
            "row": draw.array("f4", 1, width),
            "grown": draw.array("f4", *start),
            "trips": np.array(trips, np.int64),
        }
        for _ in range(_VALUES)
    ]
    name = f"grow trips={trips} width={width} axis={axis} {work}"
    name += f" inside {held['outer_trips']}" if nested else ""
    return Drawn(name, model([loop], inputs, outputs, held, opset=17), feeds)


def sequence(draw: Draw) -> Drawn:
    """Sequences that are built, split, read and joined; optionals."""
    op = draw.one("construct", "split", "insert", "length", "optional", "at", "erase")
    rows, width = draw.size(64), draw.size(256)
    f = TensorProto.FLOAT
    held = {"one": np.array(0, np.int64), "parts": np.array(1, np.int64)}
    outputs: dict[str, int | None] = {"y": f}
    node = helper.make_node
    if op == "construct":
        nodes = [
            node("Relu", ["x"], ["a"]), node("Neg", ["x"], ["b"]),
            node("SequenceConstruct", ["a", "b", "x"], ["s"]),
            node("ConcatFromSequence", ["s"], ["y"], axis=draw.one(0, 1)),
        ]  # fmt: skip
    elif op == "split":
        nodes = [
            node("SplitToSequence", ["x", "parts"], ["s"], axis=0),
            node("ConcatFromSequence", ["s"], ["y"], axis=1),
        ]
    elif op == "insert":
        nodes = [
            node("SequenceEmpty", [], ["e"], dtype=f), node("Relu", ["x"], ["a"]),
            node("SequenceInsert", ["e", "x"], ["e1"]),
            node("SequenceInsert", ["e1", "a", "one"], ["e2"]),
            node("ConcatFromSequence", ["e2"], ["y"], axis=0, new_axis=draw.one(0, 1)),
        ]  # fmt: skip
    elif op == "length":
        nodes = [
            node("SplitToSequence", ["x", "parts"], ["s"], axis=0),
            node("SequenceLength", ["s"], ["y"]),
        ]
        outputs = {"y": TensorProto.INT64}
    elif op == "optional":
        nodes = [
            node("Optional", ["x"], ["o"]), node("OptionalHasElement", ["o"], ["h"]),
            node("OptionalGetElement", ["o"], ["e"]), node("Cast", ["h"], ["hf"], to=f),
            node("Mul", ["e", "hf"], ["y"]),
        ]  # fmt: skip
    elif op == "at":
        nodes = [
            node("SplitToSequence", ["x", "parts"], ["s"], axis=0, keepdims=1),
            node("SequenceAt", ["s", "i"], ["a"]), node("Neg", ["a"], ["y"]),
        ]  # fmt: skip
    else:
        nodes = [
            node("SplitToSequence", ["x", "parts"], ["s"], axis=0),
            node("SequenceErase", ["s", "i"], ["t"]),
            node("SequenceInsert", ["t", "x"], ["u"]),
            node("ConcatFromSequence", ["u"], ["y"], axis=0),
        ]
    inputs: dict[str, tuple[int, list[Any]]] = {"x": (f, [rows, width])}
    feeds = []
    for _ in range(_VALUES):
        feed = {"x": draw.array("f4", rows, width)}
        if op in ("at", "erase"):
            inputs["i"] = (TensorProto.INT64, [])
            feed["i"] = np.array(draw.rng.integers(-rows, rows), np.int64)
        feeds.append(feed)
    return Drawn(f"sequence {op} [{rows}, {width}]", model(nodes, inputs, outputs, held), feeds)


_CHANGES: Final = {
    "at": ["e SequenceAt s n", "row1 Add t e", "s1 Identity s"],
    "append": ["row1 Identity t", "s1 SequenceInsert s t"],
    "prepend": ["row1 Identity t", "s1 SequenceInsert s t zero"],
    "insert": ["row1 Identity t", "s1 SequenceInsert s t n"],
    "pop": ["e SequenceAt s zero", "row1 Add t e", "s1 SequenceErase s zero"],
    "queue": [
        "e SequenceAt s zero",
        "row1 Add t e",
        "p SequenceErase s n",
        "s1 SequenceInsert p t",
    ],
}
"""What an iteration does with a row `t` and a sequence: a result, an operator and its inputs."""


def lists(draw: Draw) -> Drawn:
    """Loops whose state is a sequence of rows, which iterations read and change."""
    change, trips, width = draw.one(*_CHANGES), draw.one(1, 2, 5, 10, 50), draw.one(4, 64, 256)
    f, value = TensorProto.FLOAT, helper.make_tensor_value_info
    made = [step.split() for step in _CHANGES[change]]
    nodes = [helper.make_node(op, inputs, [name]) for name, op, *inputs in made]
    rows = helper.make_tensor_sequence_value_info
    body = helper.make_graph(
        [
            helper.make_node("Tanh", ["row"], ["t"]), *nodes,
            helper.make_node("Identity", ["go"], ["go1"]),
        ],
        "body",
        [value("n", TensorProto.INT64, []), value("go", TensorProto.BOOL, []),
         value("row", f, [1, width]), rows("s", f, None)],
        [value("go1", TensorProto.BOOL, []), value("row1", f, [1, width]), rows("s1", f, None)],
    )  # fmt: skip
    outer = [
        helper.make_node("SplitToSequence", ["x", "one"], ["q"], axis=0),
        helper.make_node("Loop", ["trips", "go", "row", "q"], ["a", "r"], body=body),
        helper.make_node("SequenceInsert", ["r", "a"], ["r1"]),
        helper.make_node("ConcatFromSequence", ["r1"], ["b"], axis=0),
    ]
    held = {"go": np.array(True), "zero": np.array(0, np.int64), "one": np.array(1, np.int64)}
    inputs: dict[str, tuple[int, list[Any]]]
    inputs = {"x": (f, [trips, width]), "row": (f, [1, width]), "trips": (TensorProto.INT64, [])}
    feeds = [
        {
            "x": draw.array("f4", trips, width),
            "row": draw.array("f4", 1, width),
            "trips": np.array(trips, np.int64),
        }
        for _ in range(_VALUES)
    ]
    name = f"lists {change} trips={trips} width={width}"
    return Drawn(name, model(outer, inputs, {"a": f, "b": f}, held), feeds)


def trees(draw: Draw) -> Drawn:
    """Forests on one or few rows; the number of rows may be free."""
    rows, features = draw.one(1, 1, 2, 5), draw.one(4, 20, 50)
    count, depth = draw.one((5, 3), (20, 4), (100, 6), (100, 8))
    made = forest(count, depth, features, rows)
    free = draw.one(False, True)
    if free:
        for value in (*made.graph.input, *made.graph.output):
            value.type.tensor_type.shape.dim[0].dim_param = "rows"
    feeds = [{"x": draw.array("f4", rows, features)} for _ in range(_VALUES)]
    return Drawn(f"forest {count}x{depth} rows={rows}{' free' if free else ''}", made, feeds)


def maps(draw: Draw) -> Drawn:
    """A linear classifier with ZipMap."""
    rows, classes, features = draw.one(1, 1, 10, 100), draw.one(2, 3, 20), 8
    labels: dict[str, Any]
    labels = draw.one(
        {"classlabels_int64s": list(range(classes))},
        {"classlabels_strings": [f"c{n}" for n in range(classes)]},
    )
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["s"]),
        helper.make_node("Softmax", ["s"], ["p"]),
        helper.make_node("ZipMap", ["p"], ["y"], domain="ai.onnx.ml", **labels),
    ]
    made = model(
        nodes,
        {"x": (TensorProto.FLOAT, ["rows", features])},
        {"y": None},
        {"w": draw.array("f4", features, classes)},
    )
    key = TensorProto.INT64 if "classlabels_int64s" in labels else TensorProto.STRING
    value = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
    map_type = helper.make_map_type_proto(key, value)
    made.graph.output[0].type.CopyFrom(helper.make_sequence_type_proto(map_type))
    feeds = [{"x": draw.array("f4", rows, features)} for _ in range(_VALUES)]
    return Drawn(f"ZipMap rows={rows} {next(iter(labels))} {classes}", made, feeds)


KINDS: Final[dict[str, Callable[[Draw], Drawn]]] = {
    made.__name__: made for made in (select, boxes, scan, sort, grow, sequence, lists, trees, maps)
}


def agree(name: str, ours: list[Any], theirs: list[Any]) -> str:
    """Returns how the results of two engines differ; "" if they agree."""
    for number, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if isinstance(b, list):
            if not _same_maps(list(a), b):
                return f"{name}: result {number} differs"
            continue
        a, b = np.asarray(a), np.asarray(b)
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"{name}: {a.dtype}{a.shape} for {b.dtype}{b.shape}"
        if a.dtype.kind != "f":
            if not np.array_equal(a, b):
                return f"{name}: result {number} differs"
        elif not np.allclose(a, b, rtol=1e-4, atol=1e-4 * (1 + _largest(b)), equal_nan=True):
            return f"{name}: result {number} differs by {np.nanmax(np.abs(a - b))}"
    return ""


def _largest(values: Array) -> float:
    finite = np.abs(values[np.isfinite(values)])
    return float(finite.max()) if finite.size else 0.0


def _same_maps(ours: list[Any], theirs: list[Any]) -> bool:
    if len(ours) != len(theirs):
        return False
    return all(
        a.keys() == b.keys() and np.allclose(list(a.values()), list(b.values()), 1e-4, 1e-5)
        for a, b in zip(ours, theirs, strict=True)
    )


class Ready:
    """A compiled case, its peer, and their samples in ns."""

    def __init__(self, drawn: Drawn, threads: int, *, timed: bool) -> None:
        self.name, self.feeds = drawn.name, drawn.feeds
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(
            drawn.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        compiled = clew.compile(drawn.model, threads=threads)
        self.runs: dict[str, Callable[[Feeds], Any]] = {
            "clew": compiled.run,
            "ort": lambda feeds: session.run(None, feeds),
        }
        self.wrong = ""
        for feeds in self.feeds:
            for _ in range(20 if timed else 1):
                ours = list(compiled.run(feeds).values())
            self.wrong = self.wrong or agree(self.name, ours, session.run(None, feeds))
        self.spans: dict[str, list[float]] = {name: [] for name in self.runs}

    def turn(self) -> None:
        """Times both engines, one after the other."""
        for name, run in self.runs.items():
            calls, start = 0, time.thread_time_ns()
            while True:
                for feeds in self.feeds:
                    run(feeds)
                calls += len(self.feeds)
                spent = time.thread_time_ns() - start
                if spent > _TURN_NS:
                    break
            self.spans[name].append(spent / calls)

    def ratio(self) -> float:
        """Returns ONNX Runtime's time over clew's."""
        pairs = zip(self.spans["ort"], self.spans["clew"], strict=True)
        return statistics.median(theirs / ours for theirs, ours in pairs)


def main(
    kinds: Annotated[str, typer.Option(help="Kinds of models.")] = ",".join(KINDS),
    count: Annotated[int, typer.Option(help="Models of each kind.", min=1)] = 10,
    seed: Annotated[int, typer.Option(help="The first model's seed.")] = 0,
    rounds: Annotated[int, typer.Option(min=1)] = 5,
    threads: Annotated[int, typer.Option(min=1)] = 1,
    match: Annotated[str, typer.Option(help="Only models with this in their name.")] = "",
    only_values: Annotated[bool, typer.Option(help="Compare values and stop.")] = False,
) -> None:
    """Prints the models, those slowest beside ONNX Runtime first; exits with 1 for wrong values."""
    ready = []
    failed = 0
    for kind in kinds.split(","):
        for number in range(seed, seed + count):
            drawn = KINDS[kind](Draw(number))
            if match not in drawn.name:
                continue
            try:
                one = Ready(drawn, threads, timed=not only_values)
            except Exception as failure:  # one model must not end the benchmark
                text = str(failure).splitlines()[0][:90]
                progress.print(f"{number} {drawn.name}: {type(failure).__name__}: {text}")
                failed += 1
                continue
            if one.wrong:
                progress.print(f"{number} wrong: {one.wrong}")
            ready.append(one)
            for _ in range(0 if only_values else rounds):
                one.turn()
    wrong = sum(bool(one.wrong) for one in ready)
    console.print(f"{len(ready)} models, {wrong} with wrong values, {failed} failed")
    if not only_values:
        console.print(circumstances())
        console.print(_table(sorted(ready, key=Ready.ratio)))
    raise typer.Exit(1 if wrong else 0)


def _table(ready: list[Ready]) -> Table:
    table = Table("model", title="time of the calling thread", title_justify="left")
    for name in ("clew µs", "ORT µs", "ORT ÷ clew"):
        table.add_column(name, justify="right")
    for one in ready:
        ours, theirs = (statistics.median(one.spans[n]) / 1e3 for n in ("clew", "ort"))
        table.add_row(one.name, f"{ours:.1f}", f"{theirs:.1f}", f"{one.ratio():.2f}")
    return table


if __name__ == "__main__":
    typer.run(main)
