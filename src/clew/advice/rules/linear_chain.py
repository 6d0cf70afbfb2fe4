"""Consecutive linear layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar

import numpy as np

from clew.advice.candidate import Array, Candidate, Change
from clew.advice.graphs import constant, like, op, op_of, replacing, shape_of
from clew.advice.rule import AdviceRule, register_advice
from clew.advice.subject import Subject, layers_of
from clew.ir.expr import Call, Expr


@register_advice
class LinearChain(AdviceRule):
    """Two linear layers without an activation between them are one layer, whose weight is the
    product of their weights. It is faster if the values between them are wide, and slower if they
    are a bottleneck.
    """

    name: ClassVar[str] = "linear-chain"
    title: ClassVar[str] = "consecutive linear layers, which one layer can compute"

    def find(self, subject: Subject) -> Iterator[Candidate]:
        """Yields a candidate for each pair of layers."""
        for call in subject.calls:
            second = Linear.of(subject, call)
            if second is None or not isinstance(call.args[0], Call):
                continue
            inner, shift = _without_bias(subject, call.args[0])
            first = Linear.of(subject, inner) if isinstance(inner, Call) else None
            between = (inner, call.args[0])
            if (
                first is None
                or not isinstance(inner, Call)
                or any(len(subject.readers(n)) != 1 for n in dict.fromkeys(between))
            ):
                continue
            merged = first.then(second, shift)
            before = first.weight.size + second.weight.size
            after = second.outputs * first.inputs * max(first.taps, second.taps)
            if merged is None or after >= before:
                continue
            yield Candidate(
                self.name,
                f"merge two linear layers ({first.inputs} to {first.outputs} to {second.outputs} "
                "channels)",
                "no activation is between them, so one weight computes both",
                "replace them by one layer in the model's source, or use --apply",
                layers_of([inner, call]),
                "graph",
                "rounding",
                Change(replacing(self.name, call, [inner.args[0]], merged)),
                share=1.0 - after / before,
            )


class Linear:
    """A layer with a constant weight, f32[outputs, inputs, *kernel]."""

    def __init__(self, call: Call, weight: Array) -> None:
        self.call = call
        self.weight = weight

    @property
    def outputs(self) -> int:
        """The number of output channels."""
        return int(self.weight.shape[0])

    @property
    def inputs(self) -> int:
        """The number of input channels."""
        return int(self.weight.shape[1])

    @property
    def taps(self) -> int:
        """The number of pixels that it reads for each result."""
        return int(self.weight[0, 0].size)

    @property
    def is_dense(self) -> bool:
        """Whether it is a matrix product."""
        return op_of(self.call) == "nn.dense"

    @property
    def is_pointwise(self) -> bool:
        """Whether it computes each pixel or row from one pixel or row."""
        attrs = self.call.attrs
        return self.is_dense or (
            not any(attrs.padding) and {*self.weight.shape[2:], *attrs.strides} == {1}
        )

    @staticmethod
    def of(subject: Subject, call: Call) -> Linear | None:
        """Returns a call as a linear layer, if it is one of f32 with a constant weight that has
        elements.
        """
        name = op_of(call)
        if name not in ("nn.dense", "nn.conv2d") or shape_of(call) is None:
            return None
        if any(getattr(n.type, "dtype", "") != "f32" for n in (call, *call.args)):
            return None
        weight = subject.value(call.args[1]) if subject.is_fixed(call.args[1]) else None
        if weight is None or not weight.size or len(call.args) != 2 or subject.is_fixed(call):
            return None
        attrs = call.attrs
        if name == "nn.dense":
            if attrs.weight_layout not in ("NK", "KN") or weight.ndim != 2 or attrs.rows:
                return None
            return Linear(call, weight if attrs.weight_layout == "NK" else weight.T)
        plain = attrs.weight_layout == "OIHW" and attrs.data_layout == "NCHW"
        if not plain or attrs.groups != 1 or attrs.live or attrs.out_layout:
            return None
        return Linear(call, weight)

    def then(self, second: Linear, shift: Array | None) -> Callable[[Expr], Expr] | None:
        """Returns the function that computes this layer, an added f32[outputs], and a second layer
        at once; None if they do not join: a border padded between them would be filled with zeros,
        not with what is added, and two kernels of several pixels would make a larger one.
        """
        if self.is_dense != second.is_dense or self.outputs != second.inputs:
            return None
        padded = not second.is_dense and any(second.call.attrs.padding)
        if padded and (shift is not None or not self.is_pointwise):
            return None
        if not self.is_pointwise and not second.is_pointwise:
            return None
        if not self.is_dense and not self.is_pointwise and second.call.attrs.strides != (1, 1):
            return None
        kept = self.call if second.is_pointwise else second.call

        def build(x: Expr) -> Expr:
            if self.is_dense:
                weight = second.weight @ self.weight
            elif second.is_pointwise:
                weight = np.tensordot(second.weight[:, :, 0, 0], self.weight, 1)
            else:
                joined = np.tensordot(second.weight, self.weight[:, :, 0, 0], ((1,), (0,)))
                weight = np.moveaxis(joined, -1, 1)
            added = None
            if shift is not None:
                summed = second.weight.reshape(*second.weight.shape[:2], -1).sum(axis=2)
                added = summed.astype(np.float64) @ shift.astype(np.float64)
            if self.is_dense:
                made = op("nn.dense", x, constant(weight))
                return made if added is None else op("add", made, constant(added))
            made = like(kept, x, constant(weight), channels=0)
            return made if added is None else op("add", made, constant(added.reshape(-1, 1, 1)))

        return build


def _without_bias(subject: Subject, value: Call) -> tuple[Expr, Array | None]:
    """Returns a value without a constant that is added to each of its channels, and this constant,
    f32[channels].
    """
    if op_of(value) != "add" or shape_of(value) is None:
        return value, None
    for n, arg in enumerate(value.args):
        other = value.args[1 - n]
        shift = subject.value(arg) if subject.is_fixed(arg) else None
        if shift is None or not isinstance(other, Call):
            continue
        axis = -1 if op_of(other) == "nn.dense" else 1 - value.tensor.rank
        channels = value.tensor.concrete[axis]
        padded = (1,) * (value.tensor.rank - shift.ndim) + shift.shape
        rest = [size for n, size in enumerate(padded) if n != axis % len(padded)]
        if set(rest) <= {1} and other.type == value.type:
            return other, np.broadcast_to(shift.reshape(-1), (channels,))
    return value, None
