"""Converts dimensions to and from JSON values, for files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from clew.ir.dims import OPERATIONS, Atom, Dim, SymDim

# A record with a larger power is damaged, and evaluating it could exhaust the memory.
_MOST_POWER: Final = 64
_MOST_KNOWN: Final = 4096
_known: Final[dict[str, SymDim]] = {}


def to_record(dim: Dim) -> Any:
    """Returns a dimension as JSON values: a number, or the terms of a polynomial."""
    return dim if isinstance(dim, int) else _terms(dim, lambda atom: _atom_record(atom, to_record))


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
        found = _symbolic(record, lambda part: _atom(part, of_record))
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        _known[text] = found
    return found


def symbolic_of_record(record: Any) -> SymDim:
    """Returns the symbolic dimension of a record from `to_record`.

    Errors: ValueError as for `of_record`, and for a number.
    """
    return _checked_symbolic(of_record(record))


class DimTable:
    """Writes many dimensions to one file. Each polynomial and each atom is written once, to `rows`,
    and consists of the numbers of earlier rows. The record of a symbolic dimension is `[row]`.
    """

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self._known: dict[SymDim | Atom, int] = {}

    def record(self, dim: Dim) -> Any:
        """Returns the record of a dimension: a number, or that of its row."""
        if isinstance(dim, int):
            return dim
        if dim not in self._known:
            self._add(dim, _terms(dim, self._atom))
        return [self._known[dim]]

    def _atom(self, atom: Atom) -> int:
        if atom not in self._known:
            self._add(atom, _atom_record(atom, self.record))
        return self._known[atom]

    def _add(self, part: SymDim | Atom, row: Any) -> None:
        self._known[part] = len(self.rows)
        self.rows.append(row)


class DimRows:
    """Reads dimensions from the rows of a `DimTable`, each when it is first asked for."""

    def __init__(self, rows: Sequence[Any]) -> None:
        self._rows = rows
        self._dims: dict[int, SymDim] = {}
        self._atoms: dict[int, Atom] = {}

    def dim(self, record: Any) -> Dim:
        """Returns the dimension of a record from `DimTable.record`.

        Errors: ValueError or TypeError for a record of another form.
        """
        return self._dim(record, len(self._rows))

    def symbolic(self, record: Any) -> SymDim:
        """Returns the symbolic dimension of a record. Errors: those of `dim`, and ValueError for a
        number.
        """
        return _checked_symbolic(self.dim(record))

    def _dim(self, record: Any, end: int) -> Dim:
        """Returns the dimension of a record that may name rows before `end`."""
        if isinstance(record, int):
            return record
        (number,) = record
        found = self._dims.get(number)
        if found is None or number >= end:
            found = self._dims[number] = self._polynomial(number, end)
        return found

    def _polynomial(self, number: int, end: int) -> SymDim:
        known = self._atoms

        def atom(place: int) -> Atom:
            found = known.get(place)
            if found is None or place >= number:
                row = self._row(place, number)
                found = known[place] = _atom(row, lambda operand: self._dim(operand, place))
            return found

        return _symbolic(self._row(number, end), atom)

    def _row(self, number: Any, end: int) -> Any:
        if type(number) is not int or not 0 <= number < end:
            raise ValueError(f"there is no row {number!r:.80} of {end}")
        return self._rows[number]


def _terms(dim: SymDim, atom_record: Callable[[Atom], Any]) -> Any:
    return [[c, [[atom_record(a), p] for a, p in monomial]] for monomial, c in dim.terms]


def _atom_record(atom: Atom, dim_record: Callable[[Dim], Any]) -> Any:
    if atom.op:
        return [atom.op, *map(dim_record, atom.args)]
    return atom.name if atom.least else [atom.name]


def _symbolic(record: Any, atom: Callable[[Any], Atom]) -> SymDim:
    terms = {}
    for coefficient, monomial in record:
        if type(coefficient) is not int:
            raise ValueError(f"{coefficient!r} is not a coefficient")
        factors = []
        for part, power in monomial:
            if type(power) is not int or not 1 <= power <= _MOST_POWER:
                raise ValueError(f"{power!r} is not a power of a size")
            factors.append((atom(part), power))
        terms[tuple(factors)] = coefficient
    return SymDim(terms)


def _atom(record: Any, dim: Callable[[Any], Dim]) -> Atom:
    if isinstance(record, str):
        return Atom(record)
    if len(record) == 1:
        (name,) = record
        if not isinstance(name, str):
            raise ValueError(f"{name!r} is not a name of a size")
        return Atom(name, least=0)
    op, left, right = record
    if op not in OPERATIONS:
        raise ValueError(f"{op!r} is not an operation on dimensions")
    return Atom("", op, (dim(left), dim(right)))


def _checked_symbolic(dim: Dim) -> SymDim:
    if isinstance(dim, int):
        raise ValueError(f"{dim} is not symbolic")
    return dim
