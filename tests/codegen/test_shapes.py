"""Compiled operators at the extents, dtypes and axes of `shapes`, behind guard pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from shapes import Case, groups

import clew
from clew.ir.expr import Expr, Function, Tuple, TupleGetItem, Var
from clew.ir.module import Module
from clew.ir.types import TensorType, from_numpy, is_float
from clew.passes.fusion.fuse_ops import FuseOps
from clew.runtime.guard import GuardSide

Array = np.ndarray[Any, Any]
_GROUPS = groups()
_PARTS = 3
_RTOL = {"f16": 2e-3, "bf16": 1.6e-2, "f32": 1e-5, "f64": 1e-12}


@pytest.fixture(scope="module")
def run_cases(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[Array]]:
    """`run_cases(cases, threads, side)`: the result of each case. They are outputs of one model."""
    folder = tmp_path_factory.mktemp("cache")

    def run(cases: Sequence[Case], threads: int, side: GuardSide) -> list[Array]:
        params: list[Var] = []
        results: list[Expr] = []
        arrays: list[Array] = []
        for case in cases:
            given = case.arrays()
            first = len(params)
            params += [
                Var(f"x{first + k}", TensorType(a.shape, from_numpy(a.dtype)))
                for k, a in enumerate(given)
            ]
            call = case.op(*params[first:], **case.attrs)
            results += [TupleGetItem(call, 0) if case.op.name == "split" else call]
            arrays += given
        names = tuple(f"y{n}" for n in range(len(results)))
        module = Module({"main": Function(params, Tuple(results), {"outputs": names})})
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("CLEW_CACHE_DIR", str(folder))
            compiled = clew.compile(
                module,
                passes=[FuseOps(mode="none")],
                threads=threads,
                diagnostics=clew.Diagnostics(guard=side),
            )
        found = compiled(*arrays)
        return list(found)

    return run


# In parts, of which `make test` runs some, because there are some 1,500 cases.
@pytest.mark.parametrize("part", range(_PARTS))
@pytest.mark.parametrize("group", _GROUPS)
def test_agrees_with_the_references(
    group: str, part: int, run_cases: Callable[..., list[Array]]
) -> None:
    wrong: list[str] = []
    cases = _GROUPS[group][part::_PARTS]
    results = run_cases(cases, 2, GuardSide.END)
    for case, found in zip(cases, results, strict=True):
        try:
            _compare(case, found)
        except AssertionError as error:
            wrong.append(f"{case.name}: {error}")
    assert not wrong, "\n".join(wrong)
    again = run_cases(cases, 1, GuardSide.START)
    for case, one, two in zip(cases, again, results, strict=True):
        assert one.tobytes() == two.tobytes(), f"{case.name} depends on the number of threads"


def _compare(case: Case, found: Array) -> None:
    with np.errstate(all="ignore"):
        result = case.op.run_reference(case.arrays(), case.op.bind(case.attrs))
    wanted = np.asarray(result[0] if isinstance(result, tuple) else result)
    assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    if not is_float(from_numpy(wanted.dtype)):
        np.testing.assert_array_equal(found, wanted)
        return
    rtol = _RTOL[from_numpy(wanted.dtype)]
    scale = float(np.max(np.abs(wanted.astype("f8")), initial=1.0, where=np.isfinite(wanted)))
    np.testing.assert_allclose(
        found.astype("f8"), wanted.astype("f8"), rtol=rtol, atol=rtol * scale
    )
