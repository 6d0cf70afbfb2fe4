"""Random partitions of real models over several engines, compared with the model on the CPU.

    PYTHONPATH=tools python -m random_partitions --count 2000 --json outcomes.jsonl

Each partition draws a few backends, cuts the units of the graph into pieces at random, gives each
piece one of the backends or the CPU, and compiles and runs the model so. The outputs must agree
with those of the CPU alone for new inputs, the trace must have no gap, and each region must be what
its backend takes. A partition that was done is not done again with the same file.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import clew
import zoo
from clew.backends.registry import backends_of
from clew.compiling.compile import passes_for
from clew.machine.target import host
from clew.passes.manager import PassManager
from clew.passes.placement.rules import Fixed, operator_keys
from clew.placement.agreement import Reference, nearby
from clew.placement.units import Unit, UnitGraph, units_of
from clew.support.errors import ClewError

ENGINES = ("onnxruntime", "openvino", "numpy")
CPU = "cpu"


@dataclass(frozen=True)
class Outcome:
    """One partition: its regions by backend, and what is wrong; empty if nothing is."""

    model: str
    seed: int
    regions: Mapping[str, int]
    problem: str
    seconds: float


class Subject:
    """A model, its units, and what the CPU computes."""

    def __init__(self, name: str, backends: Sequence[str] = ENGINES) -> None:
        self.name = name
        shapes = {n: a.shape for n, a in zoo.inputs(name).items()}
        self.module = clew.load(zoo.path(name), inputs=shapes)
        self._neighbors: dict[int, clew.Module] = {}
        self._models: dict[int, Any] = {}  # on the CPU, by the identity of the module
        self._backends = backends_of(backends)
        passes = passes_for(backends=self._backends)
        names = [p.name for p in passes]
        before = passes[: names.index("MergeComposite")]
        placed = PassManager(before, target=host(), trace=False).run(self.module)
        self.graph: UnitGraph = units_of(placed, self._backends, host())
        self._keys = operator_keys(placed)

    def outcome(self, seed: int) -> Outcome:
        """Returns the outcome of the partition of a seed."""
        began = time.perf_counter()
        rng = np.random.default_rng([seed, len(self.name)])
        names = list(self._drawn(rng))
        choices = {
            self._keys[call.id]: name
            for unit, name in zip(self.graph.units, names, strict=True)
            if name != CPU
            for call in unit.calls
        }
        regions: dict[str, int] = {}
        try:
            compiled = clew.compile(
                self.module, threads=1, backends=list(self._backends), place=Fixed(choices)
            )
            for use in compiled.regions:
                regions[use.backend] = regions.get(use.backend, 0) + 1
            problem = self._problem(compiled, choices, seed)
        except ClewError as error:
            problem = f"{error.code} {error.message}"
        return Outcome(self.name, seed, regions, problem, time.perf_counter() - began)

    def _on_cpu(self, module: clew.Module, inputs: Mapping[str, Any]) -> list[Any]:
        if id(module) not in self._models:
            self._models[id(module)] = clew.compile(module, threads=1)
        return list(self._models[id(module)].run(inputs).values())

    def _neighbor(self, seed: int) -> clew.Module:
        if seed not in self._neighbors:
            self._neighbors[seed] = nearby(self.module, seed)
        return self._neighbors[seed]

    def _drawn(self, rng: np.random.Generator) -> Iterator[str]:
        """Yields a backend for each unit: pieces of the order, of random lengths."""
        names = [CPU, *rng.permutation(ENGINES)[: rng.integers(1, len(ENGINES) + 1)]]
        mean = rng.choice([1.5, 4.0, 12.0, 40.0])
        left, name = 0, CPU
        for unit in self.graph.units:
            if left == 0:
                left, name = int(rng.geometric(1 / mean)), str(rng.choice(names))
            left -= 1
            yield self._allowed(unit, name)

    @staticmethod
    def _allowed(unit: Unit, name: str) -> str:
        return name if name in unit.takers else CPU

    def _problem(self, compiled: Any, choices: Mapping[Any, str], seed: int) -> str:
        inputs = zoo.inputs(self.name, seed)
        found = compiled.run(inputs)
        reference = Reference(
            self.module, lambda module: self._on_cpu(module, inputs), self._neighbor
        )
        problem = reference.disagreement(list(found.values()))
        if problem:
            return problem
        given = sum(len(use.ops) for use in compiled.regions)
        if given != len(choices):
            return f"{len(choices)} operators were given away, {given} are in regions"
        gaps = compiled.trace.check()
        return f"the trace has a gap: {gaps[0]}" if gaps else ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs partitions, and returns 1 if one of them is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", help="names in the zoo (default all)")
    parser.add_argument("--count", type=int, default=200, help="partitions in total")
    parser.add_argument("--json", type=Path, help="file of outcomes, read and added to")
    chosen = parser.parse_args(arguments)
    names = chosen.models or list(zoo.names())
    done: dict[tuple[str, int], str] = {}
    if chosen.json is not None and chosen.json.is_file():
        rows = map(json.loads, chosen.json.read_text().splitlines())
        done = {(row["model"], row["seed"]): row["problem"] for row in rows}
    wrong = sum(bool(problem) for problem in done.values())
    for number, name in enumerate(names):
        seeds = range(number, chosen.count, len(names))
        left = [seed for seed in seeds if (name, seed) not in done]
        subject = Subject(name) if left else None
        for seed in left:
            assert subject is not None
            outcome = subject.outcome(seed)
            wrong += bool(outcome.problem)
            if chosen.json is not None:
                with chosen.json.open("a") as file:
                    file.write(json.dumps(asdict(outcome)) + "\n")
            if outcome.problem:
                print(f"{name}, seed {seed}: {outcome.problem}", flush=True)
        print(f"{name}: {len(seeds)} partitions", file=sys.stderr, flush=True)
    print(f"{chosen.count} partitions, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
