"""The iterations of a nest at given sizes, one by one, by plain arithmetic.

Every access is checked to be inside its buffer.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from clew.ir.dims import value_at
from clew.loop.ir import Block, Buffer, For, If, Nest, Stmt, Store
from clew.te.expr import Binary, Imm, Index, Load, Scalar, Select, Size, Unary

_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul,
    "floordiv": operator.floordiv, "mod": operator.mod, "min": min, "max": max,
    "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
    "eq": operator.eq, "ne": operator.ne,
    "and": lambda a, b: a and b, "or": lambda a, b: a or b,
}  # fmt: skip


def writes(nest: Nest, sizes: Mapping[str, int]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields the stage and the indices of each store that runs, in order."""
    return _statement(nest.body, {}, sizes)


def _statement(
    stmt: Stmt, at: dict[int, int], sizes: Mapping[str, int]
) -> Iterator[tuple[str, tuple[int, ...]]]:
    match stmt:
        case Block():
            for inner in stmt.stmts:
                yield from _statement(inner, at, sizes)
        case For():
            for value in range(value_at(stmt.size, sizes)):
                yield from _statement(stmt.body, {**at, id(stmt.index): value}, sizes)
        case If():
            if _value(stmt.cond, at, sizes):
                yield from _statement(stmt.body, at, sizes)
        case Store():
            indices = tuple(_value(i, at, sizes) for i in stmt.indices)
            _check(stmt.buffer, indices, sizes)
            _value(stmt.value, at, sizes)
            yield stmt.stage, indices
        case _:
            raise AssertionError(stmt)


def _check(buffer: Buffer, indices: tuple[int, ...], sizes: Mapping[str, int]) -> None:
    shape = tuple(value_at(d, sizes) for d in buffer.shape)
    inside = all(0 <= i < d for i, d in zip(indices, shape, strict=True))
    assert inside, f"{buffer.name}{indices} is outside {shape} at {sizes}"


def _value(expr: Scalar, at: dict[int, int], sizes: Mapping[str, int]) -> Any:
    """Returns the value of an expression; loads are 0, and only the chosen side is evaluated."""
    match expr:
        case Imm():
            return expr.value
        case Index():
            return at[id(expr)]
        case Size():
            return value_at(expr.dim, sizes)
        case Select():
            chosen = expr.a if _value(expr.cond, at, sizes) else expr.b
            return _value(chosen, at, sizes)
        case Load():
            indices = tuple(_value(i, at, sizes) for i in expr.indices)
            _check(expr.source, indices, sizes)
            return 0
        case Binary():
            return _OPERATIONS[expr.op](_value(expr.a, at, sizes), _value(expr.b, at, sizes))
        case Unary(op="not"):
            return not _value(expr.a, at, sizes)
    for child in expr.children:
        _value(child, at, sizes)
    return 0
