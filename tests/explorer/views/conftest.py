"""Sessions of small models, and models with branches and loops."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import clew
import zoo
from clew.explorer.session import Session

sys.path.insert(0, str(Path(__file__).parent))


def session_of(path: Path, **options: object) -> Session:
    """Returns a session of a model file."""
    compiled = clew.compile(path, **options)  # type: ignore[arg-type]
    return Session(compiled, model=path.name, path=path)


@pytest.fixture(scope="session")
def zoo_session() -> Callable[[str], Session]:
    """Sessions of models of the zoo, each made once."""
    known: dict[str, Session] = {}

    def get(name: str) -> Session:
        if name not in known:
            known[name] = session_of(Path(zoo.path(name)))
        return known[name]

    return get


@pytest.fixture(scope="session")
def control(tmp_path_factory: pytest.TempPathFactory) -> Session:
    """A session of a model with a branch, a loop and a function, and layers that go at import."""
    path = tmp_path_factory.mktemp("control") / "control.onnx"
    onnx.save(control_model(), path)
    return session_of(path)


def control_model() -> onnx.ModelProto:
    """Returns `branch` (If), `known` (If of a constant), `turns` (Loop) and `twice` (function)."""
    node = helper.make_node
    weight = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
    then = helper.make_graph(
        [node("Relu", ["h"], ["a"], name="then/relu"), node("Exp", ["a"], ["b"])],
        "then", [], [_value("b", [4, 8])],
    )  # fmt: skip
    other = helper.make_graph(
        [node("Tanh", ["h"], ["t"], name="else/tanh")], "else", [], [_value("t", [4, 8])]
    )
    taken = helper.make_graph(
        [node("Neg", ["chosen"], ["n"], name="neg")], "taken", [], [_value("n", [4, 8])]
    )
    left = helper.make_graph(
        [node("Abs", ["chosen"], ["m"], name="abs")], "left", [], [_value("m", [4, 8])]
    )
    body = helper.make_graph(
        [
            node("MatMul", ["state", "w"], ["moved"], name="body/matmul"),
            node("Sigmoid", ["moved"], ["next"], name="body/sigmoid"),
            node("Identity", ["go"], ["go_on"], name="body/go"),
        ],
        "body",
        [_value("i", [], TensorProto.INT64), _value("go", [], TensorProto.BOOL),
         _value("state", [4, 8])],
        [_value("go_on", [], TensorProto.BOOL), _value("next", [4, 8])],
    )  # fmt: skip
    twice = helper.make_function(
        "own", "twice", ["v"], ["two"],
        [node("Add", ["v", "v"], ["two"], name="sum")], [helper.make_opsetid("", 20)],
    )  # fmt: skip
    graph = helper.make_graph(
        [
            node("MatMul", ["x", "w"], ["h"], name="block/project"),
            node("Shape", ["h"], ["size"], name="block/size"),
            node("ReduceMean", ["h"], ["mean"], name="block/mean", keepdims=0),
            node("Greater", ["mean", "zero"], ["positive"], name="block/positive"),
            node("If", ["positive"], ["chosen"], name="branch", then_branch=then,
                 else_branch=other),
            node("If", ["yes"], ["kept"], name="known", then_branch=taken, else_branch=left),
            node("Loop", ["three", "", "kept"], ["last"], name="turns", body=body),
            node("twice", ["last"], ["doubled"], name="call", domain="own"),
            node("Reshape", ["doubled", "size"], ["y"], name="shape"),
        ],
        "control",
        [_value("x", [4, 8])],
        [_value("y", [4, 8])],
        [
            numpy_helper.from_array(weight, "w"),
            numpy_helper.from_array(np.float32(0), "zero"),
            numpy_helper.from_array(np.array(True), "yes"),
            numpy_helper.from_array(np.int64(3), "three"),
        ],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("own", 1)]
    model = helper.make_model(graph, opset_imports=opsets, functions=[twice], ir_version=10)
    return model


def _value(name: str, shape: list[int], dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)
