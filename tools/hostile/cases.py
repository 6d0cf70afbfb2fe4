"""All cases of the catalog."""

from __future__ import annotations

from hostile import external_data, files, growth, names, side_files
from hostile.catalog import ALL, Case

__all__ = ["ALL", "Case", "external_data", "files", "growth", "names", "side_files"]
