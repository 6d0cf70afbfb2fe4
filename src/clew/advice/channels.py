"""Groups of channels: elements along an axis that are computed, passed on and read by the same
index.

The output channels of a product, the constants added to them, the other operands of elementwise
operators on them, and the input channels of the products that read them share an index. A `Group`
is such a set. Its channels can be dropped or added together: all constants of the group are cut
along their axes, and operators that state the number of channels are built again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from clew.advice.axes import contraction, is_depthwise, operand_axes, result_axis
from clew.advice.candidate import Array
from clew.advice.graphs import like, op_of, shape_of, source
from clew.advice.subject import Subject
from clew.editing.surgery import Insertion, Piece, Plan
from clew.ir.expr import Call, Constant, Expr

PRODUCTS: Final = ("nn.dense", "nn.matmul", "nn.conv1d", "nn.conv2d", "nn.conv3d")
_MOST_NODES: Final = 4096

Cut = Callable[[Array, int], Array]
"""Returns an array with other channels along an axis."""


@dataclass
class Group:
    """The channels of one index, `extent` of them.

    `values` are the nodes that have the channels, with their axis. `producers` are the constants
    that determine the values (weights of the products that compute them, constants added to them),
    and `consumers` the constants that products multiply with the values. Each constant is given by
    the node that reads it, the operand and the axis.
    """

    extent: int
    values: dict[int, tuple[Expr, int]] = field(default_factory=dict)
    producers: list[tuple[Call, int, int]] = field(default_factory=list)
    consumers: list[tuple[Call, int, int]] = field(default_factory=list)

    @property
    def products(self) -> list[Call]:
        """The products that compute or read the channels."""
        found = [c for c, _, _ in (*self.producers, *self.consumers) if op_of(c) in PRODUCTS]
        return list({c.id: c for c in found}.values())


def groups_of(subject: Subject) -> Iterator[Group]:
    """Yields the groups of channels that products compute, each once, in the order of the graph.
    Channels that reach an output, or that cannot be followed, belong to no group.
    """
    seen: set[int] = set()
    for call in subject.calls:
        if op_of(call) not in PRODUCTS or call.id in seen or subject.is_fixed(call):
            continue
        axis = _channel_axis(subject, call)
        if axis is None:
            continue
        group = Group(call.tensor.concrete[axis])
        if _fill(subject, group, call, axis):
            seen.update(group.values)
            if group.consumers and group.extent > 1:
                yield group


def _channel_axis(subject: Subject, call: Call) -> int | None:
    """Returns the axis of a product that its constant weight determines."""
    if shape_of(call) is None or not subject.is_fixed(call.args[1]):
        return None
    for axis in range(call.tensor.rank):
        found = operand_axes(call, axis)
        if found is not None and found[0] is None and found[1] is not None:
            return axis
    return None


def _fill(subject: Subject, group: Group, first: Call, axis: int) -> bool:
    """Adds everything that has the channels of a call; returns whether all of it is known."""
    todo: list[tuple[Expr, int]] = [(first, axis)]
    while todo:
        node, along = todo.pop()
        if node.id in group.values:
            if group.values[node.id][1] != along:
                return False
            continue
        if len(group.values) > _MOST_NODES or subject.is_output(node):
            return False
        if not isinstance(node, Call) or shape_of(node) is None:
            return False
        group.values[node.id] = (node, along)
        places = operand_axes(node, along)
        if places is None:
            return False
        for operand, (arg, place) in enumerate(zip(node.args, places, strict=True)):
            if place is None:
                continue
            if subject.is_fixed(arg):
                if not _is_plain(subject, arg):
                    return False
                group.producers.append((node, operand, place))
            else:
                todo.append((arg, place))
        for reader in dict.fromkeys(subject.readers(node)):
            if not isinstance(reader, Call):
                return False
            for operand, arg in enumerate(reader.args):
                if arg is not node:
                    continue
                onward = result_axis(reader, operand, along)
                if onward is not None:
                    todo.append((reader, onward))
                    continue
                other = contraction(reader, operand, along)
                weight = reader.args[other[0]] if other is not None else None
                if other is None or weight is None or not _is_plain(subject, weight):
                    return False
                if not subject.is_fixed(weight):
                    return False
                group.consumers.append((reader, *other))
    return True


def _is_plain(subject: Subject, node: Expr) -> bool:
    """Whether a constant may be replaced by its value: weights stored as integers may not."""
    stack = [node]
    while stack:
        one = stack.pop()
        if op_of(one) in ("dequantize", "quantize"):
            return False
        stack.extend(one.children)
    return subject.value(node) is not None


def recut(
    rule: str, subject: Subject, group: Group, producing: Cut, consuming: Cut
) -> Callable[[Plan], None]:
    """Returns edits that give a group other channels: `producing` cuts the constants that compute
    them, `consuming` those that read them.
    """

    def edits(plan: Plan) -> None:
        cuts: dict[int, dict[int, tuple[int, Cut]]] = {}
        nodes: dict[int, Call] = {}
        for calls, cut in ((group.producers, producing), (group.consumers, consuming)):
            for call, operand, axis in calls:
                cuts.setdefault(call.id, {})[operand] = (axis, cut)
                nodes[call.id] = call
        for node, axis in group.values.values():
            if isinstance(node, Call) and _states_channels(node):
                nodes[node.id] = node
                cuts.setdefault(node.id, {})
                _ = axis
        for call in nodes.values():
            _edit(plan, rule, subject, group, call, cuts[call.id], producing)

    return edits


def _states_channels(call: Call) -> bool:
    """Whether an attribute of a call states its number of channels."""
    is_convolution = op_of(call) in PRODUCTS and "groups" in call.attrs
    return op_of(call) == "reshape" or (is_convolution and is_depthwise(call))


def _edit(
    plan: Plan,
    rule: str,
    subject: Subject,
    group: Group,
    call: Call,
    cuts: dict[int, tuple[int, Cut]],
    producing: Cut,
) -> None:
    insertion_of = {}
    for operand, (axis, cut) in cuts.items():
        arg = call.args[operand]
        insertion_of[operand] = (arg, axis, cut)
    if not _states_channels(call) or call.id not in group.values:
        for operand, (arg, axis, cut) in insertion_of.items():
            plan.edges[call.id, arg.id] = Insertion(
                source(f"{rule}.{operand}", call), _constant(subject, arg, axis, cut)
            )
        return
    along = group.values[call.id][1]
    count = len(producing(np.arange(group.extent), 0))

    def build(*args: Expr) -> Expr:
        new = list(args)
        for operand, (arg, axis, cut) in insertion_of.items():
            new[operand] = _constant(subject, arg, axis, cut)(args[operand])
        if op_of(call) == "reshape":
            shape = list(call.tensor.concrete)
            shape[along] = count
            return like(call, *new, shape=tuple(shape))
        return like(call, *new, groups=count)

    plan.pieces[call.id] = Piece(Insertion(source(rule, call), build, call.span), call.args)


def _constant(subject: Subject, arg: Expr, axis: int, cut: Cut) -> Callable[[Expr], Constant]:
    def build(_: Expr) -> Constant:
        value = subject.value(arg)
        assert value is not None
        return Constant(np.ascontiguousarray(cut(value, axis)))

    return build
