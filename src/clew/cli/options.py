"""Options shared by several commands, and their use to compile a model.

`Compiling` holds the options of every command that compiles; `@compiling` replaces a parameter of
that type by them. They are those of `CompileOptions`, with the same help and defaults.
"""

from __future__ import annotations

import functools
import inspect
import time
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import typer

import clew
from clew.backends.compile_options import PLACES, CompileOptions, Limits, Place
from clew.backends.option_records import read_schedule
from clew.cli.arguments import Array, named, read_array, shapes, sizes
from clew.cli.help import Panel
from clew.cli.output import note, progress
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
PANEL: Final = Panel(
    "Compile options", "--shape", "--sizes", "--precision", "--threads", "--target"
)


_TEXTS: Final[Mapping[str, Callable[[list[str]], Any]]] = {
    "inputs": shapes,
    "sizes": sizes,
    "extend": tuple,
    "place": tuple,
    "budgets": lambda texts: asdict(read_budgets(texts)),
}
"""How the texts of a repeated option are read, where it is not as a list of names."""
SCHEDULE: Final = Annotated[
    list[str],
    typer.Option(
        "--schedule",
        metavar="KERNEL=FILE",
        help="Saved schedule to replay for a kernel or a glob of kernels; repeatable.",
        rich_help_panel=PANEL,
    ),
]
CHOOSE: Final = Annotated[
    list[str],
    typer.Option(
        "--choose",
        metavar="KERNEL=RULE: NAME=VALUE ...",
        help="Schedule rule for a kernel or a glob of kernels, and values of its choices (clew "
        "trace --kernel shows them); repeatable.",
        rich_help_panel=PANEL,
    ),
]


@dataclass(frozen=True)
class Flag:
    """An option of compiling on the command line: the parameter's name, type and default, and the
    option that it gives (`extend` for schedules).
    """

    name: str
    typed: Any
    default: Any
    gives: str

    @property
    def option(self) -> str:
        """The option as typed, for messages."""
        if self.gives in PLACES and self.name not in ("schedule", "choose"):
            flag = PLACES[self.gives].option.flag
            if flag:
                return flag.rpartition("/")[2] if self.default is True else flag.partition("/")[0]
        return f"--{self.name.replace('_', '-')}"


def _flag_of(name: str, place: Place) -> Flag:
    about, default = place.option, place.field.default
    kind = about.kind or type(default)
    option = about.flag or f"--{name.replace('_', '-')}"
    many = kind in (tuple, list, dict)
    help = f"{about.help.rstrip('.')}; repeatable." if many else about.help
    shown = about.shown_default or True
    made = typer.Option(
        option, metavar=about.metavar or None, help=help, rich_help_panel=PANEL,
        min=about.at_least, max=about.at_most, show_default=shown,
    )  # fmt: skip
    typed: Any = kind
    if many:
        default, typed = [], list[str]
    elif kind is bool:
        default = bool(default)
    elif kind is int:
        typed = int if default is not None else int | None
    else:
        default = default or about.shown_default
    parameter = option.partition("/")[0].lstrip("-").replace("-", "_")
    return Flag(parameter, Annotated[typed, made], default, name)


def _flags() -> Iterator[Flag]:
    for name, place in PLACES.items():
        if place.option.flag != "":
            yield _flag_of(name, place)
        if name == "extend":
            yield Flag("schedule", SCHEDULE, [], "extend")
            yield Flag("choose", CHOOSE, [], "extend")


FLAGS: Final = tuple(_flags())
"""The options of compiling that every command that compiles has."""


@dataclass(frozen=True)
class Compiling:
    """Compile options as given on the command line: values by the names of `FLAGS`."""

    given: Mapping[str, Any]

    @functools.cached_property
    def record(self) -> dict[str, Any]:
        """The options that differ from their defaults, as a record of `CompileOptions`.

        Errors: I341 (`--schedule`); a usage error for text that is not a `name=value` pair.
        """
        found: dict[str, Any] = {}
        for flag in FLAGS:
            value = self.given.get(flag.name, flag.default)
            if value == flag.default or flag.name in ("schedule", "choose"):
                continue
            if isinstance(flag.default, list):
                value = _TEXTS.get(flag.gives, listed)(value)
            found[flag.gives] = None if (flag.gives, value) == ("tuned", "none") else value
        steps, chosen = (self.given.get(name, []) for name in ("schedule", "choose"))
        added = [{"kernel": k, "steps": text} for k, text in schedules(steps).items()]
        added += [{"kernel": k, "choose": text} for k, text in choices(chosen).items()]
        if added:
            found["extend"] = (*found.get("extend", ()), *added)
        return found

    @functools.cached_property
    def options(self) -> CompileOptions:
        """The options, as `clew.compile` takes them.

        Errors: those of values (`CompileOptions.of_record`), and see `record`.
        """
        return CompileOptions.of_record(self.record)


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
    return with_options(command, Compiling, {f.name: (f.default, f.typed) for f in FLAGS}, _begun)


def _begun(values: dict[str, Any]) -> Compiling:
    how = Compiling(values)
    limits = CompileOptions.of_record(
        {n: v for n, v in how.record.items() if n in ("budgets", "links", "trust")}
    ).group(Limits)
    set_default(limits.budgets or read_budgets(()))
    set_default_links(limits.links or LINKS[0])
    set_default_trust(bool(limits.trust))
    return how


def with_options(
    command: Callable[..., None],
    kind: type,
    options: Mapping[str, tuple[Any, Any]],
    gather: Callable[[dict[str, Any]], Any],
) -> Callable[..., None]:
    """Replaces the parameter of type `kind` of a command by options; `gather` makes the argument
    from their values. `options` has the default and the annotation of each by name; those that the
    command declares itself are left out.
    """
    hints = typing.get_type_hints(command, include_extras=True)
    own = inspect.signature(command).parameters
    (place,) = (name for name in own if hints.get(name) is kind)
    shared = {name: option for name, option in options.items() if name not in own}
    keyword = inspect.Parameter.KEYWORD_ONLY
    made: list[inspect.Parameter] = []
    for name, parameter in own.items():
        if name != place:
            made.append(parameter.replace(annotation=hints[name], kind=keyword))
            continue
        for option, (default, typed) in shared.items():
            made.append(inspect.Parameter(option, keyword, default=default, annotation=typed))

    @functools.wraps(command)
    def called(**values: Any) -> None:
        gathered = gather({name: values.pop(name) for name in shared})
        command(**values, **{place: gathered})

    called.__signature__ = inspect.Signature(made)  # type: ignore[attr-defined]
    called.__annotations__ = {p.name: p.annotation for p in made}
    return called


@dataclass(frozen=True)
class Compiled:
    """A compiled model, with the seconds spent on reading and compiling it. `shapes` are those to
    run a saved model with, by input.
    """

    model: Any
    seconds: dict[str, float]
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)


def refuse_saved(model: Path | None, why: str) -> None:
    """Rejects a saved model with a usage error (exit code 2)."""
    if model is not None and model.suffix == SAVED_SUFFIX:
        raise typer.BadParameter(f"{why}: give the original model file", param_hint="MODEL")


def refuse_sizes(how: Compiling, why: str) -> None:
    """Rejects `--sizes` with a usage error (exit code 2)."""
    if how.given.get("sizes"):
        raise typer.BadParameter(f"{why}: give --shape", param_hint="--sizes")


def open_model(model: Path, how: Compiling) -> Compiled:
    """Returns a saved model, or compiles one. `--shape` gives a saved model the sizes of a run."""
    if model.suffix != SAVED_SUFFIX:
        return compile_model(model, how)
    for flag in FLAGS:
        free = flag.gives in ("threads", "inputs", "cache", "budgets", "links", "trust")
        if not free and how.given.get(flag.name, flag.default) != flag.default:
            raise typer.BadParameter("a saved model is already compiled", param_hint=flag.option)
    start = time.perf_counter()
    loaded = clew.load_compiled(model, how.options.threads)
    seconds = {"load": time.perf_counter() - start}
    return Compiled(loaded, seconds, how.options.inputs or {})


def compile_model(model: Path, how: Compiling) -> Compiled:
    """Compiles a model, or loads it from the disk cache, showing progress on stderr."""
    options = how.options
    with progress(f"reading {model}") as say:
        build = clew.compile  # outside the timing: this imports the run time
        start = time.perf_counter()
        made = build(model, **options, on_progress=say)
        done = time.perf_counter()
    return Compiled(made, {"compile": done - start})


def model_inputs(
    model: Any,
    files: Sequence[str],
    random: bool,
    seed: int,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, Array]:
    """Returns the inputs of a run: arrays from files, the others random.

    Errors: I060 and I061 (see `cli.arguments`), I041 for names that the model does not have, I303
    for shapes that it does not accept.
    """
    given = {n: read_array(n, Path(f)) for n, f in named(files, "--input").items()}
    names, replaceable = model.input_names, getattr(model, "replaceable", ())
    if given and not random:
        return by_name((*names, *replaceable), given, partial=True)
    replaced = {n: a for n, a in given.items() if n in replaceable}
    given = {n: a for n, a in given.items() if n not in replaced}
    sizes = {"shapes": shapes} if shapes else {}
    found = dict(zip(names, model.drawn(given, seed=seed, **sizes), strict=True))
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
