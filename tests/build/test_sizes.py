"""`clew.compile(sizes=...)`: ranges are kept by calls, fixed sizes are built at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import clew
import zoo
from clew import frontends
from clew.ir.module import Module
from clew.runtime.container import read_container, write_container
from clew.support.errors import ClewError
from clew.support.size_ranges import SizeRange

pytestmark = pytest.mark.usefixtures("shared_kernels")

NAME = "bert_tiny_dynamic"


def compiled(**options: Any) -> clew.CompiledModel:
    return clew.compile(zoo.path(NAME), threads=1, **options)


def inputs(batch: int, sequence: int) -> dict[str, Any]:
    found: dict[str, Any] = zoo.inputs(NAME, batch=batch, sequence=sequence)
    return found


def refusal(call: Any, *args: Any, **named: Any) -> ClewError:
    with pytest.raises(ClewError) as caught:
        call(*args, **named)
    return caught.value


def halves() -> bytes:
    """A model that splits an axis in two, which the importer does for a known size only."""
    nodes = [
        helper.make_node("Split", ["x"], ["a", "b"], axis=1, num_outputs=2, name="halves"),
        helper.make_node("Add", ["a", "b"], ["y"], name="sum"),
    ]
    ends = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch size", "n"]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    opsets = [helper.make_opsetid("", 18)]
    message: bytes = helper.make_model(graph, opset_imports=opsets).SerializeToString()
    return message


def test_ranges_and_likely_sizes() -> None:
    model = compiled(sizes={"sequence": (4, 16), "batch": [1, 8]}, cache=False)
    assert dict(model.sizes) == {
        "batch": SizeRange(1, None, (1, 8)),
        "sequence": SizeRange(4, 16, (), empty=False),
    }
    expected = compiled().run(inputs(3, 5))
    for name, value in model.run(inputs(3, 5)).items():
        np.testing.assert_array_equal(value, expected[name])
    for sequence in (3, 17):
        for call in (model.run, model.profile, model.build_for, model.time_kernels):
            error = refusal(call, inputs(1, sequence))
            assert error.code == "I317"
            assert error.message == (
                f"input 'input_ids': sequence is {sequence}, but the model was compiled for 4 to 16"
            )
            assert f"input_ids [1, {sequence}] (declared [batch, sequence])" in error.inputs
    assert model.builds_made == 1
    again = clew.compile(zoo.path(NAME), sizes=model.sizes, cache=False)
    assert again.sizes == model.sizes


@pytest.mark.parametrize("source", ["file", "module"])
def test_fixed_sizes_are_built_at_once(source: str) -> None:
    path = zoo.path(NAME)
    model = clew.load(path) if source == "module" else path
    fixed = clew.compile(model, sizes={"sequence": 5, "batch": (3, 3)}, threads=1)
    assert fixed.is_built
    assert not fixed.is_symbolic
    assert not fixed.sizes
    assert [spec.shape for spec in fixed.inputs] == [(3, 5), (3, 5)]
    expected = compiled().run(inputs(3, 5))
    for name, value in fixed.run(inputs(3, 5)).items():
        np.testing.assert_array_equal(value, expected[name])
    assert refusal(fixed.run, inputs(3, 6)).code == "I042"
    layer = next(node.layers[0] for node in fixed.kernels[0].calls if node.layers)
    assert fixed.trace.layer(layer)
    assert clew.compile(model, sizes={"sequence": 5, "batch": 3}, threads=1).from_cache


def test_one_size_is_fixed_and_the_other_free() -> None:
    model = compiled(sizes={"batch": 2, "sequence": (1, 32)})
    assert [spec.shape for spec in model.inputs] == [(2, "sequence"), (2, "sequence")]
    assert list(model.sizes) == ["sequence"]
    reference = compiled()
    for sequence in (5, 9):
        found, expected = model.run(inputs(2, sequence)), reference.run(inputs(2, sequence))
        for name, value in found.items():
            np.testing.assert_array_equal(value, expected[name])
    assert refusal(model.run, inputs(2, 33)).code == "I317"


def test_sizes_of_a_model_that_is_imported_when_it_is_called() -> None:
    x = np.arange(24, dtype="f4").reshape(3, 8)
    free = clew.compile(halves(), sizes={"n": (2, 8), "batch_size": [3]}, threads=1)
    assert not isinstance(frontends.load_or_defer(halves()), Module)
    np.testing.assert_array_equal(free(x), x[:, :4] + x[:, 4:])
    error = refusal(free, np.ones((3, 10), "f4"))
    assert (error.code, error.message) == (
        "I317",
        "input 'x': n is 10, but the model was compiled for 2 to 8",
    )
    half = clew.compile(halves(), sizes={"n": 8, "batch_size": (1, 3)}, threads=1)
    assert isinstance(half.module, Module)
    assert half.inputs[0].shape == ("batch_size", 8)
    assert refusal(half, np.ones((4, 8), "f4")).code == "I317"
    np.testing.assert_array_equal(half(x), free(x))
    fixed = clew.compile(halves(), sizes={"n": 8, "batch_size": 3}, threads=1)
    assert fixed.is_built
    np.testing.assert_array_equal(fixed(x), free(x))


def test_size_zero_has_its_own_build() -> None:
    empty = np.zeros((0, 8), "f4")
    for given in ({"batch_size": [4]}, {"batch_size": (0, 4)}, {"batch_size": 0, "n": 8}):
        assert clew.compile(halves(), sizes=given, threads=1)(empty).shape == (0, 4)
    model = clew.compile(halves(), sizes={"batch_size": (1, 4)}, threads=1)
    assert refusal(model, empty).code == "I317"


def test_names_of_no_free_dimension() -> None:
    error = refusal(compiled, sizes={"seqence": (1, 4)})
    assert (error.code, error.message) == ("I316", "the model has no free dimension 'seqence'")
    assert error.hint == "did you mean sequence?"
    assert refusal(compiled, sizes={"x": 4}).hint == (
        "the free dimensions are batch, sequence; the inputs are input_ids [batch, sequence], "
        "attention_mask [batch, sequence]"
    )


def test_names_that_given_shapes_have_fixed() -> None:
    shapes = {"input_ids": [1, 16]}
    for model in (
        lambda: compiled(inputs=shapes, sizes={"batch": (1, 8)}),
        lambda: clew.compile(clew.load(zoo.path(NAME), inputs=shapes), sizes={"batch": 1}),
    ):
        error = refusal(model)
        assert (error.code, error.message) == ("I316", "the model has no free dimension 'batch'")
        assert error.hint == (
            "all dimensions are fixed; the inputs are input_ids [1, 16], attention_mask [1, 16]"
        )


def test_wrong_forms_are_refused_before_the_model_is_built() -> None:
    error = refusal(compiled, sizes={"batch": (8, 1)})
    assert (error.code, error.message) == (
        "I315",
        "the sizes given for 'batch': the range from 8 to 1 has no sizes",
    )


def test_sizes_that_an_operator_does_not_accept_name_its_layer() -> None:
    error = refusal(clew.compile, clew.load(halves(), inputs={"x": ["b", 8]}), sizes={"b": 1 << 60})
    assert error.code[0] in "MCT"


def test_saved_models_keep_the_ranges(tmp_path: Path) -> None:
    model = compiled(sizes={"sequence": (4, 16), "batch": [1]})
    model.run(inputs(1, 8))
    file = tmp_path / "model.clew"
    model.save(file)
    loaded = clew.load_compiled(file, threads=1)
    assert loaded.sizes == model.sizes
    for name, value in model.run(inputs(1, 8)).items():
        np.testing.assert_array_equal(loaded.run(inputs(1, 8))[name], value)
    error = refusal(loaded.run, inputs(1, 17))
    assert error.code == "I317"
    assert "sequence is 17, but the model was compiled for 4 to 16" in error.message
    for name, value in model.run(inputs(2, 9)).items():  # sizes of no run before it was saved
        np.testing.assert_array_equal(loaded.run(inputs(2, 9))[name], value)


def test_saved_models_without_ranges_and_with_damaged_ones(tmp_path: Path) -> None:
    model = compiled()
    model.run(inputs(1, 8))
    file = tmp_path / "model.clew"
    model.save(file)
    container = read_container(file)
    assert "sizes" not in container.text
    assert not clew.load_compiled(file).sizes
    text = {k: v for k, v in container.text.items() if k != "blobs"}
    blobs = [np.frombuffer(bytes(b), np.uint8) for b in container.blobs]
    write_container(file, {**text, "sizes": {"sequence": {"low": 1}}}, blobs)
    assert refusal(clew.load_compiled, file).code == "C055"


def test_recompiled_models_keep_the_ranges() -> None:
    text = (
        "clew 1\n"
        'def @main(%x: f32[n, 8]) -> (f32[n, 8],) with outputs=["y"] {\n'
        "  %0 = exp(%x)\n  %1 = (%0,)\n  return %1\n}\n"
    )
    model = clew.compile(clew.parse(text), sizes={"n": (4, 16)}, threads=1)
    again = model.recompiled(opt_level=0)
    assert again.sizes == model.sizes == {"n": SizeRange(4, 16, (), empty=False)}
    assert refusal(again.run, {"x": np.ones((20, 8), "f4")}).code == "I317"
