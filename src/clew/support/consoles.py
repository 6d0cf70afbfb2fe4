"""A console whose texts may hold anything."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from clew.support.unseen import visible


class VisibleConsole(Console):
    """A console that escapes invisible characters in all texts, since printed names of models may
    hold anything. The console's own control sequences (styles, the cursor) are not changed.
    """

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yields the segments to print."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else visible(text), style, control)
