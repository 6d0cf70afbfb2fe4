"""`python -m fuzz`: run, replay failures, reduce them, show the coverage."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from clew.support.errors import ClewError
from fuzz import engines
from fuzz import free as free_axes
from fuzz import sizes as sized
from fuzz.case import Case, case_of
from fuzz.check import REFUSED, Outcome, check
from fuzz.coverage import report
from fuzz.files import cases_of
from fuzz.locate import first_differences
from fuzz.runner import run as run_for
from fuzz.shrink import died, shrunk
from fuzz.worker import work as work_through

app = typer.Typer(
    add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__
)
Folder = Annotated[Path, typer.Argument(help="folder of a failure")]


@app.command()
def run(
    minutes: float = 1.0,
    workers: int = 1,
    folder: Path = Path(".cache/fuzz"),
    first: Annotated[int | None, typer.Option(help="first seed; continues by default")] = None,
    graphs: Annotated[int | None, typer.Option(help="stop after this many")] = None,
    small: Annotated[bool, typer.Option(help="look for smaller cases of failures")] = True,
) -> None:
    """Run cases; failures go to FOLDER/failures, counts to FOLDER/summary.json."""
    counts = run_for(folder, minutes * 60, workers, first, graphs, small)
    for sort, seeds in counts.failures.items():
        print(f"{len(seeds):5} {sort}: seeds {', '.join(map(str, seeds[:6]))}")
    raise typer.Exit(1 if counts.failed else 0)


@app.command()
def work(first: int, count: int, at: Path) -> None:
    """Check a range of seeds (what `run` starts)."""
    work_through(first, count, at)


@app.command()
def seed(number: int, save: Path | None = None) -> None:
    """Check the case of one seed; --save writes its folder."""
    engines.quiet()
    case = case_of(number)
    if save is not None:
        case.save(save)
    print(case.plan, *case.operators)
    _tell(check(case, lambda phase: print(f"  {phase}", file=sys.stderr)))


@app.command()
def again(folder: Folder) -> None:
    """Check a saved case: the reduced one, if there is one."""
    engines.quiet()
    small = folder / "small"
    case = Case.load(small if small.exists() else folder)
    print(case.plan, *(n.op_type for n in case.model.graph.node))
    _tell(check(case, lambda phase: print(f"  {phase}", file=sys.stderr)))


@app.command()
def where(folder: Folder) -> None:
    """Say at which node each engine first disagrees with clew's interpreter."""
    engines.quiet()
    try:
        for line in first_differences(Case.load(folder)):
            print(line)
    except ClewError as error:
        print(f"clew rejects it: {error}")


@app.command()
def files(
    folder: Annotated[Path, typer.Argument(help="models (`*.onnx`), such as NNSmith's")],
    plans: Annotated[int, typer.Option(help="ways to compile each")] = 3,
    failures: Path = Path(".cache/fuzz/files"),
) -> None:
    """Check models that others wrote; failures go to FAILURES/NAME-PLAN."""
    engines.quiet()
    counts: Counter[str] = Counter()
    for number, path in enumerate(sorted(folder.glob("*.onnx"))):
        try:
            cases = list(cases_of(path, number, plans))
        except ValueError as error:
            print(error)
            counts["left out"] += plans
            continue
        for n, case in enumerate(cases):
            outcome = check(case)
            if outcome.kind == "rejected" and not engines.runs(case):
                outcome = Outcome("refused by all")
            counts[outcome.kind] += 1
            if outcome.failed:
                at = failures / f"{path.stem}-{n}"
                case.save(at)
                (at / "what.txt").write_text(f"{outcome.kind}: {outcome.what}\n")
                print(f"{path.name} ({at}): {outcome.kind}: {outcome.what[:200]}")
    print(", ".join(f"{count} {kind}" for kind, count in counts.most_common()))
    failed = sum(c for kind, c in counts.items() if Outcome(kind, "").failed)
    raise typer.Exit(1 if failed else 0)


@app.command()
def free(
    patterns: Annotated[list[str] | None, typer.Argument(help="prefixes of models' names")] = None,
    ways: Annotated[int, typer.Option(help="variants of each model, if it has more")] = 3,
    minutes: Annotated[float, typer.Option(help="stop after this many")] = 60.0,
    part: Annotated[str, typer.Option(help="K/N: every N-th model, from the K-th on")] = "0/1",
    failures: Path = Path(".cache/fuzz/free"),
) -> None:
    """Free axes of models' inputs, and run them with several sizes; failures go to FAILURES."""
    engines.quiet()
    counts: Counter[str] = Counter()
    start, step = map(int, part.split("/"))
    ends = time.monotonic() + minutes * 60
    for case in islice(free_axes.models(patterns or ()), start, None, step):
        if time.monotonic() > ends:
            break
        chosen = list(free_axes.variants(case, ways))
        if not chosen or not free_axes.accepted(case):
            counts["models left out"] += 1
            continue
        counts["models"] += 1
        counts["variants"] += len(chosen)
        for variant in chosen:
            for kind, what in free_axes.checked(variant):
                counts[kind] += 1
                if kind in free_axes.FAILURES:
                    at = free_axes.save(variant, f"{kind}: {what}", failures)
                    print(f"{variant.label} ({at}): {kind}: {what[:300]}", flush=True)
    print(", ".join(f"{count} {kind}" for kind, count in counts.most_common()))
    raise typer.Exit(1 if any(counts[k] for k in free_axes.FAILURES) else 0)


@app.command()
def torch(
    minutes: float = 1.0,
    first: Annotated[int, typer.Option(help="first seed")] = 0,
    programs: Annotated[int, typer.Option(help="stop after this many")] = 1_000_000,
) -> None:
    """Run torch programs that write in place, compiled and in eager."""
    from fuzz import in_place  # noqa: PLC0415 - torch is optional

    engines.quiet()
    counts: Counter[str] = Counter()
    ends = time.monotonic() + minutes * 60
    for number in range(first, first + programs):
        if time.monotonic() > ends:
            break
        outcome = in_place.check(number)
        counts[outcome.kind] += 1
        if outcome.failed:
            print(f"seed {number}: {outcome.kind}: {outcome.what}")
            print(in_place.smaller(number), flush=True)
    print(", ".join(f"{count} {kind}" for kind, count in counts.most_common()))
    raise typer.Exit(1 if any(Outcome(kind).failed for kind in counts) else 0)


@app.command()
def tflite(
    minutes: float = 1.0,
    first: Annotated[int, typer.Option(help="first seed")] = 0,
    graphs: Annotated[int, typer.Option(help="stop after this many")] = 1_000_000,
    failures: Path = Path(".cache/fuzz/tflite"),
) -> None:
    """Draw TFLite graphs, and compare clew with LiteRT; the files of failures go to FAILURES."""
    from fuzz.tflite.check import check as compared  # noqa: PLC0415 - LiteRT is optional

    engines.quiet()
    counts: Counter[str] = Counter()
    ends = time.monotonic() + minutes * 60
    for number in range(first, first + graphs):
        if time.monotonic() > ends:
            break
        case, outcome = compared(number)
        counts[outcome.kind] += 1
        if outcome.failed:
            print(f"seed {number}: {outcome.kind}: {outcome.what}", flush=True)
            failures.mkdir(parents=True, exist_ok=True)
            if case is not None:
                (failures / f"{number}.tflite").write_bytes(case.data)
    print(", ".join(f"{count} {kind}" for kind, count in counts.most_common()))
    raise typer.Exit(1 if any(Outcome(kind).failed for kind in counts) else 0)


@app.command()
def sizes(
    minutes: float = 1.0,
    first: Annotated[int, typer.Option(help="first seed")] = 0,
    models: Annotated[int, typer.Option(help="stop after this many")] = 1_000_000,
    failures: Path = Path(".cache/fuzz/sizes"),
) -> None:
    """Run models whose sizes data decide, each with inputs of several sizes; failures go to
    FAILURES/SEED.
    """
    engines.quiet()
    counts: Counter[str] = Counter()
    for number, outcome in sized.run(first, models, minutes):
        counts[outcome.kind] += 1
        if outcome.failed or outcome.kind == REFUSED:
            sized.save(number, failures / str(number))
            print(f"seed {number}: {outcome.kind}: {outcome.what}", flush=True)
    print(", ".join(f"{count} {kind}" for kind, count in counts.most_common()))
    raise typer.Exit(1 if any(Outcome(kind).failed for kind in counts) else 0)


@app.command()
def shrink(folder: Folder, seconds: float = 40.0) -> None:
    """Make a failure small, into FOLDER/small."""
    os.environ.setdefault("CLEW_COMPILE_JOBS", "1")
    engines.quiet()
    number = Case.load(folder).seed
    assert number is not None, "only what came from a seed"
    case = case_of(number)
    text = (folder / "what.txt").read_text() if (folder / "what.txt").exists() else ""
    forked = text.startswith(("crash", "hang"))
    outcome = died(case) if forked else check(case)
    if not outcome.failed:
        print("it does not fail")
        return
    small = shrunk(case, outcome, seconds, forked)
    small.save(folder / "small")
    print(small.plan, *(n.op_type for n in small.model.graph.node))
    if not forked:
        found = check(small)
        (folder / "small" / "what.txt").write_text(f"{found.kind}: {found.what}\n")
        _tell(found)


@app.command()
def coverage() -> None:
    """Say which operators are drawn, and why others are not."""
    print(report())


def _tell(outcome: Outcome) -> None:
    print(f"{outcome.kind}: {outcome.what}" if outcome.what else outcome.kind)


if __name__ == "__main__":
    app()
