"""Pieces of static HTML that notebooks show: no scripts, all text escaped, fit for any theme."""

from __future__ import annotations

import html
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
    """Returns a text as HTML. What is unseen in it is written out; it stands by itself, so that a
    name that runs from right to left does not turn what is written around it.
    """
    shown = html.escape(visible(plain))
    turned = any(unicodedata.bidirectional(c) in _RIGHT_TO_LEFT for c in plain)
    return f'<bdi dir="ltr">{shown}</bdi>' if turned else shown


def framed(parts: Iterable[str]) -> str:
    """Returns parts of HTML as one piece."""
    return f'<div style="line-height:1.4">{"".join(parts)}</div>'


def head(title: str, about: str) -> str:
    """Returns a title, and what it is in faint type."""
    faint = f'<span style="{FAINT}">{text(about)}</span>'
    return f"<div><b>{text(title)}</b> {faint}</div>"


def facts(rows: dict[str, str]) -> str:
    """Returns named facts, whose values are HTML already."""
    return table([], [[f'<span style="{FAINT}">{k}</span>', v] for k, v in rows.items()], 2)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], texts: int) -> str:
    """Returns a table of cells that are HTML already; the columns after `texts` hold numbers."""

    def cells(row: Sequence[str], tag: str) -> str:
        styles = [_CELL if n < texts else _NUMBER for n in range(len(row))]
        return "".join(f'<{tag} style="{s}">{c}</{tag}>' for s, c in zip(styles, row, strict=True))

    heading = f"<thead><tr>{cells(list(map(text, heads)), 'th')}</tr></thead>" if heads else ""
    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    style = "border-collapse:collapse;margin:4px 0"
    return f'<table style="{style}">{heading}<tbody>{body}</tbody></table>'


def paragraph(line: str, style: str = "") -> str:
    """Returns a line of text."""
    return f'<div style="{style}">{text(line)}</div>'


def code(line: str) -> str:
    """Returns text in fixed width."""
    return f'<code style="background:none;color:inherit">{text(line)}</code>'
