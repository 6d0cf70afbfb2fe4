"""Notes about layers in the metadata of a file, which clew writes with quantized models."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from clew.frontends.names import display
from clew.trace.notes import Note

KEY: Final = "clew.notes"
"""The key of the notes: a JSON list with layer, text, and error or null."""
_MOST_TEXT: Final = 1000


def notes_in(metadata: Mapping[str, str], layers: Collection[str]) -> tuple[Note, ...]:
    """Returns the notes in a file about these layers. They change nothing that is computed, so
    those of another form are left out.
    """
    given = metadata.get(KEY)
    try:
        data = json.loads(given) if given else []
    except (ValueError, RecursionError):
        return ()
    return tuple(_read(data if isinstance(data, list) else [], layers))


def _read(data: Iterable[object], layers: Collection[str]) -> Iterable[Note]:
    for entry in data:
        match entry:
            case [str(layer), str(text), error] if layer in layers and len(text) <= _MOST_TEXT:
                known = isinstance(error, float) and math.isfinite(error) and error >= 0
                yield Note(layer, _shown(text), error if known else None)  # type: ignore[arg-type]


def _shown(text: str) -> str:
    """Returns a text with characters that cannot be printed escaped."""
    return text if text.isprintable() else display(text)
