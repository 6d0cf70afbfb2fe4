"""The ONNX form: the model itself, cut. ONNX's checker takes it, ONNX Runtime agrees."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import clew
from clew.extraction.file_form import FileSource
from clew.frontends.onnx.file.cut import OnnxCutter
from clew.support.errors import InputError
from clew.tap.capture import capture

from .conftest import BOOL, I64, array, blocks, info, made, node, weights

Save = Callable[[onnx.ModelProto], Path]


def taken(path: Path, **chosen: Any) -> tuple[onnx.ModelProto, clew.Part]:
    """Returns what was written of a part, and the part read back, after checking both."""
    part = clew.extract(path, **chosen)
    assert part.check().passed, str(part.check())
    target = path.with_name("part.onnx")
    part.save(target)
    model = onnx.load(target)
    onnx.checker.check_model(str(target), full_check=True)
    session = ort.InferenceSession(str(target), providers=["CPUExecutionProvider"])
    back = clew.load_part(target)
    names = [i.name for i in session.get_inputs()]
    assert names == list(back.inputs)
    found = session.run(None, dict(back.inputs))
    for value, wanted in zip(found, back.outputs.values(), strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-5)
    report = back.check()
    assert report.passed, str(report)
    return model, back


def names(model: onnx.ModelProto) -> list[str]:
    return [n.name for n in model.graph.node]


def test_the_nodes_themselves(file: Path) -> None:
    model, part = taken(file, start="act", end="residual")
    assert names(model) == ["act", "scale", "second", "residual"]
    assert [i.name for i in model.graph.input] == ["a"]
    assert [o.name for o in model.graph.output] == ["b", "d"]
    assert [t.name for t in model.graph.initializer] == ["w2", "two"]
    assert model.opset_import[0].version == 20
    assert part.layers == ("act", "second", "residual")
    assert {p.key for p in model.metadata_props} == {"clew.part", "clew.layers"}


def test_by_kernel_it_is_the_layers(file: Path) -> None:
    compiled = clew.compile(file)
    kernel = next(k for k in compiled.kernels if "out" in k.layers)
    part = clew.extract(compiled, kernel=kernel.name, source=file)
    target = file.with_name("kernel.onnx")
    part.save(target)
    assert set(names(onnx.load(target))) - {"scale"} == set(kernel.layers) - {"scale"}
    assert clew.load_part(target).check().passed


def test_layers_between_those_of_a_kernel_are_taken_along(file: Path) -> None:
    form = FileSource(file, {"x": np.ones((2, 8), np.float32)})
    chosen = form.around(["act", "residual"])
    names_of = [form.cutter.names[n] for n in sorted(chosen.numbers)]
    assert names_of == ["act", "second", "residual"]
    assert chosen.notes == ("layer second is between them and is included",)
    with pytest.raises(InputError, match=r"I133"):
        form.exactly(["act", "residual"])


def test_types_of_values_inside_are_kept(saved: Save) -> None:
    built = blocks()
    built.graph.value_info.extend([info("c"), info("e", (2, 4))])
    model, _ = taken(saved(built), start="act", end="residual")
    assert [v.name for v in model.graph.value_info] == ["c"]


def test_layers_that_nobody_reads(saved: Save, tmp_path: Path) -> None:
    built = blocks()
    built.graph.node.append(node("Neg", ["a"], ["unread"], "unread"))
    path = saved(built)
    made = clew.partition(path, at=["act", ["out", "side"]])
    made.save(tmp_path / "parts", "onnx")
    back = clew.load_partition(tmp_path / "parts")
    assert len(back.parts) == 2
    assert back.check().passed


def branches() -> onnx.ModelProto:
    """A branch whose bodies read `h` and a parameter of the graph around it."""
    then = helper.make_graph(
        [node("Add", ["h", "w"], ["t"], "more")], "then", [], [info("t", (2, 8))]
    )
    orelse = helper.make_graph(
        [node("Mul", ["h", "x"], ["o"], "less")], "else", [], [info("o", (2, 8))]
    )
    nodes = [
        node("Relu", ["x"], ["h"], "hidden"),
        node("ReduceSum", ["h"], ["s"], "sum", keepdims=0),
        node("Greater", ["s", "zero"], ["c"], "test"),
        node("If", ["c"], ["r"], "choice", then_branch=then, else_branch=orelse),
        node("Exp", ["r"], ["y"], "out"),
    ]
    parameters = [weights("w", 2, 8), array("zero", np.float32(0))]
    return made(nodes, [info("x")], [info("y")], parameters)


def test_bodies_read_what_is_around_them(saved: Save) -> None:
    path = saved(branches())
    model, _ = taken(path, start="choice", end="out")
    assert [i.name for i in model.graph.input] == ["c", "h", "x"]
    assert [t.name for t in model.graph.initializer] == ["w"]
    with pytest.raises(InputError, match=r"I130.*'more' is inside 'choice'"):
        clew.extract(path, start="more")


def test_a_loop(saved: Save) -> None:
    body = helper.make_graph(
        [
            node("Identity", ["go"], ["on"], "keep"),
            node("Add", ["state", "step"], ["next"], "grow"),
        ],
        "body",
        [info("i", (), I64), info("go", (), BOOL), info("state", (2, 8))],
        [info("on", (), BOOL), info("next", (2, 8))],
    )
    nodes = [
        node("Tanh", ["x"], ["step"], "step"),
        node("Loop", ["trips", "", "x"], ["last"], "loop", body=body),
        node("Neg", ["last"], ["y"], "out"),
    ]
    path = saved(made(nodes, [info("x")], [info("y")], [array("trips", np.int64(3))]))
    model, _ = taken(path, start="loop", end="loop")
    assert [i.name for i in model.graph.input] == ["x", "step"]


def test_functions(saved: Save) -> None:
    own = [helper.make_opsetid("", 20)]
    inner = helper.make_function(
        "f", "twice", ["a"], ["b"], [node("Add", ["a", "a"], ["b"], "")], own
    )
    outer = helper.make_function(
        "f",
        "four",
        ["a"],
        ["b"],
        [
            node("twice", ["a"], ["m"], "one", domain="f"),
            node("twice", ["m"], ["b"], "two", domain="f"),
        ],
        [*own, helper.make_opsetid("f", 1)],
    )
    other = helper.make_function("f", "unused", ["a"], ["b"], [node("Neg", ["a"], ["b"], "")], own)
    nodes = [
        node("Relu", ["x"], ["h"], "act"),
        node("four", ["h"], ["g"], "call", domain="f"),
        node("unused", ["g"], ["k"], "other", domain="f"),
        node("Neg", ["k"], ["y"], "out"),
    ]
    path = saved(
        made(
            nodes,
            [info("x")],
            [info("y")],
            functions=[inner, outer, other],
            opsets=[helper.make_opsetid("f", 1)],
        )
    )
    cutter = OnnxCutter(path)
    numbers = [cutter.names.index("act"), cutter.names.index("call")]
    reads, gives = cutter.boundary(numbers)
    assert (reads, gives) == (["x"], ["g"])
    values = {n: np.ones((2, 8), np.float32) for n in (*reads, *gives)}
    target = path.with_name("part.onnx")
    cutter.write(target, numbers, {"x": values["x"]}, {"g": values["g"]})
    model = onnx.load(target)
    assert [f.name for f in model.functions] == ["twice", "four"]
    found = clew.compile(target).run({"x": values["x"]})
    np.testing.assert_array_equal(found["g"], 4 * values["x"])
    assert cutter.inside["call/one"] == "call"


def test_sizes_become_numbers(saved: Save) -> None:
    """A shape computed from a size that has no number is a parameter of the part."""
    nodes = [
        node("Shape", ["x"], ["s"], "shape"),
        node("Gather", ["s", "zero"], ["n"], "count"),
        node("Concat", ["n", "eight"], ["to"], "dims", axis=0),
        node("Relu", ["x"], ["h"], "act"),
        node("Reshape", ["h", "to"], ["r"], "flat"),
        node("Exp", ["r"], ["y"], "out"),
    ]
    parameters = [array("zero", np.array([0])), array("eight", np.array([8]))]
    path = saved(made(nodes, [info("x", ("n", 2, 4))], [info("y", ("n", 8))], parameters))
    x = np.ones((3, 2, 4), np.float32)
    model, part = taken(path, start="flat", end="out", inputs={"x": x})
    assert [i.name for i in model.graph.input] == ["h"]
    assert part.module.main.params[0].tensor.shape == (3, 2, 4)
    assert [t.name for t in model.graph.initializer] == ["to"]
    taken(path, end="flat", inputs={"x": x})


def test_parameters_in_a_file_of_their_own(file: Path, tmp_path: Path) -> None:
    cutter = OnnxCutter(file, most_inside_bytes=100)
    numbers = [cutter.names.index(n) for n in ("first", "act")]
    x = np.ones((2, 8), np.float32)
    captured = capture(cutter.giving(["a", "b"]), (), {"x": x})
    assert list(captured.inputs) == ["x"]
    folder = tmp_path / "big"
    folder.mkdir()
    files = cutter.write(folder / "m.onnx", numbers, {"x": x}, {"a": x, "b": x})
    assert [f.name for f in files] == ["m.onnx", "m.onnx.data"]
    found = clew.compile(folder / "m.onnx").run({"x": x})
    whole = onnx.load(file)
    w1 = onnx.numpy_helper.to_array(whole.graph.initializer[0])
    np.testing.assert_allclose(found["a"], x @ w1, rtol=1e-5)
    session = ort.InferenceSession(str(folder / "m.onnx"), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"x": x})[0], found["a"], rtol=1e-5)


def test_parameters_outside_the_model_come_inside(saved: Save, tmp_path: Path) -> None:
    path = tmp_path / "external.onnx"
    onnx.save(blocks(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    model, _ = taken(path, start="act", end="residual")
    assert all(t.data_location == TensorProto.DEFAULT for t in model.graph.initializer)


def test_parameters_of_all_kinds(saved: Save) -> None:
    """Constant nodes, 4-bit and sparse parameters, nodes without names."""
    sparse = helper.make_sparse_tensor(
        helper.make_tensor("sp", TensorProto.FLOAT, [2], [1.0, 2.0]),
        helper.make_tensor("at", I64, [2], [3, 9]),
        [2, 8],
    )
    nodes = [
        helper.make_node("Relu", ["x"], ["h"]),
        node("Constant", [], ["k"], "", value=array("v", np.float32(3))),
        node("Mul", ["h", "k"], ["g"], ""),
        node("DequantizeLinear", ["q", "qs"], ["w"], ""),
        node("Add", ["g", "w"], ["u"], ""),
        node("Add", ["u", "sp"], ["y"], ""),
    ]
    small = helper.make_tensor("q", TensorProto.INT4, [8], [1, -2, 3, -4, 5, -6, 7, -8])
    parameters = [small, array("qs", np.float32(0.5))]
    built = made(
        nodes, [info("x")], [info("y")], parameters, graph={"sparse_initializer": [sparse]}
    )
    built.opset_import[0].version = 21
    built.ir_version = 10
    path = saved(built)
    part = clew.extract(path, start="Mul_2", end="Add_4")
    assert part.layers == ("Mul_2", "Add_4")
    target = path.with_name("part.onnx")
    part.save(target)
    onnx.checker.check_model(str(target), full_check=True)
    assert clew.load_part(target).check().passed
    part = clew.extract(path, start="Add_4")
    part.save(target)
    assert len(onnx.load(target).graph.sparse_initializer) == 1
    assert clew.load_part(target).check().passed


def test_parts_of_other_models_are_exported(file: Path) -> None:
    part = clew.extract(clew.load(file), start="act", end="residual")
    (made, _) = part.save(file.with_name("exported.onnx"))
    assert clew.load_part(made).check().passed
    kernel = clew.compile(clew.load(file), threads=1).kernels[0].name
    part = clew.extract(clew.load(file), kernel=kernel, threads=1)
    with pytest.raises(InputError, match=r"I137.*a kernel's operators"):
        part.save(file.with_name("part.onnx"))
    part = clew.extract(clew.load(file), start="act", end="residual", source=file)
    part.save(file.with_name("part.onnx"))
    part.save(file.with_name("part.txt"))
    again = clew.extract(file.with_name("part.txt"), start="second")
    assert clew.load_part(again.save(file.with_name("again.onnx"))[0]).check().passed
