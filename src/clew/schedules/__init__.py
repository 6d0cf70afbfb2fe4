"""Schedule rules: which primitives for which kind of kernel. Short recipes with named tile
sizes.
"""

from clew.schedules.plan import schedule_kernel, schedule_melted
from clew.schedules.stack import schedule_stack

__all__ = ["schedule_kernel", "schedule_melted", "schedule_stack"]
