"""Tables of rules by operator, which write calls in another form or run them elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NoReturn, TypeVar

from numpy.typing import NDArray

from clew.ir.expr import Attrs, Call, Constant
from clew.ir.types import TensorType, leaves

R = TypeVar("R", bound=Callable[..., Any])


class Refused(Exception):
    """A rule has no form of the same meaning for a call; `reason` says why. It does not leave the
    package of the rules.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Rules(dict[str, R], Generic[R]):
    """Rules by the names of operators."""

    def register(self, *names: str) -> Callable[[R], R]:
        """Decorator: registers the rule of operators."""

        def add(rule: R) -> R:
            for name in names:
                assert name not in self, f"{name} has two rules"
                self[name] = rule
            return rule

        return add


class RuledCall:
    """A call that a rule gives another form: its attributes, the types of its arguments, and the
    values of those that are constants.
    """

    def __init__(self, call: Call) -> None:
        self.call = call
        self.attrs: Attrs = call.attrs
        self.types: tuple[TensorType, ...] = tuple(a.tensor for a in call.args)

    @property
    def type(self) -> TensorType:
        """The type of the result; of a tuple, that of its first field."""
        first = next(iter(leaves(self.call.type)))
        assert isinstance(first, TensorType)
        return first

    def shape(self, n: int = 0) -> tuple[int, ...]:
        """Returns the shape of an argument."""
        return self.types[n].concrete

    def known(self, n: int) -> NDArray[Any] | None:
        """Returns the value of an argument if it is a constant."""
        arg = self.call.args[n]
        return arg.data if isinstance(arg, Constant) else None

    def refuse(self, reason: str) -> NoReturn:
        """Refuses the call, for which the rule has no form of the same meaning.

        Errors: Refused.
        """
        raise Refused(reason)
