"""Memory spaces hold the values of a program and copy them to and from the host."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Final, TypeAlias

import numpy as np

Array: TypeAlias = "np.ndarray[Any, Any]"


class MemorySpace(ABC):
    """The memory of a device. Its buffers are objects of any class; a program only passes them on.

    `name` identifies the space. Two backends may share a space.
    """

    name: str

    def __repr__(self) -> str:
        return f"<MemorySpace {self.name}>"

    @abstractmethod
    def from_host(self, array: Array) -> Any:
        """Returns a buffer with a copy of an array's elements. The array may change afterwards."""

    @abstractmethod
    def to_host(self, buffer: Any) -> Array:
        """Returns an array with the elements of a buffer."""

    def type_of(self, buffer: Any) -> tuple[tuple[int, ...], np.dtype[Any]] | None:
        """Returns the shape and dtype of a buffer; None if the buffer does not have them. Results
        are then checked when they are copied to the host.
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
