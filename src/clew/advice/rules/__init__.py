"""clew's advice rules, one per file; importing them registers them, in this order."""

from clew.advice.rules import activations, late_selection

__all__ = ["activations", "late_selection"]
