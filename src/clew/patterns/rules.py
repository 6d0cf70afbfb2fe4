"""Rewrite rules: a pattern and a function that builds what takes the match's place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from clew.ir.expr import Call, Expr, Function, TupleGetItem
from clew.ir.rewrite import Rewriter, rebuild
from clew.ir.visit import post_order
from clew.patterns.match import Match, match
from clew.patterns.pattern import Pattern
from clew.support.errors import InputError


@dataclass(frozen=True, eq=False)
class Rule:
    """Replaces what `pattern` matches by what `build` returns; `None` leaves it as it is.

    The result computes the value of the match's root. `name` is the function's name.
    """

    name: str
    pattern: Pattern
    build: Callable[[Match], Expr | None]


def rule(pattern: Pattern) -> Callable[[Callable[[Match], Expr | None]], Rule]:
    """Decorator: makes a function of a match a rule."""

    def make(build: Callable[[Match], Expr | None]) -> Rule:
        return Rule(getattr(build, "__name__", "rule"), pattern, build)

    return make


class RuleRewriter(Rewriter):
    """Applies rules bottom-up until none fits. Earlier rules go first.

    What a rule builds is for all old nodes that the match stands for, and is itself offered to the
    rules, so that one pass settles. A node is tried only with rules whose root operator it calls.

    Errors: I021 when rules keep firing at one node.
    """

    limit: ClassVar[int] = 256

    def __init__(self, rules: Iterable[Rule]) -> None:
        super().__init__()
        self.visits = 0
        self._any: list[Rule] = []
        self._by_op: dict[str, list[Rule]] = {}
        # For each node of the new graph: the old nodes it was built for, root first.
        self._stands_for: dict[int, tuple[Expr, ...]] = {}
        # Nodes that took an old node's place: nothing more is done to them.
        self._placed: set[int] = set()
        self._uses: dict[int, int] = {}
        self._old_uses: dict[int, int] = {}
        self._index(list(rules))

    def _index(self, rules: Sequence[Rule]) -> None:
        self._any = [r for r in rules if r.pattern.root_ops is None]
        for name in {n for r in rules for n in r.pattern.root_ops or ()}:
            self._by_op[name] = [
                r for r in rules if r.pattern.root_ops is None or name in r.pattern.root_ops
            ]

    def enter(self, function: Function) -> None:
        for node in post_order(function.body):
            for child in node.children:
                self._old_uses[child.id] = self._old_uses.get(child.id, 0) + 1
        body = function.body.id
        self._old_uses[body] = self._old_uses.get(body, 0) + 1

    def uses(self, node: Expr) -> int:
        """Returns how many nodes use a value of the graph being built."""
        return self._uses.get(node.id, 1)

    def originals(self, *nodes: Expr) -> tuple[Expr, ...]:
        """Returns the nodes of the stage before that nodes of the new graph were built for."""
        found: dict[int, Expr] = {}
        for node in nodes:
            for before in self._stands_for.get(node.id, ()):
                found.setdefault(before.id, before)
        return tuple(found.values())

    def dispatch(self, old: Expr, new: Expr) -> Expr:
        result = super().dispatch(old, new)
        if result.id not in self._placed:
            self._stands_for.setdefault(result.id, (old,))
            if isinstance(old, (Call, TupleGetItem)):
                result = self._settle(result)
        stands_for = self._stands_for.get(result.id, ())
        if not any(before is old for before in stands_for):
            self._stands_for[result.id] = (*stands_for, old)
        self._placed.add(result.id)
        self._uses[result.id] = self._uses.get(result.id, 0) + self._old_uses.get(old.id, 0)
        return result

    def _settle(self, root: Expr) -> Expr:
        """Returns `root` after all rules that fit it and what they build."""
        left, tried = self.limit, set[int]()
        while True:
            for node in self._unplaced(root):
                if node.id in tried:
                    continue
                tried.add(node.id)
                self.visits += 1
                result = self._fire(node, left)
                if result is not None:
                    left -= 1
                    root = self._replace(root, node, result)
                    break
            else:
                return root

    def _unplaced(self, root: Expr) -> list[Expr]:
        """Returns the nodes under `root` that were just built, uses after what they use."""
        order: list[Expr] = []
        seen: set[int] = set()
        stack = [(root, False)]
        while stack:
            node, expanded = stack.pop()
            if expanded:
                order.append(node)
            elif node.id not in seen and node.id not in self._placed:
                seen.add(node.id)
                stack.append((node, True))
                if not isinstance(node, Function):
                    stack.extend((child, False) for child in reversed(node.children))
        return order

    def _fire(self, node: Expr, left: int) -> Expr | None:
        """Returns what the first rule that fits builds, `None` if none does."""
        rules = self._by_op.get(node.op_name, self._any) if isinstance(node, Call) else self._any
        for candidate in rules:
            found = match(candidate.pattern, node, self.uses)
            if found is None:
                continue
            stands_for = self.originals(*found.nodes)
            with self.covers(*stands_for):
                result = candidate.build(found)
            if result is None or result is node:
                continue
            if left == 0:
                raise InputError(
                    "I021",
                    f"rules do not settle: {candidate.name} fits again and again",
                    hint="a rule must not build what it, or another rule, takes back",
                )
            for built in self._unplaced(result):
                self._stands_for.setdefault(built.id, stands_for)
            return result
        return None

    def _replace(self, root: Expr, node: Expr, result: Expr) -> Expr:
        """Returns `root` with `node`, built for it just now, replaced."""
        replaced: dict[int, Expr] = {node.id: result}
        if node is not root:
            for user in self._unplaced(root):
                if user is node:
                    continue
                stands_for = self.originals(user)
                with self.covers(*stands_for):
                    new = rebuild(user, [replaced.get(c.id, c) for c in user.children])
                self._stands_for.setdefault(new.id, stands_for)
                replaced[user.id] = new
        return replaced[root.id]
