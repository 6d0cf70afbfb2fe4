"""Calls that replace default values: each set of replaced defaults has a model in which they are
inputs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

from clew.ir.defaults import Defaults
from clew.ir.deferred import DeferredModule
from clew.ir.module import Module
from clew.support.errors import Hint, InputError

M = TypeVar("M")
_KEPT: Final = 8


class Replaced(NamedTuple):
    """The inputs of a call: `values` in place of defaults, and the others, in order and by name."""

    values: dict[str, Any]
    given: Sequence[Any]
    named: Mapping[str, Any]


class Replacing(Generic[M]):
    """The models in which some defaults are inputs, made on first use; the last 8 are kept."""

    def __init__(self, defaults: Defaults | None) -> None:
        self.defaults = defaults
        self.names = () if defaults is None else defaults.names
        self._made: OrderedDict[frozenset[str], M] = OrderedDict()

    @property
    def models(self) -> list[M]:
        """The models made so far, the most recently used one last."""
        return list(self._made.values())

    def split(self, given: Sequence[Any], named: Mapping[str, Any]) -> Replaced:
        """Returns the inputs of a call, with values in place of defaults apart."""
        values = {n: v for n, v in named.items() if n in self.names}
        rest = {n: v for n, v in named.items() if n not in values} if values else named
        if len(given) == 1 and isinstance(given[0], Mapping):
            mine = {n: v for n, v in given[0].items() if n in self.names}
            if mine:
                given = [{n: v for n, v in given[0].items() if n not in mine}]
                values |= mine
        return Replaced(values, given, rest)

    def model(self, values: Mapping[str, Any], make: Callable[[Module | DeferredModule], M]) -> M:
        """Returns the model in which these defaults are inputs.

        Errors: those of an import and a build.
        """
        assert self.defaults is not None
        key = frozenset(values)
        if key not in self._made:
            self._made[key] = make(self.defaults.with_inputs(key))
            while len(self._made) > _KEPT:
                self._made.popitem(last=False)
        self._made.move_to_end(key)
        return self._made[key]

    @staticmethod
    def refusal(values: Mapping[str, Any]) -> InputError:
        """Returns the error for values in place of defaults where only a call of the compiled model
        can replace them.
        """
        name = next(iter(values))
        return InputError(
            "I041",
            f"input {name!r} has a default value, which is a constant here",
            hint=Hint(
                f"make it an input: clew.compile(model, inputs={{{name!r}: SHAPE}})",
                cli=f"make it an input: --shape {name}=SIZES",
                page=f"make it an input: compile it with a shape of {name}",
            ),
        )
