"""Values that are read as indices: the places they may name, and the error for any other.

With the bounds `check`, the default, an index outside its axis ends a run in I320. With `clamp` it
is held inside, as the operator says. `clew.compile` takes `bounds=`, the command line `--bounds`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from clew.support.errors import InputError, RunError

BOUNDS: Final = ("check", "clamp")
_in_force: ContextVar[str] = ContextVar("bounds", default="check")


@dataclass(frozen=True)
class Places:
    """The indices that an operator takes: 0 to `count - 1`, and -1 to -`count`, which count from
    the end, where it is `from_end`.

    `operator`, `noun` (index, length, ...), `axis` and its `size` are for people.
    """

    operator: str
    axis: int
    size: Any
    count: Any
    from_end: bool = True
    noun: str = "index"

    @property
    def low(self) -> int:
        """The lowest index there is."""
        return -int(self.count) if self.from_end else 0

    def unwrapped(self, wrapped: int) -> int:
        """Returns the index that was given, from one out of range that `count` was added to if it
        was negative.
        """
        return wrapped - int(self.count) if self.from_end and wrapped < 0 else wrapped

    def error(self, index: int, layer: str = "") -> RunError:
        """Returns the error (I320) of an index that is none of these."""
        return RunError(
            "I320",
            f"{self.operator}: {self.noun} {index} is out of range for axis {self.axis} of size "
            f"{self.size}",
            hint=f"it may be {self.low} to {int(self.count) - 1}; bounds='clamp' (--bounds clamp) "
            "runs without this check",
            layer=layer,
        )


def check_bounds(bounds: str) -> str:
    """Returns how indices out of range are treated, as given.

    Errors: I321 for a way that there is not.
    """
    if bounds not in BOUNDS:
        raise InputError("I321", f"bounds is {bounds!r}", hint=f"it is {' or '.join(BOUNDS)}")
    return bounds


def clamping() -> bool:
    """Whether indices out of range are held inside, in this thread."""
    return _in_force.get() == "clamp"


def bounds_now() -> str:
    """Returns how indices out of range are treated in this thread."""
    return _in_force.get()


@contextmanager
def bounds_in_force(bounds: str) -> Iterator[None]:
    """Has what is called inside treat indices out of range in this way."""
    token = _in_force.set(bounds)
    try:
        yield
    finally:
        _in_force.reset(token)


def held(indices: np.ndarray[Any, Any], places: Places) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Returns indices counted from the front, `i64`; those out of range held inside where that is
    in force.

    Errors: I320 for an index out of range where they are checked.
    """
    wide = np.asarray(indices).astype(np.int64)
    count = int(places.count)
    if not wide.size or (wide.min() >= 0 and wide.max() < count):
        return wide
    if places.from_end:
        wide = np.where(wide < 0, wide + count, wide)
    outside = (wide < 0) | (wide >= count)
    if not outside.any():
        return wide
    if not clamping():
        raise places.error(places.unwrapped(int(wide[outside][0])))
    return np.clip(wide, 0, count - 1)
