"""A runner's work for the tuner: functions of plain data, here or in another process."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from clew.api.compile import compile
from clew.backends.compile_options import CompileOptions
from clew.bisection.numbers import error_of
from clew.ir.module import Module
from clew.ir.textfile import packed_module, unpacked_module
from clew.passes.decisions import Decision
from clew.records.trial import Outcome
from clew.runtime.cache import Cache, default_cache
from clew.support.errors import InputError
from clew.support.folders import temporary_folder
from clew.tuning.graphs import Asked, GraphBench, GraphCandidate, decided
from clew.tuning.sequential import Demand
from clew.tuning.tunable import Tunable
from clew.tuning.whole import Whole
from clew.tuning.workbench import Workbench

_KEPT: Final = 2  # workbenches in a process


@dataclass(frozen=True)
class Setup:
    """A model and how it is compiled: options of `clew.compile` other than `tuned`. `portable`
    has the module as text and arrays, for other processes. `decided` are decisions about the graph:
    kind, subject and option of each.
    """

    name: str
    module: Module | tuple[str, Mapping[str, Any]]
    compiling: CompileOptions = field(default_factory=CompileOptions)
    seed: int = 0
    decided: tuple[tuple[str, str, str], ...] = ()

    def portable(self) -> Setup:
        """Returns the same with its module in a form that can be sent."""
        if not isinstance(self.module, Module):
            return self
        return replace(self, module=packed_module(self.module))

    @property
    def key(self) -> str:
        """Identifies the setup within a process."""
        if isinstance(self.module, Module):
            return f"{id(self.module)} {self.compiling!r} {self.seed} {self.decided}"
        text, arrays = self.module
        whole = f"{text} {self.compiling!r} {self.seed} {self.decided}"
        digest = hashlib.blake2b(whole.encode("utf-8", "surrogatepass"), digest_size=16)
        for name in sorted(arrays):
            digest.update(np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8).data)
        return digest.hexdigest()

    @property
    def chosen(self) -> dict[tuple[str, str], str]:
        """The options of the decisions, by kind and subject."""
        return {(kind, subject): option for kind, subject, option in self.decided}

    def loaded(self) -> Module:
        """Returns the module."""
        if isinstance(self.module, Module):
            return self.module
        return unpacked_module(*self.module)


@dataclass(frozen=True)
class Batch:
    """Trials to run together: candidates as kernels by structural hash and choices, and the choices
    of kernels that they are measured against. With `confirming`, there is one candidate per kernel
    at most, which has been verified before, and all turns are taken.
    """

    uid: str
    incumbents: Mapping[str, str]
    candidates: tuple[tuple[str, str], ...]
    demand: Demand
    seconds: float
    confirming: bool = False


@dataclass(frozen=True)
class Described:
    """Kernels and decisions to tune, the threads of the program, and nanoseconds of a call.
    `decisions` are those of the default graph.
    """

    kernels: list[Tunable]
    decisions: list[Decision]
    threads: int
    call_ns: float


_benches: dict[str, Workbench] = {}
_folder: list[Cache] = []


def _bench(setup: Setup) -> Workbench:
    """Returns the workbench of a setup, made on first use in this process."""
    key = setup.key
    found = _benches.pop(key, None)
    if found is None:
        found = _made(setup)
        while len(_benches) >= _KEPT:
            _benches.pop(next(iter(_benches)))
    _benches[key] = found
    return found


def _made(setup: Setup) -> Workbench:
    """Errors: I388 for a model whose inputs have free sizes; those of `compile`."""
    compiled = compile(setup.loaded(), **setup.compiling.changed(tuned=None))
    for wanted in compiled.inputs:
        if wanted.dtype is None or not wanted.is_static:
            raise InputError(
                "I388",
                f"input {wanted.name!r} has free sizes, and kernels are measured at given ones",
                hint="fix them: clew.load(model, inputs={...}), or --shape NAME=1,128",
            )
    cached = setup.compiling.cache
    cache = default_cache() if cached else Cache(None)
    if cache.root is None:  # candidates are compiled once, and used by several builds
        if not _folder:
            _folder.append(Cache(temporary_folder("clew-tune-")))
        cache = _folder[0]
    if setup.decided:
        compiled = decided(compiled, Asked(setup.chosen), cache)
    return Workbench(compiled, cache, setup.seed)


def describe(setup: Setup) -> Described:
    """Returns the kernels and decisions to tune in a model.

    Errors: I388; those of `compile`.
    """
    bench = _bench(setup)
    kernels = bench.tunables()
    decisions = [] if setup.decided else GraphBench(bench).decisions()
    call_ns = float(np.nansum(bench.first_ns))
    return Described(kernels, decisions, bench.options.threads, call_ns)


@dataclass(frozen=True)
class GraphBatch:
    """Options of decisions to try, the decisions, and about how many seconds to measure."""

    uid: str
    candidates: tuple[GraphCandidate, ...]
    decisions: tuple[Decision, ...]
    demand: Demand
    seconds: float


@dataclass(frozen=True)
class GraphTrials:
    """Runs batches of trials of decisions about one model's graph."""

    setup: Setup

    def __call__(self, batch: GraphBatch) -> list[Outcome]:
        """Returns the outcomes, one per candidate."""
        bench = GraphBench(_bench(self.setup), self.setup.chosen)
        return bench.run(batch.candidates, batch.decisions, batch.demand, batch.seconds)


@dataclass(frozen=True)
class Trials:
    """Runs batches of trials of one model. `note` receives the batch, kernel, choices and state of
    each trial as it goes on; it must be None in another process.
    """

    setup: Setup
    note: Callable[[Batch, str, str, str], None] | None = None

    def __call__(self, batch: Batch) -> list[Outcome]:
        """Returns the outcomes."""
        bench = _bench(self.setup)
        if batch.confirming:
            lane = dict(batch.candidates)
            return bench.measured(
                batch.incumbents, [lane], batch.demand, batch.seconds, until_decided=False
            )

        def note(subject: str, choices: str, state: str) -> None:
            if self.note is not None:
                self.note(batch, subject, choices, state)

        return bench.run(batch.incumbents, batch.candidates, batch.demand, note, batch.seconds)


@dataclass(frozen=True)
class Program:
    """A program to compare with the default one: choices of kernels by structural hash, and the
    number of rounds and seconds of the comparison.
    """

    choices: Mapping[str, str]
    rounds: int
    seconds: float


@dataclass(frozen=True)
class WholeCalls:
    """Compares whole calls of the graph of a setup with those of the default graph and choices."""

    setup: Setup

    def __call__(self, program: Program) -> Whole:
        """Returns how they compare, and whether outputs agree."""
        bench, first = _bench(self.setup), _bench(replace(self.setup, decided=()))
        build = bench.build(program.choices)
        found = first.compared(first.base, build, program.rounds, program.seconds)
        values = bench.values[0]
        pairs = zip(first.base.program(values), build.program(values), strict=True)
        error = max((error_of(old, made) for old, made in pairs), default=0.0)
        due = bench.tolerance
        problem = "" if error <= due else f"outputs differ by {error:.2g}, allowed {due:.2g}"
        return replace(found, problem=problem)
