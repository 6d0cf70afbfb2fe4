"""Times models while another process keeps one core busy: `python benchmarks/company.py`.

The other process is pinned to one core and computes without pause. Engines take turns, and new
inputs come with each call. A turn in which yet other processes took much time is repeated.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from clew.bench.measure import in_turn
from harness.engines import engines
from harness.report import console
from zoo import inputs, path

_MODELS = ",".join(
    (
        *("light_squeezenet", "light_resnet50", "mobilenet_v2", "keyword_spotting"),
        *("bert_tiny", "bert_base", "gpt2", "encoder_small"),
    )
)
_PAUSE_S = 0.02  # lets another engine's spinning threads go to sleep
# The share of a core that yet other processes may take, and the least share of turns in which they
# take less. If there are fewer, the best turns count.
_MOST_FOREIGN, _KEPT = 0.08, 0.25
_TICK_NS = 10_000_000  # of the times in /proc/stat
_SEEDS = 3


@contextmanager
def company(core: int, count: int) -> Iterator[list[int]]:
    """Keeps a core busy with `count` other processes, and yields their ids."""
    spin = f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    others = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(count)]
    try:
        time.sleep(0.3 if others else 0)
        assert all(other.poll() is None for other in others), "another process ended"
        yield [other.pid for other in others]
    finally:
        for other in others:
            other.kill()
            other.wait()


def _cpu_ns(pids: Sequence[int]) -> int:
    """Returns the nanoseconds that threads of processes have run."""
    stats = [p for pid in pids for p in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(int(stat.read_text().split()[0]) for stat in stats)


def _idle_ns() -> int:
    """Returns the nanoseconds that all cores have been idle."""
    words = Path("/proc/stat").read_text().split()
    return (int(words[4]) + int(words[5])) * _TICK_NS


def _turn(run: Callable[[], Any], turn_s: float, pids: list[int]) -> tuple[float, float]:
    """Returns the milliseconds of a call, and the share of a core that other processes than those
    of `pids` took.
    """
    time.sleep(_PAUSE_S)
    run()
    cores = os.cpu_count() or 1
    idle_ns, cpu_ns, began = _idle_ns(), _cpu_ns(pids), time.perf_counter_ns()
    count, taken = 0, 0
    while taken < turn_s * 1e9 or count < 2:
        run()
        count += 1
        taken = time.perf_counter_ns() - began
    known = _idle_ns() - idle_ns + _cpu_ns(pids) - cpu_ns
    whole = time.perf_counter_ns() - began
    return taken / count / 1e6, cores - known / whole


def mean_ms(
    runs: Mapping[str, Callable[[], Any]], rounds: int, turn_s: float, others: list[int]
) -> dict[str, float]:
    """Returns the milliseconds of a call, by name: the median over turns of the mean in a turn.

    A mean, because the calls of a turn that meet the other process take many times as long.
    """
    names, pids = list(runs), [os.getpid(), *others]
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for turn in range(round(rounds / _KEPT)):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            if sum(foreign < _MOST_FOREIGN for _, foreign in found[name]) < rounds:
                took, foreign = _turn(runs[name], turn_s, pids)
                found[name].append((took, foreign))
    quiet = {
        name: sorted(turns, key=lambda turn: turn[1])[:rounds] for name, turns in found.items()
    }
    return {name: statistics.median(took for took, _ in turns) for name, turns in quiet.items()}


def _runs(model: str, wanted: list[tuple[str, int]]) -> dict[str, Callable[[], Any]]:
    known, feeds = engines(), [inputs(model, seed) for seed in range(_SEEDS)]
    runs: dict[str, Callable[[], Any]] = {}
    for engine, threads in wanted:
        run = in_turn(known[engine].prepare(path(model), threads, "f32"), feeds)
        for _ in range(4):  # the third moves weights to huge pages
            run()
        runs[f"{engine}, {threads}"] = run
    return runs


def main(
    models: Annotated[str, typer.Option(help="Models of the zoo.")] = _MODELS,
    peer: Annotated[str, typer.Option(help="Engine to compare with; empty for none.")] = (
        "onnxruntime"
    ),
    threads: Annotated[int, typer.Option(min=2)] = 2,
    core: Annotated[int, typer.Option(help="Core of the other process; -1: the last one.")] = -1,
    others: Annotated[int, typer.Option(help="Number of other processes.", min=0)] = 1,
    rounds: Annotated[int, typer.Option(help="Turns of each engine.", min=1)] = 7,
    turn: Annotated[float, typer.Option(help="Seconds of a turn.")] = 0.15,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Also write the figures to this file.")
    ] = None,
) -> None:
    """Prints the milliseconds of a call with one thread and with several, and those of a peer."""
    wanted = [("clew", 1), ("clew", threads), *([(peer, threads)] if peer else [])]
    used = sorted(os.sched_getaffinity(0))[core] if core < 0 else core
    title = f"ms per call, {others} other processes on core {used}; engine, threads"
    table = Table(title=title, title_justify="left")
    table.add_column("model")
    for engine, count in wanted:
        table.add_column(f"{engine}, {count}", justify="right")
    table.add_column(f"clew {threads} ÷ 1", justify="right")
    if peer:
        table.add_column("peer ÷ clew", justify="right")
    rows = []
    for model in models.split(","):
        runs = _runs(model, wanted)
        with company(used, others) as pids:
            found = mean_ms(runs, rounds, turn, pids)
        rows.append({"model": model, **found})
        one, several, *other = found.values()
        ratios = [several / one, *(value / several for value in other)]
        cells = [*(f"{value:.3f}" for value in found.values()), *(f"{r:.2f}" for r in ratios)]
        table.add_row(model, *cells)
    console.print(table)
    if json_file:
        json_file.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
