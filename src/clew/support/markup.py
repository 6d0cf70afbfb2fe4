"""Pieces of static HTML for notebooks: no scripts, all text escaped, suited to any theme."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from typing import Final

from clew.support.unseen import visible

FIXED_WIDTH: Final = "font-family:ui-monospace,monospace;font-size:0.9em;white-space:pre"
FAINT: Final = "opacity:0.7"
_RIGHT_TO_LEFT: Final = ("R", "AL")
_CELL: Final = "padding:1px 10px 1px 0;text-align:left;vertical-align:baseline"
_NUMBER: Final = "padding:1px 10px 1px 0;text-align:right;vertical-align:baseline"


def text(plain: str) -> str:
    """Returns a text as HTML. Invisible characters are escaped, and the text is isolated, so a
    right-to-left name does not reverse the text around it.
    """
    import html  # noqa: PLC0415 - only notebooks need it

    shown = html.escape(visible(plain))
    turned = any(unicodedata.bidirectional(c) in _RIGHT_TO_LEFT for c in plain)
    return f'<bdi dir="ltr">{shown}</bdi>' if turned else shown


def framed(parts: Iterable[str]) -> str:
    """Returns parts of HTML in one frame."""
    return f'<div style="line-height:1.4">{"".join(parts)}</div>'


def head(title: str, about: str) -> str:
    """Returns a title with a description in faint type."""
    faint = f'<span style="{FAINT}">{text(about)}</span>'
    return f"<div><b>{text(title)}</b> {faint}</div>"


def facts(rows: dict[str, str]) -> str:
    """Returns a list of named facts; the values are HTML."""
    return table([], [[f'<span style="{FAINT}">{k}</span>', v] for k, v in rows.items()], 2)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], texts: int) -> str:
    """Returns a table of HTML cells; the columns after `texts` hold numbers."""

    def cells(row: Sequence[str], tag: str) -> str:
        styles = [_CELL if n < texts else _NUMBER for n in range(len(row))]
        return "".join(f'<{tag} style="{s}">{c}</{tag}>' for s, c in zip(styles, row, strict=True))

    heading = f"<thead><tr>{cells(list(map(text, heads)), 'th')}</tr></thead>" if heads else ""
    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    style = "border-collapse:collapse;margin:4px 0"
    return f'<table style="{style}">{heading}<tbody>{body}</tbody></table>'


def paragraph(line: str, style: str = "") -> str:
    """Returns a line of text as a paragraph."""
    return f'<div style="{style}">{text(line)}</div>'


def code(line: str) -> str:
    """Returns text in a fixed-width font."""
    return f'<code style="background:none;color:inherit">{text(line)}</code>'
