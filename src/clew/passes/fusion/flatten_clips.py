"""FlattenClips: video clips and other volumes as batches of images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from clew.ir.dims import Dim
from clew.ir.expr import Call, Constant, Expr, Function
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter, rebuild
from clew.ir.types import TensorType, is_float
from clew.ops.convolution.stages import product_group
from clew.ops.registry import Op, argument_references, get_op
from clew.passes.base import Pass, PassContext
from clew.support.errors import GraphTypeError
from clew.te.analysis import Kind

_RANK: Final = 5
_POINTWISE: Final = (Kind.ELEMENTWISE, Kind.BROADCAST)
_SWAPPED: Final = (0, 2, 1, 3, 4)
_CHANNELS: Final = 1


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

    Preconditions: sizes are known, layouts are plain; AlterLayout runs later. Non-goals: integer
    and bf16 convolutions, and grouped convolutions over several frames.
    """

    opt_level: ClassVar[int] = 3

    def run(self, module: Module, ctx: PassContext) -> Module:
        return _Flattener(ctx).rewrite_module(module)


class _Flattener(Rewriter):
    """The memo maps a node to its value, either as frames or in its original form."""

    rebuilds = False

    def __init__(self, ctx: PassContext) -> None:
        super().__init__()
        self._ctx = ctx
        self._bodies: set[int] = set()
        self._frames: set[int] = set()  # values in the form of frames
        self._converted: dict[int, Expr] = {}

    def enter(self, function: Function) -> None:
        self._bodies.add(function.body.id)

    # --- operators on frames ---

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        try:
            flat = self._flattened(old)
        except GraphTypeError:  # attributes may name axes
            flat = None
        if flat is None or flat.tensor.shape != _shape_of_frames(old):
            return self._over_plain(old)
        self._frames.add(flat.id)
        return self._plain(flat, old, old) if old.id in self._bodies else flat

    def _flattened(self, old: Call) -> Expr | None:
        """Returns the call over frames, or None if it needs values in their original form."""
        if not isinstance(old.op, Op) or not _is_clip(old) or argument_references(old.attrs):
            return None
        if _is_conv(old):
            return self._conv(old)
        if not any(self.memo[a.id].id in self._frames for a in old.args):
            return None
        if old.op.traits.pools:
            return self._pool(old)
        if old.op.name == "concatenate":
            return self._concatenate(old)
        return self._pointwise(old) if self._ctx.kind(old) in _POINTWISE else None

    def _conv(self, old: Call) -> Expr | None:
        data, weight = old.args
        attrs, dtype = old.attrs, data.tensor.dtype
        if not is_float(dtype) or product_group(dtype) or not weight.tensor.is_static:
            return None
        if attrs.data_layout != "NCDHW" or attrs.weight_layout != "OIDHW" or attrs.out_layout:
            return None
        flat = weight.tensor.shape[2] == 1 and attrs.strides[0] == 1
        flat = flat and attrs.padding[0] == attrs.padding[3] == 0
        if attrs.groups > 1 and not flat:
            self._ctx.remark(old, "stays nn.conv3d: its groups read several frames")
            return None
        frames = self._flat(data, old)
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
        return Call(old.op, [self._flat(old.args[0], old)], changed)

    def _concatenate(self, old: Call) -> Expr | None:
        if old.attrs.axis % _RANK != _CHANNELS or not all(map(_is_clip, old.args)):
            return None
        return Call(old.op, [self._flat(a, old) for a in old.args], old.attrs.with_(axis=_CHANNELS))

    def _pointwise(self, old: Call) -> Expr | None:
        """Elementwise operators work on frames, unless an operand is broadcast along one of the
        merged axes.
        """
        operands = []
        for arg in old.args:
            shape = (1,) * (_RANK - arg.tensor.rank) + arg.tensor.shape
            images = shape[0], shape[2]
            if images == (old.tensor.shape[0], old.tensor.shape[2]) and _is_clip(arg):
                operands.append(self._flat(arg, old))
            elif images == (1, 1):
                operands.append(self._every_frame(arg, (1, shape[1], *shape[3:])))
            else:
                return None
        return Call(old.op, operands, old.attrs)

    def _every_frame(self, arg: Expr, shape: tuple[Dim, ...]) -> Expr:
        """Returns an operand that is equal for all frames, in a shape that broadcasts to frames."""
        value = self.memo[arg.id]
        if value.tensor.shape == shape or value.tensor.rank == 0:
            return value
        return get_op("reshape")(value, shape=shape)

    # --- conversions ---

    def _flat(self, old: Expr, user: Expr) -> Expr:
        """Returns a value as frames."""
        value = self.memo[old.id]
        if value.id in self._frames:
            return value
        found = self._converted.get(value.id)
        if found is None:
            with self.covers(old, user):
                found = value if _in_order(old) else get_op("transpose")(value, axes=_SWAPPED)
                found = get_op("reshape")(found, shape=_shape_of_frames(old))
            self._converted[value.id] = found
        return found

    def _plain(self, value: Expr, old: Expr, user: Expr) -> Expr:
        """Returns `value`, the value of `old`, in its original form."""
        if value.id not in self._frames:
            return value
        found = self._converted.get(value.id)
        if found is None:
            with self.covers(old, user):
                n, c, d, h, w = old.tensor.shape
                if _in_order(old):
                    found = get_op("reshape")(value, shape=(n, c, d, h, w))
                else:
                    found = get_op("reshape")(value, shape=(n, d, c, h, w))
                    found = get_op("transpose")(found, axes=_SWAPPED)
            self._converted[value.id] = found
        return found

    def _over_plain(self, old: Expr) -> Expr:
        return rebuild(old, [self._plain(self.memo[c.id], c, old) for c in old.children])

    def rewrite_other(self, old: Expr, new: Expr) -> Expr:
        return self._over_plain(old)

    def rewrite_control(self, old: Expr, new: Expr) -> Expr:
        return self._over_plain(old)

    def rewrite_tuple_get_item(self, old, new):  # type: ignore[no-untyped-def]
        return super().rewrite_tuple_get_item(old, self._over_plain(old))  # type: ignore[arg-type]


def _is_clip(value: Expr) -> bool:
    type_ = value.type
    return isinstance(type_, TensorType) and type_.rank == _RANK and type_.is_static


def _is_conv(value: Expr) -> bool:
    return (
        isinstance(value, Call) and isinstance(value.op, Op) and value.op.traits.convolves == "DHW"
    )


def _shape_of_frames(clip: Expr) -> tuple[Dim, ...]:
    n, c, d, h, w = clip.tensor.shape
    return (n * d, c, h, w)


def _in_order(clip: Expr) -> bool:
    """Whether frames and channels have the same order in memory either way."""
    return 1 in clip.tensor.shape[1:3]
