"""FlattenClips: video clips and other volumes as batches of images."""

from __future__ import annotations

from typing import ClassVar, Final

from clew.cost.policy.layouts import BLOCKS_OF_CHANNELS
from clew.ir.dims import Dim
from clew.ir.expr import Call, Constant, Expr
from clew.ir.module import Module
from clew.ir.types import TensorType
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

_RANK: Final = 5
_SWAPPED: Final = (0, 2, 1, 3, 4)


@dataclass(frozen=True)
class FlattenClips(Pass):
    """Computes 3-D convolutions on batches of images: the frames of all clips in sequence,
    `[N * D, C, H, W]` instead of `[N, C, D, H, W]`.

    A convolution whose window is one frame deep becomes a 2-D convolution, so all passes and
    schedules for these apply. Others become `nn.conv3d_frames`, which reads several images of the
    batch. Elementwise operators, concatenations of channels and pooling within frames follow, so
    frames are moved only where a chain of these operators begins or ends.

    Before:
        %1: f32[1, 64, 8, 28, 28] = nn.conv3d(%0, w, padding=[0, 1, 1, 0, 1, 1])
        %2 = nn.conv3d(%1, v, padding=[1, 0, 0, 1, 0, 0])
    After:
        %3 = reshape(transpose(%0, axes=[0, 2, 1, 3, 4]), shape=[8, 3, 28, 28])
        %4: f32[8, 64, 28, 28] = nn.conv2d(%3, w', padding=[1, 1, 1, 1])
        %5 = nn.conv3d_frames(%4, v, frames=8, padding=[1, 0, 0, 1, 0, 0])

    Preconditions: sizes are known, layouts are plain; AlterLayout runs later. Non-goals:
    convolutions over several frames whose groups fill no blocks of channels, such as depthwise
    ones.
    """

    opt_level: ClassVar[int] = 3
    exactness: ClassVar[Exactness] = REORDERED

    def run(self, module: Module, ctx: PassContext) -> Module:
        return _Flattener(ctx).rewrite_module(module)


class _Flattener(FormRewriter):
    """The other form of a clip is its frames."""

    def has_form(self, value: Expr) -> bool:
        return has_rank(value, _RANK) and value.tensor.is_static

    def form_shape(self, value: Expr) -> tuple[Dim, ...]:
        n, c, d, h, w = value.tensor.shape
        return (n * d, c, h, w)

    def to_form(self, value: Expr, old: Expr) -> Expr:
        ordered = value if _in_order(old) else get_op("transpose")(value, axes=_SWAPPED)
        return get_op("reshape")(ordered, shape=self.form_shape(old))

    def from_form(self, value: Expr, old: Expr) -> Expr:
        n, c, d, h, w = old.tensor.shape
        if _in_order(old):
            return get_op("reshape")(value, shape=(n, c, d, h, w))
        return get_op("transpose")(get_op("reshape")(value, shape=(n, d, c, h, w)), axes=_SWAPPED)

    def begins(self, old: Call) -> bool:
        return is_convolution(old, "DHW")

    def formed(self, old: Call) -> Expr | None:
        assert isinstance(old.op, Op)
        if is_convolution(old, "DHW"):
            return self._conv(old)
        if old.op.traits.pools:
            return self._pool(old)
        if old.op.name == "concatenate":
            return self._concatenate(old)
        return self._pointwise(old)

    def _conv(self, old: Call) -> Expr | None:
        data, weight = old.args
        attrs = old.attrs
        if not weight.tensor.is_static:
            return None
        if attrs.data_layout != "NCDHW" or attrs.weight_layout != "OIDHW" or attrs.out_layout:
            return None
        flat = weight.tensor.shape[2] == 1 and attrs.strides[0] == 1
        flat = flat and attrs.padding[0] == attrs.padding[3] == 0
        if not (flat or _fills_blocks(weight.tensor, attrs.groups)):
            self.ctx.remark(old, "stays nn.conv3d: its groups fill no blocks of channels")
            return None
        frames = self.form(data, old)
        if not flat:
            options = {k: v for k, v in attrs.items() if not k.endswith("_layout")}
            return get_op("nn.conv3d_frames")(
                frames, self.memo[weight.id], frames=data.tensor.shape[2], **options
            )
        return get_op("nn.conv2d")(
            frames,
            self._flat_weight(weight),
            strides=attrs.strides[1:],
            padding=(*attrs.padding[1:3], *attrs.padding[4:]),
            dilation=attrs.dilation[1:],
            groups=attrs.groups,
        )

    def _flat_weight(self, weight: Expr) -> Expr:
        """Returns a weight one frame deep without the depth axis; the result of a constant is a
        constant.
        """
        shape = (*weight.tensor.shape[:2], *weight.tensor.shape[3:])
        value = self.memo[weight.id]
        if not isinstance(value, Constant):
            return get_op("reshape")(value, shape=shape)
        flat = value.tensor.with_(shape=shape)
        return value.derived("flat", flat, lambda w: w.reshape(flat.concrete))

    def _pool(self, old: Call) -> Expr | None:
        attrs = old.attrs
        within = attrs.kernel[0] == attrs.strides[0] == 1 and attrs.layout == "NCDHW"
        if not within or attrs.padding[0] or attrs.padding[3]:
            return None
        changed = attrs.with_(
            kernel=attrs.kernel[1:],
            strides=attrs.strides[1:],
            padding=(*attrs.padding[1:3], *attrs.padding[4:]),
            dilation=attrs.dilation[1:],
            layout="NCHW",
        )
        return Call(old.op, [self.form(old.args[0], old)], changed)

    def _concatenate(self, old: Call) -> Expr | None:
        if old.attrs.axis % _RANK != CHANNELS or not all(map(self.has_form, old.args)):
            return None
        return Call(old.op, [self.form(a, old) for a in old.args], old.attrs.with_(axis=CHANNELS))

    def _pointwise(self, old: Call) -> Expr | None:
        """Elementwise operators work on frames, unless an operand is broadcast along one of the
        merged axes.
        """
        operands = []
        for arg in old.args:
            shape = (1,) * (_RANK - arg.tensor.rank) + arg.tensor.shape
            images = shape[0], shape[2]
            if images == (old.tensor.shape[0], old.tensor.shape[2]) and self.has_form(arg):
                operands.append(self.form(arg, old))
            elif images == (1, 1):
                operands.append(self._every_frame(arg, (1, shape[1], *shape[3:])))
            else:
                return None
        return self.over_forms(old, operands)

    def _every_frame(self, arg: Expr, shape: tuple[Dim, ...]) -> Expr:
        """Returns an operand that is equal for all frames, in a shape that broadcasts to frames."""
        value = self.memo[arg.id]
        if value.tensor.shape == shape or value.tensor.rank == 0:
            return value
        return get_op("reshape")(value, shape=shape)


def _in_order(clip: Expr) -> bool:
    """Whether frames and channels have the same order in memory either way."""
    return 1 in clip.tensor.shape[1:3]


def _fills_blocks(weight: TensorType, groups: int) -> bool:
    """Whether each group computes whole blocks of channels, or there is only one group."""
    channels, inner = weight.concrete[:2]
    return groups == 1 or (inner > 1 and channels // groups % min(BLOCKS_OF_CHANNELS) == 0)
