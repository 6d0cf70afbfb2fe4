"""`clew tune`: searches the choices of a model's kernels by measurement."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from clew.backends.compile_options import AUTO
from clew.cli import options as opt
from clew.cli.options import Compiling, compiling, refuse_saved
from clew.cli.output import emit_json, note, progress, stderr, stdout
from clew.records import Store, default_path
from clew.records.exchange import export_records, import_records

if TYPE_CHECKING:
    from clew.tuning import TuneReport

_NOTE_EVERY_S: Final = 15.0


@compiling
def tune(
    model: Annotated[
        Path | None, typer.Argument(metavar="MODEL", help="The model's file.", show_default=False)
    ] = None,
    minutes: Annotated[float, typer.Option(metavar="X", help="Stop after this time.")] = 10.0,
    trials: Annotated[
        int | None,
        typer.Option(metavar="N", help="Stop after this many trials.", show_default="no limit"),
    ] = None,
    database: Annotated[
        Path | None,
        typer.Option(
            "--database",
            metavar="FILE",
            help="File of records to add to.",
            show_default="the one that compiling uses",
        ),
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Dask scheduler whose workers measure, such as tcp://host:8786.",
            show_default="this machine",
        ),
    ] = None,
    report: Annotated[
        bool,
        typer.Option("--report", help="Only show the gain of each layer so far, and its reason."),
    ] = False,
    export: Annotated[
        Path | None,
        typer.Option("--export", metavar="FILE", help="Write all records as JSON lines."),
    ] = None,
    import_: Annotated[
        Path | None,
        typer.Option("--import", metavar="FILE", help="Add records that --export wrote."),
    ] = None,
    seed: opt.Seed = 0,
    json: opt.Json = False,
    *,
    how: Compiling,
) -> None:
    """Search the choices of a model's kernels by measurement, and keep the best.

    Compiling applies them from then on. Stop at any time (Ctrl-C); the next run continues.
    """
    path = database or default_path()
    if export is not None or import_ is not None:
        _exchange(path, export, import_, json)
        return
    if model is None:
        raise typer.BadParameter("give a model, or --export or --import", param_hint="MODEL")
    refuse_saved(model, "tuning compiles the model many times")
    from clew.tuning import tune as search  # noqa: PLC0415 - it imports the compiler
    from clew.tuning import tune_report  # noqa: PLC0415

    options = how.options
    given = options.changed(tuned=AUTO)
    if report:
        found = tune_report(model, database=path, **given)
    else:
        with progress(f"reading {model}") as show:
            say = _saying(show)
            found = search(
                model,
                minutes=minutes,
                trials=trials,
                database=path,
                scheduler=scheduler,
                seed=seed,
                on_progress=say,
                **given,
            )
    if json:
        emit_json(found.to_json())
    else:
        _show(found)


def _saying(show: Callable[[str], None]) -> Callable[[str], None]:
    """Returns a function that shows progress: on a terminal as it comes, elsewhere as lines, a few
    a minute.
    """
    if stderr().is_terminal:
        return show
    last = -_NOTE_EVERY_S

    def say(text: str) -> None:
        nonlocal last
        if time.monotonic() - last >= _NOTE_EVERY_S:
            last = time.monotonic()
            note(text)

    return say


def _exchange(path: Path, export: Path | None, import_: Path | None, json: bool) -> None:
    """Exports and imports records."""
    done: dict[str, Any] = {"database": str(path)}
    with Store(path) as store:
        if import_ is not None:
            done["imported"] = import_records(store, import_)
            note(f"{done['imported']} new records from {import_}")
        if export is not None:
            done["exported"] = export_records(store, export)
            note(f"{done['exported']} records written to {export}")
    if json:
        emit_json(done)


def _show(found: TuneReport) -> None:
    from clew.tuning.report import session_lines  # noqa: PLC0415

    if found.tally is not None:
        for line in session_lines(found.tally):
            note(line)
    console = stdout()
    if found.kernels:
        console.print(found.table())
    for line in found.notes():
        console.print(line)
