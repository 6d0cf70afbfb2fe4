"""Decides which operators share a kernel.

A group has one result, the value of its root; every other member is used inside the group only. So
no value is computed twice, and no cycle can arise: a path that leaves a group leaves it from the
root, and a path from there back to a member would have been a cycle before.

Groups grow in three steps.

1. Forwards from each *anchor* (convolution, matrix product) and then each *reduction*: the
   elementwise and broadcast operators that follow, as long as their results have the anchor's
   shape. Several users are followed to the operator where they meet again (`x * sigmoid(x)`).
2. A depthwise convolution and the adjacent 1x1 convolutions, with their tails, where computing them
   together is profitable (`melted_convolutions`).
3. Backwards: elementwise and injective operators join the group that holds all their users, if that
   group has no anchor. An operator whose user broadcasts it joins only if nothing is computed
   twice. An anchor that reads views takes slices, transposes and reshapes as well, as long as its
   operand's elements stay at constant strides. A cast, or a piece that an index selects, joins the
   tail of an anchor, too, as does a widening of elements such as a `dequantize`: the kernel reads
   the operand in its stored form. So does padding before a depthwise convolution, where memory is
   scarce. A widening joins overlapping windows as well; at the end of an anchor's group, it moves
   to its users' group, so that the stored value is the narrower one. An anchor that melts its
   operand takes the operator that computes it, and the operators before that one.

The file is longer than others: each step reads and changes the same groups of one function.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import field
from typing import Final

from clew.cost.locality import is_small_piece
from clew.ir.dims import Dim, exact_quotient, is_unknown, product, typical
from clew.ir.expr import Call, Constant, Expr, Function
from clew.ir.types import TensorType
from clew.ir.visit import post_order
from clew.machine.target import Target
from clew.ops.registry import Op, runs_on_host, widens
from clew.passes.base import PassContext
from clew.passes.decisions import Decision, Decisions, Defaults, subject_of
from clew.passes.fusion.melted_convolutions import (
    is_pointwise,
    is_windows,
    unfit_after,
    unfit_before,
)
from clew.passes.fusion.row_moves import reads_rows_again, spreads_rows
from clew.passes.fusion.turned_reads import is_uneven, turns
from clew.passes.fusion.views import is_reshape, is_view, left_in_place
from clew.support.dataclass import dataclass
from clew.te.analysis import Kind, is_chosen_piece
from clew.te.expr import Index, Reduce, Scalar
from clew.te.facts import view_steps
from clew.te.tensor import Tensor, stages
from clew.te.walk import loads

_POINTWISE: Final = (Kind.ELEMENTWISE, Kind.BROADCAST)
_MAX_NAMED: Final = 8
# Names of the kinds in remarks.
_WORDS: Final = {
    Kind.ELEMENTWISE: "elementwise",
    Kind.BROADCAST: "elementwise",
    Kind.INJECTIVE: "a rearrangement of elements",
    Kind.REDUCTION: "a reduction",
    Kind.ANCHOR: "a convolution or matrix product",
    Kind.OPAQUE: "opaque",
}


@dataclass(eq=False)
class Group:
    """The operators of one kernel. `members` are in topological order, the root last."""

    kind: Kind
    members: list[Call]
    inputs: set[int] = field(default_factory=set)

    @property
    def root(self) -> Call:
        """The operator whose value is the kernel's result."""
        return self.members[-1]

    @property
    def name(self) -> str:
        """Names of the operators in order, without their families: `conv2d_add_relu`."""
        parts = [m.op_name.rpartition(".")[2] for m in self.members if not is_reshape(m)]
        parts = parts or [m.op_name for m in self.members]
        more = "_etc" if len(parts) > _MAX_NAMED else ""
        return "_".join(parts[:_MAX_NAMED]) + more


def _has_tensor_form(call: Call) -> bool:
    """Whether kernels can hold a call. A call that was to be decomposed, but cannot be for its
    arguments, runs on the host, as host operators do.
    """
    return isinstance(call.op, Op) and call.op.compute is not None and not runs_on_host(call)


def _asks_for_sizes(call: Call) -> bool:
    """Whether a call returns sizes that values determine. Outside of kernels, it gives all
    operators that read its results known sizes.
    """
    assert isinstance(call.op, Op)
    known = all(isinstance(a.type, TensorType) and a.type.is_static for a in call.args)
    return call.op.traits.sizes == "read" and not known


class Grouper:
    """Finds the groups of one function's body."""

    def __init__(
        self,
        function: Function,
        ctx: PassContext,
        max_ops: int,
        max_inputs: int,
        decisions: Decisions | None = None,
    ) -> None:
        self._ctx = ctx
        self._decisions = decisions or Defaults()
        self._max_ops = max_ops
        self._max_inputs = max_inputs
        self._order: dict[int, int] = {}
        self._calls: list[Call] = []
        self._users: dict[int, list[Expr]] = {}
        self._kinds: dict[int, Kind] = {}
        self._group: dict[int, Group] = {}
        self._windows: dict[tuple[object, ...], bool] = {}
        self._in_place: dict[int, str] = {}
        for position, node in enumerate(post_order(function.body)):
            self._order[node.id] = position
            for child in dict.fromkeys(node.children):
                self._users.setdefault(child.id, []).append(node)
            if isinstance(node, Call) and _has_tensor_form(node) and not _asks_for_sizes(node):
                self._calls.append(node)
                self._kinds[node.id] = self._kind(node)
        self._users.setdefault(function.body.id, []).append(function)

    def _kind(self, call: Call) -> Kind:
        if is_reshape(call):
            return Kind.INJECTIVE
        if not isinstance(call.type, TensorType):
            return Kind.OPAQUE  # several results: a separate kernel
        return self._ctx.kind(call)

    def singletons(self) -> dict[int, Group]:
        """Returns a group for each operator alone, by node id."""
        return {c.id: Group(self._kinds[c.id], [c]) for c in self._calls if not is_reshape(c)}

    def groups(
        self,
        *,
        melt: bool = True,
        results: Collection[int] = frozenset(),
        stored: Collection[str] = frozenset(),
    ) -> dict[int, Group]:
        """Returns the group of each operator that joins one, by node id.

        The values of `results`, and of all calls of the operators `stored`, must be in memory.
        Their groups are cut there only after all groups are settled, so that all others stay
        unchanged.
        """
        self._leave_in_place()
        for call in self._calls:
            self._group[call.id] = Group(self._kinds[call.id], [call], self._inputs_of(call))
        for kind in (Kind.ANCHOR, Kind.REDUCTION):
            for call in self._calls:
                if self._kinds[call.id] is kind:
                    self._grow_forwards(self._group[call.id])
        for call in self._calls if melt else ():
            self._melt(call)
        for call in reversed(self._calls):
            group = self._group[call.id]
            if group.root is call:
                self._hand_on(group)
                self._join_users(self._group[call.id])
        results = {c.id for c in self._calls if c.id in results or c.op_name in stored}
        for group in list(dict.fromkeys(self._group.values())):
            self._cut(group, results)
        for group in list(dict.fromkeys(self._group.values())):
            self._peel_views(group)
        return self._group

    def _cut(self, group: Group, results: Collection[int]) -> None:
        """Splits a group so that each of `results` is the result of a group.

        A value that two of the parts read becomes a result, too: a group has one result.
        """
        if not any(m.id in results for m in group.members[:-1]):
            return
        inside = {m.id for m in group.members}
        part_of = {group.root.id: Group(self._kinds[group.root.id], [group.root])}
        for member in reversed(group.members[:-1]):
            users = [u.id for u in self._users[member.id] if u.id in inside]
            parts = {id(part_of[u]): part_of[u] for u in users}
            kind = self._kinds[member.id]
            if member.id in results or len(parts) > 1:
                part = Group(kind, [])
            else:
                (part,) = parts.values()
            part.members.insert(0, member)
            part.kind = max(part.kind, kind)
            part_of[member.id] = part
        for part in part_of.values():
            part.inputs = {i for m in part.members for i in self._inputs_of(m)} - {
                m.id for m in part.members
            }
        self._group.update(part_of)

    def _leave_in_place(self) -> None:
        """Removes the calls that need no kernel in any neighborhood: calls whose several results
        are views, and concatenations whose parts are written in place.
        """
        for call in self._calls:
            if not isinstance(call.type, TensorType):
                if is_view(call):
                    self._in_place[call.id] = "its results are views of this value"
            elif left_in_place(call, self._ctx):
                self._in_place[call.id] = "this value is written into it in place"
        self._calls = [c for c in self._calls if c.id not in self._in_place]
        for node in self._in_place:
            del self._kinds[node]

    def _inputs_of(self, call: Call) -> set[int]:
        kind = self._kinds[call.id]
        return {a.id for a in call.args if not stays_inside(a, call, kind)}

    def _joint_inputs(self, group: Group, calls: Sequence[Call]) -> set[int]:
        """Returns the inputs of a group once it also holds `calls`, each of which has a group so
        far.
        """
        inside = {m.id for m in (*group.members, *calls)}
        return group.inputs.union(*(self._group[c.id].inputs for c in calls)) - inside

    # --- forwards: the tail of an anchor or a reduction ---

    def _grow_forwards(self, group: Group) -> None:
        """Adds followers of the root, up to each operator where all their paths have met again."""
        while True:
            tail = self._next_tail(group)
            if not tail:
                return
            self._merge(group, tail)

    def _next_tail(self, group: Group) -> list[Call]:
        """Returns the smallest set of followers of which the last uses all others; [] if there is
        none.
        """
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
        if user.id in self._in_place:
            return self._in_place[user.id]
        if user.id not in self._kinds:
            return "its value is used outside kernels"
        assert isinstance(user, Call)
        if self._kinds[user.id] not in _POINTWISE:
            return f"it is {_WORDS[self._kinds[user.id]]}, not elementwise"
        if user.tensor.shape != root.tensor.shape:
            return f"its result is {user.type}, which differs in shape from {root.type}"
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

    # --- windows and the pointwise convolutions around them ---

    def _melt(self, windows: Call) -> None:
        """Merges the groups of a depthwise convolution and its neighbors where that is
        profitable.
        """
        target = self._ctx.target
        if target is None or not is_windows(windows, target):
            return
        following = self._users.get(self._group[windows.id].root.id, ())
        if len(following) == 1 and isinstance(following[0], Call):
            after = following[0]
            if after.id in self._kinds and is_pointwise(after, target):
                self._join(windows, after, unfit_after(windows, after, target))
        before = self._group.get(windows.args[0].id)
        if before is None or before.root is not windows.args[0]:
            return
        pointwise = before.members[0]
        if is_pointwise(pointwise, target) and len(self._users[before.root.id]) == 1:
            reason = unfit_before(pointwise, windows, target)
            self._join(pointwise, windows, reason)

    def _join(self, producer: Call, user: Call, reason: str) -> None:
        """Merges the group of one call into another's, unless there is a reason not to."""
        group, target = self._group[producer.id], self._group[user.id]
        reason = reason or self._too_large(group, target)
        if not reason and user.args[0] is group.root:
            reason = self._kept_apart(producer, user)
        if reason or user.args[0] is not group.root:
            text = f"{producer.op_name} not melted with {user.op_name}: {reason}"
            self._ctx.remark(producer, text)
            return
        self._absorb(group, target)

    def _kept_apart(self, producer: Call, user: Call) -> str:
        """Returns why two calls that could be melted are not: it was measured to be faster."""
        if not (producer.tensor.is_static and user.tensor.is_static):
            return ""
        layers = tuple(dict.fromkeys((*producer.layers, *user.layers)))
        subject = f"{subject_of(producer)} -> {subject_of(user)}"
        decision = Decision("melting", subject, ("melted", "apart"), "melted", layers)
        chosen, remark = self._decisions.choose(decision)
        return remark or "kept apart" if chosen == "apart" else ""

    # --- backwards: producers join the group of all their users ---

    def _hand_on(self, group: Group) -> None:
        """Moves a widening at the end of an anchor's or a reduction's group into its users' group,
        if that can take it: the value in memory is then the narrower one.
        """
        root = group.root
        if len(group.members) == 1 or group.kind <= Kind.INJECTIVE or not self._widens(root):
            return
        users = self._users.get(root.id, ())
        target = self._group.get(users[0].id) if users else None
        alone = Group(self._kinds[root.id], [root], self._inputs_of(root))
        if target is None or target is group or self._unfit_producer(alone, target):
            return
        group.members.pop()
        inside = {m.id for m in group.members}
        group.inputs = {i for m in group.members for i in self._inputs_of(m)} - inside
        self._group[root.id] = alone

    def _widens(self, call: Call) -> bool:
        return self._kinds[call.id] in _POINTWISE and widens(call)

    def _join_users(self, group: Group) -> None:
        root, users = group.root, self._users.get(group.root.id, ())
        target = self._group.get(users[0].id) if users else None
        if target is None:
            return
        reason = self._unfit_producer(group, target)
        if reason:
            into = " and ".join(dict.fromkeys(map(_label, users)))
            self._ctx.remark(root, f"{root.op_name} not fused into {into}: {reason}")
            return
        self._absorb(group, target)

    def _absorb(self, group: Group, target: Group) -> None:
        target.inputs = self._joint_inputs(target, group.members)
        target.members = sorted([*group.members, *target.members], key=lambda m: self._order[m.id])
        target.kind = max(target.kind, group.kind)
        for call in group.members:
            self._group[call.id] = target

    def _unfit_producer(self, group: Group, target: Group) -> str:
        """Returns why a group cannot join the group that uses it; "" if it can."""
        root = group.root
        if any(self._group.get(u.id) is not target for u in self._users[root.id]):
            return "its users are not all in one kernel"
        if group.kind > Kind.INJECTIVE:
            if group.kind is Kind.OPAQUE:
                return "it is opaque"
            return f"only elementwise operators can follow {_WORDS[group.kind]} in a kernel"
        melted = self._is_melted(group, target)
        joins = melted or self._reads_in_place(group, target) or self._is_operand_of_tail(group)
        joins = joins or self._is_folded_padding(group)
        if target.kind > Kind.REDUCTION and not joins:
            if target.kind is Kind.OPAQUE:
                return "its user is opaque"
            return f"{_WORDS[target.kind]} reads its operands from memory"
        if target.kind is Kind.REDUCTION and spreads_rows([*group.members, *target.members]):
            over = [m for m in target.members if self._kinds[m.id] is Kind.REDUCTION]
            for again in filter(reads_rows_again, over):
                return f"{again.op_name} passes over its elements several times, and they lie apart"
        reason = self._turned_unevenly(group, target) or self._too_large(group, target)
        if reason:
            return reason
        for user in self._users[root.id]:
            assert isinstance(user, Call)
            overlaps = self._kinds[user.id] is Kind.REDUCTION and self._reads_windows(user)
            if overlaps and not (len(group.members) == 1 and widens(root)):
                return f"{user.op_name} reads it in windows that overlap"
            if not melted and self._reads_again(group, user):
                return f"{user.op_name} would compute it again for each element it repeats"
        return ""

    def _turned_unevenly(self, group: Group, target: Group) -> str:
        """Returns why the moves of two groups are better in separate kernels: one kernel would
        collect elements one by one. A large operand, of which few elements are read, is not turned
        as a whole.
        """
        uneven, turned = (
            any(self._moves(m) and holds(m) for m in group.members) for holds in (is_uneven, turns)
        )
        made = typical(group.root.tensor.size)
        for move in filter(self._moves, target.members if uneven or turned else ()):
            if uneven and turns(move):
                return f"{move.op_name} turns elements, and {group.root.op_name} reads unevenly"
            if turned and is_uneven(move) and typical(move.tensor.size) >= made:
                return f"{move.op_name} reads unevenly, and {group.root.op_name} turns elements"
        return ""

    def _moves(self, call: Call) -> bool:
        return self._kinds[call.id] is Kind.INJECTIVE and not is_reshape(call)

    def _too_large(self, group: Group, target: Group) -> str:
        """Returns why two groups are too large for one kernel; "" if they are not."""
        if len(group.members) + len(target.members) > self._max_ops:
            return f"the kernel would have more than {self._max_ops} operators"
        if len(self._joint_inputs(target, group.members)) > self._max_inputs:
            return f"the kernel would have more than {self._max_inputs} inputs"
        return ""

    def _reads_in_place(self, group: Group, target: Group) -> bool:
        """Whether a group only moves elements, and its user's anchor can read them in place."""
        anchors = [m for m in target.members if self._kinds[m.id] is Kind.ANCHOR]
        if len(anchors) != 1 or not all(map(_is_strided, group.members)):
            return False
        anchor = anchors[0]
        assert isinstance(anchor.op, Op)
        if not anchor.op.reads_views:
            return False
        inside = {m.id: m for m in (*group.members, *target.members)}
        for user in self._users[group.root.id]:
            if user is not anchor and not _is_strided(user):
                return False
        return all(_at_strides(a, inside) for a in anchor.args)

    def _is_folded_padding(self, group: Group) -> bool:
        """Whether a group only pads the image of a convolution with one input channel for each
        output channel, where memory is too scarce for a padded copy.
        """
        target = self._ctx.target
        return (
            target is not None
            and target.is_microcontroller
            and len(group.members) == 1
            and group.root.op_name == "pad"
            and all(map(_has_one_input, self._users[group.root.id]))
        )

    def _is_operand_of_tail(self, group: Group) -> bool:
        """Whether a group is a cast, another widening of elements, or a small piece that an index
        selects, and elementwise users of the same shape read its operand in place.
        """
        root = group.root
        return (
            len(group.members) == 1
            and (root.op_name == "cast" or self._widens(root) or _is_chosen(root, self._ctx.target))
            and all(
                isinstance(u, Call)
                and self._kinds.get(u.id) in _POINTWISE
                and u.tensor.shape == root.tensor.shape
                for u in self._users[root.id]
            )
        )

    def _is_melted(self, group: Group, target: Group) -> bool:
        """Whether a group computes the operand that its user's anchor melts, or precedes that
        operand in the same kernel. A layout change does not qualify: its reads would lie far apart
        in memory.
        """
        for anchor in target.members:
            assert isinstance(anchor.op, Op)
            split = anchor.args[0] if anchor.op.melts else None
            if not isinstance(split, Call) or split.op_name != anchor.op.melts:
                continue
            if group.root is split:
                return True
            if any(m.op_name == "layout_transform" for m in group.members):
                return False
            return self._group.get(split.id) is target and all(
                user in target.members and self._order[user.id] <= self._order[split.id]
                for user in self._users[group.root.id]
            )
        return False

    def _reads_again(self, group: Group, user: Call) -> bool:
        """Whether a user reads elements of the group's result several times, and recomputing them
        has a cost.
        """
        moves = (self._kinds[m.id] is Kind.INJECTIVE or _is_strided(m) for m in group.members)
        if all(moves):  # a slice from the start is elementwise
            return False
        if self._kinds[user.id] is Kind.REDUCTION or is_reshape(user):
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
            outputs = user.op.computed([a.tensor for a in user.args], user.attrs)
            found = self._windows[key] = any(map(_overlaps, stages(outputs)))
        return found

    # --- the first or last operator may be a view ---

    def _peel_views(self, group: Group) -> None:
        """Removes views at the start of a group and reshapes at its end; the rest stays one group.
        A slice at the end stays inside, so that only the slice is computed.
        """
        while group.members and is_reshape(group.root):
            del self._group[group.members.pop().id]
        peeled = True
        while peeled:
            inside = {m.id for m in group.members}
            first = [
                m for m in group.members if is_view(m) and not any(a.id in inside for a in m.args)
            ]
            peeled = bool(first)
            for view in first:
                group.members.remove(view)
                del self._group[view.id]


def _has_one_input(user: Expr) -> bool:
    if not isinstance(user, Call) or not isinstance(user.op, Op) or not user.op.traits.convolves:
        return False
    return bool(user.args[1].tensor.shape[1] == 1)


def _is_chosen(call: Call, target: Target | None) -> bool:
    """Whether a call copies a small contiguous piece from a position that values determine."""
    assert isinstance(call.op, Op)
    if target is None or not call.op.is_computed(call.attrs):
        return False
    made = call.op.computed([a.tensor for a in call.args], call.attrs)
    if len(made) != 1 or not is_chosen_piece(made[0]):
        return False
    return is_small_piece(typical(call.tensor.memory_bytes), target)


def stays_inside(arg: Expr, user: Call, kind: Kind) -> bool:
    """Whether an argument of a call of a kind is a constant inside the kernel: one element, or all
    elements equal.

    Operands of an anchor are always in memory, because its loops read memory. Parameters are, too,
    so that layers that differ only in these share a kernel.
    """
    if not isinstance(arg, Constant) or not arg.is_splat or kind is Kind.ANCHOR:
        return False
    parameters = user.op.traits.parameters if isinstance(user.op, Op) else ()
    return not any(user.args[n] is arg for n in parameters if n < len(user.args))


def _overlaps(stage: Tensor) -> bool:
    """Whether a reduction reads at positions that depend on result and reduced axes together."""
    if not isinstance(stage.body, Reduce):
        return False
    over, kept = {id(a) for a in stage.body.axes}, {id(a) for a in stage.axes}
    for load in loads(stage.body):
        for index in load.indices:
            used = {id(i) for i in _indices(index)}
            if used & over and used & kept:
                return True
    return False


def _steps_of(call: Call) -> list[tuple[int, int] | None] | None:
    """Returns, for each axis of a call's result, the operand axis it steps along and the step; None
    if the call does more than that.
    """
    if not isinstance(call.op, Op) or len(call.args) != 1 or not _has_tensor_form(call):
        return None
    return call.op.derived(view_steps, [call.args[0].tensor], call.attrs)


def _is_strided(node: Expr) -> bool:
    """Whether a call returns elements of its operand at constant strides (slice or transpose), or
    in another shape.
    """
    return isinstance(node, Call) and (is_reshape(node) or _steps_of(node) is not None)


def _at_strides(value: Expr, inside: dict[int, Call]) -> bool:
    """Whether an operand's elements stay at constant strides through the moves inside a group."""
    moves: list[Call] = []
    while value.id in inside:
        moves.append(inside[value.id])
        value = moves[-1].args[0]
    if any(is_unknown(d) for m in (value, *moves) for d in m.tensor.shape):
        return not moves
    shape = value.tensor.shape
    steps: Sequence[Dim] | None = [product(shape[n + 1 :]) for n in range(len(shape))]
    for call in reversed(moves):
        assert steps is not None
        if is_reshape(call):
            steps = _reshaped_strides(shape, steps, call.tensor.shape)
        else:
            along = _steps_of(call)
            assert along is not None
            steps = [0 if step is None else steps[step[0]] * step[1] for step in along]
        if steps is None:
            return False
        shape = call.tensor.shape
    return True


def _reshaped_strides(
    before: Sequence[Dim], steps: Sequence[Dim], after: Sequence[Dim]
) -> list[Dim] | None:
    """Returns the strides of a view in another shape, or None if it is not a view."""
    if 0 in after:
        return None
    old = [(size, step) for size, step in zip(before, steps, strict=True) if size != 1]
    found: list[Dim] = []
    left: Dim = 1
    step: Dim = 0  # the part of the current old axis that later axes of the new shape leave
    for size in reversed(after):
        if size == 1:
            found.append(0)
            continue
        while (quotient := exact_quotient(left, size)) is None:
            if not old or (left != 1 and old[-1][1] != step * left):
                return None
            more, own = old.pop()
            step = own if left == 1 else step
            left = left * more
        found.append(step)
        left, step = quotient, step * size
    return found[::-1]


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
