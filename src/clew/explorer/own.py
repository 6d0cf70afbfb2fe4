"""Options of a server's builds, in two halves: those that its page may choose, and the rest.

The page chooses `schema.Options`. Only the command line sets paths of programs to run, links to
follow, the handling of out-of-range indices, budgets and the cache: `Own` goes to the worker
processes with the page's choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

from clew.compiling.options import CompileOptions
from clew.explorer.schema import Options
from clew.support.budgets import current
from clew.support.errors import InputError

_OWN: Final = ("links", "bounds", "cache")


@dataclass(frozen=True)
class Own:
    """Options of all builds of a server that only its command line may set.

    `extend` has paths of Python files by the names that `Options.extend` uses.
    """

    extend: Mapping[str, str] = field(default_factory=dict)
    links: str = "none"
    bounds: str = "check"
    cache: bool = True
    budgets: Mapping[str, int] = field(default_factory=lambda: asdict(current()))


def compile_options(options: Options, own: Own) -> CompileOptions:
    """Returns a build's options for `clew.load` and `clew.compile`.

    Errors: I342 for extension files that the command line did not give.
    """
    check_extensions(options, own)
    given = {f.name: getattr(options, f.name) for f in fields(options)}
    files = tuple(own.extend[name] for name in options.extend)
    mine = {name: getattr(own, name) for name in _OWN}
    return CompileOptions(**{**given, **mine, "extend": files})


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
    for path in dict.fromkeys(path for one in given for path in one.extend):
        name, number = Path(path).name, 1
        while name in names.values():
            number += 1
            name = f"{Path(path).name} ({number})"
        names[path] = name
    shared = {f.name for f in fields(Options)} - {"extend"}
    found = []
    for one in given:
        values = {name: _plain(getattr(one, name)) for name in shared}
        found.append(Options(**values, extend=[names[path] for path in one.extend]))
    own = Own({name: str(Path(path).absolute()) for path, name in names.items()})
    return found, replace(own, **{n: getattr(given[0], n) for n in _OWN}) if given else own


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(v) for key, v in value.items()}
    return list(value) if isinstance(value, tuple) else value
