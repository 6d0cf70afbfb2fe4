"""The expressions of sizes in a file, which torch would evaluate as Python.

An expression is a sum, product, comparison or function of whole numbers and symbols, as sympy
(`Add(Integer(2), Symbol('s0', integer=True))`) or Python (`s0 + 2`) writes it. Python's parser
makes a tree of it; only nodes of these kinds are read, and nothing is evaluated. sympy's results
for them stay small: numbers have 64 bits, and products at most `_MOST_TERMS` terms.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import sympy
from torch.utils._sympy import functions

from clew.support.budgets import current, exceeded
from clew.support.errors import ModelError

_MOST_CHARS: Final = 20_000
_DEEPEST: Final = 100
_MOST_TERMS: Final = 256
_MOST_BITS: Final = 64
SYMBOL: Final = re.compile(r"[A-Za-z]{1,8}_?\d{1,6}")
_ASSUMED: Final = frozenset(
    ("integer", "positive", "negative", "nonnegative", "nonpositive", "nonzero", "real", "finite")
)
_Part = tuple[Any, int]
"""An expression, and how many terms it has if products are multiplied out."""

# The functions by their names in files: those that torch itself reads, and sympy's of arithmetic.
_OF_TORCH: Final = (
    "FloorDiv", "ModularIndexing", "Where", "PythonMod", "Mod", "CleanDiv", "CeilToInt",
    "FloorToInt", "CeilDiv", "FloatPow", "FloatTrueDiv", "IntTrueDiv", "PowByNatural", "LShift",
    "RShift", "IsNonOverlappingAndDenseIndicator", "TruncToFloat", "TruncToInt", "RoundToInt",
    "RoundDecimal", "ToFloat", "Identity",
)  # fmt: skip
_OF_SYMPY: Final = (
    "Add", "Mul", "Pow", "Max", "Min", "And", "Or", "Not", "Eq", "Ne", "Lt", "Le", "Gt", "Ge",
    "Equality", "Unequality", "StrictLessThan", "LessThan", "StrictGreaterThan", "GreaterThan",
    "floor", "ceiling", "Abs",
)  # fmt: skip
_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    **{name: getattr(sympy, name) for name in _OF_SYMPY},
    **{name: getattr(functions, name) for name in _OF_TORCH},
    **{n: getattr(functions, n) for n in dir(functions) if n.startswith("OpaqueUnaryFn_")},
}
_INFIX: Final[Mapping[type[ast.AST], str]] = {
    ast.Add: "Add", ast.Mult: "Mul", ast.Pow: "Pow", ast.FloorDiv: "FloorDiv", ast.Mod: "Mod",
    ast.Eq: "Eq", ast.NotEq: "Ne", ast.Lt: "Lt", ast.LtE: "Le", ast.Gt: "Gt", ast.GtE: "Ge",
    ast.BitAnd: "And", ast.BitOr: "Or",
}  # fmt: skip
_POWERS: Final = ("Pow", "PowByNatural", "FloatPow", "LShift")
_TRUTHS: Final = {"true": sympy.true, "false": sympy.false, "True": sympy.true,
                  "False": sympy.false}  # fmt: skip


class SizeReader:
    """Reads the expressions of one file."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}
        self._symbols: dict[str, sympy.Symbol] = {}
        self._count = 0

    def read(self, text: str) -> Any:
        """Returns an expression of sympy.

        Errors: ValueError for text of another form; M009 if the expressions of the file have more
        parts than the budget `nodes`.
        """
        if text not in self._known:
            if len(text) > _MOST_CHARS:
                raise ValueError(f"an expression of a size has {len(text)} characters")
            try:
                tree = ast.parse(text, mode="eval").body
                self._known[text], _ = self._part(tree, 0)
            except (SyntaxError, TypeError, ArithmeticError, AttributeError, RecursionError,
                    MemoryError) as error:  # fmt: skip
                raise _unread(text) from error
            except ValueError:
                raise _unread(text) from None
        return self._known[text]

    def _part(self, node: ast.AST, depth: int) -> _Part:
        self._count += 1
        most = current().nodes
        if self._count > most:
            raise exceeded(ModelError, "M009", "parts of size expressions", self._count, "nodes",
                           most)  # fmt: skip
        if depth > _DEEPEST:
            raise ValueError
        match node:
            case ast.Constant(bool() as value):
                return (sympy.true if value else sympy.false), 1
            case ast.Constant(int() as value):
                return _small(sympy.Integer(value)), 1
            case ast.Constant(float() as value):
                return sympy.Float(value), 1
            case ast.Name(name) if name in _TRUTHS:
                return _TRUTHS[name], 1
            case ast.Name(name):
                return self._symbol(name, {}), 1
            case ast.UnaryOp(ast.USub(), inner):
                return self._negative(self._part(inner, depth + 1))
            case ast.BinOp(left, ast.Sub(), right):
                first, second = (self._part(each, depth + 1) for each in (left, right))
                return self._applied("Add", [first, self._negative(second)])
            case ast.BinOp(left, op, right) | ast.Compare(left, [op], [right]):
                parts = [self._part(each, depth + 1) for each in (left, right)]
                return self._applied(_INFIX.get(type(op), ""), parts)
            case ast.Call(ast.Name("Symbol"), [ast.Constant(str() as name)], keywords):
                return self._symbol(name, _assumptions(keywords)), 1
            case ast.Call(ast.Name("Integer"), [ast.Constant() | ast.UnaryOp() as value], []):
                return self._part(value, depth + 1)
            case ast.Call(ast.Name("Rational"), [over, under], []):
                parts = [self._part(each, depth + 1) for each in (over, under)]
                return _small(sympy.Rational(parts[0][0], parts[1][0])), 1
            case ast.Call(ast.Name("Float"), [ast.Constant(str() as digits)], _):
                return sympy.Float(float(digits)), 1
            case ast.Call(ast.Name(name), operands, []):
                return self._applied(name, [self._part(each, depth + 1) for each in operands])
        raise ValueError

    def _symbol(self, name: str, assumed: Mapping[str, bool]) -> sympy.Symbol:
        if not SYMBOL.fullmatch(name):
            raise ValueError
        known = self._symbols.get(name)
        if known is None:
            known = self._symbols[name] = sympy.Symbol(name, **assumed)
        elif assumed and known != sympy.Symbol(name, **assumed):
            raise ValueError
        return known

    def _negative(self, part: _Part) -> _Part:
        return self._applied("Mul", [(sympy.Integer(-1), 1), part])

    def _applied(self, name: str, parts: list[_Part]) -> _Part:
        """Returns a function of expressions, where it stays small."""
        function = _FUNCTIONS.get(name)
        if function is None or not parts:
            raise ValueError
        values = [value for value, _ in parts]
        counts = [count for _, count in parts]
        terms = 1
        if name in _POWERS:
            _, exponent = values
            if exponent.is_number and not -_MOST_BITS <= exponent <= _MOST_BITS:
                raise ValueError
            if name != "LShift" and exponent.is_Integer:
                terms = counts[0] ** abs(int(exponent))
        elif name == "Add":
            terms = sum(counts)
        elif name == "Mul":
            terms = math.prod(counts)
        if terms > _MOST_TERMS:
            raise ValueError
        return _small(function(*values)), terms


def _assumptions(keywords: list[ast.keyword]) -> dict[str, bool]:
    found: dict[str, bool] = {}
    for keyword in keywords:
        match keyword:
            case ast.keyword(str() as name, ast.Constant(bool() as value)) if name in _ASSUMED:
                found[name] = value
            case _:
                raise ValueError
    return found


def _small(value: Any) -> Any:
    """Returns an expression, unless it is a number of too many digits. Errors: ValueError."""
    if value.is_Rational and max(abs(value.p), value.q).bit_length() > _MOST_BITS:
        raise ValueError
    return value


def _unread(text: str) -> ValueError:
    shown = text if len(text) <= 80 else f"{text[:77]}..."
    return ValueError(f"{shown!r} is not an expression of sizes")
