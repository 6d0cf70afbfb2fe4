"""Options of a server's builds, in two halves: those that its page may choose, and the rest.

The page chooses `schema.Options`. Paths of programs to run, links to follow, what becomes of
indices out of range, budgets and the cache are for the command line alone: `Own` goes to the worker
processes beside the page's choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

from clew.compile_options import CompileOptions
from clew.explorer.schema import Options
from clew.support.budgets import current
from clew.support.errors import InputError

_OWN: Final = ("links", "bounds", "cache")


@dataclass(frozen=True)
class Own:
    """How all builds of a server are read and compiled: what its command line alone may say.

    `extend` has paths of Python files by the names that `Options.extend` uses.
    """

    extend: Mapping[str, str] = field(default_factory=dict)
    links: str = "none"
    bounds: str = "check"
    cache: bool = True
    budgets: Mapping[str, int] = field(default_factory=lambda: asdict(current()))


def compile_options(options: Options, own: Own) -> CompileOptions:
    """Returns options of a build as those that `clew.load` and `clew.compile` are called with.

    Errors: I342 for files to extend with that the command line did not give.
    """
    check_extensions(options, own)
    given = {f.name: getattr(options, f.name) for f in fields(options)}
    files = tuple(own.extend[name] for name in options.extend)
    mine = {name: getattr(own, name) for name in _OWN}
    return CompileOptions(**{**given, **mine, "extend": files})


def check_extensions(options: Options, own: Own) -> None:
    """Checks the names of files to extend with.

    Errors: I342.
    """
    unknown = [name for name in options.extend if name not in own.extend]
    if unknown:
        raise InputError(
            "I342",
            f"no file {unknown[0][:100]!r} to extend with was given",
            hint=f"clew explore --extend FILE.py; given are {', '.join(own.extend) or 'none'}",
        )


def split_options(given: Sequence[CompileOptions]) -> tuple[list[Options], Own]:
    """Returns options of builds as the page has them, and what they have in common that it may not
    say: files by names, links, bounds, the cache, and the budgets of this process.
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
