"""Counts the steps between native segments: host operators, kernels with data-dependent sizes, and
branches and loops that Python runs.

    python benchmarks/host_steps.py suite            ONNX's backend cases
    python benchmarks/host_steps.py suite --free     the same, with all axes of inputs free
    python benchmarks/host_steps.py zoo              the models of the zoo
    python benchmarks/host_steps.py exports --network detr --network control-flow
                                                     exported networks, with their free axes
    python benchmarks/host_steps.py suite --json before.json
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import onnx
import typer
from rich.progress import track
from rich.table import Table

import clew
import zoo
from clew.backends.cpu.deferred_kernel import DeferredKernel
from clew.backends.host.steps import HostStep
from clew.runtime.program import Branch, Program, Repeat, RunHost
from exports.runner import Runner
from exports.store import NotExported, Variant, selected
from fuzz import free as free_axes
from fuzz.free import Free
from harness.report import console, progress

SIZES: Final = frozenset(("first_rows", "room", "size_of", "sized"))
"""Host operators that only pass on a size or show rows of a value."""

app = typer.Typer(add_completion=False, help=__doc__)


def steps_of(program: Program) -> Counter[str]:
    """Returns how often a program has each kind of step, bodies of branches and loops included."""
    found: Counter[str] = Counter()
    for step in program.instructions:
        if isinstance(step, Branch):
            found["branch"] += 1
            found += steps_of(step.then) + steps_of(step.orelse)
        elif isinstance(step, Repeat):
            found["loop"] += 1
            found += steps_of(step.cond) + steps_of(step.body)
        elif isinstance(step, RunHost):
            found[_kind(step.function)] += 1
    return found


def _kind(function: Any) -> str:
    if isinstance(function, DeferredKernel):
        return "kernel of a size from the run"
    if isinstance(function, HostStep):
        return "size" if function.op.name in SIZES else function.op.name
    return type(function).__name__


def program_of(case: Free) -> Program:
    """Returns the program for all sizes; if there is none, that for the sizes of the case."""
    compiled = clew.compile(case.file(), threads=1, diagnostics=clew.Diagnostics(trace=False))
    try:
        program = compiled.template.program
    except clew.ClewError:
        program = compiled.build_for(case.feeds).program
    return program if isinstance(program, Program) else program.program


def exported(networks: list[str]) -> Iterator[Free]:
    """Yields networks, by name or family, as PyTorch's newer exporter writes them; their named axes
    are free. Leaves out those that cannot be exported here.
    """
    runner = Runner()
    for entry in selected(networks):
        which = Variant(entry, "dynamo", entry.is_free)
        try:
            file = runner.exported(which)
        except NotExported as failure:
            progress.print(f"{which}: {str(failure).splitlines()[0][:80]}", highlight=False)
            continue
        yield Free(str(which), onnx.load(file), entry.draw(0))
    runner.close()


def models(group: str, free: bool, networks: list[str]) -> Iterator[Free]:
    """Yields the models of a group."""
    if group == "exports":
        yield from exported(networks)
        return
    if group == "zoo":
        for name in zoo.names():
            yield Free(name, onnx.load(zoo.path(name)), zoo.inputs(name))
        return
    for case in free_axes.models(()):
        made = free_axes.all_free(case) if free else case
        if made is not None:
            yield made


@app.command()
def main(
    group: Annotated[str, typer.Argument(help="suite, zoo or exports")] = "suite",
    free: Annotated[bool, typer.Option(help="free all axes of inputs")] = False,
    network: Annotated[
        list[str] | None, typer.Option(help="a network or family of exports; repeat for several")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="also write them here")] = None,
) -> None:
    """Prints how many models have each kind of step, and how often it occurs."""
    by_model: dict[str, dict[str, int]] = {}
    failed = 0
    for case in track(list(models(group, free, network or [])), console=progress):
        try:
            by_model[case.name] = dict(steps_of(program_of(case)))
        except clew.ClewError:
            failed += 1
    table = Table("step", "models", "steps", "for example")
    total: Counter[str] = Counter()
    for found in by_model.values():
        total.update(found)
    for kind, count in total.most_common():
        having = [name for name, found in by_model.items() if kind in found]
        table.add_row(kind, str(len(having)), str(count), having[0])
    console.print(table)
    none = sum(not found for found in by_model.values())
    console.print(f"{len(by_model)} models, {none} without any; {failed} were refused")
    if json_file:
        json_file.write_text(json.dumps(by_model, indent=1))


if __name__ == "__main__":
    app()
