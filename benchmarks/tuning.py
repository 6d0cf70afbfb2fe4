"""Compares untuned and tuned models: `python benchmarks/tuning.py --records DIR --minutes 10`.

Each model is compiled in three ways, which take turns: with the default costs of an unknown
machine, with the costs measured on this one (`clew machine`), and with the default costs and the
records of a search. The searches know the default costs only. Each model has a file of records of
its own in the folder, so that it gains from no other; `--minutes 0` compares only.

`--json FILE` keeps the figures; models that are not measured now keep theirs from an earlier run.
"""

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

import clew
import zoo
from clew.machine.kept import is_kept, kept_costs
from clew.machine.measure import measured_costs
from clew.machine.target import Target, describe_host
from clew.records import Store
from harness.child import run_child
from harness.report import circumstances, console, fill, markdown, progress

_MODELS = "light_resnet50,bert_base,segformer_b0,mobilenet_v2"
_TURNS = 12


@dataclass(frozen=True)
class Comparison:
    """Medians of one model in milliseconds, those of the ratios default/tuned (`gain`) and
    measured/tuned (`of_measured`) in single processes, and what the searches took.
    """

    model: str
    threads: int
    default_ms: float
    measured_ms: float
    tuned_ms: float
    gain: float
    of_measured: float
    trials: int
    minutes: float


def search(name: str, records: Path, minutes: float, threads: int, unknown: Target) -> None:
    """Searches for some minutes."""
    clew.tune(
        zoo.path(name),
        minutes=minutes,
        database=records,
        threads=threads,
        target=unknown,
        on_progress=lambda text: progress.print(f"{name}: {text}", highlight=False),
    )


def searched(records: Path, name: str, threads: int) -> tuple[int, float]:
    """Returns the number of trials in a file of records and the minutes of a model's sessions."""
    if not records.exists():
        return 0, 0.0
    machine = describe_host().identity
    with Store(records, write=False) as store:
        trials = len(store.trials(machine, threads))
        sessions = store.sessions(zoo.path(name).stem, machine, threads)
        return trials, sum(session.seconds for session in sessions) / 60


def compare(
    name: str, records: Path, rounds: int, threads: int, costs: Mapping[str, float]
) -> Comparison:
    """Returns the comparison of a model's three builds: medians over several processes, in each of
    which they take turns. Where the memory of a build lies changes its times by some percent.
    """
    tuned = str(records.resolve()) if records.exists() else ""
    builds = [("default", {}, ""), ("measured", costs, ""), ("tuned", {}, tuned)]
    taken: list[dict[str, float]] = []
    for turn in range(rounds):
        shift = turn % len(builds)
        taken.append(_times(name, builds[shift:] + builds[:shift], threads))

    def middle(pick: Callable[[Mapping[str, float]], float]) -> float:
        return statistics.median(pick(one) for one in taken)

    trials, minutes = searched(records, name, threads)
    return Comparison(
        name,
        threads,
        middle(lambda one: one["default"]) / 1e6,
        middle(lambda one: one["measured"]) / 1e6,
        middle(lambda one: one["tuned"]) / 1e6,
        middle(lambda one: one["default"] / one["tuned"]),
        middle(lambda one: one["measured"] / one["tuned"]),
        trials,
        minutes,
    )


def _times(name: str, builds: Sequence[Any], threads: int) -> dict[str, float]:
    """Returns the nanoseconds of calls by build, of turns in a new process."""
    found: dict[str, float] = run_child(
        "tuning_child", name, json.dumps(builds), str(threads), str(_TURNS)
    )
    return found


def mean(values: Sequence[float]) -> float:
    """Returns the geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values))


COLUMNS = ("model", "default ms", "measured ms", "tuned ms", "gain", "measured/tuned", "trials")


def rows(found: Sequence[Comparison]) -> list[list[str]]:
    """Returns the lines of the table, geometric means last."""
    lines = [
        [
            one.model,
            f"{one.default_ms:.2f}",
            f"{one.measured_ms:.2f}",
            f"{one.tuned_ms:.2f}",
            f"{one.gain:.2f}",
            f"{one.of_measured:.2f}",
            str(one.trials),
        ]
        for one in found
    ]
    means = [mean([one.gain for one in found]), mean([one.of_measured for one in found])]
    return [*lines, ["geometric mean", "", "", "", *(f"{value:.2f}" for value in means), ""]]


def section(found: Sequence[Comparison]) -> str:
    """Returns the table with its circumstances, for a document."""
    threads = sorted({one.threads for one in found})
    low, high = (f"{pick(one.minutes for one in found):.0f}" for pick in (min, max))
    span = low if low == high else f"{low} to {high}"
    return (
        f"{circumstances(describe_host())} Threads: {', '.join(map(str, threads))}. Each model was "
        f"searched for {span} minutes. A gain above 1 says that the tuned model is faster.\n\n"
        + markdown(COLUMNS, rows(found), numbers=1)
    )


def earlier(file: Path | None) -> dict[tuple[str, int], Comparison]:
    """Returns the comparisons in a file, by model and threads."""
    if file is None or not file.exists():
        return {}
    known: Sequence[Mapping[str, Any]] = json.loads(file.read_text())
    return {(one["model"], one["threads"]): Comparison(**one) for one in known}


def main(
    records: Annotated[Path, typer.Option(help="A folder for the files of records.")],
    models: Annotated[str, typer.Option(help="Names of the zoo's models.")] = _MODELS,
    minutes: Annotated[float, typer.Option(help="Minutes of search; 0 for none.", min=0)] = 10.0,
    threads: Annotated[int, typer.Option(min=1)] = 1,
    rounds: Annotated[int, typer.Option(help="Processes that compare; 0 for none.")] = 5,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Keep the figures in this file.")
    ] = None,
    document: Annotated[
        Path | None, typer.Option("--markdown", help="Also put the table into this document.")
    ] = None,
) -> None:
    """Searches, then prints how the models compare."""
    unknown = describe_host()
    kept = is_kept(unknown.identity)
    costs = (kept_costs(unknown.identity) if kept else measured_costs()).to_record()
    records.mkdir(parents=True, exist_ok=True)
    found = earlier(json_file)
    for name in models.split(","):
        file = records / f"{name}.db"
        if minutes:
            search(name, file, minutes, threads, unknown)
        if rounds:
            found[name, threads] = compare(name, file, rounds, threads, costs)
        if json_file is not None:
            json_file.write_text(json.dumps([asdict(c) for c in found.values()], indent=1) + "\n")
    if not found:
        return
    table = Table(title="untuned and tuned, medians", title_justify="left")
    for number, column in enumerate(COLUMNS):
        table.add_column(column, justify="right" if number else "left")
    for row in rows(list(found.values())):
        table.add_row(*row)
    console.print(table)
    if document is not None:
        fill(document, "tuning", section(list(found.values())))


if __name__ == "__main__":
    typer.run(main)
