"""Depthwise convolutions melted with the pointwise ones before and after them, at bands of lines.

What lies between is computed where it is used, in the scratch memory of one thread, and never
leaves the second-level cache:

```
for each band of lines of the result:
    for each panel of the depthwise convolution's channels:
        the lines of the first convolution that the panel's windows read
        the windows
    the last convolution, which sums over all channels
```

A band's windows overlap those of its neighbors: those lines are computed twice. Without a first
convolution, windows read their image; without a last one, they are the result.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from clew.loop.affine import contains
from clew.loop.ir import Buffer, buffer_loads
from clew.loop.schedule import Schedule
from clew.machine.target import Target
from clew.schedules import windows
from clew.schedules.matmul import register_tile, spread
from clew.schedules.shape import StageInfo, stage_infos
from clew.schedules.tiles import balanced, rows_of_tile, window_tile
from clew.support.errors import ScheduleError

NAME = "separable"
_RANK = 5
_VECTORS = 2
# What a band touches takes this share of the second-level cache.
_SHARE_OF_CACHE = 0.7
# Bands that an image gives, for threads to share: so many if they have pixels enough.
_FEWEST_BANDS = (4, 2)
_ENOUGH_PIXELS = 96
# Lines that windows read beyond a band's own, about.
_FEW_LINES = 2


@dataclass(frozen=True)
class Link:
    """A convolution and the last stage of its tail, which is itself where it has none."""

    anchor: StageInfo
    root: StageInfo


@dataclass(frozen=True)
class Chain:
    """The convolutions by their place; `before` or `after` may be missing."""

    before: Link | None
    windows: Link
    after: Link | None

    @property
    def links(self) -> list[Link]:
        """Those that are there, the first first."""
        return [x for x in (self.before, self.windows, self.after) if x is not None]


def find(schedule: Schedule, target: Target) -> Chain | None:
    """Returns the convolutions of a kernel that this rule schedules; None for any other kernel."""
    infos = stage_infos(schedule)
    reductions = [info for info in infos.values() if info.is_reduction]
    outputs = [name for name, info in infos.items() if info.is_output]
    if not 2 <= len(reductions) <= 3 or len(outputs) != 1:
        return None
    if any(loop.extent == 0 for info in infos.values() for loop in info.loops):
        return None
    if not all(info.is_anchor and _is_image(info, target) for info in reductions):
        return None
    sliding = [n for n, info in enumerate(reductions) if windows.reads_own_channels(info)]
    if len(sliding) != 1 or sliding[0] > 1 or len(reductions) - sliding[0] > 2:
        return None
    links: list[Link] = []
    for here, following in zip(reductions, [*reductions[1:], None], strict=True):
        root = outputs[0] if following is None else _operand(infos, here, following)
        if root is None or infos[root].store.buffer.shape != here.store.buffer.shape:
            return None
        links.append(Link(here, infos[root]))
    at = sliding[0]
    middle = links[at]
    if len(middle.anchor.reduction_axes) != 2:
        return None
    return Chain(links[0] if at else None, middle, links[at + 1] if links[at + 1 :] else None)


def _is_image(info: StageInfo, target: Target) -> bool:
    """Whether a stage is an image in blocks of a vector, of operands of its own dtype."""
    shape, dtype = info.store.buffer.shape, info.store.buffer.dtype
    return (
        len(shape) == len(info.axes) == _RANK
        and shape[-1] == target.vector_lanes(dtype)
        and all(x.dtype == dtype for x in buffer_loads(info.store.value))
    )


def _operand(infos: dict[str, StageInfo], here: StageInfo, following: StageInfo) -> str | None:
    """Returns the end of a convolution's tail, which the following one reads as it is or within
    padding; None where the two are no chain.
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
    if len(read) == 1 and windows.is_padding(infos[read[0]]):
        read = [n for n in after if read[0] in infos[n].readers]
    return read[0] if len(read) == 1 else None


def schedule(schedule: Schedule, chain: Chain, target: Target) -> None:
    """Schedules the kernel."""
    kept = {x for link in chain.links for x in (link.anchor.name, link.root.name)}
    for name in reversed(list(stage_infos(schedule))):
        if name not in kept:
            schedule.inline(name)
    last = chain.links[-1]
    out = _copied_out(schedule, last)
    n, co, oh, ow, ci = last.root.axes_in(out)
    schedule.reorder(oh, n, co, ow, ci)
    lines = -(-schedule.extent(oh) // _bands(chain, target))
    whole = schedule.extent(oh) % lines == 0
    band, oh = schedule.split(oh, lines, tail="guard")
    schedule.reorder(n, band, co, oh, ow, ci)
    outer = [n, band]
    if chain.after is None:
        outer.append(_windows(schedule, chain, out, target, whole=whole))
    else:
        _pointwise(schedule, chain.after, out, oh, target, whole=whole)
        own = _moved(schedule, chain.windows, band)
        _windows(schedule, chain, own, target, whole=whole)
    spread(schedule, outer)


def _moved(schedule: Schedule, link: Link, loop: str) -> str:
    """Computes a link's result in an iteration of a loop; returns the stage that holds it."""
    out = _copied_out(schedule, link)
    schedule.compute_at(out, loop, "scratch")
    return out


def _copied_out(schedule: Schedule, link: Link) -> str:
    """Returns the stage that writes what a convolution's register tiles give."""
    if link.root is link.anchor:
        return schedule.cache_write(link.anchor.name)
    return link.root.name


def _bands(chain: Chain, target: Target) -> int:
    """Returns how many bands an image has: of equal height if that gives a number for threads to
    share, each with pixels enough that weights are used for some time.
    """
    _, _, height, width, _ = chain.links[-1].anchor.store.buffer.shape
    room = target.l2_bytes * _SHARE_OF_CACHE
    fitting = [n for n in range(1, height + 1) if _band_bytes(chain, -(-height // n)) <= room]
    fitting = fitting or [height]
    even = [n for n in fitting if height % n == 0 and height // n * width >= _ENOUGH_PIXELS]
    for least in _FEWEST_BANDS:
        found = [n for n in even if n >= least]
        if found:
            return found[0]
    return next((n for n in fitting if n > 1), fitting[0])


def _band_bytes(chain: Chain, lines: int) -> float:
    """Returns how many bytes of the cache a band of so many lines of the result takes."""
    slid = chain.windows.anchor.store.buffer
    image = _image(chain.windows.anchor)
    read = lines * image.shape[2] / slid.shape[2] + _FEW_LINES
    total = lines * _line_bytes(slid)
    if chain.before is None:
        return total + read * _line_bytes(image)
    panel = min(1.0, _VECTORS / image.shape[1])
    given = _line_bytes(_image(chain.before.anchor))
    return total + read * (_line_bytes(image) * panel + given)


def _line_bytes(image: Buffer) -> float:
    """Returns the bytes of a line of all channels of an image."""
    return image.size_bytes / image.shape[0] / image.shape[2]


def _image(info: StageInfo) -> Buffer:
    """Returns the operand of a convolution that moves with the lines of its result."""
    line = next(n.index for n in info.loops if n.name == info.axes[2])
    loads = buffer_loads(info.store.value)
    found: Buffer = next(x.source for x in loads if any(contains(i, line) for i in x.indices))
    return found


def _pointwise(
    schedule: Schedule, link: Link, out: str, oh: str, target: Target, *, whole: bool
) -> None:
    """Arranges a convolution that sums over channels: panels of output channels outside, tiles of
    pixels inside. Tiles are of one line where the last band is not `whole`.
    """
    info = link.anchor
    _, co, _, ow, ci = link.root.axes_in(out)
    vectors = min(_VECTORS, schedule.extent(co))
    width = schedule.extent(ow)
    most = rows_of_tile(target, vectors)
    columns = balanced(width, most)
    lines = balanced(schedule.extent(oh), max(1, most // columns)) if whole else 1
    panel, block = schedule.split(co, vectors)
    schedule.reorder(panel, oh, ow, block, ci)
    oh, line = schedule.split(oh, lines, tail="balance")
    schedule.reorder(oh, ow, line, block, ci)
    ow, column = schedule.split(ow, columns, tail="balance")
    schedule.compute_at(info.name, ow, "register")
    register_tile(schedule, info, schedule.extent(ci), blocks=info.axes[1])
    schedule.share_guards(oh)
    for name in (line, column, block):
        schedule.unroll(name)
    schedule.vectorize(ci)


def _windows(schedule: Schedule, chain: Chain, out: str, target: Target, *, whole: bool) -> str:
    """Arranges the windows, and what they read where that is computed; returns the loop over panels
    of channels.
    """
    info = chain.windows.anchor
    kh, kw = info.reduction_axes
    _, _, line, column, own_lane = info.axes
    _, co, oh, ow, ci = chain.windows.root.axes_in(out)
    if chain.after is None:
        oh = f"{oh}.i"
    panel = co
    if chain.before is not None:
        panel, co = schedule.split(co, _VECTORS)
    height = schedule.extent(oh) if whole else 1
    lines, columns = window_tile(target, height, schedule.extent(ow))
    oh_outer, oh_inner = schedule.split(oh, lines, tail="balance")
    schedule.reorder(ow, oh_inner, ci)
    ow_outer, ow_inner = schedule.split(ow, columns, tail="balance")
    schedule.reorder(ow_outer, oh_inner, ow_inner, ci)
    schedule.compute_at(info.name, ow_outer, "register")
    if chain.before is not None:
        own = _moved(schedule, chain.before, panel)
        _expand(schedule, chain.before, own, target)
    schedule.reorder(kh, line, kw, column, own_lane)
    with contextlib.suppress(ScheduleError):  # there may be no padding
        schedule.skip_padding(info.name, lanes=own_lane)
    schedule.share_guards(oh_outer)
    schedule.partition(ow_outer)
    schedule.partition(oh_outer)
    if lines * columns * schedule.extent(kh) * schedule.extent(kw) <= windows.MOST_UNROLLED:
        schedule.unroll(kh)
    for name in (oh_inner, ow_inner, line, kw, column):
        schedule.unroll(name)
    for name in (ci, own_lane):
        schedule.vectorize(name)
    return panel


def _expand(schedule: Schedule, link: Link, out: str, target: Target) -> None:
    """Arranges the first convolution for a panel of channels: lines outside, so that one beyond the
    image is left out as a whole.
    """
    info = link.anchor
    _, co, oh, ow, ci = link.root.axes_in(out)
    columns = balanced(schedule.extent(ow), rows_of_tile(target, _VECTORS))
    schedule.reorder(oh, ow, co, ci)
    ow, column = schedule.split(ow, columns, tail="balance")
    schedule.compute_at(info.name, ow, "register")
    register_tile(schedule, info, schedule.extent(ci), blocks=info.axes[1])
    schedule.share_guards(oh)
    for name in (column, co):
        schedule.unroll(name)
    schedule.vectorize(ci)
