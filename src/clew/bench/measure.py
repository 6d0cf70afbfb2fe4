"""Times engines on one model alternately, with the FMA peak measured in the same rounds."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from clew.bench.engines import Feed, Outputs, Runner
from clew.machine.probes.peak import FmaPeak
from clew.profile.interleave import interleaved_ns, median_ms
from clew.support.difference import relative_error
from clew.support.errors import CompileError

REFERENCE: Final = "onnxruntime"
"""The engine whose f32 outputs are the reference, if it takes part."""

_WRONG: Final = 0.5
"""Relative error of an engine that computes something else; int8 networks stay below a tenth."""


@dataclass(frozen=True)
class Figures:
    """The results of one engine. `failure` is the reason if there are none.

    Times are milliseconds of single calls; `spread` is the range of their middle half, relative to
    the median. `gflops` counts the model's own products, independent of the algorithm of the
    engine; `peak_share` is that rate divided by the FMA peak. Both are 0 if the model's FLOPs are
    unknown. `error` is the largest difference of the worst output from the reference's, relative to
    its largest value; NaN without a reference.
    """

    engine: str
    failure: str = ""
    median_ms: float = 0.0
    best_ms: float = 0.0
    spread: float = 0.0
    calls: int = 0
    gflops: float = 0.0
    peak_share: float = 0.0
    error: float = math.nan


@dataclass(frozen=True)
class Measured:
    """Engines in the order they were given, and the FMA peak of each round in GFLOP/s."""

    figures: tuple[Figures, ...]
    peaks: tuple[float, ...]

    @property
    def peak_gflops(self) -> float:
        """The median of the peaks; 0 if nothing ran."""
        return statistics.median(self.peaks) if self.peaks else 0.0

    def of(self, engine: str) -> Figures | None:
        """Returns an engine's results if it ran."""
        return next((f for f in self.figures if f.engine == engine and not f.failure), None)

    def lead(self, engine: str) -> tuple[float, str] | None:
        """Returns the fastest other engine's median ÷ this engine's, and that engine's name.

        An engine with wrong outputs is not compared with.
        """
        own = self.of(engine)
        ran = [f for f in self.figures if not f.failure and f.engine != engine]
        others = [f for f in ran if not f.error > _WRONG]
        if own is None or not others:
            return None
        fastest = min(others, key=lambda f: f.median_ms)
        return fastest.median_ms / own.median_ms, fastest.engine


def measure(
    prepares: Mapping[str, Callable[[], Runner]],
    flops: int,
    threads: int,
    rounds: int,
    peak: FmaPeak,
    feeds: Sequence[Feed],
    min_turn_s: float = 0.05,
) -> Measured:
    """Returns the results of the engines by name, for a model with `flops` FLOPs.

    Every engine is prepared and run once with each of `feeds`, inputs of the same shapes and
    different values; then they run alternately, with the next inputs at each call. An exception
    becomes the engine's `failure` and does not end the benchmark; so does a build for new values.
    The peak is that of `threads` threads.
    """
    runners, failures = _prepared(prepares, feeds)
    errors = dict.fromkeys(runners, math.nan)
    for feed in feeds:
        outputs = {name: flat(runner.run(feed)) for name, runner in runners.items()}
        for name, error in _errors(outputs).items():
            errors[name] = error if math.isnan(errors[name]) else max(errors[name], error)
        del outputs
    peaks: list[float] = []
    calls = {name: in_turn(runner, feeds) for name, runner in runners.items()}
    times = (
        interleaved_ns(calls, rounds, min_turn_s, lambda: peaks.append(peak.gflops(threads)))
        if runners
        else {}
    )
    found = []
    for name in prepares:
        if name in failures:
            found.append(Figures(name, failures[name]))
            continue
        rate = flops / median_ms(times[name]) / 1e6
        found.append(
            Figures(
                name,
                median_ms=median_ms(times[name]),
                best_ms=min(times[name]) / 1e6,
                spread=_spread(times[name]),
                calls=len(times[name]),
                gflops=rate,
                peak_share=rate / statistics.median(peaks),
                error=errors[name],
            )
        )
    return Measured(tuple(found), tuple(peaks))


def _spread(values: Sequence[float]) -> float:
    q1, median, q3 = np.percentile(values, [25, 50, 75])
    return float((q3 - q1) / median) if median else 0.0


def geometric_mean(values: Sequence[float]) -> float:
    """Returns the geometric mean of positive numbers, the appropriate mean for ratios."""
    return math.exp(statistics.fmean(map(math.log, values)))


def flat(values: Sequence[Any]) -> Outputs:
    """Returns outputs as a list of copied arrays: sequences are flattened, absent values
    omitted.
    """
    found: Outputs = []
    for value in values:
        if isinstance(value, (list, tuple)):
            found += flat(value)
        elif value is not None:
            found.append(np.array(value))
    return found


def in_turn(runner: Runner, feeds: Sequence[Feed]) -> Callable[[], Outputs]:
    """Returns a function that runs a model with the next inputs at each call, cyclically."""
    following = itertools.cycle(feeds)
    return lambda: runner.run(next(following))


def _prepared(
    prepares: Mapping[str, Callable[[], Runner]], feeds: Sequence[Feed]
) -> tuple[dict[str, Runner], dict[str, str]]:
    """Returns runners that ran once with all inputs, and for the others the first line of the
    error.
    """
    runners: dict[str, Runner] = {}
    failures: dict[str, str] = {}
    for name, prepare in prepares.items():
        try:
            runner = prepare()
            _warm(runner, feeds)
        except Exception as failure:  # no exception of one engine may end the comparison
            lines = f"{type(failure).__name__}: {failure}".splitlines()
            failures[name] = lines[0].strip()
        else:
            runners[name] = runner
    return runners, failures


def _warm(runner: Runner, feeds: Sequence[Feed]) -> None:
    """Runs an engine once with all inputs.

    Errors: C095 if it builds the model again for inputs that differ only in values.
    """
    runner.run(feeds[0])
    built = runner.builds()
    for feed in feeds[1:]:
        runner.run(feed)
    if runner.builds() != built:
        raise CompileError(
            "C095",
            f"{len(feeds)} inputs that differ only in their values took "
            f"{runner.builds() - built + 1} builds",
            hint="compiled.inputs says whose value decides sizes",
        )


def _errors(outputs: Mapping[str, Outputs]) -> dict[str, float]:
    """Returns each engine's error against the reference, or against the last engine if there is no
    reference; NaN if there is only one.
    """
    if len(outputs) < 2:
        return dict.fromkeys(outputs, math.nan)
    reference = outputs.get(REFERENCE) or list(outputs.values())[-1]
    return {name: _error(values, reference) for name, values in outputs.items()}


def _error(values: Outputs, reference: Outputs) -> float:
    if len(values) != len(reference):
        return math.inf
    pairs = zip(values, reference, strict=True)
    return max((relative_error(value, true) for value, true in pairs), default=0.0)
