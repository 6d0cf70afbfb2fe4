"""`clew tap`: values of layers, read from the optimized program."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

import clew
from clew.cli import options as opt
from clew.cli.options import (
    Compiling,
    compile_model,
    compiling,
    listed,
    model_inputs,
    refuse_saved,
)
from clew.cli.output import (
    describe,
    emit_json,
    flat,
    note,
    outputs_table,
    save_arrays,
    stdout,
)
from clew.support.errors import InputError
from clew.support.files import reason_of
from clew.support.tables import table
from clew.support.writing import write_array

_STATES = {"memory": "in memory", "fused": "inside a kernel", "gone": "no longer computed"}


@compiling
def tap(
    model: opt.Model,
    layers: Annotated[
        list[str],
        typer.Option("--layer", metavar="NAME,...", help="Layers or globs to read; repeatable."),
    ] = [],  # noqa: B006 (typer takes the default from here)
    result: Annotated[
        int | None,
        typer.Option(
            "--result", metavar="N", min=0, help="Number of the result, for layers with several."
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Break the fusions that keep a value in registers.")
    ] = False,
    iterations: Annotated[
        bool, typer.Option("--iterations", help="Values of all loop iterations, not only the last.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="PATH", help="File (.npy) for one value, folder for several."
        ),
    ] = None,
    inputs: opt.Inputs = [],  # noqa: B006
    random: opt.Random = False,
    seed: opt.Seed = 0,
    json: opt.Json = False,
    *,
    how: Compiling,
) -> None:
    """Read values of layers in a run; without --layer, list which are in memory."""
    refuse_saved(model, "a saved model has no layers")
    compiled = compile_model(model, how).model
    if not layers:
        if compiled.is_symbolic:
            compiled.run(model_inputs(compiled, inputs, random, seed))
        document, shown = _states(compiled)
    else:
        arrays = model_inputs(compiled, inputs, random, seed)
        taps = compiled.tap(
            list(listed(layers)), arrays, output=result, force=force, iterations=iterations
        )
        document, shown = _values(taps)
        if taps.forced is not None:
            note(str(taps.forced))
        if output is not None:
            _save(output, flat(taps))
    if json:
        emit_json(document)
    else:
        stdout().print(shown)


def _states(compiled: Any) -> tuple[Any, RenderableType]:
    states = clew.tap_states(compiled)
    made = table("layer", "value", "reason")
    for name, (state, reason) in states.items():
        made.add_row(Text(name), _STATES[state.value], Text(reason))
    counts = ", ".join(
        f"{sum(s.value == state for s, _ in states.values())} {text}"
        for state, text in _STATES.items()
    )
    document = {name: {"state": s.value, "reason": reason} for name, (s, reason) in states.items()}
    return document, Group(made, Text(counts, style="dim"))


def _values(taps: clew.Taps) -> tuple[Any, RenderableType]:
    facts = [describe(name, value) for name, value in flat(taps).items()]
    refused = {name: str(r) for name, r in taps.refused.items()}
    document: dict[str, Any] = {"values": facts, "refused": refused}
    if taps.forced is not None:
        forced = taps.forced
        document["forced"] = {
            "cut": list(forced.cut),
            "into": list(forced.into),
            "unchanged": forced.unchanged,
            "changed": list(forced.changed),
        }
    parts: list[RenderableType] = [outputs_table(facts, "layer")] if facts else []
    parts += [Text(f"not {text}", style="dim") for text in refused.values()]
    return document, Group(*parts)


def _save(path: Path, values: Mapping[str, Any]) -> None:
    """Writes one value to a file, several to files in a folder.

    Errors: I063 if they cannot be written.
    """
    if len(values) != 1 or path.suffix != ".npy":
        save_arrays(path, values)
    else:
        try:
            write_array(path, next(iter(values.values())))
        except OSError as error:
            raise InputError("I063", f"cannot write to {str(path)!r}: {reason_of(error)}") from None
    note(f"written to {path}")
