"""Options of a server's builds, in two halves: those that its page may choose, and the rest.

The page chooses `schema.Options`. Only the command line sets paths of programs to run, links to
follow, the handling of out-of-range indices, budgets and the cache: `Own` goes to the worker
processes with the page's choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Final

from clew.backends.compile_options import CompileOptions
from clew.backends.option_records import place_texts
from clew.explorer.schema import Options
from clew.support.budgets import current
from clew.support.errors import InputError

_OWN: Final = ("links", "bounds", "cache")
_NOT_SAME: Final = ("extend", "schedules", "shapes")  # they differ from the record of options


@dataclass(frozen=True)
class Own:
    """Options of all builds of a server that only its command line may set.

    `extend` has paths of Python files by the names that `Options.extend` uses.
    """

    extend: Mapping[str, str] = field(default_factory=dict)
    links: str | None = None
    bounds: str = "check"
    cache: bool = True
    budgets: Mapping[str, int] = field(default_factory=lambda: asdict(current()))


def compile_options(options: Options, own: Own) -> CompileOptions:
    """Returns a build's options for `clew.load` and `clew.compile`.

    Errors: I342 for extension files that the command line did not give.
    """
    check_extensions(options, own)
    given = {f.name: getattr(options, f.name) for f in fields(options) if f.name not in _NOT_SAME}
    mine = {name: getattr(own, name) for name in _OWN}
    files = [own.extend[name] for name in options.extend]
    record = {**given, **mine, "inputs": options.shapes, "extend": files}
    return CompileOptions.of_record(record)


def check_extensions(options: Options, own: Own) -> None:
    """Checks the names of extension files.

    Errors: I342.
    """
    unknown = [name for name in options.extend if name not in own.extend]
    if unknown:
        raise InputError(
            "I342",
            f"the command line did not give the extension file {unknown[0][:100]!r}",
            hint=f"use clew explore --extend FILE.py; it gave {', '.join(own.extend) or 'none'}",
        )


def split_options(given: Sequence[CompileOptions]) -> tuple[list[Options], Own]:
    """Returns each build's options as the page has them, and the common options that the page may
    not set: extension files by name, links, bounds, the cache, and this process's budgets.
    """
    names: dict[str, str] = {}  # of paths
    files = [[str(x) for x in one.extend if isinstance(x, (str, Path))] for one in given]
    for path in dict.fromkeys(path for paths in files for path in paths):
        name, number = Path(path).name, 1
        while name in names.values():
            number += 1
            name = f"{Path(path).name} ({number})"
        names[path] = name
    shared = {f.name for f in fields(Options)} - {*_NOT_SAME, "place"}
    found = []
    for one, paths in zip(given, files, strict=True):
        record = one.record()
        values = {name: value for name, value in record.items() if name in shared}
        steps = {x["kernel"]: x["steps"] for x in record.get("extend", ()) if "steps" in x}
        found.append(
            Options(
                **values,
                place=place_texts(record.get("place")),
                extend=[names[path] for path in paths],
                schedules=steps,
                shapes=record.get("inputs", {}),
            )
        )
    own = Own({name: str(Path(path).absolute()) for path, name in names.items()})
    mine = {name: value for name, value in given[0].values().items() if name in _OWN}
    return found, replace(own, **mine)
