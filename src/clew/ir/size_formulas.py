"""Formulas of sizes in rules: dimensions, and what Python computes from these in floats.

A dimension is a polynomial of sizes with quotients, remainders, minima and maxima. A rule may need
more than that: a model that branches on `n / 3 > 1` or slices `x[: int(n * 0.5)]`. Such a formula
is a tuple of a function's name and its operands: `("trunc", ("*", ("float", n), 0.5))`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from clew.ir.dim_records import of_record, to_record
from clew.ir.dim_text import DIVISIONS
from clew.ir.dims import Dim, SymDim, is_unknown, substitute, value_at

Formula: TypeAlias = "Dim | float | tuple[Any, ...]"
_MOST: Final = 1 << 53  # integers up to which floats are exact


def _power(base: float, exponent: float) -> float:
    """Returns a power, computed in floats: an integer with millions of digits takes too long.

    Errors: ArithmeticError for integers that floats do not hold.
    """
    found: float = float(base) ** float(exponent)
    if isinstance(base, int) and isinstance(exponent, int) and abs(found) >= _MOST:
        raise OverflowError(f"{base} ** {exponent}")
    return found


_INFIX: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": _power,
    "&": operator.and_,
    "|": operator.or_,
}
FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    **_INFIX,
    "float": float,
    "trunc": math.trunc,
    "floor": math.floor,
    "ceil": math.ceil,
    "round": round,
    "sqrt": math.sqrt,
    "abs": abs,
    "max": max,
    "min": min,
}


def is_formula(value: Any) -> bool:
    """Whether a value is a formula, and not another tuple."""
    match value:
        case (str(name), *operands) if name in FUNCTIONS and operands:
            return all(map(is_formula, operands))
    return isinstance(value, (int, float, SymDim))


def symbols_of(formula: Formula) -> frozenset[str]:
    """Returns the names of the sizes in a formula."""
    if isinstance(formula, tuple):
        return frozenset[str]().union(*map(symbols_of, formula[1:]))
    return frozenset(formula.symbols) if isinstance(formula, SymDim) else frozenset()


def has_unknown(formula: Formula) -> bool:
    """Whether a formula depends on a size that is known only during the run."""
    if isinstance(formula, tuple):
        return any(map(has_unknown, formula[1:]))
    return not isinstance(formula, float) and is_unknown(formula)


def replaced(formula: Formula, sizes: Mapping[str, Dim]) -> Formula:
    """Returns a formula with named sizes replaced."""
    if isinstance(formula, tuple):
        return (formula[0], *(replaced(operand, sizes) for operand in formula[1:]))
    return formula if isinstance(formula, float) else substitute(formula, sizes)


def number_at(formula: Formula, sizes: Mapping[str, int]) -> float:
    """Returns the value of a formula at given sizes.

    Errors: T110 for a dimension that divides by 0; ArithmeticError, ValueError and TypeError, those
    of Python, for a formula without a value.
    """
    if isinstance(formula, tuple):
        operands = [number_at(operand, sizes) for operand in formula[1:]]
        found: float = FUNCTIONS[formula[0]](*operands)
        return found
    return formula if isinstance(formula, float) else value_at(formula, sizes)


def text_of(formula: Formula) -> str:
    """Returns a formula as text, without the parentheses of a quotient or remainder."""
    if isinstance(formula, tuple):
        text = _inner(formula)
        return text[1:-1] if formula[0] in _INFIX else text
    atom = formula.atom if isinstance(formula, SymDim) else None
    return str(formula)[1:-1] if atom is not None and atom.op in DIVISIONS else str(formula)


def _inner(formula: Formula) -> str:
    if not isinstance(formula, tuple):
        return str(formula)
    name, *operands = formula
    texts = [_inner(operand) for operand in operands]
    if name in _INFIX:
        return f"({f' {name} '.join(texts)})"
    return f"{name}({', '.join(texts)})"


def formula_record(formula: Formula) -> Any:
    """Returns a formula as JSON values."""
    if isinstance(formula, tuple):
        return {formula[0]: [formula_record(operand) for operand in formula[1:]]}
    return formula if isinstance(formula, float) else to_record(formula)


def formula_of_record(record: Any) -> Formula:
    """Returns the formula of a `formula_record`; ValueError for a record of another form."""
    if isinstance(record, dict):
        ((name, operands),) = record.items()
        found = (name, *map(formula_of_record, operands))
        if not is_formula(found):
            raise ValueError(f"{record!r} is not a formula of sizes")
        return found
    return record if isinstance(record, float) else of_record(record)
