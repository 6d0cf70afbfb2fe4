"""`clew profile`: times of kernels, layers, operators and lines of code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from clew.cli import options as opt
from clew.cli.options import Compiling, build_summary, compiling, model_inputs, open_model
from clew.cli.output import columns, emit_json, emit_text, note, progress

if TYPE_CHECKING:
    from clew.profile.frames import By
    from clew.profile.report import Profile

_MODES = ("fused", "unfused", "both")
_BY = ("kernel", "layer", "operator", "module")
_TOP = 20
_SUFFIXES = (".trace.json", ".json", ".parquet", ".csv")


@compiling
def profile(
    model: opt.Model,
    inputs: opt.Inputs = [],  # noqa: B006 (typer takes the default from here)
    random: opt.Random = False,
    seed: opt.Seed = 0,
    mode: Annotated[
        str,
        typer.Option(
            metavar="|".join(_MODES), help="Fused as deployed, a kernel for each operator, or both."
        ),
    ] = "fused",
    by: Annotated[
        str,
        typer.Option(
            metavar="|".join(_BY),
            help="Table to show, and rows of a CSV or Parquet file.",
            show_default="kernel and layer",
        ),
    ] = "",
    top: Annotated[
        int, typer.Option(metavar="N", min=1, help="Rows to show, the longest times first.")
    ] = _TOP,
    everything: Annotated[bool, typer.Option("--all", help="Show all rows.")] = False,
    kernel: Annotated[
        str, typer.Option(metavar="NAME", help="Show one kernel's loop nest line by line.")
    ] = "",
    repeats: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Timed rounds.", show_default="as many as a second allows"
        ),
    ] = None,
    warmup: Annotated[
        int, typer.Option(metavar="N", min=0, help="Runs before the timed ones.")
    ] = 5,
    sample: Annotated[
        float,
        typer.Option(
            min=0, metavar="SECONDS", help="Time to sample fused kernels; 0: estimate their splits."
        ),
    ] = 1.0,
    roofline: Annotated[
        bool, typer.Option("--roofline/--no-roofline", help="Compare with the machine's limits.")
    ] = True,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help=f"Also write a file: {', '.join(_SUFFIXES)}."
        ),
    ] = None,
    length: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Language model: what a token costs after N tokens, by layer.",
            show_default="256 without --prompt",
        ),
    ] = None,
    prompt: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Language model: what a prompt of N tokens costs, by layer."
        ),
    ] = None,
    json: opt.Json = False,
    *,
    how: Compiling,
) -> None:
    """Profile a model's runs by kernel, layer, operator and line of code.

    With --length or --prompt, profile decode steps and prompts of a language model by layer.
    """
    _one_of(mode, _MODES, "--mode")
    if by:
        _one_of(by, _BY, "--by")
    if output is not None and not output.name.endswith(_SUFFIXES):
        raise typer.BadParameter(f"the name must end in {', '.join(_SUFFIXES)}", param_hint="-o")
    compiled = open_model(model, how)
    if length is not None or prompt is not None:
        _show_tokens(model, compiled, length or 256, prompt or 256, json)
        return
    arrays = model_inputs(compiled.model, inputs, random, seed, compiled.shapes)
    with progress("running") as say:
        found = compiled.model.profile(
            arrays,
            repeats=repeats,
            warmup=warmup,
            # One second is the default. It accepts estimates if sampling is not possible.
            sample=sample if sample not in (0.0, 1.0) else bool(sample),
            mode=mode,
            roofline=roofline,
            on_progress=say,
        )
    if output is not None:
        _write(found, output, cast("By", by) if by else None)
        note(f"written to {output}")
    if json:
        emit_json({"model": str(model), **found.to_json()})
    elif kernel:
        emit_text(found.annotated(kernel, width=columns()))
    else:
        emit_text(found.table(by or None, top=None if everything else top, width=columns()))
    note(build_summary(compiled))


def _show_tokens(path: Path, compiled: Any, length: int, prompt: int, json: bool) -> None:
    from clew.generation.language_model import language_model  # noqa: PLC0415 - few models need it

    with progress("running"):
        found = language_model(compiled.model).costs(length, prompt)
    if json:
        emit_json({"model": str(path), **found.to_json()})
    else:
        emit_text(found.table())
    note(build_summary(compiled))


def _one_of(value: str, known: tuple[str, ...], option: str) -> None:
    if value not in known:
        raise typer.BadParameter(f"one of {', '.join(known)}", param_hint=option)


def _write(found: Profile, path: Path, by: By | None) -> None:
    if path.name.endswith(".trace.json"):
        found.to_chrome_trace(path)
    elif path.suffix == ".json":
        found.save(path)
    elif path.suffix == ".parquet":
        found.to_parquet(path, by=by)
    else:
        found.to_csv(path, by=by)
