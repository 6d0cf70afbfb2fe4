"""Compares the outputs of two programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, Final

import numpy as np

from clew.ir.expr import Call, Constant
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter
from clew.ir.visit import post_order

_FLOATS: Final = 1e-3
"""The largest difference of outputs in floats, relative to the largest magnitude. Engines sum in
different orders and choose different algorithms of convolution."""
_QUANTIZED: Final = 0.05
"""The same for models that quantize values: a sum that rounds to the next code moves an output by a
step of its scale."""
_INTEGERS: Final = 1
"""The largest difference of 8-bit integers: engines round ties of quantization differently."""
_ROUNDING: Final = frozenset({"quantize", "requantize", "fake_quantize", "round_blocks"})
_MOST_ROUNDED: Final = 0.02  # the share of 8-bit integers that may differ
_NEARBY: Final = 2.0**-12
"""How much the constants of nearby models differ, relative to themselves: less than the precision
of calibrated scales."""
_NEIGHBORS: Final = 2
_LEEWAY: Final = 2.0  # times the difference of nearby models


class Reference:
    """A model's outputs on the CPU, with which those of other engines are compared.

    In a model that quantizes values, engines round some sums to another code, which moves the
    outputs of an ill-conditioned model by far more than a step. So where outputs differ by more
    than the tolerance, `run` also gives the outputs of nearby models, whose float constants differ
    by up to 2**-12 of themselves (`neighbor` makes one from a seed). The model does not determine
    its outputs more precisely than these differ.
    """

    def __init__(
        self,
        module: Module,
        run: Callable[[Module], Sequence[Any]],
        neighbor: Callable[[int], Module] | None = None,
    ) -> None:
        self._module = module
        self._run = run
        self._neighbor = neighbor or partial(nearby, module)
        self._tolerance = tolerance_for(module)

    @cached_property
    def outputs(self) -> Sequence[Any]:
        """The outputs of the model."""
        return self._run(self._module)

    @cached_property
    def slack(self) -> list[float]:
        """How much each output may differ because the model does not determine it, relative to the
        largest magnitude.
        """
        found = [0.0] * len(self.outputs)
        for seed in range(_NEIGHBORS):
            outputs = self._run(self._neighbor(seed))
            for n, (one, other) in enumerate(zip(outputs, self.outputs, strict=True)):
                a, b = np.asarray(one), np.asarray(other)
                if not _is_exact(b):
                    error = _relative(a.astype(np.float64), b.astype(np.float64))
                    found[n] = max(found[n], _LEEWAY * error)
        return found

    def disagreement(self, found: Sequence[Any]) -> str:
        """Returns how outputs differ from the model's; empty if they agree."""
        problem = disagreement(found, self.outputs, self._tolerance)
        if not problem or self._tolerance != _QUANTIZED:
            return problem
        return disagreement(found, self.outputs, self._tolerance, self.slack)


class _Nearby(Rewriter):
    """Changes `f32` and `f64` constants a little."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._rng = np.random.default_rng(seed // 2)
        self._by = -_NEARBY if seed % 2 else _NEARBY

    def rewrite_constant(self, old: Constant) -> Constant:
        if old.tensor.dtype not in ("f32", "f64"):
            return old
        by = 1 + self._by * self._rng.uniform(-1, 1, old.data.shape)
        with np.errstate(over="ignore"):
            moved = (old.data * by).astype(old.data.dtype)
        return Constant(np.where(np.isfinite(moved), moved, old.data), name=old.name)


def nearby(module: Module, seed: int) -> Module:
    """Returns a module whose `f32` and `f64` constants differ by up to 2**-12 of themselves, at
    random. An odd seed moves them opposite to the even seed before it.
    """
    return _Nearby(seed).rewrite_module(module)


def tolerance_for(module: Module) -> float:
    """Returns the largest difference of a module's outputs between engines, relative to the
    largest magnitude.
    """
    nodes = post_order([f for _, f in module], into_functions=True)
    ops = {n.op_name for n in nodes if isinstance(n, Call)}
    return _FLOATS if ops.isdisjoint(_ROUNDING) else _QUANTIZED


def disagreement(
    found: Sequence[Any],
    expected: Sequence[Any],
    tolerance: float = _FLOATS,
    slack: Sequence[float] = (),
) -> str:
    """Returns how outputs differ from those expected; empty if they agree. `tolerance` is for
    floats, relative to the largest magnitude; integers of more than 8 bits must be equal. Outputs
    that differ by no more than their `slack` agree, too.
    """
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        a, b = np.asarray(one), np.asarray(other)
        allowed = slack[number] if slack else 0.0
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"output {number} is {a.dtype}{list(a.shape)}, not {b.dtype}{list(b.shape)}"
        if _is_narrow(b):
            off = np.abs(a.astype(np.int32) - b)
            some = off.max(initial=0) > _INTEGERS or np.mean(off > 0) > _MOST_ROUNDED
            if some and not _relative(a.astype(np.float64), b.astype(np.float64)) <= allowed:
                return f"output {number} differs by up to {off.max()}"
        elif _is_exact(b):
            if not np.array_equal(a, b):
                return f"output {number} differs"
        else:
            error = _relative(a.astype(np.float64), b.astype(np.float64))
            if not error <= max(tolerance, allowed):
                return f"output {number} differs by {error:.2g} of the largest value"
    return ""


def _is_narrow(array: Any) -> bool:
    return array.dtype.kind in "iu" and array.dtype.itemsize == 1


def _is_exact(array: Any) -> bool:
    """Whether outputs like this one must be equal."""
    return array.dtype.kind in "iubUSOT" and not _is_narrow(array)


def _relative(a: Any, b: Any) -> float:
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return float("inf")
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return float("inf")
    a, b = a[finite], b[finite]
    largest = float(np.abs(b).max(initial=0.0))
    return float(np.abs(a - b).max(initial=0.0)) / largest if largest else float(np.any(a != b))
