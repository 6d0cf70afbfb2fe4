"""MultiplyPatches: convolutions of few pixels whose weights a run computes, as matrix products."""

from __future__ import annotations

import math
from itertools import product
from typing import ClassVar, Final

from clew.cost.policy.caches import PATCHES_IN_CACHES
from clew.cost.policy.layouts import (
    IMAGE_TO_PACK,
    LEAST_BLOCK_OF_PATCHES,
    MOST_TAPS_OF_PATCHES,
    PATCHES_BELOW_CHANNELS,
    PIXELS_TO_PACK,
)
from clew.ir.expr import Call, Constant, Expr
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter
from clew.ir.types import is_float, memory_bytes
from clew.machine.target import Target
from clew.ops.convolution.stages import product_group
from clew.ops.registry import Op, get_op
from clew.passes.base import Pass, PassContext
from clew.patterns.exactness import REORDERED, Exactness
from clew.support.dataclass import dataclass

_PLAIN: Final = "NCHW"


@dataclass(frozen=True)
class MultiplyPatches(Pass):
    """Computes convolutions whose weights are inputs or computed in the run, and whose images are
    small, as products of the weight's rows with the patches of the image (im2col).

    The convolution would pack its weight in each run, which takes as long as multiplying it with
    dozens of pixels. The product reads the weight where it lies. An image of which a window covers
    all pixels is one patch. A 1x1 convolution multiplies a plain image that stays in the caches,
    and one of any size by few filters: laying it out in blocks, and the result back, would take
    longer than reading its lines far apart.

    Before:
        %1: f32[1, 512, 4, 4] = nn.conv2d(%0, %w, padding=[1, 1, 1, 1])
    After:
        %2: f32[4608, 16] = reshape(concatenate(slice(pad(%0)), ..., axis=2))
        %1 = reshape(nn.matmul(reshape(%w, shape=[512, 4608]), %2), shape=[1, 512, 4, 4])

    Preconditions: layouts are plain, signals and clips are images; AlterLayout runs later.
    Non-goals: free sizes, integers and operands of dot products, which need packed weights.
    """

    opt_level: ClassVar[int] = 3
    exactness: ClassVar[Exactness] = REORDERED

    def run(self, module: Module, ctx: PassContext) -> Module:
        return module if ctx.target is None else _Multiplier(ctx.target).rewrite_module(module)


@dataclass(frozen=True)
class _Layer:
    """A convolution of images `[batch, groups * inner, ...]` by `outer` filters for each group with
    these attributes.
    """

    batch: int
    groups: int
    inner: int
    outer: int
    kernel: tuple[int, ...]
    result: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    image: int
    """The number of elements of the images."""

    @property
    def depth(self) -> int:
        """The number of elements of a patch."""
        return self.inner * math.prod(self.kernel)

    @property
    def pixels(self) -> int:
        """The number of pixels of all results."""
        return self.batch * math.prod(self.result)

    @property
    def is_pointwise(self) -> bool:
        """Whether the image holds the patches."""
        moves = (*(k - 1 for k in self.kernel), *(s - 1 for s in self.strides), *self.padding)
        return not any(moves)

    def is_one_patch(self, image: tuple[int, ...]) -> bool:
        """Whether the only window covers an image."""
        return self.groups == 1 and image == self.kernel and not any(self.padding)


def _layer(call: Call) -> _Layer | None:
    """Returns the convolution that a call is, or None if the pass does not handle it."""
    if call.op_name != "nn.conv2d" or isinstance(call.args[1], Constant):
        return None
    (data, weight), attrs = (a.tensor for a in call.args[:2]), call.attrs
    if not (data.is_static and weight.is_static) or attrs.data_layout != _PLAIN:
        return None
    if attrs.out_layout or not call.tensor.size or not weight.size:
        return None
    dtypes = {data.dtype, weight.dtype, call.tensor.dtype}
    if len(dtypes) > 1 or not is_float(data.dtype) or product_group(data.dtype):
        return None
    outer, inner, *kernel = weight.concrete
    batch, _, *result = call.tensor.concrete
    sizes = attrs.strides, attrs.padding, attrs.dilation
    each = outer // attrs.groups
    image = math.prod(data.concrete)
    return _Layer(batch, attrs.groups, inner, each, tuple(kernel), tuple(result), *sizes, image)


def _gains(layer: _Layer, weight: Expr, target: Target) -> bool:
    """Whether a product of patches is expected to be faster than a convolution that packs its
    weight, or that reads plain images.
    """
    if layer.groups > 1 and layer.inner == 1:
        return False
    if layer.is_pointwise and layer.groups == 1 and layer.outer < PATCHES_BELOW_CHANNELS:
        return True
    dtype = weight.tensor.dtype
    size = layer.groups * layer.depth * layer.pixels * memory_bytes(dtype)
    if size > PATCHES_IN_CACHES * target.l2_bytes or math.prod(layer.kernel) > MOST_TAPS_OF_PATCHES:
        return False
    if layer.is_pointwise and layer.groups == 1:
        return True
    lanes = target.vector_lanes(dtype)
    small = layer.image < IMAGE_TO_PACK and layer.outer >= lanes
    few = small or layer.pixels < PIXELS_TO_PACK
    few = few or (layer.pixels <= layer.outer and not _is_moved(weight))
    return few or _fills_no_vectors(layer, lanes)


def _is_moved(weight: Expr) -> bool:
    """Whether a weight is rearranged in the run, so that packing it is a part of that."""
    while isinstance(weight, Call) and weight.op_name == "reshape":
        weight = weight.args[0]
    if not isinstance(weight, Call) or not isinstance(weight.op, Op):
        return False
    types = [arg.tensor for arg in weight.args]
    return bool(weight.op.moved_and_written(types, weight.attrs)[0])


def _fills_no_vectors(layer: _Layer, lanes: int) -> bool:
    """Whether neither the channels of a group fill blocks nor the pixels of a line vectors."""
    if layer.groups == 1 or not math.gcd(layer.inner, layer.outer) % LEAST_BLOCK_OF_PATCHES:
        return False
    return layer.result[-1] < lanes or layer.strides[-1] != 1


class _Multiplier(Rewriter):
    def __init__(self, target: Target) -> None:
        super().__init__()
        self._target = target

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        layer = _layer(new)
        if layer is None:
            return new
        data, weight = new.args
        one = layer.is_one_patch(data.tensor.concrete[2:])
        if not one and not _gains(layer, weight, self._target):
            return new
        with self.covers(old):
            groups = (layer.groups,) if layer.groups > 1 else ()
            rows = get_op("reshape")(weight, shape=(*groups, layer.outer, layer.depth))
            if one:
                patches = get_op("reshape")(data, shape=(layer.batch, layer.depth))
                found = get_op("nn.dense")(patches, rows, weight_layout="NK")
            else:
                found = get_op("nn.matmul")(rows, _patches(layer, data))
            return get_op("reshape")(found, shape=new.tensor.shape)


def _patches(layer: _Layer, data: Expr) -> Expr:
    """Returns the patches of images as columns: `[depth, pixels]`, for each image if there are
    several.
    """
    places = math.prod(layer.result)
    if not layer.is_pointwise:
        if any(layer.padding):
            top, left, bottom, right = layer.padding
            data = get_op("pad")(data, pads=(0, 0, top, left, 0, 0, bottom, right))
        shape = (layer.batch, layer.groups * layer.inner, 1, places)
        taps = [
            get_op("reshape")(_pixels_of(layer, tap, data), shape=shape)
            for tap in product(*map(range, layer.kernel))
        ]
        data = get_op("concatenate")(*taps, axis=2) if len(taps) > 1 else taps[0]
    batch = (layer.batch,) if layer.batch > 1 else ()
    groups = (layer.groups,) if layer.groups > 1 else ()
    return get_op("reshape")(data, shape=(*batch, *groups, layer.depth, places))


def _pixels_of(layer: _Layer, tap: tuple[int, ...], image: Expr) -> Expr:
    """Returns the pixels of a padded image that a tap of the window meets."""
    begin = tuple(t * d for t, d in zip(tap, layer.dilation, strict=True))
    reach = zip(begin, layer.result, layer.strides, strict=True)
    end = tuple(b + (n - 1) * s + 1 for b, n, s in reach)
    steps = {} if all(s == 1 for s in layer.strides) else {"strides": layer.strides}
    return get_op("slice")(image, begin=begin, end=end, axes=(2, 3), **steps)
