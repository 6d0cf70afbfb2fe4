"""Reads the part of RE2's syntax that automata on bytes express."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeAlias

from clew.ops.data.regex.classes import EVERY, LAST, Ranges
from clew.support.dataclass import dataclass


@dataclass(frozen=True)
class Characters:
    """One character of ranges."""

    ranges: Ranges


@dataclass(frozen=True)
class Edge:
    """The beginning of the text, or its end."""

    at_end: bool


@dataclass(frozen=True)
class Sequence:
    """Parts in sequence."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Choice:
    """Any one of the parts."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Repeat:
    """A part, repeated `least` to `most` times; without limit if `most` is None."""

    part: Node
    least: int
    most: int | None


Node: TypeAlias = "Characters | Edge | Sequence | Choice | Repeat"

_MOST_DEPTH: Final = 60  # of groups in groups
_NO_LINE_END: Final[Ranges] = ((0, 9), (11, LAST))
_TIMES: Final = re.compile(r"\{([0-9]+)(,([0-9]*))?\}")
_GROUP: Final = re.compile(r"\(\?(?:P?<[^>]*>|([imsU]*)(?:-([imsU]+))?([:)]))")
_NAMED: Final = re.compile(r"\\[pP](?:\{[^}]*\}|.)|\\[dDwWsS]")
_HEX: Final = re.compile(r"\\x(?:\{([0-9A-Fa-f]+)\}|([0-9A-Fa-f]{2}))")
_POSIX: Final = re.compile(r"\[:\^?[a-z]+:\]")
_CONTROLS: Final = {"n": 10, "t": 9, "r": 13, "f": 12, "v": 11, "a": 7}
_PLAIN: Final = re.compile(r"[^\\^$.\[\]|()*+?{}]")


class Unsupported(Exception):
    """A pattern that only RE2 reads."""


def parsed(pattern: str, members: Callable[[str], Ranges | None]) -> Node:
    """Returns the tree of a pattern that RE2 has accepted; `members` gives the characters of a
    class in RE2's syntax.

    Errors: Unsupported.
    """
    parser = _Parser(pattern, members)
    tree = parser.choice("", 0)
    if parser.at < len(pattern):
        raise Unsupported
    return tree


class _Parser:
    def __init__(self, pattern: str, members: Callable[[str], Ranges | None]) -> None:
        self.at = 0
        self._pattern = pattern
        self._members = members

    def _next(self) -> str:
        return self._pattern[self.at : self.at + 1]

    def _takes(self, form: re.Pattern[str]) -> re.Match[str] | None:
        found = form.match(self._pattern, self.at)
        if found:
            self.at = found.end()
        return found

    def choice(self, flags: str, depth: int) -> Node:
        """Reads alternatives up to the end of a group or of the pattern. Flags hold from where they
        are set to the end of the group.
        """
        if depth > _MOST_DEPTH:
            raise Unsupported
        choices: list[Node] = []
        parts: list[Node] = []
        while self._next() not in ("", ")"):
            if self._next() == "|":
                self.at += 1
                choices.append(Sequence(tuple(parts)))
                parts = []
                continue
            start = self.at
            group = self._takes(_GROUP) if self._next() == "(" else None
            if group and group[3] == ")":
                flags = _with_flags(flags, group)
                if self._times() != (1, 1):
                    raise Unsupported  # of the part before
                continue
            if group or self._next() == "(":
                inner = _with_flags(flags, group) if group else flags
                self.at += not group
                part = self.choice(inner, depth + 1)
                if self._next() != ")":
                    raise Unsupported
                self.at += 1
            else:
                part = self._single(flags)
            assert self.at > start
            parts.append(self._repeated(part))
        choices.append(Sequence(tuple(parts)))
        return choices[0] if len(choices) == 1 else Choice(tuple(choices))

    def _single(self, flags: str) -> Node:
        """Reads a character, a class or an edge."""
        sign = self._next()
        if sign == "\\":
            return self._escaped(flags)
        if sign == "[":
            return self._class(self._bracketed(), flags)
        self.at += 1
        if sign == ".":
            return Characters(EVERY if "s" in flags else _NO_LINE_END)
        if sign in "^$":
            if "m" in flags:
                raise Unsupported
            return Edge(at_end=sign == "$")
        # RE2 takes a brace that is no valid repetition as a character.
        if sign == "{" or _PLAIN.match(sign) or sign in "]}":
            return self._literal(ord(sign), flags)
        raise Unsupported

    def _escaped(self, flags: str) -> Node:
        if named := self._takes(_NAMED):
            return self._class(named[0], flags)
        if number := self._takes(_HEX):
            return self._literal(int(number[1] or number[2], 16), flags)
        sign = self._pattern[self.at + 1 : self.at + 2]
        self.at += 2
        if sign in ("A", "z"):
            return Edge(at_end=sign == "z")
        if sign in _CONTROLS:
            return self._literal(_CONTROLS[sign], flags)
        if sign.isascii() and sign.isprintable() and sign and not sign.isalnum():
            return self._literal(ord(sign), flags)
        raise Unsupported

    def _bracketed(self) -> str:
        """Reads a class in brackets, and returns its text."""
        begin = self.at
        self.at += 1
        self.at += self._next() == "^"
        first = True
        while first or self._next() != "]":
            sign = self._next()
            if not sign:
                raise Unsupported
            if sign == "\\":
                if not (self._takes(_NAMED) or self._takes(_HEX)):
                    self.at += 2
            elif self._pattern.startswith("[:", self.at):
                if not self._takes(_POSIX):
                    raise Unsupported
            else:
                self.at += 1
            first = False
        self.at += 1
        return self._pattern[begin : self.at]

    def _literal(self, code: int, flags: str) -> Node:
        if "i" not in flags:
            return Characters(((code, code),))
        sign = chr(code)
        plain = sign.isascii() and sign.isalnum()
        return self._class(sign if plain else f"\\x{{{code:x}}}", flags)

    def _class(self, text: str, flags: str) -> Node:
        ranges = self._members(f"(?i:{text})" if "i" in flags else text)
        if ranges is None:
            raise Unsupported
        return Characters(ranges)

    def _repeated(self, part: Node) -> Node:
        """Reads how often a part is repeated."""
        least, most = self._times()
        if (least, most) == (1, 1):
            return part
        if self._next() == "?":  # lazy, which is equal to greedy if the whole text must match
            self.at += 1
        if self._times() != (1, 1):
            raise Unsupported
        return Repeat(part, least, most)

    def _times(self) -> tuple[int, int | None]:
        signs: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        if found := signs.get(self._next()):
            self.at += 1
            return found
        if not (times := self._takes(_TIMES)):
            return 1, 1
        least = int(times[1])
        if (least, times[2]) == (1, None):
            raise Unsupported  # it would be taken for no repetition
        return least, int(times[3]) if times[3] else None if times[2] else least


def _with_flags(flags: str, group: re.Match[str]) -> str:
    """Returns the flags inside a group."""
    kept = set(flags) | set(group[1] or "")
    return "".join(sorted(kept - set(group[2] or "")))
