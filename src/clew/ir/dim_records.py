"""Converts dimensions to and from JSON values, for files."""

from __future__ import annotations

from typing import Any, Final

from clew.ir.dims import OPERATIONS, Atom, Dim, SymDim

# A record with a larger power is damaged, and evaluating it could exhaust the memory.
_MOST_POWER: Final = 64
_MOST_KNOWN: Final = 4096
_known: Final[dict[str, SymDim]] = {}


def to_record(dim: Dim) -> Any:
    """Returns a dimension as JSON values: a number, or the terms of a polynomial."""
    if isinstance(dim, int):
        return dim

    def atom_record(atom: Atom) -> Any:
        if atom.op:
            return [atom.op, *map(to_record, atom.args)]
        return atom.name if atom.least else [atom.name]

    return [[c, [[atom_record(a), p] for a, p in monomial]] for monomial, c in dim.terms]


def of_record(record: Any) -> Dim:
    """Returns the dimension of a record from `to_record`.

    Errors: ValueError for a record of any other form, because generated code contains its parts
    (`DimCode`).
    """
    if isinstance(record, int):
        return record
    # A file repeats its dimensions and their parts many times.
    text = repr(record)
    found = _known.get(text)
    if found is None:
        found = _symbolic(record)
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        _known[text] = found
    return found


def _symbolic(record: Any) -> SymDim:
    def atom(part: Any) -> Atom:
        if isinstance(part, str):
            return Atom(part)
        if len(part) == 1:
            (name,) = part
            if not isinstance(name, str):
                raise ValueError(f"{name!r} is not a name of a size")
            return Atom(name, least=0)
        op, left, right = part
        if op not in OPERATIONS:
            raise ValueError(f"{op!r} is not an operation on dimensions")
        return Atom("", op, (of_record(left), of_record(right)))

    def power(part: Any) -> int:
        if not (isinstance(part, int) and 1 <= part <= _MOST_POWER):
            raise ValueError(f"{part!r} is not a power of a size")
        return part

    def coefficient(part: Any) -> int:
        if not isinstance(part, int):
            raise ValueError(f"{part!r} is not a coefficient")
        return part

    return SymDim(
        {tuple((atom(a), power(p)) for a, p in monomial): coefficient(c) for c, monomial in record}
    )


def symbolic_of_record(record: Any) -> SymDim:
    """Returns the symbolic dimension of a record from `to_record`.

    Errors: ValueError as for `of_record`, and for a number.
    """
    dim = of_record(record)
    if isinstance(dim, int):
        raise ValueError(f"{dim} is not symbolic")
    return dim
