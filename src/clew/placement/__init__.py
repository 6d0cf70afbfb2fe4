"""Placement by measured costs: which parts of a model run on which backend."""

from clew.placement.placing import place
from clew.placement.report import Placement

__all__ = ["Placement", "place"]
