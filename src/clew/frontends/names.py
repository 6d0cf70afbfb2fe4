"""Names from a model file. They may contain anything: newlines, quotes, NUL, a megabyte of text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_SHOWN: Final = 80


def display(name: str) -> str:
    """Returns a name for one line of a message: escaped, with the middle cut out of a long one.

    Long names usually differ at their ends: a file's name, a layer's operator.
    """
    if len(name) <= _SHOWN and name.isprintable():
        return name
    if len(name) > 2 * _SHOWN:  # the part that is cut out need not be escaped
        name = name[:_SHOWN] + name[-_SHOWN:]
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)
    if len(text) <= _SHOWN:
        return text
    half = (_SHOWN - 1) // 2
    return f"{text[:half]}…{text[-half:]}"


def display_path(path: Path) -> str:
    """Returns a file's path for a message; a long one is shortened by its folders, not its name."""
    whole = str(path)
    if len(whole) <= _SHOWN and whole.isprintable():
        return whole
    return f"…/{display(path.name)}" if path.parent.name else display(path.name)


def listing(names: Iterable[str], most: int = 8) -> str:
    """Returns names joined by commas, the rest counted."""
    all_names = [display(name) for name in names]
    more = f" and {len(all_names) - most} more" if len(all_names) > most else ""
    return ", ".join(all_names[:most]) + more


class UniqueNames:
    """Assigns unique names: a name that is taken gets a number."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def claim(self, wanted: str) -> str:
        """Returns `wanted`, or `wanted_1`, `wanted_2` ... if it is taken."""
        name = wanted
        while name in self._next:
            count = self._next[wanted] = self._next[wanted] + 1
            name = f"{wanted}_{count}"
        self._next[name] = 0
        return name

    def next(self, wanted: str) -> str:
        """Returns the name that `claim` would return, without claiming it."""
        name, count = wanted, self._next.get(wanted, 0)
        while name in self._next:
            count += 1
            name = f"{wanted}_{count}"
        return name


class Symbols:
    """Names of sizes. Equal text in the model is the same size; every name is an identifier."""

    def __init__(self) -> None:
        self._names = UniqueNames()
        self._given: dict[str, str] = {}

    def named(self, text: str) -> str:
        """Returns the name of the size that the model calls `text`."""
        if text not in self._given:
            self._given[text] = self.fresh(text)
        return self._given[text]

    def fresh(self, wanted: str) -> str:
        """Returns a new name, derived from `wanted` if possible."""
        name = re.sub(r"\W", "_", wanted, flags=re.ASCII)[:_SHOWN]
        if not name or name[0].isdigit():
            name = f"_{name}"
        return self._names.claim(name)
