"""Which operators share a kernel.

A group has one result, its root's; every other member is used inside the group only. So no value is
computed twice, and no cycle can arise: a path that leaves a group leaves it from the root, and a
path from there back to a member would have been a cycle before.

Groups grow in two steps.

1. Forwards from each *anchor* (convolution, matrix product) and then each *reduction*: the
   elementwise and broadcast operators that follow, as long as their results have the anchor's
   shape. Several users are followed where they meet again (`x * sigmoid(x)`).
2. Backwards: elementwise and injective operators join the group that holds all their users, if that
   group has no anchor. What is broadcast by its user joins only if nothing is computed twice. A
   cast joins the tail of an anchor, too: the operand is read as it is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from clew.ir.dims import Dim
from clew.ir.expr import Call, Constant, Expr, Function
from clew.ir.types import TensorType
from clew.ir.visit import post_order
from clew.ops.registry import Op
from clew.passes.base import PassContext
from clew.te.analysis import Kind
from clew.te.expr import Index, Reduce, Scalar
from clew.te.tensor import Tensor, loads, stages

VIEWS: Final = frozenset(("reshape",))
"""Operators whose result is the same memory under another shape."""

_POINTWISE: Final = (Kind.ELEMENTWISE, Kind.BROADCAST)
_MAX_NAMED: Final = 8


@dataclass(eq=False)
class Group:
    """Operators of one kernel. `members` are in topological order, the root last."""

    kind: Kind
    members: list[Call]
    inputs: set[int] = field(default_factory=set)

    @property
    def root(self) -> Call:
        """The operator whose value is the kernel's result."""
        return self.members[-1]

    @property
    def name(self) -> str:
        """Operators' names in order, without their families: `conv2d_add_relu`."""
        parts = [m.op_name.rpartition(".")[2] for m in self.members if m.op_name not in VIEWS]
        parts = parts or [m.op_name for m in self.members]
        more = "_etc" if len(parts) > _MAX_NAMED else ""
        return "_".join(parts[:_MAX_NAMED]) + more

    def members_root_first(self) -> tuple[Call, ...]:
        """The members, the one whose value is the result first."""
        return (self.root, *self.members[:-1])


class Grouper:
    """Finds the groups of one function's body."""

    def __init__(self, function: Function, ctx: PassContext, max_ops: int, max_inputs: int) -> None:
        self._ctx = ctx
        self._max_ops = max_ops
        self._max_inputs = max_inputs
        self._order: dict[int, int] = {}
        self._calls: list[Call] = []
        self._users: dict[int, list[Expr]] = {}
        self._kinds: dict[int, Kind] = {}
        self._group: dict[int, Group] = {}
        self._windows: dict[tuple[object, ...], bool] = {}
        for position, node in enumerate(post_order(function.body)):
            self._order[node.id] = position
            for child in dict.fromkeys(node.children):
                self._users.setdefault(child.id, []).append(node)
            if isinstance(node, Call) and isinstance(node.op, Op) and not node.op.host:
                self._calls.append(node)
                self._kinds[node.id] = self._kind(node)
        self._users.setdefault(function.body.id, []).append(function)

    def _kind(self, call: Call) -> Kind:
        if call.op_name in VIEWS:
            return Kind.INJECTIVE
        if not isinstance(call.type, TensorType):
            return Kind.OPAQUE  # several results: a kernel of its own
        return self._ctx.kind(call)

    def singletons(self) -> dict[int, Group]:
        """Returns each operator as a group of its own, by node id."""
        return {c.id: Group(self._kinds[c.id], [c]) for c in self._calls if c.op_name not in VIEWS}

    def groups(self) -> dict[int, Group]:
        """Returns the group of each operator that is to be in one, by node id."""
        for call in self._calls:
            self._group[call.id] = Group(self._kinds[call.id], [call], self._inputs_of(call))
        for kind in (Kind.ANCHOR, Kind.REDUCTION):
            for call in self._calls:
                if self._kinds[call.id] is kind:
                    self._grow_forwards(self._group[call.id])
        for call in reversed(self._calls):
            group = self._group[call.id]
            if group.root is call:
                self._join_users(group)
        for group in list(dict.fromkeys(self._group.values())):
            self._peel_views(group)
        return self._group

    def _inputs_of(self, call: Call) -> set[int]:
        kind = self._kinds[call.id]
        return {a.id for a in call.args if not stays_inside(a, kind)}

    def _joint_inputs(self, group: Group, calls: Sequence[Call]) -> set[int]:
        """Returns what a group reads from outside once it has `calls`, each of a group so far."""
        inside = {m.id for m in (*group.members, *calls)}
        return group.inputs.union(*(self._group[c.id].inputs for c in calls)) - inside

    # --- forwards: the tail of an anchor or a reduction ---

    def _grow_forwards(self, group: Group) -> None:
        """Adds what follows the root, up to each place where all of it has come together again."""
        while True:
            tail = self._next_tail(group)
            if not tail:
                return
            self._merge(group, tail)

    def _next_tail(self, group: Group) -> list[Call]:
        """Returns the fewest followers of the root of which one uses all the rest; [] if none."""
        root, added = group.root, list[Call]()
        inside: set[int] = {root.id}
        pending = {u.id: u for u in self._users[root.id]}
        while pending:
            user = min(pending.values(), key=lambda u: self._order.get(u.id, len(self._order)))
            reason = self._unfit_tail(group, root, user, len(added))
            if reason:
                self._ctx.remark(root, f"{_label(user)} not fused into {root.op_name}: {reason}")
                return []
            assert isinstance(user, Call)
            del pending[user.id]
            added.append(user)
            inside.add(user.id)
            if not pending and self._closed([root, *added[:-1]], inside):
                return added
            for following in self._users.get(user.id, ()):
                pending.setdefault(following.id, following)
        return []

    def _closed(self, members: list[Call], inside: set[int]) -> bool:
        return all(u.id in inside for m in members for u in self._users.get(m.id, ()))

    def _unfit_tail(self, group: Group, root: Call, user: Expr, count: int) -> str:
        """Returns why `user` cannot follow the root in its kernel; "" if it can."""
        if user.id not in self._kinds:
            return "its value is used outside kernels"
        assert isinstance(user, Call)
        if self._kinds[user.id] not in _POINTWISE:
            return f"it is {self._kinds[user.id].name.lower()}, not elementwise"
        if user.tensor.shape != root.tensor.shape:
            return f"its result is {user.type}, not of the shape {root.type}"
        if len(self._group[user.id].members) > 1:
            return "it is part of another kernel"
        if len(group.members) + count >= self._max_ops:
            return f"the kernel has {self._max_ops} operators"
        if len(group.inputs | self._group[user.id].inputs) > self._max_inputs:
            return f"the kernel has {self._max_inputs} inputs"
        return ""

    def _merge(self, group: Group, calls: list[Call]) -> None:
        group.inputs = self._joint_inputs(group, calls)
        group.members.extend(calls)
        for call in calls:
            self._group[call.id] = group

    # --- backwards: producers join the group of all their users ---

    def _join_users(self, group: Group) -> None:
        root, users = group.root, self._users.get(group.root.id, ())
        target = self._group.get(users[0].id) if users else None
        if target is None:
            return
        reason = self._unfit_producer(group, target)
        if reason:
            self._ctx.remark(root, f"{root.op_name} not fused into its user: {reason}")
            return
        target.inputs = self._joint_inputs(target, group.members)
        target.members = sorted([*group.members, *target.members], key=lambda m: self._order[m.id])
        target.kind = max(target.kind, group.kind)
        for call in group.members:
            self._group[call.id] = target

    def _unfit_producer(self, group: Group, target: Group) -> str:
        """Returns why a group cannot join the one that uses it; "" if it can."""
        root = group.root
        if any(self._group.get(u.id) is not target for u in self._users[root.id]):
            return "its value has several users, which are not all in one kernel"
        if group.kind > Kind.INJECTIVE:
            return f"it is {group.kind.name.lower()}, and its user is no tail of it"
        if target.kind > Kind.REDUCTION and not self._is_operand_of_tail(group):
            return f"its user's kernel is {target.kind.name.lower()}"
        if len(group.members) + len(target.members) > self._max_ops:
            return f"the kernel would have more than {self._max_ops} operators"
        if len(self._joint_inputs(target, group.members)) > self._max_inputs:
            return f"the kernel would have more than {self._max_inputs} inputs"
        for user in self._users[root.id]:
            assert isinstance(user, Call)
            if self._kinds[user.id] is Kind.REDUCTION and self._reads_windows(user):
                return f"{user.op_name} reads it in windows that overlap"
            if self._reads_again(group, user):
                return f"{user.op_name} would compute it again for each element it repeats"
        return ""

    def _is_operand_of_tail(self, group: Group) -> bool:
        """Whether a group is a cast that elementwise users of the same shape read in place."""
        root = group.root
        return [m.op_name for m in group.members] == ["cast"] and all(
            isinstance(u, Call)
            and self._kinds.get(u.id) in _POINTWISE
            and u.tensor.shape == root.tensor.shape
            for u in self._users[root.id]
        )

    def _reads_again(self, group: Group, user: Call) -> bool:
        """Whether a user reads elements of the group's result several times, and they cost
        anything.
        """
        if all(self._kinds[m.id] is Kind.INJECTIVE for m in group.members):
            return False
        if self._kinds[user.id] is Kind.REDUCTION or user.op_name in VIEWS:
            return False
        read, made = user.tensor.size, group.root.tensor.size
        if self._kinds[user.id] is Kind.INJECTIVE:
            tensors = [a.type for a in user.args if isinstance(a.type, TensorType)]
            sizes = [t.size for t in tensors if t.dtype == group.root.tensor.dtype]
            return not _at_most_double(read, sizes)
        return not _at_most_double(read, [made])

    def _reads_windows(self, user: Call) -> bool:
        assert isinstance(user.op, Op)
        key = (user.op.name, user.attrs, tuple(a.type for a in user.args))
        found = self._windows.get(key)
        if found is None:
            computed = user.op.compute_tensors([a.tensor for a in user.args], user.attrs)
            outputs = computed if isinstance(computed, tuple) else (computed,)
            found = self._windows[key] = any(map(_overlaps, stages(outputs)))
        return found

    # --- reshapes at the edges are views ---

    def _peel_views(self, group: Group) -> None:
        """Leaves reshapes that come first or last outside; the rest of the group stays one."""
        while group.members and group.root.op_name in VIEWS:
            del self._group[group.members.pop().id]
        peeled = True
        while peeled:
            inside = {m.id for m in group.members}
            first = [
                m
                for m in group.members
                if m.op_name in VIEWS and not any(a.id in inside for a in m.args)
            ]
            peeled = bool(first)
            for view in first:
                group.members.remove(view)
                del self._group[view.id]


def stays_inside(arg: Expr, user: Kind) -> bool:
    """Whether an argument is a constant that the kernel holds itself: one element, or all equal.

    Operands of an anchor are memory, whatever they hold: its loops are made for that.
    """
    return isinstance(arg, Constant) and arg.is_splat and user is not Kind.ANCHOR


def _overlaps(stage: Tensor) -> bool:
    """Whether a reduction reads at places that depend on result and reduced axes together."""
    if not isinstance(stage.body, Reduce):
        return False
    over, kept = {id(a) for a in stage.body.axes}, {id(a) for a in stage.axes}
    for load in loads(stage.body):
        for index in load.indices:
            used = {id(i) for i in _indices(index)}
            if used & over and used & kept:
                return True
    return False


def _indices(scalar: Scalar) -> list[Index]:
    found, pending = [], [scalar]
    while pending:
        node = pending.pop()
        if isinstance(node, Index):
            found.append(node)
        else:
            pending.extend(node.children)
    return found


def _at_most_double(read: Dim, made: list[Dim]) -> bool:
    if all(isinstance(d, int) for d in (read, *made)):
        return read <= 2 * sum(made)  # type: ignore[operator]
    return read in made


def _label(node: Expr) -> str:
    return node.op_name if isinstance(node, Call) else type(node).__name__
