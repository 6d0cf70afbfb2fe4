"""Operators that are functions of shared libraries."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clew
from clew.ops.common import f32, f64
from clew.support.errors import ClewError

SOURCE = """
#include <stdint.h>

void scale_rows(const float *x, const float *scale, float *out, int64_t n, int64_t m, double gain) {
  for (int64_t i = 0; i < n; i++)
    for (int64_t j = 0; j < m; j++) out[i * m + j] = x[i * m + j] * scale[i] * (float)gain;
}

void sum_and_count(const float *x, float *sum, int64_t *count, int64_t n) {
  *sum = 0;
  for (int64_t i = 0; i < n; i++) *sum += x[i];
  *count = n;
}
"""
SIGNATURE = "(f32[n, m], f32[n]) -> f32[n, m]"
MODEL = """
clew 1
def @main(
  %x: f32[n, 6],  // input x
  %s: f32[n]  // input s
) -> (f32[n, 6],) with outputs=["y"] {
  %0 = tanh(%x)  // act:Tanh#0
  %1 = extern.scale_rows(%0, %s, gain=2.0)  // own:ScaleRows#0
  %2 = exp(%1)  // last:Exp#0
  %3 = (%2,)  // last:Exp
  return %3
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler here")
    folder = tmp_path_factory.mktemp("library")
    (folder / "vendor.c").write_text(SOURCE)
    command = [compiler, "-O1", "-shared", "-fPIC", "vendor.c", "-o", "vendor.so"]
    subprocess.run(command, cwd=folder, check=True)
    return folder / "vendor.so"


@pytest.mark.parametrize("opt_level", [0, 3])
def test_a_library_s_function_takes_part(library: Path, opt_level: int) -> None:
    op = clew.extern_op(
        "extern.scale_rows",
        library,
        "scale_rows",
        SIGNATURE,
        attributes={"gain": float},
        overwrite=True,
    )
    clew.check_op(op, clew.Sample(f32(3, 5), f32(3), gain=0.5))
    compiled = clew.compile(
        clew.parse(MODEL), opt_level=opt_level, diagnostics=clew.Diagnostics(guard=True)
    )
    rng = np.random.default_rng(0)
    for n in (1, 4):
        x, s = rng.standard_normal((n, 6)).astype("f4"), rng.standard_normal(n).astype("f4")
        wanted = np.exp(np.tanh(x) * s[:, None] * 2)
        np.testing.assert_allclose(compiled.run({"x": x, "s": s})["y"], wanted, rtol=1e-5)
    assert compiled.trace.check() == []


def test_several_results_of_other_dtypes(library: Path) -> None:
    op = clew.extern_op(
        "extern.sums", library, "sum_and_count", "(f32[n]) -> (f32[], i64[])", overwrite=True
    )
    x = np.arange(5, dtype=np.float32)
    total, count = op.run_reference([x], {})
    assert (float(total), int(count)) == (10.0, 5)
    assert str(op.infer([clew.ir.expr.Var("x", f32(5))], op.bind({}))) == "(f32[], i64[])"


def _callback() -> Any:
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(
        lambda x, out, n: ctypes.memmove(out, x, 4 * n)
    )


def test_an_address_is_enough() -> None:
    copy = _callback()
    address = ctypes.cast(copy, ctypes.c_void_p).value
    assert address is not None
    op = clew.extern_op("extern.copy", address, "copy", "(f32[n]) -> f32[n]", overwrite=True)
    assert "host" in str(clew.check_op(op, clew.Sample(f32(7))))
    assert not op.is_builtin  # its meaning is not that of clew's version


@pytest.mark.parametrize(
    ("library", "signature", "attributes", "code"),
    [
        ("./nowhere.so", SIGNATURE, {}, "I086"),
        (1, "(f32[n]) -> f32[m]", {}, "T019"),
        (1, "(f32[n]) -> f32[n", {}, "P001"),
        (1, "(f32[n]) -> f32[n]", {"mode": str}, "T019"),
    ],
)
def test_mistakes_are_said(
    library: str | int, signature: str, attributes: dict[str, type], code: str
) -> None:
    with pytest.raises(ClewError) as caught:
        clew.extern_op(
            "extern.wrong", library, "f", signature, attributes=attributes, overwrite=True
        )
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("args", "code"),
    [
        ((f64(3, 4), f32(3)), "T101"),
        ((f32(3, 4, 5), f32(3)), "T102"),
        ((f32(3, 4), f32(4)), "T103"),
    ],
)
def test_calls_that_do_not_fit(args: tuple[Any, ...], code: str) -> None:
    copy = _callback()
    address = ctypes.cast(copy, ctypes.c_void_p).value
    assert address is not None
    op = clew.extern_op("extern.rows", address, "f", SIGNATURE, overwrite=True)
    with pytest.raises(ClewError) as caught:
        op(*(clew.ir.expr.Var(f"x{n}", t) for n, t in enumerate(args)))
    assert caught.value.code == code
