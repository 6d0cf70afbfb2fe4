"""Depthwise convolutions fused with the pointwise ones before and after them, at bands of lines.

Values between the convolutions are computed where they are used, in the scratch memory of one
thread, and never leave the second-level cache:

```
for each band of lines of the result:
    for each panel of the depthwise convolution's channels:
        the lines of the first convolution that the panel's windows read
        the windows
    the last convolution, which sums over all channels
```

The windows of adjacent bands overlap, and the lines they share are computed twice. Without a first
convolution, the windows read their image; without a last one, they are the result.
"""

from __future__ import annotations

from clew.cost.policy.caches import LINES_AROUND_BAND, SHARE_OF_SEPARABLE
from clew.cost.policy.fusion import PIXELS_PER_WEIGHT
from clew.cost.policy.threads import (
    BANDS_BESIDE_PANELS,
    BANDS_FOR_THREADS,
    LINES_WITH_BORDERS,
    PIXELS_OF_BAND,
)
from clew.cost.policy.tiles import MOST_ROWS, MOST_UNROLLED_WINDOWS, VECTORS_OF_SEPARABLE
from clew.loop.affine import contains
from clew.loop.ir import Buffer, buffer_loads
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules.demands import NOT_EMPTY, ONE_RESULT
from clew.schedules.library.images import blocked_image, is_padding, reads_own_channels
from clew.schedules.library.register_tile import register_tile, split_tiles, spread
from clew.schedules.library.tile_sizes import balanced, rows_of_tile, window_tile
from clew.schedules.rule import Demand, Match, Rule, Work
from clew.schedules.space import Choice, Settings, Space, tile_size
from clew.schedules.stages import StageInfo
from clew.support.dataclass import dataclass
from clew.te import roles


@dataclass(frozen=True)
class Link:
    """A convolution and the last stage of its tail, or the convolution itself if it has none."""

    anchor: StageInfo
    root: StageInfo


@dataclass(frozen=True)
class Chain(Match):
    """The convolutions by position; `before` or `after` may be missing."""

    before: Link | None
    windows: Link
    after: Link | None

    @property
    def links(self) -> list[Link]:
        """The convolutions that exist, in order."""
        return [x for x in (self.before, self.windows, self.after) if x is not None]

    @property
    def result(self) -> Buffer:
        """The result of the last convolution."""
        return self.links[-1].anchor.store.buffer


def _convolves_images(work: Work, target: Target) -> bool:
    return 2 <= len(work.reductions) <= 3 and all(
        info.is_anchor and _is_image(info, target) for info in work.reductions
    )


class Separable(Rule[Chain]):
    """Depthwise convolutions with a pointwise one before, after, or both."""

    name = "separable"
    scope = "kernel"
    demands = (
        ONE_RESULT,
        NOT_EMPTY,
        Demand("two or three convolutions of blocked images", _convolves_images),
    )

    def match(self, work: Work, target: Target) -> Chain | None:
        convolutions, infos = work.reductions, work.infos
        sliding = [n for n, info in enumerate(convolutions) if reads_own_channels(info)]
        if len(sliding) != 1 or sliding[0] > 1 or len(convolutions) - sliding[0] > 2:
            return None
        links: list[Link] = []
        for here, following in zip(convolutions, [*convolutions[1:], None], strict=True):
            if following is None:
                root: str | None = work.outputs[0].name
            else:
                root = _operand(infos, here, following)
            if root is None or infos[root].store.buffer.shape != here.store.buffer.shape:
                return None
            links.append(Link(here, infos[root]))
        at = sliding[0]
        if set(links[at].anchor.reduction_roles) != {roles.TAP}:
            return None
        kept = {x for link in links for x in (link.anchor.name, link.root.name)}
        schedule = work.start.copy()
        for name in reversed(list(infos)):
            if name not in kept:
                schedule.inline(name)
        before, after = links[0] if at else None, links[at + 1] if links[at + 1 :] else None
        return Chain(schedule, target, before, links[at], after)

    def choices(self, match: Chain) -> Space:
        height = match.result.typical_shape[2]
        lines = -(-height // _bands(match))
        tiles = tuple(range(MOST_ROWS + 1))
        choices = [
            tile_size("band", lines, height, "lines of the result in a band"),
            Choice("window_lines", 0, tiles, "lines in a tile of windows; 0: by the registers"),
            Choice("window_columns", 0, tiles, "pixels in a tile of windows; 0: by the registers"),
        ]
        if match.after is not None:
            most = rows_of_tile(match.target, VECTORS_OF_SEPARABLE)
            choices += [
                Choice("columns", 0, tiles, f"pixels in a register tile; 0: {most} at most"),
                Choice("lines", 0, tiles, "lines in a register tile; 0: by the columns"),
            ]
        return Space(tuple(choices))

    def schedule(self, match: Chain, settings: Settings) -> Schedule:
        schedule, _ = match.begin()
        last = match.links[-1]
        out = _copied_out(schedule, last)
        n, co, oh, ow, ci = last.root.axes_in(out)
        schedule.reorder(oh, n, co, ow, ci)
        whole = schedule.is_multiple(oh, settings["band"])
        tiles = _Tiles(settings, match.target, whole)
        band, oh = schedule.split(oh, settings["band"], tail="guard")
        schedule.reorder(n, band, co, oh, ow, ci)
        outer = [n, band]
        if match.after is None:
            outer.append(_windows(schedule, match, out, tiles))
        else:
            _pointwise(schedule, match.after, out, oh, tiles)
            own = _moved(schedule, match.windows, band)
            _windows(schedule, match, own, tiles)
        spread(schedule, outer)
        return schedule


@dataclass(frozen=True)
class _Tiles:
    """Sizes of register tiles. Unless all bands are `whole`, tiles default to one line."""

    settings: Settings
    target: Target
    whole: bool

    def of_windows(self, height: int, width: int) -> tuple[int, int]:
        """Returns the lines and columns of a tile of windows in a band."""
        lines, columns = window_tile(self.target, height if self.whole else 1, width)
        chosen = self.settings["window_lines"], self.settings["window_columns"]
        return min(chosen[0], height) or lines, min(chosen[1], width) or columns

    def of_pixels(self, height: int, width: int, vectors: int) -> tuple[int, int]:
        """Returns the lines and columns of a register tile of pixels by `vectors` of channels."""
        most = rows_of_tile(self.target, vectors)
        columns = min(self.settings["columns"], width) or balanced(width, most)
        lines = balanced(height, max(1, most // columns)) if self.whole else 1
        return min(self.settings["lines"], height) or lines, columns


def _is_image(info: StageInfo, target: Target) -> bool:
    """Whether a stage is an image in channel blocks of one vector, with operands of its dtype."""
    image, dtype = blocked_image(info), info.store.buffer.dtype
    return (
        image is not None
        and image.lanes == target.vector_lanes(dtype)
        and all(x.dtype == dtype for x in buffer_loads(info.store.value))
    )


def _operand(infos: dict[str, StageInfo], here: StageInfo, following: StageInfo) -> str | None:
    """Returns the end of a convolution's tail, which the following convolution reads, directly or
    padded; None if the two do not form a chain.
    """
    after = {here.name}
    for name, info in infos.items():  # in order: producers first
        if after.intersection(n for n in infos if name in infos[n].readers):
            if info.is_reduction and name != following.name:
                return None
            after.add(name)
            if name == following.name:
                break
    read = [n for n in after if following.name in infos[n].readers]
    if len(read) == 1 and is_padding(infos[read[0]]):
        read = [n for n in after if read[0] in infos[n].readers]
    return read[0] if len(read) == 1 else None


def _moved(schedule: Schedule, link: Link, loop: str) -> str:
    """Computes a link's result within a loop; returns the stage that holds it."""
    out = _copied_out(schedule, link)
    schedule.compute_at(out, loop, "scratch")
    return out


def _copied_out(schedule: Schedule, link: Link) -> str:
    """Returns the stage that writes the results of a convolution's register tiles."""
    if link.root is link.anchor:
        return schedule.cache_write(link.anchor.name)
    return link.root.name


def _bands(chain: Chain) -> int:
    """Returns the number of bands of an image. Bands have equal height if there are then enough for
    threads to share, each with enough pixels per loaded weight.
    """
    _, _, height, width, _ = chain.result.typical_shape
    room = chain.target.l2_bytes * SHARE_OF_SEPARABLE
    fitting = [n for n in range(1, height + 1) if _band_bytes(chain, -(-height // n)) <= room]
    fitting = fitting or [height]
    # Only a convolution before the windows repeats lines at the borders of bands.
    borders = chain.before is not None
    pixels = PIXELS_PER_WEIGHT if borders else PIXELS_OF_BAND
    wanted = BANDS_FOR_THREADS if chain.after is not None else BANDS_BESIDE_PANELS
    for least in wanted:
        lines = LINES_WITH_BORDERS if borders and least > BANDS_BESIDE_PANELS[0] else 1
        for n in fitting:
            each = height // n
            if n >= least and height % n == 0 and each >= lines and each * width >= pixels:
                return n
    return next((n for n in fitting if n > 1), fitting[0])


def _band_bytes(chain: Chain, lines: int) -> float:
    """Returns the bytes of cache that a band of this many result lines takes."""
    slid = chain.windows.anchor.store.buffer
    image = _image(chain.windows.anchor)
    _, blocks, image_lines, *_ = image.typical_shape
    read = lines * image_lines / slid.typical_shape[2] + LINES_AROUND_BAND
    total = lines * _line_bytes(slid)
    if chain.before is None:
        return total + read * _line_bytes(image)
    panel = min(1.0, VECTORS_OF_SEPARABLE / blocks)
    given = _line_bytes(_image(chain.before.anchor))
    return total + read * (_line_bytes(image) * panel + given)


def _line_bytes(image: Buffer) -> float:
    """Returns the bytes of one line of an image, with all channels."""
    batch, _, lines, *_ = image.typical_shape
    return image.typical_bytes / batch / lines


def _image(info: StageInfo) -> Buffer:
    """Returns the operand of a convolution that moves with the lines of its result."""
    line = next(n.index for n in info.loops if n.name == info.axes[2])
    loads = buffer_loads(info.store.value)
    found: Buffer = next(x.source for x in loads if any(contains(i, line) for i in x.indices))
    return found


def _pointwise(schedule: Schedule, link: Link, out: str, oh: str, tiles: _Tiles) -> None:
    """Arranges a convolution that sums over channels: panels of output channels outside, tiles of
    pixels inside.
    """
    info = link.anchor
    _, co, _, ow, ci = link.root.axes_in(out)
    vectors = min(VECTORS_OF_SEPARABLE, schedule.extent(co))
    lines, columns = tiles.of_pixels(schedule.extent(oh), schedule.extent(ow), vectors)
    panel, block = schedule.split(co, vectors)
    schedule.reorder(panel, oh, ow, block, ci)
    oh, line = split_tiles(schedule, oh, lines)
    schedule.reorder(oh, ow, line, block, ci)
    ow, column = split_tiles(schedule, ow, columns)
    schedule.compute_at(info.name, ow, "register")
    register_tile(schedule, info, schedule.extent(ci), blocks=info.axes[1])
    schedule.share_guards(oh)
    for name in (line, column, block):
        schedule.unroll(name)
    schedule.vectorize(ci)


def _windows(schedule: Schedule, chain: Chain, out: str, tiles: _Tiles) -> str:
    """Arranges the windows and the first convolution, if any; returns the loop over panels of
    channels.
    """
    info = chain.windows.anchor
    kh, kw = info.reduction_axes
    _, _, line, column, own_lane = info.axes
    _, co, oh, ow, ci = chain.windows.root.axes_in(out)
    if chain.after is None:
        oh = f"{oh}.i"
    panel = co
    if chain.before is not None:
        panel, co = schedule.split(co, VECTORS_OF_SEPARABLE)
    lines, columns = tiles.of_windows(schedule.extent(oh), schedule.extent(ow))
    oh_outer, oh_inner = split_tiles(schedule, oh, lines)
    schedule.reorder(ow, oh_inner, ci)
    ow_outer, ow_inner = split_tiles(schedule, ow, columns)
    schedule.reorder(ow_outer, oh_inner, ow_inner, ci)
    schedule.compute_at(info.name, ow_outer, "register")
    if chain.before is not None:
        own = _moved(schedule, chain.before, panel)
        _expand(schedule, chain.before, own, chain.target)
    schedule.reorder(kh, line, kw, column, own_lane)
    schedule.attempt(lambda: schedule.skip_padding(info.name, lanes=own_lane))  # if there is any
    schedule.share_guards(oh_outer)
    schedule.partition(ow_outer)
    schedule.partition(oh_outer)
    if lines * columns * schedule.extent(kh) * schedule.extent(kw) <= MOST_UNROLLED_WINDOWS:
        schedule.unroll(kh)
    for name in (oh_inner, ow_inner, line, kw, column):
        schedule.unroll(name)
    for name in (ci, own_lane):
        schedule.vectorize(name)
    return panel


def _expand(schedule: Schedule, link: Link, out: str, target: Target) -> None:
    """Arranges the first convolution for a panel of channels. Its lines are outermost, so that
    lines outside the image are skipped as a whole.
    """
    info = link.anchor
    _, co, oh, ow, ci = link.root.axes_in(out)
    columns = balanced(schedule.extent(ow), rows_of_tile(target, VECTORS_OF_SEPARABLE))
    schedule.reorder(oh, ow, co, ci)
    ow, column = split_tiles(schedule, ow, columns)
    schedule.compute_at(info.name, ow, "register")
    register_tile(schedule, info, schedule.extent(ci), blocks=info.axes[1])
    schedule.share_guards(oh)
    for name in (column, co):
        schedule.unroll(name)
    schedule.vectorize(ci)
