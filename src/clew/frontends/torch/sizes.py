"""Converts torch's symbolic integers to graph IR dimensions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any, Final

import sympy
import torch
from torch.utils._sympy.functions import CeilToInt, FloorToInt, RoundToInt, ToFloat, TruncToInt

from clew.frontends.building import call, cast, reshaped, scalar
from clew.ir.dims import Dim, SymDim, ceil_div, dim_max, dim_min
from clew.ir.expr import Expr
from clew.support.errors import UnsupportedError


class Sizes:
    """The dimensions that torch's symbols stand for.

    A symbol of an input's size has a name. One that only the data decide (`u0`) is learned from the
    operator that decides it, or from the scalar that is read as a number. Integers that are rounded
    from floats (`int(n * 1.5)`) are read from the scalars that compute them. Those that an operator
    computes itself (`scale_factor=2.3`) are computed from the sizes, in f64 as torch does.
    """

    def __init__(self, carriers: dict[str, Expr]) -> None:
        self._carriers = carriers  # a value for each size that the data decide (`GraphBuilder`)
        self._dims: dict[sympy.Expr, Dim] = {}
        self._numbers: dict[sympy.Expr, Expr] = {}
        self._signed: set[sympy.Expr] = set()

    def has(self, symbol: sympy.Symbol) -> bool:
        """Whether a symbol has a dimension."""
        return symbol in self._dims

    def name(self, symbol: sympy.Expr, name: str, least: int) -> Dim:
        """Names a symbol, or an expression that is itself an input, and returns its dimension. An
        earlier name is kept.
        """
        return self._dims.setdefault(symbol, SymDim.symbol(name, min(max(least, 0), 1)))

    def number(self, integer: torch.SymInt, value: Expr, *, may_be_negative: bool = False) -> None:
        """Records that an integer is the value of a scalar `i64[]`."""
        self._numbers[integer.node.expr] = value
        if may_be_negative:
            self._signed.add(integer.node.expr)

    def learn(self, size: Any, found: Dim) -> None:
        """Records that a size of torch is a dimension, if the size is a symbol without one."""
        if isinstance(size, torch.SymInt):
            expr = size.node.expr
            if isinstance(expr, sympy.Symbol) and expr not in self._numbers:
                self._dims.setdefault(expr, found)

    def value(self, size: Any) -> Expr | None:
        """Returns the scalar that a symbol is the value of, None if there is none."""
        return self._numbers.get(size.node.expr) if isinstance(size, torch.SymInt) else None

    def dim(self, size: Any) -> Dim:
        """Returns the dimension for an integer of torch.

        Errors: U060 for an expression that is not a dimension.
        """
        if isinstance(size, int):
            return int(size)
        return self._dim(size.node.expr)

    def is_named(self, size: torch.SymInt) -> bool:
        """Whether an integer is computed from sizes exactly, not from the values of scalars."""
        expr = size.node.expr
        if not all(symbol in self._dims for symbol in expr.free_symbols):
            return False
        return all(self._scaled(part) is not None for part in expr.atoms(*_ROUNDED))

    def is_dim(self, size: Any) -> bool:
        """Whether an integer of torch has a dimension."""
        try:
            self.dim(size)
        except UnsupportedError:
            return False
        return True

    def shape(self, sizes: Any) -> tuple[Dim, ...]:
        """Returns the dimensions for a shape of torch."""
        return tuple(map(self.dim, sizes))

    def _dim(self, expr: Any) -> Dim:
        if expr.is_Integer:
            return int(expr)
        if expr in self._dims:  # a symbol, or an expression that is itself an input
            return self._dims[expr]
        scaled = self._scaled(expr)
        if scaled is not None:
            return scaled
        if isinstance(expr, (sympy.Symbol, *_ROUNDED)):
            return self._of_number(expr)
        if isinstance(expr, sympy.Pow) and expr.exp.is_Integer and expr.exp > 0:
            return reduce(lambda a, b: a * b, [self._dim(expr.base)] * int(expr.exp))
        rule = _RULES.get(type(expr).__name__)
        if rule is None:
            raise UnsupportedError(
                "U060",
                f"the size {expr} is not an expression of sizes",
                hint="compute sizes with +, -, *, //, %, min and max",
            )
        return reduce(rule, map(self._dim, expr.args))

    def _scaled(self, expr: sympy.Expr) -> Dim | None:
        """Returns the dimension for `int(n * 1.5)`, a size times a fraction that floats hold
        exactly; None for other expressions.
        """
        if expr in self._numbers or not isinstance(expr, (CeilToInt, FloorToInt, TruncToInt)):
            return None
        factor, size = expr.args[0].as_coeff_Mul()
        over, under = float(factor).as_integer_ratio()
        if not isinstance(size, ToFloat) or not 0 < over <= _MOST or under > _MOST:
            return None
        product = self._dim(size.args[0]) * over
        return ceil_div(product, under) if isinstance(expr, CeilToInt) else product // under

    def _of_number(self, expr: sympy.Expr) -> Dim:
        number = self._numbers.get(expr)
        if number is None and isinstance(expr, _ROUNDED):
            number = self._rounded(expr)
        if number is None:
            raise UnsupportedError(
                "U060",
                f"no value determines the size {expr}",
                hint="compute it from sizes of inputs, or from a tensor (x.item())",
            )
        signed = self._signed & {expr, *expr.free_symbols}
        if signed:
            raise UnsupportedError(
                "U060",
                f"the size depends on the integer {min(map(str, signed))}, which may be negative",
                hint="torch._check(n >= 0) tells torch that it is not",
            )
        room = call("room", number)
        found: Dim = room.tensor.shape[0]
        self._dims[expr] = found
        self._carriers[str(found)] = room
        return found

    def _rounded(self, expr: sympy.Expr) -> Expr | None:
        """Returns `int(n * 2.3)` as a scalar `i64[]` that is computed from sizes; None for other
        expressions than rounded products and sums of sizes and numbers.
        """
        inner = self._float(expr.args[0]) if len(expr.args) == 1 else None
        return None if inner is None else cast(call(_ROUNDINGS[type(expr)], inner), "i64")

    def _float(self, expr: sympy.Expr) -> Expr | None:
        """Returns a float of torch as a scalar `f64[]`, None if it is not computed from sizes."""
        if expr.is_number:
            return scalar(float(expr), "f64")
        if isinstance(expr, ToFloat):
            size = self._dim(expr.args[0])
            if isinstance(size, int):
                return scalar(float(size), "f64")
            number = call("arange", start=size, stop=size + 1, step=1, dtype="i64")
            return cast(reshaped(number, ()), "f64")
        op = _ON_FLOATS.get(type(expr).__name__)
        parts = [self._float(part) for part in expr.args] if op else [None]
        if op is None or None in parts:
            return None
        return reduce(lambda a, b: call(op, a, b), parts)


_MOST: Final = 1 << 20  # terms of a fraction whose products with sizes are exact in f64
_ROUNDED: Final = (CeilToInt, FloorToInt, RoundToInt, TruncToInt)
_ROUNDINGS: Final = {
    CeilToInt: "ceil", FloorToInt: "floor", RoundToInt: "round", TruncToInt: "trunc",
}  # fmt: skip
_ON_FLOATS: Final[Mapping[str, str]] = {
    "Add": "add", "Mul": "multiply", "FloatTrueDiv": "divide", "Max": "maximum", "Min": "minimum",
}  # fmt: skip
_RULES: Final[Mapping[str, Callable[[Dim, Dim], Dim]]] = {
    "Add": lambda a, b: a + b,
    "Mul": lambda a, b: a * b,
    "FloorDiv": lambda a, b: a // b,
    "CleanDiv": lambda a, b: a // b,
    "Mod": lambda a, b: a % b,
    "PythonMod": lambda a, b: a % b,
    "Max": dim_max,
    "Min": dim_min,
}
