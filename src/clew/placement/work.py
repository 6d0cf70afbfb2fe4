"""Hashes the work of a unit, without its weights: units of equal work take equally long."""

from __future__ import annotations

from hashlib import blake2b

from clew.ir.expr import Call, Constant, Function, Tuple
from clew.ir.visit import post_order


def work_of(function: Function) -> str:
    """Returns a hash of a function's operators, attributes, and types. Of its constants, only small
    ones count with their elements.
    """
    places: dict[int, int] = {p.id: n for n, p in enumerate(function.params)}
    lines = [str(p.type) for p in function.params]
    for node in post_order(function.body):
        if node.id in places or isinstance(node, Function):
            continue
        places[node.id] = len(places)
        operands = [places[c.id] for c in node.children if c.id in places]
        if isinstance(node, Constant):
            what = _settled(node)
        elif isinstance(node, Call):
            what = f"{node.op_name} {node.attrs}"
        else:
            what = type(node).__name__ if isinstance(node, Tuple) else str(node)
        lines.append(f"{what} {operands} {node.type}")
    return blake2b("\n".join(lines).encode(), digest_size=12).hexdigest()


def _settled(constant: Constant) -> str:
    """Returns the text of a constant: its elements, if it is so small that it may be a size."""
    return str(constant.data.tolist()) if constant.data.size <= 8 else "constant"
