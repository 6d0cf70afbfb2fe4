"""Weights that are zero outside of blocks on their diagonal."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import ClassVar

import numpy as np

from clew.advice.candidate import Array, Candidate, Change
from clew.advice.graphs import constant, like, replacing
from clew.advice.rule import AdviceRule, register_advice
from clew.advice.rules.linear_chain import Linear
from clew.advice.subject import Subject, layers_of
from clew.ir.expr import Call, Expr


@register_advice
class BlockSparse(AdviceRule):
    """A convolution whose output channels read only their own block of the input channels is a
    grouped convolution.
    """

    name: ClassVar[str] = "block-sparse"
    title: ClassVar[str] = "weights that are zero outside of blocks on the diagonal"

    def find(self, subject: Subject) -> Iterator[Candidate]:
        """Yields a candidate for each such convolution."""
        for call in subject.calls:
            layer = Linear.of(subject, call)
            if layer is None or layer.is_dense:
                continue
            groups = _groups(layer.weight)
            if groups < 2:
                continue
            weight = layer.weight
            step = layer.inputs // groups
            rows = layer.outputs // groups
            grouped = np.concatenate(
                [
                    weight[n * rows : (n + 1) * rows, n * step : (n + 1) * step]
                    for n in range(groups)
                ]
            )
            build = partial(_grouped, call, grouped, groups)
            yield Candidate(
                self.name,
                f"compute a convolution of {layer.inputs} to {layer.outputs} channels in {groups} "
                "groups",
                "its weight is zero outside of the groups",
                f"Conv2d(..., groups={groups}) with the weight's blocks, or let --apply do it",
                layers_of([call]),
                "graph",
                "rounding",
                Change(replacing(self.name, call, [call.args[0]], build)),
            )


def _grouped(call: Call, weight: Array, groups: int, x: Expr) -> Expr:
    """Returns the convolution of an input in groups."""
    return like(call, x, constant(weight), groups=groups)


def _groups(weight: Array) -> int:
    """Returns the largest number of groups outside of which a weight f32[outputs, inputs, ...] is
    zero; 1 if it cannot be divided.
    """
    outputs, inputs = weight.shape[:2]
    used = (weight != 0).reshape(outputs, inputs, -1).any(axis=2)
    if used.mean() > 0.5:
        return 1
    common = int(np.gcd(outputs, inputs))
    for groups in (g for g in range(common, 1, -1) if common % g == 0):
        blocks = used.reshape(groups, outputs // groups, groups, inputs // groups)
        if not blocks.any(axis=(1, 3))[~np.eye(groups, dtype=bool)].any():
            return groups
    return 1
