"""Runs measurements: here, or on the workers of a Dask scheduler; one at a time on each machine."""

from clew.runner.local import LocalRunner
from clew.runner.runner import Failed, Runner

__all__ = ["Failed", "LocalRunner", "Runner"]
