"""The predicted latency of a model: kernels, layers and whole calls, without a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from clew.backends.compile_options import CompileOptions
from clew.ir.module import Module
from clew.machine.target import Target, target_of
from clew.predict.describe import describe_uses
from clew.predict.plan import plan
from clew.predict.predictor import LEVEL, Predictor
from clew.predict.table import columns_of
from clew.predict.untrained import Untrained
from clew.support.errors import Hint, InputError
from clew.support.shown import Brief, Shown, counted


@dataclass(frozen=True, repr=False)
class KernelForecast(Brief):
    """One use of a kernel: nanoseconds, and the interval that should contain the true time.

    `shares` are the layers' estimated shares, from FLOPs and bytes. `looked_up`: whether this
    kernel is in the table; `unfamiliar` names its schedule rules and operators that are not in the
    table. A kernel in loops has `iterations`, the number of its runs in a call, and all times cover
    these runs; if the number is known only during the run, `iterations` is None and the times cover
    one iteration.
    """

    kernel: str
    layers: tuple[str, ...]
    rules: tuple[str, ...]
    ns: float
    low_ns: float
    high_ns: float
    flops: int
    bytes: int
    shares: dict[str, float]
    looked_up: bool = False
    unfamiliar: str = ""
    iterations: int | None = 1


@dataclass(frozen=True, repr=False)
class Forecast(Shown):
    """A model's predicted latency on `threads` threads, in nanoseconds.

    `total_ns` is a whole call: all kernels and `overhead_ns`. The true total lies between `low_ns`
    and `high_ns` with probability `level`, as estimated from the errors on other networks.
    `left_out` lists steps that are not native kernels; their time is not included.
    """

    threads: int
    total_ns: float
    low_ns: float
    high_ns: float
    overhead_ns: float
    level: float
    kernels: tuple[KernelForecast, ...]
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def _about(self) -> str:
        threads = counted(self.threads, "thread")
        low, high = self.low_ns / 1e3, self.high_ns / 1e3
        return f"{self.total_ns / 1e3:.4g} µs ({low:.4g} to {high:.4g}) on {threads}"

    @property
    def layers(self) -> dict[str, float]:
        """Nanoseconds of each layer in order, by the estimated shares of kernels; "" has the time
        without a layer. They add up to the sum of kernels.
        """
        found: dict[str, float] = {}
        for kernel in self.kernels:
            for layer, share in kernel.shares.items():
                found[layer] = found.get(layer, 0.0) + share * kernel.ns
        return found

    def to_json(self) -> dict[str, Any]:
        """Returns the data printed by `clew predict --json`; see `docs/predict.md`."""
        record = asdict(self)
        record["layers"] = [{"layer": n, "estimated_ns": t} for n, t in self.layers.items()]
        return record


def forecast(
    module: Module,
    predictors: Sequence[Predictor] = (),
    *,
    threads: int,
    target: str = "cpu",
    lookup: bool = True,
    **options: Any,
) -> Forecast:
    """Returns the predicted latency of a model, compiled with these options, without running it.

    Without predictors, the analytic model (`analytic.py`) estimates the times, for any target.
    `options` are those of `clew.compile`; regions on other backends are not included. With
    `lookup`, a kernel in the table gets its measured time.

    Errors: I183 if no predictor is for the target or thread count; I188 for a model with named
    sizes; those of compiling.
    """
    machine = target_of(target)
    chosen = _chosen(predictors, machine, threads) if predictors else Untrained(machine)
    how = CompileOptions.of({**options, "target": machine, "threads": threads})
    made = plan(module, **how)
    rows = describe_uses(made.uses, made.segments, threads)
    columns = columns_of(rows)
    runs = [1 if iterations is None else iterations for iterations in made.iterations]
    found = chosen.predict(columns, lookup=lookup, runs=runs)
    unfamiliar = chosen.unfamiliar(columns)
    kernels = tuple(
        KernelForecast(
            row["kernel"],
            tuple(row["layers"]),
            tuple(row["rules"]),
            float(found.kernels_ns[n]),
            float(found.low_ns[n]),
            float(found.high_ns[n]),
            row["flops"],
            row["bytes"],
            json.loads(row["shares"]),
            bool(found.looked_up[n]),
            unfamiliar[n],
            made.iterations[n],
        )
        for n, row in enumerate(rows)
    )
    return Forecast(
        threads,
        found.total_ns,
        found.total_low_ns,
        found.total_high_ns,
        found.overhead_ns,
        LEVEL,
        kernels,
        made.host_steps,
        (*_basis(chosen), *_notes(kernels, made.host_steps)),
    )


def _chosen(predictors: Sequence[Predictor], machine: Target, threads: int) -> Predictor:
    """Returns the predictor for a target and thread count.

    Errors: I183 if there is none.
    """
    fitting = [p for p in predictors if p.target == machine.key]
    if not fitting:
        raise InputError(
            "I183",
            f"the predictor is for another machine than {machine.cpu}",
            hint="measure here: clew dataset -o TABLE.parquet",
        )
    chosen = next((p for p in fitting if p.threads == threads), None)
    if chosen is None:
        known = ", ".join(str(p.threads) for p in fitting)
        raise InputError(
            "I183",
            f"the predictor is for {known} thread{'s' * (known != '1')}, not for {threads}",
            hint=Hint(
                f"predict with threads={fitting[0].threads}, or measure with {threads}: "
                f"clew dataset --threads {threads}",
                cli=f"--threads {fitting[0].threads}, or clew dataset --threads {threads}",
            ),
        )
    return chosen


def _basis(chosen: Predictor | Untrained) -> tuple[str, ...]:
    """Returns a note on rates that follow from a description."""
    if isinstance(chosen, Untrained) and not chosen.measured:
        return (
            f"the rates of {chosen.target.name} follow from its description; they were not "
            "measured: clew machine measures those of this machine",
        )
    return ()


def _notes(kernels: Sequence[KernelForecast], left_out: Sequence[str]) -> tuple[str, ...]:
    notes = []
    strange = [k for k in kernels if k.unfamiliar]
    total = sum(k.ns for k in kernels)
    if strange and total:
        share = 100 * sum(k.ns for k in strange) / total
        names = ", ".join(dict.fromkeys(n for k in strange for n in k.unfamiliar.split(", ")))
        notes.append(
            f"{len(strange)} of {len(kernels)} kernels, {share:.0f} % of the time, have rules or "
            f"operators that the table lacks ({names}): measure networks with them"
        )
    once = sum(k.iterations is None for k in kernels)
    if once:
        notes.append(
            f"the trip count of {counted(once, 'kernel')} in loops is known only during a "
            "run: their times are of one iteration"
        )
    if left_out:
        names = ", ".join(dict.fromkeys(left_out))
        notes.append(f"{len(left_out)} steps are not native kernels and are not included: {names}")
    return tuple(notes)
