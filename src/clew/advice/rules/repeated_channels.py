"""Channels that are zero, unread, or computed twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final

import numpy as np

from clew.advice.candidate import Array, Candidate, Change
from clew.advice.channels import PRODUCTS, Group, groups_of, recut
from clew.advice.rule import AdviceRule, register_advice
from clew.advice.subject import Subject, layers_of
from clew.ir.expr import Call


@register_advice
class RepeatedChannels(AdviceRule):
    """A channel need not be computed if its weights are all zero, if no layer reads it, or if it
    equals another channel: pruned filters and heads, layers that were widened by copies. The
    weights that read equal channels are added.
    """

    name: ClassVar[str] = "repeated-channels"
    title: ClassVar[str] = "channels or heads that are zero, unread, or equal to others"

    def find(self, subject: Subject) -> Iterator[Candidate]:
        """Yields a candidate for each group that has such channels."""
        for group in groups_of(subject):
            kept, target = _classes(subject, group)
            if len(kept) == group.extent or not len(kept):
                continue

            def producing(values: Array, axis: int, kept: Array = kept) -> Array:
                return np.take(values, kept, axis)

            def consuming(
                values: Array, axis: int, kept: Array = kept, target: Array = target
            ) -> Array:
                moved = np.moveaxis(values, axis, 0)
                found = np.zeros((len(kept), *moved.shape[1:]), values.dtype)
                read = target >= 0
                np.add.at(found, target[read], moved[read])
                return np.moveaxis(found, 0, axis)

            gone = group.extent - len(kept)
            yield Candidate(
                self.name,
                f"drop {gone} of {group.extent} channels",
                f"{gone} channels are zero, are not read, or equal others",
                "prune them in the model's source, or let --apply do it",
                layers_of(group.products),
                "graph",
                "rounding",
                Change(recut(self.name, subject, group, producing, consuming)),
            )


def _classes(subject: Subject, group: Group) -> tuple[Array, Array]:
    """Returns i64[kept], the channels to keep, and i64[extent], the place among them of the channel
    that equals each; -1 for a channel that is zero or not read.
    """
    count = group.extent
    read = np.zeros(count, bool)
    for call, operand, axis in group.consumers:
        weight = subject.value(call.args[operand])
        assert weight is not None
        read |= _rows(weight, axis).any(axis=1)
    columns: list[Array] = []
    zero = np.ones(count, bool)
    for call, operand, axis in group.producers:
        value = subject.value(call.args[operand])
        assert value is not None
        rows = _rows(value, axis)
        columns.append(rows)
        if not _scales(group, call):
            zero &= ~rows.any(axis=1)
    if not all(_keeps_zero(node) for node, _ in group.values.values()):
        zero[:] = False
    keys = [b"".join(np.ascontiguousarray(c[n]).tobytes() for c in columns) for n in range(count)]
    kept: list[int] = []
    place: dict[bytes, int] = {}
    target = np.full(count, -1)
    for n in range(count):
        if zero[n] or not read[n]:
            continue
        if keys[n] not in place:
            place[keys[n]] = len(kept)
            kept.append(n)
        target[n] = place[keys[n]]
    return np.array(kept, int), target


def _scales(group: Group, call: Call) -> bool:
    """Whether a constant only scales channels that were computed before, so that 0 stays 0."""
    multiplies = call.op_name in (*PRODUCTS, "multiply")
    return multiplies and any(a.id in group.values for a in call.args)


def _rows(value: Array, axis: int) -> Array:
    """Returns values as a row for each element along an axis."""
    return np.moveaxis(value, axis, 0).reshape(value.shape[axis], -1)


def _keeps_zero(node: object) -> bool:
    """Whether an operator makes 0 of channels whose operands and constants are all 0."""
    return getattr(node, "op_name", "") in _ZERO_TO_ZERO


# Operators that give 0 for operands of 0; others are not followed.
_ZERO_TO_ZERO: Final = frozenset(
    (
        "nn.dense", "nn.matmul", "nn.conv1d", "nn.conv2d", "nn.conv3d", "add", "subtract",
        "multiply", "negative", "abs", "nn.relu", "nn.gelu", "nn.silu", "nn.swish", "nn.hard_swish",
        "nn.mish", "nn.leaky_relu", "nn.elu", "nn.selu", "tanh", "erf", "nn.avg_pool2d",
        "nn.max_pool2d", "nn.global_avg_pool2d", "nn.global_max_pool2d", "reshape", "transpose",
        "slice", "pad", "sum", "mean", "resize",
    )
)  # fmt: skip
