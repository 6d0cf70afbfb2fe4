"""Libraries for other machines, run by an emulator."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import clew
from emulators import TOOLS, missing, run

from .c_programs import Array, compiled, message, needs, network, random_inputs


def _case(target: str) -> object:
    compiler, emulator = TOOLS[target]
    return pytest.param(target, marks=needs(compiler, *emulator.split()[:1]), id=target)


@pytest.fixture(scope="module")
def wanted() -> tuple[dict[str, Array], Array]:
    """Inputs, and the results of the model on this machine."""
    model = clew.compile(network())
    feed = random_inputs(model)
    return feed, model.run(feed)["y"]


@pytest.mark.parametrize("target", [_case(target) for target in TOOLS])
def test_an_emulator_runs_the_library(target: str, wanted: Any, tmp_path: Path) -> None:
    if missing(target):
        pytest.skip(f"needs {missing(target)}")
    model, made = compiled(network(), tmp_path, target=target, threads=1)
    feed, result = wanted
    found = run(target, made, feed, {"y": ((8, 10), np.float32)})
    # Sums are divided among lanes, of which machines have different numbers.
    np.testing.assert_allclose(found["y"], result, rtol=1e-5, atol=1e-6)
    assert made.triple == model.options.target.triple


@pytest.mark.parametrize("target", [_case(target) for target in TOOLS])
def test_an_emulator_runs_integers(target: str, tmp_path: Path) -> None:
    if missing(target):
        pytest.skip(f"needs {missing(target)}")
    random = np.random.default_rng(0)
    weights: dict[str, Array] = {
        "w": random.integers(-128, 128, (5, 7)).astype(np.int8),
        "zero": np.array(-3, np.int8),
        "scale": np.array(0.25, np.float32),
        "code": np.array(7, np.int8),
    }
    nodes = [
        helper.make_node("MatMulInteger", ["x", "w", "zero"], ["sums"]),
        helper.make_node("Cast", ["sums"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("QuantizeLinear", ["floats", "scale", "code"], ["y"]),
    ]
    source = message(nodes, {"x": [4, 5]}, {"y": [4, 7]}, weights, TensorProto.INT8)
    here = clew.compile(source)
    feed = random_inputs(here)
    _, made = compiled(source, tmp_path, target=target, threads=1)
    found = run(target, made, feed, {"y": ((4, 7), np.int8)})
    assert found["y"].tobytes() == here.run(feed)["y"].tobytes()


@pytest.mark.parametrize(
    ("channels", "groups"), [(8, 1), (8, 8), (1, 1)], ids=["dense", "depthwise", "single"]
)
@pytest.mark.parametrize("target", [_case(t) for t in TOOLS if t.startswith("cortex")])
def test_microcontrollers_store_bytes(
    target: str, channels: int, groups: int, tmp_path: Path
) -> None:
    """Weights have a byte per element, values between layers, too, and results are equal."""
    random = np.random.default_rng(0)
    weights: dict[str, Array] = {
        "w": random.integers(-128, 128, (8, channels // groups, 3, 3)).astype(np.int8),
        "v": random.integers(-128, 128, (8 * 12 * 12, 4)).astype(np.int8),
        "zero": np.array(-3, np.int8),
        "none": np.array(0, np.int8),
        "scale": np.array(0.25, np.float32),
        "wide": np.array(20.0, np.float32),
        "wider": np.array(200.0, np.float32),
        "rows": np.array([1, -1]),
    }
    product = ["scale", "zero", "v", "scale", "none", "wider", "zero"]
    conv = ["x", "scale", "zero", "w", "scale", "none", "wide", "zero"]
    nodes = [
        helper.make_node("QLinearConv", conv, ["c"], pads=[1, 1, 1, 1], group=groups),
        helper.make_node("Reshape", ["c", "rows"], ["r"]),
        helper.make_node("QLinearMatMul", ["r", *product], ["y"]),
    ]
    source = message(nodes, {"x": [1, channels, 12, 12]}, {"y": [1, 4]}, weights, TensorProto.INT8)
    here = clew.compile(source, threads=1)
    feed = random_inputs(here)
    _, made = compiled(source, tmp_path, target=target, threads=1)
    stored = weights["w"].size + weights["v"].size
    assert made.weights_bytes < stored + 512
    # Kernels that sum over one channel check positions.
    copied = 8 * 14 * 14 if channels // groups > 1 else 0
    assert made.workspace_bytes < copied + 8 * 12 * 12 + 256
    found = run(target, made, feed, {"y": ((1, 4), np.int8)})
    assert found["y"].tobytes() == here.run(feed)["y"].tobytes()
    assert len(np.unique(found["y"])) > 1


@needs("arm-none-eabi-readelf", "arm-none-eabi-gcc")
@pytest.mark.parametrize("target", ["cortex-m4", "cortex-m7", "cortex-m55"])
def test_microcontrollers_pass_floats_in_registers(target: str, tmp_path: Path) -> None:
    compiled(network(), tmp_path, target=target, threads=1)
    command = ["arm-none-eabi-readelf", "-A", "net.o"]
    told = subprocess.run(command, cwd=tmp_path, check=True, text=True, capture_output=True).stdout
    assert "Tag_ABI_VFP_args: VFP registers" in told


@needs("aarch64-linux-gnu-objdump")
@pytest.mark.parametrize(
    ("target", "word"), [("aarch64+dotprod", "sdot"), ("aarch64+i8mm", "usdot")]
)
def test_dot_products_are_used(target: str, word: str, tmp_path: Path) -> None:
    weight = np.random.default_rng(0).integers(-128, 128, (64, 64)).astype(np.int8)
    node = helper.make_node("MatMulInteger", ["x", "w"], ["y"])
    model = message(
        [node], {"x": [64, 64]}, {"y": [64, 64]}, {"w": weight},
        kinds={"x": TensorProto.UINT8, "y": TensorProto.INT32},
    )  # fmt: skip
    compiled(model, tmp_path, target=target, threads=1)
    command = ["aarch64-linux-gnu-objdump", "-d", "net.o"]
    code = subprocess.run(command, cwd=tmp_path, check=True, text=True, capture_output=True).stdout
    assert f"\t{word}\t" in code


@pytest.mark.parametrize(
    ("target", "head"),
    [
        pytest.param("cortex-m4", b"\x7fELF\x01\x01", id="cortex-m4"),
        pytest.param("cortex-m55", b"\x7fELF\x01\x01", id="cortex-m55"),
        pytest.param("wasm32", b"\0asm\x01", id="wasm32"),
    ],
)
def test_other_targets_give_objects(target: str, head: bytes, tmp_path: Path) -> None:
    compiled(network(), tmp_path, target=target)
    assert (tmp_path / "net.o").read_bytes().startswith(head)


@needs("objdump")
def test_matrix_tiles_are_used(tmp_path: Path) -> None:
    weight = np.ones((64, 64), np.float32)
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    model = message([node], {"x": [64, 64]}, {"y": [64, 64]}, {"w": weight})
    compiled(model, tmp_path, target="x86-64-v4+amx", precision="bf16")
    command = ["objdump", "-d", "net.o"]
    code = subprocess.run(command, cwd=tmp_path, check=True, text=True, capture_output=True).stdout
    assert "tdpbf16ps" in code
    assert "ARCH_REQ_XCOMP_PERM" in (tmp_path / "README.md").read_text()


def test_vectors_shorter_than_the_shortest_block_of_channels(tmp_path: Path) -> None:
    weight = np.ones((8, 8, 3, 3), np.float32)
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 3, 1, 2]),
        helper.make_node("Conv", ["t", "w"], ["y"], pads=[1, 1, 1, 1]),
    ]
    source = message(nodes, {"x": [1, 6, 6, 8]}, {"y": [1, 8, 6, 6]}, {"w": weight})
    compiled(source, tmp_path, target="riscv64", threads=1)
    assert (tmp_path / "net.o").exists()
