"""LiftSignals: signals as images of one line."""

from __future__ import annotations

from typing import ClassVar, Final

from clew.ir.dims import Dim
from clew.ir.expr import Call, Constant, Expr
from clew.ir.module import Module
from clew.ops.registry import Op, get_op
from clew.passes.base import Pass, PassContext
from clew.passes.convolution.forms import (
    CHANNELS,
    FormRewriter,
    has_rank,
    is_convolution,
)
from clew.patterns.exactness import REORDERED, Exactness
from clew.support.dataclass import dataclass

_RANK: Final = 3
_LINES: Final = 2  # the axis that images have and signals lack


@dataclass(frozen=True)
class LiftSignals(Pass):
    """Computes 1-D convolutions of signals `[N, C, W]` on images of one line, `[N, C, 1, W]`.

    All passes and schedules for 2-D convolutions then apply: layouts with blocks of channels, which
    fill vectors at any signal length; packed weights; and narrow floats. Elementwise operators,
    concatenations along channels, and pooling between convolutions are computed on images, too, so
    that values stay in blocks.

    Before:
        %1: f32[1, 64, n // 2] = nn.conv1d(%0, w, strides=[2], padding=[1, 1])
    After:
        %2: f32[1, 32, 1, n] = reshape(%0, shape=[1, 32, 1, n])
        %3 = nn.conv2d(%2, w', strides=[1, 2], padding=[0, 1, 0, 1])
        %1 = reshape(%3, shape=[1, 64, n // 2])

    Preconditions: weights have known sizes, layouts are plain; AlterLayout runs later. Non-goals:
    transposed convolutions, which SplitTransposed rewrites.
    """

    opt_level: ClassVar[int] = 3
    exactness: ClassVar[Exactness] = REORDERED

    def run(self, module: Module, ctx: PassContext) -> Module:
        return _Lifter(ctx).rewrite_module(module)


class _Lifter(FormRewriter):
    """The other form of a signal is an image of one line."""

    def has_form(self, value: Expr) -> bool:
        return has_rank(value, _RANK)

    def form_shape(self, value: Expr) -> tuple[Dim, ...]:
        return _lifted(value.tensor.shape)

    def to_form(self, value: Expr, old: Expr) -> Expr:
        return get_op("reshape")(value, shape=self.form_shape(old))

    def from_form(self, value: Expr, old: Expr) -> Expr:
        return get_op("reshape")(value, shape=old.tensor.shape)

    def begins(self, old: Call) -> bool:
        return is_convolution(old, "W")

    def formed(self, old: Call) -> Expr | None:
        assert isinstance(old.op, Op)
        if is_convolution(old, "W"):
            return self._conv(old)
        if old.op.traits.pools:
            return self._pool(old)
        if old.op.name == "concatenate":
            return self._concatenate(old)
        if old.op.traits.per_channel:
            data, *vectors = old.args
            values = [self.plain(self.memo[v.id], v, old) for v in vectors]
            return Call(old.op, [self.form(data, old), *values], old.attrs)
        return self.over_forms(old, [self._operand(a, old) for a in old.args])

    def _conv(self, old: Call) -> Expr | None:
        data, weight = old.args
        attrs, value = old.attrs, self.memo[weight.id]
        plain = attrs.data_layout == "NCW" and attrs.weight_layout == "OIW"
        if not plain or attrs.out_layout or not value.tensor.is_static:
            return None
        return get_op("nn.conv2d")(
            self.form(data, old),
            _lifted_weight(value),
            strides=(1, *attrs.strides),
            padding=(0, attrs.padding[0], 0, attrs.padding[1]),
            dilation=(1, *attrs.dilation),
            groups=attrs.groups,
            channels=attrs.channels,
            live=(0, attrs.live[0], 1, attrs.live[1]) if attrs.live else (),
        )

    def _pool(self, old: Call) -> Expr | None:
        attrs = old.attrs
        if attrs.layout != "NCW":
            return None
        changed = attrs.with_(
            kernel=(1, *attrs.kernel),
            strides=(1, *attrs.strides),
            padding=(0, attrs.padding[0], 0, attrs.padding[1]),
            dilation=(1, *attrs.dilation),
            layout="NCHW",
        )
        return Call(old.op, [self.form(old.args[0], old)], changed)

    def _concatenate(self, old: Call) -> Expr | None:
        if old.attrs.axis % _RANK != CHANNELS:
            return None
        return Call(old.op, [self.form(a, old) for a in old.args], old.attrs.with_(axis=CHANNELS))

    def _operand(self, arg: Expr, user: Call) -> Expr:
        """Returns an operand in a shape that broadcasts to images."""
        value, shape = self.memo[arg.id], arg.tensor.shape
        if len(shape) == _RANK:
            return self.form(arg, user)
        if len(shape) < 2:  # it broadcasts along the signal, or has one element
            return value
        with self.covers(arg, user):
            return get_op("reshape")(value, shape=_lifted((1,) * (_RANK - len(shape)) + shape))


def _lifted(shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
    return (*shape[:_LINES], 1, *shape[_LINES:])


def _lifted_weight(weight: Expr) -> Expr:
    """Returns a weight as that of images; the result of a constant is a constant."""
    lifted = weight.tensor.with_(shape=_lifted(weight.tensor.shape))
    if not isinstance(weight, Constant):
        return get_op("reshape")(weight, shape=lifted.shape)
    return weight.derived("line", lifted, lambda w: w.reshape(lifted.concrete))
