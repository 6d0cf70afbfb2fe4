"""Explains why a backend takes nothing of a module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from clew.ir.expr import Call, Function
from clew.ir.module import Module
from clew.ir.visit import post_order
from clew.passes.placement.claims import Claims, RegionPattern, asked, claimed
from clew.patterns import Match, explain, find_all
from clew.patterns.explanation import describe
from clew.support.near import listed

_SHOWN: Final = 5


def why_nothing(module: Module, backend: Claims) -> str:
    """Returns one line for each pattern of a backend, with the refusal that came nearest to a
    match, and one for single operators.

    Errors: C073 if the backend's code fails.
    """
    if claims_any(module, backend):
        return "other backends took it first, or it is faster on the CPU (see the remarks)"
    calls = _calls(module)
    lines = [f"{p.name}: {_nearest(p, module, backend)}" for p in backend.patterns]
    if len(lines) > _SHOWN:
        lines = [*lines[: _SHOWN - 1], f"and {len(lines) - _SHOWN + 1} more patterns"]
    if not backend.patterns:
        reasons = dict.fromkeys(why_not(c, backend) for c in calls)
        lines.append(listed(reasons, _SHOWN) if reasons else "the model has no operators")
    return "\n".join(lines)


def claims_any(module: Module, backend: Claims) -> bool:
    """Whether a backend takes a call of a module at all.

    Errors: C073 if the backend's code fails.
    """
    return any(claimed(call, backend) for call in _calls(module))


def why_not(call: Call, backend: Claims) -> str:
    """Returns why a backend does not take a call of an operator."""
    ask: Callable[[Call], str] | None = getattr(backend, "why_not", None)
    why = asked(backend, "why_not", ask, call) if ask is not None else ""
    return f"{call.op_name}: {why}" if why else f"it does not take {call.op_name}"


def _nearest(wanted: RegionPattern, module: Module, backend: Claims) -> str:
    found = [m for _, function in module for m in find_all(wanted.pattern, function)]
    if found:
        where = ", ".join(found[0].root.layers) or "a match"
        return f"{where} is refused: {_why_not_match(found[0], backend)}"
    near = explain(wanted.pattern, module)
    if near.root is None:
        return f"the model has no {near.wanted.removeprefix('a ')}"
    at = near.at if near.at is not None else near.root
    where = ", ".join(at.layers) or describe(at)
    return f"nearest at {where}: wanted {near.wanted}, found {near.found}"


def _why_not_match(match: Match, backend: Claims) -> str:
    ask: Callable[[Match], str] | None = getattr(backend, "why_not_match", None)
    why = asked(backend, "why_not_match", ask, match) if ask is not None else ""
    return why or "its check rejects it"


def _calls(module: Module) -> list[Call]:
    """Returns the calls that a backend may claim: of operators and of composites."""
    nodes = post_order([f for _, f in module], into_functions=True)
    return [
        n
        for n in nodes
        if isinstance(n, Call) and not (isinstance(n.op, Function) and n.op.is_primitive)
    ]
