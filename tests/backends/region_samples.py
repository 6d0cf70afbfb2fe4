"""Samples of operators as regions of one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from clew.ir.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem, Var
from clew.ir.types import TupleType, from_numpy, is_float
from clew.ops.registry import Op, Sample
from clew.ops.sample_checks import arrays_of, fields, half_difference

Array = np.ndarray[Any, Any]


class Case:
    """A sample as a call. The first `brought` arguments are parameters (by default, all), and the
    others are constants.
    """

    def __init__(self, op: Op, number: int, sample: Sample, *, brought: int | None = None) -> None:
        self.name = f"{op.name}-{number}"
        self.arrays = [np.asarray(a) for a in arrays_of(op, sample)]
        self.params: list[Var] = []
        args: list[Expr] = []
        for n, array in enumerate(self.arrays):
            constant = Constant(array)
            if brought is not None and n >= brought:
                args.append(constant)
            else:
                self.params.append(Var(f"x{n}", constant.tensor))
                args.append(self.params[-1])
        self.call = op(*args, **sample.attrs)
        self.op = op

    @property
    def function(self) -> Function:
        """A function with all results of the call."""
        return Function(self.params, all_of([self.call]))

    def expected(self) -> list[Array]:
        """Returns the results of the reference."""
        with np.errstate(all="ignore"):
            made = self.op.run_reference(self.arrays, self.call.attrs)
        return [np.asarray(a) for a in fields(made)]

    def found(self, compile_: Callable[[Function], Callable[..., Sequence[Array]]]) -> list[Array]:
        """Returns the results of a compiled region."""
        given = self.arrays[: len(self.params)]
        return [np.asarray(a) for a in compile_(self.function)(*given)]


def all_of(calls: Sequence[Call]) -> Tuple:
    """Returns a tuple of all results of calls."""
    results: list[Expr] = []
    for call in calls:
        if isinstance(call.type, TupleType):
            results += [TupleGetItem(call, n) for n in range(len(call.type.fields))]
        else:
            results.append(call)
    return Tuple(results)


def same(found: Sequence[Array], expected: Sequence[Array], tolerance: float = 1e-5) -> None:
    """Compares results: floats up to a tolerance, others exactly."""
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        if is_float(from_numpy(b.dtype)):
            if b.dtype.itemsize == 2:
                assert half_difference(a, b, units=4) == ""
                continue
            wide = a.astype("f8"), b.astype("f8")
            np.testing.assert_allclose(*wide, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(a, b)
