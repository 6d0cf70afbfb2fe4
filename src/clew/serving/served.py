"""What a chain returns for a call: a program at some sizes, and the build that explains it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np

from clew.runtime.native_program import NativeForm, native_form, only_segment
from clew.runtime.program import Program
from clew.runtime.sizes_key import SizesKey
from clew.runtime.variant import is_empty
from clew.support.dataclass import dataclass
from clew.support.lazy import cached_property
from clew.support.shown import Shown

if TYPE_CHECKING:  # imported with models of free sizes
    from clew.serving.often import Often

B = TypeVar("B")


@dataclass(frozen=True)
class Declined:
    """Why a provider does not serve a call."""

    provider: str
    reason: str

    def __str__(self) -> str:
        return f"{self.provider}: {self.reason}"


class Request:
    """A call that no program has served yet: its key, its checked inputs, and its sizes."""

    def __init__(
        self, key: SizesKey, arrays: Sequence[Any], sizes: Callable[[], Mapping[str, int]]
    ) -> None:
        self.key = key
        self.arrays = arrays
        self._sizes = sizes

    @cached_property
    def sizes(self) -> Mapping[str, int]:
        """The values of free dimensions, and of inputs that decide sizes, by name.

        Errors: I042 if sizes contradict each other.
        """
        return self._sizes()

    @cached_property
    def is_empty(self) -> bool:
        """Whether an input has no elements."""
        return is_empty(self.arrays)


@dataclass(frozen=True, eq=False, repr=False)
class Served(Shown, Generic[B]):
    """A program that answers the calls with one key.

    `made` is the build that explains the program: its stages, kernels and trace. A program from the
    disk cache has none until `build` is read, which `rebuild` then makes. `is_own` says whether it
    was compiled for this key alone. `weight` is the memory it takes, in kernels. `often` times the
    calls, if these sizes may get a build of their own.
    `declined` has the reasons of the providers asked before. `again` returns what serves a call
    with another key and its sizes, which need no check, by the same build; None if it is not valid
    there.
    """

    provider: str
    key: SizesKey
    sizes: Mapping[str, int]
    program: Program
    made: B | None = None
    rebuild: Callable[[], B] | None = None
    is_own: bool = False
    weight: int = 1
    often: Often | None = None
    declined: tuple[Declined, ...] = field(default=())
    again: Callable[[SizesKey, Mapping[str, int]], Served[B] | None] | None = None

    def _about(self) -> str:
        at = ", ".join(f"{name}={size}" for name, size in self.sizes.items())
        return f"by {self.provider}{f' at {at}' if at else ''}"

    def __str__(self) -> str:
        """The provider and the sizes, and a line for each provider that declined."""
        declined = "".join(f"\n  not by {each}" for each in self.declined)
        return f"served {self._about()}{declined}"

    def native(
        self, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[np.dtype[Any]]
    ) -> NativeForm | None:
        """Returns the native form of the next calls, with inputs of the shapes of this key; None if
        there is none, or before the program has run a few times.
        """
        program, ahead = self.program, None
        if self.often is not None:
            program, ahead = self.often.chosen(program), self.often.ahead
        native: NativeForm | None
        known, native = self.__dict__.get("_native", (None, None))
        if known is program:
            return native
        segment = only_segment(program)
        if segment is not None and not segment.is_native:
            return None
        native = None
        if segment is not None:
            native = native_form(program, list(zip(shapes, dtypes, strict=True)), ahead)
        self.__dict__["_native"] = program, native
        return native

    @property
    def may_turn_native(self) -> bool:
        """Whether a call may have a native form although the one before had none."""
        often = self.often
        return self._is_one_segment if often is None else often.ahead.value <= 0

    @cached_property
    def _is_one_segment(self) -> bool:
        return only_segment(self.program) is not None

    @cached_property
    def build(self) -> B:
        """The build. Errors: those of a build, if it has to be made."""
        if self.made is not None:
            return self.made
        assert self.rebuild is not None
        return self.rebuild()

    @property
    def known_build(self) -> B | None:
        """The build, if it exists."""
        found: B | None = self.__dict__.get("build", self.made)
        return found


class Provider(Protocol[B]):
    """One answer to the question which program serves a call."""

    @property
    def name(self) -> str:
        """The provider's name in messages."""
        ...

    def serve(self, request: Request) -> Served[B] | Declined:
        """Returns what serves a call, or why this provider does not.

        Errors: those of a build, where no later provider could do better.
        """
        ...
