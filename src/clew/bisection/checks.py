"""Defines when a part of a model fails, for use on smaller parts."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from clew.backends.options import Options
from clew.bisection.numbers import error_of
from clew.build.all_sizes import build_at
from clew.build.result import Build
from clew.ir.interpret import interpret
from clew.ir.module import Module
from clew.ir.size_names import sizes_in
from clew.passes.base import Pass, PassContext
from clew.passes.verify import verify
from clew.runtime.cache import Cache
from clew.runtime.memory import aligned_bytes
from clew.runtime.program import Instruction, RunSegment
from clew.runtime.segment import NativeSegment
from clew.runtime.threads import shared_pool


def worst(expected: Mapping[str, Any], found: Mapping[str, Any]) -> float:
    """Returns the largest error of any output."""
    return max((error_of(v, found.get(n)) for n, v in expected.items()), default=0.0)


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Suppresses NumPy's warnings: wrong values are expected here."""
    with np.errstate(all="ignore"):
        yield


@dataclass(frozen=True)
class Check(ABC):
    """A way to run a module that shows the failure. An error above `tolerance` is a failure."""

    tolerance: float

    @abstractmethod
    def outputs(self, module: Module, inputs: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yields the outputs by name, of one run or several."""

    def error(
        self, module: Module, inputs: Mapping[str, Any], expected: Mapping[str, Any]
    ) -> float:
        """Returns the largest error of any output in any run; stops after the first wrong run."""
        largest = 0.0
        with quietly():
            for found in self.outputs(module, inputs):
                largest = max(largest, worst(expected, found))
                if largest > self.tolerance:
                    break
        return largest


@dataclass(frozen=True)
class PassCheck(Check):
    """Interprets a module after one pass; the outputs should be those before the pass."""

    changes: Pass
    target: Any
    opt_level: int

    def outputs(self, module: Module, inputs: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        new = self.changes.run(module, PassContext(self.target, self.opt_level))
        verify(new)
        yield interpret(new, inputs)


@dataclass(frozen=True)
class ValueCheck(Check):
    """Interprets a module unchanged; the outputs should be those of a reference."""

    def outputs(self, module: Module, inputs: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        yield interpret(module, inputs)


@dataclass(frozen=True)
class BuildCheck(Check):
    """Compiles a module of kernels unchanged and runs it, several times if threads may race; the
    outputs should be those of the interpreter.
    """

    options: Options
    runs: int = 1
    cache: Cache = field(default_factory=lambda: Cache(None), compare=False)

    def build(self, module: Module, inputs: Mapping[str, Any]) -> Build:
        """Returns the build of the module, without passes, at the sizes of these inputs."""
        options = replace(
            self.options, passes=(), required=(), disabled=(), instruments=(), trace=False,
            on_progress=lambda text: None,
        )  # fmt: skip
        pool = shared_pool(options.threads)
        sizes = sizes_in(module.main.params, inputs)
        return build_at(module, options, self.cache, pool, sizes)

    def outputs(self, module: Module, inputs: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        program = self.build(module, inputs).program
        arrays = [np.asarray(inputs[n]) for n in module.input_names]
        names = module.output_names
        for _ in range(max(1, self.runs)):
            yield dict(zip(names, program.observed(arrays, _poisoned), strict=True))


def _poisoned(
    instruction: Instruction, inputs: Sequence[Any], run: Callable[[], Sequence[Any]]
) -> Sequence[Any]:
    """Runs a segment into arrays of NaN, so elements it does not write are certainly wrong."""
    if not isinstance(instruction, RunSegment):
        return run()
    segment = instruction.segment
    if not isinstance(segment, NativeSegment):
        return run()
    outputs: list[np.ndarray | None] = []
    for spec in segment.plan.outputs:
        if spec.is_stack:
            outputs.append(None)
            continue
        room = aligned_bytes(spec.size_bytes)
        room[...] = 0xFF
        outputs.append(room.view(np.dtype(spec.dtype)).reshape(spec.shape))
    return segment(inputs, outputs)
