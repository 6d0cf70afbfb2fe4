"""The options of `clew.compile`, each stated once: its name, type, default, help and check.

`clew.compile` takes the fields of `CompileOptions` as keywords. The command line offers those that
a text can express; the explorer, the files of parts, and saved models hold them as records. All of
them build the same object. A new option is a new field here.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import hashlib
import inspect
import json
import os
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, Field, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    Final,
    NamedTuple,
    ParamSpec,
    Self,
    TypeAlias,
    TypeVar,
)

from clew.support.bounds import BOUNDS, check_bounds
from clew.support.budgets import Budgets
from clew.support.errors import InputError
from clew.support.files import open_plain
from clew.support.interrupts import held_interrupts
from clew.support.links import LINKS, check_links
from clew.support.loading import LOADING
from clew.support.near import did_you_mean
from clew.support.settings import settings
from clew.support.size_ranges import GivenSize, SizeRange, read_size_text, read_sizes

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
OPT_LEVELS: Final = (0, 1, 2, 3)
PRECISIONS: Final = ("f32", "bf16", "f16", "auto")
_LONGEST_SCHEDULE_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class Option:
    """What is known of an option besides its name, type and default.

    `help` is one line for `--help` and `help(clew.compile)`; `more` follows it in Python only.
    `flag` is the name on the command line: None if it follows from the option's, "" if it has none
    there. `metavar` is the form of a value, `kind` its type if the default does not tell, and
    `at_least` and `at_most` are the limits of a number. Programs do not depend on an option that
    is not `is_keyed`. `check` returns the value to keep, or raises the coded error.
    """

    help: str
    more: str = ""
    flag: str | None = None
    metavar: str = ""
    kind: type | None = None
    at_least: int | None = None
    at_most: int | None = None
    shown_default: str = ""
    is_keyed: bool = True
    check: Callable[[Any], Any] | None = None


def option(default: Any, help: str, more: str = "", **facts: Any) -> Any:
    """Returns the field of an option."""
    return field(default=default, metadata={Option: Option(help, more, **facts)})


def grouped(default: Any, kind: type[Group]) -> Any:
    """Returns the field of a group of options, whose help is that of the first one."""
    first: Option = _fields(kind)[0].metadata[Option]
    said = (first.help, first.more) if kind.is_short else ((kind.__doc__ or "").strip(), "")
    return field(default=default, metadata={Option: Option(*said), Group: kind})


def _fields(kind: type[Group]) -> tuple[Field[Any], ...]:
    return fields(kind)  # type: ignore[arg-type]


# --- checks of values -----------------------------------------------------------------------------


def _wrong(name: str, value: object, hint: str) -> InputError:
    return InputError("I015", f"{name} is {value!r}", hint=hint)


def _flag(name: str, value: Any) -> Any:
    if not isinstance(value, bool):
        raise _wrong(name, value, "it is True or False")
    return value


def _several(name: str, value: Any) -> tuple[Any, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise _wrong(name, value, f"it is a list, as in {name}=[...]")
    return tuple(value)


def check_opt_level(level: Any) -> int:
    """Errors: I011 for a level that does not exist."""
    if isinstance(level, bool) or level not in OPT_LEVELS:
        raise InputError("I011", f"opt_level is {level!r}", hint="it is 0, 1, 2 or 3")
    return int(level)


def check_precision(precision: Any) -> str:
    """Errors: I013 for a precision that does not exist."""
    if precision not in PRECISIONS:
        known = ", ".join(PRECISIONS)
        raise InputError("I013", f"no precision {precision!r}", hint=f"it is one of {known}")
    return str(precision)


def _passes(passes: Any) -> tuple[Any, ...] | None:
    return None if passes is None else _several("passes", passes)


def _budgets(budgets: Any) -> Budgets | None:
    if budgets is None or isinstance(budgets, Budgets):
        return budgets
    raise _wrong("budgets", budgets, "give clew.Budgets(...), or clew.Budgets.strict()")


def _links(links: Any) -> str | None:
    return None if links is None else check_links(links)


def _trust(trust: Any) -> bool | None:
    return None if trust is None else bool(_flag("trust", trust))


def _guard(guard: Any) -> Any:
    if isinstance(guard, (bool, enum.Enum)):
        return guard
    raise _wrong("guard", guard, "it is True, False or a GuardSide")


# --- groups ---------------------------------------------------------------------------------------


class Group:
    """Options that belong together. The `repr` shows those that differ from their defaults.

    Where a group is expected, a value of its first option stands for the group, if `is_short`.
    """

    is_short: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for one in _fields(type(self)):
            object.__setattr__(self, one.name, _checked(one, getattr(self, one.name)))

    def __repr__(self) -> str:
        parts: list[str] = []
        for number, one in enumerate(_fields(type(self))):
            value = getattr(self, one.name)
            if value != _default(one):
                named = number or parts or not self.is_short
                parts.append(f"{one.name}={_shown(value)}" if named else _shown(value))
        return f"{type(self).__name__}({', '.join(parts)})"


@dataclass(frozen=True, repr=False)
class Sizes(Group):
    """The sizes of free dimensions to compile for."""

    sizes: Mapping[str, GivenSize] | None = option(
        None,
        "Ranges, likely sizes, or only sizes of free dimensions, by name.",
        "`(1, 512)` is a range, both ends included, that calls must keep; `[1, 8]` lists the sizes "
        'expected most, while others work too; `128` fixes the size; and `{"range": (1, 512), '
        '"likely": [128]}` combines the first two (docs/names.md).',
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


@dataclass(frozen=True, repr=False)
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
        (), "Layers, or globs of layers, to keep in f32.", metavar="LAYER,..."
    )


@dataclass(frozen=True, repr=False)
class Passes(Group):
    """The passes over the graph."""

    passes: Sequence[Pass] | None = option(
        None, "Passes to run instead of those of the opt level.", flag="", check=_passes
    )
    fuse: bool = option(
        True, "Fuse operators, or compile a kernel for each.", flag="--fuse/--no-fuse"
    )
    required: Sequence[str] = option(
        (),
        "Passes to run at any opt level, and backends that must get part of the model.",
        metavar="NAME,...",
    )
    disabled: Sequence[str] = option((), "Passes to leave out.", metavar="PASS,...")
    instruments: Sequence[Any] = option(
        (),
        "Objects with `before_pass(name, module)` or `after_pass(name, module)` to call.",
        flag="",
    )


@dataclass(frozen=True, repr=False)
class Limits(Group):
    """What a model's file, its compilation and its runs may do (docs/safety.md)."""

    budgets: Budgets | None = option(
        None,
        "Limits on the resources of the file, its compilation and its runs.",
        "`Budgets.strict()` is for untrusted files.",
        flag="--budget",
        metavar="NAME=NUMBER|strict",
        kind=list,
        check=_budgets,
    )
    bounds: str = option(
        BOUNDS[0],
        "Out-of-range indices: an error (I320), or clamped.",
        metavar="|".join(BOUNDS),
        check=check_bounds,
    )
    links: str | None = option(
        None,
        "Links to follow to external data; snapshot: links inside a model hub's folder.",
        metavar="|".join(LINKS),
        kind=str,
        shown_default=LINKS[0],
        check=_links,
    )
    trust: bool | None = option(
        None, "Let the model's file run code that it contains.", kind=bool, check=_trust
    )


@dataclass(frozen=True, repr=False)
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
        check=_guard,
    )


@dataclass(frozen=True, repr=False)
class CompileOptions(Group):
    """All options of `clew.compile`, which takes them as keywords: `clew.compile(model, **options)`
    passes those that differ from their defaults.
    """

    is_short: ClassVar[bool] = False
    target: str | Target = option(
        "cpu", "Machine to compile for.", "`cpu` is this machine.", metavar="NAME"
    )
    _: KW_ONLY
    threads: int | None = option(
        None, "Threads of a run.", metavar="N", kind=int, at_least=1, shown_default="all CPUs"
    )
    inputs: Mapping[str, Sequence[int]] | None = option(
        None,
        "Shapes of a file's symbolic inputs, by name.",
        "Also values of inputs with defaults, as for `clew.load`.",
        flag="--shape",
        metavar="NAME=1,3,224,224",
        kind=dict,
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
    )
    passes: Passes | Sequence[Pass] | None = grouped(None, Passes)
    extend: Sequence[Extension | str | Path] = option(
        (),
        "Python files to run for their passes, fusions, schedules and backends.",
        "Also these objects themselves: results of `graph_pass`, `fusion` and `schedule_for`, and "
        "backends.",
        metavar="FILE.py",
    )
    backends: Sequence[Backend | str] = option(
        (),
        "Backends that take parts of the model, in order: onnxruntime, openvino, torch, vta, "
        "numpy, or registered ones.",
        "Also backend objects (docs/adding-a-backend.md).",
        flag="--backend",
        metavar="NAME,...",
    )
    place: Any = option(
        None,
        "Which backend runs which operators: the first that takes them, by measured costs, or by "
        "layers or globs of them.",
        '`"first"`, `"auto"` (as `clew.place`), `{"onnxruntime": ["conv*"]}`, a function of a '
        "call, a rule of `clew.partitioning`, or a result of `clew.place`.",
        metavar="first|auto|BACKEND=LAYER,...",
        kind=list,
    )
    fallback: bool = option(
        False,
        "Run parts elsewhere that their backend fails to compile or run, with a warning.",
        flag="--fallback/--no-fallback",
    )
    tuned: str | Path | None = option(
        AUTO,
        "Records of clew tune to apply; auto: those in the default file, if it exists.",
        "None applies no records (docs/tune.md).",
        metavar="auto|none|FILE",
    )
    cache: bool = option(
        True, "Use the disk cache of native code.", flag="--cache/--no-cache", is_keyed=False
    )
    limits: Limits | Budgets | None = grouped(None, Limits)
    diagnostics: Diagnostics | None = grouped(None, Diagnostics)
    on_progress: Callable[[str], None] | None = option(
        None, "Called with the name of each step.", flag="", is_keyed=False
    )

    @classmethod
    def of(cls, keywords: Mapping[str, Any]) -> Self:
        """Returns the options that keywords of `clew.compile` give: those of this class, and those
        of a group by their own names (`keep_f32=["head*"]`).

        Errors: I014 for other keywords, and for an option beside the group that it belongs to;
        those of wrong values.
        """
        known = {one.name for one in _fields(cls)}
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
                for one in _fields(type(value)):
                    if getattr(value, one.name) != _default(one):
                        found[one.name] = getattr(value, one.name)
            else:
                found[name] = value
        return found

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Self:
        """Returns the options of a record: plain values by the names of options, those in groups
        included. Sizes are texts as on the command line, schedules are records in `extend`.

        Errors: I014 for unknown names, I176, I315, I357, P020 and P021 for values.
        """
        return cls().changed(**{name: _of_plain(name, value) for name, value in record.items()})

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
        return replace(self, **own)

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
            if value != _default(place.field):
                found[name] = value
        return found

    def record(self) -> dict[str, Any]:
        """Returns the options that differ from their defaults and that plain values can express, as
        JSON values. `of_record` reads them.
        """
        plain = {name: _plain(name, value) for name, value in self.values().items()}
        return {name: value for name, value in plain.items() if value is not _LIVE}

    def saved(self) -> dict[str, Any]:
        """Returns the record of the options that a saved model keeps: without files, threads, and
        what does not change the program.
        """
        kept = {name: v for name, v in self.record().items() if PLACES[name].option.is_keyed}
        return {name: value for name, value in kept.items() if name not in _NOT_SAVED}

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
        if not _UNKEYED.isdisjoint(values):
            return None
        keyed = {n: v for n, v in values.items() if PLACES[n].option.is_keyed}
        plain = {name: _plain(name, value) for name, value in keyed.items()}
        plain["target"] = self.target if isinstance(self.target, str) else self.target.key
        if any(value is _LIVE for value in plain.values()):
            return None
        plain["threads"] = settings().threads if self.threads is None else self.threads
        plain["tuned"] = _records_now(self.tuned)
        text = json.dumps(plain, sort_keys=True)
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()

    @property
    def loading(self) -> dict[str, Any]:
        """The arguments of `clew.load`."""
        limits = self.group(Limits)
        given = {"inputs": self.inputs or None, "links": limits.links, "trust": limits.trust}
        return {name: value for name, value in given.items() if value is not None}

    @property
    def loaded(self) -> Self:
        """The options for a model that `clew.load` has read with those in `loading`."""
        return replace(self, inputs=None)

    def keys(self) -> list[str]:
        """The keywords that differ from their defaults."""
        return [f.name for f in _fields(type(self)) if getattr(self, f.name) != _default(f)]

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def __str__(self) -> str:
        """The options that differ from their defaults, in words, except threads and the cache."""
        words = [f"opt level {self.opt_level}"]
        for name, value in self.values().items():
            if name in _UNSAID:
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


_UNSAID: Final = ("opt_level", "threads", "cache", "links", "trust", "on_progress")
_UNKEYED: Final = frozenset(
    {
        "passes", "instruments", "extend", "backends", "place", "fallback", "budgets", "guard",
    }
)  # fmt: skip
_NOT_SAVED: Final = frozenset({"extend", "threads", "tuned", "budgets"})


# --- the table of options -------------------------------------------------------------------------


class Place(NamedTuple):
    """Where an option stands: the name of its group, "" for `CompileOptions` itself, its field and
    its facts.
    """

    group: str
    field: Field[Any]
    option: Option


def _default(one: Field[Any]) -> Any:
    return _checked(one, one.default)


def _checked(one: Field[Any], value: Any) -> Any:
    kind: type[Group] | None = one.metadata.get(Group)
    about: Option = one.metadata[Option]
    if kind is not None:
        if value is None:
            return kind()
        if isinstance(value, kind):
            return value
        if isinstance(value, Group) or not kind.is_short:
            raise _wrong(one.name, value, f"it is clew.{kind.__name__}(...)")
        made: Callable[[Any], Any] = kind
        return made(value)
    if about.check is not None:
        return about.check(value)
    if isinstance(one.default, bool):
        return _flag(one.name, value)
    if isinstance(one.default, tuple):
        return _several(one.name, value)
    return value


def _places() -> Iterator[tuple[str, Place]]:
    for one in _fields(CompileOptions):
        kind: type[Group] | None = one.metadata.get(Group)
        if kind is None:
            yield one.name, Place("", one, one.metadata[Option])
        for inner in _fields(kind) if kind is not None else ():
            yield inner.name, Place(one.name, inner, inner.metadata[Option])


PLACES: Final[Mapping[str, Place]] = dict(_places())
"""Every option by name, those in groups included, in order."""
_GROUPS: Final[Mapping[str, type[Group]]] = {
    one.name: one.metadata[Group] for one in _fields(CompileOptions) if Group in one.metadata
}


DEFAULTS: Final = CompileOptions()


def unknown_option(name: str) -> InputError:
    """Returns the error (I014) for a keyword that `clew.compile` does not have."""
    hint = did_you_mean(name, [*PLACES, *_GROUPS], "options")
    return InputError("I014", f"compile has no option {name!r}", hint=hint)


def keywords_of(
    kind: Callable[P, CompileOptions],
) -> Callable[[Callable[[M, CompileOptions], R]], Callable[Concatenate[M, P], R]]:
    """Decorator: a function of a model and `CompileOptions` takes the options as keywords. Its
    signature and documentation list them.
    """

    def decorated(function: Callable[[M, CompileOptions], R]) -> Callable[Concatenate[M, P], R]:
        @functools.wraps(function)
        def called(model: M, /, *args: P.args, **keywords: P.kwargs) -> R:
            given: dict[str, Any] = {**keywords}
            if args:
                (given["target"],) = args  # the only option that may be given by position
            return function(model, CompileOptions.of(given))

        own = inspect.signature(function)
        first = next(iter(own.parameters.values()))
        every = [first, *inspect.signature(CompileOptions).parameters.values()]
        called.__signature__ = own.replace(parameters=every)  # type: ignore[attr-defined]
        about, _, errors = inspect.cleandoc(function.__doc__ or "").partition("Errors:")
        called.__doc__ = f"{about}{described(CompileOptions)}\n\nErrors:{errors}"
        return called

    return decorated


def described(kind: type[Group]) -> str:
    """Returns the options of a group as text, a paragraph each."""
    found = ["Options:", ""]
    for one in _fields(kind):
        about: Option = one.metadata[Option]
        group: type[Group] | None = one.metadata.get(Group)
        text = f"{one.name}: {about.help} {about.more}".rstrip()
        if group is not None:
            inner = ", ".join(f.name for f in _fields(group))
            text = f"{text} In full: `clew.{group.__name__}({inner})`."
        found.append(textwrap.fill(text, 96, subsequent_indent="    ", initial_indent="  "))
    return "\n".join(found)


def _document() -> None:
    for kind in (*_GROUPS.values(), CompileOptions):
        kind.__doc__ = f"{inspect.cleandoc(kind.__doc__ or '')}\n\n{described(kind)}"


_document()


# --- records --------------------------------------------------------------------------------------


class _Live:
    """The record of a Python object: none."""


_LIVE: Final = _Live()


def _plain(name: str, value: Any) -> Any:
    """Returns the JSON value of an option; `_LIVE` if none can express it."""
    if name == "sizes":
        return {dimension: one.text for dimension, one in value.items()}
    if name == "extend":
        return _plain_value([getattr(item, "record", item) for item in value])
    return _plain_value(asdict(value) if isinstance(value, Budgets) else value)


def _plain_value(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, (tuple, list)):
        items = [_plain_value(item) for item in value]
        return _LIVE if any(item is _LIVE for item in items) else items
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        pairs = {key: _plain_value(item) for key, item in value.items()}
        return _LIVE if any(item is _LIVE for item in pairs.values()) else pairs
    return _LIVE


def _of_plain(name: str, value: Any) -> Any:
    """Returns the value of an option from a record."""
    if name == "sizes":
        return {dimension: read_size_text(dimension, text) for dimension, text in value.items()}
    if name == "extend":
        return [_of_schedule(item) if isinstance(item, Mapping) else item for item in value]
    if name == "budgets" and isinstance(value, Mapping):
        return Budgets(**value)
    if name == "place" and isinstance(value, (list, tuple)):
        return read_place(value)
    if name == "inputs":
        return {n: tuple(v) if isinstance(v, list) else v for n, v in (value or {}).items()} or None
    return value


def _of_schedule(record: Mapping[str, Any]) -> Any:
    with LOADING, held_interrupts():  # it loads the compiler
        from clew.backends.cpu.schedule_choice import schedule_for  # noqa: PLC0415

    return schedule_for(**record)


def _shown(value: Any) -> str:
    if isinstance(value, Mapping) and any(isinstance(one, SizeRange) for one in value.values()):
        return repr({n: getattr(one, "given", one) for n, one in value.items()})
    if isinstance(value, tuple):
        return repr(list(value))
    return repr(value)


def _words(values: Any) -> list[str]:
    if isinstance(values, Mapping):
        pairs = values.items()
        return [f"{n}={_shown(getattr(one, 'given', one))}" for n, one in pairs]
    return [str(getattr(value, "name", value)) for value in values]


def _records_now(tuned: str | Path | None) -> Any:
    """Returns the state of the file with tuning records: it changes when the records do."""
    if tuned is None:
        return None
    path = settings().tuning if str(tuned) == AUTO else Path(tuned)
    found: list[Any] = []
    for name in (str(path), f"{path}-wal"):  # SQLite writes new records to the second one first
        with contextlib.suppress(OSError):
            state = os.stat(name)
            times = (state.st_mtime_ns, state.st_ctime_ns)
            found.append([name, state.st_dev, state.st_ino, state.st_size, *times])
    return found


def read_place(texts: Sequence[str]) -> str | dict[str, list[str]] | None:
    """Returns where parts of a model run, from texts: `first`, `auto`, or `backend=layer,...`, with
    several texts for several backends.

    Errors: I357 for other texts.
    """
    if not texts or list(texts) in (["first"], ["auto"]):
        return texts[0] if texts else None
    found: dict[str, list[str]] = {}
    for text in texts:
        backend, equals, layers = text.partition("=")
        names = [name.strip() for name in layers.split(",") if name.strip()]
        if not (backend and equals and names):
            raise InputError(
                "I357",
                f"{text!r} does not say which layers run where",
                hint="write backend=layer,... with layers or globs of them; or first, or auto",
            )
        found.setdefault(backend.strip(), []).extend(names)
    return found


def place_texts(place: Any) -> list[str]:
    """Returns where parts of a model run, as `read_place` reads it."""
    if isinstance(place, Mapping):
        pairs = ((b, [n] if isinstance(n, str) else n) for b, n in place.items())
        return [f"{backend}={','.join(names)}" for backend, names in pairs]
    return [place] if place else []


def read_schedule(file: Path) -> str:
    """Returns the schedule steps saved in a file.

    Errors: I341 for a file that cannot be read or is not text.
    """
    try:
        with open_plain(file) as stream:
            data = stream.read(_LONGEST_SCHEDULE_BYTES + 1)
        if len(data) > _LONGEST_SCHEDULE_BYTES:
            raise OSError(f"it has more than {_LONGEST_SCHEDULE_BYTES} bytes")
        return data.decode()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            "I341",
            f"the schedule {str(file)!r} cannot be read: {reason}",
            hint="clew trace MODEL --kernel NAME --save-schedule FILE writes one",
        ) from None
