"""Images: stages whose axes have the roles of one, in blocks of channels or plain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from clew.loop.affine import contains
from clew.loop.ir import buffer_loads
from clew.schedules.library.stages import StageInfo
from clew.te import roles
from clew.te.expr import Imm, Inlined, Scalar, Select

_BLOCKED: Final = (roles.BATCH, roles.BLOCK, roles.LINE, roles.PIXEL, roles.LANE)
_PLAIN: Final = (roles.BATCH, roles.CHANNEL, roles.LINE, roles.PIXEL)


@dataclass(frozen=True)
class Image:
    """The axes of an image: names of loops. A plain image has no `lane`; its `block` is the axis of
    its channels.
    """

    batch: str
    block: str
    line: str
    pixel: str
    lane: str
    shape: tuple[int, ...]

    @property
    def blocks(self) -> int:
        """How many blocks of channels there are, or channels."""
        return self.shape[1]

    @property
    def height(self) -> int:
        """How many lines there are."""
        return self.shape[2]

    @property
    def width(self) -> int:
        """How many pixels a line has."""
        return self.shape[3]

    @property
    def lanes(self) -> int:
        """How many channels a block has; 1 in a plain image."""
        return self.shape[4] if self.lane else 1


def blocked_image(info: StageInfo) -> Image | None:
    """Returns the axes of an image in blocks of channels; None where a stage is none."""
    if info.axis_roles != _BLOCKED:
        return None
    batch, block, line, pixel, lane = info.axes
    return Image(batch, block, line, pixel, lane, info.store.buffer.shape)


def image_of(info: StageInfo) -> Image | None:
    """Returns the axes of an image, in blocks or plain; None where a stage is none."""
    if info.axis_roles == _PLAIN:
        batch, channel, line, pixel = info.axes
        return Image(batch, channel, line, pixel, "", info.store.buffer.shape)
    return blocked_image(info)


def reads_own_channels(info: StageInfo) -> bool:
    """Whether every operand depends on the output channel (depthwise): channels share no loads."""
    wanted = roles.LANE if roles.LANE in info.axis_roles else roles.CHANNEL
    channel = next((n.index for n in info.loops if n.index.role == wanted), None)
    return channel is not None and all(
        any(contains(i, channel) for i in load.indices) for load in buffer_loads(info.store.value)
    )


def is_padding(info: StageInfo) -> bool:
    """Whether a stage is a tensor within zeros."""
    value: Scalar = info.store.value
    while isinstance(value, Inlined):
        value = value.value
    if not isinstance(value, Select):
        return False
    zero = value.b
    return isinstance(zero, Imm) and zero.value == 0 and not info.is_reduction
