"""Names similar to a mistyped one, for hints."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final

_LISTED: Final = 12
_GLOBS: Final = frozenset("*?[")


def near(name: str, known: Iterable[str], most: int = 3) -> list[str]:
    """Returns the known names closest to a name or glob, the closest first."""
    import difflib  # noqa: PLC0415 - only mistakes need it

    names = list(dict.fromkeys(known))
    plain = "".join(c for c in name if c not in _GLOBS)
    close = difflib.get_close_matches(plain, names, most, cutoff=0.6)
    folded = [n for n in names if n.casefold() == plain.casefold()]
    ends = [n for n in names if len(plain) > 2 and plain in n]
    return list(dict.fromkeys([*folded, *close, *ends]))[:most]


def did_you_mean(name: str, known: Iterable[str], what: str = "names") -> str:
    """Returns a hint for an unknown name: similar names, else the first of all known names."""
    names = list(dict.fromkeys(known))
    close = near(name, names)
    if close:
        return f"did you mean {' or '.join(close)}?"
    if not names:
        return f"there are no {what}"
    return f"the {what} are {listed(names)}"


def listed(names: Iterable[str], most: int = _LISTED) -> str:
    """Returns the first `most` names, separated by commas."""
    found = list(names)
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more


def is_glob(name: str) -> bool:
    """Whether a name is a glob."""
    return any(c in name for c in _GLOBS)


def fitting(pattern: str, names: Iterable[str]) -> list[str]:
    """Returns the names that equal a name or match a glob."""
    return [n for n in names if n == pattern or fnmatchcase(n, pattern)]
