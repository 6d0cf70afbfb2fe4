"""A verdict's facts about a fault in the program: its node, kernel, operators and layers."""

from __future__ import annotations

from typing import Any

from clew.bisection.cases import is_operator_call
from clew.bisection.kernels import Fault
from clew.bisection.session import Session
from clew.ir.expr import Call, Expr, Function, Var
from clew.ir.visit import post_order


def facts_of(session: Session, fault: Fault) -> dict[str, Any]:
    """Returns the known facts about a fault, by the names of a verdict's fields."""
    found: dict[str, Any] = {
        "stage": session.last,
        "node": session.text(session.last, fault.node),
        "layers": _layers_of_call(fault.node),
        "local_error": fault.error,
        "due": fault.due,
    }
    if fault.use is not None:
        found["kernel"] = fault.name
        calls = [n for n in post_order(fault.function) if isinstance(n, Call)]
        found["ops"] = tuple(c.op_name for c in calls)
    return found


def layers_in(node: Expr) -> tuple[str, ...]:
    """Returns the layers of the operators in a node and behind it."""
    calls = [n for n in post_order(node, into_functions=True) if isinstance(n, Call)]
    own = [c for c in calls if is_operator_call(c)]
    return tuple(dict.fromkeys(la for c in own for la in c.span.layers))


def _layers_of_call(call: Call) -> tuple[str, ...]:
    """Returns the layers of the called kernel or operator, without those of its arguments."""
    if isinstance(call.op, Function):
        return layers_in(call.op)
    return layers_in(
        Call(call.op, [Var("x", a.type) for a in call.args], call.attrs, span=call.span)
    )
