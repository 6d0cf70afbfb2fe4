"""Searches the choices of schedule rules by measurement ([tuning](docs/tune.md))."""

from clew.tuning.report import TuneReport
from clew.tuning.tuner import tune, tune_report

__all__ = ["TuneReport", "tune", "tune_report"]
