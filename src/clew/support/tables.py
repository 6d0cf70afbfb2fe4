"""Tables for terminals, in one style."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table


def table(*columns: str, right: Sequence[str] = (), title: str = "") -> Table:
    """Returns an empty table; `right` names the columns of numbers."""
    made = Table(box=None, title=title or None, title_justify="left", pad_edge=False)
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
