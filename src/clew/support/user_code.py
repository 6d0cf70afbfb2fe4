"""Whether users' code in this process may change what a model compiles to.

Registries of rules add a check here. Nothing is known of code that is not in a registry, such as
the arguments of `clew.compile`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_CHECKS: Final[list[Callable[[], bool]]] = []


def add_check(has_user_code: Callable[[], bool]) -> None:
    """Adds a check of a registry."""
    _CHECKS.append(has_user_code)


def has_user_code() -> bool:
    """Whether a registry holds a user's rule."""
    return any(check() for check in _CHECKS)


def is_own(rule: object) -> bool:
    """Whether clew defines a function."""
    return str(getattr(rule, "__module__", "")).startswith("clew.")
