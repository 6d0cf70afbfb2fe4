from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

import zoo
from harness.flops import model_flops


def save(nodes: list[onnx.NodeProto], shapes: dict[str, list[int | str]], path: Path) -> Path:
    """Writes a graph whose inputs are `shapes`, but for `y`, its output."""
    values = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in shapes.items()
    }
    output = values.pop("y")
    graph = helper.make_graph(nodes, "g", list(values.values()), [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, path)
    return path


def test_convolution_counts_grouped_inner_products(tmp_path: Path) -> None:
    node = helper.make_node("Conv", ["x", "w"], ["y"], group=2, pads=[1, 1, 1, 1])
    shapes: dict[str, list[int | str]] = {
        "x": [1, 8, 10, 10],
        "w": [16, 4, 3, 3],
        "y": [1, 16, 10, 10],
    }
    assert model_flops(save([node], shapes, tmp_path / "m.onnx")) == 2 * 16 * 100 * 4 * 9


@pytest.mark.parametrize(("transposed", "shape"), [(0, [5, 7]), (1, [7, 5])])
def test_gemm_and_batched_matmul(tmp_path: Path, transposed: int, shape: list[int | str]) -> None:
    gemm = helper.make_node("Gemm", ["a", "b"], ["c"], transA=transposed)
    product = helper.make_node("MatMul", ["stack", "c"], ["y"])
    shapes: dict[str, list[int | str]] = {
        "a": shape,
        "b": [7, 3],
        "stack": [2, 4, 6, 5],
        "y": [2, 4, 6, 3],
    }
    expected = 2 * 5 * 3 * 7 + 2 * (2 * 4 * 6 * 3) * 5
    assert model_flops(save([gemm, product], shapes, tmp_path / "m.onnx")) == expected


def test_symbolic_shapes_are_refused(tmp_path: Path) -> None:
    node = helper.make_node("MatMul", ["a", "b"], ["y"])
    shapes: dict[str, list[int | str]] = {"a": ["n", 4], "b": [4, 4], "y": ["n", 4]}
    with pytest.raises(AssertionError, match="no static shape for a, y"):
        model_flops(save([node], shapes, tmp_path / "m.onnx"))


def test_known_network() -> None:
    """Squeezenet 1.1 has 0.35 G multiply-adds at 224 × 224, as its authors say."""
    assert model_flops(zoo.path("light_squeezenet")) == pytest.approx(2 * 0.35e9, rel=0.03)
