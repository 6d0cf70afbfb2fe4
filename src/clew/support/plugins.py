"""Objects that installed packages declare in entry points: formats and backends."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from clew.support.errors import InputError
from clew.support.interrupts import held_interrupts
from clew.support.loading import LOADING

if TYPE_CHECKING:  # it loads many modules
    from importlib.metadata import EntryPoint

Made = TypeVar("Made")


def package_of(entry: EntryPoint) -> str:
    """Returns the name of the package that declares an object."""
    return entry.dist.name if entry.dist is not None else "a package"


def loaded(entry: EntryPoint, what: str, made: Callable[[Any], Made]) -> Made:
    """Returns the result of `made` for the object that an entry point names. `what` is the object's
    name in messages, such as "the backend x".

    Errors: I356 if the object, or a library that it needs, cannot be imported, or `made` fails.
    """
    package = package_of(entry)
    try:
        with LOADING, held_interrupts():
            return made(entry.load())
    except ModuleNotFoundError as error:
        own = package == "clew"
        raise InputError(
            "I356",
            f"{what} needs {error.name or 'a package'}, which is not installed",
            hint=f"pip install 'clew[{entry.name}]'" if own else f"install it; {package} needs it",
        ) from error
    except Exception as error:  # of any kind: the package's code runs
        raise InputError(
            "I356",
            f"{what} cannot be loaded: {type(error).__name__}: {error}",
            hint=f"update or uninstall {package}, which declares it as {entry.value}",
        ) from error
