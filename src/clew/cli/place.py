"""`clew place`: finds by measurement which parts of a model run fastest on which backend."""

from __future__ import annotations

from typing import Annotated

import typer

from clew.backends.compile_options import CompileOptions
from clew.cli import options as opt
from clew.cli.options import Compiling, compiling, refuse_saved
from clew.cli.output import emit_json, note, progress, stdout
from clew.support.errors import InputError


@compiling
def place(
    model: opt.Model,
    seconds: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=0, help="Time to measure units; the rest is predicted."
        ),
    ] = 20.0,
    again: Annotated[
        bool, typer.Option("--again", help="Place the model even if the database has a placement.")
    ] = False,
    json: opt.Json = False,
    *,
    how: Compiling,
) -> None:
    """Find which parts of a model run fastest on which backend, and keep the result.

    Other commands use the result with --place auto.
    """
    refuse_saved(model, "placement compiles the model in several ways")
    from clew.compiling.loading import loaded  # noqa: PLC0415 - as above
    from clew.placement import place as search  # noqa: PLC0415 - it imports the compiler
    from clew.placement.placing import OPTIONS as PLACED  # noqa: PLC0415 - as above

    options = how.options
    if not options.backends:
        raise InputError(
            "I359",
            "no backend besides the CPU is named",
            hint="name backends with --backend, such as --backend onnxruntime,openvino",
        )
    with progress(f"reading {model}") as show:
        module, options = loaded(model, options)
        chosen = {k: v for k, v in options.values().items() if k in PLACED}
        found = search(
            module,
            options.backends,
            tuned=options.tuned,
            seconds=seconds,
            again=again,
            on_progress=show,
            **CompileOptions().changed(**chosen),
        )
    if json:
        emit_json(found.to_json())
        return
    stdout().print(found.measured_table())
    stdout().print()
    stdout().print(found.table())
    if found.closest:
        stdout().print()
        stdout().print(found.closest_table())
    note(f"{found.summary}{' (from the database)' if found.kept else ''}")
