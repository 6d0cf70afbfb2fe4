"""The options of `clew.compile`, each stated once: its name, type, default, help and check.

`clew.compile` takes the fields of `CompileOptions` as keywords. The command line offers those that
a text can express; the explorer, the files of parts, and saved models hold them as records. All of
them build the same object. A new option is a new field here.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, Field, replace
from functools import partial
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    Final,
    ParamSpec,
    Self,
    TypeAlias,
    TypeVar,
)

from clew.backends.option_checks import (
    CACHE_DTYPES,
    OPT_LEVELS,
    PRECISIONS,
    check_cache_dtype,
    check_opt_level,
    check_precision,
    checked_budgets,
    checked_guard,
    checked_inputs,
    checked_links,
    checked_on_progress,
    checked_passes,
    checked_signature,
    checked_target,
    checked_threads,
    checked_trust,
    checked_tuned,
)
from clew.backends.option_fields import (
    Group,
    Option,
    are_equal,
    checked_names,
    default_of,
    described,
    fields_of,
    grouped,
    option,
    shown,
)
from clew.backends.option_records import LIVE, recorded, value_of_record
from clew.support.bounds import BOUNDS, check_bounds
from clew.support.budgets import Budgets
from clew.support.dataclass import dataclass
from clew.support.errors import InputError
from clew.support.links import LINKS
from clew.support.near import did_you_mean
from clew.support.settings import settings
from clew.support.size_ranges import GivenSize, read_sizes

if TYPE_CHECKING:
    from clew.backends.backend import Backend
    from clew.backends.cpu.schedule_choice import ScheduleFor
    from clew.machine.target import Target
    from clew.passes.base import Pass
    from clew.passes.fusion.mark_fusions import Fusion
    from clew.passes.user_pass import GraphPass
    from clew.runtime.guard import GuardSide
    from clew.schedules import Rule

P = ParamSpec("P")
M = TypeVar("M")
R = TypeVar("R")
G = TypeVar("G", bound="Group")
Extension: TypeAlias = "GraphPass | Fusion | ScheduleFor | Rule[Any] | Backend"
AUTO: Final = "auto"


# --- groups ---------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False, eq=False)
class Sizes(Group):
    """The sizes of free dimensions to compile for."""

    sizes: Mapping[str, GivenSize] | None = option(
        None,
        "Ranges, likely sizes, or fixed sizes of free dimensions, by name.",
        "`(1, 512)` is a range, both ends included, that calls must keep; `[1, 8]` lists likely "
        'sizes, and others work too; `128` fixes the size; and `{"range": (1, 512), "likely": '
        "[128]}` combines the first two (docs/names.md).",
        flag="--sizes",
        metavar="NAME=1:512|1,8|128",
        kind=dict,
        check=lambda sizes: dict(read_sizes({} if sizes is None else sizes).items()),
    )
    specialize: bool = option(
        True,
        "Make builds for sizes that are met often (`compiled.specialized`).",
        "Without them, equal inputs always give equal bits.",
        flag="",
    )


@dataclass(frozen=True, repr=False, eq=False)
class Precision(Group):
    """The precision of products."""

    precision: str = option(
        "f32",
        "Precision of the operands of convolutions and matrix products.",
        "`bf16` and `f16` are summed in f32; `auto` is `bf16` if the target has instructions for "
        "it.",
        metavar="|".join(PRECISIONS),
        check=check_precision,
    )
    keep_f32: Sequence[str] = option(
        (),
        "Layers, or globs of layers, to keep in f32.",
        metavar="LAYER,...",
        check=partial(checked_names, "keep_f32"),
    )
    cache_dtype: str | None = option(
        None,
        "Dtype of stored key-value caches; int8: codes with a scale for each position of each "
        "head.",
        metavar="|".join(CACHE_DTYPES),
        kind=str,
        shown_default="that of the model",
        check=check_cache_dtype,
    )


@dataclass(frozen=True, repr=False, eq=False)
class Passes(Group):
    """The passes over the graph."""

    passes: Sequence[Pass] | None = option(
        None,
        "Passes to run instead of those of the opt level.",
        flag="",
        check=checked_passes,
        is_storable=False,
    )
    fuse: bool = option(
        True, "Fuse operators, or compile a kernel for each.", flag="--fuse/--no-fuse"
    )
    required: Sequence[str] = option(
        (),
        "Passes to run at any opt level, and backends that must run a part of the model.",
        metavar="NAME,...",
        check=partial(checked_names, "required"),
    )
    disabled: Sequence[str] = option(
        (), "Passes to leave out.", metavar="PASS,...", check=partial(checked_names, "disabled")
    )
    instruments: Sequence[Any] = option(
        (),
        "Objects with `before_pass(name, module)` or `after_pass(name, module)` to call.",
        flag="",
        is_storable=False,
    )


@dataclass(frozen=True, repr=False, eq=False)
class Limits(Group):
    """What a model's file, its compilation and its runs may do (docs/safety.md)."""

    budgets: Budgets | None = option(
        None,
        "Limits on the resources of the file, its compilation and its runs, such as run_bytes=2g; "
        "strict: limits for untrusted files.",
        "In Python, `Budgets(run_bytes=2 << 30)` or `Budgets.strict()` (docs/safety.md).",
        flag="--budget",
        metavar="NAME=NUMBER|strict",
        kind=list,
        check=checked_budgets,
        is_storable=False,
        is_saved=False,
    )
    bounds: str = option(
        BOUNDS[0],
        "Out-of-range indices are an error (I320) or clamped.",
        metavar="|".join(BOUNDS),
        check=check_bounds,
    )
    links: str | None = option(
        None,
        "Links to follow to external data; snapshot: links inside a model hub's folder.",
        metavar="|".join(LINKS),
        kind=str,
        shown_default=LINKS[0],
        check=checked_links,
        is_told=False,
    )
    trust: bool | None = option(
        None,
        "Let the model's file run code that it contains.",
        kind=bool,
        check=checked_trust,
        is_told=False,
    )


@dataclass(frozen=True, repr=False, eq=False)
class Diagnostics(Group):
    """Records and checks that do not change results."""

    is_short: ClassVar[bool] = False
    trace: bool = option(
        True,
        "Record the origin of every node, kernel and instruction (`compiled.trace`).",
        "The generated code is the same without it.",
        flag="",
        is_keyed=False,
    )
    guard: bool | GuardSide = option(
        False,
        "Place every buffer between guard pages, aligned to its end or start (for tests).",
        flag="",
        check=checked_guard,
        is_storable=False,
    )


@dataclass(frozen=True, repr=False, eq=False)
class CompileOptions(Group):
    """All options of `clew.compile`, which takes them as keywords: `clew.compile(model, **options)`
    passes those that differ from their defaults.
    """

    is_short: ClassVar[bool] = False
    target: str | Target = option(
        "cpu",
        "Machine to compile for.",
        "`cpu` is this machine.",
        metavar="NAME",
        check=checked_target,
    )
    _: KW_ONLY
    threads: int | None = option(
        None,
        "Threads per run.",
        metavar="N",
        kind=int,
        at_least=1,
        shown_default="all CPUs",
        is_saved=False,
        is_told=False,
        check=checked_threads,
    )
    inputs: Mapping[str, Sequence[int]] | None = option(
        None,
        "Shapes of a file's symbolic inputs, by name.",
        "Also values of inputs with defaults, as for `clew.load`.",
        flag="--shape",
        metavar="NAME=1,3,224,224",
        kind=dict,
        check=checked_inputs,
    )
    signature: str | None = option(
        None,
        "Signature of a TFLite file to compile.",
        "The names of inputs and outputs are those of the signature (docs/tflite.md).",
        metavar="NAME",
        kind=str,
        check=checked_signature,
    )
    sizes: Sizes | Mapping[str, GivenSize] | None = grouped(None, Sizes)
    precision: Precision | str = grouped("f32", Precision)
    opt_level: int = option(
        3,
        "Level of optimization: 0 runs only required passes, 3 all.",
        metavar="|".join(map(str, OPT_LEVELS)),
        at_least=OPT_LEVELS[0],
        at_most=OPT_LEVELS[-1],
        check=check_opt_level,
        is_told=False,
    )
    passes: Passes | Sequence[Pass] | None = grouped(None, Passes)
    extend: Sequence[Extension | str | Path] = option(
        (),
        "Python files to run for their passes, fusions, schedules and backends.",
        "Also these objects themselves: results of `graph_pass`, `fusion` and `schedule_for`, and "
        "backends.",
        metavar="FILE.py",
        is_storable=False,
        is_saved=False,
    )
    backends: Sequence[Backend | str] = option(
        (),
        "Backends that take parts of the model, in order: onnxruntime, openvino, torch, vta, "
        "numpy, or registered ones.",
        "Also backend objects (docs/adding-a-backend.md).",
        flag="--backend",
        metavar="NAME,...",
        is_storable=False,
    )
    place: Any = option(
        None,
        "Which backend runs which operators; first: the first that takes them, auto: by measured "
        "costs; or globs of layers for each backend.",
        '`"first"`, `"auto"` (as `clew.place`), `{"onnxruntime": ["conv*"]}`, a function of a '
        "call, a rule of `clew.partitioning`, or a result of `clew.place`.",
        metavar="first|auto|BACKEND=LAYER,...",
        kind=list,
        is_storable=False,
    )
    fallback: bool = option(
        False,
        "If a backend fails to compile or run a part, warn and run it elsewhere.",
        flag="--fallback/--no-fallback",
        is_storable=False,
    )
    tuned: str | Path | None = option(
        AUTO,
        "Records of clew tune to apply; auto: those in the default file, if it exists.",
        "None applies no records (docs/tune.md).",
        metavar="auto|none|FILE",
        is_saved=False,
        check=checked_tuned,
    )
    cache: bool = option(
        True,
        "Use the disk cache of native code.",
        flag="--cache/--no-cache",
        is_keyed=False,
        is_told=False,
    )
    limits: Limits | Budgets | None = grouped(None, Limits)
    diagnostics: Diagnostics | None = grouped(None, Diagnostics)
    on_progress: Callable[[str], None] | None = option(
        None,
        "Called with the name of each step.",
        flag="",
        is_keyed=False,
        is_told=False,
        check=checked_on_progress,
    )

    @classmethod
    def of(cls, keywords: Mapping[str, Any]) -> Self:
        """Returns the options that keywords of `clew.compile` give: those of this class, and those
        of a group by their own names (`keep_f32=["head*"]`).

        Errors: I014 for other keywords, and for an option beside the group that it belongs to;
        those of wrong values.
        """
        known = {one.name for one in fields_of(cls)}
        own = {name: value for name, value in keywords.items() if name in known}
        single = {name: value for name, value in keywords.items() if name not in known}
        for name in single:
            if name not in PLACES:
                raise unknown_option(name)
            group = PLACES[name].group
            if isinstance(own.get(group), Group):
                raise InputError(
                    "I014",
                    f"{name!r} is given beside {group}=",
                    hint=f"write {group}=clew.{_GROUPS[group].__name__}(..., {name}=...)",
                )
        return cls(**own).changed(**single)

    @staticmethod
    def named(keywords: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the options that keywords of `clew.compile` give, by their own names: a group
        gives those that differ from their defaults. `changed` takes them.

        Errors: I014 for other keywords.
        """
        found: dict[str, Any] = {}
        for name, value in keywords.items():
            if name not in PLACES and name not in _GROUPS:
                raise unknown_option(name)
            if isinstance(value, Group):
                for one in fields_of(type(value)):
                    if not value.has_default(one):
                        found[one.name] = getattr(value, one.name)
            else:
                found[name] = value
        return found

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Self:
        """Returns the options of a record: plain values by the names of options, those in groups
        included. Sizes are texts as on the command line, schedules are records in `extend`.

        Errors: I014 for unknown names, and those of wrong values.
        """
        return cls().changed(
            **{name: value_of_record(name, value) for name, value in record.items()}
        )

    def changed(self, **changes: Any) -> Self:
        """Returns the options with changes by the names of options, those in groups included, as in
        `options.changed(keep_f32=["conv1"], trace=False)`.

        Errors: I014 for unknown names, and those of wrong values.
        """
        own: dict[str, Any] = {}
        for name, value in changes.items():
            place = PLACES.get(name)
            if place is None or isinstance(value, Group) or not place.group:
                if place is None and name not in _GROUPS:
                    raise unknown_option(name)
                own[name] = value
                continue
            group = own.get(place.group, getattr(self, place.group))
            own[place.group] = replace(group, **{name: value})
        return replace(self, **own) if own else self

    def group(self, kind: type[G]) -> G:
        """Returns the options of one group."""
        found = getattr(self, kind.__name__.lower())
        assert isinstance(found, kind)
        return found

    def values(self) -> dict[str, Any]:
        """Returns the options that differ from their defaults by name, those in groups included."""
        found = {}
        for name, place in PLACES.items():
            value = getattr(getattr(self, place.group) if place.group else self, name)
            if not are_equal(value, default_of(place.field)):
                found[name] = value
        return found

    def record(self) -> dict[str, Any]:
        """Returns the options that differ from their defaults and that plain values can express, as
        JSON values. `of_record` reads them.
        """
        plain = {name: recorded(name, value) for name, value in self.values().items()}
        return {name: value for name, value in plain.items() if value is not LIVE}

    def saved(self) -> dict[str, Any]:
        """Returns the record of the options that a saved model keeps: without files, threads, and
        what does not change the program.
        """
        kept = {name: v for name, v in self.record().items() if PLACES[name].option.is_keyed}
        return {name: value for name, value in kept.items() if PLACES[name].option.is_saved}

    def digest(self) -> str | None:
        """Returns a hash that is equal in every process for options that give the same program of
        the same model; the machine and the versions of clew and of its libraries are not part of
        it. Options that change nothing in the program are left out, and the file of tuning records
        counts as it is now.

        It is None if the options do not determine the program, because they hold Python objects or
        name backends, or if a finished program must not be used, because it checks no budgets and
        has no guards.
        """
        values = self.values()
        if not all(PLACES[name].option.is_storable for name in values):
            return None
        keyed = {n: v for n, v in values.items() if PLACES[n].option.is_keyed}
        plain = {name: recorded(name, value) for name, value in keyed.items()}
        plain["target"] = self.target if isinstance(self.target, str) else self.target.key
        plain["threads"] = settings().threads if self.threads is None else self.threads
        plain["tuned"] = _records_now(self.tuned)
        if any(value is LIVE for value in plain.values()):
            return None
        text = json.dumps(plain, sort_keys=True)
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()

    @property
    def loading(self) -> dict[str, Any]:
        """The arguments of `clew.load`."""
        limits = self.group(Limits)
        given = {
            "inputs": self.inputs or None,
            "signature": self.signature,
            "links": limits.links,
            "trust": limits.trust,
        }
        return {name: value for name, value in given.items() if value is not None}

    @property
    def loaded(self) -> Self:
        """The options for a model that `clew.load` has read with those in `loading`."""
        return replace(self, inputs=None, signature=None)

    def keys(self) -> list[str]:
        """The keywords that differ from their defaults."""
        return [one.name for one in fields_of(type(self)) if not self.has_default(one)]

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def __str__(self) -> str:
        """The options that differ from their defaults, in words, except threads and the cache."""
        words = [f"opt level {self.opt_level}"]
        for name, value in self.values().items():
            if not PLACES[name].option.is_told:
                continue
            if name in ("precision", "target"):
                words.append(str(getattr(value, "name", value)))
            elif name == "fuse":
                words.append("not fused")
            elif isinstance(value, (tuple, Mapping)):
                words.append(f"{name}={','.join(_words(value))}")
            else:
                words.append(f"{name}={value}")
        return ", ".join(words)


# --- the table of options -------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """Where an option stands: the name of its group, "" for `CompileOptions` itself, its field and
    its facts.
    """

    group: str
    field: Field[Any]
    option: Option


def _places() -> Iterator[tuple[str, Place]]:
    for one in fields_of(CompileOptions):
        kind: type[Group] | None = one.metadata.get(Group)
        if kind is None:
            yield one.name, Place("", one, one.metadata[Option])
        for inner in fields_of(kind) if kind is not None else ():
            yield inner.name, Place(one.name, inner, inner.metadata[Option])


PLACES: Final[Mapping[str, Place]] = dict(_places())
"""Every option by name, those in groups included, in order."""
_GROUPS: Final[Mapping[str, type[Group]]] = {
    one.name: one.metadata[Group] for one in fields_of(CompileOptions) if Group in one.metadata
}


DEFAULTS: Final = CompileOptions()


def unknown_option(name: str) -> InputError:
    """Returns the error (I014) for a keyword that `clew.compile` does not have."""
    hint = did_you_mean(name, [*PLACES, *_GROUPS], "options")
    return InputError("I014", f"compile has no option {name!r}", hint=hint)


def keywords_of(
    kind: Callable[P, CompileOptions], check_model: Callable[[Any], None] | None = None
) -> Callable[[Callable[[M, CompileOptions], R]], Callable[Concatenate[M, P], R]]:
    """Decorator: a function of a model and `CompileOptions` takes the options as keywords. Its
    signature and documentation list them. If the options are wrong, `check_model` may first raise
    an error about a model that explains them, such as a module of torch with its inputs.
    """

    def decorated(function: Callable[[M, CompileOptions], R]) -> Callable[Concatenate[M, P], R]:
        @functools.wraps(function)
        def called(model: M, /, *args: P.args, **keywords: P.kwargs) -> R:
            given: dict[str, Any] = {**keywords}
            try:
                options = CompileOptions.of(given | _by_position(args))
            except InputError:
                if check_model is not None:
                    check_model(model)
                raise
            return function(model, options)

        own = inspect.signature(function)
        first = next(iter(own.parameters.values()))
        every = [first, *inspect.signature(CompileOptions).parameters.values()]
        called.__signature__ = own.replace(parameters=every)  # type: ignore[attr-defined]
        about, _, errors = inspect.cleandoc(function.__doc__ or "").partition("Errors:")
        called.__doc__ = f"{about}{described(CompileOptions)}\n\nErrors:{errors}"
        return called

    return decorated


def _by_position(values: Sequence[Any]) -> dict[str, Any]:
    """Returns the target, the only option that may be given by position.

    Errors: I014 for more options.
    """
    if len(values) > 1:
        raise InputError(
            "I014",
            f"{len(values)} options are given by position",
            hint="options other than the target are keywords, such as precision='bf16'",
        )
    return {"target": values[0]} if values else {}


class _Documentation:
    """The documentation of a group with its options, which is written when it is read."""

    def __init__(self, about: str) -> None:
        self._about = about

    def __get__(self, instance: object, kind: type[Group]) -> str:
        return f"{inspect.cleandoc(self._about)}\n\n{described(kind)}"


for _kind in (*_GROUPS.values(), CompileOptions):
    _kind.__doc__ = _Documentation(_kind.__doc__ or "")  # type: ignore[assignment]


def _words(values: Any) -> list[str]:
    if isinstance(values, Mapping):
        pairs = values.items()
        return [f"{n}={shown(getattr(one, 'given', one))}" for n, one in pairs]
    return [str(getattr(value, "name", value)) for value in values]


def _records_now(tuned: str | Path | None) -> Any:
    """Returns the state of the file with tuning records: it changes when the records do. `LIVE`
    stands for a file that cannot be read, which a compilation reports.
    """
    if tuned is None:
        return None
    is_default = str(tuned) == AUTO
    path = settings().tuning if is_default else Path(tuned)
    found: list[Any] = []
    for name in (str(path), f"{path}-wal"):  # SQLite writes new records to the second one first
        try:
            state = os.stat(name)
        except FileNotFoundError:
            continue
        except (OSError, ValueError):
            return LIVE
        times = (state.st_mtime_ns, state.st_ctime_ns)
        found.append([name, state.st_dev, state.st_ino, state.st_size, *times])
    return found if found or is_default else LIVE
