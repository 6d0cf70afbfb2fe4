"""`load_part` and `load_partition`: what was written, read back."""

from __future__ import annotations

from pathlib import Path

from clew.extraction import files, partition_files
from clew.extraction.part import Part
from clew.extraction.partitioning import Partition, Stage


def load_part(path: str | Path) -> Part:
    """Returns the part that `clew extract` or `Part.save` wrote to this file and its `.npz`.

    Errors: P011 and I139 for files that are missing, damaged or hold no part; those of reading the
    module.
    """
    return Part(**files.read(Path(path)))


def load_partition(folder: str | Path) -> Partition:
    """Returns the partition that `clew partition` or `Partition.save` wrote to a folder.

    Errors: I139 for a folder that holds none, P011 and those of `load_part` for its parts.
    """
    folder = Path(folder)
    found = partition_files.read(folder)
    stages = tuple(
        Stage(load_part(folder / p.file), p.reads, p.gives, p.options) for p in found.parts
    )
    return Partition(stages, found.inputs, found.outputs, found.given, found.expected)
