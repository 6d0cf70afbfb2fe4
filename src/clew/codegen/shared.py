"""Parts of a statement's expression that are computed ahead of it, because they would otherwise be
computed again in each branch, or under each mask, of selects between values in memory.

If an index comes from memory, and the index of that load as well, each step in several branches,
code emitted branch by branch doubles with each step. When computed ahead, each part is emitted
once.
"""

from __future__ import annotations

from clew.ir.dims import at_least
from clew.support.dataclass import dataclass
from clew.te.expr import Load, Scalar, Select, shared_parts
from clew.te.walk import post_order


@dataclass(frozen=True)
class Plan:
    """An expression, and its parts to compute ahead of it, producers first. Parts that are not
    `certain`, by id, may not be used: their loads might address elements that do not exist.
    """

    expr: Scalar
    parts: tuple[Scalar, ...]
    certain: frozenset[int]


def plan_of(expr: Scalar, least: int) -> Plan | None:
    """Returns the parts to compute ahead; None if there are none. See `shared_parts` for
    `least`.
    """
    parts = {id(part): part for part in shared_parts(expr, least=least)}
    if not parts:
        return None
    bits = {key: 1 << n for n, key in enumerate(parts)}
    needed: dict[int, int] = {}
    in_place: dict[int, bool] = {}
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
        alone = isinstance(node, Load) and _has_no_other_element(node)
        in_place[id(node)] = alone or any(in_place[id(c)] for c in node.children)
    certain = frozenset(key for key, bit in bits.items() if needed[id(expr)] & bit)
    kept = [p for key, p in parts.items() if key in certain or not in_place[key]]
    return Plan(expr, tuple(kept), certain) if kept else None


def _has_no_other_element(load: Load) -> bool:
    """Whether a load may have no other element to read in place of one that does not exist: its
    buffer is a register tile or may be empty.
    """
    buffer = load.source
    return buffer.scope == "register" or not all(at_least(dim, 1) for dim in buffer.shape)


def reads_in_reads(expr: Scalar) -> int:
    """Returns the greatest depth of loads that are nested in indices of loads."""
    found: dict[int, int] = {}
    for node in post_order(expr):
        below = max((found[id(c)] for c in node.children), default=0)
        found[id(node)] = below + isinstance(node, Load)
    return found[id(expr)]
