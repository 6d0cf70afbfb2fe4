"""Every way in which a model can be bad: one coded error, which names the layer where there is
one.
"""

from __future__ import annotations

import os
import random
from itertools import pairwise
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import clew
from clew.frontends.onnx import Budgets, load
from clew.support.errors import (
    ClewError,
    GraphTypeError,
    InputError,
    ModelError,
    UnsupportedError,
)

X = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
Y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)


def model(nodes, *, initializers=(), inputs=(X,), outputs=(Y,), opset=21, **more):
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), list(initializers))
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], **more)
    made.ir_version = 10
    return made


def node(op, inputs, outputs, name="", **attributes):
    return helper.make_node(op, inputs, outputs, name=name, **attributes)


def fails(kind, code, *args, **options) -> ClewError:
    with pytest.raises(kind) as caught:
        load(*args, **options)
    assert caught.value.code == code, caught.value
    return caught.value


RELU = model([node("Relu", ["x"], ["y"])])


# --- the file
# ---------------------------------------------------------------------------------------


def test_random_bytes():
    draw = random.Random(1)
    for size in (1, 10, 1000):
        with pytest.raises(ModelError) as caught:
            load(draw.randbytes(size))
        assert caught.value.code in ("M001", "M002")


def test_truncated_anywhere_never_crashes():
    data = RELU.SerializeToString()
    for size in range(len(data)):
        with pytest.raises(ClewError):
            load(data[:size])


def test_a_file_deep_in_folders_is_still_named(tmp_path: Path):
    folder = tmp_path / ("deep" * 30)
    folder.mkdir()
    path = folder / "cut.onnx"
    path.write_bytes(RELU.SerializeToString()[:-20])
    error = fails(ModelError, "M001", path)
    assert "cut.onnx" in error.message
    assert len(error.message) < 200


def test_truncated_file_names_the_file(tmp_path: Path):
    path = tmp_path / "cut.onnx"
    path.write_bytes(RELU.SerializeToString()[:-20])
    error = fails(ModelError, "M001", path)
    assert "cut.onnx" in error.message
    assert "truncated" in error.hint


def test_flipped_bytes_give_coded_errors_or_load():
    data = bytearray(RELU.SerializeToString())
    draw = random.Random(2)
    refused = 0
    for _ in range(300):
        damaged = bytearray(data)
        damaged[draw.randrange(len(data))] = draw.randrange(256)
        try:
            load(bytes(damaged))
        except ClewError:
            refused += 1
    assert 30 < refused < 300


def test_empty_bytes_hold_no_graph():
    fails(ModelError, "M002", b"")


def test_missing_file_and_folder(tmp_path: Path):
    fails(ModelError, "M011", tmp_path / "none.onnx")
    fails(ModelError, "M011", tmp_path)


def test_file_over_budget(tmp_path: Path):
    path = tmp_path / "large.onnx"
    path.write_bytes(RELU.SerializeToString())
    fails(ModelError, "M011", path, budgets=Budgets(file_bytes=10))


@pytest.mark.parametrize("version", [0, 2, onnx.IR_VERSION + 1])
def test_ir_version(version):
    made = model([node("Relu", ["x"], ["y"])])
    made.ir_version = version
    assert str(version) in fails(ModelError, "M008", made).message


@pytest.mark.parametrize("opset", [0, onnx.defs.onnx_opset_version() + 1])
def test_opset(opset):
    fails(ModelError, "M008", model([node("Relu", ["x"], ["y"])], opset=opset))


def test_no_opset():
    made = model([node("Relu", ["x"], ["y"])])
    del made.opset_import[:]
    fails(ModelError, "M008", made)


# --- the graph
# --------------------------------------------------------------------------------------


def test_cycle_names_a_layer():
    made = model([node("Add", ["x", "b"], ["a"], "first"), node("Relu", ["a"], ["b"], "second")])
    made.graph.output[0].name = "b"
    error = fails(ModelError, "M003", made)
    assert error.layer == "first"
    assert "second" in error.message


def test_unsorted_nodes_are_sorted():
    made = model([node("Relu", ["a"], ["y"]), node("Neg", ["x"], ["a"])])
    assert load(made).main.body.fields[0].op_name == "nn.relu"


def test_missing_initializer():
    made = model([node("Add", ["x", "weight"], ["y"], "add")])
    error = fails(ModelError, "M004", made)
    assert "weight" in error.message
    assert error.layer == "add"


def test_undefined_output():
    made = model([node("Relu", ["x"], ["z"])])
    fails(ModelError, "M004", made)


def test_value_defined_twice():
    made = model([node("Relu", ["x"], ["y"]), node("Neg", ["x"], ["y"], "again")])
    assert fails(ModelError, "M010", made).layer == "again"


def test_input_defined_again():
    fails(ModelError, "M010", model([node("Relu", ["x"], ["x"]), node("Relu", ["x"], ["y"])]))


def test_two_initializers_of_one_name():
    one = numpy_helper.from_array(np.zeros(3, np.float32), "w")
    made = model([node("Add", ["x", "w"], ["y"])], initializers=[one, one])
    fails(ModelError, "M010", made)


def test_two_inputs_of_one_name():
    fails(ModelError, "M010", model([node("Relu", ["x"], ["y"])], inputs=(X, X)))


@pytest.mark.parametrize(
    "bad",
    [
        node("Relu", ["x", "x"], ["y"], "bad"),
        node("Relu", ["x"], ["y", "z"], "bad"),
        node("Relu", ["x"], ["y"], "bad", alpha=1.0),
        node("Softmax", ["x"], ["y"], "bad", axis=1.5),
        node("Cast", ["x"], ["y"], "bad"),
        node("Softmax", ["x"], ["y"], "bad", axis=7),
        node("Conv", ["x", ""], ["y"], "bad"),
    ],
)
def test_node_against_its_schema(bad):
    assert fails(ModelError, "M012", model([bad])).layer == "bad"


def test_shapes_that_do_not_fit_name_the_layer():
    weight = numpy_helper.from_array(np.zeros((4, 5), np.float32), "w")
    made = model([node("MatMul", ["x", "w"], ["y"], "product")], initializers=[weight])
    with pytest.raises(ClewError) as caught:
        load(made)
    assert caught.value.code.startswith("T")
    assert caught.value.layer == "product"


# --- tensors
# ----------------------------------------------------------------------------------------


def tensor(dims, raw=b"", dtype=TensorProto.FLOAT, name="w"):
    made = TensorProto(name=name, data_type=dtype, raw_data=raw)
    made.dims.extend(dims)
    return made


@pytest.mark.parametrize(
    "bad",
    [
        tensor([2, 3], b"\0" * 20),
        tensor([2**31, 2**31], b"\0" * 4),
        tensor([2**62, 2**62], b"\0" * 4),
        tensor([-1], b"\0" * 4),
        tensor([1] * 40, b"\0" * 4),
    ],
)
def test_tensor_sizes(bad):
    made = model([node("Add", ["x", "w"], ["y"])], initializers=[bad])
    assert "'w'" in fails(ModelError, "M006", made).message


def test_tensor_with_too_few_elements():
    bad = TensorProto(name="w", data_type=TensorProto.FLOAT, float_data=[1.0, 2.0])
    bad.dims.extend([3])
    fails(ModelError, "M006", model([node("Add", ["x", "w"], ["y"])], initializers=[bad]))


@pytest.mark.parametrize("dims", [[2**20, 2**20], [2**33, 2**33]])
def test_constant_of_shape_over_budget(dims):
    shape = numpy_helper.from_array(np.array(dims, np.int64), "shape")
    made = model([node("ConstantOfShape", ["shape"], ["y"], "huge")], initializers=[shape])
    assert fails(ModelError, "M006", made).layer == "huge"


def test_doubling_values_over_budget():
    names = ["x", *(f"v{n}" for n in range(45)), "y"]
    nodes = [node("Concat", [a, a], [b], axis=0) for a, b in pairwise(names)]
    assert fails(ModelError, "M006", model(nodes)).layer.startswith("Concat_")


def test_range_over_budget():
    bounds = [numpy_helper.from_array(np.int64(n), f"n{k}") for k, n in enumerate((0, 2**60, 1))]
    made = model([node("Range", ["n0", "n1", "n2"], ["y"], "range")], initializers=bounds)
    with pytest.raises(ClewError) as caught:
        load(made)
    assert caught.value.code in ("M006", "T107")
    assert caught.value.layer == "range"


def test_text_tensor():
    bad = tensor([1], dtype=TensorProto.STRING)
    made = model([node("Add", ["x", "w"], ["y"])], initializers=[bad])
    error = fails(ModelError, "M006", made)
    assert "string" in error.message


# --- external data
# ----------------------------------------------------------------------------------


def external(folder: Path, location: str, *, offset="0", length="24", dims=(2, 3)) -> Path:
    stored = TensorProto(name="w", data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
    stored.dims.extend(dims)
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        stored.external_data.add(key=key, value=value)
    path = folder / "model.onnx"
    made = model([node("Add", ["x", "w"], ["y"])], initializers=[stored])
    path.write_bytes(made.SerializeToString())
    return path


@pytest.fixture
def inside(tmp_path: Path) -> Path:
    (tmp_path / "secret.bin").write_bytes(b"\1" * 64)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "weights.bin").write_bytes(np.arange(8, dtype=np.float32).tobytes())
    return folder


def test_external_data_is_mapped(inside: Path):
    loaded = load(external(inside, "weights.bin", offset="4"))
    weight = loaded.main.body.fields[0].args[1].data
    np.testing.assert_array_equal(weight, np.arange(1, 7, dtype=np.float32).reshape(2, 3))
    assert not weight.flags.writeable


@pytest.mark.parametrize(
    "location",
    [
        "../secret.bin",
        "sub/../../secret.bin",
        "/etc/passwd",
        "missing.bin",
        "",
        "nul\0byte",
        ".",
    ],
)
def test_external_data_elsewhere(inside: Path, location: str):
    fails(ModelError, "M005", external(inside, location))


def test_external_data_through_a_link(inside: Path):
    (inside / "link.bin").symlink_to(inside.parent / "secret.bin")
    fails(ModelError, "M005", external(inside, "link.bin"))


def test_external_data_in_a_linked_folder(inside: Path):
    (inside / "sub").symlink_to(inside.parent)
    fails(ModelError, "M005", external(inside, "sub/secret.bin"))


def test_external_data_hard_linked(inside: Path):
    os.link(inside.parent / "secret.bin", inside / "hard.bin")
    assert "hard links" in fails(ModelError, "M005", external(inside, "hard.bin")).message


def test_external_data_in_a_pipe(inside: Path):
    os.mkfifo(inside / "pipe")
    fails(ModelError, "M005", external(inside, "pipe"))


@pytest.mark.parametrize(
    ("offset", "length"), [("0", "400"), ("16", "24"), ("-4", "24"), ("0", "x"), ("9" * 30, "24")]
)
def test_external_data_out_of_range(inside: Path, offset: str, length: str):
    fails(ModelError, "M005", external(inside, "weights.bin", offset=offset, length=length))


def test_external_data_of_another_size(inside: Path):
    fails(ModelError, "M006", external(inside, "weights.bin", length="16"))


def test_external_data_without_a_folder(inside: Path):
    fails(ModelError, "M005", external(inside, "weights.bin").read_bytes())


# --- nesting, functions, budgets
# --------------------------------------------------------------------


def nested_bytes(depth: int) -> bytes:
    """Returns a model of `If` in `If`, written without the protobuf library, which refuses it."""

    def field(number: int, data: bytes) -> bytes:
        size, length = b"", len(data)
        while length >= 128:
            size, length = size + bytes([length % 128 | 128]), length // 128
        return bytes([number << 3 | 2]) + size + bytes([length]) + data

    graph = field(11, field(1, b"x"))
    for _ in range(depth):
        branch = field(1, b"then_branch") + field(6, graph) + b"\xa0\x01\x05"
        graph = field(1, field(4, b"If") + field(1, b"x") + field(2, b"y") + field(5, branch))
    return b"\x08\x0a" + field(8, b"\x10\x15") + field(7, graph)


@pytest.mark.parametrize("depth", [60, 5000])
def test_nest_of_subgraphs(depth):
    fails(ModelError, "M007", nested_bytes(depth))


def functions(count: int, calls: int) -> onnx.ModelProto:
    """Returns a model with functions that each call the one before so many times."""
    opset = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    made = [helper.make_function("own", "f0", ["a"], ["b"], [node("Neg", ["a"], ["b"])], opset[:1])]
    for n in range(1, count):
        names = ["a", *(f"t{k}" for k in range(calls - 1)), "b"]
        body = [helper.make_node(f"f{n - 1}", [p], [q], domain="own") for p, q in pairwise(names)]
        made.append(helper.make_function("own", f"f{n}", ["a"], ["b"], body, opset))
    top = helper.make_node(f"f{count - 1}", ["x"], ["y"], name="top", domain="own")
    result = model([top], functions=made)
    result.opset_import.append(opset[1])
    return result


def test_exponential_functions_are_refused_before_expansion():
    fails(ModelError, "M009", functions(24, 2))


def test_deep_functions():
    fails(ModelError, "M007", functions(200, 1))


def test_recursive_function():
    made = functions(1, 1)
    made.functions[0].node[0].op_type = "f0"
    made.functions[0].node[0].domain = "own"
    made.functions[0].opset_import.append(helper.make_opsetid("own", 1))
    assert "f0 -> f0" in fails(ModelError, "M003", made).message


def test_node_budget():
    names = ["x", *(f"v{n}" for n in range(9)), "y"]
    nodes = [node("Relu", [a], [b]) for a, b in pairwise(names)]
    fails(ModelError, "M009", model(nodes), budgets=Budgets(nodes=9))
    assert load(model(nodes), budgets=Budgets(nodes=10))


# --- unsupported
# ------------------------------------------------------------------------------------


def test_all_unsupported_operators_at_once():
    nodes = [
        node("Fold", ["x"], ["a"], "first"),
        node("Fold", ["a"], ["b"], "second"),
        node("Unheard", ["b"], ["c"], "third"),
        node("Relu", ["c"], ["y"], "fine"),
    ]
    error = fails(UnsupportedError, "U001", model(nodes))
    assert all(text in error.message for text in ("Fold: first, second", "third"))
    assert "fine" not in error.message


def test_unknown_domain():
    made = model([helper.make_node("Magic", ["x"], ["y"], name="trick", domain="com.example")])
    made.opset_import.append(helper.make_opsetid("com.example", 1))
    error = fails(UnsupportedError, "U003", made)
    assert "com.example" in error.message
    assert "trick" in error.message


def test_unknown_rank_of_a_run_time_shape():
    shape = helper.make_tensor_value_info("shape", TensorProto.INT64, ["rank"])
    made = model([node("Squeeze", ["x", "shape"], ["y"], "shaped")], inputs=(X, shape))
    assert fails(UnsupportedError, "U002", made).layer == "shaped"


def test_input_without_shape():
    unshaped = helper.make_tensor_value_info("x", TensorProto.FLOAT, None)
    made = model([node("Relu", ["x"], ["y"])], inputs=(unshaped,))
    fails(UnsupportedError, "U006", made)
    assert load(made, inputs={"x": [2, "n"]}).main.params[0].type.rank == 2


def test_statistics_of_other_sizes():
    ones = [numpy_helper.from_array(np.ones(4, np.float32), n) for n in "sbmv"]
    bad = node("BatchNormalization", ["x", *"sbmv"], ["y"], "norm", training_mode=1)
    assert fails(GraphTypeError, "T103", model([bad], initializers=ones)).layer == "norm"


# --- arguments and names
# ----------------------------------------------------------------------------


def test_wrong_arguments():
    fails(InputError, "I004", RELU, inputs={"z": [1]})
    fails(InputError, "I004", RELU, constants={"z": np.zeros(1)})
    fails(InputError, "I005", RELU, constants={"x": np.zeros((2, 4), np.float32)})
    fails(InputError, "I003", RELU, annotate=lambda source, view: "other")


@pytest.mark.parametrize("name", ["line\nbreak", 'quote"\\', "nul\0", "é" * 40, "n" * 100_000])
def test_strange_names(name):
    made = model([node("Relu", ["x"], ["y"], name)])
    assert load(made).main.body.fields[0].span.layers == (name,)
    error = fails(ModelError, "M004", model([node("Relu", ["gone"], ["y"], name)]))
    assert len(str(error).splitlines()) < 5
    assert len(error.layer) <= 90


def test_kinds_that_an_operator_never_takes():
    sequence = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, [2])
    made = model([node("Erf", ["s"], ["y"], "erf")], inputs=(sequence,))
    assert fails(ModelError, "M012", made).layer == "erf"
    text = helper.make_tensor_value_info("t", TensorProto.STRING, [2])
    made = model([node("Mul", ["t", "t"], ["y"], "product")], inputs=(text,))
    assert fails(ModelError, "M012", made).layer == "product"


@pytest.mark.parametrize("version", [-1, 2**31, 2**62])
def test_versions_of_other_operator_sets_out_of_range(version):
    made = model([helper.make_node("Scaler", ["x"], ["y"], domain="ai.onnx.ml")])
    made.opset_import.append(helper.make_opsetid("ai.onnx.ml", version))
    fails(ModelError, "M008", made)


def test_a_constant_reshaped_to_another_count():
    weight = numpy_helper.from_array(np.zeros(4, np.float32), "w")
    shape = numpy_helper.from_array(np.array([3], np.int64), "s")
    made = model([node("Reshape", ["w", "s"], ["y"], "shaped")], initializers=[weight, shape])
    with pytest.raises(ClewError) as caught:
        load(made)
    assert caught.value.code.startswith("T")
    assert caught.value.layer == "shaped"


def run(made, *arrays):
    return clew.compile(made, threads=1, cache=False)(*arrays)


def test_a_run_that_gives_several_values_for_one():
    taken = [
        helper.make_tensor_value_info(n, TensorProto.INT64, s)
        for n, s in (("x", [3, 4]), ("k", [2]))
    ]
    made = model([node("Trilu", ["x", "k"], ["y"])], inputs=taken)
    with pytest.raises(ClewError):
        run(made, np.zeros((3, 4), np.int64), np.ones(2, np.int64))


def test_a_run_that_asks_for_a_negative_size():
    taken = [helper.make_tensor_value_info("depth", TensorProto.INT64, [])]
    stored = [
        numpy_helper.from_array(np.array(v, np.int64), n) for n, v in (("i", [1]), ("v", [0, 1]))
    ]
    made = model([node("OneHot", ["i", "depth", "v"], ["y"])], inputs=taken, initializers=stored)
    assert run(made, np.int64(3)).tolist() == [[0, 1, 0]]
    with pytest.raises(ClewError):
        run(made, np.int64(-3))


def test_axes_far_outside():
    bad = node("Transpose", ["x"], ["y"], "turned", perm=[2**62 + 1, 0])
    with pytest.raises(ClewError) as caught:
        load(model([bad]))
    assert caught.value.layer == "turned"


def test_a_size_divided_by_a_size_of_none():
    shape = numpy_helper.from_array(np.array([0, -1], np.int64), "s")
    taken = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2, "m"])]
    made = model([node("Reshape", ["x", "s"], ["y"])], inputs=taken, initializers=[shape])
    compiled = clew.compile(made, threads=1, cache=False)
    assert compiled(np.zeros((3, 2, 5), np.float32)).shape == (3, 10)
    assert compiled(np.zeros((0, 2, 5), np.float32)).shape == (0, 10)


def test_images_of_numbers_of_two_bits():
    sizes = numpy_helper.from_array(np.array([1, 1, 3, 3], np.int64), "s")
    resize = node("Resize", ["x", "", "", "s"], ["y"], "resized", mode="linear", antialias=1)
    numbers = np.random.default_rng(0).integers(0, 4, (1, 1, 4, 4)).astype(np.uint8)
    found = []
    for kind, array in (
        (TensorProto.UINT2, numbers.astype(ml_dtypes.uint2)),
        (TensorProto.UINT8, numbers),
    ):
        image = helper.make_tensor_value_info("x", kind, numbers.shape)
        made = model([resize], inputs=[image], initializers=[sizes], opset=19)
        found.append(run(made, array).astype(np.uint8))
    np.testing.assert_array_equal(*found)
    assert len(np.unique(found[0])) > 1


@pytest.mark.parametrize(
    ("error", "code"), [(MemoryError("1 TiB"), "M032"), (ZeroDivisionError(), "M031")]
)
def test_what_stops_a_converter_has_a_code(monkeypatch, error, code):
    def stopped(layer):
        raise error

    monkeypatch.setattr("clew.frontends.onnx.importer.find", lambda *_: stopped)
    with pytest.raises(ModelError) as raised:
        load(model([node("Relu", ["x"], ["y"], "r")]))
    assert (raised.value.code, raised.value.layer) == (code, "r")
