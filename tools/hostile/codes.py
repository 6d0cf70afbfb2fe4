"""Codes of errors."""

from __future__ import annotations

from typing import Final

OURS: Final = ("C001", "C002", "C003", "C080")
"""Codes of errors that say that clew is at fault."""
