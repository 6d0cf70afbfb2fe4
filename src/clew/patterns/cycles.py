"""Reports rules that never reach a fixed point: the repeating rules and the nodes they rewrite."""

from __future__ import annotations

from collections.abc import Sequence

from clew.ir.expr import Call, Constant, Expr, Function, If, Tuple, TupleGetItem, Var, While
from clew.support.dataclass import dataclass

# The maximum numbers of firings shown, and of characters per side of one.
_SHOWN = 6
_WIDTH = 72
_DEEP = 3


@dataclass(frozen=True, slots=True)
class Firing:
    """A rule that replaced a node."""

    rule: str
    node: Expr
    result: Expr


def story(fired: Sequence[Firing]) -> tuple[str, str]:
    """Returns the names of the rules that repeat, and their last round, one line per firing."""
    round_ = fired[-_period([f.rule for f in fired]) :]
    names = ", ".join(dict.fromkeys(f.rule for f in round_))
    width = max(len(f.rule) for f in round_[:_SHOWN])
    lines = [
        f"    {f.rule:{width}}  {sketch(f.node)}  ->  {sketch(f.result)}" for f in round_[:_SHOWN]
    ]
    if len(round_) > _SHOWN:
        lines.append(f"    ... and {len(round_) - _SHOWN} more before it starts again")
    return names, "\n".join(lines)


def _period(names: Sequence[str]) -> int:
    """Returns the length of the shortest sequence at the end of `names` that occurs twice in a
    row.
    """
    last = len(names)
    for period in range(1, last // 2 + 1):
        if all(names[n] == names[n - period] for n in range(last - 1, last - 1 - period, -1)):
            return period
    return last


def sketch(node: Expr) -> str:
    """Returns a node as a short nested term: `add(nn.conv2d(%x, f32[8, 3]), ...)`."""
    text = _term(node, _DEEP)
    return text if len(text) <= _WIDTH else text[: _WIDTH - 3] + "..."


def _term(node: Expr, depth: int) -> str:
    match node:
        case Var():
            return f"%{node.name}"
        case Constant():
            return f"{node.splat_value:g}" if _is_number(node) else str(node.type)
        case _ if not depth:
            return "..."
        case Call(op=Function()):
            return f"fn {node.title}({_terms(node.args, depth)})"
        case Call():
            changed = [f"{k}={v}" for k, v in node.attrs.items() if _is_told(node, k, v)]
            inside = ", ".join([*[_term(a, depth - 1) for a in node.args], *changed[:2]])
            return f"{node.op_name}({inside})"
        case Tuple():
            return f"({_terms(node.fields, depth)})"
        case TupleGetItem():
            return f"{_term(node.value, depth)}[{node.index}]"
        case If():
            return f"if {_term(node.cond, depth - 1)} ..."
        case While():
            return "while ..."
    return type(node).__name__.lower()


def _terms(nodes: Sequence[Expr], depth: int) -> str:
    return ", ".join(_term(n, depth - 1) for n in nodes)


def _is_number(node: Constant) -> bool:
    return bool(node.tensor.dtype != "bool" and node.is_splat and node.tensor.size)


def _is_told(call: Call, name: str, value: object) -> bool:
    """Whether to show an attribute: it differs from the operator's default."""
    return not isinstance(call.op, Function) and getattr(call.op, "defaults", {}).get(name) != value
