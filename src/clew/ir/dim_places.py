"""Finds the axes of a call's arguments that give the values of named sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from clew.ir.dims import Dim, SymDim
from clew.support.dataclass import dataclass


@dataclass(frozen=True)
class SizePlace:
    """An axis that gives a named size: it has `factor * size + offset` elements."""

    name: str
    argument: int
    axis: int
    factor: int = 1
    offset: int = 0

    def size(self, elements: int) -> int:
        """Returns the named size for a number of elements; rounded down if no size gives it."""
        return (elements - self.offset) // self.factor


def size_places(shapes: Sequence[Sequence[Dim]]) -> list[SizePlace]:
    """Returns the places of named sizes in the shapes of arguments: every axis whose size is a
    plain name (`n`), and, for names without such an axis, those that are linear in them
    (`2*n + 1`).
    """
    plain = list(_places(shapes, linear=False))
    known = {place.name for place in plain}
    return plain + [place for place in _places(shapes, linear=True) if place.name not in known]


def _places(shapes: Sequence[Sequence[Dim]], *, linear: bool) -> Iterator[SizePlace]:
    for argument, shape in enumerate(shapes):
        for axis, dim in enumerate(shape):
            if not isinstance(dim, SymDim):
                continue
            if str(dim) in dim.symbols:
                if not linear:
                    yield SizePlace(str(dim), argument, axis)
            elif linear and (found := _line(dim)) is not None:
                yield SizePlace(found[0], argument, axis, *found[1:])


def _line(dim: SymDim) -> tuple[str, int, int] | None:
    """Returns a name, factor and offset for a dimension that is linear in one name, else None."""
    offset, slopes = 0, list[tuple[str, int]]()
    for monomial, coefficient in dim.terms:
        if not monomial:
            offset = coefficient
        elif len(monomial) == 1 and monomial[0][1] == 1 and not monomial[0][0].op:
            slopes.append((monomial[0][0].name, coefficient))
        else:
            return None
    if len(slopes) != 1 or slopes[0][0].startswith("?"):
        return None
    return *slopes[0], offset
