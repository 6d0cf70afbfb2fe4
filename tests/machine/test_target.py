"""What a machine offers, and how its fields tell native code apart."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import onnx.parser
import pytest

import clew
from clew.machine.target import Target, host

EXP = """<ir_version: 9, opset_import: ["" : 18]>
agraph (float[64, 64] x) => (float[64, 64] y) { y = Exp (x) }"""


def changed(value: Any) -> Any:
    """Returns another value of the same type."""
    match value:
        case bool():
            return not value
        case int():
            return value * 2
        case _:
            return f"{value}x"


@pytest.mark.parametrize("field", [f.name for f in fields(Target)])
def test_code_for_one_machine_is_not_served_to_another(field: str) -> None:
    here = host()
    assert replace(here, **{field: changed(getattr(here, field))}).key != here.key


def test_a_kernel_is_compiled_anew_for_other_vectors(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("CLEW_CACHE_DIR", str(tmp_path))
    here = host()
    narrow = replace(here, vector_bits=here.vector_bits // 2)
    source = onnx.parser.parse_model(EXP)
    x = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    symbols = []
    for target in (here, narrow, here):
        compiled = clew.compile(source, threads=1, target=target)
        np.testing.assert_allclose(compiled(x), np.exp(x), rtol=1e-6)
        symbols.append(compiled.kernels[0].llvm)
    assert symbols[0] == symbols[2] != symbols[1]
