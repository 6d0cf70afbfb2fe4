"""Every operator's samples compiled, behind guard pages, against the numpy references."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest

import clew
import clew.ops
from clew.ir.expr import Expr, Function, Tuple, TupleGetItem, Var
from clew.ir.module import Module
from clew.ir.types import TensorType, from_numpy, is_float, to_numpy
from clew.ops.registry import Op, Sample, all_ops

Array = np.ndarray[Any, Any]
_OPS = [op for op in all_ops() if op.compute or op.decompose_rule]


def _array(rng: np.random.Generator, arg: TensorType | Array, sample: Sample) -> Array:
    if not isinstance(arg, TensorType):
        return np.asarray(arg)
    if arg.dtype == "bool":
        return rng.random(arg.concrete) < 0.5
    if is_float(arg.dtype):
        values: Array = rng.uniform(sample.low, sample.high, arg.concrete)
    else:
        values = rng.integers(int(sample.low), int(sample.high) + 1, arg.concrete)
    return np.asarray(values).astype(to_numpy(arg.dtype))


@pytest.mark.parametrize("opt_level", [0, 3])
@pytest.mark.parametrize("op", _OPS, ids=[op.name for op in _OPS])
def test_native_agrees_with_reference(op: Op, opt_level: int) -> None:
    """All samples are one model: each result is an output of its own."""
    rng = np.random.default_rng(zlib.crc32(op.name.encode()))
    params: list[Var] = []
    fields: list[Expr] = []
    feeds: dict[str, Array] = {}
    expected: list[Array] = []
    for n, sample in enumerate(s for s in op.samples if not s.error):
        arrays = [_array(rng, a, sample) for a in sample.args]
        args = [
            Var(f"x{n}_{k}", TensorType(a.shape, from_numpy(a.dtype))) for k, a in enumerate(arrays)
        ]
        call = op(*args, **sample.attrs)
        with np.errstate(all="ignore"):
            result = op.run_reference(arrays, call.attrs)
        params += args
        feeds.update({v.name: a for v, a in zip(args, arrays, strict=True)})
        if isinstance(result, tuple):
            fields += [TupleGetItem(call, k) for k in range(len(result))]
            expected += result
        else:
            fields.append(call)
            expected.append(np.asarray(result))
    names = tuple(f"y{n}" for n in range(len(fields)))
    module = Module({"main": Function(params, Tuple(fields), {"outputs": names})})
    compiled = clew.compile(
        module,
        opt_level=opt_level,
        threads=1,
        cache=False,
        guard=True,
        # It wants models with plain layouts, and some samples have blocked ones.
        disabled=("AlterLayout",),
    )
    actual = compiled.run(feeds)
    for name, wanted in zip(names, expected, strict=True):
        found = actual[name]
        assert (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
        if is_float(from_numpy(wanted.dtype)):
            rtol = 1e-2 if wanted.dtype.itemsize == 2 else 1e-5
            np.testing.assert_allclose(
                found.astype("f8"), wanted.astype("f8"), rtol=rtol, atol=rtol, err_msg=name
            )
        else:
            np.testing.assert_array_equal(found, wanted, err_msg=name)
