"""Names in C: prefixes of libraries, and fields for inputs, outputs and sizes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from onnx import helper

import clew
from clew.libraries import c_name
from clew.libraries.interface import Interface, Size

from .c_programs import STRICT, message, needs

_ODD = (
    "NULL", "EOF", "I", "errno", "unix", "linux", "INT32_MAX", "stdin", "uint8_t", "int", "class",
    "typeof", "co_await", "_Bool", "NET_MAX_THREADS", "NET_H", "net_inputs", "9", "ü", "a.b", "a-b",
    "a_b", "*/ int x; /*", "%s", "\n", '"', "n" * 300,
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Res-Net 50", "res_net_50"),
        ("50", "model_50"),
        ("é", "model"),
        ("int", "model_int"),
        ("String", "model_string"),
        ("test", "model_test"),
        ("x" * 63 + "-y", "x" * 63),
        ("9" * 70, "model_" + "9" * 58),
    ],
)
def test_names_of_models(text: str, name: str) -> None:
    assert c_name(text) == name


def test_names_that_are_taken_are_no_prefixes(tmp_path: Path) -> None:
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    model = clew.compile(message(nodes, {"x": [2]}, {"y": [2]}))
    for name in ("int", "stdint", "Math", "c", "all", "../x", "_x", "", "x" * 65):
        with pytest.raises(clew.ClewError, match="I470"):
            model.export_c(tmp_path, name)


@needs("gcc", "g++")
def test_any_names_of_inputs_and_outputs_are_fields(tmp_path: Path) -> None:
    nodes = [helper.make_node("Identity", [name], [f"{name} "]) for name in _ODD]
    model = message(nodes, {name: [2] for name in _ODD}, {f"{name} ": [2] for name in _ODD})
    clew.compile(model).export_c(tmp_path, "net")
    header = (tmp_path / "net.h").read_text()
    assert '*input0_NULL; /* "NULL"' in header
    assert '*output10_class; /* "class "' in header
    headers = ("errno", "math", "complex", "limits", "stdio")
    text = "".join(f"#include <{name}.h>\n" for name in headers)
    (tmp_path / "all.c").write_text(text + '#include "net.h"\n')
    (tmp_path / "all.cpp").write_text('#include <cstdio>\n#include "net.hpp"\n')
    gnu = ("-std=gnu11", *STRICT[1:])
    for command in (
        ("gcc", *gnu, "-fsyntax-only", "all.c"),
        ("gcc", *STRICT, "-fsyntax-only", "main.c"),
        ("g++", "-std=gnu++20", *STRICT[1:], "-fsyntax-only", "all.cpp"),
    ):
        subprocess.run(command, cwd=tmp_path, check=True)


def test_the_file_of_weights_has_a_field_of_its_own() -> None:
    sized = Interface("net", (), (), (Size("weights", "weights", 1, 2),))
    assert [tensor.field for tensor in sized.with_weights(64).inputs] == ["weights_"]
