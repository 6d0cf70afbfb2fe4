"""Images: stages whose axes have the roles of an image, blocked by channels or plain."""

from __future__ import annotations

from typing import Final

from clew.ir.dims import Dim, typical
from clew.ir.types import bits
from clew.loop.affine import contains
from clew.loop.ir import buffer_loads
from clew.schedules.stages import StageInfo
from clew.support.dataclass import dataclass
from clew.te import roles
from clew.te.expr import Cast, Imm, Inlined, Load, Scalar, Select

_BLOCKED: Final = (roles.BATCH, roles.BLOCK, roles.LINE, roles.PIXEL, roles.LANE)
_PLAIN: Final = (roles.BATCH, roles.CHANNEL, roles.LINE, roles.PIXEL)


@dataclass(frozen=True)
class Image:
    """The axes of an image, as names of loops. In a plain image, `lane` is empty and `block` is the
    channel axis. `shape` holds the sizes of the axes, or typical ones that stand for them.
    """

    batch: str
    block: str
    line: str
    pixel: str
    lane: str
    shape: tuple[Dim, ...]

    @property
    def blocks(self) -> int:
        """The number of blocks of channels; of channels in a plain image."""
        return typical(self.shape[1])

    @property
    def height(self) -> int:
        """The number of lines."""
        return typical(self.shape[2])

    @property
    def width(self) -> int:
        """The number of pixels in a line."""
        return typical(self.shape[3])

    @property
    def lanes(self) -> int:
        """The number of channels in a block; 1 in a plain image."""
        return typical(self.shape[4]) if self.lane else 1


def blocked_image(info: StageInfo) -> Image | None:
    """Returns the axes of an image in blocks of channels; None if the stage is not one."""
    if info.axis_roles != _BLOCKED:
        return None
    batch, block, line, pixel, lane = info.axes
    return Image(batch, block, line, pixel, lane, info.store.buffer.shape)


def image_of(info: StageInfo) -> Image | None:
    """Returns the axes of an image, blocked or plain; None if the stage is not an image."""
    if info.axis_roles == _PLAIN:
        batch, channel, line, pixel = info.axes
        return Image(batch, channel, line, pixel, "", info.store.buffer.shape)
    return blocked_image(info)


def reads_own_channels(info: StageInfo) -> bool:
    """Whether every operand depends on the output channel, as in depthwise convolutions.

    Channels then share no loads.
    """
    wanted = roles.LANE if roles.LANE in info.axis_roles else roles.CHANNEL
    channel = next((n.index for n in info.loops if n.index.role == wanted), None)
    return channel is not None and all(
        any(contains(i, channel) for i in load.indices) for load in buffer_loads(info.store.value)
    )


def is_padding(info: StageInfo) -> bool:
    """Whether a stage pads a tensor with a number."""
    value: Scalar = info.store.value
    while isinstance(value, Inlined):
        value = value.value
    if not isinstance(value, Select):
        return False
    return isinstance(value.b, Imm) and not info.is_reduction


def is_widening(info: StageInfo) -> bool:
    """Whether a stage is a copy of integers with more bits."""
    value: Scalar = info.store.value
    while isinstance(value, Inlined):
        value = value.value
    if not isinstance(value, Cast) or not isinstance(value.a, Load):
        return False
    made, read = info.store.buffer.dtype, value.a.dtype
    return {made[0], read[0]} <= {"i", "u"} and bits(made) > bits(read)
