"""Schedule rules: which primitives for which kind of kernel. Short recipes with named tile
sizes.
"""

from clew.schedules.plan import schedule_kernel

__all__ = ["schedule_kernel"]
