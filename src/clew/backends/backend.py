"""The protocol of backends, and what is checked of those that a user gives."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

from clew.ir.expr import Call, Function
from clew.machine.target import Target
from clew.passes.base import Pass
from clew.passes.placement.claims import RegionPattern
from clew.runtime.spaces import HOST, MemorySpace
from clew.support.errors import InputError

CompiledRegion: TypeAlias = Callable[..., Any]
"""Runs a region: called with a buffer for each parameter, it returns one for each result (a tuple
or list where there are several), all of them in the backend's memory space."""

_TAKEN: Final = ("cpu", "host")
_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")


class Backend(ABC):
    """Takes regions of the graph and runs them in a memory space of its own.

    A backend claims operators, by `takes` or by `patterns`. `AssignBackends` makes regions of those
    it claimed, as large as they can be without a value leaving and coming back; `cost` may turn one
    down. Each region is a function of static shapes with its constants inside; a match of a pattern
    is a call of a function with `composite` set to the pattern's name. `compile` is called once for
    equal regions of a build.

    `name` and `key` identify the backend: `key` is part of every cache key, so that it must change
    with whatever changes what the backend takes or compiles.
    """

    name: str
    key: str = ""
    memory: MemorySpace = HOST
    patterns: Sequence[RegionPattern] = ()

    def takes(self, call: Call) -> bool:
        """Whether the backend runs a call of an operator, whose shapes are known."""
        return False

    def cost(self, region: Function, target: Target) -> float | None:
        """Returns the seconds that a run of a region takes, copies at its borders included. The
        CPU runs it if that is faster; None takes the region in any case.
        """
        return None

    def passes(self, target: Target) -> Sequence[Pass]:
        """Returns passes to run just before regions are made."""
        return ()

    @abstractmethod
    def compile(self, region: Function, target: Target) -> CompiledRegion:
        """Returns what runs a region. `target` describes the machine of the host."""

    def to_record(self, region: CompiledRegion) -> bytes | None:
        """Returns a compiled region as bytes, for the cache and for saved models; None for a
        backend that cannot.
        """
        return None

    def of_record(self, record: bytes) -> CompiledRegion:
        """Returns the compiled region that `to_record` wrote, perhaps in another process."""
        raise TypeError(f"{self.name} keeps no regions")

    def __str__(self) -> str:
        return f"{self.name}:{self.key}" if self.key else self.name

    __repr__ = __str__


def checked_backends(items: Iterable[Any]) -> tuple[Backend, ...]:
    """Returns the backends that a user gave.

    Errors: I350 for what is no backend, memory or pattern, I351 for two backends or two memories of
    one name, I352 for a name that is taken, or is no name.
    """
    found: dict[str, Backend] = {}
    spaces: dict[str, MemorySpace] = {HOST.name: HOST}
    for item in items:
        if not isinstance(item, Backend):
            known = item.__name__ if isinstance(item, type) else type(item).__name__
            raise InputError(
                "I350",
                f"{known} is no backend",
                hint="a backend is an instance of a subclass of clew.Backend",
            )
        name = getattr(item, "name", None)
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name in _TAKEN:
            taken = "is taken" if name in _TAKEN else "is no name of a backend"
            raise InputError(
                "I352",
                f"{name!r} {taken}",
                hint="lower-case letters, digits and _; cpu and host are clew's own",
            )
        for pattern in item.patterns:
            if not isinstance(pattern, RegionPattern):
                raise InputError(
                    "I350",
                    f"a pattern of the backend {name} is a {type(pattern).__name__}",
                    hint="patterns are clew.RegionPattern(name, pattern, check)",
                )
        if name in found:
            raise InputError(
                "I351", f"two backends are called {name}", hint="names tell backends apart"
            )
        if not isinstance(item.memory, MemorySpace):
            raise InputError(
                "I350",
                f"the memory of the backend {name} is a {type(item.memory).__name__}",
                hint="it is an instance of a subclass of clew.MemorySpace",
            )
        space = spaces.setdefault(item.memory.name, item.memory)
        if space is not item.memory:
            raise InputError(
                "I351",
                f"two memories are called {space.name}, one of them of the backend {name}",
                hint="backends that share a memory share the object",
            )
        found[name] = item
    return tuple(found.values())
