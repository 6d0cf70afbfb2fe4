"""Values used as indices: their valid range, and the error for others.

With the bounds `check`, the default, an index outside its axis ends a run with I320. With `clamp`
it is clamped, as defined by the operator. `clew.Limits` takes `bounds=`, the command line
`--bounds`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Final

import numpy as np

from clew.support.dataclass import dataclass
from clew.support.errors import InputError, RunError
from clew.support.scoped import scoped

BOUNDS: Final = ("check", "clamp")
IN_FORCE: Final[ContextVar[str]] = ContextVar("bounds", default="check")
"""The thread's treatment of indices out of range."""


@dataclass(frozen=True)
class Places:
    """The valid indices of an operator: 0 to `count - 1`, and, with `from_end`, -1 to -`count`,
    which count from the end.

    `operator`, `noun` (index, length, ...), `axis` and its `size` appear in messages.
    """

    operator: str
    axis: int
    size: Any
    count: Any
    from_end: bool = True
    noun: str = "index"

    @property
    def low(self) -> int:
        """The lowest valid index."""
        return -int(self.count) if self.from_end else 0

    def unwrapped(self, wrapped: int) -> int:
        """Returns the index as given, from an invalid one to which `count` was added if it was
        negative.
        """
        return wrapped - int(self.count) if self.from_end and wrapped < 0 else wrapped

    def error(self, index: int, layer: str = "") -> RunError:
        """Returns the error (I320) for an invalid index."""
        return RunError(
            "I320",
            f"{self.operator}: {self.noun} {index} is out of range for axis {self.axis} of size "
            f"{self.size}",
            hint=f"it may be {self.low} to {int(self.count) - 1}; clew.Limits(bounds='clamp') "
            "(--bounds clamp) runs without this check",
            layer=layer,
        )


def check_bounds(bounds: str) -> str:
    """Checks the name of a treatment of indices out of range, and returns it.

    Errors: I321 for an unknown one.
    """
    if not isinstance(bounds, str) or bounds not in BOUNDS:
        raise InputError("I321", f"bounds is {bounds!r:.80}", hint=f"it is {' or '.join(BOUNDS)}")
    return bounds


def clamping() -> bool:
    """Whether this thread clamps indices out of range."""
    return IN_FORCE.get() == "clamp"


def bounds_now() -> str:
    """Returns this thread's treatment of indices out of range."""
    return IN_FORCE.get()


def bounds_in_force(bounds: str) -> AbstractContextManager[None]:
    """Sets the treatment of indices out of range inside the block."""
    return scoped(IN_FORCE, bounds)


def held(indices: np.ndarray[Any, Any], places: Places) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Returns indices counted from the front, `i64`; with `clamp` in force, those out of range are
    clamped.

    Errors: I320 for an index out of range with `check` in force.
    """
    wide = np.asarray(indices).astype(np.int64)
    count = int(places.count)
    if not wide.size or wide.view(np.uint64).max() < count:  # no negative one either
        return wide
    if places.from_end:
        wide = np.where(wide < 0, wide + count, wide)
    outside = (wide < 0) | (wide >= count)
    if not outside.any():
        return wide
    if not clamping():
        raise places.error(places.unwrapped(int(wide[outside][0])))
    return np.clip(wide, 0, count - 1)
