"""`clew compile`: compiles a model, saves it, and lists its kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clew.cli import options as opt
from clew.cli.arguments import need_sizes
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


@compiling
def compile_(
    model: opt.Model,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="File to save to, such as model.clew."),
    ] = None,
    json: opt.Json = False,
    *,
    how: Compiling,
) -> None:
    """Compile a model, save it, and list its kernels."""
    if output is not None and output.suffix != SAVED_SUFFIX:
        raise typer.BadParameter(
            f"the name of a saved model ends in {SAVED_SUFFIX}", param_hint="-o"
        )
    compiled = compile_model(model, how)
    stored = compiled.model.stored_kernels  # the build takes the passes
    if stored is None and not has_kernels(compiled):
        need_sizes(compiled.model)
    facts = [kernel_facts(k) for k in (compiled.model.kernels if stored is None else stored)]
    regions = region_facts(compiled.model) if stored is None else []
    if output is not None:
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
