"""Parts in files: read back, run in a process of their own, and what is said of bad ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import clew
from clew.extraction.files import data_file
from clew.ir.textfile import load_arrays, save_arrays
from clew.support.errors import ClewError, InputError


def run(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, script.name, *arguments],
        cwd=script.parent,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def part(file: Path) -> clew.Part:
    return clew.extract(file, start="act", end="residual")


@pytest.mark.parametrize("suffix", ["txt", "py", "onnx"])
def test_read_back(part: clew.Part, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "new folder" / f"part.{suffix}"
    files = part.save(path)
    assert files == [path, data_file(path)]
    back = clew.load_part(path)
    assert (back.name, back.kind, back.layers) == (part.name, part.kind, part.layers)
    assert back.options == part.options
    for mine, its in zip(part.outputs.values(), back.outputs.values(), strict=True):
        np.testing.assert_array_equal(mine, its)
    assert back.check().passed


def test_text_is_a_module_as_any(part: clew.Part, tmp_path: Path) -> None:
    part.save(tmp_path / "part.txt")
    module = clew.load(tmp_path / "part.txt")
    assert str(module) == str(part.module)
    found = clew.compile(module, opt_level=0).run(part.inputs)
    np.testing.assert_array_equal(found["b"], part.outputs["b"])
    with pytest.raises(InputError, match=r"I140"):
        clew.load(tmp_path / "part.txt", inputs={"a": [2, 8]})


def test_narrow_floats(tmp_path: Path) -> None:
    module = clew.parse(
        """
        clew 1
        def @main(%x: bf16[2, 8]) -> (bf16[2, 8],) with outputs=["y"] {
          %0 = add(%x, %x)  // a:Add#0
          %1 = add(%0, %x)  // b:Add#0
          %2 = (%1,)
          return %2
        }
        """
    )
    x = np.linspace(-1, 1, 16).reshape(2, 8).astype(ml_dtypes.bfloat16)
    clew.extract(module, start="b", inputs={"x": x}).save(tmp_path / "part.py")
    back = clew.load_part(tmp_path / "part.py")
    assert back.inputs["x"].dtype == ml_dtypes.bfloat16
    assert back.check().passed


def test_a_script_runs_by_itself(part: clew.Part, file: Path, tmp_path: Path) -> None:
    part.save(tmp_path / "part.py")
    done = run(tmp_path / "part.py", "--threads", "1", "--repeats", "3", "--opt-level", "2")
    assert done.returncode == 0, done.stderr
    assert "act to residual: as captured, bit for bit" in done.stdout
    assert "at opt level 2" in done.stdout
    assert "3 runs: median" in done.stdout
    kernel = clew.compile(file).kernels[0].name
    clew.extract(file, kernel=kernel).save(tmp_path / "kernel.py")
    done = run(tmp_path / "kernel.py", "--threads", "1", "--repeats", "3")
    assert done.returncode == 0, done.stderr
    assert "1 kernel, 3 runs" in done.stdout


def test_values_of_other_inputs_are_told(part: clew.Part, tmp_path: Path) -> None:
    """What was captured with these outputs were other inputs."""
    path = tmp_path / "part.py"
    part.save(path)
    arrays = load_arrays(data_file(path))
    save_arrays(data_file(path), {**arrays, "in0": arrays["in0"] + 1})
    report = clew.load_part(path).check()
    assert not report.passed
    assert "NOT as captured" in str(report)
    assert "relative error" in str(report)
    done = run(path, "--threads", "1", "--repeats", "1")
    assert done.returncode == 1
    assert not clew.load_part(path).check(opt_level=3).passed


def test_paths_that_cannot_be(part: clew.Part, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"I135.*not have the suffix"):
        part.save(tmp_path / "part.xyz")
    (tmp_path / "file").write_text("")
    for suffix in ("txt", "py", "onnx"):
        with pytest.raises(InputError, match=r"I138.*cannot write"):
            part.save(tmp_path / "file" / f"part.{suffix}")


def test_files_that_are_no_part(part: clew.Part, tmp_path: Path) -> None:
    path = tmp_path / "part.py"
    with pytest.raises(ClewError, match=r"P011"):
        clew.load_part(path)
    part.save(path)
    arrays = load_arrays(data_file(path))
    about = json.loads(arrays["part"].tobytes())
    for changed in (
        {"format": 99},
        {"inputs": ["a", "b", "c", "d"]},
        {"layers": 3},
        {"options": None},
    ):
        text = json.dumps({**about, **changed}).encode()
        save_arrays(data_file(path), {**arrays, "part": np.frombuffer(text, np.uint8)})
        with pytest.raises(InputError, match=r"I139.*is not an extracted part"):
            clew.load_part(path)
    text = json.dumps({**about, "options": {"level": 0}}).encode()
    save_arrays(data_file(path), {**arrays, "part": np.frombuffer(text, np.uint8)})
    with pytest.raises(InputError, match=r"I139.*has the option level"):
        clew.load_part(path)
    save_arrays(data_file(path), {"x": np.zeros(3, np.float32)})
    with pytest.raises(InputError, match=r"I139"):
        clew.load_part(path)
    bare = clew.Part("bare", "layers", part.module, (), {}, {})
    with pytest.raises(InputError, match=r"I136"):
        bare.check()
