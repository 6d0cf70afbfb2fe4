"""The zoo's models are valid, run, and give outputs in which an error would show."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import zoo
from zoo import handmade

LIGHT_QUICK = ["light_shufflenet", "light_squeezenet"]


def run(model: Path | bytes, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    source = model if isinstance(model, bytes) else str(model)
    session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    return [np.asarray(value) for value in session.run(None, feed)]


@pytest.mark.parametrize("name", [*zoo.names("quick"), *LIGHT_QUICK])
def test_outputs_are_neither_flat_nor_saturated(name: str) -> None:
    outputs = run(zoo.path(name), zoo.inputs(name))
    assert outputs
    for value in outputs:
        assert np.isfinite(value).all()
        magnitude = np.abs(value).max()
        assert 1e-3 < magnitude < 1e3
        assert value.std() > 0.01 * magnitude
        assert np.abs(value).max() < 0.999 or value.min() < 0  # no one-hot distribution


@pytest.mark.parametrize("name", ["bert_tiny", "keyword_spotting", "light_shufflenet"])
def test_inputs_decide_the_outputs(name: str) -> None:
    first = run(zoo.path(name), zoo.inputs(name, seed=0))[0]
    other = run(zoo.path(name), zoo.inputs(name, seed=1))[0]
    again = run(zoo.path(name), zoo.inputs(name, seed=0))[0]
    assert np.array_equal(first, again)
    assert np.abs(first - other).max() > 0.05 * np.abs(first).max()


def test_light_weights_are_initializers_that_cannot_be_overridden() -> None:
    graph = onnx.load(zoo.path("light_squeezenet")).graph
    assert [value.name for value in graph.input] == ["data_0"]
    assert all(node.op_type != "ConstantOfShape" for node in graph.node)
    used = {name for node in graph.node for name in node.input}
    assert {tensor.name for tensor in graph.initializer} <= used
    weights = [onnx.numpy_helper.to_array(t) for t in graph.initializer if len(t.dims) == 4]
    assert all(weight.std() > 0 for weight in weights)


@pytest.mark.parametrize(("batch", "sequence"), [(1, 5), (3, 40)])
def test_symbolic_dimensions_take_any_size(batch: int, sequence: int) -> None:
    name = "bert_tiny_dynamic"
    assert zoo.dims(name).keys() == {"batch", "sequence"}
    feed = zoo.inputs(name, batch=batch, sequence=sequence)
    states, pooled = run(zoo.path(name), feed)
    assert states.shape == (batch, sequence, 128)
    assert pooled.shape == (batch, 128)


def test_both_branches_of_if_are_reached_and_differ() -> None:
    x = zoo.inputs("if_branches")["x"]
    weight = onnx.numpy_helper.to_array(onnx.load(zoo.path("if_branches")).graph.initializer[0])
    assert (x @ weight).mean() != 0  # so x and -x take different branches
    results = [run(zoo.path("if_branches"), {"x": sign * x})[0] for sign in (1, -1)]
    assert np.abs(results[0] - results[1]).max() > 1e-3


def test_loop_ends_by_trip_count() -> None:
    feed = zoo.inputs("loop_recurrence")
    for trips in (1, 3):
        feed["trips"] = np.array(trips)
        _, means = run(zoo.path("loop_recurrence"), feed)
        assert means.shape == (trips,)


def test_loop_ends_by_its_condition() -> None:
    feed = zoo.inputs("loop_recurrence")
    feed["trips"] = np.array(10_000)
    _, means = run(zoo.path("loop_recurrence"), feed)
    assert 1 < len(means) < 10_000


def test_chain_has_the_length_asked_for_and_stays_bounded() -> None:
    model = handmade.chain(200)
    assert len(model.graph.node) == 200
    (y,) = run(model.SerializeToString(), {"x": np.linspace(-2, 2, 64, dtype=np.float32)[None]})
    assert 0 < np.abs(y).max() < 10


def test_unknown_dimension_is_refused() -> None:
    with pytest.raises(KeyError, match="no dimension named length"):
        zoo.inputs("bert_tiny_dynamic", length=3)
