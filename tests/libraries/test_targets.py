"""Libraries for other machines, run by an emulator."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

import clew

from .c_programs import STRICT, Array, compiled, message, needs, network, random_inputs

_TOOLS = {
    "aarch64": ("aarch64-linux-gnu-gcc", "qemu-aarch64"),
    "aarch64+i8mm": ("aarch64-linux-gnu-gcc", "qemu-aarch64 -cpu max"),
    "armv7": ("arm-linux-gnueabihf-gcc", "qemu-arm"),
    "riscv64": ("riscv64-linux-gnu-gcc", "qemu-riscv64"),
    "riscv64+v": ("riscv64-linux-gnu-gcc", "qemu-riscv64 -cpu rv64,v=true,vext_spec=v1.0"),
    "x86-64-v2": ("gcc", ""),
}


def _case(target: str) -> object:
    gcc, emulator = _TOOLS[target]
    programs = [gcc, *emulator.split()[:1]]
    return pytest.param(target, marks=needs(*programs), id=target)


@pytest.fixture(scope="module")
def wanted() -> tuple[dict[str, Array], Array]:
    """Inputs, and the results of the model on this machine."""
    model = clew.compile(network())
    feed = random_inputs(model)
    return feed, model.run(feed)["y"]


@pytest.mark.parametrize("target", [_case(target) for target in _TOOLS])
def test_an_emulator_runs_the_library(target: str, wanted: Any, tmp_path: Path) -> None:
    gcc, emulator = _TOOLS[target]
    model, made = compiled(network(), tmp_path, target=target)
    feed, result = wanted
    feed["x"].tofile(tmp_path / "x.bin")
    command = [gcc, *STRICT, "-static", "main.c", "libnet.a", "-lm", "-o", "main"]
    subprocess.run(command, cwd=tmp_path, check=True)
    command = [*emulator.split(), "./main", "x.bin", "y.bin"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    found = np.fromfile(tmp_path / "y.bin", np.float32).reshape(8, 10)
    # Sums are divided among lanes, of which machines have different numbers.
    np.testing.assert_allclose(found, result, rtol=1e-5, atol=1e-6)
    assert made.triple == model.options.target.triple


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
