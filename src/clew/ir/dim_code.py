"""DimCode: Python code that evaluates many dimensions at given sizes at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from clew.ir.dims import Atom, Dim, Sizes, SymDim


class DimCode:
    """A generated function that evaluates dimensions at given sizes, each subexpression once. It
    takes about a tenth of the time that `Sizes` takes to evaluate them.
    """

    def __init__(self, dims: Iterable[SymDim]) -> None:
        self._dims = tuple(dims)
        self._names: dict[str, str] = {}
        self._known: dict[Atom | SymDim, str] = {}
        self._lines: list[str] = []
        values = [self._value(dim) for dim in self._dims]
        takes = ", ".join(self._names.values())
        body = "\n".join(f"  {line}" for line in self._lines)
        text = f"def compute({takes}):\n{body}\n  return [{', '.join(values)}]\n"
        made: dict[str, Any] = {}
        exec(compile(text, "<dimensions>", "exec"), made)
        self._compute: Callable[..., list[int]] = made["compute"]

    def at(self, by_name: Mapping[str, int]) -> Sizes:
        """Returns `Sizes` that already hold the values of the dimensions.

        Errors: ZeroDivisionError for a division by 0.
        """
        values = self._compute(*(by_name[name] for name in self._names))
        return Sizes(by_name, dict(zip(self._dims, values, strict=True)))

    def _value(self, dim: Dim) -> str:
        """Returns code for a dimension: a number, or the variable that holds its value."""
        if isinstance(dim, int):
            return str(dim)
        if dim not in self._known:
            terms = []
            for monomial, coefficient in dim.terms:
                factors = [self._atom(atom) for atom, power in monomial for _ in range(power)]
                if coefficient != 1 or not factors:
                    factors.insert(0, f"({coefficient})")
                terms.append(" * ".join(factors))
            self._known[dim] = self._assigned(" + ".join(terms) or "0")
        return self._known[dim]

    def _atom(self, atom: Atom) -> str:
        if not atom.op:
            return self._names.setdefault(atom.name, f"n{len(self._names)}")
        if atom not in self._known:
            left, right = (self._value(side) for side in atom.args)
            text = {
                "min": f"{left} if {left} < {right} else {right}",
                "max": f"{left} if {left} > {right} else {right}",
            }.get(atom.op, f"{left} {atom.op} {right}")
            self._known[atom] = self._assigned(text)
        return self._known[atom]

    def _assigned(self, text: str) -> str:
        name = f"v{len(self._lines)}"
        self._lines.append(f"{name} = {text}")
        return name
