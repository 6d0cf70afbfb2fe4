"""Compares the machine code of kernels before and after a change to clew.

    python benchmarks/object_code.py write before.json
    python benchmarks/object_code.py write after.json
    python benchmarks/object_code.py compare before.json after.json

A change that only moves code within clew leaves every hash unchanged. Models are the zoo's; targets
are this machine and the named ones, for which code is compiled but not run.
"""

import hashlib
import io
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

import typer
from elftools.elf.constants import SH_FLAGS
from elftools.elf.elffile import ELFFile
from rich.table import Table

import clew
import zoo
from harness.report import console, progress

TARGETS: Final = "cpu,cpu-avx2,cpu-avx512"
PRECISIONS: Final = "f32,bf16"

Hashes = dict[str, dict[str, str]]
"""By build (model, target and precision), then by kernel."""

app = typer.Typer(add_completion=False, help=__doc__)


def hashes_of(model: str, target: str, precision: str) -> dict[str, str]:
    """Returns the hash of each kernel's object code, or the error for a build that fails."""
    try:
        shapes = {name: value.shape for name, value in zoo.inputs(model).items()}
        made = clew.compile(
            zoo.path(model),
            target=target,
            precision=precision,
            inputs=shapes,
            diagnostics=clew.Diagnostics(trace=False),
        )
        return {k.name: hash_of(k.object_code) for k in made.kernels}
    except clew.ClewError as error:
        return {"error": str(error).splitlines()[0]}


def hash_of(object_code: bytes) -> str:
    """Returns the hash of the loaded sections of an ELF object: code and constants. Symbols are
    excluded, since they contain the kernel's key.
    """
    digest = hashlib.sha256()
    for section in ELFFile(io.BytesIO(object_code)).iter_sections():
        if section["sh_flags"] & SH_FLAGS.SHF_ALLOC:
            digest.update(section.data())
    return digest.hexdigest()[:16]


@app.command()
def write(
    file: Path,
    models: Annotated[str, typer.Option(help="names or groups of the zoo")] = "quick",
    targets: str = TARGETS,
    precisions: str = PRECISIONS,
) -> None:
    """Writes the hashes of all kernels of all builds."""
    chosen: list[str] = []
    for name in models.split(","):
        chosen += zoo.names(name) if name in zoo.groups() else [name]
    found: Hashes = {}
    for model in dict.fromkeys(chosen):
        for target in targets.split(","):
            for precision in precisions.split(","):
                progress.print(f"{model} {target} {precision}", highlight=False)
                found[f"{model} {target} {precision}"] = hashes_of(model, target, precision)
    file.write_text(json.dumps(found, indent=1))
    console.print(f"{len(found)} builds, {sum(map(len, found.values()))} kernels")


@app.command()
def compare(before: Path, after: Path) -> None:
    """Lists builds whose kernels differ; exits with 1 if there are any."""
    old, new = _read(before), _read(after)
    table = Table("build", "kernels", "alike", "other code", "gone", "new")
    differing = 0
    for build in sorted(old.keys() | new.keys()):
        a, b = old.get(build, {}), new.get(build, {})
        same = [name for name in a if b.get(name) == a[name]]
        other = [name for name in a if name in b and b[name] != a[name]]
        gone, made = a.keys() - b.keys(), b.keys() - a.keys()
        if other or gone or made:
            differing += 1
            counts = (len(a), len(same), len(other), len(gone), len(made))
            table.add_row(build, *map(str, counts))
    kernels = sum(map(len, old.values()))
    console.print(f"{len(old)} builds with {kernels} kernels before; {differing} builds differ")
    if differing:
        console.print(table)
        raise typer.Exit(1)


def _read(file: Path) -> Mapping[str, Mapping[str, str]]:
    found: Hashes = json.loads(file.read_text())
    return found


if __name__ == "__main__":
    sys.exit(app())
