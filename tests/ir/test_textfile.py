import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from graphs import lookup

from clew.frontends import text
from clew.ir.expr import Constant, Function, Tuple
from clew.ir.module import Module
from clew.ir.printer import printed
from clew.ir.structural import structural_equal
from clew.ir.textfile import load_module, save_module
from clew.support.budgets import Budgets, in_force
from clew.support.errors import InputError, TextError
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
    os.mkfifo(tmp_path / "m.npz")
    assert load_module(path).main.params[0].name == "x"  # it is not even opened


def test_only_the_arrays_that_a_text_names_are_read(tmp_path: Path) -> None:
    save_module(module(), tmp_path / "m.clew", {"more": np.zeros(1 << 20, np.float32)})
    with in_force(Budgets(tensor_bytes=1000)):
        assert structural_equal(load_module(tmp_path / "m.clew", operators=lookup), module())
    with in_force(Budgets(tensor_bytes=10)), pytest.raises(InputError, match="I331"):
        load_module(tmp_path / "m.clew", operators=lookup)


@pytest.mark.parametrize("which", ["m.clew", "m.npz"])
def test_pipes_are_not_waited_for(tmp_path: Path, which: str) -> None:
    save_module(module(), tmp_path / "m.clew")
    (tmp_path / which).unlink()
    os.mkfifo(tmp_path / which)
    with pytest.raises(TextError, match=rf"P011.*{which}: it is a pipe"):
        load_module(tmp_path / "m.clew", operators=lookup)
    with pytest.raises(InputError, match=r"I333.*cannot write the module to .*: it is a pipe"):
        save_module(module(), tmp_path / "m.clew")


def test_text_that_is_no_utf_8(tmp_path: Path) -> None:
    (tmp_path / "m.txt").write_bytes(b"clew 1\n# \xe9")
    with pytest.raises(TextError, match=r"P011.*not UTF-8 text: byte 0xe9 at 9"):
        load_module(tmp_path / "m.txt")


def test_arrays_stored_as_something_else(tmp_path: Path) -> None:
    save_module(module(), tmp_path / "m.clew")
    with np.load(tmp_path / "m.npz") as stored:
        arrays = dict(stored)
    name = next(n for n in arrays if n.endswith(".bf16"))
    for wrong in (arrays[name].astype(np.uint32), arrays[name].astype("S2")):
        np.savez(tmp_path / "m.npz", **{**arrays, name: wrong})
        with pytest.raises(TextError, match=r"P011.*bf16 stored as"):
            load_module(tmp_path / "m.clew", operators=lookup)


def test_budgets_of_a_text_model(tmp_path: Path) -> None:
    save_module(module(), tmp_path / "m.txt")
    with pytest.raises(InputError, match=r"I330.*bytes of .*m.txt"):
        text.load(tmp_path / "m.txt", budgets=Budgets(file_bytes=10))
    with pytest.raises(InputError, match="I331"):
        text.load(tmp_path / "m.txt", budgets=Budgets(tensor_bytes=10))
