"""Space-to-batch, dilation and window reductions, for tensors of any rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from clew.frontends.building import call, reshaped
from clew.frontends.tflite.layer import TfliteLayer
from clew.frontends.tflite.registry import Result, converter
from clew.ir.dims import Dim, product
from clew.ir.expr import Expr


@converter("SPACE_TO_BATCH_ND")
def space_to_batch(layer: TfliteLayer) -> Result:
    """Moves blocks of the padded spatial axes into the batch axis."""
    x, blocks = layer.input(0), layer.dims(1, "the block")
    given, spatial = layer.dims(2, "the padding"), len(layer.dims(1, "the block"))
    _check(layer, blocks, given)
    rest = (0,) * (x.tensor.rank - 1 - spatial)
    pads = (0, *given[::2], *rest, 0, *given[1::2], *rest)
    x = call("pad", x, pads=pads, mode="constant", value=0)
    batch, *sizes = x.tensor.shape
    shape: list[Dim] = [batch]
    for size, block in zip(sizes, blocks, strict=False):
        shape += [size // block, block]
    inner = sizes[spatial:]
    x = reshaped(x, [*shape, *inner])
    first, last = range(1, 2 * spatial, 2), range(2, 2 * spatial + 1, 2)
    axes = (*last, 0, *first, *range(2 * spatial + 1, x.tensor.rank))
    x = call("transpose", x, axes=axes)
    outer = [size // block for size, block in zip(sizes, blocks, strict=False)]
    return reshaped(x, [batch * product(blocks), *outer, *inner])


@converter("BATCH_TO_SPACE_ND", codes=True)
def batch_to_space(layer: TfliteLayer) -> Result:
    """Moves batch elements into blocks of the spatial axes, which are then cropped."""
    x, blocks = layer.input(0), layer.dims(1, "the block")
    crops, spatial = layer.dims(2, "the crops"), len(layer.dims(1, "the block"))
    _check(layer, blocks, crops)
    batch, *sizes = x.tensor.shape
    count = batch // product(blocks)
    x = reshaped(x, [*blocks, count, *sizes])
    axes = [spatial]
    for axis in range(spatial):
        axes += [spatial + 1 + axis, axis]
    x = call("transpose", x, axes=(*axes, *range(2 * spatial + 1, x.tensor.rank)))
    outer = [size * block for size, block in zip(sizes, blocks, strict=False)]
    x = reshaped(x, [count, *outer, *sizes[spatial:]])
    if not any(crop != 0 for crop in crops):
        return x
    ends = tuple(size - crop for size, crop in zip(outer, crops[1::2], strict=True))
    steps, where = (1,) * spatial, tuple(range(1, spatial + 1))
    return call("slice", x, begin=tuple(crops[::2]), end=ends, strides=steps, axes=where)


def _check(layer: TfliteLayer, blocks: Sequence[Dim], ends: Sequence[Dim]) -> None:
    rank = layer.rank()
    if not 0 < len(blocks) < rank or len(ends) != 2 * len(blocks):
        raise layer.wrong(f"has blocks of {len(blocks)} axes for {layer.type(0)}")
    if any(isinstance(block, int) and block < 1 for block in blocks):
        raise layer.wrong(f"has blocks of {list(map(str, blocks))}")


@converter("DILATE", codes=True)
def dilate(layer: TfliteLayer) -> Result:
    """Inserts copies of a value between elements."""
    x, steps = layer.input(0), layer.numbers(1, "the distances")
    value = layer.known_one(2)
    if value is None:
        raise layer.unknown("the value between the elements")
    if len(steps) != x.tensor.rank or min(steps, default=1) < 1:
        raise layer.wrong(f"has the distances {list(steps)} for {layer.type(0)}")
    for axis, step in enumerate(steps):
        if step > 1:
            x = spread(x, axis, step, value)
    return x


def spread(x: Expr, axis: int, step: int, value: float) -> Expr:
    """Returns a tensor with `step - 1` copies of a value between its elements along an axis."""
    shape = list(x.tensor.shape)
    size = shape[axis]
    rank = len(shape) + 1
    x = reshaped(x, [*shape[: axis + 1], 1, *shape[axis + 1 :]])
    pads = [0] * (2 * rank)
    pads[rank + axis + 1] = step - 1
    x = call("pad", x, pads=tuple(pads), mode="constant", value=value)
    x = reshaped(x, [*shape[:axis], size * step, *shape[axis + 1 :]])
    end = (size - 1) * step + 1
    return call("slice", x, begin=(0,), end=(end,), strides=(1,), axes=(axis,))


_LONGEST: Final = 1024  # each element of a window is a slice
_REDUCTIONS: Final = (
    "", "add", "multiply", "minimum", "maximum", "logical_and", "logical_or",
)  # fmt: skip
"""What joins the elements of a window, by number."""


@converter("REDUCE_WINDOW")
def reduce_window(layer: TfliteLayer) -> Result:
    """Reduces each window together with an initial value; windows have no padding."""
    x, kind = layer.input(0), layer.integer("reduce_function", 0)
    sizes, strides, gaps = (
        layer.numbers(n, what)
        for n, what in ((2, "the window"), (3, "the strides"), (4, "the distances"))
    )
    if not 0 < kind < len(_REDUCTIONS):
        raise layer.wrong(f"has the function {kind}")
    return windows_reduced(layer, x, _REDUCTIONS[kind], sizes, strides, gaps)


def windows_reduced(
    layer: TfliteLayer,
    x: Expr,
    op: str,
    sizes: Sequence[int],
    strides: Sequence[int],
    gaps: Sequence[int],
) -> Expr:
    """Returns the reduction of each window together with the initial value, input 1."""
    if not len(sizes) == len(strides) == len(gaps) == x.tensor.rank:
        raise layer.wrong(f"has windows that do not fit {x.type}")
    if min((*sizes, *strides, *gaps), default=1) < 1:
        raise layer.wrong(f"has windows of {list(sizes)} with strides {list(strides)}")
    if max(sizes, default=1) > _LONGEST:
        raise layer.unsupported(f"windows of more than {_LONGEST} elements along an axis")
    for axis, (size, stride, gap) in enumerate(zip(sizes, strides, gaps, strict=True)):
        if (size, stride) == (1, 1):
            continue
        whole = x.tensor.shape[axis]
        span = (size - 1) * gap
        parts = [
            call(
                "slice",
                x,
                begin=(n * gap,),
                end=(whole - span + n * gap,),
                strides=(stride,),
                axes=(axis,),
            )
            for n in range(size)
        ]
        joined: Expr = parts[0]
        for part in parts[1:]:
            joined = call(op, joined, part)
        x = joined
    return call(op, x, reshaped(layer.input(1), ()))
