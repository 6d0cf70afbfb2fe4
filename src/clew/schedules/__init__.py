"""Schedule rules: they choose the primitives for each kernel and leave tile sizes as choices.

`rule.py` defines a rule, `rules/` holds one rule per file, `library/` holds code that rules share,
and `plan.py` assigns the stages of a kernel to rules.
"""

from clew.schedules.plan import Decision, Plan, schedule_kernel, schedule_melted
from clew.schedules.registry import RULES
from clew.schedules.request import NO_REQUEST, Request
from clew.schedules.rule import Demand, Match, Rule, TailMatch, Work
from clew.schedules.space import Choice, Settings, Space
from clew.schedules.stack import schedule_stack

__all__ = [
    "NO_REQUEST",
    "RULES",
    "Choice",
    "Decision",
    "Demand",
    "Match",
    "Plan",
    "Request",
    "Rule",
    "Settings",
    "Space",
    "TailMatch",
    "Work",
    "schedule_kernel",
    "schedule_melted",
    "schedule_stack",
]
