"""Calls that replace default values: each set of replaced defaults has a model in which they are
inputs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from clew.support.errors import Hint, InputError
from clew.support.locks import Once

if TYPE_CHECKING:
    from clew.ir.defaults import Defaults
    from clew.ir.deferred import DeferredModule
    from clew.ir.module import Module

M = TypeVar("M")
_KEPT: Final = 8


class Replaced(NamedTuple):
    """The inputs of a call: `values` in place of defaults, and the others, in order and by name."""

    values: dict[str, Any]
    given: Sequence[Any]
    named: Mapping[str, Any]


class Replacing(Generic[M]):
    """The models in which some defaults are inputs, made on first use; the last 8 are kept."""

    def __init__(self, names: tuple[str, ...], defaults: Callable[[], Defaults | None]) -> None:
        """`names` are those of the defaults, which are made on first use."""
        self.names = names
        self._defaults = Once(defaults)
        self._made: OrderedDict[frozenset[str], M] = OrderedDict()

    @property
    def defaults(self) -> Defaults | None:
        """The inputs with default values. Errors: those of an import."""
        return self._defaults.get()

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
        key = frozenset(values)
        if key not in self._made:
            defaults = self.defaults
            assert defaults is not None
            self._made[key] = make(defaults.with_inputs(key))
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
