"""Inputs whose values decide sizes, and the sizes that a file has for its free dimensions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import clew
from clew.frontends.tflite.loader import load
from clew.support.errors import ClewError, InputError, UnsupportedError
from tflite_files import Graph

from .litert import draw, litert

_STRIDES = {"padding": 0, "stride_w": 2, "stride_h": 1}


def transposed(dtype: str) -> bytes:
    """Returns a transposed convolution whose size is an input, of floats or of 16-bit codes."""
    graph = Graph()
    size = graph.input("size", (4,), "i32")
    if dtype == "f32":
        x = graph.input("x", (1, 2, 5, 3), "f32")
        inputs = [size, graph.constant(draw(1, 4, 2, 4, 3), "w"), x]
        result = ("y", (1, 2, 10, 4), "f32")
    else:
        x = graph.input("x", (1, 2, 5, 3), dtype, scale=[0.01], zero=[0])
        codes = draw(1, 4, 2, 4, 3, dtype="i8", low=-127, high=128)
        weight = graph.constant(codes, "w", scale=[0.01, 0.02, 0.015, 0.03], zero=[0] * 4)
        inputs, result = (
            [size, weight, x],
            ("y", (1, 2, 10, 4), dtype, {"scale": [0.02], "zero": [0]}),
        )
    return graph.file(
        graph.operator("TRANSPOSE_CONV", inputs, [result], ("TransposeConvOptions", _STRIDES), 3)
    )


@pytest.mark.parametrize("dtype", ["f32", "i16"])
def test_a_transposed_convolution_of_a_size_from_the_run(dtype: str, tmp_path: Path) -> None:
    (tmp_path / "model.tflite").write_bytes(transposed(dtype))
    compiled = clew.compile(tmp_path / "model.tflite", threads=1)
    assert [(i.name, i.decides) for i in compiled.inputs] == [("size", True), ("x", False)]
    for width in (10, 9):
        feed = {
            "size": np.int32([1, 2, width, 4]),
            "x": draw(width, 1, 2, 5, 3, dtype=dtype, high=900 if dtype == "i16" else 3),
        }
        (wanted,) = litert(transposed(dtype), feed)
        found = compiled.run(feed)["y"]
        assert found.shape == (1, 2, width, 4)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5 if dtype == "f32" else 0)


def test_a_size_that_is_an_input_can_be_given_at_import() -> None:
    data, size = transposed("f32"), np.int32([1, 2, 10, 4])
    with pytest.raises(UnsupportedError, match=r"U002.*shape of the result[^§]*constants="):
        load(data)
    module = load(data, constants={"size": size})
    assert module.input_names == ("size", "x")
    x = draw(1, 1, 2, 5, 3)
    found = clew.compile(module, threads=1).run({"size": size, "x": x})["y"]
    np.testing.assert_allclose(found, litert(data, {"size": size, "x": x})[0], atol=1e-5)


def test_a_size_that_does_not_fit_blames_the_inputs() -> None:
    compiled = clew.compile(transposed("f32"), threads=1)
    with pytest.raises(ClewError) as caught:
        compiled.run({"size": np.int32([1, 2, 10]), "x": draw(1, 1, 2, 5, 3)})
    assert isinstance(caught.value, InputError)


def test_a_size_that_other_values_compute_does_not_wait() -> None:
    graph = Graph()
    x = graph.input("x", (2, 3, 4, 3), "f32")
    pads = graph.operator("CAST", [x], [("size", (4,), "i32")])
    weight = graph.constant(draw(1, 4, 2, 4, 3), "w")
    result = [("y", (1, 2, 10, 4), "f32")]
    y = graph.operator(
        "TRANSPOSE_CONV", [*pads, weight, x], result, ("TransposeConvOptions", _STRIDES), 3
    )
    with pytest.raises(UnsupportedError, match="U002"):
        clew.compile(graph.file(y), threads=1)


def free(rows: int) -> bytes:
    """Returns a file with a free number of rows, which has a number for it."""
    graph = Graph()
    x = graph.input("x", (-1, 3), "f32")
    graph._tensors[x]["shape"] = [rows, 3]
    return graph.file(graph.operator("ABS", [x], [("y", (-1, 3), "f32")]))


def test_random_inputs_have_the_sizes_of_the_file(tmp_path: Path) -> None:
    compiled = clew.compile(free(5), threads=1)
    assert [a.shape for a in compiled.drawn()] == [(5, 3)]
    assert [a.shape for a in compiled.drawn(shapes={"x": (2, 3)})] == [(2, 3)]
    compiled(draw(1, 7, 3))
    assert [a.shape for a in compiled.drawn()] == [(7, 3)]
    compiled.save(tmp_path / "saved.clew")
    assert [a.shape for a in clew.load_compiled(tmp_path / "saved.clew").drawn()] == [(5, 3)]
    renamed = clew.compile(load(free(5), inputs={"x": ("n", 3)}), threads=1)
    with pytest.raises(InputError, match="I061"):
        renamed.drawn()


def test_a_file_whose_size_is_zero_has_no_usual_one() -> None:
    with pytest.raises(InputError, match="I061"):
        clew.compile(free(0), threads=1).drawn()
