"""The types of a loop's states: sizes and ranks that change between iterations are unknown.

A body is read for the types of the initial values. If its results have others, the types are
widened, and the body is read again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from clew.ir.dims import Dim, is_unknown, unknown_dim
from clew.ir.expr import Expr
from clew.ir.types import (
    OptionalType,
    SequenceType,
    TensorType,
    Type,
    UnrankedType,
    dtype_of,
    join,
)
from clew.support.errors import ClewError, GraphTypeError


class LoopTypes:
    """The types of a loop's states.

    `changing` has the sizes that are known to change, by state and axis, and takes those that are
    found. A nested loop is read again with its outer loop. Sizes that changed the first time change
    again: without that knowledge, the innermost of ten loops would be read a thousand times.
    `wrong` returns the error for an invalid layer.
    """

    def __init__(
        self,
        types: Sequence[Type],
        changing: set[tuple[int, int]],
        wrong: Callable[[str], ClewError],
    ) -> None:
        self.types: Final = list(types)
        self._changing = changing
        self._wrong = wrong
        self._widened: set[str] = set()
        for n, axis in sorted(changing):
            type_ = self.types[n] if n < len(self.types) else None
            if isinstance(type_, TensorType) and axis < type_.rank:
                shape = (*type_.shape[:axis], self._fresh(), *type_.shape[axis + 1 :])
                self.types[n] = type_.with_(shape=shape)

    def _fresh(self) -> Dim:
        fresh = unknown_dim()
        self._widened.add(str(fresh))
        return fresh

    def widen(self, results: Sequence[Expr]) -> bool:
        """Widens the types to those of the next iteration. Returns whether any changed."""
        changed = False
        for n, (before, expr) in enumerate(zip(list(self.types), results, strict=True)):
            after = expr.type
            if _covers(before, after):
                continue
            if (
                not isinstance(before, TensorType)
                or not isinstance(after, TensorType)
                or before.dtype != after.dtype
                or before.rank != after.rank
            ):
                self.types[n] = self._joined(before, after)
                changed = True
                continue
            shape: list[Dim] = []
            for axis, (a, b) in enumerate(zip(before.shape, after.shape, strict=True)):
                if a == b or str(a) in self._widened:
                    shape.append(a)
                    continue
                self._changing.add((n, axis))
                shape.append(self._fresh())
                changed = True
            self.types[n] = before.with_(shape=tuple(shape))
        return changed

    def _joined(self, before: Type, after: Type) -> Type:
        try:
            return join(before, after)
        except GraphTypeError as error:
            raise self._wrong(f"carries a {before} that becomes a {after}") from error


def _covers(type_: Type, other: Type, *, inside: bool = False) -> bool:
    """Whether a type includes all values of another type. Unknown sizes inside sequences and
    optionals stand for any size.
    """
    match type_, other:
        case UnrankedType(a), (TensorType(dtype=b) | UnrankedType(b)):
            return a == b
        case TensorType(a, dtype), TensorType(b, also) if inside and len(a) == len(b):
            return dtype == also and all(x == y or is_unknown(x) for x, y in zip(a, b, strict=True))
        case SequenceType(a, False), SequenceType(b, empty):
            alike = empty and dtype_of(a) == dtype_of(b)
            return alike or _covers(a, b, inside=True)
        case OptionalType(a), (OptionalType(b) | b):
            return _covers(a, b, inside=True)
    return type_ == other
