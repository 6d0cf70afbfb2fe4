"""Files with weights of few bits, in both forms: the same graph in clew, the same results in ONNX
Runtime and OpenVINO.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, numpy_helper
from small_models import drawn, model, node, stack
from test_onnx_files import NORM, gemm, norm, ran, rows, samples, tied, two_readers

import clew
from clew.quantization import Rule, Scheme, Where
from clew.support.errors import InputError

ONLY = Scheme.weight_only
V, B = drawn(48, 8, scale=0.2), drawn(8, seed=7, scale=0.2)
FORMS = ("qdq", "matmulnbits")


def dense(nodes: Any, constants: dict[str, Any], opset: int = 17) -> ModelProto:
    return model(nodes, {"x": [4, 48]}, {"y": [4, 8]}, constants, opset)


def turned() -> ModelProto:
    """A product with the transposed operand."""
    nodes = [node("Gemm", ["x", "w", "b"], ["y"], name="fc", transA=1, alpha=0.5, beta=2.0)]
    return model(nodes, {"x": [48, 4]}, {"y": [4, 8]}, {"w": V, "b": B})


CASES = {
    "matmul": lambda: dense([node("MatMul", ["x", "w"], ["y"], name="fc")], {"w": V}),
    "matmul and sum": lambda: dense(
        [node("MatMul", ["x", "w"], ["a"], name="fc"), node("Add", ["a", "b"], ["y"], name="sum")],
        {"w": V, "b": B},
    ),
    "gemm": lambda: gemm(transB=0),
    "gemm of columns": lambda: gemm(transB=1),
    "gemm with factors": lambda: gemm(alpha=0.5, beta=2.0),
    "gemm of a transposed operand": turned,
    "gemm and norm": lambda: rows(
        [node("Gemm", ["x", "w"], ["a"], name="fc"), norm("a")],
        {"w": drawn(16, 8, scale=0.25), **NORM},
    ),
    "two readers": two_readers,
    "tied weights": tied,
    "opset 9": lambda: dense([node("MatMul", ["x", "w"], ["y"], name="fc")], {"w": V}, 9),
}


def in_onnx_runtime(path: Path, feed: dict[str, Any]) -> Any:
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    # Otherwise it rounds operands to 8 bits where it merges DequantizeLinear and MatMul.
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    return ort.InferenceSession(str(path), options).run(None, feed)[0]


def shape_of(module: Any) -> str:
    """Returns the text of a graph without the names of layers and parameters."""
    text = re.sub(r'  // .*|@c\d+| "[^"]*"', "", str(module))
    return text[text.index("{") :]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("calibrated", [False, True])
def test_files_compute_what_modules_do(case: str, calibrated: bool, tmp_path: Path) -> None:
    network = CASES[case]()
    data = samples(network)
    scheme = ONLY("u4" if calibrated else "i4", group=16)
    q = clew.quantize(network, data if calibrated else None, scheme=scheme, threads=1)
    assert q.parameters
    wanted, exact = (ran(m, data[0]) for m in (q.module, q.original))
    size = np.abs(exact).max()
    assert 0 < np.abs(wanted - exact).max() < 0.3 * size
    for form in FORMS:
        path = tmp_path / f"{form}.onnx"
        q.save(path, form=form)
        onnx.checker.check_model(path, full_check=form == "qdq")
        module = clew.load(path)
        np.testing.assert_allclose(ran(module, data[0]), wanted, rtol=0, atol=2e-6 * size)
        if not calibrated and "gemm" not in case and "sum" not in case:
            assert shape_of(module) == shape_of(q.module)
        theirs = in_onnx_runtime(path, data[0])
        np.testing.assert_allclose(theirs, wanted, rtol=0, atol=2e-5 * size)


@pytest.mark.parametrize(
    ("dtype", "group", "code"),
    [
        ("i4", 32, TensorProto.INT4),
        ("u4", 16, TensorProto.UINT4),
        ("i8", 0, TensorProto.INT8),
        ("u8", 64, TensorProto.UINT8),
    ],
)
def test_both_forms_are_the_same_graph(dtype: str, group: int, code: int, tmp_path: Path) -> None:
    network = stack([drawn(40, 40, seed=n, scale=0.2) for n in range(2)])
    q = clew.quantize(network, scheme=ONLY(dtype, group=group), threads=1)
    x = {"x": drawn(4, 40)}
    wanted = ran(q.module, x)
    held = {}
    for form in FORMS:
        q.save(tmp_path / f"{form}.onnx", form=form)
        module = clew.load(tmp_path / f"{form}.onnx")
        assert shape_of(module) == shape_of(q.module)
        np.testing.assert_array_equal(ran(module, x), wanted)
        theirs = in_onnx_runtime(tmp_path / f"{form}.onnx", x)
        np.testing.assert_allclose(theirs, wanted, rtol=0, atol=1e-5)
        graph = onnx.load(tmp_path / f"{form}.onnx").graph
        held[form] = {t.name: t for t in graph.initializer}
    weight = held["qdq"]["w0.quantized"]
    assert weight.data_type == code
    assert list(weight.dims) == [40, 40]
    assert len(weight.raw_data) == 1600 * int(dtype[1]) // 8
    blocks = -(-40 // group) if group else 1
    block = group if group and group < 40 else 64
    packed = numpy_helper.to_array(held["matmulnbits"]["w0.quantized"])
    assert packed.shape == (40, blocks, block * int(dtype[1]) // 8)
    assert ("w0.zero_point" in held["qdq"]) == (dtype[0] == "u")


def test_numbers_of_4_bits_are_packed_low_half_first(tmp_path: Path) -> None:
    q = clew.quantize(CASES["matmul"](), scheme=ONLY("i4", group=16), threads=1)
    q.save(tmp_path / "q.onnx", form="matmulnbits")
    (p,) = q.parameters
    held = {t.name: t for t in onnx.load(tmp_path / "q.onnx").graph.initializer}
    packed = numpy_helper.to_array(held["w.quantized"])
    whole = p.weight.astype(int).reshape(8, 3, 8, 2) + 8
    np.testing.assert_array_equal(packed, whole[..., 0] + 16 * whole[..., 1])
    np.testing.assert_array_equal(numpy_helper.to_array(held["w.scale"]), p.scales)


def test_convolutions(tmp_path: Path) -> None:
    nodes = [node("Conv", ["x", "w"], ["y"], name="c", pads=[1, 1, 1, 1])]
    constants = {"w": drawn(8, 6, 3, 3, scale=0.15)}
    network = model(nodes, {"x": [1, 6, 5, 5]}, {"y": [1, 8, 5, 5]}, constants)
    x = {"x": drawn(1, 6, 5, 5)}
    for dtype, opset in (("i8", 17), ("u4", 21)):
        q = clew.quantize(network, scheme=ONLY(dtype, group=0), threads=1)
        q.save(tmp_path / "q.onnx")
        assert onnx.load(tmp_path / "q.onnx").opset_import[0].version == opset
        module = clew.load(tmp_path / "q.onnx")
        np.testing.assert_array_equal(ran(module, x), ran(q.module, x))
        theirs = in_onnx_runtime(tmp_path / "q.onnx", x)
        np.testing.assert_allclose(theirs, ran(q.module, x), rtol=0, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_openvino(form: str, tmp_path: Path) -> None:
    openvino = pytest.importorskip("openvino")
    network, data = CASES["matmul"](), samples(CASES["matmul"]())
    q = clew.quantize(network, data, scheme=ONLY(group=16, rounding="gptq"), threads=1)
    q.save(tmp_path / "q.onnx", form=form)
    options = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
    found = openvino.Core().compile_model(str(tmp_path / "q.onnx"), "CPU", options)
    theirs = found([data[0]["x"]])[0]
    np.testing.assert_allclose(theirs, ran(q.module, data[0]), rtol=0, atol=1e-5)


def test_groups_that_matmulnbits_lacks(tmp_path: Path) -> None:
    q = clew.quantize(CASES["matmul"](), scheme=ONLY(group=24), threads=1)
    with pytest.raises(InputError) as error:
        q.save(tmp_path / "q.onnx", form="matmulnbits")
    assert (error.value.code, error.value.layer) == ("I396", "fc")
    q.save(tmp_path / "q.onnx")
    x = samples(CASES["matmul"]())[0]
    np.testing.assert_array_equal(ran(clew.load(tmp_path / "q.onnx"), x), ran(q.module, x))


def test_opsets_that_onnx_cannot_convert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("no adapter")

    monkeypatch.setattr(onnx.version_converter, "convert_version", fails)
    q = clew.quantize(CASES["matmul"](), scheme=ONLY(group=16), threads=1)
    with pytest.raises(InputError) as error:
        q.save(tmp_path / "q.onnx")
    assert error.value.code == "I397"
    assert "matmulnbits" in str(error.value)
    q.save(tmp_path / "q.onnx", form="matmulnbits")


def in_blocks(
    weight: Any, scale: Any, zero: Any = None, op: str = "MatMul", **attrs: Any
) -> ModelProto:
    given = {"w": weight, "s": scale} | ({} if zero is None else {"z": zero})
    nodes = [
        node("DequantizeLinear", list(given), ["d"], name="weight", **attrs),
        node(op, ["x", "d"], ["y"], name="fc", **({"transB": 1} if op == "Gemm" else {})),
    ]
    depth = weight.shape[1 if op == "Gemm" else 0]
    made = model(nodes, {"x": [4, depth]}, {"y": [4, 8]}, given, 21)
    made.ir_version = 10
    return made


def test_other_forms_of_blocks(tmp_path: Path) -> None:
    """Files of others: signed with zero points, rows by `transB`, and what is no weight in blocks
    of input channels.
    """
    rng = np.random.default_rng(0)
    codes = rng.integers(-8, 8, (32, 8)).astype(ml_dtypes.int4)
    zeros = rng.integers(-8, 8, (2, 8)).astype(ml_dtypes.int4)
    scales = rng.random((2, 8)).astype("f")
    x = drawn(4, 32)
    value = (codes.astype("f") - zeros.astype("f").repeat(16, 0)) * scales.repeat(16, 0)
    rows = [np.ascontiguousarray(v.T) for v in (codes, scales, zeros)]
    turned = in_blocks(*rows, op="Gemm", axis=1, block_size=16)
    turned.graph.node[1].CopyFrom(node("MatMul", ["x", "t"], ["y"], name="fc"))
    turned.graph.node.insert(1, node("Transpose", ["d"], ["t"], name="turn", perm=[1, 0]))
    for network in (
        in_blocks(codes, scales, zeros, axis=0, block_size=16),
        in_blocks(*rows, op="Gemm", axis=1, block_size=16),
        turned,
    ):
        module = clew.load(network)
        assert "u4[8, 32] = const" in str(module)
        assert "axis=1, block=16" in str(module)
        np.testing.assert_allclose(ran(module, {"x": x}), x @ value, rtol=0, atol=1e-4)
    across = rng.random((32, 2)).astype("f")  # blocks of output channels
    module = clew.load(in_blocks(codes, across, axis=1, block_size=4))
    assert "i4[32, 8] = const" in str(module)
    wanted = x @ (codes.astype("f") * across.repeat(4, 1))
    np.testing.assert_allclose(ran(module, {"x": x}), wanted, rtol=0, atol=1e-4)


def test_mixed_forms_in_a_file(tmp_path: Path) -> None:
    """Integers, weights alone, and floats."""
    network = stack([drawn(32, 32, seed=n, scale=0.25) for n in range(3)])
    data = [{"x": drawn(4, 32, seed=n)} for n in range(8)]
    static = {"activations": "u8", "weights": "i8", "group": 0, "weight_bits": 7}
    rules = [Rule(Where(first=1), static), Rule(Where(last=1), keep=True)]
    q = clew.quantize(network, data, scheme=ONLY("i4"), rules=rules, threads=1)
    q.save(tmp_path / "q.onnx", form="matmulnbits")
    kinds = {n.op_type for n in onnx.load(tmp_path / "q.onnx").graph.node}
    assert kinds >= {"QuantizeLinear", "DequantizeLinear", "MatMul", "MatMulNBits"}
    wanted = ran(q.module, data[0])
    np.testing.assert_array_equal(ran(clew.load(tmp_path / "q.onnx"), data[0]), wanted)
    theirs = in_onnx_runtime(tmp_path / "q.onnx", data[0])
    assert np.abs(theirs - wanted).max() < 0.02 * np.abs(wanted).max()
