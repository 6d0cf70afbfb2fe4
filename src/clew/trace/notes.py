"""Notes: facts about a layer beyond the graph, such as how it was quantized.

They belong to the imported module, and name layers. So passes neither see nor keep them: whatever
leads from a node or a kernel to its layers also leads to their notes.
"""

from __future__ import annotations

from typing import Final, NamedTuple

NOTES: Final = "notes"
"""The attribute of a main function that holds its notes, a tuple for each."""


class Note(NamedTuple):
    """A fact about a layer: a sentence without a full stop, and the relative error of the layer's
    result that quantization causes, None if it was not measured.
    """

    layer: str
    text: str
    error: float | None = None
