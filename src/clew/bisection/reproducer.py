"""Writes and runs reproducers."""

from __future__ import annotations

from pathlib import Path

from clew.bisection.verdict import Verdict


def write(verdict: Verdict, folder: Path) -> Path:
    """Writes."""
    raise NotImplementedError
