"""TFLite files: what is read, what is refused, and how layers are named."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
import pytest
from ai_edge_litert.interpreter import OpResolverType

import clew
from clew.frontends.tflite.file import schema
from clew.frontends.tflite.file.flatbuffer import Buffer, Damaged, Schema
from clew.frontends.tflite.loader import load
from clew.ir.interpret import interpret
from clew.ir.visit import post_order
from clew.support.errors import ClewError, ModelError, UnsupportedError
from litert_runs import interpreter, outputs
from tflite_files import Graph, written

from .litert import draw, litert


def small() -> bytes:
    """Returns a network of four operators."""
    graph = Graph()
    x = graph.input("x", (1, 8, 8, 4), "f32")
    weight, bias = graph.constant(draw(1, 8, 3, 3, 4), "w"), graph.constant(draw(2, 8), "b")
    window = {"padding": 0, "stride_w": 1, "stride_h": 1, "activation": 1}
    (y,) = graph.operator(
        "CONV_2D", [x, weight, bias], [("conv", (1, 8, 8, 8), "f32")], ("Conv2DOptions", window)
    )
    pool = {"padding": 1, "stride_w": 2, "stride_h": 2, "filter_width": 2, "filter_height": 2}
    (y,) = graph.operator(
        "MAX_POOL_2D", [y], [("pool", (1, 4, 4, 8), "f32")], ("Pool2DOptions", pool)
    )
    shape = graph.constant(np.int32([1, -1]))
    (y,) = graph.operator("RESHAPE", [y, shape], [("flat", (1, 128), "f32")])
    bounds = [graph.constant(np.int32(each)) for each in ([0, 0], [1, 64], [1, 2])]
    (y,) = graph.operator(
        "STRIDED_SLICE", [y, *bounds], [("part", (1, 32), "f32")],
        ("StridedSliceOptions", {"begin_mask": 1}),
    )  # fmt: skip
    return graph.file([y])


def test_layers_and_parameters_keep_their_names(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(small())
    model = clew.compile(path, threads=1)
    assert list(model.trace.layers) == ["conv", "pool", "flat", "part"]
    module = clew.load(path)
    sources = {s for node in post_order(module.main.body) for s in node.span.sources}
    assert ("conv", "CONV_2D") in {(s.layer, s.op) for s in sources}
    assert {"w", "b"} <= {s.layer for s in sources if s.kind == "parameter"}


def test_a_cut_file_is_refused() -> None:
    whole = small()
    for end in range(0, len(whole), 7):
        with pytest.raises(ClewError) as caught:
            load(whole[:end])
        assert caught.value.code in {"M060", "M061", "M004", "M006"}


def code_of(data: bytes) -> str:
    """Returns the code of the error of a file, "" if it loads."""
    try:
        load(data)
    except ClewError as error:
        return error.code
    return ""


def test_mutants_have_codes() -> None:
    whole, draws, codes = small(), random.Random(5), set()
    for _ in range(600):
        data = bytearray(whole)
        for _ in range(draws.choice((1, 1, 2, 8))):
            place = draws.randrange(len(data) - 4)
            number = draws.choice((0, 1, 0xFF, 1 << 31, (1 << 32) - 1, draws.randrange(1 << 32)))
            width = draws.choice((1, 2, 4))
            data[place : place + width] = number.to_bytes(4, "little")[:width]
        codes.add(code_of(bytes(data)))
    assert "M060" in codes
    assert not {code for code in codes if code[:1] == "C"}


def test_shared_tables_cannot_multiply() -> None:
    """1,000 references to one graph, each of which has 1,000 to one tensor."""
    schema = Schema({"Outer": "many:[Inner]", "Inner": "many:[Leaf]", "Leaf": "x:i32"}, {})
    builder = flatbuffers.Builder(0)

    def table(vector: int) -> int:
        builder.StartObject(1)
        builder.PrependUOffsetTRelativeSlot(0, vector, 0)
        return int(builder.EndObject())

    def thousand(place: int) -> int:
        builder.StartVector(4, 1000, 4)
        for _ in range(1000):
            builder.PrependUOffsetTRelative(place)
        return int(builder.EndVector())

    builder.StartObject(1)
    builder.PrependInt32Slot(0, 5, 0)
    leaf = int(builder.EndObject())
    builder.Finish(table(thousand(table(thousand(leaf)))))
    with pytest.raises(Damaged, match="its tables lie in each other"):
        Buffer(bytes(builder.Output()), schema).read("Outer")


def test_another_version_is_refused() -> None:
    with pytest.raises(ModelError, match="M061"):
        load(written("Model", {"version": 2}))


def test_an_unknown_operator_is_named() -> None:
    graph = Graph()
    x = graph.input("x", (4,), "f32")
    y = graph.operator("CONCAT_EMBEDDINGS", [x], [("hash", (4,), "i32")])
    with pytest.raises(UnsupportedError, match=r"U001.*CONCAT_EMBEDDINGS") as caught:
        load(graph.file(y))
    assert caught.value.layer == "hash"
    assert "not its results" in str(caught.value.hint)


def test_an_unknown_operator_is_named_before_its_operands() -> None:
    graph = Graph()
    scratch = graph.tensor("scratch", (4,), "i32")
    y = graph.operator("ethos-u", [graph.input("x", (4,), "f32"), scratch], [("y", (4,), "i32")])
    with pytest.raises(UnsupportedError, match=r"U001.*ethos-u"):
        load(graph.file(y))


@pytest.mark.parametrize("blocks", [(), (2, 4)])
def test_sparse_weights(blocks: tuple[int, ...]) -> None:
    """A matrix in compressed rows, whole or in blocks of 2 x 4."""
    rng, rows, columns = np.random.default_rng(3), 6, 8
    high, wide = blocks or (1, 1)
    kept = rng.random((rows // high, columns // wide)) < 0.5
    full = np.kron(kept, np.ones((high, wide))) * rng.uniform(-2, 2, (rows, columns))
    full = full.astype(np.float32)
    cells = full.reshape(rows // high, high, columns // wide, wide).transpose(0, 2, 1, 3)
    segments = np.concatenate([[0], np.cumsum(kept.sum(1))])
    levels: list[dict[str, Any]] = [
        {"format": 0, "dense_size": rows // high},
        {
            "format": 1,
            "array_segments": ("Int32Vector", {"values": segments}),
            "array_indices": ("Uint8Vector", {"values": np.nonzero(kept)[1]}),
        },
        *({"format": 0, "dense_size": size} for size in blocks),
    ]
    graph = Graph()
    x = graph.input("x", (3, columns), "f32")
    stored = graph.constant(cells[kept].reshape(-1))
    sparsity = {
        "traversal_order": list(range(len(levels))),
        "block_map": [0, 1][: len(blocks)],
        "dim_metadata": levels,
    }
    weight = graph.tensor("w", full.shape, "f32", sparsity=sparsity)
    graph.same_buffer(weight, stored)
    (dense,) = graph.operator("DENSIFY", [weight], [("dense", full.shape, "f32")])
    (y,) = graph.operator(
        "FULLY_CONNECTED", [x, dense, -1], [("y", (3, rows), "f32")], ("FullyConnectedOptions", {})
    )
    data, value = graph.file([y]), draw(1, 3, columns)
    found = clew.compile(load(data), threads=1).run({"x": value})["y"]
    np.testing.assert_allclose(found, value @ full.T, rtol=1e-5, atol=1e-5)


def test_quantized_products_are_within_a_step() -> None:
    graph = Graph()
    x = graph.input("x", (16, 32), "i8", scale=[0.05], zero=[3])
    rng = np.random.default_rng(1)
    codes = rng.integers(-127, 128, (8, 32), np.int8)
    weight = graph.constant(codes, scale=rng.uniform(0.01, 0.02, 8), axis=0)
    scales = graph.scales(weight) * 0.05
    bias = graph.constant(rng.integers(-200, 200, 8, np.int32), scale=scales, axis=0)
    (y,) = graph.operator(
        "FULLY_CONNECTED", [x, weight, bias], [("y", (16, 8), "i8")],
        ("FullyConnectedOptions", {"activation": 1}), 4, scale=[0.4], zero=[-20],
    )  # fmt: skip
    data, value = graph.file([y]), rng.integers(-128, 128, (16, 32), np.int8)
    found = clew.compile(load(data), threads=1).run({"x": value})["y"]
    expected = litert(data, {"x": value})[0]
    assert found.dtype == np.int8
    assert len(np.unique(found)) > 20
    assert np.abs(found.astype(int) - expected).max() <= 1


def test_the_activation_of_a_quantized_pool_bounds_numbers() -> None:
    graph, rng = Graph(), np.random.default_rng(2)
    like: dict[str, Any] = {"scale": [0.1], "zero": [-30]}
    x = graph.input("x", (1, 6, 6, 4), "i8", **like)
    window = {
        "padding": 1, "stride_w": 2, "stride_h": 2, "filter_width": 2, "filter_height": 2,
        "activation": 3,
    }  # fmt: skip
    pool = ("Pool2DOptions", window)
    (y,) = graph.operator("MAX_POOL_2D", [x], [("y", (1, 3, 3, 4), "i8")], pool, 2, **like)
    data, value = graph.file([y]), rng.integers(-128, 128, (1, 6, 6, 4), np.int8)
    found = clew.compile(load(data), threads=1).run({"x": value})["y"]
    np.testing.assert_array_equal(found, litert(data, {"x": value})[0])


def test_what_is_not_read_is_named() -> None:
    graph = Graph()
    blocks = {"details": ("BlockwiseQuantization", {"block_size": 2})}
    x = graph.input("x", (4,), "i8", quantization=blocks)
    y = graph.operator("ABS", [x], [("y", (4,), "i8")])
    with pytest.raises(UnsupportedError, match=r"U004.*'x' has scales for blocks"):
        load(graph.file(y))


def by_blocks(graph: Graph, codes: np.ndarray, scale: np.ndarray, block: int) -> int:
    """Returns a constant of 4-bit codes with a scale, in f16, for each block."""
    pairs = codes.reshape(-1, 2) & 15
    weight = graph.constant(np.zeros(codes.shape, np.int8))
    packed = (pairs[:, 0] | pairs[:, 1] << 4).astype(np.uint8)
    graph._buffers[-1] = {"data": packed}
    graph._tensors[weight]["type"] = schema.DTYPES.index("i4")
    details = {
        "scales": graph.constant(scale.astype(np.float16)),
        "zero_points": graph.constant(np.zeros(scale.shape, np.int32)),
        "block_size": block,
    }
    graph._tensors[weight]["quantization"] = {"details": ("BlockwiseQuantization", details)}
    return weight


def test_scales_of_blocks() -> None:
    rng, shape, block = np.random.default_rng(1), (8, 64), 32
    codes = rng.integers(-7, 8, shape).astype(np.int8)
    scale = rng.uniform(0.01, 0.02, (8, 2)).astype(np.float16)
    numbers = codes * np.repeat(scale.astype(np.float32), block, axis=1)
    graph = Graph()
    rows = graph.input("rows", (3,), "i32")
    inputs, result = [rows, by_blocks(graph, codes, scale, block)], [("y", (3, 64), "f32")]
    data = graph.file(graph.operator("EMBEDDING_LOOKUP", inputs, result, None, 4))
    feed = {"rows": np.int32([1, 7, 0])}
    np.testing.assert_array_equal(interpret(load(data), feed)["y"], litert(data, feed)[0])
    graph = Graph()
    x = graph.input("x", (2, 64), "f32")
    inputs, result = [x, by_blocks(graph, codes, scale, block)], [("y", (2, 8), "f32")]
    options = ("FullyConnectedOptions", {"asymmetric_quantize_inputs": True})
    data = graph.file(graph.operator("FULLY_CONNECTED", inputs, result, options, 9))
    feed = {"x": rng.normal(size=(2, 64)).astype(np.float32)}
    wanted = feed["x"] @ numbers.T
    found = clew.compile(load(data), threads=1)(feed["x"])
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    # LiteRT's reference kernel ignores the scales; XNNPACK quantizes the rows to 8 bits.
    (rounded,) = outputs(interpreter(data, OpResolverType.BUILTIN), feed)
    np.testing.assert_allclose(found, rounded, atol=0.02 * np.abs(wanted).max())


@pytest.mark.parametrize(
    ("changed", "error", "said"),
    [
        ({"block_size": 24}, ModelError, "M060.*blocks of 24"),
        ({"block_size": 16}, ModelError, "M060.*no scale for each"),
        ({"scales": 99}, ModelError, "M060.*no scale for each"),
    ],
)
def test_scales_of_other_blocks(changed: Any, error: Any, said: str) -> None:
    graph = Graph()
    rows = graph.input("rows", (3,), "i32")
    weight = by_blocks(graph, np.zeros((8, 64), np.int8), np.ones((8, 2)), 32)
    graph._tensors[weight]["quantization"]["details"][1].update(changed)
    y = graph.operator("EMBEDDING_LOOKUP", [rows, weight], [("y", (3, 64), "f32")], None, 4)
    with pytest.raises(error, match=said):
        load(graph.file(y))


def test_no_elements_and_sizes_that_are_too_large() -> None:
    graph = Graph()
    x = graph.tensor("x", (0, *[2**31 - 1] * 3), "f32")
    y = graph.operator("ABS", [x], [("y", (0,), "f32")])
    with pytest.raises(ModelError, match=r"M006.*'x' has no elements, but sizes"):
        load(graph.file(y))


def scaled(count: int, axis: int, zeros: int | None = None) -> bytes:
    """Returns a convolution whose bias has some scales along an axis."""
    graph = Graph()
    x = graph.input("x", (1, 4, 4, 3), "i8", scale=[0.5], zero=[1])
    codes = draw(1, 2, 1, 1, 3, dtype="i8", low=-9, high=9)
    weight = graph.constant(codes, "w", scale=[0.1, 0.2], zero=[0, 0])
    scales = {"scale": [0.05, 0.1, 0.2][:count], "zero": [0] * (count if zeros is None else zeros)}
    bias = graph.constant(np.int32([7, -9]), "bias", axis=axis, **scales)
    result = [("y", (1, 4, 4, 2), "i8", {"scale": [0.3], "zero": [2]})]
    window = {"padding": 0, "stride_w": 1, "stride_h": 1}
    return graph.file(
        graph.operator("CONV_2D", [x, weight, bias], result, ("Conv2DOptions", window), 3)
    )


def test_the_axis_of_a_bias_may_be_that_of_the_weights() -> None:
    """LiteRT refuses such files, and TFLite Micro reads them."""
    feed = {"x": draw(1, 1, 4, 4, 3, dtype="i8", low=-128, high=128)}
    found = interpret(load(scaled(2, 3)), feed)["y"]
    np.testing.assert_array_equal(found, litert(scaled(2, 0), feed)[0])


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (scaled(3, 0), r"'bias' of shape \[2\] has 3 scales along axis 0, whose size is 2"),
        (scaled(2, 0, zeros=3), r"'bias' of shape \[2\] has 2 scales and 3 zero points"),
    ],
)
def test_scales_that_do_not_fit(data: bytes, said: str) -> None:
    with pytest.raises(ModelError, match=f"M060.*{said}[^§]*convert the model") as caught:
        load(data)
    assert "damaged" not in str(caught.value)


def test_scales_along_an_axis_that_a_tensor_does_not_have() -> None:
    graph = Graph()
    x = graph.input("x", (2, 3), "i8", scale=[0.5, 0.2], zero=[0, 0], axis=4)
    y = graph.operator("ABS", [x], [("y", (2, 3), "i8", {"scale": [0.5], "zero": [0]})])
    with pytest.raises(ModelError, match=r"M060.*2 scales along axis 4, which it does not have"):
        load(graph.file(y))
