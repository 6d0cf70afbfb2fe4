"""What a statement computes ahead of itself: parts of its expression that it would otherwise
compute again in each branch, or under each mask, of selects between values in memory.

Where an index comes from memory, and that one's index too, each step in several branches, code
written branch by branch doubles with each step. Computed ahead, each part is there once.
"""

from __future__ import annotations

from dataclasses import dataclass

from clew.te.expr import Load, Scalar, Select, shared_parts
from clew.te.walk import post_order


@dataclass(frozen=True)
class Plan:
    """An expression and its parts to compute ahead of it, producers first. Those not `certain`, by
    id, may not be wanted: their loads might be of elements that are not there.
    """

    expr: Scalar
    parts: tuple[Scalar, ...]
    certain: frozenset[int]


def plan_of(expr: Scalar, least: int) -> Plan | None:
    """Returns what to compute ahead; None where nothing is to. See `shared_parts` for `least`."""
    parts = {id(part): part for part in shared_parts(expr, least=least)}
    if not parts:
        return None
    bits = {key: 1 << n for n, key in enumerate(parts)}
    needed: dict[int, int] = {}
    in_registers: dict[int, bool] = {}
    for node in post_order(expr):
        below = [needed[id(c)] for c in node.children]
        if isinstance(node, Select):
            cond, a, b = below
            always = cond | (a & b)
        else:
            always = 0
            for part in below:
                always |= part
        needed[id(node)] = always | bits.get(id(node), 0)
        register = isinstance(node, Load) and node.source.scope == "register"
        in_registers[id(node)] = register or any(in_registers[id(c)] for c in node.children)
    certain = frozenset(key for key, bit in bits.items() if needed[id(expr)] & bit)
    # A register tile has no elements to read instead: what it is part of stays where it is.
    kept = [p for key, p in parts.items() if key in certain or not in_registers[key]]
    return Plan(expr, tuple(kept), certain) if kept else None


def reads_in_reads(expr: Scalar) -> int:
    """Returns how many loads there are at most, each in an index of the one before."""
    found: dict[int, int] = {}
    for node in post_order(expr):
        below = max((found[id(c)] for c in node.children), default=0)
        found[id(node)] = below + isinstance(node, Load)
    return found[id(expr)]
