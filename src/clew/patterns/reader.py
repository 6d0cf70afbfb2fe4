"""Parses patterns from text: `nn.relu(add(nn.conv2d(*, constant), constant))`, as printed.

```
pattern   := one {"|" one}                      alternatives, tried in order
one       := "*"                                any node
           | "constant" | "var" | "call"        any node of that kind
           | name {"or" name} "(" patterns ")"  a call of an operator; "..." for any arguments
           | name                               the same, with any arguments
           | "(" pattern ")"
           | "#n=" one | "#n"                   one node that occurs several times
```
"""

from __future__ import annotations

import re
from typing import Final, NoReturn

from clew.patterns.language import is_call, is_constant, is_op, is_var, wildcard
from clew.patterns.pattern import Pattern
from clew.support.errors import InputError

_TOKEN: Final = re.compile(r"\s*(?:(#\d+=?)|(\.\.\.)|([A-Za-z_][\w.]*)|([*|(),]))")
_KINDS: Final = {"constant": is_constant, "var": is_var, "call": is_call}
_DEEPEST: Final = 100


def read_pattern(text: str) -> Pattern:
    """Returns the pattern in a text.

    Errors: I145 if the text is not a pattern.
    """
    return _Reader(text).run()


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._shared: dict[str, Pattern] = {}
        self._tokens: list[tuple[str, int]] = []
        self._next = 0
        self._depth = 0
        at = 0
        while at < len(text.rstrip()):
            found = _TOKEN.match(text, at)
            if found is None:
                self._fail("a character without meaning", at)
            self._tokens.append((found.group().strip(), found.end() - len(found.group().strip())))
            at = found.end()

    def run(self) -> Pattern:
        pattern = self._alternatives()
        if self._peek():
            self._fail("the pattern has ended before this")
        return pattern

    def _peek(self) -> str:
        return self._tokens[self._next][0] if self._next < len(self._tokens) else ""

    def _take(self) -> str:
        token = self._peek()
        self._next += 1
        return token

    def _expect(self, token: str) -> None:
        if self._peek() != token:
            self._fail(f"expected {token!r}")
        self._next += 1

    def _fail(self, what: str, at: int | None = None) -> NoReturn:
        if at is None:
            done = self._next >= len(self._tokens)
            at = len(self._text) if done else self._tokens[self._next][1]
        raise InputError(
            "I145",
            f"{what}, at column {at + 1} of the pattern {self._text!r}",
            hint="as in nn.relu(add(nn.conv2d(*, constant), constant)); or module:NAME of a "
            "pattern in Python",
        )

    def _alternatives(self) -> Pattern:
        self._depth += 1
        if self._depth > _DEEPEST:
            self._fail("nested too deeply")
        pattern = self._one()
        while self._peek() == "|":
            self._next += 1
            pattern = pattern | self._one()
        self._depth -= 1
        return pattern

    def _one(self) -> Pattern:
        token = self._take()
        if token == "*":
            return wildcard()
        if token == "(":
            pattern = self._alternatives()
            self._expect(")")
            return pattern
        if token.startswith("#"):
            return self._shared_one(token)
        if token in _KINDS and self._peek() != "(":
            return _KINDS[token]()
        if not token or not (token[0].isalpha() or token[0] == "_"):
            self._next -= 1
            self._fail("expected a pattern")
        return self._call([token])

    def _shared_one(self, token: str) -> Pattern:
        name = token.rstrip("=")
        if token.endswith("="):
            self._shared[name] = self._one()
        if name not in self._shared:
            self._next -= 1
            self._fail(f"{name} stands for nothing yet")
        return self._shared[name]

    def _call(self, names: list[str]) -> Pattern:
        while self._peek() == "or":
            self._next += 1
            names.append(self._take())
        operator = is_op(*names)
        if self._peek() != "(":
            return operator.any_args()
        self._next += 1
        if self._peek() == "...":
            self._next += 1
            self._expect(")")
            return operator.any_args()
        args: list[Pattern] = []
        while self._peek() != ")":
            if args:
                self._expect(",")
            args.append(self._alternatives())
        self._next += 1
        return operator(*args)
