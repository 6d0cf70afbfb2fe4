"""Benchmarks one model on one machine: clew and its peers, and every kernel's roof."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from clew.api.compile import compile
from clew.api.compiled_model import CompiledModel
from clew.backends.compile_options import CompileOptions, Precision
from clew.bench.engines import Engine, Feed, Runner, engines, runner_of
from clew.bench.flops import model_flops
from clew.bench.measure import Measured, measure
from clew.frontends.formats import format_of
from clew.ir.module import Module
from clew.machine.probes.bandwidth import Bandwidth, Level
from clew.machine.probes.peak import FmaPeak
from clew.machine.probes.products import ProductPeaks
from clew.machine.target import host
from clew.profile.roofline import Roof, Total, described, rooflines, total
from clew.profile.scaling import Simulated, simulated
from clew.support.settings import usable_cpus
from clew.support.shown import counted


@dataclass(frozen=True)
class Run:
    """The results for one thread count. `missing` are peers that are not installed, `regions` the
    number of regions on other backends, which are part of clew's time but not of `roofs`.
    """

    threads: int
    gflop: float
    measured: Measured
    levels: list[Level]
    roofs: list[Roof]
    missing: tuple[Engine, ...]
    regions: int = 0

    @property
    def total(self) -> Total:
        """The kernels together, compared with their limits."""
        return total(self.roofs)

    @property
    def roof_lines(self) -> list[str]:
        """The same in words, and which kernels are large and far below their limits."""
        lines = list(described(self.roofs))
        if self.regions:
            other = counted(self.regions, "region")
            lines.append(f"{other} of other backends: not among the kernels; see clew profile")
        return lines

    def to_json(self) -> dict[str, Any]:
        """Returns the results as `clew bench --json` prints them."""
        return {
            "threads": self.threads,
            "regions": self.regions,
            "gflop": self.gflop,
            "peak_gflops": self.measured.peak_gflops,
            "bandwidth_gbps": {level.name: level.gbps for level in self.levels},
            "engines": [asdict(f) for f in self.measured.figures],
            "roof": {**asdict(self.total), "limit_share": self.total.limit_share},
            "kernels": [asdict(r) for r in self.roofs],
        }


@dataclass
class Session:
    """A model measured at several thread counts with the same inputs.

    `path` is the file that `module` was loaded from, for the peers. `inputs` returns several inputs
    by name for a compiled model, of the same shapes but different values; it is called once.
    `options` are those of `clew.compile`.
    """

    path: Path
    module: Module
    inputs: Callable[[CompiledModel], Sequence[Feed]]
    options: CompileOptions = field(default_factory=CompileOptions)
    rounds: int = 10
    say: Callable[[str], None] = lambda text: None

    def runs(self, counts: Sequence[int]) -> list[Run]:
        """Returns the results for each thread count.

        Errors: I013 (precision), and those of compiling and running the model.
        """
        peak, bandwidth = FmaPeak(), Bandwidth()
        feeds: list[Feed] = []
        return [self._run(feeds, threads, peak, bandwidth) for threads in counts]

    def simulated(self, counts: Sequence[int]) -> list[Simulated]:
        """Returns the kernels on each number of simulated threads, measured on one.

        Errors: those of compiling and running the model.
        """
        compiled = compile(self.module, **self.options.changed(threads=1, on_progress=self.say))
        feed = self.inputs(compiled)[0]
        compiled.run(feed)  # also builds a model with named sizes
        self.say("timing kernels")
        times = compiled.time_kernels(feed)
        return [simulated(times, threads) for threads in counts]

    def _run(self, feeds: list[Feed], threads: int, peak: FmaPeak, bandwidth: Bandwidth) -> Run:
        given = self.options.changed(threads=threads, on_progress=self.say)
        compiled = compile(self.module, **given)
        if not feeds:
            feeds += self.inputs(compiled)
        compiled.run(feeds[0])  # also builds a model with named sizes
        flops = model_flops(compiled.build)
        form = format_of(self.path)
        known = [each for each in engines().values() if each.name != "clew"]
        peers = [each for each in known if form is not None and form.name in each.reads]
        prepares: dict[str, Callable[[], Runner]] = {"clew": lambda: runner_of(compiled)}
        precision = self.options.group(Precision).precision
        for peer in peers:
            if peer.installed:
                prepares[peer.name] = partial(peer.prepare, self.path, threads, precision)
        self.say("taking turns")
        measured = measure(prepares, flops, threads, self.rounds, peak, feeds)
        self.say("timing kernels")
        levels = bandwidth.levels(threads)
        times = compiled.time_kernels(feeds[0])
        peaks = ProductPeaks(measured.peak_gflops, threads)
        roofs = rooflines(times, peaks, levels)
        missing = tuple(peer for peer in peers if not peer.installed)
        return Run(threads, flops / 1e9, measured, levels, roofs, missing, len(compiled.regions))


def machine() -> dict[str, Any]:
    """Returns the relevant facts about this machine."""
    here = host()
    return {
        "cpu": here.cpu,
        "features": [f for f in here.features.split(",") if f.startswith("+")],
        "vector_bits": here.vector_bits,
        "l2_bytes": here.l2_bytes,
        "cores": usable_cpus(),
    }
