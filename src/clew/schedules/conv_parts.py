"""Convolutions of numbers in parts (`nn.conv2d_parts`) on a matrix unit: a block of pixels by two
blocks of filters, whose sums stay in tiles from zeros to the last step.

Where all weights stay in the second-level cache, lines go through in bands: a band's image is split
right before its products, and never leaves that cache. Otherwise weights pass by once for as much
of the image as stays there.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass

from clew.loop.affine import Simplifier
from clew.loop.ir import buffer_loads
from clew.loop.products import product_of
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.machine.units import TILE_ROWS
from clew.schedules.matmul import spread
from clew.schedules.shape import StageInfo, stage_infos
from clew.schedules.streaming import stream
from clew.schedules.tiles import balanced
from clew.support.errors import ScheduleError

NAME = "conv_parts"
_DATA_RANK = 7
_IMAGE_RANK = 5
_HIGH, _WIDE = 2, 2
# Of the second-level cache: all weights, and the band of an image beside them; the image beside
# panels of weights that pass by.
_SHARE_OF_WEIGHTS = 0.5
_SHARE_OF_BAND = 0.3
_SHARE_OF_IMAGE = 0.5
# For threads to share; as many for each of two.
_LEAST_BANDS = 4
_EVEN = 2
# Lines of a band for each line above and below that is split with it.
_LINES_A_REACH = 2


@dataclass(frozen=True)
class Stages:
    """The stages by their work; `pixels` and `split` are None where the image comes in parts."""

    pixels: StageInfo | None
    split: StageInfo | None
    sums: StageInfo
    image: StageInfo


def find(schedule: Schedule, target: Target) -> Stages | None:
    """Returns the stages of such a convolution; None where the nest has none, or the target no unit
    for it.
    """
    infos = stage_infos(schedule)
    anchors = [info for info in infos.values() if info.is_anchor]
    product = product_of(anchors[0].store) if len(anchors) == 1 else None
    if product is None or len(product.a.source.shape) != _DATA_RANK:
        return None
    sums = anchors[0]
    shape = target.tile_shape(product.a.dtype, product.b.dtype)
    if shape is None or shape[2] != product.a.source.shape[-1] or len(sums.readers) != 1:
        return None
    image = infos[sums.readers[0]]
    if len(image.store.indices) != _IMAGE_RANK or len(sums.reduction_axes) != _DATA_RANK - 2:
        return None
    of_buffer = {id(info.store.buffer): info for info in infos.values()}
    split = of_buffer.get(id(product.a.source))
    if split is None:
        return Stages(None, None, sums, image)
    made = {id(x.source): of_buffer.get(id(x.source)) for x in buffer_loads(split.store.value)}
    pixels = next(iter(made.values())) if len(made) == 1 else None
    return None if pixels is None else Stages(pixels, split, sums, image)


def schedule(schedule: Schedule, stages: Stages, target: Target) -> bool:
    """Schedules the convolution, its tail and what its image is made of; False if the rule does not
    fit.
    """
    root = _inline_rest(schedule, stages)
    if root is None:
        return False
    infos = stage_infos(schedule)
    sums = infos[stages.sums.name]
    step = _line_step(stages)
    bands = _choose_bands(stages, step, target)
    n, co, oh, ow, ci = infos[root].axes
    outer = [n]
    if not bands.inside:
        schedule.reorder(co, n, oh, ow, ci)  # a panel that is left is a nest of its own
    if bands.lines < schedule.extent(oh):
        schedule.reorder(oh, n, co, ow, ci)  # bands may differ in height
        band, oh = schedule.split(oh, bands.lines, tail="balance")
        outer.insert(0, band)
    schedule.reorder(*outer, co, oh, ow, ci)
    panel, block = schedule.split(co, _WIDE)
    schedule.reorder(panel, oh, ow, block, ci)
    taps = math.prod(schedule.extent(name) for name in sums.reduction_axes[1:3])
    chunks = taps > 1 and not bands.inside
    at, levels = panel, list[str]()
    if not chunks:
        at, levels = _blocks_of_pixels(schedule, oh, ow, block, ci, step)
    schedule.compute_at(sums.name, at, "scratch")
    vector, lane = schedule.split(ci, target.vector_lanes("f32"), tail="guard")
    schedule.unroll(block)
    schedule.unroll(vector)
    schedule.vectorize(lane)
    if chunks:
        _accumulate(schedule, sums)
    else:
        stream(schedule, sums, panel, levels + _multiply(schedule, sums), target)
    if stages.split is not None and stages.pixels is not None:
        if bands.inside:
            schedule.compute_at(stages.split.name, outer[-1], "scratch")
        first = _split(schedule, stages.split, stages.pixels, step, target)
        if not bands.inside:
            spread(schedule, first)
    spread(schedule, outer if bands.inside else [*outer, panel])
    return True


def _inline_rest(schedule: Schedule, stages: Stages) -> str | None:
    """Inlines the tail into the kernel's only output, what comes before into the image in parts;
    None, and nothing done, where it cannot.
    """
    infos = stage_infos(schedule)
    outputs = [name for name, info in infos.items() if info.is_output]
    kept = {stages.sums.name, *outputs}
    kept |= {info.name for info in (stages.pixels, stages.split) if info is not None}
    others = [name for name in infos if name not in kept]
    whole = infos[outputs[0]].store.buffer.shape == stages.image.store.buffer.shape
    if len(outputs) != 1 or not whole or any(infos[n].is_reduction for n in others):
        return None
    for name in reversed(others):
        schedule.inline(name)
    return outputs[0]


def _line_step(stages: Stages) -> int:
    """Returns how many rows of sums are from one line of pixels to the next."""
    (load,) = buffer_loads(stages.image.store.value)
    line = stages.image.store.indices[2]
    step = Simplifier().linear(load.indices[2]).coefficient(line)
    return step or stages.sums.store.buffer.shape[2]


@dataclass(frozen=True)
class _Bands:
    """How many `lines` of the result go through together; `inside`, a band is split by itself."""

    lines: int
    inside: bool


def _choose_bands(stages: Stages, step: int, target: Target) -> _Bands:
    """Returns the bands by what stays in the second-level cache."""
    product = product_of(stages.sums.store)
    assert product is not None
    data, weight = product.a.source, product.b.source
    batch, _, height = stages.image.store.buffer.shape[:3]
    image_bytes = data.size_bytes // batch
    reach = (data.shape[4] - stages.sums.store.buffer.shape[2]) // step
    if stages.split is not None and weight.size_bytes <= target.l2_bytes * _SHARE_OF_WEIGHTS:
        bands = max(-(-_LEAST_BANDS // batch), _times(image_bytes, target, _SHARE_OF_BAND))
        if batch * bands > _LEAST_BANDS:
            bands = -(-bands // _EVEN) * _EVEN
        lines = -(-height // bands)
        if lines >= _LINES_A_REACH * reach:
            return _Bands(lines, inside=True)
    return _Bands(-(-height // _times(image_bytes, target, _SHARE_OF_IMAGE)), inside=False)


def _times(size_bytes: int, target: Target, share: float) -> int:
    """Returns in how many pieces a size fits a share of the second-level cache."""
    return -(-size_bytes // int(target.l2_bytes * share))


def _blocks_of_pixels(
    schedule: Schedule, oh: str, ow: str, block: str, ci: str, step: int
) -> tuple[str, list[str]]:
    """Splits lines and columns into blocks of as many rows as tiles have. Returns the loop over
    blocks, and all loops over pixels outside of it and it.
    """
    most = _HIGH * TILE_ROWS
    columns = schedule.extent(ow)
    if columns > most:
        schedule.reorder(ow, oh, block, ci)
        outer, inner = schedule.split(ow, balanced(columns, most), tail="balance")
        schedule.reorder(outer, oh, block, inner, ci)
        return oh, [outer, oh]
    lines = balanced(schedule.extent(oh), (most - columns) // step + 1)
    outer, inner = schedule.split(oh, lines, tail="balance")
    schedule.reorder(outer, inner, block, ow, ci)
    return outer, [outer]


def _multiply(schedule: Schedule, sums: StageInfo) -> list[str]:
    """Tiles from zeros to the last step. Returns the loops around them, outermost first."""
    *around, terms, depth = sums.reduction_axes
    *others, row, lane = sums.axes
    schedule.reorder(*around, terms, *others, row, lane, depth)
    schedule.unroll(terms)
    schedule.tensorize(sums.name, row, lane, depth)
    return around


def _accumulate(schedule: Schedule, sums: StageInfo) -> None:
    """A step of the depth, all taps, for all rows before the next: its weights come from afar once,
    while the step before is at work.
    """
    depth, high, wide, terms, inner = sums.reduction_axes
    *others, row, lane = sums.axes
    schedule.reorder(depth, row, high, wide, terms, *others, lane, inner)
    size = balanced(schedule.extent(row), _HIGH * TILE_ROWS)
    blocks, line = schedule.split(row, size, tail="balance")
    schedule.reorder(blocks, *others, line, lane)
    schedule.reorder(blocks, high, wide, terms, *others, line, lane, inner)
    schedule.unroll(terms)
    schedule.tensorize(sums.name, line, lane, inner, within=blocks)
    product = product_of(sums.store)
    assert product is not None
    with contextlib.suppress(ScheduleError):  # one step of depth has none before it
        schedule.prefetch(product.b.source.name, depth, wide)


def _split(
    schedule: Schedule, split: StageInfo, pixels: StageInfo, step: int, target: Target
) -> list[str]:
    """An image in parts, pixel by pixel, all parts of one at once. Returns the outer loops."""
    n, co, _, _, pixel, part, channel = split.axes
    schedule.split(pixel, step)
    vector, lane = schedule.split(channel, target.vector_lanes(split.store.buffer.dtype))
    schedule.reorder(vector, part, lane)
    schedule.compute_at(pixels.name, vector, "register")
    schedule.vectorize(pixels.axes[-1])
    schedule.unroll(vector)
    schedule.unroll(part)
    schedule.vectorize(lane)
    return [n, co]
