from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from graphs import lookup

from clew.ir.expr import Constant, Function, Tuple
from clew.ir.module import Module
from clew.ir.printer import printed
from clew.ir.structural import structural_equal
from clew.ir.textfile import load_module, save_module
from clew.support.errors import TextError
from clew.trace.span import Source, Span

DTYPES = [
    np.bool_, np.int8, np.uint64, np.float16, np.float64,
    ml_dtypes.bfloat16, ml_dtypes.int4, ml_dtypes.float8_e5m2,
]  # fmt: skip


def module() -> Module:
    span = Span([Source("wé\n", kind="parameter")])
    values = [(np.arange(40) % 7).astype(t).reshape(4, 10) for t in DTYPES]
    return Module({"main": Function([], Tuple([Constant(v, span=span) for v in values]))})


def test_a_module_survives_in_files(tmp_path: Path) -> None:
    save_module(module(), tmp_path / "m.clew")
    again = load_module(tmp_path / "m.clew", operators=lookup)
    assert structural_equal(again, module())
    assert printed(again).text == printed(module()).text


@pytest.mark.parametrize("missing", ["m.clew", "m.npz"])
def test_a_missing_file(tmp_path: Path, missing: str) -> None:
    save_module(module(), tmp_path / "m.clew")
    (tmp_path / missing).unlink()
    with pytest.raises(TextError, match="P011") as caught:
        load_module(tmp_path / "m.clew")
    assert missing in str(caught.value)


@pytest.mark.parametrize("keep", [0, 10, 400, -30])
def test_damaged_constants(tmp_path: Path, keep: int) -> None:
    save_module(module(), tmp_path / "m.clew")
    data = (tmp_path / "m.npz").read_bytes()
    (tmp_path / "m.npz").write_bytes(data[:keep])
    with pytest.raises(TextError, match="P011"):
        load_module(tmp_path / "m.clew")


def test_a_text_that_names_no_arrays_needs_none(tmp_path: Path) -> None:
    path = tmp_path / "m.txt"
    path.write_text(
        "clew 1\ndef @main(\n  %x: f32[2]\n) -> (f32[2],) {\n  %0: (f32[2],) = (%x,)\n"
        "  return %0\n}\n"
    )
    assert load_module(path).main.params[0].name == "x"
