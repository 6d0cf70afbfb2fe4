"""`clew compile`: compiles a model, saves or exports it, and lists its kernels."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from clew.cli import options as opt
from clew.cli.arguments import named, need_sizes
from clew.cli.options import (
    SAVED_SUFFIX,
    Compiling,
    build_summary,
    compile_model,
    compiling,
    has_kernels,
)
from clew.cli.output import (
    emit_json,
    kernel_facts,
    kernels_table,
    note,
    region_facts,
    regions_table,
    stdout,
)
from clew.libraries import Exported, c_name


class Emit(enum.Enum):
    """What to write instead of a saved model."""

    C = "c"


@compiling
def compile_(
    model: opt.Model,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="PATH",
            help="File to save to, such as model.clew; with --emit, a folder.",
        ),
    ] = None,
    emit: Annotated[
        Emit | None,
        typer.Option(
            "--emit", metavar="c", help="Export a library with a C interface to the folder -o."
        ),
    ] = None,
    name: Annotated[
        str,
        typer.Option(
            "--name",
            metavar="NAME",
            help="With --emit, the prefix of all C names.",
            show_default="the model's file name",
        ),
    ] = "",
    weights_file: Annotated[
        bool,
        typer.Option("--weights-file", help="With --emit, write the weights to a separate file."),
    ] = False,
    state: Annotated[
        list[str],
        typer.Option(
            "--state",
            metavar="INPUT=OUTPUT",
            help="With --emit, an input that an output of the previous call feeds; repeatable.",
            show_default="those that the model itself has",
        ),
    ] = [],  # noqa: B006
    targets: Annotated[
        str,
        typer.Option(
            "--targets",
            metavar="A,B",
            help="With --emit, x86-64 targets that the library has code for; calls choose.",
            show_default="that of --target",
        ),
    ] = "",
    json: opt.Json = False,
    *,
    how: Compiling,
) -> None:
    """Compile a model, save or export it, and list its kernels."""
    if emit is not None and output is None:
        raise typer.BadParameter("--emit needs -o FOLDER", param_hint="--emit")
    if weights_file and emit is None:
        raise typer.BadParameter("--weights-file needs --emit c", param_hint="--weights-file")
    if name and emit is None:
        raise typer.BadParameter("--name needs --emit c", param_hint="--name")
    if state and emit is None:
        raise typer.BadParameter("--state needs --emit c", param_hint="--state")
    if targets and emit is None:
        raise typer.BadParameter("--targets needs --emit c", param_hint="--targets")
    if emit is None and output is not None and output.suffix != SAVED_SUFFIX:
        raise typer.BadParameter(
            f"the name of a saved model ends in {SAVED_SUFFIX}", param_hint="-o"
        )
    chosen = [name.strip() for name in targets.split(",")] if targets else []
    if chosen and "target" in how.record:
        raise typer.BadParameter("--targets is in place of --target", param_hint="--targets")
    if chosen:
        how = Compiling({**how.given, "target": chosen[-1]})
    compiled = compile_model(model, how)
    stored = compiled.model.stored_kernels  # the build takes the passes
    if stored is None and not has_kernels(compiled):
        need_sizes(compiled.model)
    facts = [kernel_facts(k) for k in (compiled.model.kernels if stored is None else stored)]
    regions = region_facts(compiled.model) if stored is None else []
    if output is not None and emit is not None:
        made = compiled.model.export_c(
            output,
            name or c_name(model.stem),
            weights_file=weights_file,
            state=named(state, "--state") if state else None,
            targets=chosen,
        )
        note(library_summary(made))
    elif output is not None:
        compiled.model.save(output)
        note(f"saved to {output}")
    if json:
        shown = {"model": str(model), "kernels": facts, "regions": regions}
        emit_json({**shown, "seconds": compiled.seconds})
    else:
        stdout().print(kernels_table(facts))
        if regions:
            stdout().print()
            stdout().print(regions_table(regions))
    note(build_summary(compiled))


def library_summary(made: Exported) -> str:
    """Returns a line about an exported library."""
    state = f", its state {made.state_bytes}" if made.state_bytes else ""
    return (
        f"exported C library {made.prefix} to {made.folder}: {made.object_bytes} bytes, of which "
        f"{made.weights_bytes} are weights; a call needs {made.workspace_bytes} bytes of workspace"
        f"{state}"
    )
