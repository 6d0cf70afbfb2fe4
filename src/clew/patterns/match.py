"""The matcher: backtracking search for one way in which a pattern fits a node."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from clew.ir.expr import Attrs, Call, Constant, Expr, Function, TupleGetItem
from clew.ir.visit import post_order, users
from clew.ops.registry import Op
from clew.patterns.pattern import (
    CallOf,
    Checked,
    Either,
    NodeKind,
    Pattern,
    Projection,
    Wildcard,
)

Uses: TypeAlias = Callable[[Expr], int]
# What is left to match, as a linked list: a pattern (or a test to make) and its node.
_Goals: TypeAlias = "tuple[Pattern | Checked, Expr, bool, _Goals] | None"


class Match(Mapping[Pattern, Expr]):
    """A mapping from patterns to the nodes they matched.

    `nodes` are the calls, projections and constants that the pattern names, root first, each once;
    what a wildcard matched is not part of the match.
    """

    __slots__ = ("_bound", "root", "uses")

    def __init__(self, root: Expr, uses: Uses) -> None:
        self.root = root
        self.uses = uses
        self._bound: dict[Pattern, Expr] = {}

    def __getitem__(self, pattern: Pattern) -> Expr:
        return self._bound[pattern]

    def __iter__(self) -> Iterator[Pattern]:
        return iter(self._bound)

    def __len__(self) -> int:
        return len(self._bound)

    def __hash__(self) -> int:
        return id(self)

    @property
    def nodes(self) -> tuple[Expr, ...]:
        """The nodes that the pattern names, root first."""
        named = {
            node.id: node
            for pattern, node in self._bound.items()
            if isinstance(pattern, (CallOf, NodeKind, Projection))
            and isinstance(node, (Call, Constant, TupleGetItem))
        }
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

    def _solve(self, goals: _Goals) -> bool:
        """Whether the goals can be met; leaves what they bind in place if so."""
        bound, mark = self._bound, len(self._bound)
        while goals is not None:
            pattern, node, matched, goals = goals
            choices = self._step(pattern, node, matched, goals)
            if choices is None:
                self._undo(mark)
                return False
            if len(choices) == 1:
                goals = choices[0]
                continue
            for choice in choices:
                here = len(bound)
                if self._solve(choice):
                    return True
                self._undo(here)
            self._undo(mark)
            return False
        return True

    def _undo(self, mark: int) -> None:
        while len(self._bound) > mark:
            self._bound.popitem()

    def _step(
        self, pattern: Pattern, node: Expr, matched: bool, rest: _Goals
    ) -> tuple[_Goals, ...] | None:
        """Returns the alternatives of what is left to match after this goal; `None` if it fails."""
        if matched:
            assert isinstance(pattern, Checked)
            return (rest,) if pattern.test(node, self) else None
        known = self._bound.get(pattern)
        if known is not None:
            return (rest,) if known is node else None
        match pattern:
            case Wildcard():
                fits: tuple[_Goals, ...] | None = (rest,)
            case NodeKind(kind):
                fits = (rest,) if isinstance(node, kind) else None
            case Checked(inner):
                fits = ((inner, node, False, (pattern, node, True, rest)),)
            case Either(options):
                fits = tuple((option, node, False, rest) for option in options)
            case Projection(value, index):
                fits = None
                if isinstance(node, TupleGetItem) and index in (None, node.index):
                    fits = ((value, node.value, False, rest),)
            case CallOf(names, args):
                fits = _call(names, args, node, rest)
            case _:
                raise AssertionError(pattern)
        if fits is not None:
            self._bound[pattern] = node
        return fits


def _call(
    names: frozenset[str], args: tuple[Pattern, ...] | None, node: Expr, rest: _Goals
) -> tuple[_Goals, ...] | None:
    if not isinstance(node, Call) or not isinstance(node.op, Op) or node.op.name not in names:
        return None
    if args is None:
        return (rest,)
    if len(args) != len(node.args):
        return None
    orders = [node.args]
    if node.op.commutative and len(args) == 2 and node.args[0] is not node.args[1]:
        orders.append((node.args[1], node.args[0]))
    choices = []
    for order in orders:
        goals = rest
        for pattern, arg in zip(reversed(args), reversed(order), strict=True):
            goals = (pattern, arg, False, goals)
        choices.append(goals)
    return tuple(choices)


def _unknown(node: Expr) -> int:
    return 0


def match(pattern: Pattern, expr: Expr, uses: Uses = _unknown) -> Match | None:
    """Returns one way in which the pattern fits the node, or `None`.

    `uses` tells how many nodes use a value; without it `used_once` matches nothing.
    """
    found = Match(expr, uses)
    return found if found._solve((pattern, expr, False, None)) else None


def find_all(pattern: Pattern, function: Function) -> list[Match]:
    """Returns a match for every node of the function's body that the pattern fits, in
    post-order.
    """
    counts = {node: len(using) for node, using in users(function).items()}
    names = pattern.root_ops
    found = []
    for node in post_order(function.body):
        if names is not None and not (isinstance(node, Call) and node.op_name in names):
            continue
        matched = match(pattern, node, lambda n: counts.get(n.id, 0))
        if matched is not None:
            found.append(matched)
    return found
