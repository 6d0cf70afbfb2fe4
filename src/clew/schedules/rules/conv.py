"""Convolutions in a blocked layout [n, co, oh, ow, ci]: lanes are the channels of a block, and a
register tile is pixels by channel blocks. An odd block gets a separate nest.

Channel blocks are outermost, so that their weights stay in cache while the image streams by. The
reduction skips frames outside a clip.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Final

from clew.cost.policy.caches import (
    PANELS_FOR_BANDS,
    SHARE_OF_CONV_PANEL,
    SHARE_OF_IMAGE,
    SHARE_OF_WAYS,
    WAYS_OF_L2,
)
from clew.cost.policy.convolutions import (
    BLOCK_IN_VECTORS,
    GOOD_FIT,
    LINES_OF_FREE_IMAGE,
    MANY_BLOCKS,
    TILES_OF_CONV_CHUNK,
)
from clew.cost.policy.tiles import MOST_ROWS, STEPS_OF_IMAGE_PREFETCH, UNROLLED_STEPS
from clew.ir.dims import SymDim
from clew.ir.types import memory_bytes
from clew.loop.affine import contains
from clew.loop.ir import buffer_loads
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules.demands import BLOCKED_IMAGE, PRODUCTS, REDUCES, TAILED
from clew.schedules.library.chunks import chunk_of_channels, sum_chunks
from clew.schedules.library.images import Image, blocked_image, reads_own_channels
from clew.schedules.library.register_tile import register_tile, split_tiles, spread
from clew.schedules.library.streaming import stream
from clew.schedules.library.tile_sizes import (
    balanced,
    image_tile,
    rows_of_tile,
)
from clew.schedules.rule import Demand, Rule, TailMatch, Work
from clew.schedules.space import Choice, Settings, Space, flag, tile_size
from clew.schedules.stages import StageInfo, stage_infos
from clew.support.dataclass import dataclass
from clew.support.errors import ScheduleError
from clew.te import roles
from clew.te.expr import Load, Select
from clew.te.walk import nodes

# How a copy lies in memory: a tile reads few bytes of each block, or all channels of few pixels.
_BY_BLOCKS: Final = 1
_BY_PIXELS: Final = 2


@dataclass(frozen=True)
class Convolution(TailMatch):
    """A convolution whose result is a blocked image. `flat` is the schedule with the image as one
    line; None if the accesses do not allow it.
    """

    image: Image
    lanes: int
    own_channels: bool
    flat: Schedule | None

    @property
    def wide(self) -> int:
        """The number of vectors in a block of channels."""
        return -(-self.image.lanes // self.lanes)


class Conv(Rule[Convolution]):
    """Convolutions whose results are images in channel blocks of one or two vectors."""

    name = "conv"
    demands: ClassVar[Sequence[Demand]] = (REDUCES, TAILED, PRODUCTS, BLOCKED_IMAGE)
    has_chunks: ClassVar[bool] = True
    """Whether register tiles may accumulate one chunk of the input channels at a time."""

    def match(self, work: Work, target: Target) -> Convolution | None:
        info = work.reduction
        image = blocked_image(info)
        assert image is not None
        lanes = target.vector_lanes(info.store.buffer.dtype)
        if not 1 < image.lanes <= BLOCK_IN_VECTORS * lanes or not info.reduction_axes:
            return None
        if not any(_has_lines(info, load) for load in buffer_loads(info.store.value)):
            return None  # a reduction of whole images, not line by line
        own, lanes = reads_own_channels(info), min(image.lanes, lanes)
        flat: Schedule | None = work.start.copy()
        try:
            assert flat is not None
            flat.flatten(*dict.fromkeys((info.name, work.root.name)), first=2)
        except ScheduleError:
            flat = None
        return Convolution(work.start, target, info.name, work.root.name, image, lanes, own, flat)

    def choices(self, match: Convolution) -> Space:
        image = match.image
        vectors = 2 if image.blocks > 1 and not match.own_channels and match.wide == 1 else 1
        most = self.most_rows(match, vectors * match.wide)
        # The remainder of one line takes less code than those of lines and columns.
        flat = match.flat is not None and (_is_free(image) or _fits_better_flat(image, most))
        height, width = (1, image.height * image.width) if flat else (image.height, image.width)
        panels = image.blocks // vectors
        # Each tile reads a panel of weights, of which a large one leaves the second-level cache.
        panel_bytes = _weight_bytes(match.info) // panels
        chunk = chunk_of_channels(match.info, panel_bytes, match.target) if self.has_chunks else 0
        far = not chunk and panel_bytes > match.target.l2_bytes * SHARE_OF_CONV_PANEL
        if far and all(isinstance(extent, int) for extent in image.shape[2:4]):
            lines, columns = image_tile(height, width, most)
        else:
            columns = balanced(width, most)
            lines = balanced(height, max(1, most // columns))
        kept = _lines_in_cache(match.info, image, match.target, panels)
        units = _units(image)
        if not flat and kept == image.height >= LINES_OF_FREE_IMAGE and _is_free(image):
            columns, lines = (
                balanced(width, max(1, most // LINES_OF_FREE_IMAGE)),
                LINES_OF_FREE_IMAGE,
            )
        choices = [
            Choice("vectors", vectors, (1, 2, 3, 4), "blocks of channels in a register tile"),
            tile_size(
                "columns", columns, min(width, MOST_ROWS), "pixels of a line in a register tile"
            ),
            tile_size("lines", lines, min(height, MOST_ROWS), "lines in a register tile"),
            tile_size(
                "band", kept, units, "lines, or pixels of a single one, that each panel serves"
            ),
            Choice("unroll", 0, UNROLLED_STEPS, "unrolled reduction steps; 0: by the tile's size"),
            flag("prefetch", True, "prefetch the next panel while one is in use"),
        ]
        if match.flat is not None:
            choices.append(flag("flat", flat, "the image as one line"))
            if kept == 1:
                about = "bands that share a line, if the image is one line"
                choices.append(Choice("shares", 1, (1, 2, 4), about))
        if not match.own_channels and _reads_pixels(match.info):
            copied = kept < units and _is_crowded(match.info, image, match.target, kept)
            about = "copy a band of the image for all its panels: 1 by blocks, 2 pixel by pixel"
            choices.append(Choice("copied", int(copied), (0, _BY_BLOCKS, _BY_PIXELS), about))
        if chunk:
            pixels = flat or _is_line(image)
            unit, across = (columns, 1) if pixels else (lines, -(-width // columns))
            group = min(kept * (width if flat else 1), unit * -(-TILES_OF_CONV_CHUNK // across))
            about = "lines, or pixels of a single one, that each chunk of a panel serves"
            chunks = tuple(sorted({0, 1, 2, 4, 8, 16, chunk}))
            choices += [
                Choice("chunk", chunk, chunks, "blocks of input channels of a chunk"),
                tile_size("group", group, height * width, about),
            ]
        return Space(tuple(choices))

    def schedule(self, match: Convolution, settings: Settings) -> Schedule:
        flat = match.flat is not None and bool(settings["flat"])
        schedule = (match.flat if flat and match.flat else match.start).copy()
        infos = stage_infos(schedule)
        info, vectors, columns = infos[match.anchor], settings["vectors"], settings["columns"]
        out = match.result(schedule)
        n, co, *rows, ow, ci = infos[match.root].axes_in(out)
        schedule.reorder(co, n, *rows, ow, ci)  # outermost: an odd block is a separate nest
        co_outer, co_inner = schedule.split(co, vectors)
        outer = [n]
        if not flat and _is_line(match.image):
            outer, rows = [n, *rows], []
        down, *across = [*rows, ow]
        kept = settings["band"] * (match.image.width if flat else 1)
        if flat and "shares" in settings:
            kept = max(columns, kept // settings["shares"])
        if kept < schedule.extent(down):
            # Bands may differ in height.
            schedule.reorder(down, *outer, co_outer, co_inner, *across, ci)
            unit = settings["lines"] if rows else columns  # whole tiles
            most = max(kept // unit, 1)
            height = unit * balanced(-(-schedule.extent(down) // unit), most)
            band, down = schedule.split(down, height, tail="once")
            outer.insert(0, band)
        copy = ""
        if len(outer) > 1 and settings.get("copied"):
            image = _image_of(match.info).source.name
            by_pixels = settings["copied"] == _BY_PIXELS
            copy = schedule.cache_read(
                info.name, image, *(_loops_of(info, image) if by_pixels else ())
            )
            copied_lanes = stage_infos(schedule)[copy].axes[-1]
        schedule.reorder(*outer, co_outer, down, *across, co_inner, ci)
        chunk = settings.get("chunk", 0)
        inside, tiles = [], [down, ow] if rows else [down]
        if chunk:
            group, down = split_tiles(schedule, down, settings["group"])
            if rows:
                schedule.reorder(group, down, ow, co_inner, ci)
            schedule.compute_at(match.anchor, group, "scratch")
            levels = sum_chunks(
                schedule, info, chunk, (settings["lines"], columns), match.lanes, settings["unroll"]
            )
        else:
            if rows:
                down, oh_inner = split_tiles(schedule, down, settings["lines"], free="overlap")
                schedule.reorder(down, ow, oh_inner, co_inner, ci)
                inside.append(oh_inner)
            ow_outer, ow_inner = split_tiles(schedule, ow if rows else down, columns)
            inside.append(ow_inner)
            tiles = [down, ow_outer] if rows else [ow_outer]
            schedule.compute_at(match.anchor, ow_outer, "register")
            levels = [*tiles, *self.tile(schedule, info, match, settings)]
            # Frames outside a clip; most have none.
            schedule.attempt(lambda: schedule.skip_padding(match.anchor))
        vector, lane = schedule.split(ci, match.lanes, tail="guard")
        for name in (*inside, co_inner, vector):
            schedule.unroll(name)
        schedule.vectorize(lane)
        if settings["prefetch"]:
            stream(schedule, info, co_outer, levels, match.target, of_size=True)
        if copy:  # a band's part of the image is contiguous in its copy
            schedule.compute_at(copy, outer[-1])
            wide, lane = schedule.split(copied_lanes, match.lanes, tail="guard")
            schedule.unroll(wide)
            schedule.vectorize(lane)
        if chunk:
            spread(schedule, [*outer, co_outer], group)
        elif len(outer) > 1:  # bands of lines
            spread(schedule, [*outer, co_outer, tiles[0]])
        else:
            spread(schedule, [*outer, co_outer], tiles[0])
        return schedule

    def most_rows(self, match: Convolution, vectors: int) -> int:
        """Returns the most pixels of a register tile of a number of vectors."""
        return rows_of_tile(match.target, vectors)

    def tile(
        self, schedule: Schedule, info: StageInfo, match: Convolution, settings: Settings
    ) -> list[str]:
        """Orders the loops of a register tile. Returns the reduction loops, outermost first."""
        return register_tile(
            schedule, info, match.lanes, blocks=info.axes[1], unroll=settings["unroll"],
            apart=STEPS_OF_IMAGE_PREFETCH,
        )  # fmt: skip


def _loops_of(info: StageInfo, buffer: str) -> list[str]:
    """Returns the loops over the pixels that a convolution reads, those over channels last."""
    image = next(x for x in buffer_loads(info.store.value) if x.source.name == buffer)
    read = {n.name for n in info.loops if any(contains(i, n.index) for i in image.indices)}
    return [name for name in (*info.axes, *info.reduction_axes) if name in read]


def _is_line(image: Image) -> bool:
    """Whether the image is a signal: a single line, with bands of pixels instead of lines."""
    return image.shape[2] == 1 and image.width > 1


def _units(image: Image) -> int:
    """Returns the number of what bands consist of: lines, or pixels of a single line."""
    return image.width if _is_line(image) else image.height


def _is_free(image: Image) -> bool:
    """Whether only a run knows the numbers of lines and of pixels in a line."""
    return all(isinstance(extent, SymDim) for extent in image.shape[2:4])


def _fits_better_flat(image: Image, most: int) -> bool:
    """Whether tiles of `most` pixels fit the image as one line better than they fit its lines."""
    columns = balanced(image.width, most)
    tiles = -(-image.width // columns) * -(-image.height // max(1, most // columns))
    return -(-image.height * image.width // most) < tiles * GOOD_FIT


def _lines_in_cache(info: StageInfo, image: Image, target: Target, panels: int) -> int:
    """Returns the number of result lines (of pixels, if the image is a single line) whose part of
    the image stays in the second-level cache while panels of weights stream by; all of them if
    there are only a few panels, or if the image is read in windows and reading it for each panel
    takes less time than reading all weights for each band. Pixels without windows are read too fast
    to come from farther away.
    """
    load, units = _image_of(info), _units(image)
    if panels < PANELS_FOR_BANDS:
        return units
    over = (n.index for n in info.loops if n.name in info.reduction_axes)
    frames = math.prod(i.extent for i in over if contains(load.indices[0], i))
    image_bytes = frames * load.source.typical_bytes / load.source.typical_shape[0]
    kept = max(1, int(target.l2_bytes * SHARE_OF_IMAGE / (image_bytes / units)))
    bands = -(-units // kept)
    has_window = any(n.typical > 1 for n in info.loops if n.index.role == roles.TAP)
    if has_window and _weight_bytes(info) * (bands - 1) > image_bytes * panels:
        return units
    return min(units, kept)


def _weight_bytes(info: StageInfo) -> int:
    image = _image_of(info).source
    others = [x.source for x in buffer_loads(info.store.value) if x.source is not image]
    return max((source.typical_bytes for source in others), default=0)


def _reads_pixels(info: StageInfo) -> bool:
    """Whether a convolution reads pixels of an input of known size, each for itself: no window, no
    padding.
    """
    image = next((x for x in buffer_loads(info.store.value) if _has_lines(info, x)), None)
    taps = [n.size for n in info.loops if n.index.role == roles.TAP]
    return (
        image is not None
        and image.source.scope == "input"
        and all(isinstance(extent, int) for extent in image.source.shape)
        and all(size == 1 for size in taps)
        and not any(isinstance(node, Select) for node in nodes(info.store.value))
    )


def _is_crowded(info: StageInfo, image: Image, target: Target, kept: int) -> bool:
    """Whether a band of `kept` lines or pixels is slow to read although it fits in the second-level
    cache: each tile reads a few pixels of very many blocks, or blocks compete for the same places
    in the cache, because their distance is a multiple of many places.
    """
    load = _image_of(info)
    blocks, *rest = load.source.typical_shape[1:]
    if blocks >= MANY_BLOCKS:
        return True
    block_bytes = math.prod(rest) * memory_bytes(load.source.dtype)
    run_bytes = block_bytes * kept // _units(image)
    way_bytes = target.l2_bytes // WAYS_OF_L2
    step = math.gcd(block_bytes, way_bytes)
    places = way_bytes // step * min(run_bytes, step)
    return bool(blocks * run_bytes > SHARE_OF_WAYS * WAYS_OF_L2 * places)


def _image_of(info: StageInfo) -> Load:
    """Returns the load of the image, which has lines; the weights have none."""
    return next(x for x in buffer_loads(info.store.value) if _has_lines(info, x))


def _has_lines(info: StageInfo, load: Load) -> bool:
    line = next(n.index for n in info.loops if n.index.role == roles.LINE)
    return any(contains(i, line) for i in load.indices)
