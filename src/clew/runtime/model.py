"""What all models that can be called have in common: their inputs, calls, and times of kernels."""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeAlias, TypeVar

import numpy as np

from clew.runtime.kinds import Kind
from clew.runtime.program import Instruction, Program, RunSegment
from clew.runtime.segment import NativeSegment
from clew.runtime.timing import Turns
from clew.support.budgets import Budgets, in_force
from clew.support.errors import InputError, RunError
from clew.support.text_arrays import as_objects, as_text, is_text, packed

Array: TypeAlias = "np.ndarray[Any, Any]"
# What tells builds for different sizes apart: the inputs' shapes, and the bytes of those inputs
# whose values decide shapes.
SizesKey: TypeAlias = "tuple[tuple[tuple[int, ...] | None, ...], tuple[bytes, ...]]"
K = TypeVar("K")
ANY_SHAPE: Final = ("...",)
"""The shape of an input that takes arrays of any."""


class InputSpec:
    """An input and the arrays it takes.

    `shape` has a string for each size that is not a number, and is `ANY_SHAPE` where it is not even
    known how many there are. `dtype` is None for what is no tensor: `kind` says then what it is.
    `decides` says that its value decides sizes or axes: each value that is new costs a build.
    """

    def __init__(
        self, name: str, dtype: Any, shape: Sequence[int | str], *, kind: Kind | None = None
    ) -> None:
        self.name = name
        self.kind = kind
        self.dtype = None if dtype is None else np.dtype(dtype)
        self.shape = tuple(shape)
        self.decides = False
        self.is_static = not any(isinstance(d, str) for d in self.shape)

    def __repr__(self) -> str:
        shape = ", ".join(map(str, self.shape))
        what = "no tensor" if self.dtype is None else f"{self.dtype}[{shape}]"
        return f"<{self.name}: {what}{', its value decides sizes' if self.decides else ''}>"

    def _array(self, given: Any) -> Any:
        """Returns as an array what is none: a list, a number, another library's tensor.

        Errors: I043.
        """
        try:
            return np.from_dlpack(given) if hasattr(given, "__dlpack__") else np.asarray(given)
        except Exception as error:  # whatever another library raises
            raise InputError(
                "I043", f"input {self.name!r} cannot be read as an array: {error}"
            ) from error

    def check(self, given: Any) -> Any:
        """Returns the input as an array that the model can take.

        Errors: I042 (shape), I043 (dtype, or another kind of value).
        """
        if self.kind is not None:
            return self.kind.check(given, f"input {self.name!r}")
        array = given
        if not isinstance(array, np.ndarray):
            if self.dtype is None:
                return given
            array = self._array(given)
        if self.dtype is not None and self.dtype.kind == "T":
            array = self._text(array)
        dtype = array.dtype
        if dtype is not self.dtype and dtype != self.dtype and self.dtype is not None:
            raise InputError(
                "I043",
                f"input {self.name!r} is {dtype}, the model expects {self.dtype}",
                hint=f"convert it: x.astype({str(self.dtype)!r})",
            )
        if array.shape != self.shape and self.dtype is not None and not self._fits(array.shape):
            wanted = ", ".join(map(str, self.shape))
            raise InputError(
                "I042",
                f"input {self.name!r} has shape {list(array.shape)}, the model expects [{wanted}]",
                hint="named sizes take any value, numbers must match",
            )
        return array

    def _text(self, array: Array) -> Array:
        """Returns an array of objects, text or bytes as what a run takes.

        Errors: I043 for elements that are no text.
        """
        try:
            return as_text(array)
        except (TypeError, ValueError) as error:
            raise InputError("I043", f"input {self.name!r} holds no text: {error}") from error

    def _fits(self, shape: tuple[int, ...]) -> bool:
        if self.shape == ANY_SHAPE:
            return True
        if self.is_static or len(shape) != len(self.shape):
            return False
        return all(isinstance(w, str) or s == w for s, w in zip(shape, self.shape, strict=True))


@dataclass(frozen=True)
class KernelTime(Generic[K]):
    """Measured time of one kernel in a run: median nanoseconds, and its share of the sum."""

    kernel: K
    median_ns: float
    share: float


@dataclass(frozen=True)
class Ready(Generic[K]):
    """What runs a model at some sizes. `uses` has each kernel's segment and step in it."""

    program: Program
    segments: Sequence[NativeSegment]
    uses: Sequence[tuple[K, int, int]]


class Model(ABC, Generic[K]):
    """A model that can be called, with kernels of type `K`."""

    def __init__(self, inputs: Sequence[InputSpec], output_names: Sequence[str]) -> None:
        self._inputs = tuple(inputs)
        self._input_names = tuple(i.name for i in inputs)
        self._output_names = tuple(output_names)
        # What its runs may ask for; `None` are those of the process.
        self.budgets: Budgets | None = None

    @abstractmethod
    def program_for(self, arrays: Sequence[Any]) -> Program:
        """Returns the program for checked inputs."""

    @abstractmethod
    def ready_for(self, arrays: Sequence[Any]) -> Ready[K]:
        """Returns program, segments and kernels for checked inputs."""

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """The inputs in order: names, dtypes, shapes."""
        return self._inputs

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the inputs in order."""
        return self._input_names

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the outputs in order."""
        return self._output_names

    def __call__(self, *arrays: Any) -> Any:
        """Returns the output, a tuple where there are several, for arrays in the inputs' order.

        Errors: I040 (number of inputs), I042 (shape), I043 (dtype).
        """
        results = self._results(self.checked(arrays))
        return results[0] if len(results) == 1 else tuple(results)

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Returns the outputs by name for inputs by name.

        Errors: I041 (names), I042 (shape), I043 (dtype).
        """
        results = self._results(self.checked(self._in_order(inputs)))
        return dict(zip(self._output_names, results, strict=True))

    def _results(self, checked: Sequence[Any]) -> list[Any]:
        """Returns the outputs of a run within the model's budgets.

        Errors: I267 when the machine's memory does not suffice.
        """
        try:
            if self.budgets is None:
                return self._run(checked)
            with in_force(self.budgets):
                return self._run(checked)
        except (MemoryError, OSError) as error:
            if isinstance(error, OSError) and error.errno != errno.ENOMEM:
                raise
            raise RunError(
                "I267",
                f"the run needs more memory than there is: {error}",
                hint="run with smaller inputs, or fewer calls at once",
            ) from error

    def _run(self, checked: Sequence[Any]) -> list[Any]:
        program = self.program_for(checked)
        results = program(checked)
        return results if program.is_native else [_outside(value) for value in results]

    def time_kernels(self, *arrays: Any, repeats: int = 20) -> list[KernelTime[K]]:
        """Returns the time of each kernel that runs with these inputs.

        `profile` says more: host steps, what is outside kernels, layers.
        """
        checked = self.checked(arrays)
        ready = self.ready_for(checked)
        turns = Turns(ready.program, ready.segments, lambda: checked, warmup=3)
        for _ in range(repeats):
            turns.take()
        timings = turns.timings
        calls = timings.rounds[0].calls
        by_segment = {
            number: np.median(timings.kernel_ns(number), axis=0)
            for number, times in enumerate(calls)
            if times
        }
        medians = [
            (kernel, max(0.0, float(by_segment[segment][step])))
            for kernel, segment, step in ready.uses
            if segment in by_segment
        ]
        total = sum(t for _, t in medians) or 1.0
        return [KernelTime(kernel, t, t / total) for kernel, t in medians]

    def checked(self, given: Sequence[Any]) -> list[Any]:
        """Returns inputs as arrays that the model can take.

        Errors: I040 (number of inputs), I042 (shape), I043 (dtype).
        """
        if len(given) != len(self._inputs):
            raise InputError(
                "I040",
                f"{len(given)} inputs given, the model has {len(self._inputs)}",
                hint=f"they are {', '.join(self._input_names)}",
            )
        return list(map(InputSpec.check, self._inputs, given))

    def _in_order(self, inputs: Mapping[str, Any]) -> list[Any]:
        """Returns inputs by name in their order.

        Errors: I041.
        """
        try:
            given = [inputs[name] for name in self._input_names]
        except KeyError:
            raise self._wrong_names(inputs) from None
        if len(inputs) != len(given):
            raise self._wrong_names(inputs)
        return given

    def _wrong_names(self, inputs: Mapping[str, Any]) -> InputError:
        names = self._input_names
        missing = [n for n in names if n not in inputs]
        extra = [n for n in inputs if n not in names]
        parts = [f"missing {', '.join(missing)}"] if missing else []
        parts += [f"unknown {', '.join(map(str, extra))}"] if extra else []
        return InputError(
            "I041",
            f"inputs do not fit: {'; '.join(parts)}",
            hint=f"the model's inputs are {', '.join(names)}",
        )


def sizes_key(arrays: Sequence[Any], deciding: Sequence[int]) -> SizesKey:
    """Returns what a build for these inputs is kept under. `deciding` are positions of inputs."""
    shapes = tuple(getattr(a, "shape", None) for a in arrays)
    return shapes, tuple(_content(arrays[n]) for n in deciding)


def _content(array: Array) -> bytes:
    return (packed(array) if is_text(array) else array).tobytes()


def _outside(value: Any) -> Any:
    """Returns a result as callers know it: text as Python's strings, in lists and maps as well."""
    if is_text(value):
        return as_objects(value)
    if isinstance(value, list):
        return [_outside(item) for item in value]
    if isinstance(value, dict):
        return {key: _outside(item) for key, item in value.items()}
    return value


def segment_inputs(
    program: Program, segments: Sequence[NativeSegment], arrays: Sequence[Any]
) -> dict[int, list[Array]]:
    """Returns what each native segment is given when the program runs (the last time it does)."""
    seen: dict[int, list[Array]] = {}
    numbers = {id(s): n for n, s in enumerate(segments)}

    def note(
        instruction: Instruction, inputs: Sequence[Any], run: Callable[[], Sequence[Any]]
    ) -> Sequence[Any]:
        if isinstance(instruction, RunSegment):
            seen[numbers[id(instruction.segment)]] = list(inputs)
        return run()

    program.observed(arrays, note)
    return seen
