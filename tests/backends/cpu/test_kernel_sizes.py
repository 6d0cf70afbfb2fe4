"""Kernels have names of their own for sizes that are quotients in the model."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import clew
from clew.backends.cpu.kernel_sizes import KernelSizes
from clew.backends.cpu.kernel_stages import expected_of_way
from clew.backends.cpu.lowering import KernelSource
from clew.codegen.artifact import KernelCode
from clew.ir.dims import Dim, SymDim, dim_max, dim_min, expecting, typical
from clew.ir.expr import Call, Expr, Function, Var
from clew.ir.types import TensorType
from clew.machine.target import target_of
from clew.ops.registry import get_op

N, H = SymDim.symbol("n"), SymDim.symbol("h")
QUARTER = (H - 1) // 4 + 1


def function(name: str, shape: tuple[Dim, ...], *more: tuple[Dim, ...], **attrs: Any) -> Function:
    """Returns a primitive function of one operator."""
    params = [Var(f"x{n}", TensorType(s, "f32")) for n, s in enumerate((shape, *more))]
    return Function(params, Call(get_op(name), params, attrs), {"primitive": True})


def type_of(expr: Expr) -> str:
    return str(expr.type)


def test_names_a_quotient_and_those_of_it() -> None:
    given = function("nn.max_pool2d", (N, 8, QUARTER, QUARTER), kernel=(3, 3), strides=(2, 2),
                     padding=(1, 1, 1, 1))  # fmt: skip
    found = KernelSizes.of(given)
    assert found.dims == {"s0": QUARTER}
    assert found.needs == ()  # it is at least 1 at all sizes
    assert type_of(found.function.params[0]) == "f32[n, 8, s0, s0]"
    assert found.function.body.type == given.body.type.__class__(
        (N, 8, *[(SymDim.symbol("s0") - 1) // 2 + 1] * 2), "f32"
    )


def test_a_window_reads_no_empty_image() -> None:
    halved: Dim = (H - 5) // 8 + 1
    found = KernelSizes.of(function("nn.max_pool2d", (N, 8, halved, halved), kernel=(3, 3),
                                    padding=(1, 1, 1, 1)))  # fmt: skip
    assert found.dims == {"s0": halved}
    assert found.needs == (halved - 1,)


def test_names_a_multiple_of_a_quotient() -> None:
    """An image that was reduced and enlarged again."""
    enlarged: Dim = 2 * ((H - 8) // 8) + 2
    window = {"kernel": (3, 3), "padding": (1, 1, 1, 1)}
    found = KernelSizes.of(function("nn.max_pool2d", (N, 8, enlarged, 2 * enlarged), **window))
    assert found.dims == {"s0": enlarged}
    assert found.needs == (enlarged - 1,)
    assert type_of(found.function.params[0]) == "f32[n, 8, s0, 2*s0]"
    # The name of the quotient itself, if it is the size of an axis, is simpler.
    half = {"kernel": (2, 2), "strides": (2, 2)}
    found = KernelSizes.of(function("nn.max_pool2d", (N, 8, enlarged, enlarged), **half))
    assert found.dims == {"s0": (H - 8) // 8 + 1}
    assert type_of(found.function.params[0]) == "f32[n, 8, 2*s0, 2*s0]"


def test_keeps_quotients_of_no_whole_multiple() -> None:
    given = function("nn.matmul", (N, 2 * (H // 4), 8), (N, 8, 3 * (H // 4)))
    assert KernelSizes.of(given).function is given


def test_keeps_names_that_occur_by_themselves() -> None:
    given = function("add", (N, H, QUARTER), (N, H, QUARTER))
    assert KernelSizes.of(given).function is given


def test_keeps_quotients_with_different_remainders() -> None:
    given = function("nn.matmul", (N, H // 4, 8), (N, 8, H // 6))
    assert KernelSizes.of(given).function is given


def test_code_takes_the_sizes_of_the_model() -> None:
    source = KernelSource(function("nn.relu", (QUARTER, 16)), target_of("cpu-avx2"))
    assert source.code.sizes == (QUARTER,)
    assert source.in_nest({"h": 9}) == {"h": 9, "s0": 3}
    assert "size s0 = ((h - 1) // 4) + 1" in source.printed.text
    assert KernelCode.of_record(source.code.to_record()) == source.code


def pooled() -> bytes:
    """Returns a 3x3 convolution of an image that is pooled before, and may have no pixels."""
    rng = np.random.default_rng(0)
    weights = {
        "w0": rng.standard_normal((128, 3, 3, 3)).astype(np.float32) / 5,
        "w1": rng.standard_normal((32, 128, 3, 3)).astype(np.float32) / 30,
    }
    pads, twice = [1, 1, 1, 1], {"kernel_shape": [2, 2], "strides": [2, 2]}
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], pads=pads, strides=[2, 2]),
        helper.make_node("AveragePool", ["a"], ["b"], **twice),
        helper.make_node("AveragePool", ["b"], ["c"], **twice),
        helper.make_node("Conv", ["c", "w1"], ["y"], pads=pads),
    ]
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", ["n", 3, "h", "w"]), ("y", None))
    )
    graph = helper.make_graph(
        nodes, "pooled", [x], [y], [numpy_helper.from_array(w, n) for n, w in weights.items()]
    )
    opset = [helper.make_opsetid("", 20)]
    data: bytes = helper.make_model(graph, opset_imports=opset, ir_version=9).SerializeToString()
    return data


# On other targets, the same with other vectors, which takes seconds to compile.
@pytest.mark.parametrize("target", ["cpu", pytest.param("cpu-avx2", marks=pytest.mark.exhaustive)])
def test_one_build_serves_images_that_might_be_empty(target: str) -> None:
    model = pooled()
    compiled = clew.compile(model, target=target, threads=1)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    keys = set()
    for shape in ((1, 3, 64, 72), (2, 3, 33, 8), (1, 3, 250, 101)):
        x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
        np.testing.assert_allclose(compiled(x), session.run(None, {"x": x})[0], atol=1e-4)
        keys.add(tuple(kernel.key for kernel in compiled.kernels))
    assert len(keys) == 1


def pyramid() -> bytes:
    """Returns a chain of equal poolings, each of an image half as high and wide."""
    places = ["x", "a", "b", "c", "y"]
    nodes = [
        helper.make_node("MaxPool", [source], [made], kernel_shape=[3, 3], strides=[2, 2],
                         pads=[1, 1, 1, 1])
        for source, made in pairwise(places)
    ]  # fmt: skip
    x, *made = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [1, 8, "h", "w"]), *((place, None) for place in places[1:]))
    )
    graph = helper.make_graph(nodes, "pyramid", [x], made)
    opset = [helper.make_opsetid("", 20)]
    data: bytes = helper.make_model(graph, opset_imports=opset, ir_version=9).SerializeToString()
    return data


class Watching:
    """An instrument that does nothing."""

    def before_pass(self, name: str, module: Any) -> None: ...

    def after_pass(self, name: str, module: Any) -> None: ...


def test_levels_of_an_image_share_code(tmp_path: Path) -> None:
    model = pyramid()
    compiled = clew.compile(model, threads=1)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    xs = [
        np.random.default_rng(2).standard_normal((1, 8, *size)).astype(np.float32)
        for size in ((40, 56), (17, 33), (3, 100))
    ]
    for x in xs:
        for found, wanted in zip(compiled.run({"x": x}).values(), session.run(None, {"x": x}),
                                 strict=True):  # fmt: skip
            np.testing.assert_array_equal(found, wanted)
    _, second, third, fourth = compiled.kernels
    shared = [compiled.build.binaries[k.key].object for k in (second, third, fourth)]
    assert len({kernel.key for kernel in compiled.kernels}) == 4
    assert shared[0] is shared[1] is shared[2]
    # Each kernel shows its own sizes.
    assert "size s0 = ((h - 1) // 4) + 1" in third.loops
    assert "size s0 = ((h - 1) // 8) + 1" in fourth.loops
    assert third.code.size_values != fourth.code.size_values

    compiled.save(tmp_path / "pyramid.clew")
    loaded = clew.load_compiled(tmp_path / "pyramid.clew")
    for name, found in loaded.run({"x": xs[1]}).items():
        np.testing.assert_array_equal(found, compiled.run({"x": xs[1]})[name])
    # Builds with instruments are not stored, but their kernels are.
    again = clew.compile(model, threads=1, passes=clew.Passes(instruments=[Watching()]))
    np.testing.assert_array_equal(again.run({"x": xs[0]})["y"], compiled.run({"x": xs[0]})["y"])
    assert again.build.cached_kernels == 4


def test_expected_sizes_are_not_shared() -> None:
    def source(size: Dim, *expected: tuple[str, int]) -> KernelSource:
        given = function("nn.relu", (size, 16))
        return KernelSource(given, target_of("cpu-avx2"), expected=expected)

    eighth = (H - 1) // 8 + 1
    assert source(QUARTER).own_key == source(eighth).own_key != ""
    assert source(QUARTER).key != source(eighth).key
    assert source(H).own_key == ""  # it has no names of its own
    assert source(QUARTER, ("h", 64)).own_key == ""
    assert source(QUARTER, ("w", 64)).own_key == source(QUARTER).own_key


def test_ways_are_scheduled_for_sizes_at_which_they_are_used() -> None:
    """`where` is 1 for images of few pixels, of many, or of none."""
    pixels = H * SymDim.symbol("w")
    few = dim_max(dim_min(21 - pixels, 1), 0)
    assert expected_of_way(few) == (("h", 4), ("w", 4))
    assert expected_of_way(1 - few) == expected_of_way(1) == expected_of_way(few - few * few) == ()
    with expecting((("h", 4),), (("h", QUARTER),)):  # the name itself, not what it stands for
        assert typical(H) == 4
