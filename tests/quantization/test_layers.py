"""Quantized layers, against NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper
from reference import convolved, data_integers, expected, weight_integers
from small_models import convolutional, drawn, model, node

import clew
from clew.frontends import load_or_defer
from clew.quantization import Quantized, Scheme, Where
from clew.quantization.ranges import weight_scales
from clew.support.errors import ClewError, InputError

Array = NDArray[Any]
PLAIN = Scheme(bias_correction=False, migration=False)
DENSE_X = np.maximum(drawn(40, 16, seed=3), -1.2)


def one_dense(bias: bool = True) -> Any:
    """A `Gemm` whose output channels have different scales."""
    w = drawn(16, 8, scale=0.3) * np.geomspace(0.1, 1, 8, dtype="f")
    constants = {"w": w} | ({"b": drawn(8, seed=1, scale=0.2)} if bias else {})
    nodes = [node("Gemm", ["x", *constants], ["y"], name="fc")]
    return model(nodes, {"x": [4, 16]}, {"y": [4, 8]}, constants)


def one_conv(groups: int = 1, channels: int = 4) -> Any:
    """A convolution with a bias."""
    constants = {"w": drawn(8, channels // groups, 3, 3, scale=0.2), "b": drawn(8, scale=0.1)}
    attrs = {"group": groups, "pads": [1, 1, 1, 1], "strides": [2, 2]}
    nodes = [node("Conv", ["x", "w", "b"], ["y"], name="conv", **attrs)]
    return model(nodes, {"x": [1, channels, 6, 6]}, {"y": [1, 8, 3, 3]}, constants)


def result(q: Quantized, x: Array) -> Array:
    (found,) = q.compile(threads=1).run({"x": x}).values()
    return np.asarray(found)


SCHEMES = {
    "u8 x i8": {},
    "i8 x i8": {"activations": "i8"},
    "u8 x u8": {"weights": "u8"},
    "tensor": {"granularity": "tensor"},
    "tensor of u8": {"granularity": "tensor", "weights": "u8", "activations": "i8"},
    "7 bits": {"weight_bits": 7},
    "7 bits of u8": {"weight_bits": 7, "weights": "u8"},
}


def scheme_of(changes: dict[str, Any], **more: Any) -> Scheme:
    given = {"bias_correction": False, "migration": False, "weight_range": "minmax"}
    return Scheme(**{**given, **changes, **more})


@pytest.mark.parametrize(("name", "bias"), [*((n, True) for n in SCHEMES), ("u8 x i8", False)])
def test_dense_layers_compute_what_numpy_does(name: str, bias: bool) -> None:
    scheme = scheme_of(SCHEMES[name])
    network = one_dense(bias)
    q = clew.quantize(network, DENSE_X, scheme=scheme, threads=1)
    (p,) = q.parameters
    w, scales, zeros = weight_integers(p.site.weight.data, 1, scheme)
    np.testing.assert_array_equal(p.weight, w)
    np.testing.assert_array_equal(p.scales, scales)
    np.testing.assert_array_equal(p.zeros, zeros)
    if scheme.weight_bits == 7:
        assert w.max() - w.min() < 128
    constant = p.site.bias_constant
    for x in (DENSE_X[:4], drawn(4, 16, scale=3)):  # the second one beyond the range
        sums = data_integers(x, p) @ (w - zeros).astype(np.int64)
        wanted = expected(sums, p, scales, None if constant is None else constant.data)
        np.testing.assert_array_equal(result(q, x), wanted)


@pytest.mark.parametrize(
    ("name", "groups"),
    [("u8 x i8", 1), ("i8 x i8", 4), ("tensor of u8", 2), ("7 bits", 8)],
)
def test_convolutions_compute_what_numpy_does(name: str, groups: int) -> None:
    channels = 8 if groups == 8 else 4
    scheme = scheme_of(SCHEMES[name])
    data = drawn(8, channels, 6, 6, seed=4)
    q = clew.quantize(one_conv(groups, channels), data, scheme=scheme, threads=1)
    (p,) = q.parameters
    w, scales, zeros = weight_integers(p.site.weight.data, 0, scheme)
    np.testing.assert_array_equal(p.weight, w)
    x = data[:1]
    whole = (w - zeros.reshape(-1, 1, 1, 1)).astype(np.int64)
    sums = convolved(data_integers(x, p), whole, 2, 1, groups)
    assert p.site.bias_constant is not None
    bias = p.site.bias_constant.data.reshape(-1)
    wanted = expected(sums, p, scales, bias)
    # Groups of several channels are multiplied as floats (see NarrowIntegers).
    near = 1e-6 * np.abs(wanted).max() if groups == 2 else 0
    np.testing.assert_allclose(result(q, x), np.moveaxis(wanted, -1, 1), rtol=0, atol=near)


@pytest.mark.parametrize("dtype", ["u8", "i8"])
def test_ranges_of_activations(dtype: str) -> None:
    """Numbers with a few far outliers: each method does what it is called after."""
    data = DENSE_X.copy()
    data[7, 3] = 30
    low, high = float(data.min()), float(data.max())
    grids = {}
    for method in ("minmax", "percentile", "entropy", "mse"):
        scheme = scheme_of({"activations": dtype, "range": method, "percentile": 99.0})
        q = clew.quantize(one_dense(), data, scheme=scheme, threads=1)
        grids[method] = q.parameters[0].grid
        x = data[4:8]
        w = q.parameters[0].weight.astype(np.int64)
        constant = q.parameters[0].site.bias_constant
        assert constant is not None
        sums = data_integers(x, q.parameters[0]) @ w
        wanted = expected(sums, q.parameters[0], q.parameters[0].scales, constant.data)
        np.testing.assert_array_equal(result(q, x), wanted)
    scale = float(np.float32((high - low) / 255))
    assert grids["minmax"].scale == scale
    assert grids["minmax"].low == pytest.approx(low, abs=scale)
    assert grids["minmax"].high == pytest.approx(high, abs=scale)

    def error(method: str) -> float:
        return float(np.mean((grids[method].quantized(data) - data) ** 2))

    clipped = np.mean(data > grids["percentile"].high)
    assert 0 < clipped < 0.02
    assert error("mse") <= min(map(error, grids)) * 1.05
    assert grids["entropy"].high < high
    # Zero is a number of each grid.
    assert all(g.quantized(np.zeros(1)) == 0 for g in grids.values())


def test_weights_of_least_error() -> None:
    errors = []
    for method in ("minmax", "mse"):
        scheme = scheme_of({"weight_bits": 4}, weight_range=method)
        (p,) = clew.quantize(one_dense(), DENSE_X, scheme=scheme, threads=1).parameters
        errors.append(np.mean((p.weight * p.scales - p.site.weight.data) ** 2, axis=0))
    assert (errors[1] <= errors[0] * 1.001).all()
    assert (errors[1] < errors[0]).any()


@pytest.mark.parametrize("rows", [1, 3, 700])
def test_scales_are_those_of_the_whole_weight(rows: int) -> None:
    """A few rows are tried at a time; the result is the same."""
    weight = drawn(rows, 60, seed=7)
    scales, _ = weight_scales(weight, 0, (-7, 7), "mse")
    wide = weight.astype(np.float64)
    tried = np.abs(wide).max(axis=1, keepdims=True) * np.linspace(1.0, 0.6, 21) / 7
    steps = np.clip(np.rint(wide[:, :, None] / tried[:, None]), -7, 7) * tried[:, None]
    best = ((steps - wide[:, :, None]) ** 2).sum(axis=1).argmin(axis=1)
    np.testing.assert_array_equal(scales, tried[np.arange(rows), best].astype("f"))


def test_outputs_of_as_many_elements_as_are_found() -> None:
    """A detector finds other boxes once it is quantized; its outputs cannot be compared."""
    nodes = [
        node("Conv", ["x", "w"], ["c"], name="conv", pads=[1, 1, 1, 1]),
        node("Greater", ["c", "least"], ["m"]),
        node("Reshape", ["c", "flat"], ["scores"]),
        node("Reshape", ["m", "flat"], ["found"]),
        node("Compress", ["scores", "found"], ["y"], axis=0),
    ]
    constants = {
        "w": drawn(4, 3, 3, 3, scale=0.3), "least": np.float32(0.3), "flat": np.array([-1]),
    }  # fmt: skip
    given = model(nodes, {"x": [1, 3, 16, 16]}, {"y": ["found"]}, constants)
    q = clew.quantize(given, [drawn(1, 3, 16, 16, seed=n) for n in range(3)], threads=1)
    assert [row.layer for row in q.layers] == ["conv"]
    assert 0 < q.layers[0].error < 0.1


def test_layers_behind_a_number_of_elements_that_depends_on_data() -> None:
    """Their results in the quantized model cannot be compared; those on exact operands can."""
    nodes = [
        node("MatMul", ["x", "w0"], ["c"], name="first"),
        node("ReduceMax", ["c"], ["top"], axes=[1], keepdims=0),
        node("Greater", ["top", "least"], ["m"]),
        node("Compress", ["c", "m"], ["rows"], axis=0),
        node("MatMul", ["rows", "w1"], ["r"], name="second"),
        node("ReduceSum", ["r", "axes"], ["y"], keepdims=0),
    ]
    constants = {
        "w0": drawn(8, 16, scale=0.3), "w1": drawn(16, 4, scale=0.3), "least": np.float32(1.0),
        "axes": np.array([0]),
    }  # fmt: skip
    given = model(nodes, {"x": [64, 8]}, {"y": [4]}, constants)
    q = clew.quantize(given, [drawn(64, 8, seed=n) for n in range(6)], threads=1)
    first, second = q.layers
    assert first.error is not None
    assert 0 < first.error < 0.1
    assert second.error is None
    assert second.sqnr_db is not None
    assert 20 < second.sqnr_db < 80
    assert q.error is not None
    assert 0 < q.error < 0.1
    x = drawn(64, 8, seed=40)
    (y,) = clew.compile(q.module, threads=1).run({"x": x}).values()
    (wanted,) = clew.compile(given, threads=1).run({"x": x}).values()
    np.testing.assert_allclose(y, wanted, atol=0.15 * float(np.abs(wanted).max()))


def test_bias_correction_removes_the_mean_error_of_channels() -> None:
    means = []
    calls = np.split(DENSE_X, 10)[:8]  # of more, some may be left out
    for corrected in (False, True):
        scheme = Scheme(weight_bits=4, bias_correction=corrected)
        q = clew.quantize(one_dense(), calls, scheme=scheme, threads=1)
        exact = clew.compile(q.original, threads=1)
        runs = [result(q, x) - exact.run({"x": x})["y"] for x in calls]
        means.append(np.abs(np.concatenate(runs).mean(0)).max())
    assert means[1] < 1e-3 < means[0]


def test_batch_norms_are_folded() -> None:
    network = convolutional()
    module = clew.load(network)
    data = drawn(4, 3, 8, 8)
    q = clew.quantize(network, data, threads=1)
    assert "nn.batch_norm" in str(module)
    assert "nn.batch_norm" not in str(q.original)
    assert [r.layer for r in q.layers] == ["stem.conv", "body.conv", "head"]
    x = data[:1]
    exact, folded, integers = (clew.compile(m, threads=1) for m in (module, q.original, q.module))
    np.testing.assert_allclose(
        folded.run({"image": x})["scores"], exact.run({"image": x})["scores"], rtol=1e-4, atol=1e-5
    )
    wanted = exact.run({"image": x})["scores"]
    error = np.linalg.norm(integers.run({"image": x})["scores"] - wanted)
    assert error < 2e-2 * np.linalg.norm(wanted)
    assert integers.trace.check() == []
    assert q.error is not None
    assert q.error < 1e-2
    # A rule by the name of the norm is about the layer that it is part of.
    kept = clew.quantize(network, data, keep="norm", threads=1)
    assert [p.site.name for p in kept.parameters] == ["body.conv", "head"]


def test_products_compute_on_integers() -> None:
    """No product of floats is left after compiling."""
    q = clew.quantize(convolutional(), drawn(4, 3, 8, 8), threads=1)
    products = [
        call.args[0].tensor.dtype
        for kernel in q.compile(threads=1).kernels
        for call in kernel.calls
        if call.op_name in ("nn.conv2d", "nn.dense")
    ]
    assert len(products) == 3
    assert set(products) <= {"u8", "i8", "i16"}


def test_free_sizes_stay_free() -> None:
    data = drawn(6, 8, 4, 4)
    constants = {"w": drawn(8, 8, 3, 3, scale=0.1), "m": drawn(8, 6, scale=0.4)}
    nodes = [
        node("Conv", ["x", "w"], ["a"], name="conv", pads=[1, 1, 1, 1]),
        node("ReduceMean", ["a"], ["p"], name="pool", axes=[2, 3], keepdims=0),
        node("MatMul", ["p", "m"], ["y"], name="fc"),
    ]
    free, static = (
        clew.quantize(model(nodes, {"x": [n, 8, 4, 4]}, {"y": [n, 6]}, constants), data, threads=1)
        for n in ("n", 1)
    )
    assert [n.layer for n in free.recipe.layers] == ["conv", "fc"]
    for a, b in zip(free.recipe.layers, static.recipe.layers, strict=True):
        assert a.scale == pytest.approx(b.scale, rel=1e-5)
    every = result(free, data)
    for n in range(2):
        single = result(static, data[n : n + 1])
        assert np.abs(every[n] - single).max() < 0.02 * np.abs(every).max()


def test_products_in_branches_stay_in_floats() -> None:
    branches = []
    for name, w in (("then", drawn(8, 8, seed=1)), ("other", drawn(8, 8, seed=2))):
        constant = node("Constant", [], [f"{name}.w"], value=helper_tensor(w))
        product = node("MatMul", ["h", f"{name}.w"], [f"{name}.y"], name=f"{name}.fc")
        out = helper.make_tensor_value_info(f"{name}.y", TensorProto.FLOAT, [2, 8])
        branches.append(helper.make_graph([constant, product], name, [], [out]))
    nodes = [
        node("MatMul", ["x", "w"], ["h"], name="fc"),
        node("ReduceSum", ["h"], ["total"], name="total", keepdims=0),
        node("Greater", ["total", "zero"], ["positive"], name="positive"),
        node("If", ["positive"], ["y"], name="choose", then_branch=branches[0],
             else_branch=branches[1]),
    ]  # fmt: skip
    constants = {"w": drawn(8, 8), "zero": np.zeros((), "f")}
    network = model(nodes, {"x": [2, 8]}, {"y": [2, 8]}, constants)
    data = drawn(8, 8, seed=5)
    q = clew.quantize(network, data, threads=1)
    assert [r.layer for r in q.layers] == ["fc"]
    exact = clew.compile(clew.load(network), threads=1)
    for x in (data[:2], data[2:4]):
        wanted = exact.run({"x": x})["y"]
        assert np.abs(result(q, x) - wanted).max() < 0.05 * np.abs(wanted).max()


def test_operands_of_unknown_rank_stay_in_floats() -> None:
    """Both branches give the operand, with different ranks."""
    branches = []
    for name, op in (("then", "Identity"), ("other", "Unsqueeze")):
        inputs = ["h"] if op == "Identity" else ["h", "axes"]
        made = node(op, inputs, [f"{name}.y"], name=f"{name}.shape")
        out = helper.make_tensor_value_info(f"{name}.y", TensorProto.FLOAT, None)
        branches.append(helper.make_graph([made], name, [], [out]))
    nodes = [
        node("MatMul", ["x", "w"], ["h"], name="fc"),
        node("ReduceSum", ["h"], ["total"], name="total", keepdims=0),
        node("Greater", ["total", "zero"], ["positive"], name="positive"),
        node("If", ["positive"], ["r"], name="choose", then_branch=branches[0],
             else_branch=branches[1]),
        node("MatMul", ["r", "v"], ["y"], name="last"),
    ]  # fmt: skip
    constants = {"w": drawn(8, 8), "v": drawn(8, 8, seed=1), "zero": np.zeros((), "f")}
    network = model(nodes, {"x": [2, 8]}, {}, {**constants, "axes": np.array([0])})
    network.graph.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, None))
    q = clew.quantize(network, drawn(8, 8, seed=5), threads=1)
    assert [r.layer for r in q.layers] == ["fc"]


def helper_tensor(array: Array) -> Any:
    return helper.make_tensor("w", TensorProto.FLOAT, array.shape, array.reshape(-1).tolist())


def test_graphs_that_depend_on_values_are_refused() -> None:
    nodes = [
        node("Squeeze", ["x", "axes"], ["s"], name="squeeze"),
        node("MatMul", ["s", "w"], ["y"], name="fc"),
    ]
    network = model(nodes, {"x": [1, 8, 8]}, {"y": ["a", "b"]}, {"w": drawn(8, 8)})
    network.graph.input.append(helper.make_tensor_value_info("axes", TensorProto.INT64, [1]))
    sample = {"x": drawn(1, 8, 8), "axes": np.array([0])}
    for given in (network, load_or_defer(network)):
        with pytest.raises(InputError) as error:
            clew.quantize(given, [sample])
        assert error.value.code == "I403"
        assert "of axes" in str(error.value)
    module = clew.load(network, constants={"axes": np.array([0])})
    assert len(clew.quantize(module, [sample["x"]], threads=1).parameters) == 1


def test_sizes_fix_the_graph_of_unknown_rank(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["h"], name="fc"),
        node("Unsqueeze", ["h", "first"], ["u"], name="more"),
        node("Squeeze", ["u"], ["y"], name="less"),
    ]
    held = {"w": drawn(8, 8), "first": np.array([0])}
    network = model(nodes, {"x": ["n", 8]}, {"y": None}, held)
    onnx.save(network, tmp_path / "m.onnx")
    for given in (network, load_or_defer(network), tmp_path / "m.onnx"):
        with pytest.raises(InputError, match="I403"):
            clew.quantize(given, [drawn(4, 8)], threads=1)
        q = clew.quantize(given, [drawn(4, 8)], threads=1, sizes={"n": 4})
        assert len(q.parameters) == 1
    q.save(tmp_path / "q.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "q.onnx")
    assert session.run(None, {"x": drawn(4, 8)})[0].shape == (4, 8)


@pytest.mark.parametrize("name", ["conv", "dense"])
def test_nothing_is_read_or_written_out_of_bounds(name: str) -> None:
    network, x = (one_conv(), drawn(1, 4, 6, 6)) if name == "conv" else (one_dense(), DENSE_X[:4])
    q = clew.quantize(network, [x], threads=1)
    plain = result(q, x)
    guarded = clew.compile(q.module, threads=1, diagnostics=clew.Diagnostics(guard=True))
    np.testing.assert_array_equal(guarded.run({"x": x})["y"], plain)


def test_a_bounded_error_needs_an_output_of_floats_and_a_metric_does_not() -> None:
    nodes = [
        node("MatMul", ["x", "v"], ["h"], name="first"),
        node("MatMul", ["h", "w"], ["s"], name="fc"),
        node("ArgMax", ["s"], ["y"], name="arg", axis=1),
    ]
    constants = {"v": drawn(8, 8, seed=1), "w": drawn(8, 8)}
    network = model(nodes, {"x": [4, 8]}, {}, constants)
    network.graph.output.append(helper.make_tensor_value_info("y", TensorProto.INT64, [4, 1]))
    data = drawn(64, 8)
    with pytest.raises(ClewError) as error:
        clew.quantize(network, data, max_error=0.1, threads=1)
    assert error.value.code == "I047"
    wanted = np.concatenate([clew.compile(network, threads=1)(x) for x in np.split(data, 16)])

    def right(outputs: list[dict[str, Array]]) -> float:
        return float((np.concatenate([o["y"] for o in outputs]) == wanted).mean())

    coarse = Scheme(weight_bits=4, granularity="tensor", migration=False)
    q = clew.quantize(network, data, scheme=coarse, metric=right, max_drop=0.0, threads=1)
    assert q.error is None
    assert q.floats is not None
    assert q.floats.layers
    assert all(put.figure > 0 for put in q.floats.proof)


def test_the_report(tmp_path: Any) -> None:
    q = clew.quantize(
        convolutional(), drawn(4, 3, 8, 8), keep=Where(last=1), sensitivities=True, threads=1
    )
    text = str(q)
    for word in ("stem.conv", "u8 x i8", "in floats, asked for: head", "2 layers of 3 quantized"):
        assert word in text
    assert "stem.conv" in q._repr_html_()
    assert len(repr(q).splitlines()) == 1
    alone = [row.alone for row in q.layers]
    assert alone[2] is None
    assert alone[0] is not None
    assert 0 < alone[0] < 0.1
    assert q.to_json()["layers"][0]["layer"] == "stem.conv"
    q.save(tmp_path / "q.txt")
    assert str(clew.load(tmp_path / "q.txt")) == str(q.module)
    with pytest.raises(InputError) as error:
        q.save(tmp_path / "q.bin")
    assert error.value.code == "I404"


def test_layers_have_times_in_both_models() -> None:
    q = clew.quantize(one_conv(), drawn(2, 4, 6, 6), threads=1)
    timing = q.timed(threads=1).timing
    assert timing is not None
    (time,) = timing.layers
    assert (time.bf16_us is None) == (timing.bf16_us is None) == bool(timing.without_bf16)
    assert min(timing.float_us, timing.quantized_us) > 0
    assert time.layer == "conv"
    assert time.float_us > 0
    assert time.quantized_us > 0
    assert time.saved_us == time.float_us - time.quantized_us
    assert any("conv2d" in k for k in time.float_kernels)
    assert any("quantize" in k for k in time.quantized_kernels)
