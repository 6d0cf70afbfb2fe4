"""Upper bounds of integers in a graph, such as the number of elements that a condition keeps.

They follow from the operators' tensor expressions (`te.ranges`), through primitive functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, TypeAlias

from clew.ir.dims import Dim
from clew.ir.expr import Call, Constant, Expr, Function, Let, Tuple, TupleGetItem, Var
from clew.ir.types import TensorType
from clew.ops.registry import Op
from clew.te.ranges import UNKNOWN, Range, range_of
from clew.te.tensor import Tensor

# Longer chains of operators have no known range, which bounds the recursion.
_MOST_OPERATORS: Final = 64

_Of: TypeAlias = "Callable[[int], Range]"
_Ranges: TypeAlias = "Mapping[int, _Of]"


def largest(value: Expr) -> Dim | None:
    """Returns an upper bound of the elements of a tensor of integers; None if none is known."""
    return _range(value, 0, {}, 0).high


def _range(value: Expr, field: int, given: _Ranges, depth: int) -> Range:
    """Returns the range of a value, or of a field of a tuple. `given` has the ranges of
    variables.
    """
    if depth > _MOST_OPERATORS:
        return UNKNOWN
    inner = partial(_range, given=given, depth=depth + 1)
    match value:
        case Constant() if value.data.dtype.kind in "iu" and value.data.size:
            return Range(int(value.data.min()), int(value.data.max()))
        case Var() if value.id in given:
            return given[value.id](field)
        case Tuple():
            return inner(value.fields[field], 0)
        case TupleGetItem():
            return (
                inner(value.value, value.index) if isinstance(value.type, TensorType) else UNKNOWN
            )
        case Let():
            bound: dict[int, _Of] = {**given, value.var.id: partial(inner, value.value)}
            return _range(value.body, field, bound, depth + 1)
        case Call(op=Function() as function):
            own = {
                p.id: partial(inner, a) for p, a in zip(function.params, value.args, strict=True)
            }
            return _range(function.body, field, own, depth + 1)
        case Call(op=Op() as op) if op.is_computed(value.attrs):
            return _computed(op, value, field, inner)
    return UNKNOWN


def _computed(op: Op, call: Call, field: int, of: Callable[[Expr, int], Range]) -> Range:
    types = [arg.type for arg in call.args if isinstance(arg.type, TensorType)]
    if len(types) < len(call.args):
        return UNKNOWN
    operands = op.placeholders(types)
    assert op.compute is not None, "it is computed"
    made = op.compute(*operands, **call.attrs)
    number = {id(operand): n for n, operand in enumerate(operands)}

    def operand_range(tensor: Tensor) -> Range:
        n = number.get(id(tensor))
        return UNKNOWN if n is None else of(call.args[n], 0)

    return range_of(made[field] if isinstance(made, tuple) else made, operand_range)
