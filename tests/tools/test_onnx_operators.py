"""What `clew ops --onnx` and the page of docs say of ONNX's operators is what the source says."""

from __future__ import annotations

import json

import onnx
import pytest
from typer.testing import CliRunner

import onnx_operators
from clew.cli.app import app
from clew.support.errors import InputError
from onnx_suite import ratchet


def output(*words: str) -> str:
    result = CliRunner().invoke(app, ["ops", "--onnx", *words])
    assert result.exit_code == 0, result.exception
    return result.stdout


@pytest.mark.skipif(
    ratchet.onnx_version() != onnx.__version__, reason="the files are about another onnx"
)
def test_files_are_up_to_date():
    for path, text in onnx_operators.texts().items():
        assert path.read_text() == text, f"`{ratchet.UPDATE}` or tools/onnx_operators.py writes it"


def test_all_operators_are_listed_as_data():
    listed = json.loads(output("--json"))
    assert len(listed["operators"]) > 200
    conv = next(f for f in listed["operators"] if f["name"] == "Conv")
    assert conv["support"] == "native"
    assert conv["versions"][0] == 1
    assert "f32" in conv["dtypes"]


def test_one_operator():
    text = output("conv")
    assert text.startswith("Conv  native")
    assert "tests passed" in text


def test_part_of_a_name():
    lines = output("quantize").splitlines()
    assert any(line.startswith("DequantizeLinear") for line in lines)
    assert not any(line.startswith("Conv ") for line in lines)


def test_an_unknown_name():
    result = CliRunner().invoke(app, ["ops", "--onnx", "Convv"])
    assert isinstance(result.exception, InputError)
    assert result.exception.code == "I064"
    assert "Conv" in result.exception.hint
