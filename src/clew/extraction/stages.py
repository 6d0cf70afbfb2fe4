"""Parts that run one after the other, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from clew.extraction.file_form import FilePartition
from clew.extraction.part import InFile, Part
from clew.support.shown import Brief

Array = np.ndarray[Any, Any]
Options = Mapping[str, Any]


@dataclass(frozen=True, repr=False)
class Stage(Brief):
    """A part in sequence, with the names of its input and output values.

    `options` are the options of `clew.compile` for the part, by their own names, those in groups
    included.
    """

    part: Part
    reads: tuple[str, ...]
    gives: tuple[str, ...]
    options: Options = field(default_factory=dict)


@dataclass(frozen=True, repr=False)
class Stages:
    """The data of a partition: see `Partition`."""

    stages: tuple[Stage, ...]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    given: Mapping[str, Array] = field(default_factory=dict)
    expected: Mapping[str, Array] = field(default_factory=dict)
    in_file: InFile[FilePartition] | None = None
