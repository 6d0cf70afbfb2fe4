"""The converters of a format: which function imports an operator.

A format has a table, and a decorator that registers functions in it:

```python
CONVERTERS = Converters()


@CONVERTERS.register("LeakyRelu")
def leaky_relu(layer: Layer) -> Expr:
    return call("nn.leaky_relu", layer.input(0), alpha=layer.real("alpha", 0.01))
```

`since` is the first version of the operator that a function is for; it applies until the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Final, Generic, TypeVar

from clew.support.user_code import add_check, is_own

K = TypeVar("K", bound=Hashable)
C = TypeVar("C", bound=Callable[..., Any])


_TABLES: Final[list[Converters[Any, Any]]] = []
add_check(lambda: any(not is_own(c) for t in _TABLES for vs in t.values() for c in vs.values()))


class Converters(dict[K, dict[int, C]], Generic[K, C]):
    """Converters by operator and first version."""

    def __init__(self) -> None:
        super().__init__()
        _TABLES.append(self)

    def register(self, *operators: K, since: int = 1) -> Callable[[C], C]:
        """Decorator: registers a converter for operators."""

        def add(function: C) -> C:
            for operator in operators:
                versions = self.setdefault(operator, {})
                assert since not in versions, f"{operator} has two converters since {since}"
                versions[since] = function
            return function

        return add

    def find(self, operator: K, version: int | None = None) -> C | None:
        """Returns the converter for an operator of a version, by default the newest; None if there
        is none.
        """
        versions = self.get(operator, {})
        fitting = [since for since in versions if version is None or since <= version]
        return versions[max(fitting)] if fitting else None
