"""Scalar constants that are the only difference between kernels.

A network may scale each layer by a different number. With these numbers in the code, each layer
would have its own kernel. If they are arguments, all layers share one kernel.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from typing import Final

from clew.ir.dims import SymDim
from clew.ir.expr import Call, Constant, Expr
from clew.ir.syntax import value_text
from clew.ir.types import TensorType, Type, is_float
from clew.passes.fusion.fusion_groups import Group

# Operators whose code is the same for an operand in memory and for any constant. Others, such as
# `power`, have shorter code for some constants.
_READERS: Final = frozenset({"add", "subtract", "multiply"})

Read = tuple[int, int]
"""The ids of a call and of a constant that it reads."""


def differing_constants(groups: Iterable[Group]) -> frozenset[Read]:
    """Returns the places where otherwise equal groups read different scalars. Groups whose types
    differ only in free sizes count as equal, since their kernels may share code.
    """
    alike: defaultdict[Hashable, list[list[tuple[Read, float]]]] = defaultdict(list)
    for group in groups:
        signature, numbers = _signature(group)
        if numbers:
            alike[signature].append(numbers)
    found: set[Read] = set()
    for others in alike.values():
        for place in zip(*others, strict=True):
            if len({value_text(value) for _, value in place}) > 1:
                found.update(read for read, _ in place)
    return frozenset(found)


def _signature(group: Group) -> tuple[Hashable, list[tuple[Read, float]]]:
    """Returns a key for what a group computes, without the scalars that may differ, and these
    scalars.
    """
    numbers: list[tuple[Read, float]] = []
    places = {member.id: place for place, member in enumerate(group.members)}
    outside: dict[int, int] = {}
    computed: list[Hashable] = []
    for member in group.members:
        operands: list[Hashable] = []
        for arg in member.args:
            if arg.id in places:
                operands.append(places[arg.id])
            elif _may_differ(arg, member):
                assert isinstance(arg, Constant)
                numbers.append(((member.id, arg.id), arg.splat_value))
                operands.append(_sizes(arg.type))
            else:
                number = outside.setdefault(arg.id, len(outside))
                operands.append((number, _sizes(arg.type)))
        attrs = tuple((name, value_text(value)) for name, value in sorted(member.attrs.items()))
        computed.append((member.op_name, attrs, tuple(operands), _sizes(member.type)))
    return tuple(computed), numbers


def _may_differ(arg: Expr, user: Call) -> bool:
    return (
        isinstance(arg, Constant)
        and user.op_name in _READERS
        and is_float(arg.tensor.dtype)
        and arg.tensor.size == 1
    )


def _sizes(type_: Type) -> Hashable:
    """Returns a type without its free sizes."""
    if not isinstance(type_, TensorType):
        return str(type_)
    known = tuple("" if isinstance(size, SymDim) else size for size in type_.shape)
    return known, type_.dtype, str(type_.layout)
