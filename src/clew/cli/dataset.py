"""`clew dataset`: measures kernels of models and of random networks into a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from clew.cli import options as opt
from clew.cli.options import Compiling, compiling
from clew.cli.output import emit_json, note, progress, stdout
from clew.support.settings import usable_cpus
from clew.support.tables import table

_PRECISIONS = ("f32", "bf16", "f16", "auto")
_FUSES = ("auto", "none")


@compiling
def dataset(
    models: Annotated[
        list[Path] | None,
        typer.Argument(metavar="MODEL", help="Models to measure first.", show_default=False),
    ] = None,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Table to create or extend, such as table.parquet.",
        ),
    ] = Path("table.parquet"),
    networks: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="Number of random networks.",
            show_default="no limit; 0 with models",
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(metavar="X", min=0, help="Stop after this time.", show_default="no limit"),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of the first network.")] = 0,
    threads: Annotated[
        str, typer.Option(metavar="1,2", help="Thread counts.", show_default="one, and all CPUs")
    ] = "",
    precision: Annotated[
        str, typer.Option(metavar="f32,bf16", help="Precision of products.")
    ] = "f32",
    fuse: Annotated[
        str,
        typer.Option(
            metavar="auto,none", help="Fused as deployed, one operator per kernel, or both."
        ),
    ] = "auto",
    scheduler: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Dask scheduler whose workers measure, such as tcp://host:8786.",
            show_default="this machine",
        ),
    ] = None,
    json: opt.Json = False,
    *,
    how: Compiling,
) -> None:
    """Measure kernels of models and of random networks into a Parquet table.

    Measurements that the table already has are skipped, so you may stop it (Ctrl-C) and run it
    again.
    """
    from clew.predict.dataset import Wanted, collect  # noqa: PLC0415 - it imports the compiler
    from clew.runner import runner_at  # noqa: PLC0415

    counts = _counts(threads)
    wanted = Wanted(
        tuple(models or ()),
        networks,
        seed,
        counts,
        _chosen(precision, _PRECISIONS, "--precision"),
        _chosen(fuse, _FUSES, "--fuse"),
        minutes,
        options=how.options,
    )
    stopped = False
    with progress("measuring the machine") as say:
        try:
            with runner_at(scheduler) as runner:
                result = collect(output, wanted, say=say, note=note, runner=runner)
        except KeyboardInterrupt:
            stopped = True
    if stopped:
        note(f"stopped; {output} has all finished networks")
        raise typer.Exit(0)
    if result.unsteady:
        note(
            f"other programs disturbed {result.unsteady} measurements, which are marked in the "
            "column `steady`: measure on an idle machine"
        )
    if json:
        emit_json(
            {
                "table": str(output),
                "rows": result.rows,
                "networks": result.networks,
                "had_already": result.skipped,
                "failed": result.failed,
                "disturbed": result.unsteady,
            }
        )
        return
    made = table("table", "rows added", "networks", "skipped", "failed",
                 right=("rows added", "networks", "skipped", "failed"))  # fmt: skip
    made.add_row(
        Text(str(output)),
        str(result.rows),
        str(result.networks),
        str(result.skipped),
        str(len(result.failed)),
    )
    stdout().print(made)


def _counts(text: str) -> tuple[int, ...]:
    """Returns thread counts; the default is one and the number of CPUs."""
    words = text.split(",") if text else list(dict.fromkeys(["1", str(usable_cpus())]))
    if not all(word.strip().isdecimal() and int(word) for word in words):
        raise typer.BadParameter(
            f"{text!r} is not a list of numbers such as 1,2", param_hint="--threads"
        )
    return tuple(int(word) for word in words)


def _chosen(text: str, known: tuple[str, ...], option: str) -> tuple[str, ...]:
    words = tuple(word.strip() for word in text.split(","))
    for word in words:
        if word not in known:
            raise typer.BadParameter(
                f"{word!r} is not one of {', '.join(known)}", param_hint=option
            )
    return words
