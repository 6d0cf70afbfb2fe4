"""Runs one model with symbolic dimensions at many sizes in a separate process and prints the
figures as JSON.

`python -m harness.sizes_child JOB`, where JOB is a JSON object: model, sizes, seed, threads, static
(positions of the sizes that get a static build), peer (whether ONNX Runtime takes part). The cache
is that of the environment. Linux only.
"""

from __future__ import annotations

import gc
import itertools
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import clew
import zoo
from clew.support.difference import relative_error
from harness.engines import Feed, Outputs, engines
from harness.free_sizes import ROWS, TOLERANCE, AtSize, Dims, Served
from harness.report import progress

Run = Callable[[Feed], Outputs]
_AGAIN = 5  # calls after the first
_ROUNDS, _MOST_ROUNDS = 5, 25
_ROUNDS_S = 1.0  # more rounds for small sizes, since a shared machine's speed drifts
_TURN_S = 5e-3
_MOST_CALLS = 20  # of a turn
_PAUSE_S = 0.01  # lets another engine's spinning threads go to sleep


def main() -> None:
    """Prints a `Served`."""
    job = json.loads(sys.argv[1])
    name, threads = job["model"], job["threads"]
    path = zoo.path(name)
    feeds = _Feeds(name, job["seed"])
    began = time.perf_counter()
    compiled = clew.compile(
        path, threads=threads, sizes=clew.Sizes(specialize=False)
    )  # measures one build
    found = Served(compile_s=time.perf_counter() - began, compiled_bytes=memory_bytes())
    for dims in job["sizes"]:
        found.sizes.append(served(compiled, feeds, dims))
        found.builds = compiled.builds_made
        _tell(f"{name}: first calls", found.sizes, job["sizes"])
    if job["peer"]:
        _compare(compiled, feeds, found.sizes, job)
    print(json.dumps(asdict(found)))


class _Feeds:
    """Draws inputs; no two calls get the same values."""

    def __init__(self, model: str, seed: int) -> None:
        self.model = model
        self._seeds = itertools.count(1_000_000 * seed)

    def at(self, dims: Dims) -> Feed:
        """Returns new inputs of a size."""
        return zoo.inputs(self.model, next(self._seeds), **dims)

    def shapes(self, dims: Dims) -> Mapping[str, Sequence[int]]:
        """Returns the inputs' shapes at a size."""
        return {name: value.shape for name, value in self.at(dims).items()}


def _tell(text: str, done: Sequence[object], all_: Sequence[object]) -> None:
    if len(done) % 20 == 0 or len(done) == len(all_):
        progress.print(f"{text}, {len(done)} of {len(all_)} sizes", highlight=False)


def memory_bytes() -> int:
    """Returns this process's resident set size after a garbage collection."""
    gc.collect()
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == "Rss":
            return int(value.split()[0]) * 1024
    raise AssertionError("no Rss in /proc/self/smaps_rollup")


# -------------------------------------------------------------------------------------- clew alone


def served(compiled: clew.CompiledModel, feeds: _Feeds, dims: Dims) -> AtSize:
    """Returns the figures of the first calls at a size."""
    at = AtSize(dims, before_bytes=memory_bytes())
    builds = compiled.builds_made
    try:
        first, *again = (_seconds(compiled.run, feeds.at(dims)) for _ in range(1 + _AGAIN))
        at.first_s, at.again_s = first, statistics.median(again)
    except Exception as failure:  # a size that fails is a row
        at.failure = _told(failure)
    at.builds = compiled.builds_made - builds
    at.after_bytes = memory_bytes()
    return at


def _seconds(run: Callable[[Feed], Any], feed: Feed) -> float:
    began = time.perf_counter()
    run(feed)
    return time.perf_counter() - began


def _told(failure: Exception) -> str:
    return f"{type(failure).__name__}: {failure}".splitlines()[0]


# ---------------------------------------------------------------------------------------- in turns


def _compare(
    compiled: clew.CompiledModel, feeds: _Feeds, sizes: Sequence[AtSize], job: Mapping[str, Any]
) -> None:
    """Adds the agreement with ONNX Runtime and the times in turns."""
    threads = job["threads"]
    peer = engines()["onnxruntime"].prepare(zoo.path(job["model"]), threads, "f32").run
    for number, at in enumerate(sizes):
        if not at.failure:
            try:
                runs: dict[str, Run] = {"free": _run(compiled), "peer": peer}
                _agree(at, runs, feeds, compiled.output_names, job["model"])
                if number in job["static"]:
                    shapes = feeds.shapes(at.dims)
                    static = clew.compile(zoo.path(job["model"]), inputs=shapes, threads=threads)
                    runs["static"] = _run(static)
                    for _ in range(1 + _AGAIN):  # as many calls as the free build had
                        runs["static"](feeds.at(at.dims))
                _time(at, runs, feeds, threads)
            except Exception as failure:  # a size that fails is a row
                at.failure = _told(failure)
        _tell(f"{job['model']}: in turns", sizes[: number + 1], sizes)


def _run(compiled: clew.CompiledModel) -> Run:
    return lambda feed: list(compiled.run(feed).values())


def _agree(
    at: AtSize, runs: Mapping[str, Run], feeds: _Feeds, names: Sequence[str], model: str
) -> None:
    """Adds the differences of the outputs."""
    feed = feeds.at(at.dims)
    at.error = 0.0
    for name, ours, theirs in zip(names, runs["free"](feed), runs["peer"](feed), strict=True):
        error = relative_error(ours, theirs)
        if error > TOLERANCE and name in ROWS.get(model, frozenset()):
            at.rows = len(ours) + len(theirs)
            at.unmatched = unmatched(ours, theirs)
        elif math.isinf(error):
            raise AssertionError(f"{name}: other shapes, NaN or infinities than ONNX Runtime's")
        else:
            at.error = max(at.error, error)


def unmatched(ours: np.ndarray, theirs: np.ndarray) -> int:
    """Returns the number of rows that only one of both has, in any order."""
    largest = np.abs(np.concatenate([ours, theirs])).max(axis=0)
    off = np.abs(ours[:, None].astype(np.float64) - theirs[None])
    close = (off <= TOLERANCE * largest).all(-1)
    return int((~close.any(0)).sum() + (~close.any(1)).sum())


def _time(at: AtSize, runs: Mapping[str, Run], feeds: _Feeds, threads: int) -> None:
    """Adds the median time of each engine, and the median ratios; they run in turns, in a rotating
    order.

    A turn is one uncounted call, and as many as fit its time, each with new values.
    """
    once = _seconds(runs["free"], feeds.at(at.dims))
    count = min(max(2, int(_TURN_S / once)), _MOST_CALLS)
    times: dict[str, list[float]] = {name: [] for name in runs}
    rounds = int(_ROUNDS_S / (once * len(runs) * (1 + count)))
    for name in _order(list(runs), min(max(_ROUNDS, rounds), _MOST_ROUNDS)):
        turn = [feeds.at(at.dims) for _ in range(1 + count)]
        if threads > 1:
            time.sleep(_PAUSE_S)
        runs[name](turn[0])
        times[name].append(statistics.median(_seconds(runs[name], feed) for feed in turn[1:]))
    medians = {name: statistics.median(each) for name, each in times.items()}
    at.free_s, at.peer_s, at.static_s = medians["free"], medians["peer"], medians.get("static")
    at.peer_ratio = _ratio(times["peer"], times["free"])
    at.static_ratio = _ratio(times["static"], times["free"]) if "static" in times else None


def _ratio(times: Sequence[float], others: Sequence[float]) -> float:
    """Returns the median over rounds of a time ÷ the other one in the same round."""
    return statistics.median(a / b for a, b in zip(times, others, strict=True))


def _order(names: list[str], rounds: int) -> Iterator[str]:
    for turn in range(rounds):
        shift = turn % len(names)
        yield from names[shift:] + names[:shift]


if __name__ == "__main__":
    main()
