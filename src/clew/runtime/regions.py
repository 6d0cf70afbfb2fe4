"""Steps of a program that run regions on a backend. Every result is checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from clew.runtime.spaces import HOST, MemorySpace
from clew.support.errors import ClewError, RunError
from clew.support.text_arrays import dtype_name, dtype_named

Array: TypeAlias = "np.ndarray[Any, Any]"


@dataclass(frozen=True)
class ValueType:
    """The shape and dtype of a value of a program."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def to_record(self) -> dict[str, Any]:
        """Returns the type as JSON values, for `of_record`."""
        return {"dtype": dtype_name(self.dtype), "shape": self.shape}

    @staticmethod
    def of_record(record: Mapping[str, Any]) -> ValueType:
        """Returns the type of a record from `to_record`."""
        return ValueType(tuple(map(int, record["shape"])), dtype_named(record["dtype"]))

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


class RegionCall:
    """Runs a compiled region on buffers in its backend's memory space.

    Errors: I360 if results differ in number, shape or dtype from the graph; I361 for an exception
    in the backend's code.
    """

    def __init__(
        self,
        backend: str,
        name: str,
        space: MemorySpace,
        compiled: Callable[..., Any],
        results: Sequence[ValueType],
    ) -> None:
        self.backend = backend
        self.name = name
        self.space = space
        self.compiled = compiled
        self.results = tuple(results)

    def __call__(self, *buffers: Any) -> tuple[Any, ...]:
        try:
            found = self.compiled(*buffers)
        except ClewError:
            raise
        except Exception as error:  # whatever a backend's code raises
            raise RunError(
                "I361",
                f"the backend {self.backend} failed in {self.name}: "
                f"{type(error).__name__}: {error}",
                hint=f"compile without the backend {self.backend} to run the layer on the CPU",
            ) from error
        values = found if isinstance(found, (tuple, list)) else (found,)
        if len(values) != len(self.results):
            raise self._wrong(f"{len(values)} results", f"{len(self.results)}")
        for number, (value, expected) in enumerate(zip(values, self.results, strict=True)):
            told = self.space.type_of(value)
            if told is None and self.space is not HOST:
                continue
            if told != (expected.shape, expected.dtype):
                shown = type(value).__name__ if told is None else str(ValueType(*told))
                raise self._wrong(f"{shown} as result {number}", str(expected))
        return tuple(values)

    def _wrong(self, found: str, expected: str) -> RunError:
        return RunError(
            "I360",
            f"the backend {self.backend} returned {found} from {self.name}, expected {expected}",
            hint="a compiled region must return one buffer per result of its function, in order",
        )


def copied(value: Any, source: MemorySpace, target: MemorySpace, expected: ValueType) -> Any:
    """Copies a value from one memory space to another, through host memory.

    Errors: I362 if a space fails, or if its array differs from the graph in shape or dtype.
    """
    at = source
    try:
        array = source.to_host(value)
        at = target
        if isinstance(array, np.ndarray) and (array.shape, array.dtype) == (
            expected.shape,
            expected.dtype,
        ):
            return target.from_host(array)
    except ClewError:
        raise
    except Exception as error:  # whatever a backend's code raises
        raise RunError(
            "I362", f"the memory space {at.name} failed in a copy: {type(error).__name__}: {error}"
        ) from error
    found = (
        str(ValueType(array.shape, array.dtype))
        if isinstance(array, np.ndarray)
        else type(array).__name__
    )
    raise RunError(
        "I362",
        f"the memory space {source.name} returned {found} for a buffer of {expected}",
        hint="to_host must return a NumPy array of the buffer's shape and dtype",
    )
