"""A kernel for any number of rows has a way of its own for one row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import clew
from clew.backends.cpu.lowering import KernelSource
from clew.machine.target import Target, target_of
from clew.runtime.guard import GuardSide

RNG = np.random.default_rng(3)
WEIGHT = RNG.standard_normal((64, 96)).astype(np.float32)
BIAS = RNG.standard_normal(96).astype(np.float32)
WINDOW = RNG.standard_normal((64, 1, 10)).astype(np.float32)


def dense(shape: list[Any]) -> bytes:
    """Returns a product with constant weights and a bias, as a file."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("Add", "yb", "z")]
    constants = [numpy_helper.from_array(WEIGHT, "w"), numpy_helper.from_array(BIAS, "b")]
    graph = helper.make_graph(
        nodes,
        "dense",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [*shape, 64])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, [*shape, 96])],
        constants,
    )
    opset = [helper.make_opsetid("", 20)]
    data: bytes = helper.make_model(graph, opset_imports=opset, ir_version=9).SerializeToString()
    return data


PLAIN = target_of("cpu-avx512")
TILES = replace(PLAIN, features=f"{PLAIN.features},+amx-bf16,+amx-tile,+avx512bf16")


def kernel(shape: list[Any], target: str | Target) -> KernelSource:
    """Returns the kernel of the product."""
    template = clew.compile(
        dense(shape), target=target, diagnostics=clew.Diagnostics(trace=False)
    ).template
    (use,) = (use for use in template.uses if "dense" in use.name)
    assert isinstance(use.source, KernelSource)
    return use.source


@pytest.mark.parametrize(
    ("target", "ways"), [("cpu-avx2", 2), (PLAIN, 2), (TILES, 3)], ids=["avx2", "avx512", "tiles"]
)  # with matrix tiles, one more is for many rows
@pytest.mark.parametrize("shape", [["m"], ["batch", "seq"]])
def test_one_row_has_a_rule_of_its_own(target: str | Target, ways: int, shape: list[str]) -> None:
    source = kernel(shape, target)
    assert len(source.ways) == ways
    assert len(source.rules) == ways, source.rules


def codes() -> bytes:
    """Returns a product with a weight of 4 bits in blocks, as a file."""
    depth, columns = 768, 512
    weight = RNG.integers(0, 255, (columns, depth // 32, 16)).astype(np.uint8)
    scales = RNG.random((columns, depth // 32)).astype(np.float32)
    product = helper.make_node(
        "MatMulNBits", ["x", "w", "s"], ["dense"], domain="com.microsoft",
        K=depth, N=columns, bits=4, block_size=32,
    )  # fmt: skip
    graph = helper.make_graph(
        [product],
        "codes",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["m", depth])],
        [helper.make_tensor_value_info("dense", TensorProto.FLOAT, ["m", columns])],
        [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(scales, "s")],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    data: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
    return data


def test_one_row_of_codes_has_a_rule_of_its_own() -> None:
    """A product of codes sums blocks first, and these sums have rows of their own."""
    template = clew.compile(codes(), target=PLAIN, cache=False).template
    (use,) = (use for use in template.uses if "dense_codes" in use.name)
    assert isinstance(use.source, KernelSource)
    assert set(use.source.rules) == {"codes", "codes_row"}


BYTES = RNG.integers(-128, 128, (64, 96)).astype(np.int8)


def integers() -> bytes:
    """Returns a product of integers with constant weights, as a file."""
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["x", "w"], ["y"])],
        "integers",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, ["m", 64])],
        [helper.make_tensor_value_info("y", TensorProto.INT32, ["m", 96])],
        [numpy_helper.from_array(BYTES, "w")],
    )
    opset = [helper.make_opsetid("", 20)]
    data: bytes = helper.make_model(graph, opset_imports=opset, ir_version=9).SerializeToString()
    return data


def test_one_row_of_integers_has_wider_tiles_and_reads_bytes() -> None:
    template = clew.compile(integers(), target="cpu-avx2", cache=False).template
    (use,) = (use for use in template.uses if "dense" in use.name)
    plans = [way.plan.decisions[0] for way, _ in use.source.ways]
    assert [plan.rule for plan in plans] == ["dot", "dot"]
    assert len({plan.settings["vectors"] for plan in plans}) == 2
    assert [param.tensor.dtype for param in use.source.function.params] == ["i16", "i8"]


@pytest.mark.parametrize("side", list(GuardSide))
def test_rows_of_integers_behind_guard_pages(side: GuardSide) -> None:
    model = clew.compile(integers(), diagnostics=clew.Diagnostics(guard=side), threads=1)
    for rows in (1, 2, 7, 13, 1):
        x = RNG.integers(0, 256, (rows, 64)).astype(np.uint8)
        expected = x.astype(np.int32) @ BYTES.astype(np.int32)
        np.testing.assert_array_equal(model(x), expected)


@pytest.mark.parametrize("shape", [[2, "seq"], ["batch", 3]])
def test_there_is_no_such_way_where_one_row_cannot_occur(shape: list[Any]) -> None:
    assert len(kernel(shape, PLAIN).ways) == 1


@pytest.mark.parametrize("side", list(GuardSide))
@pytest.mark.parametrize("threads", [1, 2])
def test_rows_behind_guard_pages(side: GuardSide, threads: int) -> None:
    model = clew.compile(
        dense(["batch", "seq"]), diagnostics=clew.Diagnostics(guard=side), threads=threads
    )
    for batch, rows in ((1, 1), (1, 2), (2, 1), (1, 7), (3, 13), (1, 1)):
        x = RNG.standard_normal((batch, rows, 64)).astype(np.float32)
        np.testing.assert_allclose(model(x), x @ WEIGHT + BIAS, rtol=1e-4, atol=1e-4)


def frames() -> bytes:
    """Returns a product of the frames of a signal, as a file: one of each 4 samples after 10."""
    nodes = [
        helper.make_node("Conv", ["s", "f"], ["c"], strides=[4], kernel_shape=[10]),
        helper.make_node("Transpose", ["c"], ["x"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["x", "w"], ["z"]),
    ]
    graph = helper.make_graph(
        nodes,
        "frames",
        [helper.make_tensor_value_info("s", TensorProto.FLOAT, ["batch", 1, "samples"])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(WINDOW, "f"), numpy_helper.from_array(WEIGHT, "w")],
    )
    opset = [helper.make_opsetid("", 20)]
    data: bytes = helper.make_model(graph, opset_imports=opset, ir_version=9).SerializeToString()
    return data


def test_rows_that_follow_from_a_length() -> None:
    model = clew.compile(
        frames(),
        diagnostics=clew.Diagnostics(guard=GuardSide.END),
        sizes=clew.Sizes(specialize=False),
    )
    (use,) = (use for use in model.template.uses if "dense" in use.name)
    assert len(use.source.ways) >= 2  # further ones on tiles
    for batch, samples in ((1, 10), (1, 13), (1, 14), (2, 10), (3, 33), (1, 11)):
        signal = RNG.standard_normal((batch, 1, samples)).astype(np.float32)
        alone = clew.compile(frames(), inputs={"s": signal.shape})
        np.testing.assert_allclose(model(signal), alone(signal), rtol=1e-4, atol=1e-4)
