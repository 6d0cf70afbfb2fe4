"""SplitTransposed: transposed convolutions as convolutions of the undilated image."""

from __future__ import annotations

import math
from itertools import product
from typing import Any, ClassVar, Final

import numpy as np

from clew.cost.policy.convolutions import (
    CHANNELS_OF_EMPTY_VECTORS,
    CHANNELS_PER_PIXEL,
    MOST_EMPTY_VECTORS,
    MOST_PLACES_OF_TRANSPOSED,
    MOST_TERMS_OF_TRANSPOSED,
    MOST_WASTE_OF_TRANSPOSED,
)
from clew.ir.dims import Dim, at_least, ceil_div
from clew.ir.expr import Call, Constant, Expr
from clew.ir.module import Module
from clew.ir.rewrite import Rewriter
from clew.ops.registry import Op, get_op
from clew.passes.base import Pass, PassContext
from clew.patterns.exactness import REORDERED, Exactness
from clew.support.dataclass import dataclass

Array = np.ndarray[Any, Any]

_WIDE: Final = ("f32", "f64")  # the dtypes of sums


@dataclass(frozen=True)
class SplitTransposed(Pass):
    """Computes transposed convolutions without zeros between the elements of their input.

    With strides `s`, all results at places `o` of equal `o mod s` read the same taps, one in `s`:
    they are a convolution of stride 1. One convolution with `s * s` times the channels computes all
    of them, and a transposition then puts them in order. Where windows are not multiple of the
    strides, that convolution would multiply by zeros; if by too many, each place gets a separate
    convolution. An image of one pixel is a row, and the layer is dense. A weight that the run
    computes is multiplied as it lies with each pixel if these are few, and the products that meet
    at a place are added up.

    Before: `%1: f32[1, 8, 10, 10] = nn.conv2d_transpose(%0, w, strides=[2, 2])`
    After:  `%1: f32[1, 32, 5, 5] = nn.conv2d(%0, w', padding=...)`, and `reshape`, `transpose`,
            `reshape`, `slice` to `f32[1, 8, 10, 10]`

    Preconditions: weights have known sizes; scales are folded into them (FoldScaleAxis). Non-goals:
    dilation.

    Source: Shi et al., "Is the deconvolution layer the same as a convolutional layer?", 2016.
    """

    opt_level: ClassVar[int] = 3
    exactness: ClassVar[Exactness] = REORDERED

    def run(self, module: Module, ctx: PassContext) -> Module:
        lanes = 1 if ctx.target is None else ctx.target.vector_lanes("f32")
        return _Splitter(lanes).rewrite_module(module)


@dataclass(frozen=True)
class _Layer:
    """A transposed convolution: sizes along its spatial axes, and channels."""

    sizes: tuple[Dim, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    before: tuple[int, ...]
    result: tuple[Dim, ...]
    groups: int
    inner: int
    outer: int

    @property
    def first(self) -> tuple[int, ...]:
        """The number of leading steps that are not computed, because all their results are
        cropped.
        """
        every = zip(self.before, self.strides, self.kernel, strict=True)
        return tuple(min(b // s, max(k // s, 1) - 1) for b, s, k in every)

    @property
    def cropped(self) -> tuple[int, ...]:
        """The number of computed elements that are cropped before the result."""
        every = zip(self.before, self.first, self.strides, strict=True)
        return tuple(b - n * s for b, n, s in every)

    @property
    def taps(self) -> tuple[int, ...]:
        """The largest number of taps that a place reads, for each axis."""
        return tuple(-(-k // s) for k, s in zip(self.kernel, self.strides, strict=True))

    @property
    def steps(self) -> tuple[Dim, ...]:
        """The number of computed steps of the strides."""
        every = zip(self.result, self.cropped, self.strides, strict=True)
        return tuple(ceil_div(size + c, s) for size, c, s in every)

    @property
    def after(self) -> tuple[int, ...]:
        """The number of zeros the steps read after the input; negative if they leave some
        unread. It does not depend on the sizes of the input.
        """
        every = zip(self.steps, self.first, self.sizes, strict=True)
        return tuple(_number(u + f - n) for u, f, n in every)

    def waste(self, lanes: int) -> float:
        """Returns the multiplications of one convolution for all places, relative to those of one
        for each place. Both compute channels in blocks of `lanes`.
        """
        return self._together(lanes) / self._apart(lanes)

    def empty(self, lanes: int) -> float:
        """Returns the multiplications of these convolutions, relative to the necessary ones."""
        least = math.prod(self.kernel) * self.outer / lanes
        return min(self._together(lanes), self._apart(lanes)) / least

    def _together(self, lanes: int) -> int:
        return math.prod(self.taps) * -(-math.prod(self.strides) * self.outer // lanes)

    def _apart(self, lanes: int) -> int:
        each = math.prod(max(k, s) for k, s in zip(self.kernel, self.strides, strict=True))
        return each * -(-self.outer // lanes)


def _number(dim: Dim) -> int:
    assert isinstance(dim, int)
    return dim


def _layer(call: Call) -> _Layer | None:
    """Returns the transposed convolution that a call is, or None if the pass does not handle it."""
    axes = call.op.traits.convolves_transposed if isinstance(call.op, Op) else ""
    if not axes or not call.args[1].tensor.is_static:
        return None
    data, weight, attrs = call.args[0].tensor, call.args[1].tensor, call.attrs
    if not weight.size or 0 in data.shape:
        return None
    spatial = data.rank - 2
    if math.prod(attrs.strides) > MOST_PLACES_OF_TRANSPOSED:
        return None
    if any(d != 1 for d in attrs.dilation) or data.dtype != weight.dtype:
        return None
    if not all(isinstance(zeros, int) for zeros in attrs.padding):
        return None  # they follow from a given size of the result
    if not all(map(_is_left, data.shape[2:], call.tensor.shape[2:], attrs.strides)):
        return None  # at some sizes, the padding crops all of the result
    return _Layer(
        data.shape[2:],
        weight.concrete[2:],
        attrs.strides,
        attrs.padding[:spatial],
        call.tensor.shape[2:],
        attrs.groups,
        weight.concrete[0] // attrs.groups,
        weight.concrete[1],
    )


def _is_left(size: Dim, result: Dim, stride: int) -> bool:
    """Whether the padding crops no result of an image with elements. The size of an image that was
    reduced before, such as `(h - 8) // 8 + 1`, may be 0, but then all is empty.
    """
    return at_least(result, 1) or at_least(result - stride * (size - 1), 1)


class _Splitter(Rewriter):
    def __init__(self, lanes: int) -> None:
        super().__init__()
        self._lanes = lanes

    def rewrite_call(self, old: Call, new: Call) -> Expr:
        layer = _layer(new)
        if layer is None:
            return new
        data, weight = new.args
        of_one = layer.groups == 1 and all(size == 1 for size in layer.sizes)
        with self.covers(old, *(a for a in old.args if isinstance(a, Constant))):
            if of_one:
                return _of_one_pixel(layer, data, weight)
            if _multiplies(layer, data, weight, self._lanes):
                return _of_products(layer, data, weight)
            return _of_places(layer, data, weight, self._lanes)


def _of_one_pixel(layer: _Layer, data: Expr, weight: Expr) -> Expr:
    """Computes an image of one pixel as a dense layer: each tap is a place of the result."""
    rows = get_op("reshape")(data, shape=(data.tensor.shape[0], layer.inner))
    type_ = weight.tensor.with_(shape=(layer.inner, layer.outer * math.prod(layer.kernel)))
    if isinstance(weight, Constant):
        matrix: Expr = weight.derived("transposed rows", type_, _flat)
    else:
        matrix = get_op("reshape")(weight, shape=type_.shape)
    sums = get_op("nn.dense")(rows, matrix, weight_layout="KN")
    image = get_op("reshape")(sums, shape=(data.tensor.shape[0], layer.outer, *layer.kernel))
    return _cropped(image, layer.before, layer.result)


def _multiplies(layer: _Layer, data: Expr, weight: Expr, lanes: int) -> bool:
    """Whether a layer whose weight is computed in the run is a product of the weight as it lies, so
    that no filters of places are made from it.
    """
    if isinstance(weight, Constant) or not data.tensor.is_static:
        return False
    strided = any(s != 1 for s in layer.strides)
    if (
        not strided
        or math.prod(layer.taps) > MOST_TERMS_OF_TRANSPOSED
        or data.tensor.dtype not in _WIDE
    ):
        return False
    batch, _, *sizes = data.tensor.concrete
    few = batch * math.prod(sizes) * CHANNELS_PER_PIXEL <= layer.inner
    return few or (
        layer.inner >= CHANNELS_OF_EMPTY_VECTORS and layer.empty(lanes) > MOST_EMPTY_VECTORS
    )


def _of_products(layer: _Layer, data: Expr, weight: Expr) -> Expr:
    """Multiplies each pixel by all taps of the weight, and adds up the products that belong to the
    same place.
    """
    batch, pixels = data.tensor.shape[0], math.prod(data.tensor.concrete[2:])
    spatial, taps, steps = len(layer.sizes), layer.taps, layer.strides
    groups = (layer.groups,) if layer.groups > 1 else ()
    columns = (layer.inner, layer.outer * math.prod(layer.kernel))
    rows = get_op("reshape")(weight, shape=(*groups, *columns))
    order = (0, 2, 1) if groups else (1, 0)
    rows = get_op("transpose")(rows, axes=order)
    image = get_op("reshape")(data, shape=(batch, *groups, layer.inner, pixels))
    products = get_op("nn.matmul")(rows, image)
    channels = layer.groups * layer.outer
    shape = (batch, channels, *layer.kernel, *layer.sizes)
    products = get_op("reshape")(products, shape=shape)
    missing = [t * s - k for t, s, k in zip(taps, steps, layer.kernel, strict=True)]
    if any(missing):
        none = (0,) * spatial
        pads = (0, 0, *none, *none, 0, 0, *missing, *none)
        products = get_op("pad")(products, pads=pads)
    total: Expr | None = None
    for tap in product(*map(range, taps)):  # the n-th tap of a place reads n pixels before it
        begin = tuple(t * s for t, s in zip(tap, steps, strict=True))
        end = tuple(b + s for b, s in zip(begin, steps, strict=True))
        term = products
        if math.prod(taps) > 1:
            axes = tuple(range(2, 2 + spatial))
            term = get_op("slice")(products, begin=begin, end=end, axes=axes)
        after = tuple(n - 1 - t for n, t in zip(taps, tap, strict=True))
        nothing = (0,) * (2 + spatial)
        if any(tap) or any(after):
            term = get_op("pad")(term, pads=(*nothing, *tap, *nothing, *after))
        total = term if total is None else get_op("add")(total, term)
    assert total is not None
    inside = [n for a in range(spatial) for n in (2 + spatial + a, 2 + a)]
    ordered = get_op("transpose")(total, axes=(0, 1, *inside))
    places = total.tensor.concrete[2 + spatial :]
    whole = tuple(u * s for u, s in zip(places, steps, strict=True))
    image = get_op("reshape")(ordered, shape=(batch, channels, *whole))
    return _cropped(image, layer.before, layer.result)


def _of_places(layer: _Layer, data: Expr, weight: Expr, lanes: int) -> Expr:
    """Computes the places of a step by convolutions, and puts the results in order."""
    spatial, groups = len(layer.sizes), layer.groups
    steps = layer.strides
    if all(s == 1 for s in steps):
        one = _convolution(layer, data, weight, ((0,) * spatial,))
        return _cropped(one, layer.cropped, layer.result)
    batch = data.tensor.shape[0]
    every = tuple(product(*map(range, steps)))
    if layer.waste(lanes) <= (MOST_WASTE_OF_TRANSPOSED if isinstance(weight, Constant) else 1):
        places = _convolution(layer, data, weight, every)
        shape = (batch, groups, *steps, layer.outer, *layer.steps)
        split = get_op("reshape")(places, shape=shape)
        inside = [n for a in range(spatial) for n in (spatial + 3 + a, 2 + a)]
        ordered = get_op("transpose")(split, axes=(0, 1, spatial + 2, *inside))
    else:
        each = [_convolution(layer, data, weight, (place,)) for place in every]
        # One image after another, as blocks of channels would not be adjacent in a batch.
        places = get_op("concatenate")(*each, axis=0)
        shape = (*steps, batch, groups * layer.outer, *layer.steps)
        split = get_op("reshape")(places, shape=shape)
        inside = [n for a in range(spatial) for n in (spatial + 2 + a, a)]
        ordered = get_op("transpose")(split, axes=(spatial, spatial + 1, *inside))
    whole = tuple(u * s for u, s in zip(layer.steps, steps, strict=True))
    image = get_op("reshape")(ordered, shape=(batch, groups * layer.outer, *whole))
    return _cropped(image, layer.cropped, layer.result)


def _convolution(
    layer: _Layer, data: Expr, weight: Expr, places: tuple[tuple[int, ...], ...]
) -> Expr:
    """Returns the results at some places of each step, with their channels one after another."""
    taps = layer.taps
    if len(places) == 1:  # a single place needs no taps of zeros
        reach = zip(layer.kernel, places[0], layer.strides, strict=True)
        taps = tuple(max(1, -(-(k - p) // s)) for k, p, s in reach)

    groups, inner, outer = layer.groups, layer.inner, layer.outer

    def make(w: Array) -> Array:
        made: Array = np.zeros((groups, len(places), outer, inner, *taps), w.dtype)
        grouped = w.reshape(groups, inner, outer, *layer.kernel).swapaxes(1, 2)
        whole = slice(None)
        for number, place in enumerate(places):
            steps = (slice(p, None, s) for p, s in zip(place, layer.strides, strict=True))
            some: tuple[Any, ...] = (whole, whole, whole, *steps)
            read = np.flip(grouped[some], tuple(range(3, grouped.ndim)))
            ends = (slice(t - n, t) for t, n in zip(taps, read.shape[3:], strict=True))
            at: tuple[Any, ...] = (whole, number, whole, whole, *ends)
            made[at] = read
        return made.reshape(-1, inner, *taps)

    shape = (groups * len(places) * outer, inner, *taps)
    if isinstance(weight, Constant):
        how = f"transposed {places} of {layer.strides} in {groups}"
        filters: Expr = weight.derived(how, weight.tensor.with_(shape=shape), make)
    elif len(places) == 1:
        filters = _filters_of_place(layer, weight, places[0], taps)
    else:
        filters = _filters_of_places(layer, weight)
    before = [t - 1 - n for t, n in zip(taps, layer.first, strict=True)]
    after = [max(0, n) for n in layer.after]
    if any(n < 0 for n in layer.after):
        read = tuple(n + min(0, a) for n, a in zip(layer.sizes, layer.after, strict=True))
        spatial = tuple(range(2, 2 + len(read)))
        data = get_op("slice")(data, begin=(0,) * len(read), end=read, axes=spatial)
    convolution = get_op(f"nn.conv{len(taps)}d")
    return convolution(data, filters, padding=(*before, *after), groups=groups)


def _filters_of_place(
    layer: _Layer, weight: Expr, place: tuple[int, ...], taps: tuple[int, ...]
) -> Expr:
    """Returns the filters of one place of each step, made from a weight in the run."""
    spatial, groups = len(layer.sizes), layer.groups
    axes = tuple(range(2, 2 + spatial))
    missing = [max(0, s - k) for s, k in zip(layer.strides, layer.kernel, strict=True)]
    if any(missing):
        weight = get_op("pad")(weight, pads=(*(0,) * (2 + spatial), 0, 0, *missing))
    if any(s != 1 for s in layer.strides):
        end = tuple(p + (t - 1) * s + 1 for p, t, s in zip(place, taps, layer.strides, strict=True))
        weight = get_op("slice")(weight, begin=place, end=end, axes=axes, strides=layer.strides)
    apart = get_op("reshape")(weight, shape=(groups, layer.inner, layer.outer, *taps))
    order = (0, 2, 1, *range(3, 3 + spatial))
    filters = get_op("transpose")(apart, axes=order)
    filters = get_op("flip")(filters, axes=order[3:])
    return get_op("reshape")(filters, shape=(groups * layer.outer, layer.inner, *taps))


def _filters_of_places(layer: _Layer, weight: Expr) -> Expr:
    """Returns the filters of all places of each step, made from a weight in the run."""
    spatial, taps, steps = len(layer.sizes), layer.taps, layer.strides
    missing = [t * s - k for t, s, k in zip(taps, steps, layer.kernel, strict=True)]
    if any(missing):
        weight = get_op("pad")(weight, pads=(*(0,) * (2 + spatial), 0, 0, *missing))
    split = [n for pair in zip(taps, steps, strict=True) for n in pair]
    shape = (layer.groups, layer.inner, layer.outer, *split)
    apart = get_op("reshape")(weight, shape=shape)
    order = (0, *range(4, 3 + 2 * spatial, 2), 2, 1, *range(3, 3 + 2 * spatial, 2))
    placed = get_op("transpose")(apart, axes=order)
    flipped = get_op("flip")(placed, axes=tuple(range(3 + spatial, 3 + 2 * spatial)))
    count = layer.groups * math.prod(steps) * layer.outer
    return get_op("reshape")(flipped, shape=(count, layer.inner, *taps))


def _cropped(image: Expr, before: tuple[int, ...], size: tuple[Dim, ...]) -> Expr:
    """Crops an image to the result's size; pads it with zeros at the end where it is too small."""
    rank = image.tensor.rank
    spatial = range(2, rank)
    ends = [b + n for b, n in zip(before, size, strict=True)]
    sizes = image.tensor.shape[2:]
    missing = [max(0, _number(e - n)) for e, n in zip(ends, sizes, strict=True)]
    if any(missing):
        nothing = (0,) * rank
        image = get_op("pad")(image, pads=(*nothing, 0, 0, *missing))
    if image.tensor.shape[2:] == size:
        return image
    return get_op("slice")(image, begin=before, end=tuple(ends), axes=tuple(spatial))


def _flat(weight: Array) -> Array:
    return weight.reshape(len(weight), -1)
