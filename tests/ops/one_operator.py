"""Models of one operator, compiled behind guard pages and compared with its reference."""

from __future__ import annotations

from typing import Any

import numpy as np

import clew
from clew.ir.dims import SymDim
from clew.ir.expr import Function, Tuple, TupleGetItem, Var
from clew.ir.module import Module
from clew.ir.types import TensorType, TupleType, from_numpy
from clew.ops.registry import get_op
from clew.runtime.program import RunHost

Array = np.ndarray[Any, Any]


_STEPS = {"first_rows", "room", "nonzero_positions", "compressed", "kinds", "kept_boxes"}


def results(name: str, arrays: list[Array], free: bool, threads: int, **attrs: Any) -> list[Array]:
    """Returns the results of an operator in a compiled model. With `free`, all sizes have names:
    the same ones whatever the sizes are, so that the kernels are the same.
    """
    params = []
    known = dict.fromkeys(s for array in arrays for s in array.shape if s > 1)
    symbols = {size: SymDim.symbol(f"n{number}") for number, size in enumerate(known)}
    for n, array in enumerate(arrays):
        names = (symbols.get(s, s) for s in array.shape)
        shape = tuple(names) if free else array.shape
        params.append(Var(f"x{n}", TensorType(shape, from_numpy(array.dtype))))
    call = get_op(name)(*params, **attrs)
    count = len(call.type.fields) if isinstance(call.type, TupleType) else 0
    fields = [TupleGetItem(call, n) for n in range(count)] or [call]
    attrs = {"outputs": tuple(f"y{n}" for n in range(len(fields)))}
    module = Module({"main": Function(params, Tuple(fields), attrs)})
    compiled = clew.compile(
        module, threads=threads, diagnostics=clew.Diagnostics(guard=True), cache=False
    )
    found = list(compiled.run({p.name: a for p, a in zip(params, arrays, strict=True)}).values())
    if not free:
        steps = [i.label for i in compiled.build.program.instructions if isinstance(i, RunHost)]
        assert set(steps) <= _STEPS
    return found


def check(name: str, *arrays: Array, **attrs: Any) -> None:
    op = get_op(name)
    expected = op.run_reference(arrays, op.bind(attrs))
    expected = expected if isinstance(expected, tuple) else (expected,)
    for free, threads in ((False, 1), (True, 2)):
        for a, b in zip(results(name, list(arrays), free, threads, **attrs), expected, strict=True):
            assert a.dtype == b.dtype
            if from_numpy(a.dtype) == "bf16":  # of which NumPy knows no NaN
                a, b = a.astype(np.float32), b.astype(np.float32)
            np.testing.assert_array_equal(a, b, strict=True)
