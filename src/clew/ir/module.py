"""A module: named functions, including `main`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TypeAlias

from clew.ir.defaults import Defaults
from clew.ir.expr import Function
from clew.ir.types import TupleType
from clew.support.shown import Shown, counted

ByRanks: TypeAlias = "Callable[[Mapping[str, int]], Module | None]"

# The function behind `str(module)`. The printer, which imports this file, sets it.
_text_form: list[Callable[[Module], str]] = [repr]


def printed_by(form: Callable[[Module], str]) -> None:
    """Sets the function that `str(module)` calls."""
    _text_form[:] = [form]


class Module(Shown):
    """Functions by name; immutable. `main`'s parameters are the model's inputs.

    `main.attrs.outputs` names the model's outputs; its body is a `Tuple` of them. `defaults` is set
    in a module as imported if callers may replace some of its constants, and `by_ranks` if layers
    are imported when they run because the ranks of elements of input lists are unknown: it returns
    the module for such ranks by input, or None if they do not suffice. Passes drop both.
    """

    __slots__ = ("by_ranks", "defaults", "functions")

    def __init__(
        self,
        functions: Mapping[str, Function],
        defaults: Defaults | None = None,
        by_ranks: ByRanks | None = None,
    ) -> None:
        assert "main" in functions, "a module has a function `main`"
        self.defaults = defaults
        self.by_ranks = by_ranks
        self.functions: Mapping[str, Function] = MappingProxyType(dict(functions))

    def _about(self) -> str:
        params = ", ".join(f"{p.name}: {p.type}" for p in self.main.params[:3])
        more = ", ..." if len(self.main.params) > 3 else ""
        inner = f"; {counted(len(self.functions), 'function')}" if len(self.functions) > 1 else ""
        return f"({params}{more}) -> {', '.join(self.output_names[:3])}{inner}"

    @property
    def main(self) -> Function:
        """The entry."""
        return self.functions["main"]

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the inputs in order."""
        return tuple(p.name for p in self.main.params)

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the outputs in order: `output0` and so on if `main` names none."""
        if "outputs" in self.main.attrs:
            return tuple(self.main.attrs["outputs"])
        result = self.main.body.type
        count = len(result.fields) if isinstance(result, TupleType) else 1
        return tuple(f"output{n}" for n in range(count))

    def with_functions(self, changed: Mapping[str, Function]) -> Module:
        """Returns the module with some functions replaced or added; itself if nothing changed."""
        if all(self.functions.get(name) is f for name, f in changed.items()):
            return self
        return Module({**self.functions, **changed})

    def __iter__(self) -> Iterator[tuple[str, Function]]:
        return iter(self.functions.items())

    def __str__(self) -> str:
        return _text_form[0](self)
