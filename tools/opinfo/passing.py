"""The list of entries that pass. It may grow, and never shrink."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from opinfo.report import Entry

FILE: Final = Path(__file__).parents[2] / "tests" / "frontends" / "torch" / "opinfo.txt"
_HEADER: Final = """\
# Entries of torch's op_db and hop_db whose samples agree with eager PyTorch in each dtype of f32,
# f64, i64, bool and bf16 that it supports. No entry may leave the list.
# Written by `python -m opinfo --update`; with `--samples 2`, two samples of each were enough.
"""


def read() -> list[str]:
    """Returns the names in the list."""
    if not FILE.exists():
        return []
    lines = FILE.read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def lost(found: Mapping[str, Entry]) -> list[str]:
    """Returns entries of the list that do not pass any more."""
    return [name for name in read() if name in found and not found[name].passes]


def update(found: Mapping[str, Entry]) -> None:
    """Writes the list: entries that were not run stay in it."""
    kept = {name for name in read() if name not in found}
    names = sorted(kept | {name for name, entry in found.items() if entry.passes})
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(_HEADER + "".join(f"{name}\n" for name in names))
