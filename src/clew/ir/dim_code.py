"""Python code that evaluates many dimensions at given sizes at once.

It evaluates each subexpression once, and takes about a tenth of the time that `Sizes` takes. The
sizes may be arrays: then the dimensions are evaluated for many sets of sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from clew.ir.dims import Atom, Dim, Sizes, SymDim
from clew.support.errors import GraphTypeError

# Compiling the code of dimensions takes about as long as evaluating them so often without it.
_FIRST_EVALUATIONS: Final = 8


class DimLists:
    """Evaluates lists of dimensions, after a few times by a generated function."""

    def __init__(self, *lists: Sequence[Dim]) -> None:
        self._lists = lists
        self._evaluations = 0
        self._names: tuple[str, ...] = ()
        self._compute: Callable[..., Any] | None = None

    def at(self, by_name: Mapping[str, int]) -> list[list[int]]:
        """Returns the values of each list at given sizes.

        Errors: ZeroDivisionError for a division by 0.
        """
        if self._compute is None:
            if self._evaluations < _FIRST_EVALUATIONS:
                self._evaluations += 1
                return self._plainly(Sizes(by_name))
            self._generate()
            assert self._compute is not None
        found: list[list[int]] = self._compute(*[by_name[name] for name in self._names])
        return found

    def _plainly(self, sizes: Sizes) -> list[list[int]]:
        try:
            return [list(map(sizes.value, dims)) for dims in self._lists]
        except GraphTypeError as error:
            raise ZeroDivisionError(error.message) from error

    def _generate(self) -> None:
        writer = _Writer()
        values = ["[" + ", ".join(map(writer.value, dims)) + "]" for dims in self._lists]
        self._names = tuple(writer.names)
        self._compute = writer.function(f"[{', '.join(values)}]")


class DimArrays:
    """A generated function that evaluates a list of dimensions for many sets of sizes."""

    def __init__(self, dims: Sequence[Dim]) -> None:
        writer = _Writer(_OF_ARRAYS)
        self._width = len(dims)
        values = ", ".join(map(writer.value, dims))
        self._names = tuple(writer.names)
        self._compute = writer.function(f"[{values}]")

    def at(self, by_name: Mapping[str, Any], count: int) -> np.ndarray:
        """Returns i64[dims, count]: the values at `count` sets of sizes, each a number or an array
        of `count` numbers. A division by 0 and a value beyond 64 bits have any result.
        """
        found = np.empty((self._width, count), np.int64)
        with np.errstate(all="ignore"):
            for row, value in enumerate(self._compute(*[by_name[name] for name in self._names])):
                found[row] = value
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


_OF_NUMBERS = {
    "min": "{0} if {0} < {1} else {1}",
    "max": "{0} if {0} > {1} else {1}",
}
_OF_ARRAYS = {"min": "minimum({0}, {1})", "max": "maximum({0}, {1})"}


class _Writer:
    """Writes the code of dimensions. `names` maps the names of sizes to parameters."""

    def __init__(self, forms: Mapping[str, str] = _OF_NUMBERS) -> None:
        """`forms` is the code of operations that are no operators of Python."""
        self._forms = forms
        self.names: dict[str, str] = {}
        self._known: dict[Atom | SymDim, str] = {}
        self._lines: list[str] = []

    def function(self, result: str) -> Callable[..., Any]:
        """Returns the function of all sizes that returns the value of an expression."""
        body = "\n".join(f"  {line}" for line in [*self._lines, f"return {result}"])
        made: dict[str, Any] = {"minimum": np.minimum, "maximum": np.maximum}
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
            form = self._forms.get(atom.op, "{0} " + atom.op + " {1}")
            self._known[atom] = self._assigned(form.format(left, right))
        return self._known[atom]

    def _assigned(self, text: str) -> str:
        name = f"v{len(self._lines)}"
        self._lines.append(f"{name} = {text}")
        return name
