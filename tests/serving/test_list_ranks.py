"""Ranks of the elements of lists, taken from a call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto
from onnx import helper as H

import clew
from clew.ir.expr import Call
from clew.ir.visit import all_nodes

F = TensorProto.FLOAT
_value, _list = H.make_tensor_value_info, H.make_tensor_sequence_value_info


def _model(nodes: list[Any], inputs: list[Any], outputs: list[Any]) -> ModelProto:
    graph = H.make_graph(nodes, "lists", inputs, outputs)
    return H.make_model(graph, opset_imports=[H.make_opsetid("", 18)], ir_version=9)


def _map() -> ModelProto:
    """The squares of a list's elements, of any rank."""
    body = H.make_graph(
        [H.make_node("Mul", ["a", "a"], ["c"])], "b", [_value("a", F, None)], [_value("c", F, None)]
    )
    node = H.make_node("SequenceMap", ["s"], ["y"], body=body)
    return _model([node], [_list("s", F, None)], [_list("y", F, None)])


def _made(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    draw = np.random.default_rng(len(shapes)).standard_normal
    return [np.asarray(draw(shape), np.float32) for shape in shapes]


def _check(found: list[np.ndarray], given: list[np.ndarray]) -> None:
    assert len(found) == len(given)
    for one, x in zip(found, given, strict=True):
        np.testing.assert_array_equal(one, x * x)


def _waits(module: clew.Module) -> bool:
    """Whether a layer is imported when it runs."""
    return any(isinstance(n, Call) and n.op_name == "onnx.layer" for n in all_nodes(module.main))


def _runs_late(model: clew.CompiledModel) -> bool:
    """Whether the build of the latest call imports a layer when it runs."""
    return "onnx.layer" in str(model.trace.stages[-1].module)


_RANKED = [((2,), (3,)), ((2, 1), (3, 4)), ((),), ((0,), (2,))]
_OTHERS: list[tuple[tuple[int, ...], ...]] = [((2, 1), (3,)), ()]


@pytest.mark.parametrize("shapes", _RANKED)
def test_the_rank_of_a_call_settles_the_body(shapes: tuple[tuple[int, ...], ...]) -> None:
    model = clew.compile(_map())
    given = _made(*shapes)
    served = model.served_for([given])
    assert f"s of rank {len(shapes[0])}" in served.provider
    _check(model(given), given)
    assert not _runs_late(model)


@pytest.mark.parametrize("shapes", _OTHERS)
def test_lists_without_a_common_rank_use_late_layers(shapes: tuple[tuple[int, ...], ...]) -> None:
    model = clew.compile(_map())
    served = model.served_for([_made(*shapes)])
    assert "of rank" not in served.provider
    _check(model(_made(*shapes)), _made(*shapes))
    assert _runs_late(model)


def test_ranks_alternate_on_one_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEW_CACHE_DIR", str(tmp_path))
    model = clew.compile(_map())
    for shapes in (*_RANKED, *_OTHERS, *_RANKED, *_OTHERS):
        given = _made(*shapes)
        _check(model(given), given)
    assert model.builds_made == 4  # any ranks, and ranks 0 to 2


def test_a_model_is_explained_and_saved_before_a_call(tmp_path: Path) -> None:
    model = clew.compile(_map())
    assert model.kernels
    model.save(tmp_path / "any.clew")
    saved = clew.load_compiled(tmp_path / "any.clew")
    for shapes in (*_RANKED, *_OTHERS):
        _check(saved(_made(*shapes)), _made(*shapes))


def test_a_saved_model_has_the_ranks_that_calls_had(tmp_path: Path) -> None:
    model = clew.compile(_map())
    model(_made((2,)))
    model.save(tmp_path / "one.clew")
    saved = clew.load_compiled(tmp_path / "one.clew")
    for shapes in (*_RANKED, *_OTHERS):
        _check(saved(_made(*shapes)), _made(*shapes))
    assert "of rank 1" in saved.served_for([_made((2,))]).provider
    assert "of rank" not in saved.served_for([_made((2, 2))]).provider


def test_the_stored_build_leaves_known_ranks_to_variants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEW_CACHE_DIR", str(tmp_path))
    clew.compile(_map())
    model = clew.compile(_map())
    assert model.from_cache
    assert model.kernels
    assert "of rank 1" in model.served_for([_made((2,))]).provider
    assert model.served_for([_made((2,), (2, 2))]).provider == "the stored build"
    for shapes in (*_RANKED, *_OTHERS):
        _check(model(_made(*shapes)), _made(*shapes))


def test_free_sizes_beside_lists_keep_one_build_for_each_rank() -> None:
    index = H.make_node("Constant", [], ["i"], value_int=0)
    nodes = [index, H.make_node("SequenceAt", ["s", "i"], ["e"])]
    nodes.append(H.make_node("Add", ["e", "x"], ["y"]))
    inputs = [_list("s", F, None), _value("x", F, ["n"])]
    model = clew.compile(_model(nodes, inputs, [_value("y", F, None)]))
    for size in (2, 3, 5):
        (first,) = given = _made((4, size))
        x = np.full(size, 2, np.float32)
        np.testing.assert_array_equal(model(given, x), first + x)
        served = model.served_for([given, x])
        assert served.provider == "the variant with s of rank 2: the build for all sizes"


def test_an_optional_list_gives_its_rank() -> None:
    element = H.make_sequence_type_proto(H.make_tensor_type_proto(F, None))
    optional = H.make_value_info("o", H.make_optional_type_proto(element))
    body = H.make_graph(
        [H.make_node("Neg", ["a"], ["c"])], "b", [_value("a", F, None)], [_value("c", F, None)]
    )
    nodes = [H.make_node("OptionalGetElement", ["o"], ["s"])]
    nodes.append(H.make_node("SequenceMap", ["s"], ["y"], body=body))
    model = clew.compile(_model(nodes, [optional], [_list("y", F, None)]))
    for shapes in (*_RANKED, *_OTHERS):
        given = _made(*shapes)
        for found, x in zip(model(given), given, strict=True):
            np.testing.assert_array_equal(found, -x)
    assert "o of rank 1" in model.served_for([_made((2,))]).provider


def test_a_given_shape_of_elements_settles_the_body() -> None:
    module = clew.load(_map(), inputs={"s": ["n", 3]})
    assert not _waits(module)
    model = clew.compile(module)
    given = _made((2, 3), (1, 3))
    _check(model(given), given)
    with pytest.raises(clew.ClewError) as caught:
        model(_made((2, 4)))
    assert caught.value.code == "I042"
