"""Python code that evaluates many dimensions at given sizes at once.

It evaluates each subexpression once, and takes about a tenth of the time that `Sizes` takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from clew.ir.dims import Atom, Dim, Sizes, SymDim


class DimLists:
    """A generated function that evaluates lists of dimensions."""

    def __init__(self, *lists: Sequence[Dim]) -> None:
        writer = _Writer()
        values = ["[" + ", ".join(map(writer.value, dims)) + "]" for dims in lists]
        self._names = tuple(writer.names)
        self._compute = writer.function(f"[{', '.join(values)}]")

    def at(self, by_name: Mapping[str, int]) -> list[list[int]]:
        """Returns the values of each list at given sizes.

        Errors: ZeroDivisionError for a division by 0.
        """
        found: list[list[int]] = self._compute(*[by_name[name] for name in self._names])
        return found


class DimCode:
    """A generated function that evaluates dimensions for later look-ups."""

    def __init__(self, dims: Iterable[SymDim]) -> None:
        self._dims = tuple(dims)
        self._lists = DimLists(self._dims)

    def at(self, by_name: Mapping[str, int]) -> Sizes:
        """Returns `Sizes` that already hold the values of the dimensions.

        Errors: ZeroDivisionError for a division by 0.
        """
        (values,) = self._lists.at(by_name)
        return Sizes(by_name, dict(zip(self._dims, values, strict=True)))


class _Writer:
    """Writes the code of dimensions. `names` maps the names of sizes to parameters."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self._known: dict[Atom | SymDim, str] = {}
        self._lines: list[str] = []

    def function(self, result: str) -> Callable[..., Any]:
        """Returns the function of all sizes that returns the value of an expression."""
        body = "\n".join(f"  {line}" for line in [*self._lines, f"return {result}"])
        made: dict[str, Any] = {}
        text = f"def compute({', '.join(self.names.values())}):\n{body}\n"
        exec(compile(text, "<dimensions>", "exec"), made)
        compute: Callable[..., Any] = made["compute"]
        return compute

    def value(self, dim: Dim) -> str:
        """Returns code for a dimension: a number, or the variable that holds its value."""
        if isinstance(dim, int):
            return str(int(dim))
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
            return self.names.setdefault(atom.name, f"n{len(self.names)}")
        if atom not in self._known:
            left, right = (self.value(side) for side in atom.args)
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
