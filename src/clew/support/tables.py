"""Tables for terminals, in one style."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from clew.support.unseen import visible


class _Table(Table):
    """A table that widens its columns for escaped names."""

    def add_row(self, *cells: RenderableType | None, **more: Any) -> None:
        super().add_row(*map(_shown, cells), **more)


def _shown(cell: RenderableType | None) -> RenderableType | None:
    if isinstance(cell, str):
        return visible(cell)
    if isinstance(cell, Text) and visible(cell.plain) != cell.plain:
        return Text(visible(cell.plain), style=cell.style)
    return cell


def table(*columns: str, right: Sequence[str] = (), title: str = "") -> Table:
    """Returns an empty table; `right` names the columns of numbers."""
    made = _Table(box=None, title=title or None, title_justify="left", pad_edge=False)
    for name in columns:
        number = name in right
        made.add_column(
            name,
            justify="right" if number else "left",
            no_wrap=number,
            overflow="fold",
            header_style="bold",
        )
    return made


def as_text(made: RenderableType, columns: int = 140) -> str:
    """Returns a table as plain text."""
    console = Console(width=columns, color_system=None, highlight=False)
    with console.capture() as captured:
        console.print(made)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())
