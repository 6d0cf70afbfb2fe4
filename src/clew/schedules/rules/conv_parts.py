"""Convolutions of operands split into parts (`nn.conv2d_parts`, bf16x3) on a matrix unit: a block
of pixels by two blocks of filters. Sums stay in tile registers for the whole reduction.

If all weights stay in the second-level cache, the image is processed in bands of lines. Each band
is split into parts right before its products, and the parts never leave that cache. A signal, which
has one line, is split as a whole. Otherwise, each band is as large as fits in that cache, and the
weights are read once per band.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Final

from clew.cost.policy.caches import (
    SHARE_OF_SPLIT_BAND,
    SHARE_OF_SPLIT_IMAGE,
    SHARE_OF_SPLIT_WEIGHTS,
)
from clew.cost.policy.convolutions import EVEN_BANDS, LINES_PER_LINE_AROUND
from clew.cost.policy.threads import PIECES_FOR_THREADS
from clew.cost.policy.tiles import TILES_HIGH, TILES_WIDE
from clew.loop.affine import Simplifier
from clew.loop.ir import buffer_loads, number
from clew.loop.products import product_of
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.machine.units import TILE_ROWS
from clew.schedules.demands import ONE_RESULT
from clew.schedules.library.images import blocked_image
from clew.schedules.library.register_tile import spread
from clew.schedules.library.streaming import stream
from clew.schedules.library.tile_sizes import balanced
from clew.schedules.rule import Demand, Match, Rule, Work, stage_role
from clew.schedules.space import Settings, Space, flag, tile_size
from clew.schedules.stages import StageInfo
from clew.support.dataclass import dataclass
from clew.te import roles

SUMS: Final = "conv_parts.sums"
"""The role of the sums of products."""
_IMAGE: Final = "conv_parts.image"


@dataclass(frozen=True)
class Stages:
    """The stages by their roles; `pixels` and `split` are None if the image comes in parts."""

    pixels: StageInfo | None
    split: StageInfo | None
    sums: StageInfo
    image: StageInfo


@dataclass(frozen=True)
class InParts(Match):
    """A convolution of operands in parts, with its tail inlined into `root`."""

    stages: Stages
    root: str


def _takes_unit(work: Work, target: Target) -> bool:
    sums = work.by_role[SUMS]
    product = product_of(sums.store)
    if product is None or roles.TERM not in sums.reduction_roles:
        return False
    shape = target.tile_shape(product.a.dtype, product.b.dtype)
    return shape is not None and shape[2] == product.a.source.shape[-1]


class ConvParts(Rule[InParts]):
    """The stages of `nn.conv2d_parts`, the stages that split its image, and an elementwise tail."""

    name = "conv_parts"
    scope = "kernel"
    demands: ClassVar[Sequence[Demand]] = (
        stage_role(SUMS),
        stage_role(_IMAGE),
        ONE_RESULT,
        Demand("a matrix unit for the parts", _takes_unit),
    )

    def match(self, work: Work, target: Target) -> InParts | None:
        sums, image, root = work.by_role[SUMS], work.by_role[_IMAGE], work.outputs[0]
        pixels, split = (work.by_role.get(f"conv_parts.{name}") for name in ("pixels", "split"))
        anchors = [info for info in work.stages if info.is_anchor]
        if len(anchors) != 1 or sums.readers != [image.name]:
            return None
        if blocked_image(image) is None or (pixels is None) != (split is None):
            return None
        kept = {sums.name, root.name, *(i.name for i in (pixels, split) if i is not None)}
        others = [name for name in work.infos if name not in kept]
        whole = root.store.buffer.shape == image.store.buffer.shape
        if not whole or any(work.infos[n].is_reduction for n in others):
            return None
        schedule = work.start.copy()
        for name in reversed(others):
            schedule.inline(name)
        return InParts(schedule, target, Stages(pixels, split, sums, image), root.name)

    def choices(self, match: InParts) -> Space:
        stages = match.stages
        bands = _choose_bands(stages, _line_step(stages), match.target)
        height = stages.image.store.buffer.typical_shape[2]
        choices = [
            tile_size("band", bands.lines, height, "lines of the result in a band"),
            flag("prefetch", True, "prefetch the next panel while one is in use"),
        ]
        if stages.split is not None:
            choices.append(flag("inside", bands.inside, "split a band right before its sums"))
        return Space(tuple(choices))

    def schedule(self, match: InParts, settings: Settings) -> Schedule:
        schedule, infos = match.begin()
        stages, target = match.stages, match.target
        sums, inside = infos[stages.sums.name], bool(settings.get("inside"))
        step = _line_step(stages)
        n, co, oh, ow, ci = infos[match.root].axes
        outer = [n]
        if not inside:
            schedule.reorder(co, n, oh, ow, ci)  # an odd panel is a separate nest
        if settings["band"] < schedule.extent(oh):
            schedule.reorder(oh, n, co, ow, ci)  # bands may differ in height
            band, oh = schedule.split(oh, settings["band"], tail="balance")
            outer.insert(0, band)
        schedule.reorder(*outer, co, oh, ow, ci)
        panel, block = schedule.split(co, TILES_WIDE)
        schedule.reorder(panel, oh, ow, block, ci)
        over = zip(sums.reduction_axes, sums.reduction_roles, strict=True)
        taps = math.prod(schedule.extent(name) for name, role in over if role == roles.TAP)
        # Blocks of a signal, which is one line, are shared by threads.
        is_signal = schedule.extent(oh) == 1 and _weights_stay(stages, target)
        chunks = taps > 1 and not inside and not is_signal
        at, levels = panel, list[str]()
        if not chunks:
            at, levels = _blocks_of_pixels(schedule, oh, ow, block, ci, step)
        schedule.compute_at(sums.name, at, "scratch")
        vector, lane = schedule.split(ci, target.vector_lanes("f32"), tail="guard")
        schedule.unroll(block)
        schedule.unroll(vector)
        schedule.vectorize(lane)
        if chunks:
            _accumulate(schedule, sums, prefetch=bool(settings["prefetch"]))
        else:
            around = multiply(schedule, sums)
            if settings["prefetch"]:
                stream(schedule, sums, panel, levels + around, target)
        if stages.split is not None and stages.pixels is not None:
            if inside:
                schedule.compute_at(stages.split.name, outer[-1], "scratch")
            first = _split(schedule, stages.split, stages.pixels, step, target)
            if not inside:
                spread(schedule, first)
        spread(schedule, outer if inside else [*outer, panel])
        return schedule


def _line_step(stages: Stages) -> int:
    """Returns the number of rows of sums from one line of pixels to the next."""
    (load,) = buffer_loads(stages.image.store.value)
    line = stages.image.store.indices[2]
    step = Simplifier().linear(load.indices[2]).coefficient(line)
    return number(step or stages.sums.store.buffer.shape[2], "a line of pixels")


@dataclass(frozen=True)
class _Bands:
    """The number of result `lines` in a band; with `inside`, each band is split separately."""

    lines: int
    inside: bool


def _choose_bands(stages: Stages, step: int, target: Target) -> _Bands:
    """Returns bands whose data stay in the second-level cache."""
    product = product_of(stages.sums.store)
    assert product is not None
    data = product.a.source
    batch, _, height = stages.image.store.buffer.typical_shape[:3]
    image_bytes = data.typical_bytes // batch
    reach = (data.typical_shape[4] - stages.sums.store.buffer.typical_shape[2]) // step
    if stages.split is not None and _weights_stay(stages, target):
        bands = max(
            -(-PIECES_FOR_THREADS // batch), _times(image_bytes, target, SHARE_OF_SPLIT_BAND)
        )
        if batch * bands > PIECES_FOR_THREADS:
            bands = -(-bands // EVEN_BANDS) * EVEN_BANDS
        lines = -(-height // bands)
        enough = batch * -(-height // lines) >= PIECES_FOR_THREADS  # not so a signal of one line
        if enough and lines >= LINES_PER_LINE_AROUND * reach:
            return _Bands(lines, inside=True)
    return _Bands(-(-height // _times(image_bytes, target, SHARE_OF_SPLIT_IMAGE)), inside=False)


def _weights_stay(stages: Stages, target: Target) -> bool:
    """Whether all weights stay in the second-level cache."""
    product = product_of(stages.sums.store)
    assert product is not None
    weight_bytes: int = product.b.source.typical_bytes
    return weight_bytes <= target.l2_bytes * SHARE_OF_SPLIT_WEIGHTS


def _times(size_bytes: int, target: Target, share: float) -> int:
    """Returns the number of pieces of a size that each fit a share of the second-level cache."""
    return -(-size_bytes // int(target.l2_bytes * share))


def _blocks_of_pixels(
    schedule: Schedule, oh: str, ow: str, block: str, ci: str, step: int
) -> tuple[str, list[str]]:
    """Splits lines and columns into blocks of at most as many rows as two tiles. Returns the loop
    over blocks, and the loops over pixels from the outermost to that one.
    """
    most = TILES_HIGH * TILE_ROWS
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


def multiply(schedule: Schedule, sums: StageInfo) -> list[str]:
    """Computes the sums in tile registers. Returns the loops around them, outermost first."""
    *around, terms, depth = sums.reduction_axes
    *others, row, lane = sums.axes
    schedule.reorder(*around, terms, *others, row, lane, depth)
    schedule.unroll(terms)
    schedule.tensorize(sums.name, row, lane, depth)
    return around


def _accumulate(schedule: Schedule, sums: StageInfo, *, prefetch: bool) -> None:
    """Computes a step of the depth with all its taps for all rows, then the next step. The weights
    of a step are loaded once, while the previous step is computed.
    """
    depth, high, wide, terms, inner = sums.reduction_axes
    *others, row, lane = sums.axes
    schedule.reorder(depth, row, high, wide, terms, *others, lane, inner)
    size = balanced(schedule.extent(row), TILES_HIGH * TILE_ROWS)
    blocks, line = schedule.split(row, size, tail="balance")
    schedule.reorder(blocks, *others, line, lane)
    schedule.reorder(blocks, high, wide, terms, *others, line, lane, inner)
    schedule.unroll(terms)
    schedule.tensorize(sums.name, line, lane, inner, within=blocks)
    product = product_of(sums.store)
    assert product is not None
    if prefetch:
        weight = product.b.source.name  # a single step has no previous step
        schedule.attempt(lambda: schedule.prefetch(weight, depth, wide))


def _split(
    schedule: Schedule, split: StageInfo, pixels: StageInfo, step: int, target: Target
) -> list[str]:
    """Splits an image into parts, line by line. Returns the outer loops."""
    n, co, *_, pixel, _, _ = split.axes
    schedule.split(pixel, step)
    split_vectors(schedule, split, pixels, target)
    return [n, co]


def split_vectors(schedule: Schedule, split: StageInfo, pixels: StageInfo, target: Target) -> None:
    """Computes all parts of a pixel at once, vector by vector."""
    *_, part, channel = split.axes
    vector, lane = schedule.split(channel, target.vector_lanes(split.store.buffer.dtype))
    schedule.reorder(vector, part, lane)
    schedule.compute_at(pixels.name, vector, "register")
    schedule.vectorize(pixels.axes[-1])
    schedule.unroll(vector)
    schedule.unroll(part)
    schedule.vectorize(lane)
