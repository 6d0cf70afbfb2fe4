"""Files read with their large parameters apart: the same model, aligned, one copy."""

from __future__ import annotations

import random

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from clew.frontends.onnx import load
from clew.frontends.onnx.file.slim import read_slim
from clew.ir.expr import Constant
from clew.ir.visit import post_order
from clew.support.errors import ClewError


def made():
    draw = np.random.default_rng(0)
    weights = {
        "large": draw.standard_normal((100, 40)).astype(np.float32),
        "small": draw.standard_normal(40).astype(np.float32),
        "half": draw.standard_normal((40, 80)).astype(np.float16),
        "odd": draw.integers(-128, 127, (5, 1001), dtype=np.int8),
    }
    names = list(weights)
    nodes = [
        helper.make_node("Identity", [name], [f"{name}_out"], doc_string="x" * 300)
        for name in names
    ]
    outputs = [helper.make_tensor_value_info(f"{n}_out", 0, None) for n in names]
    tensors = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "g", [], outputs, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return model, weights


def constants(module):
    return {n.name: n.data for n in post_order(module.main) if isinstance(n, Constant)}


def slim(path):
    with path.open("rb") as file:
        return read_slim(file.fileno(), path.stat().st_size, path.name)


@pytest.fixture
def path(tmp_path):
    found = tmp_path / "model.onnx"
    found.write_bytes(made()[0].SerializeToString())
    return found


def test_large_parameters_are_read_apart_and_aligned(path):
    found = slim(path)
    assert sorted(found.raw) == [0, 2, 3]
    assert len(found.data) < path.stat().st_size - 20_000
    assert all(part.read().ctypes.data % 64 == 0 for part in found.raw.values())


def test_the_model_is_the_same(path):
    _, weights = made()
    for source in (path, path.read_bytes()):
        found = constants(load(source))
        assert set(found) == set(weights)
        for name, want in weights.items():
            assert found[name].dtype == want.dtype
            np.testing.assert_array_equal(found[name], want)
            assert not found[name].flags.writeable


def big(path, value):
    """Writes a model whose one parameter is large enough to be read only while it is used."""
    weight = numpy_helper.from_array(np.full((256, 256), value, np.float32), "w")
    node = helper.make_node("Add", ["x", "w"], ["y"])
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [256, 256]) for n in "xy"]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], [weight])
    path.write_bytes(helper.make_model(graph).SerializeToString())


def test_a_large_parameter_is_read_while_it_is_used(tmp_path):
    path = tmp_path / "big.onnx"
    big(path, 3.0)
    (weight,) = [n for n in post_order(load(path).main) if isinstance(n, Constant)]
    assert weight.is_lazy
    assert weight.tensor.concrete == (256, 256)
    assert (weight.data == 3.0).all()
    # A new file of that name is another file; the one that was loaded stays readable.
    big(tmp_path / "new.onnx", 4.0)
    (tmp_path / "new.onnx").replace(path)
    assert (weight.data == 3.0).all()


def test_a_file_written_over_is_noticed(tmp_path):
    path = tmp_path / "big.onnx"
    big(path, 3.0)
    (weight,) = [n for n in post_order(load(path).main) if isinstance(n, Constant)]
    with path.open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(ClewError) as caught:
        _ = weight.data
    assert caught.value.code == "M013"
    assert "big.onnx" in caught.value.message


def test_wrong_size_is_found(tmp_path):
    model, _ = made()
    model.graph.initializer[0].dims[0] = 99
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ClewError) as caught:
        load(path)
    assert caught.value.code == "M006"


def test_two_graph_fields_are_left_to_protobuf(path):
    data = path.read_bytes()
    # protobuf merges a message that comes twice: here with an empty graph (field 7, no bytes).
    path.write_bytes(data + b"\x3a\x00")
    assert not slim(path).raw
    assert set(constants(load(path))) == set(made()[1])


def loads(source):
    try:
        load(source)
    except ClewError:
        return False
    return True


def test_damage_is_found_as_in_one_piece(path):
    data = path.read_bytes()
    draw = random.Random(3)
    outcomes = set()
    for n in range(150):
        damaged = bytearray(data)
        damaged[draw.randrange(len(data))] = draw.randrange(256)
        cut = bytes(damaged[: draw.randrange(len(data) // 2, len(data) + 1)])
        given = bytes(damaged) if n % 3 == 0 else cut
        path.write_bytes(given)
        found = loads(path)
        assert found == loads(given)
        outcomes.add(found)
    assert outcomes == {True, False}


def test_data_type_is_checked():
    tensor = TensorProto(name="w", data_type=99, raw_data=b"\0" * 4)
    tensor.dims.append(1)
    output = helper.make_tensor_value_info("y", 0, None)
    nodes = [helper.make_node("Identity", ["w"], ["y"])]
    model = helper.make_model(helper.make_graph(nodes, "g", [], [output], [tensor]))
    model.ir_version = 10
    with pytest.raises(ClewError) as caught:
        load(model)
    assert caught.value.code == "U004"
