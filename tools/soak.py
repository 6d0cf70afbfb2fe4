"""Soak test: one process compiles and runs models for a long time, and its resources are recorded.

`python tools/soak.py models --count 10000` compiles that many different small models, one after
another, runs each and drops it. `python tools/soak.py mixed --minutes 60` keeps a set of models
alive and alternates between the tasks of a long-lived service: it runs them (also from several
threads), compiles new ones with and without the disk cache, runs symbolic ones at new sizes, saves
and loads, requests traces, and loads invalid models.

Each line has the resources of the process and its compile workers: resident memory, file
descriptors, threads. Memory counts as flat if the last half of the run added less than `--slack`
MiB. Results are sometimes compared with the interpreter's, because a soak of wrong results proves
nothing. The exit code is 1 if memory grew, or a result was wrong.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import clew
from clew.codegen.objects import shared_compiler
from clew.ir.interpret import interpret
from clew.ir.parser import parse_module
from clew.support.errors import ClewError
from random_graphs import Graph, close

_MIB = 1 << 20
_OPERATORS = 6
_THREADS = 4
_ALIVE = 12
_CHECK_EVERY = 25
_SYMBOLIC = """clew 1
def @main(%x: f32[rows, 24], %y: f32[rows, 24]) -> (f32[rows, 24],) {
  %0: f32[rows, 24] = add(%x, %y)
  %1: f32[rows, 24] = nn.softmax(%0)
  %2: (f32[rows, 24],) = (%1,)
  return %2
}
"""


@dataclass(frozen=True)
class Reading:
    """The resources of the process and its workers at one time. Sizes are MiB."""

    seconds: float
    done: int
    resident: float
    workers: float
    descriptors: int
    threads: int


def reading(start: float, done: int) -> Reading:
    """Returns the current resources, after a garbage collection."""
    gc.collect()
    own = os.getpid()
    workers = [w.process.pid for w in shared_compiler()._workers]
    return Reading(
        round(time.monotonic() - start, 1),
        done,
        round(resident(own), 1),
        round(sum(map(resident, workers)), 1),
        len(os.listdir(f"/proc/{own}/fd")),
        len(os.listdir(f"/proc/{own}/task")),
    )


def resident(process: int) -> float:
    """Returns the resident memory of a process in MiB."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except (OSError, IndexError):  # it has just ended
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / _MIB


def growth(readings: list[Reading]) -> float:
    """Returns by how many MiB the second half of a run raised the process's memory.

    Medians of the two last quarters: a single reading may fall on a peak.
    """
    quarter = max(1, len(readings) // 4)
    last = [r.resident for r in readings[-quarter:]]
    before = [r.resident for r in readings[-2 * quarter : -quarter]] or last
    return float(np.median(last) - np.median(before)) * 2


def small_model(seed: int) -> Graph:
    """Returns a graph of a few random operators, different for each seed."""
    graph = Graph(seed)
    for _ in range(_OPERATORS):
        graph.grow()
    return graph


def models(count: int, first: int) -> Iterator[int]:
    """Compiles, runs and drops models; yields after each how many are done."""
    for number in range(count):
        graph = small_model(first + number)
        module = graph.module()
        compiled = clew.compile(module, threads=1 + number % 2, opt_level=(3, 2, 1)[number % 3])
        found = compiled.run(graph.arrays)
        if number % _CHECK_EVERY == 0:
            _compare(found, interpret(module, graph.arrays))
        yield number + 1


def _compare(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    for name, value in found.items():
        close(value, wanted[name])


class Service:
    """The tasks of a long-lived process; each turn runs one."""

    def __init__(self, seed: int, folder: Path) -> None:
        self._random = random.Random(seed)
        self._folder = folder
        self._next = seed
        self._alive: deque[tuple[Any, dict[str, Any], dict[str, Any]]] = deque(maxlen=_ALIVE)
        self._symbolic = clew.compile(parse_module(_SYMBOLIC))
        self.turns: dict[str, int] = {}

    def turn(self) -> None:
        """Does one thing."""
        choices: list[tuple[int, Callable[[], None]]] = [
            (40, self.run),
            (8, self.run_at_once),
            (12, self.compile_one),
            (8, self.compile_uncached),
            (12, self.new_size),
            (6, self.save_and_load),
            (6, self.look),
            (8, self.refused),
        ]
        if not self._alive:
            self.compile_one()
        (do,) = self._random.choices([c for _, c in choices], [w for w, _ in choices])
        self.turns[do.__name__] = self.turns.get(do.__name__, 0) + 1
        do()

    def run(self) -> None:
        """Runs one of the models twenty times."""
        compiled, arrays, wanted = self._random.choice(self._alive)
        for _ in range(20):
            found = compiled.run(arrays)
        _compare(found, wanted)

    def run_at_once(self) -> None:
        """Calls one model from several threads at once."""
        compiled, arrays, wanted = self._random.choice(self._alive)
        results: list[dict[str, Any]] = []
        threads = [
            threading.Thread(target=lambda: results.append(compiled.run(arrays)))
            for _ in range(_THREADS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(results) == _THREADS, "a thread did not come back with a result"
        for found in results:
            _compare(found, wanted)

    def compile_one(self) -> None:
        """Compiles a model, of which each is met a few times: the disk cache has some."""
        self._compile(self._random.randrange(200), cache=True)

    def compile_uncached(self) -> None:
        """Compiles a model that never came before."""
        self._next += 1
        self._compile(1_000_000 + self._next, cache=False)

    def _compile(self, seed: int, *, cache: bool) -> None:
        graph = small_model(seed)
        module = graph.module()
        compiled = clew.compile(module, threads=1 + seed % 2, cache=cache)
        self._alive.append((compiled, graph.arrays, interpret(module, graph.arrays)))

    def new_size(self) -> None:
        """Runs a symbolic model at some size."""
        rows = self._random.randint(1, 300)
        x = np.full((rows, 24), 0.5, np.float32)
        (found,) = self._symbolic.run({"x": x, "y": x}).values()
        np.testing.assert_allclose(found, 1 / 24, rtol=1e-5)

    def save_and_load(self) -> None:
        """Saves a model, loads it and runs the loaded model."""
        compiled, arrays, wanted = self._random.choice(self._alive)
        path = self._folder / "model.clew"
        compiled.save(path)
        _compare(clew.load_compiled(path).run(arrays), wanted)

    def look(self) -> None:
        """Asks for a trace and the code of a kernel."""
        compiled, _, _ = self._random.choice(self._alive)
        assert compiled.trace is not None
        for kernel in compiled.kernels[:1]:
            assert kernel.asm

    def refused(self) -> None:
        """Meets a model that cannot be read, and a wrong input."""
        for given in (b"no model", b"\x08\x07" * 50):
            try:
                clew.compile(given)
            except ClewError:
                continue
            raise AssertionError("a damaged model was accepted")
        compiled, _, _ = self._random.choice(self._alive)
        try:
            compiled.run({"nothing": np.zeros(1)})
        except ClewError:
            return
        raise AssertionError("a wrong input was accepted")


def mixed(minutes: float, seed: int, folder: Path) -> Iterator[int]:
    """Serves for some minutes; yields after each turn how many were taken."""
    service = Service(seed, folder)
    end = time.monotonic() + minutes * 60
    turns = 0
    while time.monotonic() < end:
        service.turn()
        turns += 1
        yield turns
    print(", ".join(f"{name} {count}" for name, count in sorted(service.turns.items())))


def watch(steps: Iterator[int], every: float) -> list[Reading]:
    """Runs to the end, with a reading each `every` seconds, and prints them."""
    start = time.monotonic()
    readings: list[Reading] = []
    due = start
    done = 0
    print(f"{'seconds':>8} {'done':>8} {'RSS MiB':>8} {'workers':>8} {'files':>6} {'threads':>8}")
    for done in steps:
        if time.monotonic() >= due:
            due = time.monotonic() + every
            readings.append(_said(reading(start, done)))
    readings.append(_said(reading(start, done)))
    return readings


def _said(now: Reading) -> Reading:
    print(
        f"{now.seconds:>8.0f} {now.done:>8} {now.resident:>8.1f} {now.workers:>8.1f} "
        f"{now.descriptors:>6} {now.threads:>8}",
        flush=True,
    )
    return now


def main() -> int:
    """Runs the soak test selected on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    kinds = parser.add_subparsers(dest="kind", required=True)
    many = kinds.add_parser("models", help="many different models, one after another")
    many.add_argument("--count", type=int, default=10_000)
    long = kinds.add_parser("mixed", help="the tasks of a long-lived process")
    long.add_argument("--minutes", type=float, default=60.0)
    for each in (many, long):
        each.add_argument("--seed", type=int, default=1)
        each.add_argument("--every", type=float, default=20.0, help="seconds between readings")
        each.add_argument(
            "--slack", type=float, default=30.0, help="MiB that do not count as growth"
        )
        each.add_argument("--json", type=Path, help="file for the readings")
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="clew-soak-"))
    try:
        if asked.kind == "models":
            steps = models(asked.count, asked.seed * 1_000_000)
        else:
            steps = mixed(asked.minutes, asked.seed, folder)
        readings = watch(steps, asked.every)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    added = growth(readings)
    flat = added <= asked.slack
    print(
        f"{readings[-1].done} done in {readings[-1].seconds:.0f} s; the second half added "
        f"{added:.1f} MiB: {'flat' if flat else 'not flat'}"
    )
    if asked.json is not None:
        found = {"kind": asked.kind, "added_mib": added, "readings": [asdict(r) for r in readings]}
        asked.json.write_text(json.dumps(found, indent=1))
    return 0 if flat else 1


if __name__ == "__main__":
    sys.exit(main())
