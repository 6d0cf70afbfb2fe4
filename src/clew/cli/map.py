"""`clew map`: runs a model over Parquet files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clew.cli import options as opt
from clew.cli.arguments import named
from clew.cli.options import Compiling, compiling, listed
from clew.cli.output import emit_json, note, progress


@compiling
def map_(
    model: opt.Model,
    data: Annotated[
        list[Path],
        typer.Argument(metavar="DATA", help="Parquet files, in order.", show_default=False),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FOLDER", help="Folder for the results.", show_default=False
        ),
    ],
    columns: Annotated[
        list[str],
        typer.Option(
            "--input",
            "-i",
            metavar="NAME=COLUMN",
            help="Column of an input, if its name differs; repeatable.",
        ),
    ] = [],  # noqa: B006 (typer takes the default from here)
    text: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Column of texts, which the model's tokenizer makes inputs of.",
            show_default=False,
        ),
    ] = None,
    outputs: Annotated[
        list[str],
        typer.Option(metavar="NAME", help="Outputs to write; repeatable.", show_default="all"),
    ] = [],  # noqa: B006
    keep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN",
            help="Columns to copy to the results; repeatable.",
            show_default="those that are no inputs",
        ),
    ] = None,
    batch: Annotated[
        int, typer.Option(metavar="N", min=1, help="Rows in a call, if the model allows.")
    ] = 32,
    part_rows: Annotated[
        int, typer.Option(metavar="N", min=1, help="Most rows in a file of results.")
    ] = 8192,
    scheduler: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Dask scheduler whose workers run the model, such as tcp://host:8786.",
            show_default="this process",
        ),
    ] = None,
    json: opt.Json = False,
    *,
    how: Compiling,
) -> None:
    """Run a model on each row of Parquet files, and write the results as Parquet files.

    A result appears only when it is complete: stop the command (Ctrl-C) at any time, and start it
    again to continue.
    """
    from clew.mapping import map_files  # noqa: PLC0415 - it imports the compiler

    stopped = False
    with progress(f"reading {model}") as say:
        try:
            report = map_files(
                model,
                data,
                output,
                columns=named(columns, "--input"),
                text=text,
                outputs=listed(outputs),
                keep=None if keep is None else listed(keep),
                batch=batch,
                part_rows=part_rows,
                scheduler=scheduler,
                options=how.options,
                say=say,
            )
        except KeyboardInterrupt:
            stopped = True
    if stopped:
        note(f"stopped; {output} has all finished parts, and the same command continues")
        raise typer.Exit(0)
    if json:
        emit_json(
            {
                "output": str(report.output),
                "parts": report.parts,
                "rows": report.rows,
                "new_rows": report.new_rows,
                "seconds": report.seconds,
            }
        )
        return
    speed = f", {report.rows_per_second:.0f} rows/s" if report.new_rows else ""
    print(f"{report.rows} rows in {report.parts} parts in {report.output}")
    note(f"{report.new_rows} rows in {report.seconds:.1f} s{speed}")
