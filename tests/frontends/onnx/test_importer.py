"""Sources, names, symbolic shapes, functions and control flow of imported models."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import clew
from clew.frontends import load as load_file
from clew.frontends.onnx import NodeView, load
from clew.ir.expr import Call, Constant, If, TupleGetItem, While
from clew.ir.interpret import interpret
from clew.ir.textfile import save_module
from clew.ir.visit import post_order
from clew.support.errors import InputError
from clew.trace.span import Source

F32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def info(name, dtype=F32, shape=(2, 3)):
    return helper.make_tensor_value_info(name, dtype, shape)


def const(name, value, dtype=np.int64):
    return numpy_helper.from_array(np.array(value, dtype), name)


def model(nodes, inputs, outputs, initializers=(), functions=(), opsets=()):
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(initializers))
    imports = [helper.make_opsetid("", 21), *opsets]
    made = helper.make_model(graph, opset_imports=imports, functions=list(functions))
    made.ir_version = 10
    return made


def node(op, inputs, outputs, name="", **attributes):
    return helper.make_node(op, inputs, outputs, name=name, **attributes)


def agrees(made, feeds, module=None):
    """Interprets a model and compares it with ONNX Runtime; returns clew's outputs."""
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = session.run(None, feeds)
    found = interpret(module or load(made), feeds)
    for output, want in zip(session.get_outputs(), expected, strict=True):
        assert found[output.name].dtype == want.dtype
        assert found[output.name].shape == want.shape
        np.testing.assert_allclose(found[output.name], want, rtol=1e-5, atol=1e-6)
    return found


def sources(module):
    return {s for n in post_order(module.main, into_functions=True) for s in n.span.sources}


# --- sources
# ----------------------------------------------------------------------------------------


def gemm():
    weights = [const("w", np.ones((4, 3)), np.float32), const("b", np.ones(4), np.float32)]
    nodes = [
        node("Gemm", ["x", "w", "b"], ["h"], "linear", transB=1),
        node("Relu", ["h"], ["y"], "act"),
    ]
    return model(nodes, [info("x")], [info("y", shape=(2, 4))], weights)


def test_every_node_has_a_source_and_results_are_marked():
    module = load(gemm())
    nodes = {n.op_name: n for n in post_order(module.main) if isinstance(n, Call)}
    linear = Source("linear", "Gemm", "onnx")
    assert nodes["nn.dense"].span.sources == (linear,)
    assert nodes["add"].span.sources == (replace(linear, output=0),)
    assert nodes["nn.relu"].span.sources == (Source("act", "Relu", "onnx", output=0),)
    assert all(n.span for n in post_order(module.main.body) if n is not module.main.body)


def test_parameters_and_inputs_have_sources_and_names():
    module = load(gemm())
    constants = {n.name: n for n in post_order(module.main) if isinstance(n, Constant)}
    assert set(constants) == {"w", "b"}
    assert constants["w"].span.sources == (Source("w", frontend="onnx", kind="parameter"),)
    assert module.main.params[0].span.sources == (Source("x", frontend="onnx", kind="input"),)
    assert module.output_names == ("y",)


def test_raw_parameters_are_not_copied():
    data = next(n.data for n in post_order(load(gemm()).main) if isinstance(n, Constant))
    base = data
    while isinstance(base, np.ndarray):
        base = base.base
    assert isinstance(base, (bytes, memoryview))
    assert not data.flags.writeable


def test_annotator_edits_sources():
    seen = []

    def annotate(source: Source, view: NodeView) -> Source:
        seen.append((view.name, view.op_type, view.inputs, sorted(view.attributes)))
        return replace(source, layer=f"block.{source.layer}")

    module = load(gemm(), annotate=annotate)
    assert module.main.body.fields[0].span.layers == ("block.act",)
    assert seen[0] == ("linear", "Gemm", ("x", "w", "b"), ["transB"])


def test_unnamed_and_repeated_names_are_made_unique():
    nodes = [
        node("Neg", ["x"], ["a"]),
        node("Neg", ["a"], ["b"], "same"),
        node("Neg", ["b"], ["y"], "same"),
    ]
    module = load(model(nodes, [info("x")], [info("y")]))
    layers = [n.span.layers for n in post_order(module.main) if isinstance(n, Call)]
    assert layers == [("Neg_0",), ("same",), ("same_1",)]


@pytest.mark.parametrize("op", ["Identity", "Dropout"])
def test_a_layer_that_passes_its_input_on_stays(op):
    module = load(model([node(op, ["x"], ["y"], "pass")], [info("x")], [info("y")]))
    (result,) = module.main.body.fields
    assert result.op_name == "identity"
    assert result.span.sources == (Source("pass", op, "onnx", output=0),)


def test_layers_that_leave_no_node_are_accounted_for():
    nodes = [
        node("Shape", ["x"], ["s"], "shape"),
        node("Reshape", ["x", "s"], ["y"], "reshape"),
        node("Neg", ["x"], ["unused"], "dead"),
    ]
    module = load(model(nodes, [info("x")], [info("y")]))
    assert module.main.attrs["eliminated"] == (
        ("shape", "Shape", "known at import"),
        ("dead", "Neg", "result not used"),
    )


def test_results_of_several_outputs_carry_their_number():
    made = model(
        [node("Split", ["x"], ["a", "b"], "cut", axis=0, num_outputs=2)],
        [info("x")],
        [info("a", shape=(1, 3)), info("b", shape=(1, 3))],
    )
    fields = load(made).main.body.fields
    assert all(isinstance(f, TupleGetItem) for f in fields)
    assert [f.span.sources[0].output for f in fields] == [0, 1]
    agrees(made, {"x": np.arange(6, dtype=np.float32).reshape(2, 3)})


# --- shapes
# -----------------------------------------------------------------------------------------


def shape_chain():
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["batch"]),
        node("Gather", ["s", "one"], ["seq"]),
        node("Mul", ["batch", "seq"], ["rows"]),
        node("Unsqueeze", ["rows", "axis"], ["rows1"]),
        node("Concat", ["rows1", "width"], ["target"], axis=0),
        node("Reshape", ["x", "target"], ["y"]),
    ]
    initializers = [const("zero", 0), const("one", 1), const("axis", [0]), const("width", [768])]
    return model(
        nodes, [info("x", shape=("batch", "seq", 768))], [info("y", shape=None)], initializers
    )


def test_shape_chain_is_typed_symbolically():
    module = load(shape_chain())
    assert str(module.main.body.fields[0].type) == "f32[batch*seq, 768]"
    agrees(shape_chain(), {"x": np.ones((2, 5, 768), np.float32)}, module)


def test_given_shapes_replace_symbols():
    module = load(shape_chain(), inputs={"x": [4, "seq", 768]})
    assert str(module.main.body.fields[0].type) == "f32[4*seq, 768]"


@pytest.mark.parametrize("shape", [[0, -1], [-1, 384], [0, 0, 12, 64], [0, -1, 64]])
def test_reshape_of_symbolic_sizes(shape):
    made = model(
        [node("Reshape", ["x", "shape"], ["y"])],
        [info("x", shape=("batch", "seq", 768))],
        [info("y", shape=None)],
        [const("shape", shape)],
    )
    x = np.arange(3 * 4 * 768, dtype=np.float32).reshape(3, 4, 768)
    agrees(made, {"x": x})


def test_reshape_of_a_parameter_without_elements_to_named_sizes():
    made = model(
        [
            node("Shape", ["x"], ["size"]),
            node("Concat", ["none", "size"], ["shape"], axis=0),
            node("Reshape", ["c", "shape"], ["y"], allowzero=1),
        ],
        [info("x", shape=("n",))],
        [info("y", shape=None)],
        [const("none", [0]), const("c", np.zeros((0, 3)), np.float32)],
    )
    agrees(made, {"x": np.ones(4, np.float32)})


@pytest.mark.parametrize(("sizes", "fits"), [((3, 3), True), ((5, 1), True), ((1, 5), False)])
def test_named_sizes_that_broadcast(sizes, fits):
    """`n` and `m` are taken to be equal: where one is 1, what was made of it may be wrong."""
    inputs = [info("x", shape=("n", 4)), info("z", shape=("m", 4))]
    added = node("Add", ["x", "z"], ["sum"])
    feeds = {name: np.ones((size, 4), np.float32) for name, size in zip("xz", sizes, strict=True)}
    shape = [added, node("Shape", ["sum"], ["y"])]
    agrees(model(shape, inputs, [info("y", I64, None)]), feeds)
    outputs = [info("y", shape=None), info("sum", shape=None)]
    made = model([added, node("EyeLike", ["sum"], ["y"])], inputs, outputs)
    compiled = clew.compile(made, cache=False)
    if fits:
        assert compiled.run(feeds)["y"].shape == (max(sizes), 4)
    else:
        with pytest.raises(InputError, match=r"I042.*assumed to be equal"):
            compiled.run(feeds)


def test_unnamed_sizes_get_names():
    made = model(
        [node("Relu", ["x"], ["y"])], [info("x", shape=(None, 3))], [info("y", shape=None)]
    )
    assert str(load(made).main.params[0].type) == "f32[x_0, 3]"


def test_names_of_sizes_become_identifiers():
    made = model(
        [node("Relu", ["x"], ["y"])],
        [info("x", shape=("a b", "a-b", "a b"))],
        [info("y", shape=None)],
    )
    shape = load(made).main.params[0].type.shape
    assert shape[0] == shape[2] != shape[1]
    assert all(str(d).isidentifier() for d in shape)


def test_run_time_shape():
    made = model(
        [node("Reshape", ["x", "shape"], ["y"])],
        [info("x"), info("shape", I64, (2,))],
        [info("y", shape=None)],
    )
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for shape in ([3, 2], [-1, 1], [0, -1]):
        agrees(made, {"x": x, "shape": np.array(shape)})
    settled = load(made, constants={"shape": np.array([3, 2])})
    assert str(settled.main.body.fields[0].type) == "f32[3, 2]"
    assert settled.input_names == ("x",)


def test_constant_of_shape_stays_one_element():
    made = model(
        [node("ConstantOfShape", ["s"], ["c"]), node("Add", ["x", "c"], ["y"])],
        [info("x")],
        [info("y", shape=(1000, 2, 3))],
        [const("s", [1000, 2, 3])],
    )
    constant = next(n for n in post_order(load(made).main) if isinstance(n, Constant))
    assert constant.is_splat
    assert constant.data.strides == (0, 0, 0)


def test_input_with_initializer_is_a_constant():
    made = gemm()
    made.graph.input.append(info("w", shape=(4, 3)))
    assert load(made).input_names == ("x",)


# --- control flow
# -----------------------------------------------------------------------------------


def branches():
    out = [info("r", shape=None)]
    then = helper.make_graph([node("Mul", ["h", "two"], ["r"], "double")], "t", [], out)
    orelse = helper.make_graph([node("Sub", ["h", "x"], ["r"], "less")], "e", [], out)
    return [
        node("Relu", ["x"], ["h"], "act"),
        node("If", ["c"], ["y"], "choose", then_branch=then, else_branch=orelse),
    ]


TWO = const("two", 2, np.float32)


@pytest.mark.parametrize("shape", [(), (1,)])
def test_if(shape):
    made = model(branches(), [info("x"), info("c", BOOL, shape)], [info("y")], [TWO])
    module = load(made)
    (choice,) = [n for n in post_order(module.main) if isinstance(n, If)]
    # The branches are closed: what both take comes as arguments, parameters stay inside.
    assert [a.op_name for a in choice.args if isinstance(a, Call)] == ["nn.relu"]
    assert {s.layer for s in sources(module)} >= {"double", "less", "choose", "act"}
    x = np.array([[-1, 2, 3], [4, -5, 6]], np.float32)
    for condition in (True, False):
        agrees(made, {"x": x, "c": np.full(shape, condition)}, module)


def test_if_of_a_known_condition_leaves_its_branch():
    made = model(branches(), [info("x")], [info("y")], [TWO, const("c", True, np.bool_)])
    module = load(made)
    assert not [n for n in post_order(module.main) if isinstance(n, If)]
    assert module.main.body.fields[0].span.layers == ("choose", "double")
    agrees(made, {"x": np.ones((2, 3), np.float32)}, module)


def loop(condition="keep"):
    body = helper.make_graph(
        [
            node("Add", ["s", "step"], ["s1"], "advance"),
            node("ReduceSum", ["s1"], ["total"], "total", keepdims=0),
            node("Less", ["total", "limit"], ["keep1"], "test")
            if condition == "computed"
            else node("Identity", ["keep"], ["keep1"], "keep"),
            node("Mul", ["s1", "x"], ["scan"], "scan"),
        ],
        "body",
        [info("i", I64, ()), info("keep", BOOL, ()), info("s")],
        [info("keep1", BOOL, ()), info("s1"), info("scan")],
    )
    nodes = [
        node("Exp", ["x"], ["step"], "step"),
        node("Loop", ["n", "", "x"], ["y", "all"], "loop", body=body),
    ]
    return nodes, [info("y"), info("all", shape=None)]


@pytest.mark.parametrize("condition", ["keep", "computed"])
@pytest.mark.parametrize("count", [0, 1, 5])
def test_loop_with_a_run_time_count(condition, count):
    nodes, outputs = loop(condition)
    limit = const("limit", 30, np.float32)
    made = model(nodes, [info("x"), info("n", I64, ())], outputs, [limit])
    x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    agrees(made, {"x": x, "n": np.array(count)})


def test_loop_with_a_known_count_says_so():
    nodes, outputs = loop()
    made = model(nodes, [info("x")], outputs, [const("n", 4), const("limit", 1, np.float32)])
    module = load(made)
    (found,) = [n for n in post_order(module.main) if isinstance(n, While)]
    assert found.trips == 4
    assert found.scans == 1
    assert str(module.main.body.fields[1].type) == "f32[4, 2, 3]"
    agrees(made, {"x": np.ones((2, 3), np.float32)}, module)


def test_loop_whose_state_grows():
    body = helper.make_graph(
        [
            node("Concat", ["s", "x"], ["s1"], "grow", axis=0),
            node("Identity", ["keep"], ["keep1"]),
        ],
        "body",
        [info("i", I64, ()), info("keep", BOOL, ()), info("s", shape=None)],
        [info("keep1", BOOL, ()), info("s1", shape=None)],
    )
    made = model(
        [node("Loop", ["n", "", "x"], ["y"], body=body)],
        [info("x")],
        [info("y", shape=None)],
        [const("n", 3)],
    )
    assert agrees(made, {"x": np.ones((2, 3), np.float32)})["y"].shape == (8, 3)


def test_nested_control_flow_takes_values_through_both():
    inner_out = [info("r", shape=None)]
    then = helper.make_graph([node("Add", ["s", "h"], ["r"])], "t", [], inner_out)
    orelse = helper.make_graph([node("Sub", ["s", "h"], ["r"])], "e", [], inner_out)
    body = helper.make_graph(
        [
            node("Mod", ["i", "two"], ["odd"]),
            node("Cast", ["odd"], ["is_odd"], to=BOOL),
            node("If", ["is_odd"], ["s1"], then_branch=then, else_branch=orelse),
            node("Identity", ["keep"], ["keep1"]),
        ],
        "body",
        [info("i", I64, ()), info("keep", BOOL, ()), info("s")],
        [info("keep1", BOOL, ()), info("s1")],
    )
    nodes = [
        node("Sin", ["x"], ["h"]),
        node("Loop", ["n", "", "x"], ["y"], body=body),
    ]
    made = model(nodes, [info("x"), info("n", I64, ())], [info("y")], [const("two", 2)])
    agrees(made, {"x": np.ones((2, 3), np.float32), "n": np.array(3)})


# --- functions
# --------------------------------------------------------------------------------------


def with_function():
    opset = [helper.make_opsetid("", 21)]
    body = [
        helper.make_node("LeakyRelu", ["a"], ["t"], name="leak"),
        helper.make_node("Mul", ["t", "b"], ["r"], name="scale"),
    ]
    body[0].attribute.add(name="alpha", ref_attr_name="slope", type=1)
    function = helper.make_function("own", "scaled", ["a", "b"], ["r"], body, opset, ["slope"])
    nodes = [
        helper.make_node("scaled", ["x", "x"], ["h"], name="one", domain="own", slope=0.5),
        helper.make_node("scaled", ["h", "x"], ["y"], name="two", domain="own", slope=0.25),
    ]
    own = helper.make_opsetid("own", 1)
    return model(nodes, [info("x")], [info("y")], functions=[function], opsets=[own])


def test_functions_are_inlined_with_their_callers_names():
    module = load(with_function())
    layers = {s.layer for s in sources(module) if s.kind == "layer"}
    assert layers == {"one", "two", "one/leak", "one/scale", "two/leak", "two/scale"}
    slopes = [n.attrs.alpha for n in post_order(module.main) if "alpha" in getattr(n, "attrs", {})]
    assert slopes == [0.5, 0.25]
    agrees(with_function(), {"x": np.array([[-1, 2, 3], [4, -5, 6]], np.float32)}, module)


def test_an_operator_defined_by_others_stays_one_layer():
    made = model(
        [node("MeanVarianceNormalization", ["x"], ["h"], "norm", axes=[1]),
         node("GroupNormalization", ["h4", "s", "s"], ["y"], "group", num_groups=1)],
        [info("x"), info("h4", shape=(1, 2, 3, 3)), info("s", shape=(2,))],
        [info("h"), info("y", shape=None)],
    )  # fmt: skip
    assert {s.layer for s in sources(load(made)) if s.kind == "layer"} == {"norm", "group"}


# --- size
# -------------------------------------------------------------------------------------------


def test_a_chain_of_20000_nodes_imports_and_runs():
    names = ["x", *(f"v{n}" for n in range(19_999)), "y"]
    nodes = [node("Neg", [a], [b]) for a, b in pairwise(names)]
    module = load(model(nodes, [info("x")], [info("y")]))
    x = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(interpret(module, {"x": x})["y"], x)


def test_a_long_chain_of_known_values():
    names = ["s", *(f"v{n}" for n in range(5_000))]
    nodes = [node("Shape", ["x"], ["s"])]
    nodes += [node("Add", [a, "zero"], [b]) for a, b in pairwise(names)]
    nodes.append(node("Reshape", ["x", names[-1]], ["y"]))
    made = model(
        nodes, [info("x", shape=("n", 3))], [info("y", shape=None)], [const("zero", [0, 0])]
    )
    assert str(load(made).main.body.fields[0].type) == "f32[n, 3]"


def test_load_by_suffix(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(gemm().SerializeToString())
    assert load_file(path).output_names == ("y",)
    with pytest.raises(InputError) as caught:
        load_file(tmp_path / "model.bin")
    assert caught.value.code == "I002"
    save_module(load_file(path), tmp_path / "model.txt")
    assert str(load_file(tmp_path / "model.txt")) == str(load_file(path))


def test_a_given_shape_settles_names_in_other_inputs():
    names = {"x": ["batch", "seq"], "y": ["batch", "seq"], "z": [2, "other"]}
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in names.items()]
    output = helper.make_tensor_value_info("out", TensorProto.FLOAT, ["batch", "seq"])
    graph = helper.make_graph([helper.make_node("Add", ["x", "y"], ["out"])], "g", inputs, [output])
    opsets = [helper.make_opsetid("", 20)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def shapes(**given: list[int | str]) -> list[str]:
        return [str(p.type) for p in load(made, inputs=given).main.params]

    assert shapes(x=[3, 5]) == ["f32[3, 5]", "f32[3, 5]", "f32[2, other]"]
    assert shapes(y=[3, "seq"]) == ["f32[3, seq]", "f32[3, seq]", "f32[2, other]"]
    assert shapes(x=[3, 5], y=[1, 5])[:2] == ["f32[3, 5]", "f32[1, 5]"]  # said for each
    assert shapes()[0] == "f32[batch, seq]"
