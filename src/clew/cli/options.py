"""Options shared by several commands, and their use to compile a model.

`Compiling` holds the options of every command that compiles; `@compiling` replaces a parameter of
that type by them. Add an option of `clew.compile` there and in `CompileOptions`.
"""

from __future__ import annotations

import functools
import inspect
import time
import typing
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Final

import typer

import clew
from clew.cli.arguments import Array, named, read_array, shapes, sizes
from clew.cli.help import BUDGET_HELP
from clew.cli.output import note, progress
from clew.compiling.options import CompileOptions, read_schedule
from clew.support.bounds import BOUNDS
from clew.support.budgets import read_budgets, set_default
from clew.support.calling import by_name
from clew.support.errors import InputError
from clew.support.links import LINKS, set_default_links
from clew.support.shown import counted
from clew.support.trust import set_default_trust

SAVED_SUFFIX = ".clew"
Model = Annotated[
    Path, typer.Argument(metavar="MODEL", help="The model's file.", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Inputs = Annotated[
    list[str],
    typer.Option("--input", "-i", metavar="NAME=FILE.npy", help="Value of an input; repeatable."),
]
Random = Annotated[
    bool,
    typer.Option("--random", help="Random values for missing inputs (default if none is given)."),
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Seed of random inputs.")]
PANEL: Final = "Compile options"


def _option(*names: str, **facts: Any) -> Any:
    return typer.Option(*names, rich_help_panel=PANEL, **facts)


@dataclass(frozen=True)
class Compiling:
    """Compile options as given on the command line."""

    shape: Annotated[
        list[str],
        _option("--shape", metavar="NAME=1,3,224,224", help="Shape of an input; repeatable."),
    ] = field(default_factory=list)
    sizes: Annotated[
        list[str],
        _option(
            "--sizes",
            metavar="NAME=1:512|1,8|128",
            help="Range, likely sizes, or only size of a free dimension; repeatable.",
        ),
    ] = field(default_factory=list)
    target: Annotated[str, _option("--target", metavar="NAME", help="Machine to compile for.")] = (
        "cpu"
    )
    threads: Annotated[
        int | None,
        _option("--threads", metavar="N", min=1, help="Threads of a run.", show_default="all CPUs"),
    ] = None
    opt_level: Annotated[
        int,
        _option(
            "--opt-level", metavar="0|1|2|3", min=0, max=3, help="0: only required passes; 3: all."
        ),
    ] = 3
    precision: Annotated[
        str, _option("--precision", metavar="f32|bf16|f16|auto", help="Precision of products.")
    ] = "f32"
    keep_f32: Annotated[
        list[str],
        _option("--keep-f32", metavar="LAYER,...", help="Layers or globs to keep in f32."),
    ] = field(default_factory=list)
    fuse: Annotated[
        bool, _option("--fuse/--no-fuse", help="Fuse operators, or compile a kernel for each.")
    ] = True
    required: Annotated[
        list[str],
        _option(
            "--required",
            metavar="NAME,...",
            help="Passes to run at any opt level, and backends that must get part of the model.",
        ),
    ] = field(default_factory=list)
    disabled: Annotated[
        list[str], _option("--disabled", metavar="PASS,...", help="Passes to leave out.")
    ] = field(default_factory=list)
    extend: Annotated[
        list[str],
        _option(
            "--extend",
            metavar="FILE.py",
            help="Python file to run for its passes, fusions and schedules; repeatable.",
        ),
    ] = field(default_factory=list)
    schedule: Annotated[
        list[str],
        _option(
            "--schedule",
            metavar="KERNEL=FILE",
            help="Saved schedule to replay for a kernel or a glob of kernels; repeatable.",
        ),
    ] = field(default_factory=list)
    choose: Annotated[
        list[str],
        _option(
            "--choose",
            metavar="KERNEL=RULE: NAME=VALUE ...",
            help="Schedule rule for a kernel or a glob of kernels, and values of its choices (clew "
            "trace --kernel shows them); repeatable.",
        ),
    ] = field(default_factory=list)
    links: Annotated[
        str,
        _option(
            "--links",
            metavar="|".join(LINKS),
            help="Links to follow to external data; snapshot: links inside a model hub's folder.",
        ),
    ] = LINKS[0]
    trust: Annotated[
        bool,
        _option("--trust", help="Let the model's file run code that it contains."),
    ] = False
    bounds: Annotated[
        str,
        _option(
            "--bounds",
            metavar="|".join(BOUNDS),
            help="Out-of-range indices: an error, or clamped.",
        ),
    ] = BOUNDS[0]
    cache: Annotated[
        bool, _option("--cache/--no-cache", help="Use the disk cache of native code.")
    ] = True
    tuned: Annotated[
        str,
        _option(
            "--tuned",
            metavar="auto|none|FILE",
            help="Records of clew tune to apply; auto: those in the default file, if it exists.",
        ),
    ] = "auto"
    backend: Annotated[
        list[str],
        _option(
            "--backend",
            metavar="NAME,...",
            help="Backends that take parts of the model, in order: onnxruntime, openvino, torch, "
            "vta, numpy, or registered ones.",
        ),
    ] = field(default_factory=list)
    place: Annotated[
        list[str],
        _option(
            "--place",
            metavar="first|auto|BACKEND=LAYER,...",
            help="Assigns operators to the first backend that takes them, by measured costs, or by "
            "layers or globs of them (repeatable).",
        ),
    ] = field(default_factory=list)
    fallback: Annotated[
        bool,
        _option(
            "--fallback/--no-fallback",
            help="Run parts elsewhere that their backend fails to compile or run.",
        ),
    ] = False
    budget: Annotated[list[str], _option("--budget", metavar="NAME=NUMBER", help=BUDGET_HELP)] = (
        field(default_factory=list)
    )

    @property
    def options(self) -> CompileOptions:
        """The same as plain data.

        Errors: I341 (`--schedule`); a usage error for text that is not a `name=value` pair.
        """
        return CompileOptions(
            target=self.target,
            threads=self.threads,
            opt_level=self.opt_level,
            precision=self.precision,
            fuse=self.fuse,
            keep_f32=listed(self.keep_f32),
            required=listed(self.required),
            disabled=listed(self.disabled),
            extend=tuple(self.extend),
            schedules=schedules(self.schedule),
            choices=choices(self.choose),
            shapes=shapes(self.shape),
            sizes=sizes(self.sizes),
            links=self.links,
            trust=self.trust,
            bounds=self.bounds,
            cache=self.cache,
            tuned=self.tuned,
            backends=listed(self.backend),
            place=tuple(self.place),
            fallback=self.fallback,
        )


def listed(texts: Sequence[str]) -> tuple[str, ...]:
    """Returns the comma-separated parts of texts."""
    return tuple(part.strip() for text in texts for part in text.split(",") if part.strip())


def schedules(values: Sequence[str]) -> dict[str, str]:
    """Returns `kernel=file` pairs as steps by kernel; anything else is a usage error.

    Errors: I341 for a file that cannot be read.
    """
    return {n: read_schedule(Path(f)) for n, f in named(values, "--schedule").items()}


def choices(values: Sequence[str]) -> dict[str, str]:
    """Returns `kernel=rule: name=value ...` texts as choices by kernel; anything else is a usage
    error.
    """
    found: dict[str, str] = {}
    for value in values:
        kernel, _, text = value.partition("=")
        if not kernel or not text:
            raise typer.BadParameter(f"{value!r} is not kernel=rule", param_hint="--choose")
        found[kernel] = "\n".join(filter(None, (found.get(kernel), text)))
    return found


def compiling(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options of `Compiling`, in place of its parameter of that type.

    If the command declares an option of the same name, `Compiling` has its default. Budgets and
    links, and trust, apply to the whole process and are set before the command begins.
    """
    hints = typing.get_type_hints(command, include_extras=True)
    own = inspect.signature(command).parameters
    (place,) = (name for name in own if hints.get(name) is Compiling)
    facts = typing.get_type_hints(Compiling, include_extras=True)
    shared = [f for f in fields(Compiling) if f.name not in own]
    made: list[inspect.Parameter] = []
    for name, parameter in own.items():
        if name != place:
            made.append(parameter.replace(annotation=hints[name]))
            continue
        for one in shared:
            default = one.default if one.default_factory is MISSING else one.default_factory()
            kind = inspect.Parameter.KEYWORD_ONLY
            made.append(
                inspect.Parameter(one.name, kind, default=default, annotation=facts[one.name])
            )

    @functools.wraps(command)
    def called(**values: Any) -> None:
        how = Compiling(**{one.name: values.pop(one.name) for one in shared})
        set_default(read_budgets(how.budget))
        set_default_links(how.links)
        set_default_trust(how.trust)
        command(**values, **{place: how})

    kinds = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in made]
    called.__signature__ = inspect.Signature(kinds)  # type: ignore[attr-defined]
    called.__annotations__ = {p.name: p.annotation for p in kinds}
    return called


@dataclass(frozen=True)
class Compiled:
    """A compiled model, with the seconds spent on reading and compiling it."""

    model: Any
    seconds: dict[str, float]


def refuse_saved(model: Path | None, why: str) -> None:
    """Rejects a saved model with a usage error (exit code 2)."""
    if model is not None and model.suffix == SAVED_SUFFIX:
        raise typer.BadParameter(f"{why}: give the original model file", param_hint="MODEL")


def refuse_sizes(how: Compiling, why: str) -> None:
    """Rejects `--sizes` with a usage error (exit code 2)."""
    if how.sizes:
        raise typer.BadParameter(f"{why}: give --shape", param_hint="--sizes")


def open_model(model: Path, how: Compiling) -> Compiled:
    """Returns a saved model, or compiles one."""
    if model.suffix != SAVED_SUFFIX:
        return compile_model(model, how)
    usual = Compiling(
        threads=how.threads, cache=how.cache, budget=how.budget, links=how.links, trust=how.trust
    )
    for one in fields(Compiling):
        if getattr(how, one.name) != getattr(usual, one.name):
            option = "--no-fuse" if one.name == "fuse" else f"--{one.name.replace('_', '-')}"
            raise typer.BadParameter("a saved model is already compiled", param_hint=option)
    start = time.perf_counter()
    loaded = clew.load_compiled(model, how.threads)
    return Compiled(loaded, {"load": time.perf_counter() - start})


def compile_model(model: Path, how: Compiling) -> Compiled:
    """Compiles a model, or loads it from the disk cache, showing progress on stderr."""
    options = how.options
    with progress(f"reading {model}") as say:
        build = clew.compile  # outside the timing: this imports the run time
        start = time.perf_counter()
        made = build(model, **options.loading, **options.compiling, on_progress=say)
        done = time.perf_counter()
    return Compiled(made, {"compile": done - start})


def model_inputs(model: Any, files: Sequence[str], random: bool, seed: int) -> dict[str, Array]:
    """Returns the inputs of a run: arrays from files, the others random.

    Errors: I060 and I061 (see `cli.arguments`), I041 for names that the model does not have.
    """
    given = {n: read_array(n, Path(f)) for n, f in named(files, "--input").items()}
    names, replaceable = model.input_names, getattr(model, "replaceable", ())
    if given and not random:
        return by_name((*names, *replaceable), given, partial=True)
    replaced = {n: a for n, a in given.items() if n in replaceable}
    given = {n: a for n, a in given.items() if n not in replaced}
    found = dict(zip(names, model.drawn(given, seed=seed), strict=True))
    drawn = [name for name in names if name not in given]
    if drawn:
        note(f"random inputs, seed {seed}: {', '.join(drawn)}")
    return {**found, **replaced}


def has_kernels(compiled: Compiled) -> bool:
    """Whether a model has kernels and a trace before a run."""
    try:
        return compiled.model.kernels is not None
    except InputError as error:
        if error.code != "I044":
            raise
        return False


def build_summary(compiled: Compiled) -> str:
    """Returns a line about the kernels and the time to compile or load them."""
    total = sum(compiled.seconds.values())
    if "compile" not in compiled.seconds:
        return f"{counted(len(compiled.model.kernels), 'saved kernel')} loaded in {total:.2f} s"
    stored = compiled.model.stored_kernels
    if stored is not None:
        return f"{counted(len(stored), 'kernel')} from the cache in {total:.2f} s"
    build = compiled.model.template
    distinct = len(build.binaries)
    regions = getattr(build, "regions", ())
    others = f" and {counted(len(regions), 'region')} of other backends" if regions else ""
    return (
        f"{counted(len(build.uses), 'kernel')} ({distinct} distinct, "
        f"{build.cached_kernels} from the cache){others} in {total:.2f} s"
    )
