"""The matcher: bounded backtracking search for one way in which a pattern fits a node.

What is left to match is a linked list of goals. Each kind of goal has a step, which binds its
pattern and returns the goals that are left, several lists where there are alternatives, or `FAILED`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from clew.ir.expr import (
    Attrs,
    Call,
    Constant,
    Expr,
    Function,
    If,
    Let,
    Tuple,
    TupleGetItem,
    While,
)
from clew.ir.visit import post_order, users
from clew.ops.registry import Op
from clew.patterns.chains import Assign, assigned, rows
from clew.patterns.dominators import parents
from clew.patterns.given import structure
from clew.patterns.pattern import (
    Above,
    CallOf,
    Chain,
    Checked,
    Dominates,
    Either,
    FunctionCall,
    FunctionOf,
    Given,
    IfOf,
    Inside,
    NodeKind,
    Pattern,
    Projection,
    Tested,
    TupleOf,
    Wildcard,
)

Uses: TypeAlias = Callable[[Expr], int]
# A pattern (or a further goal of one that is bound already), its node, and the rest.
Goals: TypeAlias = "tuple[Any, Expr, Goals] | None"
# Goals that are left; or several, to be tried in order; or FAILED.
Outcome: TypeAlias = "Goals | list[Goals] | Iterator[Goals] | bool"
FAILED: Final = False
# A search gives up after so many steps: some patterns have more ways to fail than there is time.
STEP_LIMIT: Final = 20_000

_NAMING: Final = (
    CallOf,
    NodeKind,
    Projection,
    TupleOf,
    IfOf,
    FunctionCall,
    Given,
    Inside,
)
_COVERED: Final = (Call, Constant, TupleGetItem, Tuple, If, While, Let)


class Match(Mapping[Pattern, Expr]):
    """A mapping from patterns to the nodes they matched.

    `nodes` are what the pattern names, root first, each once: calls, projections, tuples, branches
    and constants; what a wildcard matched is not part of the match. `steps` is how long it took.
    """

    __slots__ = ("_bound", "on_failure", "root", "steps", "uses")

    def __init__(self, root: Expr, uses: Uses) -> None:
        self.root = root
        self.uses = uses
        self.steps = 0
        self.on_failure: Callable[[Any, Expr], None] | None = None
        self._bound: dict[Pattern, Expr] = {}

    def __getitem__(self, pattern: Pattern) -> Expr:
        return self._bound[pattern]

    def __iter__(self) -> Iterator[Pattern]:
        return iter(self._bound)

    def __len__(self) -> int:
        return len(self._bound)

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    @property
    def nodes(self) -> tuple[Expr, ...]:
        """The nodes that the pattern names, root first."""
        named = {self.root.id: self.root}
        for pattern, node in self._bound.items():
            if isinstance(pattern, _NAMING) and isinstance(node, _COVERED):
                named[node.id] = node
        return tuple(named.values())

    @property
    def attrs(self) -> Attrs:
        """Attributes of the root. Asserts that it is a call."""
        assert isinstance(self.root, Call), self.root
        return self.root.attrs

    def call(self, pattern: Pattern) -> Call:
        """Returns the call that a pattern matched. Asserts that it is one."""
        node = self._bound[pattern]
        assert isinstance(node, Call), node
        return node

    def constant(self, pattern: Pattern) -> Constant:
        """Returns the constant that a pattern matched. Asserts that it is one."""
        node = self._bound[pattern]
        assert isinstance(node, Constant), node
        return node

    def inside(self, pattern: Pattern) -> tuple[Expr, ...]:
        """Returns the nodes that a pattern covers without naming them: between a parent and its
        child, or in a sum that is bracketed in another way than the pattern.
        """
        return tuple(n for p, n in self._bound.items() if isinstance(p, Inside) and p.of is pattern)

    # --- for the steps ---

    def bind(self, pattern: Pattern, node: Expr) -> None:
        """Notes what a pattern matches, until the search takes it back."""
        self._bound[pattern] = node

    def cover(self, pattern: Pattern, nodes: Iterable[Expr]) -> None:
        """Notes nodes that a pattern covers without naming them."""
        for place, node in enumerate(nodes):
            self._bound[Inside(pattern, place)] = node

    def again(self, pattern: Pattern, node: Expr) -> bool:
        """Whether a pattern fits a node by itself, whatever has been matched here."""
        inner = Match(node, self.uses)
        inner.steps = self.steps
        fits = inner.solve((pattern, node, None))
        self.steps = inner.steps
        return fits

    def solve(self, goals: Goals) -> bool:
        """Whether the goals can be met; leaves what they bind in place if so."""
        bound, start, steps = self._bound, len(self._bound), self.steps
        # Places to come back to: how much was bound there, and what else can be tried.
        trail: list[tuple[int, Iterator[Goals]]] = []
        while goals is not None:
            pattern, node, rest = goals
            steps += 1
            known = bound.get(pattern)
            outcome: Any
            if known is not None:
                outcome = rest if known is node else FAILED
            elif steps > STEP_LIMIT:
                trail.clear()
                outcome = FAILED
            else:
                self.steps = steps
                outcome = _STEPS[type(pattern)](self, pattern, node, rest)
                steps = self.steps
            if outcome is None or type(outcome) is tuple:
                goals = outcome
                continue
            if outcome is FAILED:
                if self.on_failure is not None:
                    self.on_failure(pattern, node)
            else:
                trail.append((len(bound), iter(outcome)))
            while trail:
                mark, others = trail[-1]
                while len(bound) > mark:
                    bound.popitem()
                self.steps = steps
                following = next(others, FAILED)
                steps = self.steps
                if following is not FAILED:
                    goals = following
                    break
                trail.pop()
            else:
                while len(bound) > start:
                    bound.popitem()
                self.steps = steps
                return False
        self.steps = steps
        return True


# --- steps ---


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


def _pairs(wanted: tuple[Pattern, ...], given: tuple[Expr, ...], rest: Goals) -> Goals:
    for pattern, node in zip(reversed(wanted), reversed(given), strict=True):
        rest = (pattern, node, rest)
    return rest


def _chain(found: Match, goal: Chain, node: Expr, rest: Goals) -> Iterator[Goals]:
    """Bracketings other than the pattern's; the pattern itself is bound."""
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


def _tested(found: Match, goal: Tested, node: Expr, rest: Goals) -> Outcome:
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
    if not isinstance(node, Tuple):
        return FAILED
    if pattern.fields is not None and len(pattern.fields) != len(node.fields):
        return FAILED
    found._bound[pattern] = node
    return rest if pattern.fields is None else _pairs(pattern.fields, node.fields, rest)


def _if(found: Match, pattern: IfOf, node: Expr, rest: Goals) -> Outcome:
    if not isinstance(node, If):
        return FAILED
    if pattern.args is not None:
        if len(pattern.args) != len(node.args):
            return FAILED
        rest = _pairs(pattern.args, node.args, rest)
    found._bound[pattern] = node
    sides = (pattern.cond, pattern.then, pattern.orelse)
    return _pairs(sides, (node.cond, node.then.body, node.orelse.body), rest)


def _function_call(found: Match, pattern: FunctionCall, node: Expr, rest: Goals) -> Outcome:
    if not isinstance(node, Call) or not isinstance(node.op, Function):
        return FAILED
    if pattern.args is not None:
        if len(pattern.args) != len(node.args):
            return FAILED
        rest = _pairs(pattern.args, node.args, rest)
    found._bound[pattern] = node
    return (pattern.function, node.op, rest)


def _function(found: Match, pattern: FunctionOf, node: Expr, rest: Goals) -> Outcome:
    if not isinstance(node, Function):
        return FAILED
    if pattern.params is not None:
        if len(pattern.params) != len(node.params):
            return FAILED
        rest = _pairs(pattern.params, node.params, rest)
    found._bound[pattern] = node
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


def _above(found: Match, goal: Above, node: Expr, rest: Goals) -> Outcome:
    pattern = goal.pattern
    choices = parents(pattern, node, found.again, found.uses)
    nearest = next(choices, None)
    if nearest is None:
        return FAILED
    return (
        (Assign(pattern, (), (), between), node, (pattern.parent, parent, rest))
        for parent, between in itertools.chain((nearest,), choices)
    )


_STEPS: Final[Mapping[type, Callable[..., Outcome]]] = {
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


# --- what users call ---


def _unknown(node: Expr) -> int:
    return 0


def uses_in(function: Function) -> Uses:
    """Returns what tells how many nodes of a function's own body use a value."""
    counts = {node: len(using) for node, using in users(function).items()}
    return lambda node: counts.get(node.id, 0)


def match(pattern: Pattern, expr: Expr, uses: Uses | Function = _unknown) -> Match | None:
    """Returns one way in which the pattern fits the node, or `None`.

    `uses` is the function that the node is in, or tells how many nodes use a value; without it
    `used_once` and `dominates` match nothing.
    """
    found = Match(expr, uses_in(uses) if isinstance(uses, Function) else uses)
    return found if found.solve((pattern, expr, None)) else None


def find_all(pattern: Pattern, function: Function) -> list[Match]:
    """Returns a match for every node of the function's body that the pattern fits, in
    post-order.
    """
    uses = uses_in(function)
    found = [match(pattern, node, uses) for node in candidates(pattern, function)]
    return [m for m in found if m is not None]


def candidates(pattern: Pattern, function: Function) -> list[Expr]:
    """Returns the nodes of a function's body whose kind the pattern's root may be, in post-order."""
    names, kinds = pattern.root_ops, pattern.root_kinds
    order: list[Expr] = post_order(function.body)
    if kinds is not None:
        of = tuple(kinds)
        order = [n for n in order if isinstance(n, of)]
    if names is not None:
        order = [n for n in order if isinstance(n, Call) and n.op_name in names]
    return order
