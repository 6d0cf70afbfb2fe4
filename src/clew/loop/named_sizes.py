"""Texts of the sizes in a loop nest. Long sizes, and those that occur more than once, get names, so
that a line stays readable however large its polynomials are.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from clew.ir.dim_text import DIVISIONS, operand_text, operation_text, product_text, sum_text
from clew.ir.dims import Atom, Dim, SymDim
from clew.support.walk import post_order

# A size gets a name if its text is longer than this, or, for sizes that occur more than once, than
# the second.
LONGEST_INLINE: Final = 24
_LONGEST_REPEATED: Final = 12

_Product: TypeAlias = "tuple[tuple[Atom, int], ...]"
# A dimension or a part of one, in its simplest form: an atom is neither a product nor a sum of one.
_Part: TypeAlias = "Atom | _Product | SymDim"


class NamedSizes:
    """The texts of dimensions. `definitions` has the names and their values, in an order in
    which each uses only earlier ones.
    """

    def __init__(self, dims: Iterable[Dim]) -> None:
        """`dims` are the dimensions to write, each as often as it occurs."""
        self.definitions: list[tuple[str, str]] = []
        self._texts: dict[_Part, str] = {}
        self._inner: dict[_Part, str] = {}  # in larger texts
        uses: Counter[_Part] = Counter(_part(d) for d in dims if isinstance(d, SymDim))
        if not uses:
            return
        same: dict[_Part, _Part] = {part: part for part in uses}

        def below(part: _Part) -> Sequence[_Part]:
            found = [same.setdefault(p, p) for p in _parts(part)]
            uses.update(found)
            return found

        order = post_order(list(uses), below)
        taken = {part.name for part in order if isinstance(part, Atom)}
        names = (name for n in itertools.count() if (name := f"%s{n}") not in taken)
        for part in order:
            text = self._spelled(part)
            longest = _LONGEST_REPEATED if uses[part] > 1 else LONGEST_INLINE
            is_free = isinstance(part, Atom) and not part.op
            if not is_free and len(text) > longest:
                self.definitions.append((next(names), text))
                self._texts[part] = self._inner[part] = self.definitions[-1][0]
                continue
            is_closed = isinstance(part, Atom) and part.is_closed and part.op not in DIVISIONS
            self._texts[part] = text
            self._inner[part] = text if is_closed else f"({text})"

    def text(self, dim: Dim) -> str:
        """Returns the text of a dimension by itself."""
        return str(dim) if isinstance(dim, int) else self._texts[_part(dim)]

    def operand(self, dim: Dim) -> str:
        """Returns the text of a dimension in a larger expression, in parentheses where needed."""
        return operand_text(dim) if isinstance(dim, int) else self._inner[_part(dim)]

    def _spelled(self, part: _Part) -> str:
        """Returns the text of a part from the texts of its parts."""
        match part:
            case Atom(op=""):
                return part.name
            case Atom():
                shown = self.operand if part.op in DIVISIONS else self.text
                return operation_text(part.op, [shown(arg) for arg in part.args])
            case SymDim():
                return sum_text([(self._product(p), c) for p, c in part.terms])
        return product_text([(self._inner[atom], power) for atom, power in part])

    def _product(self, factors: _Product) -> str:
        """Returns the text of a product in a sum; "" for 1."""
        if not factors:
            return ""
        part = _simplest(factors)
        return self._texts[part] if part is factors else self._inner[part]


def plain_text(dim: Dim) -> str:
    """Returns the text of a dimension written out, without parentheses around the whole."""
    text = str(dim)
    atom = dim.atom if isinstance(dim, SymDim) else None
    return text[1:-1] if atom is not None and atom.op in DIVISIONS else text


def _part(dim: SymDim) -> _Part:
    if len(dim.terms) == 1 and dim.terms[0][1] == 1:
        return _simplest(dim.terms[0][0])
    return dim


def _simplest(factors: _Product) -> _Part:
    return factors[0][0] if len(factors) == 1 and factors[0][1] == 1 else factors


def _parts(part: _Part) -> list[_Part]:
    """Returns the parts of which a part consists."""
    match part:
        case Atom():
            return [_part(arg) for arg in part.args if isinstance(arg, SymDim)]
        case SymDim():
            return [_simplest(factors) for factors, _ in part.terms if factors]
    return [atom for atom, _ in part]
