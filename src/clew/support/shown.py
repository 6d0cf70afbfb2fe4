"""How a Python prompt (one line) and a notebook (a small piece of HTML) show an object."""

from __future__ import annotations

import reprlib
from dataclasses import fields
from typing import Any, Final

_LINES: Final = 40
_COLUMNS: Final = 200
_brief = reprlib.Repr()
_brief.maxlevel = 2
_brief.maxtuple = _brief.maxlist = _brief.maxdict = 4
_brief.maxstring = _brief.maxother = 60


class Shown:
    """An object with a one-line `repr`, whose text notebooks show."""

    __slots__ = ()

    def _about(self) -> str:
        """Returns a short description; "" if the type says everything."""
        return ""

    def __repr__(self) -> str:
        about = self._about()
        return f"<{type(self).__name__} {about}>" if about else f"<{type(self).__name__}>"

    def _repr_html_(self) -> str:
        from clew.support import markup  # noqa: PLC0415 - only notebooks need it

        text = str(self) if type(self).__str__ is not object.__str__ else ""
        head = markup.head(type(self).__name__, self._about())
        return markup.framed([head, preformatted(text)] if text else [head])


class Brief:
    """A dataclass with large fields: its `repr` shows the beginning of each."""

    __slots__ = ()

    def __repr__(self) -> str:
        shown: Any = self
        texts = [f"{f.name}={_brief.repr(getattr(self, f.name))}" for f in fields(shown) if f.repr]
        return f"{type(self).__name__}({', '.join(texts)})"


def preformatted(text: str, lines: int = _LINES) -> str:
    """Returns text as preformatted HTML: its first lines, each truncated."""
    import html  # noqa: PLC0415 - only notebooks need it

    from clew.support import markup  # noqa: PLC0415

    every = text.splitlines()
    kept = [line if len(line) <= _COLUMNS else line[:_COLUMNS] + " …" for line in every[:lines]]
    if len(every) > lines:
        kept.append(f"… and {len(every) - lines} more lines; print(...) shows them")
    style = f"{markup.FIXED_WIDTH};overflow-x:auto;margin:4px 0"
    return f'<div style="{style}">{html.escape(chr(10).join(kept))}</div>'


def counted(count: int, what: str) -> str:
    """Returns a count with its noun, singular or plural."""
    return f"{count} {what}{'s' * (count != 1)}"


def indented(text: str, by: int = 4) -> str:
    """Returns text with each line indented."""
    return "\n".join(" " * by + line for line in text.splitlines())
