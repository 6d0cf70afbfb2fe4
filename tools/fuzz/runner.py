"""Keeps workers running, counts outcomes, and saves failures."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from fuzz.case import case_of
from fuzz.operators import ENTRIES

CHUNK: Final = 500
"""Seeds of one worker's life: LLVM and hypothesis keep something of each."""
_HANG_S: Final = 60.0
_SMALL_OF_A_SORT: Final = 2
_OTHERS: Final = ("onnxruntime", "reference")


@dataclass
class Counts:
    """The counts so far, stored in `summary.json`."""

    path: Path
    commit: str = ""
    next_seed: int = 0
    done: list[list[int]] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    operators: Counter[str] = field(default_factory=Counter)
    judges: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    failures: dict[str, list[int]] = field(default_factory=dict)
    seconds: float = 0.0

    @classmethod
    def at(cls, path: Path, first: int | None) -> Counts:
        """Returns the counts to continue: those of the same commit, or none."""
        commit = _commit()
        if path.exists() and first is None:
            kept = json.loads(path.read_text())
            if kept["commit"] == commit:
                return cls(
                    path, commit, kept["next_seed"], kept["done"], Counter(kept["kinds"]),
                    Counter(kept["operators"]), Counter(kept["judges"]), Counter(kept["refusals"]),
                    kept["failures"], kept["seconds"],
                )  # fmt: skip
        return cls(path, commit, first or 0)

    @property
    def graphs(self) -> int:
        """How many graphs have been run."""
        return sum(self.kinds.values())

    @property
    def failed(self) -> int:
        """How many of them failed."""
        return sum(len(seeds) for seeds in self.failures.values())

    def take(self, line: dict[str, Any]) -> None:
        """Counts a worker's message about a case."""
        self.kinds[line["kind"]] += 1
        self.seconds += line["seconds"]
        self.operators.update(line["operators"])
        self.judges.update(line["judges"] or ["nobody"])
        if line["kind"] == "refused":
            self.refusals[line["sort"]] += 1
        seed = line["seed"]
        for span in self.done:
            if span[1] == seed:
                span[1] = seed + 1
                return
        self.done.append([seed, seed + 1])

    def save(self) -> None:
        """Writes the file."""
        spans: list[list[int]] = []
        for a, b in sorted(self.done):
            if spans and spans[-1][1] >= a:
                spans[-1][1] = max(spans[-1][1], b)
            else:
                spans.append([a, b])
        self.done = spans
        text = {
            "commit": self.commit, "graphs": self.graphs, "failed": self.failed,
            "next_seed": self.next_seed, "done": spans, "seconds": round(self.seconds, 1),
            "mean_ms": round(1e3 * self.seconds / max(1, self.graphs), 1),
            "kinds": self.kinds, "judges": self.judges, "failures": self.failures,
            "refusals": dict(self.refusals.most_common()),
            "operators": dict(sorted(self.operators.items())),
        }  # fmt: skip
        self.path.write_text(json.dumps(text, indent=1))


class _Worker:
    def __init__(self, folder: Path, name: int, first: int, count: int) -> None:
        self.at = folder / f"worker-{name}"
        self.at.write_text(f"{first} start")
        self.stop = first + count
        cache = folder / f"cache-{name}"
        environment = {**os.environ, "CLEW_CACHE_DIR": str(cache), "CLEW_COMPILE_JOBS": "1"}
        command = [sys.executable, "-m", "fuzz", "work", str(first), str(count), str(self.at)]
        self.log = (folder / f"worker-{name}.log").open("wb")
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self.log, env=environment
        )
        assert self.process.stdout is not None
        self.output: IO[bytes] = self.process.stdout
        self.heard = time.monotonic()
        self.rest = b""

    def lines(self) -> list[dict[str, Any]] | None:
        """Returns the worker's output, None if it has ended."""
        data = os.read(self.output.fileno(), 1 << 20)
        if not data:
            return None
        self.heard = time.monotonic()
        *whole, self.rest = (self.rest + data).split(b"\n")
        return [json.loads(line) for line in whole]

    def last(self) -> tuple[int, str]:
        """Returns the seed and phase of its last work."""
        seed, phase = self.at.read_text().split()[:2]
        return int(seed), phase

    def end(self) -> int:
        """Ends the process and returns its code."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.output.close()
        self.log.close()
        return self.process.returncode


def run(
    folder: Path, seconds: float, workers: int, first: int | None = None, graphs: int | None = None,
    small: bool = True,
) -> Counts:  # fmt: skip
    """Runs cases for some seconds, or up to a number of graphs; returns the counts.

    Continues after the last run of the same commit, unless `first` names a seed. With `small`, each
    failure is reduced.
    """
    folder.mkdir(parents=True, exist_ok=True)
    counts = Counts.at(folder / "summary.json", first)
    before = counts.graphs
    selector = selectors.DefaultSelector()
    running: dict[int, _Worker] = {}
    started = time.monotonic()

    def over() -> bool:
        enough = graphs is not None and counts.graphs - before >= graphs
        return enough or time.monotonic() - started > seconds

    def start(name: int, first: int, count: int) -> None:
        running[name] = _Worker(folder, name, first, count)
        selector.register(running[name].output, selectors.EVENT_READ, name)

    def next_chunk(name: int) -> None:
        if not over():
            counts.next_seed += CHUNK
            start(name, counts.next_seed - CHUNK, CHUNK)

    def gone(name: int, hung: bool) -> None:
        worker = running.pop(name)
        selector.unregister(worker.output)
        code = worker.end()
        if not hung and code == 0:
            next_chunk(name)
            return
        seed, phase = worker.last()
        kind = "hang" if hung else "crash"
        sort = f"{kind} in {phase}"
        other = phase in _OTHERS
        line = {
            "seed": seed, "kind": f"{phase} {kind}" if other else kind, "sort": sort, "judges": [],
            "what": f"{sort} (exit code {code})", "operators": case_of(seed).operators,
            "seconds": 0,
        }  # fmt: skip
        counts.take(line)
        if not other:
            _note(folder, counts, line, small)
        if seed + 1 < worker.stop:
            start(name, seed + 1, worker.stop - seed - 1)
        else:
            next_chunk(name)

    for name in range(workers):
        next_chunk(name)
    shown = 0.0
    while running and not over():
        for key, _ in selector.select(0.5):
            worker = running[key.data]
            lines = worker.lines()
            if lines is None:
                gone(key.data, False)
                continue
            for line in lines:
                counts.take(line)
                if line["kind"] not in ("ok", "refused"):
                    _note(folder, counts, line, small)
        for name, worker in list(running.items()):
            if time.monotonic() - worker.heard > _HANG_S:
                gone(name, True)
        if time.monotonic() - shown > 1:
            shown = time.monotonic()
            counts.save()
            _show(counts, counts.graphs - before, shown - started)
    for worker in running.values():
        worker.end()
    counts.save()
    _show(counts, counts.graphs - before, time.monotonic() - started)
    print(file=sys.stderr)
    return counts


def _show(counts: Counts, new: int, seconds: float) -> None:
    covered = sum(1 for e in ENTRIES.values() if counts.operators[e.name])
    line = (
        f"{counts.graphs:,} graphs, {new / max(seconds, 1e-3):.1f} a second, "
        f"{counts.failed} failed in {len(counts.failures)} ways, "
        f"{counts.kinds['refused']} refused, {covered} operators"
    )
    end = "\r" if sys.stderr.isatty() else "\n"
    print(line.ljust(79), end=end, file=sys.stderr, flush=True)


def _note(folder: Path, counts: Counts, line: dict[str, Any], small: bool) -> None:
    """Writes a failure's folder; a separate process reduces the case."""
    seeds = counts.failures.setdefault(line["sort"], [])
    seeds.append(line["seed"])
    place = folder / "failures" / str(line["seed"])
    case = case_of(line["seed"])
    case.save(place)
    (place / "what.txt").write_text(
        f"{line['kind']}: {line['what']}\n\noperators: {', '.join(line['operators'])}\n"
        f"again: python -m fuzz again {place}\n"
    )
    print(f"\nseed {line['seed']}: {line['sort']}; see {place}", file=sys.stderr)
    if small and len(seeds) <= _SMALL_OF_A_SORT:
        command = [sys.executable, "-m", "fuzz", "shrink", str(place)]
        subprocess.run(command, check=False, timeout=300, stdout=subprocess.DEVNULL)


def _commit() -> str:
    here = Path(__file__).parent
    found = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"], cwd=here, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    return found.stdout.strip()
