"""Names out of a model file. They may hold anything: newlines, quotes, NUL, a megabyte of text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_SHOWN: Final = 80


def display(name: str) -> str:
    """Returns a name fit for one line of a message: escaped, and cut in the middle when long.

    What tells long names apart stands at their ends: a file's name, a layer's operator.
    """
    if len(name) <= _SHOWN and name.isprintable():
        return name
    if len(name) > 2 * _SHOWN:  # what is cut out anyway need not be escaped
        name = name[:_SHOWN] + name[-_SHOWN:]
    text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)
    if len(text) <= _SHOWN:
        return text
    half = (_SHOWN - 1) // 2
    return f"{text[:half]}…{text[-half:]}"


def display_path(path: Path) -> str:
    """Returns a file's path for a message: of a long one the folders are left out, not the name."""
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
    """Hands out names, each once: a name that is taken gets a number."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def claim(self, wanted: str) -> str:
        """Returns `wanted`, or `wanted_1`, `wanted_2` ... where it is taken."""
        name = wanted
        while name in self._next:
            count = self._next[wanted] = self._next[wanted] + 1
            name = f"{wanted}_{count}"
        self._next[name] = 0
        return name

    def next(self, wanted: str) -> str:
        """Returns the name that `claim` would hand out, without doing so."""
        name, count = wanted, self._next.get(wanted, 0)
        while name in self._next:
            count += 1
            name = f"{wanted}_{count}"
        return name


class Symbols:
    """Names of sizes. The same text of the model is the same size; every name is an identifier."""

    def __init__(self) -> None:
        self._names = UniqueNames()
        self._given: dict[str, str] = {}

    def named(self, text: str) -> str:
        """Returns the name of the size that the model calls `text`."""
        if text not in self._given:
            self._given[text] = self.fresh(text)
        return self._given[text]

    def fresh(self, wanted: str) -> str:
        """Returns a new name, after `wanted` where that can be."""
        name = re.sub(r"\W", "_", wanted, flags=re.ASCII)[:_SHOWN]
        if not name or name[0].isdigit():
            name = f"_{name}"
        return self._names.claim(name)
