"""Arithmetic on expressions of floats, for converters that write formulas."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from clew.frontends.building import call, cast, scalar
from clew.ir.expr import Expr


class Real:
    """An expression with Python's operators; numbers take its dtype."""

    def __init__(self, expr: Expr) -> None:
        self.expr = expr

    def number(self, value: Real | float) -> Real:
        """Returns a value itself, or a number in this dtype."""
        return value if isinstance(value, Real) else Real(scalar(value, self.expr.tensor.dtype))

    def cast(self, dtype: str) -> Real:
        """Returns the value in another dtype."""
        return Real(cast(self.expr, dtype))

    def _with(self, op: str, *others: Real | float) -> Real:
        return Real(call(op, self.expr, *(self.number(other).expr for other in others)))

    def __add__(self, other: Real | float) -> Real:
        return self._with("add", other)

    def __sub__(self, other: Real | float) -> Real:
        return self._with("subtract", other)

    def __mul__(self, other: Real | float) -> Real:
        return self._with("multiply", other)

    def __truediv__(self, other: Real | float) -> Real:
        return self._with("divide", other)

    def __lt__(self, other: Real | float) -> Expr:
        return self._with("less", other).expr

    def __getattr__(self, op: str) -> Callable[..., Real]:
        return lambda *others: self._with(op, *others)


def chosen(condition: Expr, a: Real | float, b: Real | float) -> Real:
    """Returns `a` where the condition holds, else `b`; one of them may be a number."""
    like = a if isinstance(a, Real) else b
    assert isinstance(like, Real)
    return Real(call("where", condition, like.number(a).expr, like.number(b).expr))


def polynomial(x: Real, coefficients: Sequence[float]) -> Real:
    """Returns a polynomial; the coefficient of the highest power comes first."""
    found = x * 0.0 + coefficients[0]
    for c in coefficients[1:]:
        found = found * x + c
    return found
