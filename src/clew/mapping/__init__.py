"""Runs a model over tables that are larger than memory, here or on many machines."""

from clew.mapping.run import MapReport, map_files

__all__ = ["MapReport", "map_files"]
