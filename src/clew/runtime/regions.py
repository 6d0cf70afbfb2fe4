"""Steps of a program that run regions on a backend. Every result is checked."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from clew.runtime.limits import Hung, within
from clew.runtime.simulated import passed
from clew.runtime.spaces import HOST, MemorySpace
from clew.support.dataclass import dataclass
from clew.support.errors import PASSED_ON, ClewError, ClewWarning, RunError, warn
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

    The first call, or with `always` every call, counts as hung if it takes longer than `limit_s`
    seconds; with None, no call is watched. A compiled region with an attribute `seconds` is
    simulated (`runtime/simulated.py`). With an attribute `owns_results` that is true, its results
    are new buffers in each call, which nothing else holds. `standby` makes a function that runs the
    region on NumPy arrays. After a failure, it serves this and all later calls, with a warning
    (I313).

    Errors, without `standby`: I360 if results differ in number, shape or dtype from the graph; I361
    for an exception in the backend's code; I363 for a call that hangs.
    """

    def __init__(
        self,
        backend: str,
        name: str,
        space: MemorySpace,
        compiled: Callable[..., Any],
        results: Sequence[ValueType],
        *,
        limit_s: float | None = None,
        always: bool = False,
        standby: Callable[[], Callable[..., Any]] | None = None,
    ) -> None:
        self.backend = backend
        self.name = name
        self.space = space
        self.compiled = compiled
        self.results = tuple(results)
        self._limit_s = limit_s
        self._always = always
        self.standby = standby
        self._instead: Callable[..., Any] | None = None
        seconds = getattr(compiled, "seconds", None)
        self._seconds = float(seconds) if isinstance(seconds, (int, float)) else None
        # The results of a standby are those of a program, which own their memory.
        self.owns_results = bool(getattr(compiled, "owns_results", False))

    def __call__(self, *buffers: Any) -> tuple[Any, ...]:
        if self._seconds is None:
            return self._called(buffers)
        began = time.perf_counter_ns()
        found = self._called(buffers)
        passed(time.perf_counter_ns() - began, self._seconds)
        return found

    def _called(self, buffers: Sequence[Any]) -> tuple[Any, ...]:
        if self._instead is not None:
            return self._elsewhere(self._instead, buffers)
        if self.standby is None:
            return self._here(buffers)
        try:
            return self._here(buffers)
        except RunError as error:
            warn(ClewWarning("I313", f"{self.name} runs on the CPU from now on: {error.message}"))
            self._instead = self.standby()
            return self._elsewhere(self._instead, buffers)

    def _elsewhere(self, run: Callable[..., Any], buffers: Sequence[Any]) -> tuple[Any, ...]:
        """Returns the results of the standby, as buffers of the backend's memory space."""
        to_host, from_host = self.space.to_host, self.space.from_host
        return tuple(map(from_host, run(*map(to_host, buffers))))

    def _here(self, buffers: Sequence[Any]) -> tuple[Any, ...]:
        try:
            if self._limit_s is None:
                found = self.compiled(*buffers)
            else:
                found = within(self._limit_s, self.compiled, *buffers)
                if not self._always:
                    self._limit_s = None
        except ClewError:
            raise
        except Hung:
            raise RunError(
                "I363",
                f"the backend {self.backend} has not returned from {self.name} after "
                f"{self._limit_s:g} s",
                hint=f"compile without the backend {self.backend}, or raise its limit_s",
            ) from None
        except PASSED_ON:
            raise
        except BaseException as error:  # whatever a backend's code raises
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
    except PASSED_ON:
        raise
    except BaseException as error:  # whatever a backend's code raises
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
