"""JoinColumns: convolutions of few channels as sums over whole lines of a window."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from clew.cost.policy.layouts import MOST_COLUMNS_JOINED
from clew.ir.expr import Call, Constant, Expr
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter
from clew.ops.convolution.stages import product_group
from clew.ops.registry import argument_references, get_op
from clew.passes.base import Pass, PassContext
from clew.patterns.exactness import REORDERED, Exactness
from clew.support.dataclass import dataclass

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class JoinColumns(Pass):
    """Joins the columns and channels of an image of few channels, for dot product instructions.

    A dot product sums groups of 2 or 4 neighbors, which 3 channels do not fill. With channels last,
    the columns and channels of a line of a window are contiguous: a window of 7 columns by 3
    channels is a sum of 21 neighbors, and only its last group is zero-padded. The image becomes one
    of a single channel, whose lines hold all columns and channels.

    Before:
        %1: f32[1, 64, 112, 112] = nn.conv2d(%0: bf16[1, 3, 224, 224], w: bf16[64, 3, 7, 7],
                                             strides=[2, 2], padding=[3, 3, 3, 3])
    After:
        %2 = pad(transpose(%0, axes=[0, 2, 3, 1]), pads=[0, 3, 3, 0, 0, 3, 3, 0])
        %1 = nn.conv2d(reshape(%2, shape=[1, 1, 230, 690]), w': bf16[64, 1, 7, 22], strides=[2, 6])

    `most_channels` is the largest number of channels for which a convolution is changed.

    Preconditions: weights are constants and final; runs before AlterLayout, which packs groups of
    columns. Non-goals: grouped or dilated columns; targets whose matrix unit multiplies the
    operands, for which AlterLayout pads channels instead; channels that fill whole groups.
    """

    opt_level: ClassVar[int] = 3
    exactness: ClassVar[Exactness] = REORDERED

    most_channels: int = MOST_COLUMNS_JOINED

    def run(self, module: Module, ctx: PassContext) -> Module:
        if ctx.target is None:
            return module
        return _Joiner(self, ctx).rewrite_module(module)


class _Joiner(Rewriter):
    def __init__(self, options: JoinColumns, ctx: PassContext) -> None:
        super().__init__()
        self._options = options
        self._ctx = ctx

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        if new.op_name != "nn.conv2d" or argument_references(new.attrs) or not self._fits(new):
            return new
        data, weight = old.args[:2]
        pads = isinstance(data, Call) and data.op_name == "pad"  # becomes a part of the layer
        with self.covers(old, weight, *([data] if pads else [])):
            return _joined(new)

    def _fits(self, conv: Call) -> bool:
        """Whether the columns of a convolution fill dot groups, but its channels do not."""
        (data, weight), attrs = conv.args[:2], conv.attrs
        target = self._ctx.target
        assert target is not None
        operands = data.tensor.dtype, weight.tensor.dtype
        fit = attrs.pairs_fit
        multiplied = any(unit.multiplies(*operands, pairs_fit=fit) for unit in target.dot_units)
        if not multiplied or target.tile_shape(*operands):
            return False
        inner, group = weight.tensor.shape[1], product_group(operands[0])
        if not isinstance(weight, Constant) or not isinstance(inner, int):
            return False
        plain = (attrs.data_layout, attrs.weight_layout, attrs.out_layout) == ("NCHW", "OIHW", "")
        if not plain or attrs.groups != 1 or attrs.dilation[1] != 1 or attrs.live:
            return False
        few = inner <= self._options.most_channels and inner % 4 != 0
        return few and weight.tensor.concrete[3] * inner >= group


def _unpadded(data: Expr, padding: tuple[int, ...]) -> tuple[Expr, tuple[int, ...], float]:
    """Returns an image without its padding, the padding (top, left, bottom, right) and its value.
    Padding an image is cheaper with channels last.
    """
    if any(padding) or not isinstance(data, Call) or data.op_name != "pad":
        return data, padding, 0.0
    pads, attrs = data.attrs.pads, data.attrs
    if argument_references(attrs) or attrs.mode != "constant" or any((*pads[:2], *pads[4:6])):
        return data, padding, 0.0
    return data.args[0], (*pads[2:4], *pads[6:]), attrs.value


def _joined(conv: Call) -> Expr:
    """Returns the same convolution on an image of one channel."""
    (data, weight), attrs = conv.args[:2], conv.attrs
    assert isinstance(weight, Constant)
    outer, inner, lines, columns = weight.tensor.concrete
    group = product_group(data.tensor.dtype)
    depth = -(-columns * inner // group) * group
    data, (top, left, bottom, right), value = _unpadded(data, attrs.padding)
    n, _, height, width = data.tensor.shape
    stride = attrs.strides[1]
    # The last window may read elements past its own columns; the weight is zero there.
    reached = (conv.tensor.shape[3] - 1) * stride + -(-depth // inner)
    missing = reached - (left + width + right)
    right += max(0, missing) if isinstance(missing, int) else -(-(depth - columns * inner) // inner)
    image = get_op("transpose")(data, axes=(0, 2, 3, 1))
    if any((top, left, bottom, right)):
        pads = (0, top, left, 0, 0, bottom, right, 0)
        image = get_op("pad")(image, pads=pads, value=value)
    size = (n, 1, height + top + bottom, (width + left + right) * inner)
    image = get_op("reshape")(image, shape=size)

    def lines_of(filters: Array) -> Array:
        flat = filters.transpose(0, 2, 3, 1).reshape(outer, 1, lines, columns * inner)
        return np.pad(flat, [(0, 0)] * 3 + [(0, depth - columns * inner)])

    packed = weight.tensor.with_(shape=(outer, 1, lines, depth))
    filters = weight.derived(f"columns{group}", packed, lines_of)
    strides, dilation = (attrs.strides[0], stride * inner), (attrs.dilation[0], 1)
    changed = attrs.with_(strides=strides, dilation=dilation, padding=(0, 0, 0, 0))
    return Call(conv.op, [image, filters, *conv.args[2:]], changed)
