"""VectorizeSignals: convolutions of waveforms with vectors along the signal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from clew.cost.convolution import SignalLayer, cycles_along_signal, cycles_in_blocks
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

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class VectorizeSignals(Pass):
    """Computes convolutions of signals of few channels with vectors along the signal, where that is
    expected to be faster than with vectors of filters.

    Such a convolution is a matrix product whose rows, the windows, overlap in memory. With vectors
    of filters, as AlterLayout packs them, the result is in blocks, and must be transposed unless a
    convolution reads it. That takes longer than a short window, and a few filters leave most lanes
    empty. With vectors along the signal, a vector is one tap of 16 windows, and the result is
    plain. For a stride s, these lie apart; the signal is therefore split into its s phases, which
    are channels of a convolution of stride 1.

    Before:
        %1: f32[1, 512, 1, 3199] = nn.conv2d(%0: f32[1, 1, 1, 16000], w: f32[512, 1, 1, 10],
                                             strides=[1, 5])
    After:
        %2: f32[1, 5, 1, 3200] = reshape(space_to_batch(%0, block=[1, 5]))
        %1 = nn.conv2d(%2, w': f32[512, 5, 1, 2], out_layout="NCHW")

    `most_channels` is the largest number of channels of a signal that is changed.

    Preconditions: weights are constants and final; LiftSignals has made images of signals; runs
    before AlterLayout, which packs the other convolutions. Non-goals: groups; operands of dot
    products, which sum neighboring taps.
    """

    opt_level: ClassVar[int] = 3

    most_channels: int = 4

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
        blocks = cycles_in_blocks(layer, target, plain=not self._meets_blocks(old))
        along = cycles_along_signal(layer, target)
        self._ctx.remark(
            old,
            f"thousands of cycles expected: along the signal {along / 1e3:.0f}, "
            f"in blocks {blocks / 1e3:.0f}",
        )
        if blocks <= along:
            return new
        with self.covers(old, *old.args[:2]):
            return _along_signal(new)

    def _fits(self, conv: Call) -> bool:
        """Whether a convolution reads a signal of few channels, with a constant weight."""
        (data, weight), attrs = conv.args[:2], conv.attrs
        plain = (attrs.data_layout, attrs.weight_layout, attrs.out_layout) == ("NCHW", "OIHW", "")
        if not plain or attrs.groups != 1 or attrs.live or not isinstance(weight, Constant):
            return False
        if not is_float(data.tensor.dtype) or product_group(data.tensor.dtype):
            return False
        _, inner, lines, _ = weight.tensor.concrete
        padded = attrs.padding[0] or attrs.padding[2]
        return data.tensor.shape[2] == lines == 1 and not padded and (
            inner <= self._options.most_channels
        )

    def _meets_blocks(self, old: Call) -> bool:
        """Whether a convolution in blocks reads the result, directly or through elementwise
        operators and pooling.
        """
        pending, seen = [old], {old.id}
        while pending:
            for user in self._users.get(pending.pop().id, ()):
                if not isinstance(user, Call) or not isinstance(user.op, Op) or user.id in seen:
                    continue
                seen.add(user.id)
                if user.op.traits.packs_weight and user.args[1].tensor.shape[1] != 1:
                    return True
                if user.op.traits.pools or self._ctx.kind(user) in POINTWISE:
                    pending.append(user)
        return False


def _layer(conv: Call) -> SignalLayer:
    """Returns the sizes of a convolution of a signal; free sizes count as typical ones."""
    batch, outer, _, windows = map(typical, conv.tensor.shape)
    inner, taps = conv.args[1].tensor.concrete[1::2]
    (_, stride), (_, dilation) = conv.attrs.strides, conv.attrs.dilation
    dtype = conv.tensor.dtype
    return SignalLayer(batch, inner, outer, windows, taps, stride, dilation, dtype)


def _along_signal(conv: Call) -> Expr:
    """Returns the same convolution with a plain result, of the phases of the signal."""
    (data, weight), attrs = conv.args[:2], conv.attrs
    assert isinstance(weight, Constant)
    (_, stride), (_, dilation) = attrs.strides, attrs.dilation
    outer, inner, _, taps = weight.tensor.concrete
    batch, _, _, length = data.tensor.shape
    before = attrs.padding[1]
    read = (conv.tensor.shape[3] - 1) * stride + (taps - 1) * dilation + 1
    after = read - before - length  # negative if windows leave the end unread
    if (before, after) != (0, 0):
        data = get_op("pad")(data, pads=(0, 0, 0, before, 0, 0, 0, after))
    if stride > 1:
        phases = get_op("space_to_batch")(data, block=(1, stride))
        shape = batch, stride * inner, 1, phases.tensor.shape[3]
        data = get_op("reshape")(phases, shape=shape)
        steps = (taps - 1) * dilation // stride + 1
        dilation = 1 if stride > 1 else dilation

        def of_phases(filters: Array) -> Array:
            made: Array = np.zeros((outer, stride, inner, steps), filters.dtype)
            place = np.arange(taps) * attrs.dilation[1]
            made[:, place % stride, :, place // stride] = filters[:, :, 0].transpose(2, 0, 1)
            return made.reshape(outer, stride * inner, 1, steps)

        type_ = weight.tensor.with_(shape=(outer, stride * inner, 1, steps))
        weight = weight.derived(f"phases {stride} {dilation}", type_, of_phases)
    changed = attrs.with_(
        strides=(1, 1), dilation=(1, dilation), padding=(0, 0, 0, 0), out_layout="NCHW"
    )
    return Call(conv.op, [data, weight], changed)
