"""`clew quantize`: a model whose products compute on integers, or whose weights are integers."""

from __future__ import annotations

import json as js
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

import clew
from clew.cli import options as opt
from clew.cli.help import Panel
from clew.cli.options import Compiling, compiling, listed, refuse_saved
from clew.cli.output import emit_json, note, plain, progress, stdout
from clew.support.errors import InputError
from clew.support.files import read_json_file, reason_of
from clew.support.writing import write_text

if TYPE_CHECKING:
    from clew.quantization import Quantized, Scheme

_PANEL = Panel("Scheme", "--weight-only", "--activations", "--weights", "--group", "--rounding")


def _field(metavar: str, help: str) -> Any:
    return typer.Option(metavar=metavar, help=help, rich_help_panel=_PANEL, show_default=False)


@compiling
def quantize(
    model: opt.Model,
    calibration: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER|FILE.npz|drawn",
            help="Inputs: a folder with an .npz file per call, a file with samples along the first "
            "axis, or drawn.",
            show_default="none",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="File to write: int8.onnx, or clew text (.txt)."
        ),
    ] = None,
    form: Annotated[
        str,
        typer.Option(
            metavar="qdq|matmulnbits",
            help="Form of weights in groups in ONNX files: DequantizeLinear of opset 21, or ONNX "
            "Runtime's MatMulNBits.",
        ),
    ] = "qdq",
    keep: Annotated[
        list[str],
        typer.Option(metavar="LAYER,...", help="Layers or globs to keep in f32; repeatable."),
    ] = [],  # noqa: B006 (typer takes the default from here)
    keep_first: Annotated[
        int, typer.Option(metavar="N", min=0, help="First layers to keep in f32.")
    ] = 0,
    keep_last: Annotated[
        int, typer.Option(metavar="N", min=0, help="Last layers to keep in f32.")
    ] = 0,
    max_error: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="Find the smallest set of layers to keep in f32 for this relative error.",
        ),
    ] = None,
    sensitivities: Annotated[
        bool, typer.Option("--sensitivities", help="Measure the error of each layer alone.")
    ] = False,
    logits: Annotated[
        str | None,
        typer.Option(
            metavar="OUTPUT",
            help="Output of logits; --sensitivities measures its divergence.",
            show_default="logits",
        ),
    ] = None,
    times: Annotated[
        bool,
        typer.Option("--times", help="Profile each layer in f32, bf16 and integers."),
    ] = False,
    frontier: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.svg",
            help="Draw error against time as layers stay in f32; with --sensitivities or "
            "--max-error.",
        ),
    ] = None,
    scheme: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="Fields of the scheme.", rich_help_panel=_PANEL),
    ] = None,
    weight_only: Annotated[
        bool,
        typer.Option(
            "--weight-only",
            help="Quantize weights and leave activations in floats; needs no data. Weights are u4 "
            "in groups of 32 unless --weights or --group is given.",
            rich_help_panel=_PANEL,
        ),
    ] = False,
    activations: Annotated[
        str | None, _field("u8|i8|dynamic|float", "Dtype of activations.")
    ] = None,
    weights: Annotated[
        str | None, _field("i8|u8|i4|u4", "Dtype of weights; 4 bits with --weight-only.")
    ] = None,
    group: Annotated[
        int | None,
        _field("N", "Input channels per scale, with --weight-only; 0 for all."),
    ] = None,
    rounding: Annotated[
        str | None,
        _field("nearest|gptq", "How weights are rounded, with --weight-only."),
    ] = None,
    granularity: Annotated[
        str | None, _field("channel|tensor", "One scale per output channel, or per weight.")
    ] = None,
    range: Annotated[
        str | None,
        _field("mse|minmax|percentile|entropy", "How the range of activations is chosen."),
    ] = None,
    weight_range: Annotated[
        str | None, _field("mse|minmax", "How the range of weights is chosen.")
    ] = None,
    percentile: Annotated[
        float | None, _field("X", "Share of activations within the range, for percentile.")
    ] = None,
    weight_bits: Annotated[int | None, _field("4..8", "Bits of weights that are used.")] = None,
    scales: Annotated[
        str | None,
        _field("free|power_of_two", "Any scales, or powers of two and no zero points."),
    ] = None,
    sums: Annotated[str | None, _field("integer|float", "Operands of residual additions.")] = None,
    bias_correction: Annotated[
        bool | None,
        typer.Option(
            "--bias-correction/--no-bias-correction",
            help="Remove the mean error of each output channel, or do not.",
            rich_help_panel=_PANEL,
            show_default=False,
        ),
    ] = None,
    migration: Annotated[
        bool | None,
        typer.Option(
            "--migration/--no-migration",
            help="Move large channels of activations into weights where that helps (SmoothQuant; "
            "AWQ with --weight-only), or do not.",
            rich_help_panel=_PANEL,
            show_default=False,
        ),
    ] = None,
    recipe: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Apply the decisions that --save-recipe wrote."),
    ] = None,
    save_recipe: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the decisions as JSON.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Write the report as JSON.")
    ] = None,
    json: opt.Json = False,
    *,
    how: Compiling,
) -> None:
    """Quantize the products of a model to 8-bit integers by calibration data, or only its weights,
    to 8 or 4 bits.
    """
    refuse_saved(model, "quantization starts from floats")
    changes = {
        "activations": activations,
        "weights": weights,
        "group": group,
        "rounding": rounding,
        "granularity": granularity,
        "range": range,
        "weight_range": weight_range,
        "percentile": percentile,
        "weight_bits": weight_bits,
        "scales": scales,
        "sums": sums,
        "bias_correction": bias_correction,
        "migration": migration,
    }
    given = {k: v for k, v in changes.items() if v is not None}
    wanted = _scheme(scheme, recipe, given, weight_only=weight_only)
    kept: list[Any] = list(listed(keep))
    kept += [clew.quantization.Where(first=keep_first)] if keep_first else []
    kept += [clew.quantization.Where(last=keep_last)] if keep_last else []
    options = how.options
    with progress(f"reading {model}") as say:
        from clew.compiling.loading import loaded_or_deferred  # noqa: PLC0415 - a fast start
        from clew.frontends.quantized import check_form  # noqa: PLC0415

        check_form(form)
        module, rest = loaded_or_deferred(model, options)
        found = clew.quantize(
            module,
            calibration,
            scheme=wanted,
            keep=kept,
            max_error=max_error,
            recipe=recipe,
            sensitivities=sensitivities,
            logits=logits,
            on_progress=say,
            **rest,
        )
        if times:
            found = found.timed(on_progress=say, **rest)
    picture = None if frontier is None else (frontier, found.frontier_svg())
    _write(found, model, output, form, save_recipe, report, picture)
    if json:
        emit_json({"model": str(model), **found.to_json()})
    else:
        _show(found)


def _scheme(
    file: Path | None, recipe: Path | None, changes: dict[str, Any], *, weight_only: bool
) -> Scheme | None:
    """Returns the scheme that the options ask for; None if they say nothing.

    Errors: I390 for fields, I405 for a file that cannot be read.
    """
    if file is None and not changes and not weight_only:
        return None
    from clew.quantization.scheme import (  # noqa: PLC0415 - it loads the compiler
        scheme_of_json,
        scheme_to_json,
    )

    given: dict[str, Any] = {}
    if recipe is not None:
        given = dict(clew.quantization.Recipe.load(recipe).to_json()["scheme"])
    if weight_only:
        given |= scheme_to_json(clew.quantization.Scheme.weight_only())
    if file is not None:
        try:
            read = read_json_file(file)
        except (OSError, ValueError) as error:
            raise InputError("I405", f"cannot read the scheme {file}: {reason_of(error)}") from None
        if not isinstance(read, dict):
            known = ", ".join(f.name for f in fields(clew.quantization.Scheme))
            raise InputError("I405", f"{file} is no JSON object", hint=f"its fields are {known}")
        given |= read
    return scheme_of_json({**given, **changes})


def _write(
    found: Quantized,
    model: Path,
    output: Path | None,
    form: str,
    recipe: Path | None,
    report: Path | None,
    picture: tuple[Path, str] | None,
) -> None:
    """Writes the files. Errors: I063 for one that cannot be written, and those of saving."""
    document = js.dumps(plain({"model": str(model), **found.to_json()}), indent=2)
    written: list[tuple[Path | None, Any]] = [
        (output, lambda path: found.save(path, source=model, form=form)),
        (recipe, found.recipe.save),
        (report, lambda path: write_text(path, document + "\n")),
    ]
    if picture is not None:
        written.append((picture[0], lambda path: write_text(path, picture[1])))
    for path, write in written:
        if path is None:
            continue
        try:
            write(path)
        except OSError as error:
            raise InputError("I063", f"cannot write to {str(path)!r}: {reason_of(error)}") from None
        note(f"written to {path}")


def _show(found: Quantized) -> None:
    console = stdout()
    console.print(found.table())
    for line in found.notes():
        console.print(Text(line))
