"""Schedule rules: which primitives for which kind of kernel. Short recipes with named tile
sizes.
"""

from collections.abc import Mapping
from types import ModuleType
from typing import Final

from clew.schedules import (
    amx,
    attention,
    conv,
    conv_parts,
    dot,
    elementwise,
    matmul,
    matvec,
    melt,
    neighbors,
    parts,
    rows,
    separable,
    spatial,
    split_weights,
    stack,
    windows,
    winograd,
)
from clew.schedules.plan import schedule_kernel, schedule_melted
from clew.schedules.stack import schedule_stack

RULES: Final[Mapping[str, ModuleType]] = {
    rule.NAME: rule
    for rule in (
        amx, attention, conv, conv_parts, dot, elementwise, matmul, matvec, melt, neighbors,
        parts, rows, separable, spatial, split_weights, stack, windows, winograd,
    )
}  # fmt: skip
"""The modules of all rules, by the rules' names."""

__all__ = ["RULES", "schedule_kernel", "schedule_melted", "schedule_stack"]
