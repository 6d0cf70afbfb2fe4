"""Turns each match of a pattern into a composite function, which is called in its place."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from clew.ir.expr import Call, Constant, Expr, Function, If, Tuple, TupleGetItem, While
from clew.ir.module import Module
from clew.ir.outline import Outliner, Piece
from clew.ir.rewrite import Rewriter
from clew.ir.visit import post_order, users
from clew.patterns.explanation import describe
from clew.patterns.found import Match
from clew.patterns.match import candidates, match
from clew.patterns.pattern import Pattern
from clew.support.dataclass import dataclass

Target = TypeVar("Target", Module, Function)

_INSIDE = (Call, Tuple, TupleGetItem, If, While)


@dataclass(eq=False)
class Part(Piece):
    """The part of one match: its root is the last member and the first output. `constants` are the
    ids of those that the pattern names; they stay inside.
    """

    constants: frozenset[int] = frozenset()

    @property
    def root(self) -> Expr:
        """The node matched by the pattern's root."""
        return self.members[-1]


def partition(
    target: Target,
    pattern: Pattern,
    name: str,
    *,
    attrs: Mapping[str, Any] | None = None,
    extra_outputs: bool = False,
    on_refusal: Callable[[Expr, str], None] | None = None,
) -> Target:
    """Returns a module, or a function, in which each match is a call of a function with the
    attribute `composite=name`; the same object if there is no match.

    The function contains the nodes that the pattern names: operators, and constants matched by
    patterns of constants. Values matched by wildcards become its parameters, in order of first use.
    `attrs` are more attributes of the function.

    If matches overlap, the first in post-order wins, except that a larger match replaces those
    inside it. A match is refused if a value inside it is used outside. With `extra_outputs`, the
    function instead returns a tuple, the root's value first, unless the call would then depend on
    itself: a path leaves the match and returns. `on_refusal` is called with each refused match's
    node and the reason; a pass passes `ctx.remark`. `InlineComposites`, the first pass of the
    pipeline, inlines the function again unless an earlier pass replaces the call.
    """
    given = {"composite": name, "name": name, **(attrs or {})}
    partitioner = _Partitioner(
        pattern, given, extra_outputs, on_refusal or (lambda node, why: None)
    )
    if isinstance(target, Module):
        return partitioner.rewrite_module(target)
    return partitioner.rewrite_function(target)


class Finder:
    """Finds the parts of one function's body."""

    def __init__(
        self,
        function: Function,
        pattern: Pattern,
        extra_outputs: bool,
        on_refusal: Callable[[Expr, str], None],
    ) -> None:
        self._pattern = pattern
        self._extra_outputs = extra_outputs
        self._on_refusal = on_refusal
        self._roots = candidates(pattern, function)
        self._index = {node.id: n for n, node in enumerate(post_order(function.body))}
        self._users = users(function)
        self._part_of: dict[int, Part] = {}
        # Parts with several outputs: indices of the last member and the first.
        self._spans: list[tuple[int, int]] = []
        self.parts: list[Part] = []

    def find(self) -> list[Part]:
        """Returns parts that do not overlap and do not form a cycle."""
        alone = {root.id: part for root in self._roots if (part := self._try(root, alone=True))}
        held = self._held(alone)
        for root in self._roots:
            if root.id in alone and root.id not in held:
                self._accept(self._try(root))
        for root in self._roots:
            if root.id in held and root.id not in self._part_of:
                self._accept(self._try(root))
        return self.parts

    def _held(self, found: Mapping[int, Part]) -> set[int]:
        """Returns the roots whose parts are inside a larger part."""
        around: dict[int, list[int]] = {}
        sets = {root: frozenset(m.id for m in part.members) for root, part in found.items()}
        for root, members in sets.items():
            for member in members:
                around.setdefault(member, []).append(root)
        return {
            root
            for root, members in sets.items()
            if any(members < sets[other] for other in around.get(root, ()))
        }

    def _uses(self, node: Expr) -> int:
        return len(self._users.get(node.id, ()))

    def _try(self, root: Expr, *, alone: bool = False) -> Part | None:
        """Returns the part of the first valid match at a node; if there is none, reports the
        reason.
        """
        reasons: list[str] = []
        parts: list[Part] = []

        def can_be_a_part(found: Match) -> bool:
            part = self._part(found)
            reason = self._unfit(part, alone) if part is not None else "it contains no operator"
            if reason:
                reasons.append(reason)
            elif part is not None:
                parts.append(part)
            return not reason

        if match(self._pattern.where(can_be_a_part), root, self._uses) is not None:
            return parts[-1]
        if reasons:
            self._on_refusal(root, f"the match is refused: {reasons[0]}")
        return None

    def _part(self, found: Match) -> Part | None:
        nodes = [n for n in found.nodes if n.id in self._index]
        members = [n for n in nodes if isinstance(n, _INSIDE)]
        if found.root not in members:
            return None
        members.sort(key=lambda n: self._index[n.id])
        inside = {m.id for m in members}
        outputs = [
            m
            for m in members
            if m is not found.root and any(u.id not in inside for u in self._users[m.id])
        ]
        constants = frozenset(n.id for n in nodes if isinstance(n, Constant))
        return Part(tuple(members), outputs=(found.root, *outputs), constants=constants)

    def _unfit(self, part: Part, alone: bool) -> str:
        """Returns the reason why a part is invalid, or ""."""
        if len(part.outputs) > 1 and not self._extra_outputs:
            return f"{describe(part.outputs[1])} is also used outside it"
        if not alone:
            for member in part.members:
                other = self._part_of.get(member.id)
                if other is not None:
                    return f"it overlaps with the match at {describe(other.root)}"
        if len(part.outputs) > 1:
            back = self._way_back(part)
            if back is not None:
                return f"it would form a cycle: {describe(back)}, outside it, depends on it"
        return ""

    def _way_back(self, part: Part) -> Expr | None:
        """Returns an operand outside the part that depends on the part, considering all parts so
        far.

        Parts with one output form no cycle: everything inside flows into the output.
        """
        inside = {m.id for m in part.members}
        bound = min(self._index[m] for m in inside)
        for last, first in reversed(self._spans):
            if last <= bound:
                break
            bound = min(bound, first)
        for start in _operands(part.members):
            if start.id in inside:
                continue
            seen = {start.id}
            stack = [start]
            while stack:
                node = stack.pop()
                if node.id in inside:
                    return start
                if self._index[node.id] < bound:
                    continue
                other = self._part_of.get(node.id)
                several = other is not None and len(other.outputs) > 1
                members = other.members if several and other is not None else (node,)
                for operand in _operands(members):
                    if operand.id not in seen:
                        seen.add(operand.id)
                        stack.append(operand)
        return None

    def _accept(self, part: Part | None) -> None:
        if part is None:
            return
        self.parts.append(part)
        self._part_of.update((m.id, part) for m in part.members)
        if len(part.outputs) > 1:
            indices = [self._index[m.id] for m in part.members]
            insort(self._spans, (max(indices), min(indices)))


def _operands(nodes: Sequence[Expr]) -> list[Expr]:
    return [c for n in nodes for c in n.children if not isinstance(c, Function)]


class _Partitioner(Rewriter):
    """Rewrites each function of a module with its own outliner."""

    def __init__(
        self,
        pattern: Pattern,
        attrs: Mapping[str, Any],
        extra_outputs: bool,
        on_refusal: Callable[[Expr, str], None],
    ) -> None:
        super().__init__()
        self._options = (pattern, extra_outputs, on_refusal)
        self._attrs = attrs

    def rewrite_function(self, function: Function) -> Function:
        if function.is_primitive or "composite" in function.attrs:
            return function
        parts = Finder(function, *self._options).find()
        for part in parts:
            part.attrs = self._attrs
        kept = {m.id: part.constants for part in parts for m in part.members}
        outliner = Outliner(parts, lambda arg, user: arg.id in kept[user.id], self.rewrite_function)
        return outliner.rewrite_function(function)
