"""Steps that only change how values are stored, in models of any origin."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import clew
from clew.correlate.conversion_rows import Conversions

RNG = np.random.default_rng(0)


def layers_of_two(quantized: bool = True) -> bytes:
    """Returns two convolutions with a ReLU and a transposition between, as another tool quantizes
    them.
    """
    nodes: list[Any] = []
    held: dict[str, Any] = {"step": np.float32(0.05), "zero": np.uint8(128)}

    def rounded(value: str) -> str:
        if not quantized:
            return value
        for op, read, made in (
            ("QuantizeLinear", value, f"{value}.q"),
            ("DequantizeLinear", f"{value}.q", f"{value}.d"),
        ):
            nodes.append(helper.make_node(op, [read, "step", "zero"], [made], name=made))
        return f"{value}.d"

    value = "x"
    for name in ("one", "two"):
        weight = RNG.standard_normal((16, 16, 3, 3)).astype(np.float32) * 0.05
        read = rounded(value)
        if quantized:
            held[f"{name}.i"] = np.clip(np.rint(weight / 0.002), -127, 127).astype(np.int8)
            held[f"{name}.s"] = np.float32(0.002)
            reads = [f"{name}.i", f"{name}.s"]
            nodes.append(
                helper.make_node("DequantizeLinear", reads, [f"{name}.w"], name=f"{name}.w")
            )
        else:
            held[f"{name}.w"] = weight
        nodes.append(
            helper.make_node("Conv", [read, f"{name}.w"], [f"{name}.c"], name=name, pads=[1] * 4)
        )
        nodes.append(helper.make_node("Relu", [f"{name}.c"], [f"{name}.r"], name=f"{name}.relu"))
        value = f"{name}.r"
        if name == "one":
            value = rounded(value)
            nodes.append(
                helper.make_node("Transpose", [value], ["t"], name="turn", perm=[0, 1, 3, 2])
            )
            value = "t"
    used = {n for node in nodes for n in node.input}
    graph = helper.make_graph(
        nodes,
        "two",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16, 8, 8])],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, [1, 16, 8, 8])],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in held.items() if n in used],
    )
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    onnx.checker.check_model(model)
    return model.SerializeToString()


def found_in(model: bytes, **options: Any) -> Conversions:
    return clew.compile(model, threads=1, **options).conversions()


def test_every_step_is_accounted_for() -> None:
    compiled = clew.compile(layers_of_two(), threads=1, target="cpu-avx2")
    rows = compiled.conversions()
    by_layer = {r.layer: r for r in rows if r.layer}
    steps = {name for name in compiled.trace.layers if name.endswith((".q", ".d", ".w"))}
    assert by_layer.keys() == steps
    assert all(r.fate for r in rows)
    first = by_layer["x.q"]
    assert (first.before, first.after, first.value, first.readers) == ("f32", "u8", "x", ("one",))
    assert (first.scale, first.zero) == (np.float32(0.05), 128)
    kernels = {k.name for k in compiled.kernels}
    assert {r.kernel for r in rows if r.kernel} <= kernels
    assert all(r.kernel for r in rows if r.fate in ("kernel", "fused"))
    weight = by_layer["one.w"]
    assert weight.constant
    assert weight.fate in ("merged", "cancelled", "folded")


def test_what_passes_did_with_them() -> None:
    rows = {r.layer: r for r in found_in(layers_of_two(), target="cpu-avx2") if r.layer}
    # One step from sums of products to bytes, in the convolution's kernel.
    result = rows["one.r.q"]
    assert (result.became, result.fate) == ("requantize", "fused")
    assert "RequantizeSums" in result.passes
    assert "conv2d" in result.kernel
    # The same numbers before and after the transposition, which therefore moves bytes.
    moved = rows["one.r.d"]
    assert "MoveQuantization" in moved.passes
    again = rows["t.q"]
    assert (again.fate, again.became) == ("cancelled", "transpose")
    assert "cancelled" in again.why[0]


def test_what_passes_insert() -> None:
    inserted = [r for r in found_in(layers_of_two(), target="cpu-avx2") if r.inserted_by]
    casts = [r for r in inserted if r.step == "cast"]
    assert {r.inserted_by for r in casts} == {"NarrowIntegers"}
    assert {r.after for r in casts} <= {"i16", "i32"}
    assert "multiplies integers, u8 x i8" in casts[0].why[0]
    layouts = list(found_in(layers_of_two(False), target="cpu-avx2"))
    assert layouts
    assert {r.step for r in layouts} == {"layout_transform"}
    assert {r.inserted_by for r in layouts} == {"AlterLayout"}
    assert any("required by" in why for r in layouts for why in r.why)


def test_narrow_floats() -> None:
    rows = found_in(layers_of_two(False), precision="bf16", target="cpu-avx2")
    narrow = [r for r in rows if r.step == "cast"]
    assert narrow
    assert {(r.before, r.after, r.inserted_by) for r in narrow} == {
        ("f32", "bf16", "ConvertPrecision")
    }


def test_as_text_and_data() -> None:
    found = found_in(layers_of_two(), target="cpu-avx2")
    text = str(found)
    assert all(len(line) <= 100 for line in text.splitlines())
    assert "quantize f32 → u8" in text
    assert "of parameters: 2" in text
    assert len(found.to_json()) == len(found)
    assert found.of("one")
    kernel = next(r.kernel for r in found if r.kernel)
    assert found.in_kernel(kernel)
    assert len(repr(found).splitlines()) == 1
