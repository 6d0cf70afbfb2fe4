"""Tables of rules by operator, which write calls in another form or run them elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

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
