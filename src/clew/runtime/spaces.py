"""Memory spaces: where the values of a program are, and how they get there and back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Final, TypeAlias

import numpy as np

Array: TypeAlias = "np.ndarray[Any, Any]"


class MemorySpace(ABC):
    """The memory of a device. Its buffers are objects of any class, which a program only passes on.

    `name` tells spaces apart: two backends may share one.
    """

    name: str

    def __repr__(self) -> str:
        return f"<MemorySpace {self.name}>"

    @abstractmethod
    def from_host(self, array: Array) -> Any:
        """Returns a buffer with the elements of an array, which may be overwritten afterwards."""

    @abstractmethod
    def to_host(self, buffer: Any) -> Array:
        """Returns an array with the elements of a buffer."""

    def type_of(self, buffer: Any) -> tuple[tuple[int, ...], np.dtype[Any]] | None:
        """Returns shape and dtype of a buffer, None where it does not tell: results are then
        checked when they are copied to the host.
        """
        try:
            return tuple(map(int, buffer.shape)), np.dtype(buffer.dtype)
        except (AttributeError, TypeError):
            return None


class _Host(MemorySpace):
    """The memory of the process: buffers are NumPy arrays."""

    name = "host"

    def from_host(self, array: Array) -> Any:
        return array

    def to_host(self, buffer: Any) -> Array:
        found: Array = buffer
        return found


HOST: Final[MemorySpace] = _Host()
