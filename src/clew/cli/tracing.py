"""`clew trace`: stages, layers and kernels of a compilation, and the links between them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from clew.cli import options as opt
from clew.cli.options import (
    Compiled,
    Compiling,
    compile_model,
    compiling,
    has_kernels,
    model_inputs,
)
from clew.cli.output import emit_json, kernel_facts, note, stdout
from clew.libraries import place_of
from clew.support.errors import CompileError, InputError
from clew.support.files import reason_of
from clew.support.shown import counted
from clew.support.tables import table
from clew.support.writing import write_text
from clew.trace.export import write_json

_NUMBERS = ("ms", "nodes", "added", "removed")
View = tuple[Any, RenderableType]
"""A view as JSON, and as text to print."""


@compiling
def trace(
    model: opt.Model,
    layer: Annotated[
        str | None, typer.Option("--layer", metavar="NAME", help="Show the story of a layer.")
    ] = None,
    kernel: Annotated[
        str | None,
        typer.Option(
            "--kernel", metavar="NAME", help="Show a kernel: schedule, loops, instructions."
        ),
    ] = None,
    save_schedule: Annotated[
        Path | None,
        typer.Option(
            "--save-schedule",
            metavar="FILE",
            help="Write the kernel's schedule to a file for --schedule.",
        ),
    ] = None,
    stage: Annotated[
        str | None, typer.Option("--stage", metavar="PASS", help="Print the graph after a pass.")
    ] = None,
    conversions: Annotated[
        bool,
        typer.Option(
            "--conversions", help="Show steps that only change dtype, quantization or layout."
        ),
    ] = False,
    created: Annotated[
        bool,
        typer.Option(
            "--created", help="Show operators that passes created, and the layers they serve."
        ),
    ] = False,
    export: Annotated[
        Path | None, typer.Option("--export", metavar="FILE", help="Write the whole trace as JSON.")
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            metavar="ADDRESS",
            help="Show the layers that the code at this address computes; MODEL is an exported C "
            "library, or a program that contains one.",
        ),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Evaluate and compare both ends of every same link.")
    ] = False,
    inputs: opt.Inputs = [],  # noqa: B006 (typer takes the default from here)
    random: opt.Random = False,
    seed: opt.Seed = 0,
    json: opt.Json = False,
    *,
    how: Compiling,
) -> None:
    """Show how layers become kernels; without options, an overview."""
    if save_schedule is not None and kernel is None:
        raise typer.BadParameter("give --kernel NAME as well", param_hint="--save-schedule")
    if address is not None:
        _print([_address(model, address)], json)
        return
    compiled = compile_model(model, how)
    if verify or inputs or random or not has_kernels(compiled):
        arrays = model_inputs(compiled.model, inputs, random, seed)
        compiled.model.run(arrays)  # builds a model with named sizes
    views: list[View] = []
    if layer is not None:
        views.append(_layer(compiled, layer))
    if kernel is not None:
        views.append(_kernel(compiled, kernel))
        if save_schedule is not None:
            _save_schedule(compiled, kernel, save_schedule)
    if stage is not None:
        views.append(_stage(compiled, stage))
    if conversions:
        found = compiled.model.conversions()
        views.append((found.to_json(), found))
    if created:
        views.append(_created(compiled))
    report = compiled.model.trace.verify(arrays) if verify else None
    if report is not None:
        views.append(_verification(report))
    if export is not None:
        _export(compiled, export)
    if not views and export is None:
        views.append(_overview(compiled))
    _print(views, json)
    if report is not None and not report.ok:
        raise CompileError(
            "C092",
            f"{len(report.failures)} same links do not hold",
            hint="a pass claims that two nodes have the same value, but their values differ",
        )


def _print(views: list[View], json: bool) -> None:
    if json and views:
        emit_json(views[0][0] if len(views) == 1 else [v for v, _ in views])
        return
    console = stdout()
    for number, (_, shown) in enumerate(views):
        if number:
            console.print()
        # Graphs and code are not wrapped: a program may read the output.
        console.print(shown, soft_wrap=isinstance(shown, Text))


def _address(library: Path, address: str) -> View:
    try:
        at = int(address, 0)
    except ValueError:
        raise typer.BadParameter(f"{address!r} is not an address", param_hint="--address") from None
    found = place_of(library, at)
    lines = [
        f"function  {found.function}",
        f"kernel    {', '.join(found.kernels)}",
        f"layer     {', '.join(found.layers)}",
        f"line {found.line:<5}{found.text}",
    ]
    return found.to_json(), Text("\n".join(lines))


def _layer(compiled: Compiled, name: str) -> View:
    story = compiled.model.trace.layer(name)
    document = {
        "layer": story.layer,
        "op": story.op,
        "fate": {"kind": story.fate.kind.value, "text": str(story.fate)},
        "stages": [
            {
                "stage": c.stage,
                "name": c.name,
                "event": c.event,
                "nodes": [{"line": p.line, "text": p.text} for p in c.places],
            }
            for c in story.chapters
        ],
        "notes": [{"text": n.text, "error": n.error} for n in story.notes],
        "remarks": [{"pass": p, "text": t} for p, t in story.remarks],
        "kernels": [
            {
                "name": k.name,
                "ops": list(k.ops),
                "all_ops": list(k.all_ops),
                "loop_lines": [{"line": p.line, "text": p.text} for p in k.loop_lines],
                "instructions": k.instructions,
                "kernel_instructions": k.kernel_instructions,
            }
            for k in story.kernels
        ],
    }
    return document, story


def _kernel(compiled: Compiled, name: str) -> View:
    kernels = {k.name: k for k in compiled.model.kernels}
    found = kernels.get(name)
    if found is None:
        shown = ", ".join(list(kernels)[:8]) + (", ..." if len(kernels) > 8 else "")
        raise InputError("I065", f"no kernel {name!r}", hint=f"the kernels are {shown}")
    steps = [str(step) for step in found.schedule.steps]
    document = {
        **kernel_facts(found),
        "schedule": steps,
        "choices": [
            {
                "rule": d.rule,
                "stage": d.root,
                "values": dict(d.settings),
                "refused": [{"step": str(r.step), "reason": r.reason} for r in d.refused],
            }
            for d in found.choices
        ],
        "loops": found.loops,
        "llvm": found.llvm,
        "asm": found.asm,
    }
    head = Text.assemble((found.name, "bold"), f": {', '.join(found.layers)}")
    sections = [
        ("operators", ", ".join(found.ops)),
        (f"schedule (rule {', '.join(found.rules)})", "\n".join(steps)),
        ("choices", "\n".join(_choices(found))),
        ("loops", found.loops),
        ("instructions", found.asm),
    ]
    for title, text in sections:
        head.append(f"\n\n{title}", style="cyan").append(f"\n{text.rstrip()}")
    return document, head


def _choices(kernel: Any) -> Iterator[str]:
    """Yields lines about the choices of each rule of a kernel."""
    for decision in kernel.choices:
        yield f"{decision.rule} for {decision.root}" if decision.root else decision.rule
        for choice in decision.space:
            options = ", ".join(map(str, choice.options))
            value = decision.settings[choice.name]
            yield f"  {choice.name}={value} of {options}: {choice.meaning}"
        for refusal in decision.refused:
            yield f"  left out {refusal}"


def _stage(compiled: Compiled, name: str) -> View:
    trace = compiled.model.trace
    wanted = int(name) if name.lstrip("-").isdecimal() else name
    index = trace.stage_index(wanted)
    record = trace.stages[index]
    text = trace.printed(index).text
    document = {
        "stage": index,
        "name": record.name,
        "text": text,
        "remarks": [{"pass": r.pass_name, "text": r.text} for r in record.remarks],
    }
    return document, Text(text.rstrip())


def _created(compiled: Compiled) -> View:
    """Returns the created operators by pass, those that serve no layer first."""
    found = sorted(compiled.model.trace.created(), key=lambda c: (c.ref.stage, c.is_explained))
    document = [
        {
            "stage": c.ref.stage,
            "pass": c.pass_name,
            "line": c.line,
            "op": c.op,
            "type": c.type,
            "layers": list(c.layers),
        }
        for c in found
    ]
    rows = table("pass", "line", "operator", "type", "serves", right=("line",))
    for c in found:
        rows.add_row(c.pass_name, str(c.line), c.op, c.type, ", ".join(c.layers) or "no layer")
    alone = sum(not c.is_explained for c in found)
    text = f"{counted(len(found), 'operator')} created by passes, {alone} of them for no layer"
    return document, Group(Text(text), rows)


def _verification(report: Any) -> View:
    document = {
        "ok": report.ok,
        "checked": report.checked,
        "skipped": report.skipped,
        "worst": report.worst,
        "failures": [
            {"stage": f.stage, "layers": list(f.layers), "reason": f.reason}
            for f in report.failures
        ],
    }
    return document, Text(str(report))


def _export(compiled: Compiled, path: Path) -> None:
    write_json(compiled.model.trace, path)
    note(f"trace written to {path}")


def _save_schedule(compiled: Compiled, name: str, path: Path) -> None:
    """Writes the steps of a kernel's schedule to a file.

    Errors: I063 if the file cannot be written.
    """
    found = next(k for k in compiled.model.kernels if k.name == name)
    try:
        write_text(path, found.schedule.text + "\n")
    except (OSError, ValueError) as error:
        raise InputError("I063", f"cannot write to {str(path)!r}: {reason_of(error)}") from None
    note(f"schedule written to {path}: --schedule {name}={path} replays it")


def _overview(compiled: Compiled) -> View:
    trace = compiled.model.trace
    stages = table("stage", "pass", "ms", "nodes", "added", "removed", right=_NUMBERS)
    rows = []
    for index, record in enumerate(trace.stages):
        difference = record.difference
        rows.append(
            {
                "stage": index,
                "name": record.name,
                "seconds": record.seconds,
                "nodes": len(record.nodes),
                "added": len(difference.added) if index else 0,
                "removed": len(difference.removed),
            }
        )
        stages.add_row(*(str(_cell(k, v)) for k, v in rows[-1].items()))
    fates = {layer: str(fate) for layer, fate in trace.accounted().items()}
    layers = table("layer", "fate")
    for layer, fate in fates.items():
        layers.add_row(Text(layer), Text(fate))
    return {"stages": rows, "layers": fates}, Group(stages, Text(), layers)


def _cell(name: str, value: Any) -> str:
    return f"{value * 1e3:.1f}" if name == "seconds" else str(value)
