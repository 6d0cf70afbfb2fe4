"""Tokens of the text form, and errors with places in it."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from clew.ir.syntax import unquote
from clew.support.errors import TextError
from clew.trace.span import EMPTY, Source, Span

_STRING: Final = r'"(?:[^"\\\n]|\\.)*"'
_COMMON: Final = rf"""
    (?P<string>{_STRING})
  | (?P<symbol>`(?:[^`\\\n]|\\.)*`|\?[0-9]+)
  | (?P<float>[0-9]+(?:\.[0-9]*(?:[eE][+-]?[0-9]+)?|[eE][+-]?[0-9]+))
  | (?P<int>0x[0-9a-f]+|[0-9]+)
  | (?P<word>[A-Za-z_][A-Za-z0-9_.]*)
"""
_OUTSIDE: Final = re.compile(
    rf"""[ \t\r\n]*(?:{_COMMON}
  | (?P<node>%(?:[A-Za-z0-9_.]+|{_STRING})(?:\#[0-9]+)?)
  | (?P<global>@(?:[A-Za-z_][A-Za-z0-9_.]*|{_STRING}))
  | (?P<span>//[^\n]*)
  | (?P<comment>\#[^\n]*)
  | (?P<mark>->|[()\[\]{{}},:=<>*-])
  | (?P<end>\Z))
""",
    re.VERBOSE,
)
_INSIDE: Final = re.compile(
    rf"""[ \t\r\n]*(?:{_COMMON}
  | (?P<mark>//|[()\[\],+*^%-])
  | (?P<end>\Z))
""",
    re.VERBOSE,
)
_SOURCE: Final = re.compile(
    rf"""\s*(?:(?P<kind>[A-Za-z_][A-Za-z0-9_.]*|{_STRING})\s+)?
    (?P<layer>[A-Za-z0-9_./-]+|{_STRING})
    (?::(?P<op>[A-Za-z_][A-Za-z0-9_.]*|{_STRING}))?
    (?:@(?P<frontend>[A-Za-z_][A-Za-z0-9_.]*|{_STRING}))?
    (?:\#(?P<output>[0-9]{{1,9}}))?\s*(?:,|\Z)""",
    re.VERBOSE,
)


class ParseError(TextError):
    """P...: the text does not parse at `line` and `column` (both from 1)."""

    def __init__(self, code: str, message: str, text: str, offset: int, *, hint: str = "") -> None:
        self.line = text.count("\n", 0, offset) + 1
        start = text.rfind("\n", 0, offset) + 1
        end = text.find("\n", offset)
        self.column = offset - start + 1
        # Show a window around the place, since lines of a large constant may be long.
        left = max(start, offset - 60)
        shown = text[left : min(offset + 40, end if end >= 0 else len(text))].replace("\t", " ")
        place = f"  line {self.line}, column {self.column}"
        caret = f"    {' ' * (offset - left)}^"
        super().__init__(code, f"{message}\n{place}\n    {shown}\n{caret}", hint=hint)


class Token(NamedTuple):
    """A token and its offset; `kind` is a group of the patterns above, or `end`."""

    kind: str
    text: str
    offset: int


def tokens(text: str) -> list[Token]:
    """Returns the tokens of a text; the last has the kind `end`.

    Errors: P002 for text that is not a token.
    """
    found: list[Token] = []
    offset, depth = 0, 0
    while True:
        match = (_INSIDE if depth else _OUTSIDE).match(text, offset)
        if match is None:
            offset += len(text[offset:]) - len(text[offset:].lstrip(" \t\r\n"))
            raise ParseError("P002", f"{text[offset]!r} has no meaning here", text, offset)
        kind = match.lastgroup
        assert kind is not None
        piece = match[kind]
        if piece == "[":
            depth += 1
        elif piece == "]" and depth:
            depth -= 1
        offset = match.end()
        if kind != "comment":
            found.append(Token(kind, piece, offset - len(piece)))
        if kind == "end":
            return found


def parse_span(token: Token, frontend: str, text: str) -> Span:
    """Returns the span in a comment such as `// conv1:Conv#0, relu1:Relu`.

    Errors: P003 if the comment is not a list of sources.
    """
    comment = token.text[2:]
    sources, position = [], 0
    while position < len(comment):
        match = _SOURCE.match(comment, position)
        if match is None or match.end() == position:
            raise ParseError(
                "P003",
                "not a list of sources",
                text,
                token.offset + 2 + position,
                hint="a source reads [kind ]layer[:Op][@frontend][#output]; remarks start with #",
            )
        output = match["output"]
        sources.append(
            Source(
                layer=_name(match["layer"], token, text),
                op=_name(match["op"] or "", token, text),
                frontend=frontend
                if match["frontend"] is None
                else _name(match["frontend"], token, text),
                kind=_name(match["kind"] or "layer", token, text),
                output=None if output is None else int(output),
            )
        )
        position = match.end()
    return Span(sources) if sources else EMPTY


def _name(part: str, token: Token, text: str) -> str:
    return unquoted(part, token, text) if part.startswith('"') else part


def unquoted(part: str, token: Token, text: str) -> str:
    """Returns the contents of a quoted string.

    Errors: P002 for a bad escape.
    """
    try:
        return unquote(part)
    except ValueError as error:
        raise ParseError("P002", "bad escape in a quoted name", text, token.offset) from error
