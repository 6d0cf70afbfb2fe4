"""The interface of backends, and the checks of a user's backends."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal, Protocol, TypeAlias, runtime_checkable

from clew.backends.details import RegionDetails
from clew.ir.expr import Call, Function
from clew.machine.target import Target
from clew.passes.base import Pass
from clew.passes.placement.claims import RegionPattern
from clew.runtime.spaces import HOST, MemorySpace
from clew.support.errors import InputError

CompiledRegion: TypeAlias = Callable[..., Any]
"""A function that runs a region. It takes one buffer per parameter and returns one per result (a
tuple or list if there are several). All buffers are in the backend's memory space."""


@runtime_checkable
class DescribedRegion(Protocol):
    """A compiled region that describes itself, which is optional."""

    def describe(self, region: Function) -> RegionDetails:
        """Returns the details of `region`: the function that was compiled, or an equal one whose
        calls belong to other layers, since equal regions are compiled once and records keep no
        layers.
        """
        ...


Watched: TypeAlias = Literal["first", "always", "never"]

CPU: Final = "cpu"
"""The name of clew's own backend, in placements and for regions whose backend failed."""
_TAKEN: Final = (CPU, "host")
_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")


class Backend(ABC):
    """Takes regions of the graph and runs them in a memory space.

    A backend claims operators by `takes` or by `patterns`. Placement makes regions of them, as
    large as possible such that no value leaves a region and comes back; `cost` may reject a region.
    Each region is a function with static shapes that contains its constants. In it, a match of a
    pattern is a call of a function with `composite` set to the pattern's name. `compile` is called
    once for equal regions of a build.

    `name` and `key` identify the backend. `key` is part of every cache key; it must change whenever
    the backend takes other operators or compiles them differently.
    """

    name: str
    key: str = ""
    memory: MemorySpace = HOST
    patterns: Sequence[RegionPattern] = ()
    limit_s: float = 120.0
    """The seconds after which `compile`, or a call of a region, counts as hung."""
    watch: Watched = "first"
    """Which calls of a region are watched for hanging: the first, all (`always`), or none (`never`,
    which does not watch `compile` either). A watched call runs in a separate thread, which takes
    some tens of microseconds."""

    def takes(self, call: Call) -> bool:
        """Whether the backend can run a call of an operator. Its shapes are known."""
        return False

    def why_not(self, call: Call) -> str:
        """Returns the reason why the backend does not take a call, for errors; empty if it states
        none.
        """
        return ""

    def at_threads(self, threads: int) -> Backend:
        """Returns the backend for programs that run on a number of threads. If it compiles
        differently, its `key` differs.
        """
        return self

    def cost(self, region: Function, target: Target) -> float | None:
        """Returns the seconds of one run of a region, including the copies at its borders. If the
        CPU is faster, the CPU runs it. None takes the region in any case.
        """
        return None

    def passes(self, target: Target) -> Sequence[Pass]:
        """Returns passes to run just before regions are formed."""
        return ()

    @abstractmethod
    def compile(self, region: Function, target: Target) -> CompiledRegion:
        """Compiles a region. `target` describes the host machine. A simulated device gives the
        result an attribute `seconds`, the time that a call would take; placement counts it instead
        of the time of the simulation.
        """

    def to_record(self, region: CompiledRegion) -> bytes | None:
        """Returns a compiled region as bytes, for the cache and for saved models; None if the
        backend does not support this.
        """
        return None

    def of_record(self, record: bytes) -> CompiledRegion:
        """Returns the compiled region of a record from `to_record`, which another process may have
        written.
        """
        raise TypeError(f"{self.name} does not implement of_record")

    def __str__(self) -> str:
        return f"{self.name}:{self.key}" if self.key else self.name

    __repr__ = __str__


def checked_backends(items: Iterable[Any]) -> tuple[Backend, ...]:
    """Checks a user's backends and returns them.

    Errors: I350 for an object that is not a backend, memory space or pattern; I351 for two backends
    or two memory spaces with one name; I352 for a reserved or invalid name.
    """
    found: dict[str, Backend] = {}
    spaces: dict[str, MemorySpace] = {HOST.name: HOST}
    for item in items:
        if not isinstance(item, Backend):
            known = item.__name__ if isinstance(item, type) else type(item).__name__
            raise InputError(
                "I350",
                f"{known} is not a backend",
                hint="a backend is an instance of a subclass of clew.Backend",
            )
        name = getattr(item, "name", None)
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name in _TAKEN:
            taken = "is reserved" if name in _TAKEN else "is not a valid name of a backend"
            raise InputError(
                "I352",
                f"{name!r} {taken}",
                hint="use lower-case letters, digits and _; cpu and host are reserved",
            )
        for pattern in item.patterns:
            if not isinstance(pattern, RegionPattern):
                raise InputError(
                    "I350",
                    f"a pattern of the backend {name} is of type {type(pattern).__name__}",
                    hint="make patterns with clew.RegionPattern(name, pattern, check)",
                )
        if name in found:
            raise InputError(
                "I351", f"two backends have the name {name}", hint="names must be unique"
            )
        if not isinstance(item.memory, MemorySpace):
            raise InputError(
                "I350",
                f"the memory of the backend {name} is of type {type(item.memory).__name__}",
                hint="it must be an instance of a subclass of clew.MemorySpace",
            )
        space = spaces.setdefault(item.memory.name, item.memory)
        if space is not item.memory:
            raise InputError(
                "I351",
                f"two memory spaces have the name {space.name}, one of them in the backend {name}",
                hint="pass the same object to backends that share a memory space",
            )
        found[name] = item
    return tuple(found.values())
