"""Options that several commands share, and the way from them to a compiled model."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

import clew
from clew.cli.arguments import Array, named, read_array, shapes
from clew.cli.output import note, progress
from clew.runtime.drawing import draw, sizes_of
from clew.support.errors import InputError

SAVED_SUFFIX = ".clew"
Model = Annotated[Path, typer.Argument(help="The model's file.", show_default=False)]
Shape = Annotated[
    list[str],
    typer.Option("--shape", metavar="NAME=1,3,224,224", help="Shape of an input, repeatable."),
]
Target = Annotated[str, typer.Option("--target", help="Machine to compile for.")]
Threads = Annotated[
    int | None,
    typer.Option("--threads", min=1, help="Threads of a run.", show_default="all CPUs"),
]
OptLevel = Annotated[
    int, typer.Option("--opt-level", min=0, max=3, help="0: only what is needed; 3: everything.")
]
Precision = Annotated[
    str,
    typer.Option("--precision", help="What products multiply in: f32, bf16, f16 or auto."),
]
Fuse = Annotated[
    bool, typer.Option("--fuse/--no-fuse", help="Fuse operators, or a kernel for each.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Inputs = Annotated[
    list[str],
    typer.Option("--input", "-i", metavar="NAME=FILE.npy", help="Value of an input, repeatable."),
]
Random = Annotated[
    bool,
    typer.Option("--random", help="Draw the inputs that are not given (default: if none is)."),
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of drawn inputs.")]


@dataclass(frozen=True)
class Asked:
    """What the options of `compile` say."""

    model: Path
    shape: Sequence[str]
    target: str = "cpu"
    threads: int | None = None
    opt_level: int = 3
    fuse: bool = True
    precision: str = "f32"


@dataclass(frozen=True)
class Compiled:
    """A compiled model, and the seconds that reading and compiling it took."""

    model: Any
    seconds: dict[str, float]


def open_model(asked: Asked) -> Compiled:
    """Returns a saved model, or compiles one."""
    if asked.model.suffix != SAVED_SUFFIX:
        return compile_model(asked)
    if asked.shape:
        raise typer.BadParameter("a saved model has its shapes already", param_hint="--shape")
    start = time.perf_counter()
    model = clew.load_compiled(asked.model, asked.threads)
    return Compiled(model, {"load": time.perf_counter() - start})


def compile_model(asked: Asked) -> Compiled:
    """Loads and compiles a model, saying on stderr what is at work."""
    given = shapes(asked.shape)
    with progress(f"reading {asked.model}") as say:
        # Importing them is not the model's time.
        load, build = import_module("clew.frontends").load_or_defer, clew.compile
        start = time.perf_counter()
        module = load(asked.model, **({"inputs": given} if given else {}))
        loaded = time.perf_counter()
        model = build(
            module,
            asked.target,
            threads=asked.threads,
            opt_level=asked.opt_level,
            fuse="auto" if asked.fuse else None,
            precision=asked.precision,
            on_progress=say,
        )
        done = time.perf_counter()
    return Compiled(model, {"load": loaded - start, "compile": done - loaded})


def model_inputs(model: Any, files: Sequence[str], random: bool, seed: int) -> dict[str, Array]:
    """Returns the inputs of a run: arrays from files, the others drawn.

    Errors: I060 and I061 (see `cli.arguments`), I041 for names that the model lacks.
    """
    given = {n: read_array(n, Path(f)) for n, f in named(files, "--input").items()}
    names = model.input_names
    unknown = [n for n in given if n not in names]
    if unknown:
        raise InputError(
            "I041",
            f"inputs do not fit: unknown {', '.join(unknown)}",
            hint=f"the model's inputs are {', '.join(names)}",
        )
    if given and not random:
        return given
    drawn = draw(model.inputs, given, seed, sizes_of(model.inputs, given))
    if drawn:
        note(f"drawn with seed {seed}: {', '.join(drawn)}")
    return {**given, **drawn}


def build_summary(compiled: Compiled) -> str:
    """Returns a line on what was compiled or loaded and how long it took."""
    total = sum(compiled.seconds.values())
    if "compile" not in compiled.seconds:
        return f"{len(compiled.model.kernels)} saved kernels loaded in {total:.2f} s"
    build = compiled.model.build
    distinct = len(build.binaries)
    return (
        f"{len(build.uses)} kernels ({distinct} distinct, {build.cached_kernels} from the cache) "
        f"in {total:.2f} s"
    )
