"""Characters that a reader does not see: in a model's names they can move a terminal's cursor, run
text the other way, or make two names look alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

# Control characters but for line breaks and tabs; marks, embeddings, overrides and isolates of
# direction; separators of lines; what has no width; halves of surrogate pairs, which no file takes.
UNSEEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ud800-\udfff\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)


def visible(text: str) -> str:
    r"""Returns a text whose unseen characters are written out, such as `\u202e`; line breaks and
    tabs stay.
    """
    return text if text.isprintable() else UNSEEN.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


class VisibleConsole(Console):
    """A console that writes out unseen characters of all texts: names of models are printed, and
    may hold anything. What the console itself tells the terminal (styles, the cursor) passes.
    """

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yields the pieces of what is printed."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else visible(text), style, control)
