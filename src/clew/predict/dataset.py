"""Measures kernels of random networks and of models into a table.

Each network is compiled and run, and its kernels are timed as the program runs them; then its rows
are added to the file. So a session may be interrupted at any time and resumed later.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from clew import frontends
from clew.api.compile import compile
from clew.api.compiled_model import CompiledModel
from clew.backends.compile_options import CompileOptions
from clew.ir.module import Module
from clew.ir.textfile import packed_module, unpacked_module
from clew.machine.probes.bandwidth import Bandwidth
from clew.machine.target import host
from clew.predict.convnets import convnet, small_convnet
from clew.predict.describe import describe_uses
from clew.predict.extras import needed
from clew.predict.measure import Machine, Timed, time_program
from clew.predict.table import read_table, write_table
from clew.predict.transformers import transformer
from clew.runner import Failed, LocalRunner, Runner
from clew.support.errors import ClewError, InputError
from clew.support.files import reason_of
from clew.version import VERSION

Array = np.ndarray[Any, Any]
# Two of three networks are convolutional, since these have more kinds of kernels.
_FAMILIES: Final = (("convnet", convnet), ("convnet", convnet), ("transformer", transformer))
_SMALL_EVERY: Final = 8
_WRITE_EVERY_S: Final = 20.0
_ALONE_RUNS: Final = 5


@dataclass(frozen=True)
class Wanted:
    """The subjects of a measurement: models' files (named by their stems), random networks with
    `seed`, `seed` + 1 ..., each with every thread count, precision and kind of fusion. `options`
    are other compile options; a network's name in the table ends in those that differ from their
    defaults.
    """

    models: tuple[Path, ...] = ()
    networks: int | None = None
    seed: int = 0
    threads: tuple[int, ...] = (1,)
    precisions: tuple[str, ...] = ("f32",)
    fuses: tuple[str, ...] = ("auto",)
    minutes: float | None = None
    turns: int = 4
    options: CompileOptions = field(default_factory=CompileOptions)


@dataclass(frozen=True)
class Subject:
    """One network to measure. `load` makes its module and, if known, inputs in order."""

    name: str
    family: str
    load: Callable[[], Module]
    seed: int = -1


@dataclass(frozen=True)
class Job:
    """A network to measure in each of several ways: precision, fusion and threads."""

    subject: Subject
    wanted: tuple[tuple[str, str, int], ...]
    asked: Wanted
    inputs: Sequence[Array] | None = None


@dataclass(frozen=True)
class Rows:
    """The rows of a network and the number of its measurements that were not steady, or the error
    for which it is left out.
    """

    rows: list[dict[str, Any]]
    unsteady: int = 0
    error: str = ""


@dataclass
class Collected:
    """The rows a session added to a table."""

    rows: int = 0
    networks: int = 0
    skipped: int = 0
    unsteady: int = 0
    failed: list[str] = field(default_factory=list)


def drawn_networks(seed: int, count: int | None) -> Iterator[Subject]:
    """Yields random networks, infinitely many without a count."""
    number = seed
    while count is None or number < seed + count:
        family, make = _FAMILIES[number % len(_FAMILIES)]
        if number % _SMALL_EVERY == _SMALL_EVERY - 1:
            family, make = "small", small_convnet
        name = f"{family}-{number}"
        yield Subject(name, family, partial(_drawn, make, number), number)
        number += 1


def _drawn(make: Callable[[int], tuple[str, Any]], number: int) -> Module:
    """Returns a random network."""
    return frontends.load(make(number)[1])


def collect(
    path: Path,
    asked: Wanted,
    *,
    subjects: Sequence[Subject] | None = None,
    inputs: Mapping[str, Sequence[Array]] | None = None,
    say: Callable[[str], None] = lambda text: None,
    note: Callable[[str], None] = lambda text: None,
    alone: Callable[[], AbstractContextManager[Any]] = nullcontext,
    runner: Runner | None = None,
) -> Collected:
    """Measures into the table at `path`, which is created or extended; skips measurements it
    already has.

    `subjects` replaces models and random networks; `inputs` gives arrays by a subject's name if
    random ones are unsuitable. `say` reports progress, `note` reports skipped networks, and `alone`
    returns a context manager entered around measurements (a lock that others respect). An
    interruption (Ctrl-C) ends the session; complete networks stay in the table. `runner` measures,
    here by default; elsewhere, `alone` is not entered.

    Errors: I180 to I189 (tables); I013 for a precision.
    """
    needed("pyarrow.parquet")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError("I189", f"cannot write to {str(path)!r}: {reason_of(error)}") from None
    table = read_table(path) if os.path.exists(path) else None
    done = _done(table)
    result = Collected()
    pending: list[dict[str, Any]] = []
    written = began = time.perf_counter()
    runner = runner or LocalRunner()

    def flush() -> None:
        nonlocal table, written
        if pending:
            table = write_table(path, pending, table)
            result.rows += len(pending)
            pending.clear()
        written = time.perf_counter()

    def left_out(name: str, error: str) -> None:
        note(f"{name} is left out: {error}")
        result.failed.append(f"{name}: {error}")

    def jobs() -> Iterator[Job]:
        variant = str(asked.options.changed(precision="f32", fuse=True))
        plain = variant == str(CompileOptions())
        for subject in _subjects(asked) if subjects is None else subjects:
            if not plain:
                subject = replace(subject, name=f"{subject.name} ({variant})")
            if asked.minutes is not None and time.perf_counter() - began > 60 * asked.minutes:
                return
            wanted = tuple(
                (precision, fuse, threads)
                for precision in asked.precisions
                for fuse in asked.fuses
                for threads in asked.threads
                if (subject.name, precision, fuse, threads) not in done
            )
            if not wanted:
                result.skipped += 1
                continue
            say(f"{subject.name}: compiling ({result.networks} networks measured)")
            if runner.is_remote:
                try:
                    subject = _portable(subject)
                except ClewError as error:
                    left_out(subject.name, str(error).splitlines()[0])
                    continue
            yield Job(subject, wanted, asked, (inputs or {}).get(subject.name))

    def here(job: Job) -> Rows:
        name = job.subject.name
        return measure(job, lambda: say(f"{name}: measuring ({result.networks} done)"), alone)

    try:
        for job, found in runner.run(measure if runner.is_remote else here, jobs()):
            if isinstance(found, Failed) or found.error:
                reason = found.reason if isinstance(found, Failed) else found.error
                left_out(job.subject.name, reason)
                continue
            pending += found.rows
            result.networks += 1
            result.unsteady += found.unsteady
            if time.perf_counter() - written > _WRITE_EVERY_S:
                flush()
    finally:
        flush()
    return result


def measure(
    job: Job,
    begin: Callable[[], None] = lambda: None,
    alone: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Rows:
    """Returns the rows of a network, measured in this process. `begin` is called before each
    measurement, inside which `alone` is entered.
    """
    try:
        rows, unsteady = _measured(
            job.subject, job.wanted, job.asked, _machine(), _memory, job.inputs, begin, alone
        )
    except ClewError as error:
        return Rows([], error=str(error).splitlines()[0])
    return Rows(rows, unsteady)


@cache
def _machine() -> Machine:
    """Returns the probes of this process."""
    return Machine()


_memory: Final[dict[int, float]] = {}
"""GB/s of memory by the number of threads, measured once in a process."""


def _portable(subject: Subject) -> Subject:
    """Returns a network that can be sent to another process."""
    return replace(subject, load=partial(unpacked_module, *packed_module(subject.load())))


def _done(table: Any) -> set[tuple[Any, ...]]:
    if table is None:
        return set()
    names = ("network", "precision", "fuse", "threads")
    return set(zip(*(table.column(name).to_pylist() for name in names), strict=True))


def _subjects(asked: Wanted) -> Iterator[Subject]:
    for path in asked.models:
        load = partial(frontends.load, path, **asked.options.loading)
        yield Subject(path.stem, "model", load)
    count = (
        0 if asked.networks is None and asked.models and asked.minutes is None else asked.networks
    )
    yield from drawn_networks(asked.seed, count)


def _measured(
    subject: Subject,
    wanted: Sequence[tuple[str, str, int]],
    asked: Wanted,
    machine: Machine,
    memory_gbps: dict[int, float],
    given: Sequence[Array] | None,
    begin: Callable[[], None],
    alone: Callable[[], AbstractContextManager[Any]],
) -> tuple[list[dict[str, Any]], int]:
    """Returns the rows of one network, and the number of its measurements that were not steady."""
    module = subject.load()
    rows: list[dict[str, Any]] = []
    unsteady = 0
    known: dict[str, dict[str, Any]] = {}
    for precision, fuse, threads in wanted:
        variant = asked.options.loaded.changed(
            threads=threads, precision=precision, fuse=fuse != "none", cache=False, trace=False
        )
        compiled = compile(module, **variant)
        arrays = list(given) if given is not None else drawn_inputs(compiled)
        build = compiled.build
        facts = describe_uses(build.uses, [s.plan for s in build.segments], threads, known)
        begin()
        with alone():
            if threads not in memory_gbps:
                memory_gbps[threads] = _memory_gbps(threads)
            timed = time_program(build, arrays, machine, asked.turns, _ALONE_RUNS)
        unsteady += not timed.steady
        common = {
            "network": subject.name,
            "family": subject.family,
            "precision": precision,
            "fuse": fuse,
            "clew": VERSION,
            "memory_gbps": memory_gbps[threads],
            "seed": subject.seed,
            **_circumstances(timed),
        }
        rows += _rows(facts, timed, common)
    return rows, unsteady


def _rows(
    facts: Sequence[dict[str, Any]], timed: Timed, common: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Returns one row per kernel for runs of the program, and one if it was also run alone. Times
    are of one run of the kernel, also in loops.
    """
    rows = []
    typical = timed.typical
    for number, fact in enumerate(facts):
        runs = timed.runs[number]
        inside = timed.of_kernel(number)
        if runs:  # in a branch or loop that was entered
            inside, per_run = inside / runs, float(typical[number]) / runs
            rows.append({**fact, **common, "mode": "program", **_statistics(inside, per_run)})
        alone = timed.alone[:, number] if len(timed.alone) else inside[:0]
        if len(alone) and not np.isnan(alone).any():
            middle = float(np.median(alone))
            rows.append({**fact, **common, "mode": "alone", **_statistics(alone, middle)})
    return rows


def _statistics(times: Array, typical: float) -> dict[str, Any]:
    q1, median, q3 = np.quantile(times, (0.25, 0.5, 0.75))
    return {
        "latency_ns": typical,
        "median_ns": float(median),
        "q1_ns": float(q1),
        "q3_ns": float(q3),
        "best_ns": float(times.min()),
        "runs": len(times),
    }


def _circumstances(timed: Timed) -> dict[str, Any]:
    return {
        "steady": timed.steady,
        "network_sum_ns": timed.sum_ns,
        "network_call_ns": timed.call_ns,
        "fma_gflops": float(np.median([p.fma_gflops for p in timed.probes])),
        "l2_gbps": float(np.median([p.l2_gbps for p in timed.probes])),
        "l3_gbps": float(np.median([p.l3_gbps for p in timed.probes])),
    }


def _memory_gbps(threads: int) -> float:
    """Returns the bandwidth for an array larger than any cache here."""
    beyond = min(1 << 30, max(4 * host().l3_bytes, 64 << 20))
    return Bandwidth().gbps("read", beyond, threads)


def drawn_inputs(compiled: CompiledModel, seed: int = 0) -> list[Array]:
    """Returns inputs for a model: floats of a standard normal distribution, integers 0 or 1.

    Errors: I188 for a model with named sizes.
    """
    for wanted in compiled.inputs:
        if wanted.dtype is None or not wanted.is_static:
            raise InputError(
                "I188",
                f"input {wanted.name!r} has symbolic sizes",
                hint="only models with static shapes can be measured or predicted",
            )
    return compiled.drawn(seed=seed)
