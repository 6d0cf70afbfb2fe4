"""Places: for a layer, the module of the user's model and the line of code that call it.

They belong to the imported module and name layers, as notes do: passes neither see nor keep them.
"""

from __future__ import annotations

from typing import Final, NamedTuple

PLACES: Final = "places"
"""The attribute of a main function that holds its places, a tuple for each."""


class CodePlace(NamedTuple):
    """Where a layer is called: the path and the class of the module (`encoder.layer.0`,
    `models.Block`; empty for the whole model), and file, line and its text in the user's code.
    Unknown texts are empty, and an unknown line is 0.
    """

    layer: str
    module: str = ""
    kind: str = ""
    file: str = ""
    line: int = 0
    code: str = ""

    @property
    def where(self) -> str:
        """The file and the line: `model.py:12`; empty if unknown."""
        return f"{self.file}:{self.line}" if self.file else ""
