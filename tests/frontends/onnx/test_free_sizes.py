"""Free sizes never refuse a model: what needs numbers is imported for the sizes of the call."""

from __future__ import annotations

import itertools

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state as state

import clew
from clew.frontends.building import call
from clew.frontends.onnx import importer
from clew.support.errors import ClewError, CompileError, GraphTypeError

F32, I64 = TensorProto.FLOAT, TensorProto.INT64
OUT = helper.make_tensor_value_info("y", F32, None)


def info(name, shape, kind=F32):
    return helper.make_tensor_value_info(name, kind, shape)


def node(op, inputs, outputs, name="", **attributes):
    name = name or op.lower()
    return helper.make_node(op, inputs, outputs, name=name, **attributes)


def model(nodes, inputs, outputs, constants=None, opset=18):
    held = [numpy_helper.from_array(np.array(v), n) for n, v in (constants or {}).items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def values(*shape, dtype=np.float32):
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(dtype)


def agrees(made, *feeds):
    """Runs one compiled model with all feeds; each must agree with ONNX Runtime."""
    compiled = clew.compile(made, threads=1)
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    for feed in feeds:
        outputs = zip(compiled.run(feed).values(), session.run(None, feed), strict=True)
        for found, wanted in outputs:
            assert found.shape == wanted.shape
            np.testing.assert_allclose(found, wanted, rtol=1e-6)
    return compiled


def columns(then, constants, kind=I64, cast=()):
    """A model that computes with the number of columns of its input."""
    first = [node("Shape", ["x"], ["s"]), node("Gather", ["s", "one_axis"], ["n"], axis=0)]
    results = [info("y", None, kind)]
    held = {"one_axis": np.int64(1), **constants}
    return model([*first, *cast, *then], [info("x", ["h", "w"])], results, held)


FLOAT = [node("Cast", ["n"], ["f"], to=F32)]


@pytest.mark.parametrize(
    "made",
    [
        columns(
            [node("Range", ["start", "f", "step"], ["y"])],
            {"start": np.float32(0), "step": np.float32(1)}, F32, FLOAT,
        ),
        columns(
            [node("Range", ["start", "f", "step"], ["y"])],
            {"start": np.float32(0.5), "step": np.float32(0.75)}, F32, FLOAT,
        ),
        columns(
            [node("Neg", ["n"], ["m"]), node("Range", ["n", "m", "step"], ["y"])],
            {"step": np.int64(-1)},
        ),
        columns(
            [node("Neg", ["n"], ["m"]), node("Range", ["m", "n", "step"], ["y"])],
            {"step": np.int64(2)},
        ),
        columns([node("Range", ["start", "n", "n"], ["y"])], {"start": np.int64(-7)}),
    ],
    ids=["float", "fractions", "backwards", "steps of 2", "steps of a size"],
)  # fmt: skip
def test_ranges_of_sizes(made):
    agrees(made, *({"x": values(2, n)} for n in (3, 5, 8)))


@pytest.mark.parametrize("size", [-1, 0, None, "n"])
def test_exporters_write_any_size_in_several_ways(size):
    made = model([node("Relu", ["x"], ["y"])], [info("x", [size, 3])], [info("y", None)])
    compiled = clew.compile(made, threads=1)
    for rows in (2, 5, 1, 0):
        x = values(rows, 3)
        assert compiled(x).tolist() == np.maximum(x, 0).tolist()
    assert not compiled.inputs[0].is_static


def test_a_vector_of_size_0_has_no_entries():
    """Reduced over no axes by name: over all of them."""
    nodes = [node("ReduceSum", ["x", "axes"], ["y"], keepdims=1)]
    inputs = [info("x", [2, 3]), info("axes", [0], I64)]
    made = model(nodes, inputs, [info("y", None)])
    agrees(made, {"x": values(2, 3), "axes": np.zeros(0, np.int64)})


def test_squeezing_all_ones_waits_for_the_sizes():
    made = model([node("Squeeze", ["x"], ["y"])], [info("x", ["b", 3, 1])], [info("y", None)])
    agrees(made, {"x": values(2, 3, 1)}, {"x": values(1, 3, 1)}, {"x": values(4, 3, 1)})


def test_expand_takes_the_larger_of_both_sizes():
    nodes = [node("Shape", ["w"], ["s"]), node("Expand", ["x", "s"], ["y"])]
    inputs = [info("x", [6, 1], I64), info("w", ["a", "b"])]
    x = np.arange(6).reshape(6, 1)
    made = model(nodes, inputs, [info("y", None, I64)])
    agrees(made, {"x": x, "w": values(1, 4)}, {"x": x, "w": values(6, 2)})


def test_expand_to_a_size_computed_from_others():
    """As torch writes `index_add`: the rows found, expanded to the shape of the first row."""
    nodes = [
        node("ReduceMax", ["x", "last"], ["m"], keepdims=0),
        node("Greater", ["m", "zero"], ["g"]),
        node("NonZero", ["g"], ["nz"]),
        node("Squeeze", ["nz", "first"], ["i"]),
        node("Gather", ["x", "i"], ["p"], axis=0),
        node("Slice", ["x", "first", "last", "first"], ["row"]),
        node("Shape", ["row"], ["t"]),
        node("Expand", ["p", "t"], ["y"]),
    ]
    held = {"first": np.array([0]), "last": np.array([1]), "zero": np.zeros(1, np.float32)}
    made = model(nodes, [info("x", ["n", 8])], [info("y", None)], held)
    feeds = []
    for rows, found in ((6, 3), (6, 0), (6, 6), (2, 1)):
        x = np.abs(values(rows, 8))
        x[found:] *= -1
        feeds.append({"x": x})
    agrees(made, *feeds)


EXPANDED = {
    "n": (["n"], ["m"]),
    "a number": ([5], ["m"]),
    "to a number": (["n"], [5]),
    "to rows": (["n"], ["k", "m"]),
    "columns": (["n", 3], ["m"]),
    "to fewer axes": (["n", "k"], ["m"]),
    "both axes": (["n", "k"], ["m", "l"]),
}


@pytest.mark.parametrize("case", EXPANDED)
@pytest.mark.parametrize("then", ["add", "nothing"])
def test_expand_by_both_shapes(case, then):
    """The result has ONNX's shape at all sizes; sizes that contradict each other are refused."""
    own, other = EXPANDED[case]
    nodes = [
        node("Shape", ["z"], ["s"]),
        node("Expand", ["x", "s"], ["y"]),
        node("Shape", ["y"], ["t"], "shape_of_y"),
        node("Neg", ["y"], ["u"]),
        node("ConstantOfShape", ["t"], ["zeros"]),
        *([node("Add", ["u", "zeros"], ["w"])] if then == "add" else []),
    ]
    inputs = [info("x", own), info("z", other)]
    names = ["y", "w"] if then == "add" else ["y"]
    made = model(nodes, inputs, [*(info(n, None) for n in names), info("t", None, I64)])
    compiled = clew.compile(made, threads=1, cache=False)
    session = silent(made)
    sizes = (4, 1, 0, 5)
    for shapes in itertools.product(sizes, repeat=sum(isinstance(d, str) for d in own + other)):
        if len(shapes) > 3 and shapes.count(1) + shapes.count(0) not in (1, 2):
            continue  # each costs a build
        rest = iter(shapes)
        feed = {
            name: values(*(next(rest) if isinstance(d, str) else d for d in shape))
            for name, shape in (("x", own), ("z", other))
        }
        agrees_or_both_refuse(compiled, session, feed)


@pytest.mark.parametrize("end", [1, -1, 3])
def test_expand_of_a_computed_size(end):
    """One build expands an axis whose size is computed, whether it is 1 or not."""
    nodes = [
        node("Slice", ["x", "first", "end"], ["row"]),
        node("Shape", ["z"], ["s"]),
        node("Expand", ["row", "s"], ["y"]),
        node("Neg", ["y"], ["w"]),
    ]
    held = {"first": np.array([0]), "end": np.array([end])}
    made = model(nodes, [info("x", ["n"]), info("z", ["m"])], [info("w", None)], held)
    compiled = clew.compile(made, threads=1, cache=False)
    session, builds = silent(made), compiled.builds_made
    if end > 0:
        for n, m in ((9, end), (5, end), (100, end), (1, 7)):
            agrees_or_both_refuse(compiled, session, {"x": values(n), "z": values(m)})
        assert compiled.builds_made == builds
    for n, m in itertools.product((1, 2, 3, 4, 0), repeat=2):
        agrees_or_both_refuse(compiled, session, {"x": values(n), "z": values(m)})


def test_empty_operands_must_fit():
    """An operator without elements has no kernel, but 0 and 3 elements do not broadcast."""
    made = model([node("Add", ["x", "z"], ["y"])], [info("x", ["n"]), info("z", ["m"])], [OUT])
    compiled, session = clew.compile(made, threads=1, cache=False), silent(made)
    for n, m in ((0, 1), (0, 3), (3, 0), (1, 0), (0, 0), (3, 3)):
        agrees_or_both_refuse(compiled, session, {"x": values(n), "z": values(m)})


def silent(made):
    options = ort.SessionOptions()
    options.log_severity_level = 4
    return ort.InferenceSession(made.SerializeToString(), options)


def agrees_or_both_refuse(compiled, session, feed):
    try:
        wanted = session.run(None, feed)
    except (state.Fail, state.InvalidArgument, state.RuntimeException):
        with pytest.raises(GraphTypeError, match="T100"):
            compiled.run(feed)
        return
    for found, want in zip(compiled.run(feed).values(), wanted, strict=True):
        assert found.shape == want.shape
        np.testing.assert_array_equal(found, want)


def test_a_model_that_no_size_makes_right_is_refused_at_once():
    made = model([node("MatMul", ["x", "x"], ["y"])], [info("x", ["b", 3, 4])], [info("y", None)])
    with pytest.raises(GraphTypeError) as caught:
        clew.compile(made)
    assert caught.value.code == "T103"
    assert caught.value.layer == "matmul"


def test_load_says_which_numbers_are_needed():
    made = model([node("Squeeze", ["x"], ["y"])], [info("x", ["b", 3, 1])], [info("y", None)])
    with pytest.raises(ClewError) as caught:
        clew.load(made)
    assert "inputs={" in (caught.value.hint or "")
    assert clew.load(made, inputs={"x": [2, 3, 1]}).main.params


def test_a_mistake_of_the_importer_has_a_code_and_numbers_may_avoid_it(monkeypatch):
    """A converter that takes a size for a number, as `Range` did of floats."""

    def broken(layer):
        return call("nn.relu", layer.input(0)) if layer.type(0).is_static else 1 + None

    monkeypatch.setattr(importer, "find", lambda *_: broken)
    made = model([node("Relu", ["x"], ["y"])], [info("x", ["b"])], [info("y", None)])
    with pytest.raises(CompileError) as caught:
        clew.load(made)
    assert caught.value.code == "C082"
    assert "Relu could not be imported: TypeError" in caught.value.message
    assert caught.value.layer == "relu"
    x = values(3)
    assert clew.compile(made, threads=1)(x).tolist() == np.maximum(x, 0).tolist()


def test_names_for_any_size_are_no_names():
    graph = helper.make_graph(
        [node("Relu", ["x"], ["y"])], "g", [info("x", ["_", "?", "_"])], [info("y", None)]
    )
    compiled = clew.compile(clew.load(helper.make_model(graph, ir_version=9)), threads=1)
    x = np.ones((2, 3, 4), np.float32)
    np.testing.assert_array_equal(compiled(x), x)


def test_layers_of_unknown_rank_are_plain_layers_once_sizes_tell_it():
    """As `if x.dim() == 1: x = x.unsqueeze(0)` is exported, behind a squeeze of free sizes."""
    axis = numpy_helper.from_array(np.array([0]), "axis")
    then = helper.make_graph([node("Unsqueeze", ["s", "axis"], ["t"])], "t", [], [info("t", None)])
    orelse = helper.make_graph([node("Identity", ["s"], ["e"])], "e", [], [info("e", None)])
    single = helper.make_graph([node("Identity", ["r"], ["i"])], "i", [], [info("i", None)])
    double = helper.make_graph(
        [node("Unsqueeze", ["r", "axis"], ["u"])], "u", [], [info("u", None)]
    )
    nodes = [
        node("Relu", ["x"], ["r"]),
        node("Shape", ["r"], ["first"]),
        node("Gather", ["first", "zero"], ["batch"]),
        helper.make_node("Equal", ["batch", "two"], ["small"], name="small"),
        helper.make_node("If", ["small"], ["s"], name="by", then_branch=single, else_branch=double),
        helper.make_node("Shape", ["s"], ["shape"], name="shape_of_s"),
        helper.make_node("Size", ["shape"], ["rank"], name="rank"),
        helper.make_node("Equal", ["rank", "two"], ["flat"], name="flat"),
        helper.make_node("If", ["flat"], ["y"], name="again", then_branch=then, else_branch=orelse),
        helper.make_node("Exp", ["y"], ["z"], name="exp"),
    ]
    numbers = [numpy_helper.from_array(np.array(n), name) for name, n in (("zero", 0), ("two", 2))]
    graph = helper.make_graph(
        nodes, "g", [info("x", ["n", "m"])], [info("z", None)], [axis, *numbers]
    )
    opsets = [helper.make_opsetid("", 18)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    compiled = clew.compile(clew.load(model), threads=1)
    for shape in ((2, 3), (4, 3)):
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        np.testing.assert_allclose(compiled(x), np.exp(np.maximum(x, 0))[None], rtol=1e-6)
        assert compiled.build.program.whole is not None
        assert "exp" in compiled.trace.layers
        assert compiled.trace.verify({"x": x}).ok


def bag():
    """A bag of embeddings as torch.onnx.export(dynamo=True) writes it: in each iteration, the
    bounds are themselves slices, of as many elements as there are.
    """
    body = [
        node("Reshape", ["iteration", "minus"], ["here"]),
        node("Add", ["here", "one"], ["next"]),
        node("Add", ["next", "one"], ["over"], "later"),
        node("Slice", ["ends", "here", "next"], ["start"]),
        node("Slice", ["ends", "next", "over"], ["end"], "last"),
        node("Equal", ["start", "end"], ["none"]),
        node(
            "If",
            ["none"],
            ["row"],
            then_branch=helper.make_graph(
                [node("Identity", ["empty"], ["r0"])], "then", [], [info("r0", None)]
            ),
            else_branch=helper.make_graph(
                [
                    node("Slice", ["table", "start", "end"], ["rows"], "part"),
                    node("ReduceSum", ["rows", "zero"], ["r1"]),
                ],
                "else", [], [info("r1", None)],
            ),
        ),
        node("Identity", ["go"], ["more"]),
    ]  # fmt: skip
    iterations = helper.make_graph(
        body, "iterations", [info("iteration", [], I64), info("go", [], TensorProto.BOOL)],
        [info("more", [], TensorProto.BOOL), info("row", None)],
    )  # fmt: skip
    nodes = [
        node("Gather", ["w", "i"], ["table"]),
        node("Shape", ["i"], ["count"]),
        node("Concat", ["o", "count"], ["ends"], axis=0),
        node("Size", ["o"], ["bags"]),
        node("Loop", ["bags", ""], ["y"], body=iterations),
    ]
    held = {
        "w": values(20, 4), "minus": np.array([-1]), "one": np.array([1]), "zero": np.array([0]),
        "empty": np.zeros((1, 4), np.float32),
    }  # fmt: skip
    return model(nodes, [info("i", ["n"], I64), info("o", ["b"], I64)], [info("y", None)], held)


def test_slices_by_bounds_of_unknown_number():
    made = bag()
    feeds = [
        {"i": np.array([1, 2, 4, 5, 4, 3, 2, 9]), "o": np.array([0, 4, 6])},
        {"i": np.arange(11), "o": np.array([0, 2, 2, 7])},
    ]
    compiled = agrees(made, *feeds)
    assert not any(i.decides for i in compiled.inputs)


@pytest.mark.parametrize("bound", [3, 4])
def test_any_bound_tells_how_many_there_are(bound):
    """Axes and steps are as many as starts and ends, whose number the data decide."""
    nodes = [
        node("NonZero", ["p"], ["places"]),
        node("Squeeze", ["places", "none"], ["starts"]),
        node("Add", ["starts", "two"], ["ends"]),
        node("Slice", ["x", "starts", "ends", *[""] * (bound - 3), "held"], ["y"]),
    ]
    held = {"none": np.array([0]), "two": np.array([2]), "held": np.array([1])}
    made = model(nodes, [info("x", [5, 6]), info("p", [4])], [info("y", None)], held)
    p = np.zeros(4, np.float32)
    p[2] = 1
    agrees(made, {"x": values(5, 6), "p": p})


FOUND = [
    node("Greater", ["x", "nought"], ["g"]),
    node("NonZero", ["g"], ["nz"]),
    node("Shape", ["nz"], ["s"]),
    node("Gather", ["s", "last"], ["n"]),
]
WAITING = {
    "squeeze": [node("Squeeze", ["nz"], ["y"])],
    "split": [node("Split", ["nz"], ["y", "z"], axis=1, num_outputs=2)],
    "scale": [
        node("Cast", ["nz"], ["f"], to=F32),
        node("Unsqueeze", ["f", "axes"], ["f4"]),
        node("Resize", ["f4", "", "scales"], ["y"], mode="nearest"),
    ],
    "one_hot": [node("Reshape", ["n", "none"], ["d"]), node("OneHot", ["nz", "d", "ends"], ["y"])],
}


@pytest.mark.parametrize("name", WAITING)
def test_layers_of_sizes_that_the_data_decide_wait_for_the_run(name):
    held = {
        "nought": np.float32(0), "last": np.array([1]), "axes": np.array([0, 1]),
        "scales": np.array([1, 1, 1, 1.3], np.float32), "none": np.zeros(0, np.int64),
        "ends": np.array([0, 1]),
    }  # fmt: skip
    kind = F32 if name == "scale" else I64
    made = model([*FOUND, *WAITING[name]], [info("x", [9])], [info("y", None, kind)], held)
    feeds = []
    for found in (4, 8, 1) if name != "split" else (4, 8):
        x = -np.ones(9, np.float32)
        x[:found] = 1
        feeds.append({"x": x})
    agrees(made, *feeds)


def test_attention_reads_its_operands_as_they_are():
    """Its scale, and the heads that share keys, are known though other sizes are free."""
    q, y = (info(name, ["b", 6, 1, 16]) for name in "qy")
    inputs = [q, *(info(name, ["b", 2, "t", 16]) for name in "kv")]
    made = model([node("Attention", ["q", "k", "v"], ["y"])], inputs, [y], opset=23)
    compiled = clew.compile(made, threads=1, target="cpu-avx2", specialize=False)
    assert {kernel.name for kernel in compiled.kernels} <= {"attention", "full"}
    rng = np.random.default_rng(0)
    for keys in (1, 19):
        q, k, v = (
            rng.standard_normal((2, heads, size, 16), np.float32)
            for heads, size in ((6, 1), (2, keys), (2, keys))
        )
        scores = np.einsum("bged,bgtd->bget", q.reshape(2, 2, 3, 16), k) / 4
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        wanted = np.einsum("bget,bgtd->bged", weights, v).reshape(q.shape)
        np.testing.assert_allclose(compiled(q, k, v), wanted, rtol=2e-5, atol=2e-6)
