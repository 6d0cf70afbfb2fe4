"""Compares the machine code that two versions of clew generate, kernel by kernel.

    python benchmarks/object_code.py main .
    python benchmarks/object_code.py v0.1.0 main --models full,quantized-full --targets cpu

Each version is a folder with a checkout of clew, or a revision of this one. A change that only
moves code within clew leaves every kernel equal; the exit code is 1 otherwise. Models are the
zoo's: networks of floats in each precision of floats, and quantized ones as `int8`. A network with
free sizes is also built for all of its sizes. Targets are this machine and the named ones, for
which code is compiled but not run. The versions compile in turns, each in a process and a cache of
its own.
"""

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.table import Table

import zoo
from harness.report import console, progress

ROOT: Final = Path(__file__).parents[1]
MODELS: Final = "quick,quantized-quick"
TARGETS: Final = "cpu,cpu-avx2,cpu-avx512"
PRECISIONS: Final = "f32,bf16,int8"

Hashes = dict[str, str]
"""Hashes by kernel; an "error" is that of a build that fails."""

app = typer.Typer(add_completion=False, help=__doc__)


@dataclass(frozen=True)
class Job:
    """A build to compare. Without `shapes`, sizes stay free."""

    model: str
    target: str
    precision: str
    shapes: dict[str, tuple[int, ...]] | None

    def __str__(self) -> str:
        sizes = "" if self.shapes is not None else " all sizes"
        return f"{self.model} {self.target} {self.precision}{sizes}"

    @property
    def request(self) -> dict[str, Any]:
        """What a version is asked for."""
        return {
            "model": str(zoo.path(self.model)),
            "target": self.target,
            "precision": "f32" if self.precision == "int8" else self.precision,
            "shapes": self.shapes,
        }


@dataclass(frozen=True)
class Compared:
    """A build's kernels: the number before, and the names of those with other code, of those that
    are gone, and of new ones. `failed` is the error if both versions fail alike.
    """

    kernels: int
    other: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    failed: str = ""

    @property
    def differ(self) -> int:
        """The number of kernels that differ."""
        return len(self.other) + len(self.gone) + len(self.new)


def compared(old: Hashes, new: Hashes) -> Compared:
    """Compares the kernels of a build."""
    if "error" in old and old == new:
        return Compared(0, failed=old["error"])
    return Compared(
        len(old.keys() - {"error"}),
        [name for name in old if name in new and new[name] != old[name]],
        [name for name in old if name not in new],
        [name for name in new if name not in old],
    )


def jobs(models: str, targets: str, precisions: str) -> Iterator[Job]:
    """Yields the builds of models, given by name or group."""
    chosen: dict[str, None] = {}
    for name in models.split(","):
        chosen.update(dict.fromkeys(zoo.names(name) if name in zoo.groups() else [name]))
    quantized = set(zoo.names("quantized"))
    for model in chosen:
        shapes = {name: value.shape for name, value in zoo.inputs(model).items()}
        for target in targets.split(","):
            for precision in precisions.split(","):
                if (precision == "int8") == (model in quantized):
                    yield Job(model, target, precision, shapes)
                    if zoo.dims(model):
                        yield Job(model, target, precision, None)


class Version:
    """A process that compiles with one version of clew."""

    def __init__(self, given: str, stack: ExitStack) -> None:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        tree = Path(given) if Path(given).is_dir() else _unpacked(given, folder / "tree")
        source = tree.resolve() / "src"
        if not (source / "clew").is_dir():
            raise typer.BadParameter(f"{given} is neither a checkout of clew nor a revision")
        paths = [source, ROOT / "benchmarks", ROOT / "tools"]
        self._process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-m", "harness.object_code_child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=folder,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(map(str, paths)),
                    "CLEW_CACHE_DIR": str(folder / "cache"),
                    "CLEW_TUNING": str(folder / "tuning.db"),
                },
            )
        )

    def ask(self, job: Job) -> None:
        """Starts a build."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job.request) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Hashes:
        """Waits for the build."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise typer.Exit(1)  # its messages are on stderr
        found: Hashes = json.loads(line)
        return found


def _unpacked(revision: str, folder: Path) -> Path:
    """Returns a folder with the sources of a revision."""
    command = ["git", "-C", str(ROOT), "archive", revision, "src"]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        raise typer.BadParameter(f"no folder or revision {revision}: {done.stderr.decode()}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


@app.command()
def compare(
    old: Annotated[str, typer.Argument(help="a folder with a checkout, or a revision")],
    new: Annotated[str, typer.Argument(help="likewise; . is this checkout with its changes")],
    models: Annotated[str, typer.Option(help="names or groups of the zoo")] = MODELS,
    targets: str = TARGETS,
    precisions: str = PRECISIONS,
) -> None:
    """Lists the builds whose kernels differ; exits with 1 if there are any."""
    found: dict[str, Compared] = {}
    with ExitStack() as stack:
        versions = [Version(old, stack), Version(new, stack)]
        todo = list(jobs(models, targets, precisions))
        for number, job in enumerate(todo, 1):
            for version in versions:
                version.ask(job)
            each = found[str(job)] = compared(*(version.answer() for version in versions))
            what = each.failed or f"{each.differ} of {each.kernels} kernels differ"
            progress.print(f"{number}/{len(todo)} {job}: {what}", highlight=False, markup=False)
    console.print(*report(found))
    if any(each.differ for each in found.values()):
        raise typer.Exit(1)


def report(found: dict[str, Compared]) -> Iterator[Table | str]:
    """Yields a table of the builds that differ, if any, and a line that sums up."""
    differing = {build: each for build, each in found.items() if each.differ}
    if differing:
        table = Table("build", "kernels", "other code", "gone", "new", "for example")
        for build, each in differing.items():
            counts = map(len, (each.other, each.gone, each.new))
            example = (each.other + each.gone + each.new)[0]
            table.add_row(build, str(each.kernels), *map(str, counts), example)
        yield table
    kernels = sum(each.kernels for each in found.values())
    differ = sum(each.differ for each in found.values())
    failed = sum(bool(each.failed) for each in found.values())
    yield (
        f"{len(found)} builds, {kernels} kernels: {differ} kernels differ, in {len(differing)} "
        f"builds; {failed} builds fail in both versions"
    )


if __name__ == "__main__":
    sys.exit(app())
