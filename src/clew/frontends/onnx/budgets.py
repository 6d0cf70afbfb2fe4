"""Limits on what a model file may ask for, so that a small hostile file cannot take the machine."""

from __future__ import annotations

import os
from dataclasses import dataclass


def _physical_bytes() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not a POSIX system
        return 1 << 36


@dataclass(frozen=True)
class Budgets:
    """What an import may use.

    `file_bytes`: the model file (protobuf itself ends at 2 GiB). `tensor_bytes`: one tensor, be it
    a
    parameter or a value of static shape; also bounded by the machine's memory. `rank`: axes of a
    tensor. `nodes`: layers after functions are expanded. `nesting`: subgraphs within subgraphs.
    `calls`: functions calling functions.
    """

    file_bytes: int = (1 << 31) - 1
    tensor_bytes: int = 1 << 36
    rank: int = 32
    nodes: int = 500_000
    nesting: int = 32
    calls: int = 32

    @property
    def memory_bytes(self) -> int:
        """The most bytes one tensor may take on this machine."""
        return min(self.tensor_bytes, _physical_bytes())
