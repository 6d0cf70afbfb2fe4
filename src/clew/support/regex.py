r"""Regular expressions of RE2's syntax, matched in time linear in the text.

Python's `re` goes back and tries again, for which a short pattern can take for ever; here all ways
through the pattern are followed at once (Thompson, 1968), and sets of them are remembered as states
of an automaton. Texts are sequences of code points; only whole texts are matched, so that greedy
and lazy repetition mean the same.

What RE2 has and this has not: Unicode scripts (`\p{Greek}`) and `\C`, a single byte.
Source: RE2's page on syntax.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

MAX_STEPS: Final = 10_000
"""Steps of a compiled pattern, counted repetition written out."""
_MAX_REPEAT: Final = 1000  # as RE2
_MAX_NESTING: Final = 100
_MAX_STATES: Final = 1000
_LAST: Final = 0x10FFFF

Ranges: TypeAlias = tuple[tuple[int, int], ...]


class RegexError(ValueError):
    """A pattern that does not follow the syntax, or is too large."""


# --- sets of characters ---------------------------------------------------------------------------


def _joined(ranges: Iterable[tuple[int, int]]) -> Ranges:
    found: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return tuple(found)


def _others(ranges: Ranges) -> Ranges:
    found, start = [], 0
    for low, high in ranges:
        if start < low:
            found.append((start, low - 1))
        start = high + 1
    if start <= _LAST:
        found.append((start, _LAST))
    return tuple(found)


def _named(text: str) -> Ranges:
    """Returns the ranges that pairs of characters name: `azAZ`."""
    return _joined((ord(a), ord(b)) for a, b in zip(text[::2], text[1::2], strict=True))


_DIGIT: Final = _named("09")
_WORD: Final = _named("09AZaz__")
_PERL: Final = {"d": _DIGIT, "w": _WORD, "s": _named("\t\n\f\r  ")}
_POSIX: Final = {
    "alnum": _named("09AZaz"), "alpha": _named("AZaz"), "ascii": ((0, 127),),
    "blank": _named("\t\t  "), "cntrl": ((0, 31), (127, 127)), "digit": _DIGIT,
    "graph": _named("!~"), "lower": _named("az"), "print": _named(" ~"),
    "punct": _named("!/:@[`{~"), "space": _named("\t\r  "), "upper": _named("AZ"),
    "word": _WORD, "xdigit": _named("09AFaf"),
}  # fmt: skip
_CONTROLS: Final = {"a": 7, "f": 12, "t": 9, "n": 10, "r": 13, "v": 11}
_CATEGORIES: Final = frozenset(
    ("L", "LC", "M", "N", "P", "S", "Z", "C", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd",
     "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp",
     "Cc", "Cf", "Cs", "Co", "Cn")
)  # fmt: skip


@dataclass(frozen=True)
class _Set:
    """Characters: of ranges or of Unicode categories (which may be negated), or all others."""

    ranges: Ranges
    categories: tuple[tuple[str, bool], ...] = ()
    negated: bool = False
    fold: bool = False

    def holds(self, char: str) -> bool:
        """Whether a character is in the set."""
        found = self._has(char)
        if not found and self.fold:
            found = any(len(c) == 1 and self._has(c) for c in _cases(char))
        return found != self.negated

    def _has(self, char: str) -> bool:
        code = ord(char)
        place = bisect_right(self.ranges, (code, _LAST + 1)) - 1
        if place >= 0 and code <= self.ranges[place][1]:
            return True
        return any(_of_category(char, name) != no for name, no in self.categories)


def _cases(char: str) -> tuple[str, ...]:
    return (char.lower(), char.upper(), char.casefold(), char.lower().upper())


def _of_category(char: str, name: str) -> bool:
    if name == "Any":
        return True
    category = unicodedata.category(char)
    return category in ("Lu", "Ll", "Lt") if name == "LC" else category.startswith(name)


# --- patterns -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Join:
    parts: tuple[_Node, ...]


@dataclass(frozen=True)
class _Either:
    parts: tuple[_Node, ...]


@dataclass(frozen=True)
class _Repeat:
    part: _Node
    least: int
    most: int | None


@dataclass(frozen=True)
class _Where:
    """A place: `A` start of the text, `z` its end, `^` and `$` of a line, `b` and `B` of a word."""

    kind: str


_Node: TypeAlias = "_Set | _Join | _Either | _Repeat | _Where"


@dataclass(frozen=True)
class _Flags:
    fold: bool = False
    lines: bool = False
    dot_all: bool = False


class _Parser:
    def __init__(self, pattern: str) -> None:
        self.text = pattern
        self.at = 0
        self.depth = 0

    def parse(self) -> _Node:
        node, _ = self._either(_Flags())
        if self.at < len(self.text):
            raise RegexError("a ) closes nothing")
        return node

    def _peek(self, count: int = 1) -> str:
        return self.text[self.at : self.at + count]

    def _next(self) -> str:
        if self.at >= len(self.text):
            raise RegexError("the pattern ends too early")
        self.at += 1
        return self.text[self.at - 1]

    def _either(self, flags: _Flags) -> tuple[_Node, _Flags]:
        parts: list[_Node] = []
        while True:
            node, flags = self._join(flags)
            parts.append(node)
            if self._peek() != "|":
                return (parts[0] if len(parts) == 1 else _Either(tuple(parts))), flags
            self.at += 1

    def _join(self, flags: _Flags) -> tuple[_Node, _Flags]:
        parts: list[_Node] = []
        repeatable = False
        while self._peek() not in ("", "|", ")"):
            count = self._count()
            if count is not None:
                if not repeatable:
                    raise RegexError("a repetition has nothing to repeat")
                parts[-1] = _Repeat(parts[-1], *count)
                repeatable = False
                continue
            if self._peek(2) == "\\Q":
                parts += [self._literal(c, flags) for c in self._quoted()]
                repeatable = bool(parts)
                continue
            if self._peek(2) == "(?" and (changed := self._flags_alone(flags)) is not None:
                flags, repeatable = changed, False
                continue
            parts.append(self._atom(flags))
            repeatable = True
        return (parts[0] if len(parts) == 1 else _Join(tuple(parts))), flags

    def _quoted(self) -> str:
        end = self.text.find("\\E", self.at)
        quoted = self.text[self.at + 2 : end if end >= 0 else None]
        self.at = end + 2 if end >= 0 else len(self.text)
        return quoted

    def _count(self) -> tuple[int, int | None] | None:
        """Reads a repetition, if one stands here; a brace that is none is a plain character."""
        simple: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        found = simple.get(self._peek())
        if found is not None:
            self.at += 1
        elif self._peek() == "{":
            end = self.text.find("}", self.at)
            low, comma, high = self.text[self.at + 1 : max(end, self.at + 1)].partition(",")
            if not _is_number(low) or (high and not _is_number(high)):
                return None
            least = _bounded(low)
            found = least, (_bounded(high) if high else None) if comma else least
            if found[1] is not None and found[1] < least:
                raise RegexError(f"{{{low},{high}}} repeats at most less than at least")
            self.at = end + 1
        else:
            return None
        if self._peek() == "?":  # lazy: the same for whole texts
            self.at += 1
        return found

    def _flags_alone(self, flags: _Flags) -> _Flags | None:
        """Reads `(?flags)`, if it stands here."""
        end = self.text.find(")", self.at)
        body = self.text[self.at + 2 : end if end >= 0 else self.at + 2]
        if not body or not set(body) <= set("imsU-"):
            return None
        self.at = end + 1
        return _changed(flags, body)

    def _atom(self, flags: _Flags) -> _Node:
        char = self._next()
        if char == "(":
            return self._group(flags)
        if char == "[":
            return self._class(flags)
        if char == ".":
            return _Set(((0, _LAST),) if flags.dot_all else _others(((10, 10),)))
        if char == "^":
            return _Where("^" if flags.lines else "A")
        if char == "$":
            return _Where("$" if flags.lines else "z")
        if char == "\\":
            return self._escape(flags)
        return self._literal(char, flags)

    def _literal(self, char: str, flags: _Flags) -> _Set:
        return _Set(((ord(char), ord(char)),), fold=flags.fold)

    def _group(self, flags: _Flags) -> _Node:
        self.depth += 1
        if self.depth > _MAX_NESTING:
            raise RegexError(f"groups are nested more than {_MAX_NESTING} deep")
        if self._peek() == "?":
            self.at += 1
            flags = self._group_flags(flags)
        node, _ = self._either(flags)
        if self._peek() != ")":
            raise RegexError("a ( is not closed")
        self.at += 1
        self.depth -= 1
        return node

    def _group_flags(self, flags: _Flags) -> _Flags:
        named = 2 if self._peek(2) == "P<" else 1 if self._peek() == "<" else 0
        if named:
            end = self.text.find(">", self.at)
            name = self.text[self.at + named : max(end, self.at + named)]
            if not name or not set(map(ord, name)) <= _WORD_CODES:
                raise RegexError("a group's name is no word (lookbehind is not supported)")
            self.at = end + 1
            return flags
        end = self.text.find(":", self.at)
        body = self.text[self.at : max(end, self.at)]
        if end < 0 or not set(body) <= set("imsU-"):
            raise RegexError(f"(?{self._peek()} is not supported: RE2 looks neither ahead nor back")
        self.at = end + 1
        return _changed(flags, body)

    def _escape(self, flags: _Flags) -> _Node:
        char = self._peek()
        if char and char in "AzbB":
            self.at += 1
            return _Where(char)
        found = self._escaped_set(flags)
        if found is not None:
            return found
        return self._literal(chr(self._escaped_code()), flags)

    def _escaped_set(self, flags: _Flags) -> _Set | None:
        """Reads what stands for a set after a backslash, if it does."""
        char = self._peek()
        if char and char.lower() in _PERL:
            self.at += 1
            ranges = _PERL[char.lower()]
            return _Set(ranges if char.islower() else _others(ranges), fold=False)
        if char not in ("p", "P"):
            return None
        self.at += 1
        name = self._next()
        if name == "{":
            end = self.text.find("}", self.at)
            name = self.text[self.at : max(end, self.at)]
            self.at = end + 1 if end >= 0 else len(self.text)
        negated = (char == "P") != name.startswith("^")
        name = name.removeprefix("^")
        if name not in _CATEGORIES and name != "Any":
            raise RegexError(f"\\p{{{name}}} is no Unicode category (scripts are not supported)")
        return _Set((), ((name, negated),), fold=flags.fold)

    def _escaped_code(self) -> int:
        char = self._next()
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char == "x":
            return self._hexadecimal()
        if char in "01234567":
            digits = char
            while len(digits) < 3 and self._peek() and self._peek() in "01234567":
                digits += self._next()
            if char != "0" and len(digits) == 1:
                raise RegexError(f"\\{char} refers back, which RE2 does not")
            return int(digits, 8)
        if ord(char) < 128 and not char.isalnum() and char != "_":
            return ord(char)
        raise RegexError(f"\\{char} has no meaning")

    def _hexadecimal(self) -> int:
        if self._peek() == "{":
            end = self.text.find("}", self.at)
            digits = self.text[self.at + 1 : max(end, self.at + 1)]
            self.at = end + 1 if end >= 0 else len(self.text)
        else:
            digits = self._peek(2)
            self.at += 2
            if len(digits) < 2:
                digits = ""
        if not digits or len(digits) > 8 or not set(digits) <= set("0123456789abcdefABCDEF"):
            raise RegexError("\\x is followed by no hexadecimal number")
        code = int(digits, 16)
        if code > _LAST:
            raise RegexError(f"\\x{{{digits}}} is no character")
        return code

    def _class(self, flags: _Flags) -> _Set:
        negated = self._peek() == "^"
        self.at += negated
        ranges: list[tuple[int, int]] = []
        categories: list[tuple[str, bool]] = []
        first = True
        while first or self._peek() != "]":
            first = False
            if self._peek(2) == "[:":
                ranges += self._posix()
                continue
            if self._peek() == "\\":
                self.at += 1
                found = self._escaped_set(flags)
                if found is not None:
                    ranges += found.ranges
                    categories += found.categories
                    continue
                self.at -= 1
            low = self._class_code()
            high = low
            if self._peek() == "-" and self._peek(2) not in ("-", "-]"):
                self.at += 1
                high = self._class_code()
            if high < low:
                raise RegexError(f"{chr(low)}-{chr(high)} is no range")
            ranges.append((low, high))
        self.at += 1
        return _Set(_joined(ranges), tuple(categories), negated, flags.fold)

    def _class_code(self) -> int:
        char = self._next()
        return self._escaped_code() if char == "\\" else ord(char)

    def _posix(self) -> Ranges:
        end = self.text.find(":]", self.at)
        name = self.text[self.at + 2 : max(end, self.at + 2)]
        ranges = _POSIX.get(name.removeprefix("^"))
        if ranges is None:
            raise RegexError(f"[:{name}:] is no class")
        self.at = end + 2
        return _others(ranges) if name.startswith("^") else ranges


_WORD_CODES: Final = frozenset(c for low, high in _WORD for c in range(low, high + 1))


def _is_number(text: str) -> bool:
    return bool(text) and text.isascii() and text.isdigit()


def _bounded(digits: str) -> int:
    if len(digits) > 4 or int(digits) > _MAX_REPEAT:
        raise RegexError(f"{{{digits[:9]}}} repeats more than {_MAX_REPEAT} times")
    return int(digits)


def _changed(flags: _Flags, letters: str) -> _Flags:
    names = {"i": "fold", "m": "lines", "s": "dot_all"}
    on = True
    for letter in letters:
        if letter == "-":
            on = False
        elif letter in names:  # U swaps lazy and greedy
            flags = replace(flags, **{names[letter]: on})
    return flags


# --- matching -------------------------------------------------------------------------------------

# Kinds of what stands beside a place.
_EDGE, _LINE, _WORDS, _OTHER = range(4)


def _kind(char: str) -> int:
    if char == "\n":
        return _LINE
    return _WORDS if ord(char) in _WORD_CODES else _OTHER


def _stands(kind: str, before: int, after: int) -> bool:
    """Whether a place between two kinds of neighbours is one of a `_Where`."""
    if kind in "A^":
        return before == _EDGE or (kind == "^" and before == _LINE)
    if kind in "z$":
        return after == _EDGE or (kind == "$" and after == _LINE)
    return ((before == _WORDS) != (after == _WORDS)) == (kind == "b")


@dataclass(frozen=True)
class _Step:
    """One step of a compiled pattern: read a character of `chars`, or stand at a place, or neither;
    then any of `to`. No `to`: the end.
    """

    to: tuple[int, ...]
    chars: _Set | None = None
    where: str = ""


@dataclass
class Regex:
    r"""A compiled pattern.

    >>> Regex.of(r"(\w+)@(gmail|yahoo)\.com").matches("account@gmail.com")
    True
    """

    steps: list[_Step] = field(default_factory=list)
    _states: dict[tuple[frozenset[int], int], dict[str, tuple[frozenset[int], int]]] = field(
        default_factory=dict
    )
    _start: int = 0

    @staticmethod
    def of(pattern: str) -> Regex:
        """Returns a compiled pattern. Raises `RegexError`."""
        node = _Parser(pattern).parse()
        regex = Regex()
        end = regex._add(_Step(()))
        regex._start = regex._compile(node, end)
        return regex

    def matches(self, text: str) -> bool:
        """Whether the whole text matches."""
        state = (frozenset([self._start]), _EDGE)
        for char in text:
            known = self._states.get(state)
            if known is None:
                if len(self._states) >= _MAX_STATES:
                    self._states.clear()
                known = self._states[state] = {}
            after = known.get(char)
            if after is None:
                after = known[char] = self._after(state, char)
                if len(known) > _MAX_STATES:
                    known.clear()
            state = after
            if not state[0]:
                return False
        return 0 in self._reached(*state, _EDGE)

    def _after(self, state: tuple[frozenset[int], int], char: str) -> tuple[frozenset[int], int]:
        kind = _kind(char)
        held = (self.steps[n] for n in self._reached(*state, kind))
        to = frozenset(n for s in held if s.chars and s.chars.holds(char) for n in s.to)
        return to, kind

    def _reached(self, begun: Iterable[int], before: int, after: int) -> set[int]:
        """Returns the steps that can be stood at without reading a character."""
        seen: set[int] = set()
        stack = list(begun)
        while stack:
            number = stack.pop()
            if number in seen:
                continue
            seen.add(number)
            step = self.steps[number]
            if step.chars is None and (not step.where or _stands(step.where, before, after)):
                stack += step.to
        return seen

    def _add(self, step: _Step) -> int:
        if len(self.steps) >= MAX_STEPS:
            raise RegexError(f"the pattern has more than {MAX_STEPS} steps")
        self.steps.append(step)
        return len(self.steps) - 1

    def _compile(self, node: _Node, then: int) -> int:
        """Returns the first step of a pattern that goes on with the step `then`."""
        match node:
            case _Set():
                return self._add(_Step((then,), chars=node))
            case _Where(kind):
                return self._add(_Step((then,), where=kind))
            case _Join(parts):
                for part in reversed(parts):
                    then = self._compile(part, then)
                return then
            case _Either(parts):
                return self._add(_Step(tuple(self._compile(p, then) for p in parts)))
            case _Repeat(part, least, most):
                return self._repeat(part, least, most, then)

    def _repeat(self, part: _Node, least: int, most: int | None, then: int) -> int:
        if most is None:
            loop = self._add(_Step(()))
            body = self._compile(part, loop)
            self.steps[loop] = _Step((body, then))
            then = loop
        for _ in range(0 if most is None else most - least):
            then = self._add(_Step((self._compile(part, then), then)))
        for _ in range(least):
            then = self._compile(part, then)
        return then


def matches_all(pattern: str, texts: Sequence[str]) -> list[bool]:
    """Returns for each text whether all of it matches a pattern. Raises `RegexError`."""
    regex = Regex.of(pattern)
    return [regex.matches(text) for text in texts]
