"""Indices out of range, from one operator to saved models: errors that say where, or clamped."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from typer.testing import CliRunner

import clew
import clew.ops
from clew.cli.app import app
from clew.ir.expr import Call, Constant, Expr, Function, If, Tuple, Var
from clew.ir.interpret import interpret
from clew.ir.module import Module
from clew.ir.types import TensorType
from clew.ops.registry import Op, Sample, all_ops, get_op
from clew.ops.sample_checks import OUTSIDE, fields, model_of, wrong_output
from clew.runtime.guard import GuardSide
from clew.support.bounds import bounds_in_force
from clew.support.errors import ClewError
from clew.trace.lineage import building
from clew.trace.span import Source, Span

pytestmark = pytest.mark.usefixtures("shared_kernels")

_SAMPLES = [
    (op, n, sample)
    for op in all_ops()
    if op.is_builtin
    for n, sample in enumerate(op.samples)
    if sample.error == OUTSIDE
]
_IDS = [f"{op.name}-{n}" for op, n, _ in _SAMPLES]


def layer(name: str, op: str, *args: Expr, **attrs: Any) -> Expr:
    with building(Span([Source(name, op, "test", "layer", 0)])):
        made: Call = get_op(op)(*args, **attrs)
    return made


def module(params: list[Var], *results: Expr) -> Module:
    names = tuple(f"y{n}" for n in range(len(results)))
    return Module({"main": Function(params, Tuple(list(results)), {"outputs": names})})


def refused(call: Any) -> ClewError:
    with pytest.raises(ClewError) as caught:
        call()
    assert caught.value.code == "I320", caught.value
    return caught.value


@pytest.mark.parametrize(("op", "n", "sample"), _SAMPLES, ids=_IDS)
def test_each_operator_refuses_what_its_samples_say(op: Op, n: int, sample: Sample) -> None:
    """At any opt level, behind guard pages on either side; the model stays usable; with `clamp` it
    gives what the reference does.
    """
    with bounds_in_force("clamp"):
        model = model_of(op, [sample])
    for opt_level, side in ((0, GuardSide.START), (3, GuardSide.END)):
        options: dict[str, Any] = {"opt_level": opt_level, "threads": 2, "cache": False}
        options["passes"] = clew.Passes(disabled=["AlterLayout"])
        checked = clew.compile(model.module, diagnostics=clew.Diagnostics(guard=side), **options)
        for _ in range(2):
            error = refused(lambda: checked.run(model.inputs))  # noqa: B023
            assert error.layer == "sample0"
        clamped = clew.compile(
            model.module,
            diagnostics=clew.Diagnostics(guard=side),
            limits=clew.Limits(bounds="clamp"),
            **options,
        )
        assert wrong_output(model, clamped.run(model.inputs)) == ""
    refused(lambda: interpret(model.module, model.inputs))


def _table(count: int = 10) -> tuple[Var, Var]:
    return Var("x", TensorType((count, 32), "f32")), Var("i", TensorType((40,), "i64"))


def test_the_error_names_layer_index_and_axis() -> None:
    x, i = _table()
    model = clew.compile(module([x, i], layer("words", "gather", x, i, axis=0)), threads=2)
    table = np.random.default_rng(0).random((10, 32), np.float32)
    good = np.arange(-10, 30) % 10
    for index in (10, -11, 2**63 - 1, -(2**63), 2**32):
        for place in (0, 19, 39):
            bad = good.copy()
            bad[place] = index
            error = refused(lambda: model(table, bad))  # noqa: B023
            assert error.message == f"gather: index {index} is out of range for axis 0 of size 10"
            assert error.layer == "words"
            assert "it may be -10 to 9" in error.hint
            assert "--bounds clamp" in error.hint
            np.testing.assert_array_equal(model(table, good), table[good])


def test_equal_kernels_name_their_own_layers() -> None:
    """Uses of one kernel share its code, and differ in what their checks are about."""
    x, i = _table()
    j = Var("j", i.type)
    both = [layer("words", "gather", x, i, axis=0), layer("places", "gather", x, j, axis=0)]
    model = clew.compile(module([x, i, j], *both), threads=1, cache=False)
    assert len({kernel.key for kernel in model.kernels}) == 1
    table, good = np.zeros((10, 32), np.float32), np.zeros(40, np.int64)
    assert refused(lambda: model(table, good + 11, good)).layer == "words"
    assert refused(lambda: model(table, good, good + 12)).layer == "places"
    first = refused(lambda: model(table, good + 11, good + 12))
    assert (first.layer, "index 11 " in first.message) == ("words", True)


def test_a_fused_kernel_names_the_layer_at_fault() -> None:
    x, i = _table()
    p, j = Var("p", TensorType((7, 32), "f32")), Var("j", i.type)
    words, places = layer("words", "gather", x, i, axis=0), layer("places", "gather", p, j, axis=0)
    model = clew.compile(module([x, i, p, j], layer("sum", "add", words, places)), threads=1)
    assert len(model.kernels) == 1
    x_, p_ = np.ones((10, 32), np.float32), np.ones((7, 32), np.float32)
    inside = np.zeros(40, np.int64)
    assert refused(lambda: model(x_, inside - 11, p_, inside)).layer == "words"
    error = refused(lambda: model(x_, inside + 9, p_, inside + 9))
    assert (error.layer, error.message) == (
        "places", "gather: index 9 is out of range for axis 0 of size 7"
    )  # fmt: skip
    assert (model(x_, inside + 9, p_, inside - 7) == 2).all()


def test_an_index_that_the_condition_leaves_out() -> None:
    """Padding: the places of -100 are not looked up."""
    x, i = Var("x", TensorType((40, 10), "f32")), Var("i", TensorType((40, 1), "i64"))
    ignored = layer("ignored", "equal", i, Constant(np.array(-100)))
    safe = layer("safe", "where", ignored, Constant(np.array(0)), i)
    taken = layer("taken", "gather_elements", x, safe, axis=1)
    loss = layer("loss", "where", ignored, Constant(np.float32(0)), taken)
    model = clew.compile(module([x, i], loss), threads=1)
    table = np.random.default_rng(0).random((40, 10), np.float32)
    classes = np.arange(40)[:, None] % 10
    classes[[3, 17]] = -100
    wanted = np.where(classes == -100, 0, np.take_along_axis(table, classes % 10, 1))
    np.testing.assert_array_equal(model(table, classes), wanted)
    classes[5] = 10
    assert refused(lambda: model(table, classes)).layer == "taken"


def test_runs_of_several_threads_do_not_mix() -> None:
    x, i = _table()
    doubled = layer("twice", "add", layer("words", "gather", x, i, axis=0), Constant(np.float32(1)))
    model = clew.compile(module([x, i], doubled), threads=2)
    table = np.random.default_rng(0).random((10, 32), np.float32)
    wrong: list[str] = []

    def calls(own: int) -> None:
        for n in range(200):
            index = (own + n) % 10
            indices = np.full(40, index)
            if own % 2:
                indices[n % 40] = 100 + own
            try:
                found = model(table, indices)
            except ClewError as error:
                if not own % 2 or f"index {100 + own} " not in error.message:
                    wrong.append(str(error))
            else:
                if own % 2 or not np.array_equal(found, table[indices] + 1):
                    wrong.append(f"thread {own}: {index}")

    threads = [threading.Thread(target=calls, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_saved_models_tell_as_well(tmp_path: Path) -> None:
    x, i = _table()
    u, k = Var("u", TensorType((5000,), "f32")), Var("k", TensorType((5000,), "i64"))
    many = layer("put", "scatter_elements", Constant(np.zeros(5000, "f4")), k, u, axis=0)
    built = module([x, i, u, k], layer("words", "gather", x, i, axis=0), many)
    table, good = np.ones((10, 32), np.float32), np.zeros(40, np.int64)
    updates, places = np.ones(5000, np.float32), np.arange(5000)
    for bounds in ("check", "clamp"):
        path = tmp_path / f"{bounds}.clew"
        clew.compile(built, threads=1, limits=clew.Limits(bounds=bounds)).save(path)
        loaded = clew.load_compiled(path)
        for _ in range(2):
            np.testing.assert_array_equal(loaded(table, good, updates, places)[1], updates)
            for arrays, name in (
                ((table, good + 10, updates, places), "words"),
                ((table, good, updates, places + 1), "put"),
            ):
                if bounds == "check":
                    assert refused(lambda: loaded(*arrays)).layer == name  # noqa: B023
                else:
                    loaded(*arrays)


def test_kernels_of_shapes_that_a_run_tells() -> None:
    """Compiled for the shapes met, or interpreted: either way the layer is named."""
    x, mask = Var("x", TensorType((6, 4), "f32")), Var("m", TensorType((9,), "bool"))
    rows = layer("at", "nonzero", mask)
    for bounds in ("check", "clamp"):
        model = clew.compile(
            module([x, mask], layer("pick", "gather", x, rows, axis=0)),
            limits=clew.Limits(bounds=bounds),
        )
        table, wanted = np.arange(24, dtype=np.float32).reshape(6, 4), np.zeros(9, bool)
        for n in range(6):
            wanted[n] = True
            np.testing.assert_array_equal(model(table, wanted)[0], table[: n + 1])
        wanted[7] = True
        if bounds == "check":
            error = refused(lambda: model(table, wanted))  # noqa: B023
            assert (error.layer, "index 7 " in error.message) == ("pick", True)
        else:
            np.testing.assert_array_equal(model(table, wanted)[0, -1], table[-1])


def test_constants_out_of_range_are_refused_when_compiling() -> None:
    table, places = Constant(np.arange(8.0, dtype="f4").reshape(4, 2)), Constant(np.array([1, 4]))
    x = Var("x", TensorType((2, 2), "f32"))
    built = module([x], layer("sum", "add", x, layer("words", "gather", table, places, axis=0)))
    error = refused(lambda: clew.compile(built, cache=False))
    assert (error.layer, error.pass_name) == ("words", "FoldConstant")
    assert error.message == "gather: index 4 is out of range for axis 0 of size 4"
    held = clew.compile(built, limits=clew.Limits(bounds="clamp"), cache=False)(
        np.zeros((2, 2), "f4")
    )
    np.testing.assert_array_equal(held, [[2, 3], [6, 7]])


def test_constants_of_a_branch_are_left_to_the_run() -> None:
    table, places = Constant(np.arange(8.0, dtype="f4").reshape(4, 2)), Constant(np.array([1, 4]))
    x, c = Var("x", TensorType((2, 2), "f32")), Var("c", TensorType((), "bool"))
    inner = [Var("a", x.type), Var("b", x.type)]
    words = layer("words", "gather", table, places, axis=0)
    then = Function([inner[0]], layer("sum", "add", inner[0], words))
    orelse = Function([inner[1]], layer("minus", "negative", inner[1]))
    model = clew.compile(module([x, c], If(c, then, orelse, [x])), cache=False)
    ones = np.ones((2, 2), np.float32)
    np.testing.assert_array_equal(model(ones, np.array(False)), -ones)
    assert refused(lambda: model(ones, np.array(True))).layer == "words"


def test_tools_that_run_models_refuse_and_go_on(tmp_path: Path) -> None:
    x, i = _table()
    model = clew.compile(module([x, i], layer("words", "gather", x, i, axis=0)), threads=1)
    table, bad = np.ones((10, 32), np.float32), np.full(40, 77)
    refused(lambda: model.tap("words", table, bad))
    refused(lambda: model.profile(table, bad))
    assert model(table, bad % 10).shape == (40, 32)


def _position_table(length: int) -> onnx.ModelProto:
    """A text of token numbers, to which the rows of a table of 16 positions are added."""
    rng = np.random.default_rng(0)
    tables = [rng.random((n, 8)).astype(np.float32) for n in (100, 16)]
    nodes = [
        helper.make_node("Gather", ["words", "text"], ["embedded"], "/embed"),
        helper.make_node("Shape", ["text"], ["shape"], "/shape"),
        helper.make_node("Range", ["zero", "size", "one"], ["places"], "/range"),
        helper.make_node("Squeeze", ["shape"], ["size"], "/size"),
        helper.make_node("Gather", ["positions", "places"], ["placed"], "/positions"),
        helper.make_node("Add", ["embedded", "placed"], ["y"], "/sum"),
    ]
    nodes = [nodes[0], nodes[1], nodes[3], nodes[2], *nodes[4:]]
    constants = [
        numpy_helper.from_array(tables[0], "words"),
        numpy_helper.from_array(tables[1], "positions"),
        numpy_helper.from_array(np.array(0), "zero"),
        numpy_helper.from_array(np.array(1), "one"),
    ]
    size: Any = length or "length"
    text = helper.make_tensor_value_info("text", onnx.TensorProto.INT64, [size])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [size, 8])
    graph = helper.make_graph(nodes, "text", [text], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.mark.parametrize("bounds", ["check", "clamp"])
def test_a_text_longer_than_the_table_of_positions(bounds: str) -> None:
    model = clew.compile(_position_table(0).SerializeToString(), limits=clew.Limits(bounds=bounds))
    assert model(np.arange(16)).shape == (16, 8)
    if bounds == "clamp":
        assert model(np.arange(17)).shape == (17, 8)
    else:
        error = refused(lambda: model(np.arange(17)))
        assert "/positions" in error.layer
        assert error.message == "gather: index 16 is out of range for axis 0 of size 16"
    assert model(np.arange(12)).shape == (12, 8)


def test_another_way_is_refused() -> None:
    x, i = _table()
    with pytest.raises(ClewError) as caught:
        clew.compile(
            module([x, i], layer("words", "gather", x, i, axis=0)),
            limits=clew.Limits(bounds="wrap"),
        )
    assert caught.value.code == "I321"
    assert caught.value.message == "bounds is 'wrap'"
    assert caught.value.hint == "it is check or clamp"


def test_references_are_told_how(recwarn: Any) -> None:
    op, arrays = get_op("gather"), [np.arange(5), np.array([7, -9])]
    attrs = {"axis": 0, "from_end": True}
    refused(lambda: op.run_reference(arrays, attrs))
    with bounds_in_force("clamp"):
        assert fields(op.run_reference(arrays, attrs))[0].tolist() == [4, 0]


def test_a_step_timed_alone_may_read_what_others_wrote() -> None:
    """Timed again and again after a whole run, it finds anything where its indices were."""
    x, i = Var("x", TensorType((10,), "f64")), Var("i", TensorType((400,), "i64"))
    places = layer("places", "multiply", i, Constant(np.array(1)))
    picked = layer("picked", "gather", x, places, axis=0)
    steps = [layer("wild", "multiply", picked, Constant(np.float64(1e300)))]
    for n in range(3):
        steps.append(layer(f"more{n}", "exp", layer(f"less{n}", "negative", steps[-1])))
    model = clew.compile(
        module([x, i], *steps[-1:]), passes=clew.Passes(fuse=False), threads=1, cache=False
    )
    (segment,) = model.build.segments
    inputs = [np.full(10, -3.5), np.arange(400) % 10]
    for step in range(len(segment.plan.steps)):
        segment.time_step(step, inputs, 3)
    refused(lambda: segment.time_step(0, [inputs[0], inputs[1] + 1]))
    model(*inputs)
    refused(lambda: model(inputs[0], inputs[1] + 1))


def test_bounds_on_the_command_line(tmp_path: Path) -> None:
    path, text = tmp_path / "text.onnx", tmp_path / "text.npy"
    path.write_bytes(_position_table(17).SerializeToString())
    np.save(text, np.arange(17))
    given = ["run", str(path), "--input", f"text={text}"]
    refused_run = CliRunner().invoke(app, given)
    assert refused_run.exit_code == 1
    assert CliRunner().invoke(app, [*given, "--bounds", "clamp"]).exit_code == 0
    saved = ["compile", str(path), "--bounds", "clamp", "-o", str(tmp_path / "text.clew")]
    assert CliRunner().invoke(app, saved).exit_code == 0
    assert clew.load_compiled(tmp_path / "text.clew")(np.arange(17)).shape == (17, 8)
