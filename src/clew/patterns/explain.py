"""Explains why a pattern does not match: how far the search got, the node it expected, and the node
it found.
"""

from __future__ import annotations

from typing import Any

from clew.ir.expr import Call, Expr, Function
from clew.ir.module import Module
from clew.ops.registry import all_ops
from clew.patterns.base import PatternBase
from clew.patterns.dominators import why_none
from clew.patterns.explanation import Explanation, describe, kind_of
from clew.patterns.found import STEP_LIMIT, Match, Uses
from clew.patterns.goals import Above, Assign, Chain, Tested
from clew.patterns.match import candidates, uses_in
from clew.patterns.pattern import (
    CallOf,
    Checked,
    FunctionCall,
    FunctionOf,
    Given,
    IfOf,
    NodeKind,
    Pattern,
    Projection,
    TupleOf,
    explained_by,
)
from clew.patterns.steps import STEPS

_ARTICLES = {"If": "a branch", "Constant": "a constant", "Var": "a variable", "Call": "a call"}


def explain(
    pattern: Pattern, where: Expr | Module, uses: Uses | Function | None = None
) -> Explanation:
    """Returns how a pattern matches a node, or where it fails.

    For a function or a module (its `main`), explains the node of the body that matches most of the
    pattern, unless the pattern itself describes functions.
    """
    if isinstance(where, Module):
        return _nearest(pattern, where.main)
    if isinstance(where, Function) and pattern.root_kinds != frozenset({Function}):
        return _nearest(pattern, where)
    counted = uses_in(uses) if isinstance(uses, Function) else uses
    return _explained(pattern, where, counted)


def _nearest(pattern: Pattern, function: Function) -> Explanation:
    uses = uses_in(function)
    best = Explanation(pattern, None, wanted=_roots(pattern))
    for node in candidates(pattern, function):
        tried = _explained(pattern, node, uses)
        if tried.match is not None:
            return tried
        if best.root is None or tried.depth > best.depth:
            best = tried
    return best


def _roots(pattern: Pattern) -> str:
    """Returns a description of nodes that the pattern's root may match, and names that are not
    operators.
    """
    names = pattern.root_ops
    if names is None:
        kinds = sorted(k.__name__ for k in pattern.root_kinds or ())
        return " or ".join(_ARTICLES.get(k, f"a {k}") for k in kinds) or "any node"
    return f"a call of {' or '.join(sorted(names))}{_unknown_names(names)}"


def _unknown_names(names: frozenset[str]) -> str:
    unknown = sorted(names - {op.name for op in all_ops()})
    return f" (no operator {', '.join(unknown)} is registered)" if unknown else ""


class _Deepest:
    """Watches a search and keeps the first failure with the most of the pattern matched."""

    def __init__(self, found: Match) -> None:
        self.found = found
        self.depth = -1
        self.goal: Any = None
        self.at: Expr | None = None
        self.wanted = self.said = ""

    def __call__(self, goal: Any, node: Expr) -> None:
        depth = len(self.found) + isinstance(goal, Tested)
        if depth <= self.depth:
            return
        self.depth, self.goal, self.at = depth, goal, node
        self.wanted = _wanted(goal, self.found)
        if isinstance(goal, Above):
            found = self.found
            self.at, self.said = why_none(goal.pattern, node, found.again, found.uses)
        else:
            self.said = _found(goal, node, self.found)


def _explained(pattern: Pattern, node: Expr, uses: Uses | None) -> Explanation:
    found = Match(node, uses or (lambda _: 0), STEPS)
    watch = _Deepest(found)
    found.on_failure = watch
    if found.solve((pattern, node, None)):
        found.on_failure = None
        return Explanation(pattern, node, match=found)
    said, depth = watch.said, max(watch.depth, 0)
    if found.steps >= STEP_LIMIT:
        said += f"; the search gave up after {STEP_LIMIT} steps"
    part = _part(watch.goal)
    return Explanation(pattern, node, None, watch.at, part, watch.wanted, said, depth)


def _part(goal: Any) -> PatternBase | None:
    match goal:
        case Tested(checked=PatternBase() as part):
            return part
        case Above(pattern=part) | Chain(pattern=part) | Assign(pattern=part):
            return part
        case PatternBase():
            return goal
    return None


def _wanted(goal: Any, found: Match) -> str:
    """Returns a description of a goal's requirement."""
    known = found.get(goal) if isinstance(goal, PatternBase) else None
    if known is not None:
        return f"the node that {goal} matched before: {describe(known)}"
    match goal:
        case Tested(checked=Checked() as checked):
            return checked.text
        case CallOf(names, args):
            inputs = "" if args is None else f" with {len(args)} input{'s' * (len(args) != 1)}"
            return f"a call of {' or '.join(sorted(names))}{inputs}{_unknown_names(names)}"
        case NodeKind(kind):
            return _ARTICLES.get(kind.__name__, f"a {kind.__name__.lower()}")
        case Projection(_, index):
            return "one value of a tuple" if index is None else f"value {index} of a tuple"
        case TupleOf(fields):
            return "a tuple" if fields is None else f"a tuple of {len(fields)}"
        case IfOf():
            return "a branch"
        case FunctionCall():
            return "a call of a function"
        case FunctionOf(_, params):
            return "a function" + ("" if params is None else f" of {len(params)} parameters")
        case Given(expr):
            return f"the same as {describe(expr)}"
        case Above():
            return "a parent whose value reaches nothing but through this node, by such a path"
        case Chain() | Assign():
            return f"operands in another order or bracketing of {goal.pattern}"
    return str(goal)


def _found(goal: Any, node: Expr, found: Match) -> str:
    """Returns a description of what the node has instead."""
    match goal:
        case Tested():
            says = goal.checked.says
            return says(node, found) if says is not None else "it does not hold"
        case CallOf(names, args) if isinstance(node, Call) and node.op_name in names:
            return f"{len(node.args)} inputs" if args is not None else kind_of(node)
    return kind_of(node)


explained_by(explain)
