"""VectorizeSignals: convolutions of waveforms with vectors along the signal."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from clew.cost.convolution import (
    SignalLayer,
    SignalPart,
    cycles_along_signal,
    cycles_in_blocks,
    signal_parts,
)
from clew.cost.policy.convolutions import CHANNELS_ALONG_SIGNAL, FILTERS_ALONG_SIGNAL, SIGNAL_GAIN
from clew.ir.dims import typical
from clew.ir.expr import Call, Constant, Expr, Function
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter
from clew.ir.types import is_float
from clew.ir.visit import users
from clew.machine.target import Target
from clew.ops.convolution.stages import product_group
from clew.ops.registry import Op, argument_references, get_op
from clew.passes.base import Pass, PassContext
from clew.passes.convolution.forms import POINTWISE
from clew.patterns.exactness import REORDERED, Exactness
from clew.support.dataclass import dataclass

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class VectorizeSignals(Pass):
    """Computes convolutions of signals of few channels with vectors along the signal, where that is
    expected to be faster than with vectors of filters.

    Such a convolution is a matrix product whose rows, the windows, overlap in memory. With vectors
    of filters, as AlterLayout packs them, the result is in blocks, and must be transposed unless a
    convolution reads it. That takes longer than a short window, and a few filters leave most lanes
    empty. With vectors along the signal, a vector is one tap of several windows, and the result is
    plain. For a stride s, these elements lie apart; the signal is therefore split into its s
    phases, which are channels of a convolution of stride 1. Phases that have a tap more than others
    may be computed apart.

    Before:
        %1: f32[1, 512, 1, 3199] = nn.conv2d(%0: f32[1, 1, 1, 16000], w: f32[512, 1, 1, 10],
                                             strides=[1, 5])
    After:
        %2: f32[1, 5, 1, 3200] = signal_phases(%0, stride=5, step=1, count=5, size=3200)
        %1 = nn.conv2d(%2, w': f32[512, 5, 1, 2], out_layout="NCHW")

    `most_channels` is the largest number of channels of signals for which a convolution is changed,
    unless its filters do not fill a vector.

    Preconditions: constant weights are final; LiftSignals has made images of signals; runs
    before AlterLayout, which packs the other convolutions. Non-goals: operands of dot products,
    which sum neighboring taps; depthwise convolutions, whose kernels read padding as they are.
    """

    opt_level: ClassVar[int] = 3
    exactness: ClassVar[Exactness] = REORDERED

    most_channels: int = CHANNELS_ALONG_SIGNAL

    def run(self, module: Module, ctx: PassContext) -> Module:
        if ctx.target is None:
            return module
        return _Vectorizer(self, ctx, ctx.target).rewrite_module(module)


class _Vectorizer(Rewriter):
    of_function = ("_users",)

    def __init__(self, options: VectorizeSignals, ctx: PassContext, target: Target) -> None:
        super().__init__()
        self._options = options
        self._ctx = ctx
        self._target = target
        self._users: dict[int, list[Expr]] = {}

    def enter(self, function: Function) -> None:
        self._users = users(function)

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        if new.op_name != "nn.conv2d" or argument_references(new.attrs) or not self._fits(new):
            return new
        layer, target = _layer(new), self._target
        if layer.groups == 1:
            reads, gives = self._comes_in_blocks(new.args[0]), self._meets_blocks(old)
            along = cycles_along_signal(layer, target, reads_blocks=reads, gives_blocks=gives)
            few = layer.inner <= self._options.most_channels
            blocks = cycles_in_blocks(
                layer, target, reads_plain=not (reads or few), gives_plain=not gives
            )
            self._ctx.remark(
                old,
                f"thousands of cycles expected: along the signal {along / 1e3:.0f}, "
                f"in blocks {blocks / 1e3:.0f}",
            )
            if blocks <= SIGNAL_GAIN * along:
                return new
        with self.covers(old, old.args[1]):
            return _along_signal(new, signal_parts(layer, target))

    def _fits(self, conv: Call) -> bool:
        """Whether a convolution reads signals, and vectors of channels may be mostly empty."""
        (data, weight), attrs = conv.args[:2], conv.attrs
        plain = (attrs.data_layout, attrs.weight_layout, attrs.out_layout) == ("NCHW", "OIHW", "")
        if not plain or attrs.live or not weight.tensor.is_static or not weight.tensor.size:
            return False
        dtype = data.tensor.dtype
        if not is_float(dtype) or product_group(dtype) or conv.tensor.dtype != dtype:
            return False
        outer, inner, lines, _ = weight.tensor.concrete
        if data.tensor.shape[2] != 1 or lines != 1 or any(attrs.padding[::2]):
            return False
        if attrs.groups > 1:
            many = outer >= FILTERS_ALONG_SIGNAL * attrs.groups
            return inner <= self._options.most_channels and many
        few = outer <= self._target.vector_lanes(dtype)
        return inner <= self._options.most_channels or few

    def _keeps_blocks(self, call: Call) -> bool:
        """Whether an operator's result is in blocks if its operand is."""
        assert isinstance(call.op, Op)
        return call.op.layout_rule is not None or self._ctx.kind(call) in POINTWISE

    def _comes_in_blocks(self, value: Expr) -> bool:
        """Whether a convolution in blocks gives a new value, directly or through operators that
        keep blocks.
        """
        pending, seen = [value], set[int]()
        while pending:
            call = pending.pop()
            if not isinstance(call, Call) or not isinstance(call.op, Op) or call.id in seen:
                continue
            seen.add(call.id)
            if _in_blocks(call):
                return True
            if self._keeps_blocks(call):
                pending += call.args
        return False

    def _meets_blocks(self, old: Call) -> bool:
        """Whether a convolution in blocks reads an old value, directly or through operators that
        keep blocks.
        """
        pending, seen = [old], {old.id}
        while pending:
            for user in self._users.get(pending.pop().id, ()):
                if not isinstance(user, Call) or not isinstance(user.op, Op) or user.id in seen:
                    continue
                seen.add(user.id)
                if _in_blocks(user) and not self._fits(user):
                    return True
                if self._keeps_blocks(user):
                    pending.append(user)
        return False


def _in_blocks(call: Call) -> bool:
    """Whether AlterLayout is expected to compute a convolution in blocks of channels."""
    packs = isinstance(call.op, Op) and call.op.traits.packs_weight
    return packs and not call.attrs.out_layout and isinstance(call.args[1], Constant)


def _layer(conv: Call) -> SignalLayer:
    """Returns the sizes of a convolution of signals; free sizes count as typical ones."""
    batch, outer, _, windows = map(typical, conv.tensor.shape)
    inner, taps = conv.args[1].tensor.concrete[1::2]
    (_, stride), (_, dilation) = conv.attrs.strides, conv.attrs.dilation
    return SignalLayer(
        batch, inner, outer, windows, taps, stride, dilation, conv.attrs.groups, conv.tensor.dtype
    )


def _along_signal(conv: Call, parts: Sequence[SignalPart]) -> Expr:
    """Returns the same convolution with a plain result, as a sum over parts of the phases."""
    results = [_of_phases(conv, part) for part in parts]
    return functools.reduce(get_op("add"), results)


def _of_phases(conv: Call, part: SignalPart) -> Expr:
    """Returns the convolution of some phases of the signal."""
    (data, weight), attrs = conv.args[:2], conv.attrs
    (_, stride), (_, step) = attrs.strides, attrs.dilation
    apart = math.gcd(stride, step)
    period, dilation = stride // apart, step // apart
    size = conv.tensor.shape[3] + (part.taps - 1) * dilation
    before = attrs.padding[1] - part.first * step
    if (stride, before, size) != (1, 0, data.tensor.shape[3]):
        data = get_op("signal_phases")(
            data, stride=stride, step=step, count=part.phases, size=size, before=before
        )
    packed = _weight_of_phases(weight, part, period)
    changed = attrs.with_(
        strides=(1, 1), dilation=(1, dilation), padding=(0, 0, 0, 0), out_layout="NCHW"
    )
    return Call(conv.op, [data, packed], changed)


def _weight_of_phases(weight: Expr, part: SignalPart, period: int) -> Expr:
    """Returns a weight with the taps of each phase as channels; taps beyond the window are zero."""
    outer, inner, _, taps = weight.tensor.concrete
    shape = (outer, inner * part.phases, 1, part.taps)
    if isinstance(weight, Constant):
        places = part.first + np.arange(part.phases)[:, None] + np.arange(part.taps) * period

        def of_phases(filters: Array) -> Array:
            found = filters[:, :, 0, np.minimum(places, taps - 1)]
            made: Array = np.where(places < taps, found, filters.dtype.type(0))
            return made.reshape(shape)

        return weight.derived(f"{part} of {period}", weight.tensor.with_(shape=shape), of_phases)
    whole = max(part.taps * period, taps)
    padded = get_op("pad")(weight, pads=(0, 0, 0, 0, 0, 0, 0, whole - taps))
    taken = get_op("slice")(padded, begin=(0,), end=(part.taps * period,), axes=(3,))
    steps = get_op("reshape")(taken, shape=(outer, inner, part.taps, period))
    first, last = part.first, part.first + part.phases
    chosen = get_op("slice")(steps, begin=(first,), end=(last,), axes=(3,))
    return get_op("reshape")(get_op("transpose")(chosen, axes=(0, 1, 3, 2)), shape=shape)
