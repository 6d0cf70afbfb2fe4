"""Quantized ONNX files: clew computes the same from them, and ONNX Runtime nearly the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from small_models import convolutional, drawn, model, node

import clew
from clew.quantization import Quantized, Scheme
from clew.support.errors import InputError

# ONNX Runtime's kernels for AVX2 add pairs of products in 16 bits, which 8-bit weights overflow.
SEVEN = Scheme(weight_bits=7)
NORM = {
    "gamma": 1 + drawn(8, seed=1, scale=0.2),
    "beta": drawn(8, seed=2, scale=0.2),
    "mean": drawn(8, seed=3, scale=0.2),
    "variance": 1 + drawn(8, seed=4, scale=0.1) ** 2,
}
W, V = drawn(8, 6, 3, 3, scale=0.15), drawn(16, 8, scale=0.25)
B = drawn(8, seed=7, scale=0.2)
PADS = {"pads": [1, 1, 1, 1]}


def image(nodes: Any, constants: dict[str, Any], opset: int = 17) -> ModelProto:
    return model(nodes, {"x": [1, 6, 5, 5]}, {"y": [1, 8, 5, 5]}, constants, opset)


def rows(nodes: Any, constants: dict[str, Any], opset: int = 17) -> ModelProto:
    return model(nodes, {"x": [4, 16]}, {"y": [4, 8]}, constants, opset)


def norm(value: str, result: str = "y") -> Any:
    return node("BatchNormalization", [value, *NORM], [result], name="norm")


def gemm(**attrs: Any) -> ModelProto:
    w = V.T.copy() if attrs.get("transB") else V
    nodes = [node("Gemm", ["x", "w", "b"], ["y"], name="fc", **attrs)]
    return rows(nodes, {"w": w, "b": B})


def two_readers() -> ModelProto:
    """Two products of one value, of which the graph's last is first in the file."""
    nodes = [
        node("MatMul", ["x", "v"], ["p"], name="right"),
        node("MatMul", ["x", "w"], ["q"], name="left"),
        node("Add", ["q", "p"], ["y"], name="sum"),
    ]
    return rows(nodes, {"w": V, "v": V[::-1].copy()})


def tied() -> ModelProto:
    """Two products with one weight."""
    nodes = [
        node("MatMul", ["x", "w"], ["h"], name="one"),
        node("Relu", ["h"], ["r"], name="act"),
        node("MatMul", ["r", "w"], ["y"], name="two"),
    ]
    return model(nodes, {"x": [4, 8]}, {"y": [4, 8]}, {"w": drawn(8, 8, scale=0.35)})


def unnamed(opset: int) -> ModelProto:
    """Nodes without names."""
    nodes = [
        node("Conv", ["x", "w"], ["a"], **PADS),
        node("BatchNormalization", ["a", *NORM], ["n"]),
        node("Relu", ["n"], ["r"]),
        node("Conv", ["r", "u", "b"], ["y"], **PADS),
    ]
    constants = {"w": W, "u": drawn(8, 8, 3, 3, scale=0.15), "b": B, **NORM}
    return image(nodes, constants, opset)


def uneven(between: str = "", product: str = "Conv") -> ModelProto:
    """Two products; the channels of the value between them are of very different sizes, and so are
    those of the second weight.
    """
    nodes = [node(product, ["x", "u"], ["h"], name="one")]
    value = "h"
    if between:
        nodes.append(node(between, ["h"], ["r"], name="act"))
        value = "r"
    if product == "Conv":
        by = np.geomspace(0.02, 50, 6, dtype="f").reshape(6, 1, 1)
        nodes.append(node("Conv", [value, "w"], ["y"], name="two", **PADS))
        u = drawn(6, 6, 1, 1, scale=0.4) * by.reshape(6, 1, 1, 1)
        return image(nodes, {"u": u, "w": W / by})
    by = np.geomspace(0.02, 50, 16, dtype="f")
    nodes.append(node(product, [value, "w"], ["y"], name="two"))
    return rows(nodes, {"u": drawn(16, 16, scale=0.25) * by, "w": V / by[:, None]})


def product_of_inputs() -> ModelProto:
    """A weight that is quantized, and a bias that a call brings."""
    nodes = [node("Gemm", ["x", "w", "b"], ["y"], name="fc")]
    network = rows(nodes, {"w": V})
    network.graph.input.append(helper.make_tensor_value_info("b", TensorProto.FLOAT, [8]))
    return network


CASES: dict[str, Callable[[], ModelProto]] = {
    "conv": lambda: image([node("Conv", ["x", "w"], ["y"], name="c", **PADS)], {"w": W}),
    "conv with bias": lambda: image(
        [node("Conv", ["x", "w", "b"], ["y"], name="c", **PADS)], {"w": W, "b": B}
    ),
    "conv and norm": lambda: image(
        [node("Conv", ["x", "w", "b"], ["a"], name="c", **PADS), norm("a")],
        {"w": W, "b": B, **NORM},
    ),
    "conv, sum and norm": lambda: image(
        [
            node("Conv", ["x", "w"], ["a"], name="c", **PADS),
            node("Add", ["a", "b"], ["s"], name="bias"),
            norm("s"),
        ],
        {"w": W, "b": B.reshape(8, 1, 1), **NORM},
    ),
    "conv and sum": lambda: image(
        [
            node("Conv", ["x", "w"], ["a"], name="c", **PADS),
            node("Add", ["b", "a"], ["y"], name="bias"),
        ],
        {"w": W, "b": B.reshape(8, 1, 1)},
    ),
    "grouped": lambda: image(
        [node("Conv", ["x", "w", "b"], ["y"], name="c", group=2, **PADS)],
        {"w": W[:, :3].copy(), "b": B},
    ),
    "depthwise": lambda: model(
        [node("Conv", ["x", "w"], ["y"], name="c", group=6, **PADS)],
        {"x": [1, 6, 5, 5]}, {"y": [1, 6, 5, 5]}, {"w": W[:6, :1].copy()},
    ),
    "line": lambda: model(
        [node("Conv", ["x", "w", "b"], ["y"], name="c")],
        {"x": [1, 6, 9]}, {"y": [1, 8, 7]}, {"w": W[:, :, 0].copy(), "b": B},
    ),
    "matmul": lambda: rows([node("MatMul", ["x", "w"], ["y"], name="fc")], {"w": V}),
    "matmul and sum": lambda: rows(
        [
            node("MatMul", ["x", "w"], ["a"], name="fc"),
            node("Add", ["a", "b"], ["y"], name="bias"),
        ],
        {"w": V, "b": B},
    ),
    "gemm": lambda: gemm(transB=0),
    "gemm of columns": lambda: gemm(transB=1),
    "gemm with factors": lambda: gemm(alpha=0.5, beta=2.0),
    "gemm with a factor": lambda: gemm(alpha=0.5),
    "gemm and norm": lambda: rows(
        [node("Gemm", ["x", "w"], ["a"], name="fc"), norm("a")], {"w": V, **NORM}
    ),
    "gemm with a bias of a call": product_of_inputs,
    "two readers": two_readers,
    "tied weights": tied,
    "unnamed, opset 9": lambda: unnamed(9),
    "unnamed, opset 20": lambda: unnamed(20),
    "uneven convs": uneven,
    "uneven convs, nothing between": lambda: uneven("Identity"),
    "uneven convs, relu": lambda: uneven("Relu"),
    "uneven matmuls": lambda: uneven("", "MatMul"),
    "network": convolutional,
}  # fmt: skip
# What is added behind a product in floats may be rounded twice in one form, and once in the other.
ROUNDED = ("gemm with factors", "gemm with a factor", "gemm with a bias of a call")


def samples(network: ModelProto, count: int = 4) -> list[dict[str, Any]]:
    weights = {t.name for t in network.graph.initializer}
    found = []
    for n in range(count):
        shapes = {
            i.name: [d.dim_value for d in i.type.tensor_type.shape.dim]
            for i in network.graph.input
            if i.name not in weights
        }
        found.append({name: drawn(*shape, seed=20 + n) for name, shape in shapes.items()})
    return found


def ran(found: Any, feed: dict[str, Any]) -> Any:
    (value,) = clew.compile(found, threads=1).run(feed).values()
    return value


def in_onnx_runtime(path: Path, feed: dict[str, Any]) -> Any:
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(str(path), options).run(None, feed)[0]


@pytest.mark.parametrize("case", CASES)
def test_files_compute_what_modules_do(case: str, tmp_path: Path) -> None:
    network = CASES[case]()
    data = samples(network)
    q = clew.quantize(network, data, scheme=SEVEN, threads=1)
    assert q.parameters
    if "uneven" in case:
        assert q.recipe.layers[1].numbers, "the operand has a step per channel"
    path = tmp_path / "int8.onnx"
    q.save(path)
    onnx.checker.check_model(path, full_check=True)
    wanted, found = ran(q.module, data[0]), ran(clew.load(path), data[0])
    size = np.abs(wanted).max()
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-6 * size * (case in ROUNDED))
    exact = ran(q.original, data[0])
    assert 0 < np.abs(found - exact).max() < 0.05 * size
    theirs = in_onnx_runtime(path, data[0])
    # A sum on the border of two steps of the next operand may fall to either side.
    assert np.abs(theirs - wanted).max() < 0.02 * size


def test_steps_of_a_transposed_operand(tmp_path: Path) -> None:
    by = np.geomspace(0.02, 50, 16, dtype="f").reshape(16, 1)
    nodes = [
        node("Mul", ["x", "by"], ["h"], name="gain"),
        node("Gemm", ["h", "w"], ["y"], name="fc", transA=1),
    ]
    network = model(nodes, {"x": [16, 16]}, {"y": [16, 8]}, {"by": by, "w": V / by})
    data = samples(network)
    for scheme in (SEVEN, Scheme.weight_only("i4", group=8)):
        q = clew.quantize(network, data, scheme=scheme, threads=1)
        assert q.recipe.layers[0].numbers
        q.save(tmp_path / "q.onnx")
        wanted = ran(q.module, data[0])
        found, size = ran(clew.load(tmp_path / "q.onnx"), data[0]), np.abs(wanted).max()
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-6 * size)
        theirs = in_onnx_runtime(tmp_path / "q.onnx", data[0])
        assert np.abs(theirs - wanted).max() < 0.05 * np.abs(wanted).max()


@pytest.mark.parametrize("case", ["matmul and sum", "gemm of columns", "conv", "tied weights"])
def test_files_with_ranges_of_each_call(case: str, tmp_path: Path) -> None:
    network = CASES[case]()
    q = clew.quantize(network, scheme=Scheme(weight_bits=7, activations="dynamic"), threads=1)
    assert q.parameters
    path = tmp_path / "int8.onnx"
    q.save(path)
    onnx.checker.check_model(path, full_check=True)
    for feed in samples(network, 2):
        exact, found = ran(q.original, feed), ran(q.module, feed)
        size = np.abs(exact).max()
        assert 0 < np.abs(found - exact).max() < 0.05 * size
        np.testing.assert_allclose(ran(clew.load(path), feed), found, rtol=0, atol=2e-6 * size)
        assert np.abs(in_onnx_runtime(path, feed) - found).max() < 0.02 * size
    again = clew.quantize(network, recipe=q.recipe)
    assert str(again.module) == str(q.module)


def quantized(**more: Any) -> Quantized:
    network = convolutional()
    return clew.quantize(network, samples(network), scheme=SEVEN, threads=1, **more)


def test_layers_in_floats_are_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "int8.onnx"
    quantized(keep=["stem.conv", "head"]).save(path)
    written = onnx.load(path).graph
    by_name = {n.name: n for n in written.node}
    before = {n.name: n for n in convolutional().graph.node}
    assert set(by_name) >= set(before)
    for name in ("stem.conv", "norm", "head"):
        assert list(by_name[name].input) == list(before[name].input)
    weights = {t.name: numpy_helper.to_array(t) for t in written.initializer}
    assert "w2" not in weights, "what nothing reads is left out"
    assert {a.dtype for a in weights.values()} >= {np.dtype("i1"), np.dtype("f4")}


def test_the_recipe_is_in_the_file_once(tmp_path: Path) -> None:
    path = tmp_path / "int8.onnx"
    q = quantized()
    q.save(path)
    notes = onnx.load(path).metadata_props
    assert [n.key for n in notes] == ["clew.recipe", "clew.notes"]
    assert clew.quantization.Recipe.of_json(json.loads(notes[0].value)) == q.recipe


def test_a_module_needs_its_file(tmp_path: Path) -> None:
    network = convolutional()
    onnx.save(network, tmp_path / "float.onnx")
    module = clew.load(tmp_path / "float.onnx")
    data = samples(network)
    q = clew.quantize(module, data, scheme=SEVEN, threads=1)
    with pytest.raises(InputError) as error:
        q.save(tmp_path / "int8.onnx")
    assert error.value.code == "I396"
    q.save(tmp_path / "int8.onnx", source=tmp_path / "float.onnx")
    np.testing.assert_array_equal(
        ran(clew.load(tmp_path / "int8.onnx"), data[0]), ran(q.module, data[0])
    )


def test_products_of_other_nodes_have_no_form(tmp_path: Path) -> None:
    nodes = [node("FusedMatMul", ["x", "w"], ["y"], name="fused", domain="com.microsoft")]
    network = rows(nodes, {"w": V})
    network.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    q = clew.quantize(network, samples(network), threads=1)
    assert q.parameters
    with pytest.raises(InputError) as error:
        q.save(tmp_path / "int8.onnx")
    assert (error.value.code, error.value.layer) == ("I396", "fused")
    assert not (tmp_path / "int8.onnx").exists()
    kept = clew.quantize(network, samples(network), keep="fused", threads=1)
    kept.save(tmp_path / "int8.onnx")


def test_opsets_that_onnx_cannot_convert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("no adapter")

    monkeypatch.setattr(onnx.version_converter, "convert_version", fails)
    network = unnamed(9)
    q = clew.quantize(network, samples(network), scheme=SEVEN, threads=1)
    with pytest.raises(InputError) as error:
        q.save(tmp_path / "int8.onnx")
    assert error.value.code == "I397"
