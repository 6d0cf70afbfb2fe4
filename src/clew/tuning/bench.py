"""What a runner does for the tuner: functions of plain data, here or in another process."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from clew.bisection.numbers import error_of
from clew.compiler import compile
from clew.ir.module import Module
from clew.ir.textfile import packed_module, unpacked_module
from clew.passes.decisions import Decision
from clew.runtime.cache import Cache, default_cache
from clew.support.errors import InputError
from clew.support.folders import temporary_folder
from clew.tuning.graphs import Asked, GraphBench, GraphCandidate, decided
from clew.tuning.sequential import Demand, quantile
from clew.tuning.tunable import Outcome, Tunable
from clew.tuning.workbench import Workbench

_KEPT: Final = 2  # workbenches in a process
WHOLE: Final = ""
"""Stands for the whole program in the place of a kernel."""


@dataclass(frozen=True)
class Setup:
    """A model and how it is compiled: arguments of `clew.compile` other than `tuned`. `portable`
    has the module as text and arrays, for other processes. `decided` are decisions about the graph:
    kind, subject and option of each.
    """

    name: str
    module: Module | tuple[str, Mapping[str, Any]]
    compiling: Mapping[str, Any] = field(default_factory=dict)
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
            return f"{id(self.module)} {self.compiling} {self.seed} {self.decided}"
        text, arrays = self.module
        whole = f"{text} {self.compiling} {self.seed} {self.decided}"
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
    of kernels that they are measured against. With `confirming`, a number of turns, there is one
    candidate per kernel at most, all turns are taken, and whole calls are compared as well.
    """

    uid: str
    incumbents: Mapping[str, str]
    candidates: tuple[tuple[str, str], ...]
    demand: Demand
    seconds: float
    confirming: int = 0


@dataclass(frozen=True)
class Described:
    """What there is to tune, the threads of the program, and nanoseconds of a call. `decisions` are
    those of the default graph.
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
    compiled = compile(setup.loaded(), **{**setup.compiling, "tuned": None})
    for wanted in compiled.inputs:
        if wanted.dtype is None or not wanted.is_static:
            raise InputError(
                "I388",
                f"input {wanted.name!r} has free sizes, and kernels are measured at given ones",
                hint="fix them: clew.load(model, inputs={...}), or --shape NAME=1,128",
            )
    cached = setup.compiling.get("cache", True)
    cache = default_cache() if cached else Cache(None)
    if cache.root is None:  # candidates are compiled once, and used by several builds
        if not _folder:
            _folder.append(Cache(temporary_folder("clew-tune-")))
        cache = _folder[0]
    if setup.decided:
        compiled = decided(compiled, Asked(setup.chosen), cache)
    return Workbench(compiled, cache, setup.seed)


def describe(setup: Setup) -> Described:
    """Returns what there is to tune in a model.

    Errors: I388; those of `compile`.
    """
    bench = _bench(setup)
    kernels = bench.tunables()
    decisions = [] if setup.decided else GraphBench(bench).decisions()
    taken, _ = bench.compared(bench.base, bench.base, 6)
    return Described(kernels, decisions, bench.options.threads, quantile(taken, 0.5))


@dataclass(frozen=True)
class GraphBatch:
    """Options of decisions to try, and the decisions."""

    uid: str
    candidates: tuple[GraphCandidate, ...]
    decisions: tuple[Decision, ...]
    demand: Demand


@dataclass(frozen=True)
class GraphTrials:
    """Runs batches of trials of decisions about one model's graph."""

    setup: Setup

    def __call__(self, batch: GraphBatch) -> list[Outcome]:
        """Returns the outcomes, one per candidate."""
        bench = GraphBench(_bench(self.setup), self.setup.chosen)
        return bench.run(batch.candidates, batch.decisions, batch.demand)


@dataclass(frozen=True)
class Trials:
    """Runs batches of trials of one model. `note` receives the batch, kernel, choices and state of
    each trial as it goes on; it must be None in another process.
    """

    setup: Setup
    note: Callable[[Batch, str, str, str], None] | None = None

    def __call__(self, batch: Batch) -> list[Outcome]:
        """Returns the outcomes; with `confirming`, that of the whole program comes last."""
        bench = _bench(self.setup)
        if batch.confirming:
            lane = dict(batch.candidates)
            found = bench.measured(
                batch.incumbents, [lane], batch.demand, batch.seconds, until_decided=False
            )
            first = _bench(replace(self.setup, decided=()))
            return [*found, _whole(first, bench, batch)]

        def note(subject: str, choices: str, state: str) -> None:
            if self.note is not None:
                self.note(batch, subject, choices, state)

        return bench.run(batch.incumbents, batch.candidates, batch.demand, note, batch.seconds)


def _whole(first: Workbench, bench: Workbench, batch: Batch) -> Outcome:
    """Returns how whole calls compare with those of the default graph and choices, and whether
    outputs agree.
    """
    new = {**batch.incumbents, **dict(batch.candidates)}
    build = bench.build(new)
    old_ns, new_ns = bench.compared(first.base, build, batch.confirming)
    values = bench.values[0]
    pairs = zip(first.base.program(values), build.program(values), strict=True)
    error = max((error_of(old, made) for old, made in pairs), default=0.0)
    due = bench.tolerance
    ratios = [n / o for n, o in zip(new_ns, old_ns, strict=True)]
    return Outcome(
        WHOLE,
        "",
        "won" if error <= due else "wrong",
        "" if error <= due else f"outputs differ by {error:.2g}, allowed {due:.2g}",
        ns=quantile(new_ns, 0.5),
        q1_ns=quantile(new_ns, 0.25),
        q3_ns=quantile(new_ns, 0.75),
        against_ns=quantile(old_ns, 0.5),
        pairs=len(ratios),
        ratio=quantile(ratios, 0.5),
    )
