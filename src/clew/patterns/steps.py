"""The step of each kind of goal: its requirement for a node, and the goals it leaves."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final

from clew.ir.expr import Call, Expr, Function, If, Tuple, TupleGetItem
from clew.ops.registry import Op
from clew.patterns.base import PatternBase
from clew.patterns.chains import assigned, rows
from clew.patterns.dominators import parents
from clew.patterns.found import Match, Steps
from clew.patterns.given import structure
from clew.patterns.goals import FAILED, Above, Assign, Chain, Goals, Outcome, Tested
from clew.patterns.pattern import (
    CallOf,
    Checked,
    Dominates,
    Either,
    FunctionCall,
    FunctionOf,
    Given,
    IfOf,
    NodeKind,
    Projection,
    TupleOf,
    Wildcard,
)


def _wildcard(found: Match, pattern: Wildcard, node: Expr, rest: Goals) -> Outcome:
    found._bound[pattern] = node
    return rest


def _node_kind(found: Match, pattern: NodeKind, node: Expr, rest: Goals) -> Outcome:
    if not isinstance(node, pattern.kind):
        return FAILED
    found._bound[pattern] = node
    return rest


def _call(found: Match, pattern: CallOf, node: Expr, rest: Goals) -> Outcome:
    if not isinstance(node, Call):
        return FAILED
    op, given, wanted = node.op, node.args, pattern.args
    if not isinstance(op, Op) or op.name not in pattern.names:
        return FAILED
    if wanted is None:
        found._bound[pattern] = node
        return rest
    if len(wanted) != len(given):
        return FAILED
    found._bound[pattern] = node
    if len(wanted) == 1:
        return (wanted[0], given[0], rest)
    if len(wanted) == 2:
        (first, second), (left, right) = wanted, given
        goals = (first, left, (second, right, rest))
        if op.commutative and left is not right:
            choices: list[Goals] = [goals, (first, right, (second, left, rest))]
        else:
            choices = [goals]
        if op.associative and pattern.chain is not None:
            choices.append((pattern.chain, node, rest))
        return choices if len(choices) > 1 else goals
    return _pairs(wanted, given, rest)


def _as_many(wanted: tuple[PatternBase, ...] | None, given: tuple[Expr, ...]) -> bool:
    """Whether there are as many nodes as patterns; `None` means any number."""
    return wanted is None or len(wanted) == len(given)


def _pairs(wanted: tuple[PatternBase, ...] | None, given: tuple[Expr, ...], rest: Goals) -> Goals:
    """Returns the goals, preceded by a pattern for each node; `None` requires nothing."""
    if wanted is None:
        return rest
    for pattern, node in zip(reversed(wanted), reversed(given), strict=True):
        rest = (pattern, node, rest)
    return rest


def _chain(found: Match, goal: Chain, node: Expr, rest: Goals) -> Iterator[Goals]:
    """Tries bracketings other than the pattern's; the pattern itself is bound."""
    assert isinstance(node, Call)
    assert isinstance(node.op, Op)
    for row, inner in rows(node, len(goal.leaves)):
        if node.op.commutative:
            yield (Assign(goal.pattern, goal.leaves, row, inner), node, rest)
        else:
            yield (Assign(goal.pattern, (), (), inner), node, _pairs(goal.leaves, row, rest))


def _assign(found: Match, goal: Assign, node: Expr, rest: Goals) -> Outcome:
    found.cover(goal.pattern, goal.inner)
    if not goal.leaves:
        return rest
    return [
        (leaf, term, (left, node, rest) if left is not None else rest)
        for leaf, term, left in assigned(goal)
    ]


def _checked(found: Match, pattern: Checked, node: Expr, rest: Goals) -> Outcome:
    found._bound[pattern] = node
    return (pattern.inner, node, (pattern.after, node, rest))


def _tested(found: Match, goal: Tested[Checked], node: Expr, rest: Goals) -> Outcome:
    return rest if goal.checked.test(node, found) else FAILED


def _either(found: Match, pattern: Either, node: Expr, rest: Goals) -> Outcome:
    found._bound[pattern] = node
    return [(option, node, rest) for option in pattern.options]


def _projection(found: Match, pattern: Projection, node: Expr, rest: Goals) -> Outcome:
    if not isinstance(node, TupleGetItem) or pattern.index not in (None, node.index):
        return FAILED
    found._bound[pattern] = node
    return (pattern.value, node.value, rest)


def _tuple(found: Match, pattern: TupleOf, node: Expr, rest: Goals) -> Outcome:
    if not isinstance(node, Tuple) or not _as_many(pattern.fields, node.fields):
        return FAILED
    found._bound[pattern] = node
    return _pairs(pattern.fields, node.fields, rest)


def _if(found: Match, pattern: IfOf, node: Expr, rest: Goals) -> Outcome:
    if not isinstance(node, If) or not _as_many(pattern.args, node.args):
        return FAILED
    found._bound[pattern] = node
    rest = _pairs(pattern.args, node.args, rest)
    sides = (pattern.cond, pattern.then, pattern.orelse)
    return _pairs(sides, (node.cond, node.then.body, node.orelse.body), rest)


def _function_call(found: Match, pattern: FunctionCall, node: Expr, rest: Goals) -> Outcome:
    if not isinstance(node, Call) or not isinstance(node.op, Function):
        return FAILED
    if not _as_many(pattern.args, node.args):
        return FAILED
    found._bound[pattern] = node
    rest = _pairs(pattern.args, node.args, rest)
    return (pattern.function, node.op, rest)


def _function(found: Match, pattern: FunctionOf, node: Expr, rest: Goals) -> Outcome:
    if not isinstance(node, Function) or not _as_many(pattern.params, node.params):
        return FAILED
    found._bound[pattern] = node
    rest = _pairs(pattern.params, node.params, rest)
    return (pattern.body, node.body, rest)


def _given(found: Match, pattern: Given, node: Expr, rest: Goals) -> Outcome:
    same = structure(pattern.expr, node)
    if same is None:
        return FAILED
    found._bound[pattern] = node
    found.cover(pattern, same)
    return rest


def _dominates(found: Match, pattern: Dominates, node: Expr, rest: Goals) -> Outcome:
    found._bound[pattern] = node
    return (pattern.child, node, (pattern.above, node, rest))


def _above(found: Match, goal: Above[Dominates], node: Expr, rest: Goals) -> Outcome:
    pattern = goal.pattern
    choices = parents(pattern, node, found.again, found.uses)
    nearest = next(choices, None)
    if nearest is None:
        return FAILED
    return (
        (Assign(pattern, (), (), between), node, (pattern.parent, parent, rest))
        for parent, between in itertools.chain((nearest,), choices)
    )


STEPS: Final[Steps] = {
    Wildcard: _wildcard,
    NodeKind: _node_kind,
    CallOf: _call,
    Chain: _chain,
    Assign: _assign,
    Checked: _checked,
    Tested: _tested,
    Either: _either,
    Projection: _projection,
    TupleOf: _tuple,
    IfOf: _if,
    FunctionCall: _function_call,
    FunctionOf: _function,
    Given: _given,
    Dominates: _dominates,
    Above: _above,
}
