"""Tools on TFLite files: the trace, values of layers, LiteRT as the reference, parts, codes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import clew
from clew.frontends.formats import by_name, for_bytes
from clew.frontends.tflite import registry
from clew.support.errors import ClewError
from tflite_files import Graph

from .litert import draw

_WINDOW = {"padding": 0, "stride_w": 1, "stride_h": 1, "activation": 1}


def _network(height: int = 6, width: int = 5, channels: int = 8) -> bytes:
    """Two convolutions of images with their channels last, and what may lie between them."""
    graph = Graph()
    shape = (1, height, width, channels)
    y = graph.input("x", shape, "f32")
    for n in range(2):
        weight = graph.constant(draw(n, channels, 3, 3, channels, low=-1, high=1), f"w{n}")
        bias = graph.constant(draw(n + 2, channels), f"b{n}")
        (y,) = graph.operator(
            "CONV_2D", [y, weight, bias], [(f"conv{n}", shape, "f32")], ("Conv2DOptions", _WINDOW)
        )
        (y,) = graph.operator("LOGISTIC", [y], [(f"gate{n}", shape, "f32")])
    halves = [(f"half{n}", (*shape[:3], channels // 2), "f32") for n in range(2)]
    axis = graph.constant(np.array(3, np.int32))
    outputs = graph.operator("SPLIT", [axis, y], halves, ("SplitOptions", {"num_splits": 2}))
    return graph.file(outputs)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("tflite") / "model.tflite"
    path.write_bytes(_network())
    return path


X = draw(7, 1, 6, 5, 8)


@pytest.mark.parametrize("sizes", [(6, 5, 8), (8, 8, 8)], ids=["told apart", "alike"])
def test_values_in_another_order_of_axes_are_those_of_layers(sizes: tuple[int, int, int]) -> None:
    """ChannelsFirst turns images: *same* links hold, and taps give them as in the file."""
    module = clew.load(_network(*sizes))
    x = draw(7, 1, *sizes)
    compiled = clew.compile(module, threads=1)
    assert any(stage.name == "ChannelsFirst" and stage.changed for stage in compiled.trace.stages)
    report = compiled.trace.verify(x)
    assert report.ok, report
    assert not compiled.trace.check()
    plain = clew.compile(module, opt_level=0, threads=1).tap("*", x)
    for layer, value in compiled.tap("*", x, force=True).items():
        np.testing.assert_allclose(value, plain[layer], atol=1e-5)


def test_litert_gives_the_values_of_layers(model: Path) -> None:
    run = by_name("tflite").run(model, {"x": X})
    found = clew.compile(model, opt_level=0, threads=1).tap("*", X)
    values = run.layers()
    assert {layer for layer, _ in values} == {"conv0", "gate0", "conv1", "gate1", "half0"}
    for layer in ("conv0", "gate0", "conv1", "gate1"):
        np.testing.assert_allclose(found[layer], values[layer, 0], atol=1e-5)
    assert list(run.outputs) == ["half0", "half1"]


def test_a_wrong_converter_is_named(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = registry.CONVERTERS.find("LOGISTIC")

    def wrong(layer: Any) -> Any:
        return clew.get_op("tanh")(layer.input(0)) if layer.name == "gate1" else right(layer)

    monkeypatch.setattr(
        registry.CONVERTERS, "find", lambda op, find=registry.CONVERTERS.find, **_: (
            wrong if op == "LOGISTIC" else find(op)
        )
    )  # fmt: skip
    verdict = clew.bisect(model, {"x": X}, reference="litert", threads=1, seconds=2)
    assert (verdict.kind, verdict.layers, verdict.reference) == ("import", ("gate1",), "LiteRT")


def test_litert_is_optional(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ai_edge_litert", None)
    monkeypatch.setitem(sys.modules, "ai_edge_litert.interpreter", None)
    with pytest.raises(ClewError, match=r"I173.*LiteRT is not installed[^§]*pip install"):
        clew.bisect(model, {"x": X}, reference="litert")
    with pytest.raises(ClewError, match=r"I062.*LiteRT is not installed"):
        by_name("tflite").peer(model)


def test_another_engine_is_refused(model: Path) -> None:
    with pytest.raises(ClewError, match=r"I174.*ONNX Runtime runs"):
        clew.bisect(model, {"x": X}, reference="onnxruntime")
    assert by_name("tflite") is not for_bytes()


def test_a_part_is_written_as_onnx(model: Path, tmp_path: Path) -> None:
    """Its values are those that LiteRT keeps."""
    part = clew.extract(model, start="gate0", end="gate1", inputs={"x": X}, threads=1)
    values = by_name("tflite").run(model, {"x": X}).layers()
    np.testing.assert_allclose(part.inputs["conv0"], values["conv0", 0], atol=1e-5)
    np.testing.assert_allclose(part.outputs["gate1"], values["gate1", 0], atol=1e-5)
    file, _ = part.save(tmp_path / "part.onnx")
    onnx.checker.check_model(str(file), full_check=True)
    assert clew.load_part(file).check().passed


def test_transposed_weights_are_quantized(model: Path, tmp_path: Path) -> None:
    found = clew.quantize(model, [{"x": X}], threads=1)
    assert [row.layer for row in found.layers] == ["conv0", "conv1"]
    found.save(tmp_path / "codes.onnx")
    np.testing.assert_allclose(
        clew.compile(tmp_path / "codes.onnx", threads=1).run({"x": X})["half0"],
        found.compile(threads=1).run({"x": X})["half0"],
        atol=1e-5,
    )
    with pytest.raises(ClewError, match=r"I396.*matmulnbits"):
        found.save(tmp_path / "codes.onnx", form="matmulnbits")


def test_a_file_is_listed(model: Path) -> None:
    main = by_name("tflite").listing(model).main
    line = main.lines[0]
    assert (line.name, line.op, line.inputs) == ("conv0", "CONV_2D", ("x", "w0", "b0"))
    assert {("padding", "same"), ("activation", "relu")} <= set(line.attributes)
    assert line.parameters == {"w0": "f32[8, 3, 3, 8]", "b0": "f32[8]"}
    assert main.lines[-1].outputs == ("half0", "half1")


def test_subgraphs_and_signatures_are_listed(tmp_path: Path) -> None:
    graph = Graph()
    x, condition = graph.input("x", (4,), "f32"), graph.input("c", (), "bool")
    numbers = []
    for op in ("ABS", "NEG"):
        inner = graph.graph()
        inner.outputs = inner.operator(op, [inner.input("a", (4,), "f32")], [(op, (4,), "f32")])
        numbers.append(inner.number)
    options = dict(zip(("then_subgraph_index", "else_subgraph_index"), numbers, strict=True))
    result = [("y", (4,), "f32")]
    y = graph.operator("IF", [condition, x], result, ("IfOptions", options))
    signature: dict[str, Any] = {"signature_key": "negated", "subgraph_index": numbers[1]}
    signature["inputs"] = [{"name": "a", "tensor_index": 0}]
    signature["outputs"] = [{"name": "NEG", "tensor_index": 1}]
    path = tmp_path / "branches.tflite"
    path.write_bytes(graph.file(y, signature_defs=[signature]))
    listing = by_name("tflite").listing(path)
    (line,) = listing.main.lines
    assert [body.title for body in line.bodies] == ["then", "else"]
    assert [each.name for body in line.bodies for each in body.lines] == ["y/ABS", "y/NEG"]
    assert [(other.title, other.lines[0].name) for other in listing.others] == [("negated", "NEG")]
    imported = set(clew.compile(path, threads=1).trace.layers)
    assert {each.name for each in listing.lines} - imported == {"NEG"}
    shown = by_name("tflite").listing(path, {"y": "IF", "y/ABS": "ABS"}).main.lines[0]
    assert [body.imported for body in shown.bodies] == [True, False]
