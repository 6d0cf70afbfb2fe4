"""FillGroups: pads groups of filters to whole blocks of channels, or joins groups."""

from __future__ import annotations

import math
from typing import ClassVar, Final

import numpy as np

from clew.cost.policy.convolutions import FILTERS_TO_FILL
from clew.cost.policy.layouts import BLOCKS_OF_CHANNELS, LEAST_BLOCK_OF_DOTS
from clew.ir.expr import Call, Constant, Expr
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter
from clew.ir.types import is_float, to_numpy
from clew.machine.target import Target
from clew.ops.convolution.stages import product_group
from clew.ops.registry import get_op
from clew.passes.base import Pass, PassContext
from clew.patterns.exactness import REORDERED, Exactness
from clew.support.dataclass import dataclass

_PLAIN: Final = "NCHW"
_LEAST_BLOCK: Final = min(BLOCKS_OF_CHANNELS)


@dataclass(frozen=True)
class _Form:
    """The numbers of filters and of channels that each group has when padded, and the number of
    groups that become one.
    """

    filters: int
    inner: int
    joined: int = 1


@dataclass(frozen=True)
class FillGroups(Pass):
    """Pads the groups of a convolution with zero filters, if the filters of a group do not fill
    blocks of whole vectors, and slices the additional results off.

    For such groups, AlterLayout finds only a short block or none. Without blocks, each vector of
    pixels that the convolution loads serves a single filter. A padded convolution reads the plain
    image and writes blocks. The plain form is slowest on targets without mask registers for the
    ends of lines; the gain was measured only there (AVX2).

    Before:
        %1: f32[1, 50, 28, 28] = nn.conv2d(%0, f32[50, 25, 3, 3], padding=[1, 1, 1, 1], groups=2)
    After:
        %1: f32[1, 64, 28, 28] = nn.conv2d(%0, f32[64, 25, 3, 3], padding=[1, 1, 1, 1], groups=2)
        %2: f32[1, 2, 25, 28, 28] = slice(reshape(%1, shape=[1, 2, 32, 28, 28]), axes=[2], ...)
        %3: f32[1, 50, 28, 28] = reshape(%2, shape=[1, 50, 28, 28])

    Integers that dot products multiply are changed on every target: without blocks there are no
    neighbors to sum. Small groups are joined into larger ones, whose filters have zeros for the
    channels of the other groups; where that takes more products, or the number of groups does not
    allow it, the channels that a group reads are padded like its filters.

    Preconditions: layouts are plain, signals and clips are images; AlterLayout runs later.
    Non-goals: depthwise convolutions, whose pixels fill vectors; `bf16`; groups of 1x1
    convolutions, whose pixels are contiguous; run-time weights; floats of free sizes.
    """

    opt_level: ClassVar[int] = 3
    exactness: ClassVar[Exactness] = REORDERED

    def run(self, module: Module, ctx: PassContext) -> Module:
        if ctx.target is None:
            return module
        return _Filler(ctx.target).rewrite_module(module)


class _Filler(Rewriter):
    def __init__(self, target: Target) -> None:
        super().__init__()
        self._target = target

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        form = _filled(new, self._target)
        if form is None:
            return new
        with self.covers(old):
            return _joined(new, form.joined) if form.joined > 1 else _widened(new, form)


def _joined(conv: Call, joined: int) -> Expr:
    """Returns a convolution whose groups are `joined` groups of the given one."""
    weight = conv.args[1]
    filters, inner, *kernel = weight.tensor.concrete
    groups = conv.attrs.groups // joined
    each = filters // conv.attrs.groups
    apart = get_op("reshape")(weight, shape=(groups, joined, each, 1, inner, *kernel))
    own = np.eye(joined, dtype=to_numpy(weight.tensor.dtype))
    own = own.reshape(1, joined, 1, joined, 1, *(1 for _ in kernel))
    spread = get_op("multiply")(apart, Constant(own))
    whole = get_op("reshape")(spread, shape=(filters, joined * inner, *kernel))
    return Call(conv.op, [conv.args[0], whole], conv.attrs.with_(groups=groups))


def _widened(conv: Call, form: _Form) -> Expr:
    """Returns the results of a convolution with padded groups."""
    data, weight = conv.args[:2]
    filters, inner, *kernel = weight.tensor.concrete
    n, _, *image = conv.tensor.shape
    groups = conv.attrs.groups
    each = filters // groups
    grouped = get_op("reshape")(weight, shape=(groups, each, inner, *kernel))
    more = (0, form.filters - each, form.inner - inner, *[0] * len(kernel))
    padded = get_op("pad")(grouped, pads=(*[0] * len(more), *more))
    whole = get_op("reshape")(padded, shape=(groups * form.filters, form.inner, *kernel))
    found = Call(conv.op, [_padded(data, groups, form.inner), whole], conv.attrs)
    if form.filters == each:
        return found
    apart = get_op("reshape")(found, shape=(n, groups, form.filters, *image))
    kept = get_op("slice")(apart, begin=(0,), end=(each,), axes=(2,))
    return get_op("reshape")(kept, shape=conv.tensor.shape)


def _padded(data: Expr, groups: int, read: int) -> Expr:
    """Returns an image whose groups have `read` channels; those that are added are 0."""
    n, channels, *size = data.tensor.shape
    assert isinstance(channels, int)
    inner = channels // groups
    if inner == read:
        return data
    apart = get_op("reshape")(data, shape=(n, groups, inner, *size))
    more = (0, 0, read - inner, *[0] * len(size))
    padded = get_op("pad")(apart, pads=(*[0] * len(more), *more))
    return get_op("reshape")(padded, shape=(n, groups * read, *size))


def _filled(call: Call, target: Target) -> _Form | None:
    """Returns the form of the groups; None if the convolution stays unchanged."""
    if call.op_name != "nn.conv2d" or not isinstance(call.args[1], Constant):
        return None
    data, weight, attrs = call.args[0].tensor, call.args[1].tensor, call.attrs
    if attrs.groups == 1 or attrs.data_layout != _PLAIN or attrs.out_layout:
        return None
    if weight.rank != call.tensor.rank or not isinstance(data.shape[1], int):
        return None
    filters, inner, *kernel = weight.concrete
    each: int = filters // attrs.groups
    moves = any(attrs.padding) or any(s != 1 for s in attrs.strides)
    if inner == 1 or (all(k == 1 for k in kernel) and not moves):
        return None
    if product_group(data.dtype):
        return None if is_float(data.dtype) else _filled_for_dots(each, inner, attrs.groups)
    if data.dtype != call.tensor.dtype or not is_float(data.dtype) or not target.has_half_lines:
        return None
    if each < FILTERS_TO_FILL or not call.tensor.is_static:
        return None
    lanes = target.vector_lanes(data.dtype)
    if each % lanes == 0 or (each % _LEAST_BLOCK == 0 and each < lanes):
        return None
    return _Form(_whole(each, _LEAST_BLOCK if each < _LEAST_BLOCK else lanes), inner)


def _filled_for_dots(each: int, inner: int, groups: int) -> _Form | None:
    """Returns the form whose groups one block of dot products divides, with the fewest products;
    None if one does already.
    """
    least = LEAST_BLOCK_OF_DOTS
    if math.gcd(each, inner) % least == 0:
        return None
    joined = least // math.gcd(each, inner, least)
    form = _Form(_whole(each, least), _whole(inner, least))
    if groups % joined or joined * each * inner > form.filters * form.inner:
        return form
    return _Form(each, inner, joined)


def _whole(channels: int, block: int) -> int:
    return -(-channels // block) * block
