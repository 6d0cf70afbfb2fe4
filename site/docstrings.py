"""Docstrings as Markdown: examples that are indented after a line become code blocks."""

from __future__ import annotations

import re
from typing import Any, Final

from griffe import Extension, Object

# A line of prose, which no item of a list is, before an indented line.
_EXAMPLE: Final = re.compile(r"^(?![-*] |\d+\. )(\S.*)\n(?=    \S)", re.MULTILINE)


class Examples(Extension):
    """Gives an indented block that follows a line of prose the blank line that Markdown needs."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Changes the docstring of an object that was read."""
        if obj.docstring is not None:
            obj.docstring.value = _EXAMPLE.sub(r"\1\n\n", obj.docstring.value)
