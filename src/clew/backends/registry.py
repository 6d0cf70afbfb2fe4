"""Backends by name: those of installed packages, imported on first use, and those that users
register. clew's own are declared like those of any package, in the entry point group `GROUP`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias, overload

from clew.backends.backend import Backend, CompiledRegion, checked_backends
from clew.ir.expr import Call, Function
from clew.machine.target import Target
from clew.passes.placement.claims import RegionPattern
from clew.runtime.spaces import HOST, MemorySpace
from clew.support.errors import InputError
from clew.support.near import did_you_mean
from clew.support.plugins import loaded, package_of

if TYPE_CHECKING:  # it loads many modules
    from importlib.metadata import EntryPoint

Compile: TypeAlias = Callable[[Function, Target], CompiledRegion]

GROUP: Final = "clew.backends"
"""The entry point group of packages that add backends: subclasses of `clew.Backend`, which are
instantiated without arguments, by name.
"""
_registered: dict[str, Callable[[], Backend]] = {}


class FunctionBackend(Backend):
    """A backend made of functions (`clew.backend`)."""

    def __init__(
        self,
        name: str,
        compile: Compile,
        *,
        key: str = "",
        patterns: Sequence[RegionPattern] = (),
        takes: Callable[[Call], bool] | None = None,
        cost: Callable[[Function, Target], float | None] | None = None,
        memory: MemorySpace = HOST,
    ) -> None:
        self.name = name
        self.key = key
        self.patterns = tuple(patterns)
        self.memory = memory
        self._compile = compile
        self._takes = takes
        self._cost = cost

    def takes(self, call: Call) -> bool:
        return self._takes is not None and bool(self._takes(call))

    def cost(self, region: Function, target: Target) -> float | None:
        return None if self._cost is None else self._cost(region, target)

    def compile(self, region: Function, target: Target) -> CompiledRegion:
        return self._compile(region, target)


@overload
def backend(name: type[Backend], /) -> type[Backend]: ...
@overload
def backend(
    name: str,
    /,
    *,
    key: str = "",
    patterns: Sequence[RegionPattern] = (),
    takes: Callable[[Call], bool] | None = None,
    cost: Callable[[Function, Target], float | None] | None = None,
    memory: MemorySpace = HOST,
) -> Callable[[Compile], Backend]: ...
def backend(name: Any, /, **options: Any) -> Any:
    """Registers a backend under its name, for `compile(model, backends=["name"])`.

    As the decorator of a function `compile(region, target)`, it returns a backend that compiles
    with it. `takes`, `patterns`, `cost`, `memory` and `key` are as in `clew.Backend`:

    ```python
    @clew.backend("toy", takes=lambda call: call.op_name == "add")
    def toy(region, target):
        return run_additions
    ```

    As the decorator of a subclass of `clew.Backend`, which is instantiated without arguments, it
    returns the class. A second backend of a name replaces the first.

    Errors: I350 to I352 for an invalid backend; I353 for the name of one of clew's backends.
    """
    if inspect.isclass(name):
        made: Any = name
        _register(made(), made)
        return made

    def decorate(function: Compile) -> Backend:
        found = FunctionBackend(name, function, **options)
        _register(found, lambda: found)
        return found

    return decorate


def _register(made: Backend, make: Callable[[], Backend]) -> None:
    (checked,) = checked_backends([made])
    owner = _installed().get(checked.name)
    if owner is not None:
        raise InputError(
            "I353",
            f"{package_of(owner)} itself has a backend {checked.name}",
            hint="choose another name",
        )
    _registered[checked.name] = make


def backend_names() -> list[str]:
    """Returns the names of the backends of installed packages and of registered ones."""
    return [*_installed(), *_registered]


def backends_of(items: Iterable[Any]) -> tuple[Backend, ...]:
    """Returns backends, given as objects or by name.

    Errors: I350 to I352; I353 for an unknown name; I356 for one that cannot be loaded.
    """
    return checked_backends(_named(i) if isinstance(i, str) else i for i in items)


def _named(name: str) -> Backend:
    if name in _registered:
        return _registered[name]()
    if name not in _installed():
        raise InputError(
            "I353",
            f"no backend is called {name}",
            hint=did_you_mean(name, backend_names(), "backends"),
        )
    return _made(name)


@cache
def _installed() -> dict[str, EntryPoint]:
    """Returns the declared backends by name. Those of clew come first, and win over others."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - few models need them

    found: dict[str, EntryPoint] = {}
    for entry in sorted(entry_points(group=GROUP), key=lambda e: package_of(e) != "clew"):
        found.setdefault(entry.name, entry)
    return found


@cache
def _made(name: str) -> Backend:
    return loaded(_installed()[name], f"the backend {name}", _instance)


def _instance(make: Callable[[], Backend]) -> Backend:
    return make()
