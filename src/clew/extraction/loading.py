"""`load_part`: a part read back from its files."""

from __future__ import annotations

from pathlib import Path

from clew.extraction import files
from clew.extraction.part import Part


def load_part(path: str | Path) -> Part:
    """Returns the part that `clew extract` or `Part.save` wrote to this file and its `.npz`.

    Errors: P011 and I139 for files that are missing, damaged or hold no part; those of reading the
    module.
    """
    return Part(**files.read(Path(path)))
