"""Compiled models that are more than one static segment, and what they are called with."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import clew
import zoo
from clew.api.compiled_model import CompiledModel
from clew.support.errors import InputError

pytestmark = pytest.mark.usefixtures("shared_kernels")

Array = np.ndarray[Any, Any]
_FLOAT, _INT, _BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def _reference(path: Path, feed: dict[str, Array]) -> list[Array]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return [np.asarray(v) for v in session.run(None, feed)]


def _agrees(compiled: CompiledModel, path: Path, feed: dict[str, Array]) -> None:
    found = list(compiled.run(feed).values())
    for a, b in zip(found, _reference(path, feed), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        scale = float(np.abs(b).max(initial=1e-3))
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * scale)


@pytest.fixture
def save(tmp_path: Path) -> Any:
    """`save(nodes, inputs, outputs, constants)`: a model file."""

    def make(
        nodes: Sequence[onnx.NodeProto],
        inputs: dict[str, tuple[int, Sequence[int | str]]],
        outputs: dict[str, int],
        **constants: Array,
    ) -> Path:
        graph = helper.make_graph(
            nodes,
            "test",
            [helper.make_tensor_value_info(n, t, s) for n, (t, s) in inputs.items()],
            [helper.make_tensor_value_info(n, t, None) for n, t in outputs.items()],
            [onnx.numpy_helper.from_array(v, n) for n, v in constants.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
        model.ir_version = 10
        path = tmp_path / "model.onnx"
        onnx.save(model, path)
        return path

    return make


def _compile(path: Path, **options: Any) -> CompiledModel:
    return clew.compile(clew.load(path), threads=2, cache=False, **options)


# ---------------------------------------------------------------------------------- symbolic sizes


def test_a_transformer_runs_at_any_batch_and_sequence() -> None:
    path = zoo.path("bert_tiny_dynamic")
    compiled = _compile(path)
    for batch, sequence in ((1, 7), (2, 16), (3, 9), (1, 7)):
        _agrees(compiled, path, zoo.inputs("bert_tiny_dynamic", batch=batch, sequence=sequence))


def _named_sizes(save: Any) -> Path:
    """Rows normalized, projected, transposed: sizes batch and width are named."""
    return save(
        [
            helper.make_node("Softmax", ["x"], ["p"], axis=-1),
            helper.make_node("MatMul", ["p", "y"], ["product"]),
            helper.make_node("Transpose", ["product"], ["out"], perm=[1, 0]),
        ],
        {"x": (_FLOAT, ["batch", "width"]), "y": (_FLOAT, ["width", 5])},
        {"out": _FLOAT},
    )


def _sized(batch: int, width: int, other: int | None = None) -> dict[str, Array]:
    rng = np.random.default_rng(batch * 100 + width)
    x = rng.standard_normal((batch, width)).astype("f4")
    return {"x": x, "y": rng.standard_normal((other or width, 5)).astype("f4")}


def test_each_size_is_built_once_and_kept(save: Any) -> None:
    path = _named_sizes(save)
    compiled = _compile(path, diagnostics=clew.Diagnostics(guard=True))
    with pytest.raises(InputError) as caught:
        _ = compiled.build
    assert caught.value.code == "I044"
    builds = []
    for batch, width in ((1, 3), (4, 17), (2, 33), (1, 3)):
        _agrees(compiled, path, _sized(batch, width))
        builds.append(compiled.build)
    assert builds[0] is builds[3]
    assert len({id(b) for b in builds}) == 3


def test_kernels_and_trace_need_no_run(save: Any) -> None:
    compiled = _compile(_named_sizes(save))
    names = [k.name for k in compiled.kernels]
    loops = [k.loops for k in compiled.kernels]
    assert any("batch" in text for text in loops)
    assert compiled.kernels[0].code.sizes
    assert compiled.kernels[0].threads == compiled.options.threads
    trace = compiled.trace
    assert compiled.builds_made == 1
    for needs_sizes in (lambda: compiled.build, compiled.graph, lambda: compiled.kernels[0].build):
        with pytest.raises(InputError) as caught:
            needs_sizes()
        assert caught.value.code == "I044"
    for batch in (2, 3):
        compiled.run(_sized(batch, 5))
        assert compiled.trace is trace
        assert ([k.name for k in compiled.kernels], [k.loops for k in compiled.kernels]) == (
            names,
            loops,
        )
        assert not compiled.kernels[0].code.sizes
    assert compiled.builds_made == 1


def test_sizes_that_contradict_each_other_are_refused(save: Any) -> None:
    compiled = _compile(_named_sizes(save))
    with pytest.raises(InputError) as caught:
        compiled.run(_sized(2, 3, other=4))
    assert caught.value.code == "I042"
    assert "width" in caught.value.message


# ------------------------------------------------------------------------------------ control flow


@pytest.mark.parametrize("name", ["if_branches", "loop_recurrence"])
@pytest.mark.parametrize("seed", range(4))
def test_control_flow(name: str, seed: int) -> None:
    _agrees(_compile(zoo.path(name)), zoo.path(name), zoo.inputs(name, seed=seed))


def _branches(save: Any) -> Path:
    def branch(name: str, op: str) -> onnx.GraphProto:
        value = helper.make_tensor_value_info(f"{name}_out", _FLOAT, [4])
        return helper.make_graph([helper.make_node(op, ["x"], [f"{name}_out"])], name, [], [value])

    choose = helper.make_node(
        "If", ["c"], ["y"], then_branch=branch("then", "Exp"), else_branch=branch("other", "Neg")
    )
    return save(
        [choose, helper.make_node("Relu", ["y"], ["out"])],
        {"x": (_FLOAT, [4]), "c": (_BOOL, [])},
        {"out": _FLOAT},
    )


def test_both_branches_of_an_if(save: Any) -> None:
    path = _branches(save)
    compiled = _compile(path, diagnostics=clew.Diagnostics(guard=True))
    x = np.array([-1, 0, 1, 2], "f4")
    for cond in (True, False):
        _agrees(compiled, path, {"x": x, "c": np.array(cond)})


# ------------------------------------------------------ host operators and shapes that data decides


def test_what_nonzero_finds_goes_on_in_native_code(save: Any) -> None:
    path = save(
        [
            helper.make_node("Relu", ["x"], ["r"]),
            helper.make_node("NonZero", ["r"], ["at"]),
            helper.make_node("Transpose", ["at"], ["places"], perm=[1, 0]),
            helper.make_node("GatherND", ["x", "places"], ["found"]),
            helper.make_node("Exp", ["found"], ["e"]),
            helper.make_node("Mul", ["e", "two"], ["out"]),
        ],
        {"x": (_FLOAT, [3, 5])},
        {"out": _FLOAT, "r": _FLOAT},
        two=np.array(2, "f4"),
    )
    compiled = _compile(path)
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal((3, 5)).astype("f4")
        _agrees(compiled, path, {"x": x})
    _agrees(compiled, path, {"x": -np.ones((3, 5), "f4")})


def test_a_host_operator_between_segments(save: Any) -> None:
    path = save(
        [
            helper.make_node("Sigmoid", ["x"], ["s"]),
            helper.make_node("TopK", ["s", "k"], ["best", "places"], axis=-1),
            helper.make_node("Mul", ["best", "best"], ["out"]),
        ],
        {"x": (_FLOAT, [4, 9])},
        {"out": _FLOAT, "places": _INT},
        k=np.array([3]),
    )
    x = np.random.default_rng(0).standard_normal((4, 9)).astype("f4")
    _agrees(_compile(path, diagnostics=clew.Diagnostics(guard=True)), path, {"x": x})


def test_an_input_that_decides_a_shape(save: Any) -> None:
    path = save(
        [
            helper.make_node("Reshape", ["x", "shape"], ["y"]),
            helper.make_node("Softmax", ["y"], ["out"], axis=-1),
        ],
        {"x": (_FLOAT, [4, 6]), "shape": (_INT, [2])},
        {"out": _FLOAT},
    )
    compiled = _compile(path)
    x = np.random.default_rng(0).standard_normal((4, 6)).astype("f4")
    for shape in ([8, 3], [2, -1], [0, 6], [8, 3]):
        _agrees(compiled, path, {"x": x, "shape": np.array(shape)})


# ------------------------------------------------------------------------------------------- calls


def _static(save: Any) -> Path:
    return save(
        [
            helper.make_node("MatMul", ["x", "w"], ["m"]),
            helper.make_node("Add", ["m", "b"], ["out"]),
        ],
        {"x": (_FLOAT, [6, 8]), "b": (_FLOAT, [7])},
        {"out": _FLOAT},
        w=np.random.default_rng(0).standard_normal((8, 7)).astype("f4"),
    )


def _operands(seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((6, 8)).astype("f4"), rng.standard_normal(7).astype("f4")


def test_calls_from_several_threads_at_once(save: Any) -> None:
    compiled = _compile(_named_sizes(save))
    feeds = [_sized(1 + n % 3, 4 + n % 2) for n in range(24)]
    expected = [compiled.run(f)["out"] for f in feeds]
    wrong: list[int] = []

    def work(first: int) -> None:
        for n in range(first, len(feeds), 4):
            if not np.array_equal(compiled.run(feeds[n])["out"], expected[n]):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not wrong


def test_results_of_a_call_are_not_touched_by_the_next(save: Any) -> None:
    compiled = _compile(_static(save))
    first = compiled(*_operands(0))
    kept = first.copy()
    compiled(*_operands(1))
    assert np.array_equal(first, kept)


def test_inputs_need_not_be_contiguous_and_are_left_alone(save: Any) -> None:
    compiled = _compile(_static(save))
    x, b = _operands()
    expected = compiled(x, b)
    turned = np.asfortranarray(x)
    strided = np.repeat(b, 3)[::3]
    reverse = np.ascontiguousarray(x[::-1])[::-1]
    before = turned.copy()
    assert np.array_equal(compiled(turned, strided), expected)
    assert np.array_equal(compiled(reverse, b), expected)
    assert np.array_equal(turned, before)
    frozen = x.copy()
    frozen.flags.writeable = False
    assert np.array_equal(compiled(frozen, b), expected)


class _Foreign:
    """Another library's array: DLPack is all it offers."""

    def __init__(self, array: Array) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


def test_inputs_come_by_dlpack(save: Any) -> None:
    compiled = _compile(_static(save))
    x, b = _operands()
    assert np.array_equal(compiled(_Foreign(x), _Foreign(b)), compiled(x, b))


@pytest.mark.parametrize("number_of_inputs", [0, 1, 3])
def test_a_wrong_number_of_inputs(save: Any, number_of_inputs: int) -> None:
    with pytest.raises(InputError) as caught:
        _compile(_static(save))(*[_operands()[0]] * number_of_inputs)
    assert caught.value.code == "I040"
    assert "x, b" in caught.value.hint


def test_wrong_names(save: Any) -> None:
    x, b = _operands()
    with pytest.raises(InputError) as caught:
        _compile(_static(save)).run({"x": x, "bias": b})
    assert caught.value.code == "I041"
    assert "missing b" in caught.value.message
    assert "unknown bias" in caught.value.message


@pytest.mark.parametrize("shape", [(6, 9), (6,), (1, 6, 8), (48,), (8, 6)])
def test_a_wrong_shape(save: Any, shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError) as caught:
        _compile(_static(save))(np.zeros(shape, "f4"), _operands()[1])
    assert caught.value.code == "I042"
    assert "'x'" in caught.value.message


@pytest.mark.parametrize("dtype", ["f8", "f2", "i4", ">f8", "?"])
def test_a_wrong_dtype(save: Any, dtype: str) -> None:
    x, b = _operands()
    with pytest.raises(InputError) as caught:
        _compile(_static(save))(x.astype(dtype), b)
    assert caught.value.code == "I043"
    assert "float32" in caught.value.hint
