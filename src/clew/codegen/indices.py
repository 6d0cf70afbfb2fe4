"""Checked indices: the place, the lanes and the condition of each check.

An index that is invariant in a loop is checked once before that loop if it is certain to be used.
An index in a branch of a select counts only if the branch is taken. For parts computed before their
branches (`shared`), failing indices are held back until a branch uses the part.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

from clew.codegen.accesses import Accesses
from clew.codegen.builder import Builder, Value
from clew.codegen.checks import Checks, Fault
from clew.codegen.lanes import literal
from clew.codegen.math import arith
from clew.codegen.vectors import mask_lanes
from clew.loop.affine import Simplifier
from clew.te.expr import (
    INDEX,
    Binary,
    Cast,
    Checked,
    Imm,
    Index,
    Inlined,
    Load,
    Scalar,
    Select,
    Unary,
)
from clew.te.walk import nodes, post_order

_PLAIN = (Binary, Cast, Checked, Imm, Index, Inlined, Unary)
# By a check's number, the check and an index that is out of range, or 0.
_Waiting: TypeAlias = "dict[int, tuple[Checked, Value]]"


def _number(index: Value) -> int | None:
    """Returns the value of a literal index, or None."""
    return int(index.text) if index.lanes == 1 and not index.text.startswith("%") else None


class Indices(Accesses):
    """Evaluates checked indices, and tracks the conditions under which a check counts."""

    def __init__(self, builder: Builder, simplifier: Simplifier) -> None:
        super().__init__(builder, simplifier)
        self.checks = Checks(builder, self.scopes[0].place, self.dim_value)
        self.memo: dict[int, Value] = {}
        self.shared: dict[int, Value] = {}
        self.steps: dict[tuple[int, ...], Value] = {}
        # The innermost loop around the last condition that was entered: values computed once in
        # that loop or further out are not certain to be used here.
        self.branch_depth = -1
        self._early: dict[int, tuple[Scalar, bool]] = {}
        self._waiting: dict[int, _Waiting] = {}

    @abstractmethod
    def value(self, expr: Scalar) -> Value:
        """Returns an expression's value; implemented by the value emitter."""
        ...

    def checked(self, expr: Checked) -> Value:
        """Returns an index to read at, and records it if it is out of range in an active lane."""
        if self.is_early(expr):
            return self.atom_value(expr)[0]
        return self._looked_at(expr)

    def _looked_at(self, expr: Checked) -> Value:
        index = self.value(expr.value)
        known = _number(index) if isinstance(expr.places.count, int) else None
        if known is not None and expr.places.low <= known < expr.places.count:
            return literal(known + expr.places.count * (known < 0), INDEX)
        fault = self.checks.look(expr, index)
        if not self.anywhere:
            self._note(fault)
        return self.checks.held(fault) if expr.hold else index

    def _note(self, fault: Fault) -> None:
        mask = self.mask
        if mask is not None and (fault.place.lanes > 1 or not self._lanes_active()):
            counts = mask if fault.place.lanes > 1 else self.some_active(mask)
            fault = fault._replace(outside=self.binary("and", fault.outside, counts))
        self.checks.note(fault)

    # --- ahead of loops ---

    def is_early(self, expr: Scalar) -> bool:
        if not isinstance(expr, Checked) or self.uses_lane(expr):
            return False
        depth = self._own_depth(expr)
        if self._key(expr) in self.scopes[depth].values:
            return True
        sure = not self.anywhere and self._lanes_active() and depth > self.branch_depth
        return sure and self._reads_inputs(expr)

    def _key(self, expr: Scalar) -> tuple[object, ...]:
        return ("atom", id(expr), *self.numbers(expr))

    def _lanes_active(self) -> bool:
        """Whether some lane is known to be active."""
        known = None if self.mask is None else mask_lanes(self.mask)
        return self.mask is None or (known is not None and any(known))

    def _own_depth(self, expr: Scalar) -> int:
        bounds = [self.bound.get(id(i)) for i in self.leaves(expr).indices]
        return max((b.depth for b in bounds if b is not None), default=0)

    def _reads_inputs(self, expr: Scalar) -> bool:
        """Whether an index depends only on the contents of the kernel's inputs, which do not
        change, and has no branches.
        """
        found = self._early.get(id(expr))
        if found is None:
            plain = all(
                isinstance(node, _PLAIN)
                or (isinstance(node, Load) and node.source.root.scope == "input")
                for node in nodes(expr)
            )
            found = self._early[id(expr)] = (expr, plain)
        return found[1]

    def depth_of(self, expr: Scalar) -> int:
        return self._own_depth(expr) if self.is_early(expr) else super().depth_of(expr)

    def atom_value(self, atom: Scalar) -> tuple[Value, int]:
        if not isinstance(atom, Checked) or not self.is_early(atom):
            return super().atom_value(atom)
        depth = self._own_depth(atom)
        scope = self.scopes[depth]
        found = scope.values.get(self._key(atom))
        if found is None:
            with self.b.writing_to(scope.place), self._alone():
                found = self._looked_at(atom)
            scope.values[self._key(atom)] = found
        return found, depth

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Computes inside, without using anything known about the current statement."""
        before = self.memo, self.shared, self.steps, self.loads, self.mask
        self.memo, self.shared, self.steps, self.loads, self.mask = {}, {}, {}, {}, None
        yield
        self.memo, self.shared, self.steps, self.loads, self.mask = before

    # --- ahead of branches ---

    def unchecked(self, *sides: Scalar) -> bool:
        """Whether uncomputed parts of expressions contain checks."""
        stack, seen = list(sides), set[int]()
        while stack:
            node = stack.pop()
            known = id(node) in seen or id(node) in self.memo or id(node) in self.shared
            if known or not self.leaves(node).checks:
                continue
            if isinstance(node, Checked):
                return True
            seen.add(id(node))
            stack.extend(node.children)
        return False

    def wait_for(self, part: Scalar) -> None:
        """Holds back the checks of a part that was just computed ahead of its possible uses, until
        one of them needs it.
        """
        if not self.leaves(part).checks:
            return
        self._waiting[id(part)] = self._faults(part)
        for node in post_order(part, self.shared.keys() - {id(part)}):
            if self.leaves(node).checks:  # elsewhere it may be certain to be used
                self.memo.pop(id(node), None)
                self.steps.pop((id(node), *self.numbers(node)), None)

    def wanted(self, part: Scalar) -> None:
        """Records the failing indices of a part that was computed ahead and is used here."""
        if self.anywhere or id(part) not in self._waiting:
            return
        for check, index in self._waiting[id(part)].values():
            self._note(self.checks.again(check, index))

    def forget_waiting(self) -> None:
        """Drops values that were computed ahead for one statement."""
        self._waiting = {}

    def _faults(self, part: Scalar) -> _Waiting:
        """Returns the failing indices that a part uses."""
        found: dict[int, _Waiting] = {}
        known = {key: True for key in self.shared if key != id(part)}
        for key in known:
            found[key] = self._waiting.get(key, {})
        for node in post_order(part, known):
            here: _Waiting = {}
            for position, child in enumerate(node.children):
                for check, index in found[id(child)].values():
                    if isinstance(node, Select) and position:
                        index = self._if(self.value(node.cond), index, position == 1)
                    self._add(here, check, index)
            if isinstance(node, Checked):
                fault = self.checks.look(node, self.value(node.value))
                self._add(here, node, self._if(fault.outside, fault.place, True))
            found[id(node)] = here
        return found[id(part)]

    def _if(self, cond: Value, index: Value, holds: bool) -> Value:
        """Returns an index if a condition holds (or does not hold), else 0."""
        lanes = max(cond.lanes, index.lanes)
        cond, index = self.widen([cond, index], lanes)
        nothing = literal(0, INDEX, lanes)
        first, second = (index, nothing) if holds else (nothing, index)
        return arith.select(self.b, cond, first, second)

    def _add(self, here: _Waiting, check: Checked, index: Value) -> None:
        """Adds a held-back index by its check; of two, one that is out of range."""
        before = here.get(check.site)
        if before is not None and before[1].text != index.text:
            outside = self.checks.again(check, before[1]).outside
            lanes = max(outside.lanes, index.lanes)
            outside, old, new = self.widen([outside, before[1], index], lanes)
            index = arith.select(self.b, outside, old, new)
        here[check.site] = check, index
